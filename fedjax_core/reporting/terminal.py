"""Text that fits a terminal: lines and tables are folded at words; what is piped stays as it is."""

import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

FULL = 92  # columns, from which on a docstring's line was broken because it was full
LABEL = re.compile(r"\s*(?:\S+(?: \S+)*? {2,}(?=\S))?")  # an indent, or a first column
COMMAND = re.compile(r" *fedjax-core ")


def find_columns(stream: Any) -> int | None:
    """Returns the columns of a terminal; None if the stream is none."""
    try:
        return shutil.get_terminal_size().columns if stream.isatty() else None
    except (ValueError, AttributeError):  # closed, or no file
        return None


def write_text(text: str) -> None:
    """Writes a text on commands and names to standard output, folded for a terminal."""
    sys.stdout.write(f"{fit_lines(text.removesuffix(chr(10)), find_columns(sys.stdout), is_prose=True)}\n")


def fit_lines(text: str, columns: int | None, is_prose: bool = False) -> str:
    """Folds lines that are longer than `columns`, below the text of their first; None: none.

    Example commands are continued as a shell reads them, tables of Markdown become aligned columns.

    Args:
      is_prose: whether lines that were broken at about 100 columns are filled anew.
    """
    lines = text.splitlines()
    if columns is None or max(map(len, lines), default=0) <= columns:
        return text
    folded = []
    for is_table, group in itertools.groupby(_join_full_lines(lines) if is_prose else lines, lambda line: line.startswith("| ")):
        parts = list(group)
        rows = [re.split(r"\s*\|\s*", line.strip())[1:-1] for line in parts if is_table and set(line) - set("|-: ")]
        if len({len(row) for row in rows}) == 1:
            folded += align_columns(rows, columns)
        else:
            folded += [part for line in parts for part in _fold_line(line, columns)]
    return "\n".join(folded)


def _join_full_lines(lines: Sequence[str]) -> list[str]:
    """Joins each line to the one before if that ended because it was full."""
    joined, length = [""], 0
    for line in lines:
        words, indent = line.split(), len(line) - len(line.lstrip())
        is_prose = bool(words) and not words[0].endswith(":") and "  " not in line.strip() and not COMMAND.match(line)
        is_rest = indent == len(joined[-1]) - len(joined[-1].lstrip()) or indent == LABEL.match(joined[-1]).end()  # type: ignore[union-attr]
        if is_prose and is_rest and length + 1 + len(words[0]) > FULL and not joined[-1].startswith("| "):
            joined[-1] += f" {line.strip()}"
        else:
            joined.append(line)
        length = len(line)
    return joined[1:]


def _fold_line(line: str, columns: int) -> list[str]:
    if len(line) <= columns:
        return [line]
    is_command = COMMAND.match(line) is not None
    start = len(line) - len(line.lstrip()) + 4 if is_command else LABEL.match(line).end()  # type: ignore[union-attr]
    indent = " " * (start if start <= columns // 2 else len(line) - len(line.lstrip()) + 4)
    width = columns - 2 if is_command else columns
    parts = textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return [f"{part} \\" for part in parts[:-1]] + parts[-1:] if is_command else parts


def markdown_row(*cells: str) -> str:
    """Returns a line of a Markdown table."""
    return "| " + " | ".join(text.replace("|", r"\|") for text in cells) + " |"


def align_columns(
    rows: Sequence[Sequence[str]], columns: int | None = None, indent: str = "", align: Callable[[str, int], str] = str.ljust
) -> list[str]:
    """Returns lines with aligned columns, each as wide as its widest cell.

    Args:
      columns: of the terminal: columns of the table that do not fit beside the first follow below,
        beside the first again. None: all fit.
      align: of all columns but the first.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    blocks, used = [[0]], 0
    for i, width in enumerate(widths[1:], 1):
        used += 2 + width
        if columns is not None and len(indent) + widths[0] + used > columns and len(blocks[-1]) > 1:
            blocks, used = [*blocks, [0]], 2 + width
        blocks[-1].append(i)
    lines = []
    for block in blocks:
        lines += [""] if lines else []
        for row in rows:
            cells = [align(row[i], widths[i]) if i else row[i].ljust(widths[i]) for i in block]
            lines.append(indent + "  ".join(cells).rstrip())
    return lines
