"""Scores per client: their files in a run's directory, and statistics of a score beyond its mean.

    round,client,test_rows,test/personal/own/accuracy,test/personal/own/loss
    50,0,17,0.9411765,0.2012
    50,1,0,,

A cell is empty if the client has no examples for a score. A column `name` follows `client` if
clients have names. Unseen clients follow the population: the k-th is client N + k.
"""

import csv
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.atomic_files import encode_csv_line, open_text, reword_os_errors, write_blocks
from fedjax_core.engine.evaluation_step import ClientScores
from fedjax_core.reporting.score_labels import is_headline

LAST, SELECTED = "clients.csv", "clients_selected.csv"  # of the last evaluation, and of the selected round
_HEADS = ["round", "client", "test_rows"]
_NAMED = ["round", "client", "name", "test_rows"]  # where clients have names
_BLOCK = 2**16  # lines written or read at a time


def write_client_scores(file: Path, done: int, scores: ClientScores, names: Sequence[str] = ()) -> None:
    """Writes a file of the scores after `done` rounds atomically.

    Args:
      names: of all clients by id, unseen ones after the population; empty: clients have no names.
    """
    write_blocks(file, _format_blocks(done, scores, names))


def _format_blocks(done: int, scores: ClientScores, names: Sequence[str]) -> Iterator[bytes]:
    yield encode_csv_line([*(_NAMED if names else _HEADS), *scores.scores])
    cell = lambda value: "" if value != value else repr(value)
    for begin in range(0, len(scores.ids), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        numbers: list[Iterable[str]] = [map(str, column[block].tolist()) for column in (scores.ids, scores.rows)]
        if names:
            numbers.insert(1, (encode_csv_line([names[i]]).decode().rstrip("\n") for i in scores.ids[block].tolist()))
        values = [map(cell, column[block].astype(np.float64).tolist()) for column in scores.scores.values()]
        yield "".join(f"{done},{','.join(cells)}\n" for cells in zip(*numbers, *values, strict=True)).encode()


def read_client_scores(file: str | os.PathLike) -> tuple[int, ClientScores]:
    """Reads a file of `write_client_scores`: (number of rounds done, scores).

    Raises:
      ValueError: the file is malformed; one line.
    """
    try:
        with reword_os_errors("read", file), open_text(file) as opened:
            lines = csv.reader(opened)
            heads = next(lines, [])
            named = heads[: len(_NAMED)] == _NAMED
            if not named and heads[: len(_HEADS)] != _HEADS:
                raise ValueError
            if named:
                heads, lines = _without_name(heads), map(_without_name, lines)
            blocks = [_parse_columns(rows) for rows in iter(lambda: list(itertools.islice(lines, _BLOCK)), [])]
        rounds, ids, own, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        (done,) = np.unique(rounds)
        scores = dict(zip(heads[len(_HEADS) :], values.T, strict=True))
    except (ValueError, IndexError):
        raise ValueError(
            f"{os.fspath(file)} is not a file of clients' scores of one round; it must begin with {','.join(_HEADS)}"
        ) from None
    return int(done), ClientScores(ids, own, scores)


def _without_name(row: Sequence[str]) -> list[str]:
    return [*row[:2], *row[3:]]


def _parse_columns(rows: Sequence[Sequence[str]]) -> tuple[np.ndarray, ...]:
    """Returns rounds, clients, numbers of test examples [n] and scores [n, ...]."""
    numbers = np.array([[int(cell) for cell in row[: len(_HEADS)]] for row in rows])
    values = np.array([[float(cell or "nan") for cell in row[len(_HEADS) :]] for row in rows], np.float64)
    rounds, ids, own = numbers.T
    return rounds, ids, own, values


def mean_of_worst_tenth(values: np.ndarray) -> np.ndarray:
    """Returns the mean over the lowest tenth, rounded up (3 of 25): [..., E] -> [...]."""
    number = -(-values.shape[-1] // 10)
    return np.partition(values, number - 1, -1)[..., :number].mean(-1)


def make_decile(number: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function values [..., E] -> decile `number` over clients, interpolated linearly."""
    return lambda values: np.quantile(values, number / 10, axis=-1)


def summarize_spread(folder: Path, rounds: int, selected: int | None) -> dict[str, Any]:
    """Returns the distribution of accuracies or R2 over clients, for the summary; {} without files.

    A file of another round was left by a run that went back to a checkpoint; it is ignored.

    Args:
      rounds: number of rounds done.
      selected: the selected round.

    Returns:
      {"clients": {"last" and "selected": {"round", "scored" (clients that have a score), "scores": by name
      {"mean", "worst_tenth", "deciles" (nine)}}}} over the clients that have the score.
    """
    summary = {}
    for moment, name in {"last": LAST, "selected": SELECTED}.items():
        if not (folder / name).exists():
            continue
        done, scores = read_client_scores(folder / name)
        if done <= rounds if moment == "last" else done == selected:
            finite = {name: values[np.isfinite(values)] for name, values in scores.scores.items() if is_headline(name)}
            entries = {name: _summarize(values) for name, values in finite.items() if len(values)}
            summary[moment] = {"round": done, "scored": max(map(len, finite.values()), default=0), "scores": entries}
    return {"clients": summary} if summary else {}


def _summarize(values: np.ndarray) -> dict[str, Any]:
    deciles = [float(make_decile(i)(values)) for i in range(1, 10)]
    return {"mean": float(values.mean()), "worst_tenth": float(mean_of_worst_tenth(values)), "deciles": deciles}
