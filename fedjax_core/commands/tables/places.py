"""Which cells of a table a text means, as `--only` and `--set` have it.

  ROW           all cells of a row
  ROW/COLUMN    one
  /COLUMN       all cells of a column

A row and a column are meant by their label, or by the name that their directories have; capitals do not count. "*" stands for any
characters: "/cifar-10-*" is CIFAR-10 with every alpha, "/cifar-10*" is CIFAR-100 too.
"""

import re
from collections.abc import Collection, Iterable

from fedjax_core import registry

Pair = tuple[str, str]


def slug(label: str) -> str:
    """A label as a part of a directory's name."""
    return re.sub(r"[^\w.]+", "-", label.lower()).strip("-.")


def chosen(place: str, pairs: Iterable[Pair]) -> list[Pair]:
    """The cells that a text means.

    Args:
      place: the text.
      pairs: labels of the rows and columns that there are.

    Raises:
      ValueError: it means none; one line with the names that there are.
    """
    pairs = list(dict.fromkeys(pairs))
    found = [pair for pair in pairs if _matches(place, pair)]
    if not found:
        row, slash, column = _parts(place)
        rows, columns = (list(dict.fromkeys(slug(pair[i]) for pair in pairs)) for i in range(2))
        unknown = not (any(_like(row, pair[0]) for pair in pairs) or (slash and not row))
        what, name, there = ("row", row, rows) if unknown else ("column", column, columns)
        registry.choose(what, name, there)
    return found


def split(text: str, pairs: Collection[Pair]) -> list[str]:
    """The texts in "ROW,ROW/COLUMN,...", for `chosen`; a label may hold commas of its own: the longest that there is counts."""
    parts, found = [part.strip() for part in text.split(",")], []
    while parts:
        joined = [", ".join(parts[:n]) for n in range(len(parts), 0, -1)]
        place = next((place for place in joined if any(_matches(place, pair) for pair in pairs)), parts[0])
        parts = parts[place.count(",") + 1 :]
        found += [place] if place else []
    return found


def _matches(place: str, pair: Pair) -> bool:
    if place.strip() in (pair[0], "/".join(pair)):  # labels may hold slashes
        return True
    row, slash, column = _parts(place)
    if not slash:
        return _like(row, pair[0])
    return (not row or _like(row, pair[0])) and _like(column, pair[1])


def _parts(place: str) -> tuple[str, str, str]:
    row, slash, column = place.partition("/")
    return row.strip(), slash, column.strip()


def _like(text: str, label: str) -> bool:
    """Whether a text is a label, or its name in directories; capitals do not count, and "*" stands for any characters."""
    pattern = re.compile(".*".join(map(re.escape, text.lower().split("*"))))
    return any(pattern.fullmatch(name) is not None for name in (label.lower(), slug(label)))
