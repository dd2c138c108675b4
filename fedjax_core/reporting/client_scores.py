"""Scores of single clients: their files in a run's directory, and what there is to say of a score beyond its mean.

    round,client,test_rows,test/personal/own/accuracy,test/personal/own/loss
    50,0,17,0.9411765,0.2012
    50,1,0,,

A column `name` follows the client where clients have names, as natural ones of a table. A row per scored client, an empty cell
where a client has no rows for a score. Unseen clients follow the population: the k-th of those that run.json names, from 0, is
client N + k.
"""

import csv
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.atomic_files import csv_line, explained, open_text, write_blocks
from fedjax_core.engine.evaluation_step import ByClient
from fedjax_core.reporting.score_labels import is_headline

LAST, SELECTED = "clients.csv", "clients_selected.csv"  # of the last evaluation, and of the selected round
_HEADS = ["round", "client", "test_rows"]
_NAMED = ["round", "client", "name", "test_rows"]  # where clients have names
_BLOCK = 2**16  # lines that are made, or read, at once


def write(file: Path, done: int, found: ByClient, names: Sequence[str] = ()) -> None:
    """Writes the file, atomically.

    Args:
      file: its place.
      done: rounds done.
      found: of the evaluation after them.
      names: of all clients by id, unseen ones behind the population; empty: they have none.

    Raises:
      OSError: it cannot be written.
    """
    write_blocks(file, _blocks(done, found, names))


def _blocks(done: int, found: ByClient, names: Sequence[str]) -> Iterator[bytes]:
    yield csv_line([*(_NAMED if names else _HEADS), *found.scores])
    cell = lambda value: "" if value != value else repr(value)
    for begin in range(0, len(found.ids), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        numbers: list[Iterable[str]] = [map(str, column[block].tolist()) for column in (found.ids, found.rows)]
        if names:
            numbers.insert(1, (csv_line([names[i]]).decode().rstrip("\n") for i in found.ids[block].tolist()))
        values = [map(cell, column[block].astype(np.float64).tolist()) for column in found.scores.values()]
        yield "".join(f"{done},{','.join(cells)}\n" for cells in zip(*numbers, *values, strict=True)).encode()


def read(file: str | os.PathLike) -> tuple[int, ByClient]:
    """(rounds done, the scores) that `write` was given.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is not such a file; one line.
    """
    try:
        with explained("read", file), open_text(file) as opened:
            lines = csv.reader(opened)
            heads = next(lines, [])
            named = heads[: len(_NAMED)] == _NAMED
            if not named and heads[: len(_HEADS)] != _HEADS:
                raise ValueError
            if named:
                heads, lines = _without_name(heads), map(_without_name, lines)
            blocks = [_columns(rows) for rows in iter(lambda: list(itertools.islice(lines, _BLOCK)), [])]
        rounds, ids, own, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        (done,) = np.unique(rounds)
        scores = dict(zip(heads[len(_HEADS) :], values.T, strict=True))
    except (ValueError, IndexError):
        raise ValueError(
            f"{os.fspath(file)} is no file of clients' scores, of one round, that begins with {','.join(_HEADS)}"
        ) from None
    return int(done), ByClient(ids, own, scores)


def _without_name(row: Sequence[str]) -> list[str]:
    return [*row[:2], *row[3:]]


def _columns(rows: Sequence[Sequence[str]]) -> tuple[np.ndarray, ...]:
    """Of lines: rounds, clients and test rows, [n] each, and the scores [n, ...]."""
    numbers = np.array([[int(cell) for cell in row[: len(_HEADS)]] for row in rows])
    values = np.array([[float(cell or "nan") for cell in row[len(_HEADS) :]] for row in rows], np.float64)
    rounds, ids, own = numbers.T
    return rounds, ids, own, values


def worst_tenth(values: np.ndarray) -> np.ndarray:
    """The mean of the lowest tenth of the clients, rounded up to whole ones: of 25 clients of the lowest three.

    Args:
      values: [..., E] at least one, all finite.

    Returns:
      [...].
    """
    number = -(-values.shape[-1] // 10)
    return np.partition(values, number - 1, -1)[..., :number].mean(-1)


def decile(number: int) -> Callable[[np.ndarray], np.ndarray]:
    """[..., E] -> [...]: the value below which `number` tenths of the clients lie, interpolated between two clients."""
    return lambda values: np.quantile(values, number / 10, axis=-1)


def summarize_spread(folder: Path, rounds: int, selected: int | None = None) -> dict[str, Any]:
    """How accuracies, or R2, spread over clients, for the summary; empty if there are no such files.

    Args:
      folder: of the run.
      rounds: done.
      selected: the round that is. A file of another one, or a last one of a round that was not done, is left from before the run
        went back to a checkpoint, and counts for nothing.

    Returns:
      {"clients": {"last" and "selected": {"round", "scored" (how many clients), "scores": by name {"mean", "worst_tenth", "deciles"
      (nine)}}}} over the clients that have the score.
    """
    found = {}
    for moment, name in {"last": LAST, "selected": SELECTED}.items():
        if not (folder / name).exists():
            continue
        done, these = read(folder / name)
        of = {name: values[np.isfinite(values)] for name, values in these.scores.items() if is_headline(name)}
        if done <= rounds if moment == "last" else done == selected:
            entries = {name: _entry(values) for name, values in of.items() if len(values)}
            found[moment] = {"round": done, "scored": len(these.ids), "scores": entries}
    return {"clients": found} if found else {}


def _entry(values: np.ndarray) -> dict[str, Any]:
    deciles = [float(decile(i)(values)) for i in range(1, 10)]
    return {"mean": float(values.mean()), "worst_tenth": float(worst_tenth(values)), "deciles": deciles}
