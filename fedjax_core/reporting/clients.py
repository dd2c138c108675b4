"""Scores of single clients: their files in a run's directory, and what there is to say of a score beyond its mean.

    round,client,test_rows,test/personal/own/accuracy,test/personal/own/loss
    50,0,17,0.9411765,0.2012
    50,1,0,,

A row per scored client, an empty cell where a client has no rows for a score. Unseen clients follow the population: the k-th of
those that run.json names, from 0, is client N + k.
"""

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.engine.scores import ByClient
from fedjax_core.reporting.words import is_headline
from fedjax_core.storage.files import explained, write_csv

LAST, SELECTED = "clients.csv", "clients_selected.csv"  # of the last evaluation, and of the selected round
_HEADS = ["round", "client", "test_rows"]


def write(file: Path, done: int, found: ByClient) -> None:
    """Writes the file, atomically.

    Args:
      file: its place.
      done: rounds done.
      found: of the evaluation after them.

    Raises:
      OSError: it cannot be written.
    """
    rows = [
        {"round": done, "client": int(client), "test_rows": int(number)}
        | {name: "" if np.isnan(values[at]) else float(values[at]) for name, values in found.scores.items()}
        for at, (client, number) in enumerate(zip(found.ids, found.rows, strict=True))
    ]
    write_csv(file, rows, _HEADS)


def read(file: str | os.PathLike) -> tuple[int, ByClient]:
    """(rounds done, the scores) that `write` was given.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is not such a file; one line.
    """
    with explained("read", file), open(file, newline="") as opened:
        rows = list(csv.reader(opened))
    try:
        if rows[0][: len(_HEADS)] != _HEADS:
            raise ValueError
        (done,) = {int(row[0]) for row in rows[1:]}
        ids, own = (np.array([int(row[i]) for row in rows[1:]]) for i in (1, 2))
        values = np.array([[float(cell or "nan") for cell in row[len(_HEADS) :]] for row in rows[1:]], np.float64)
        scores = dict(zip(rows[0][len(_HEADS) :], values.T, strict=True))
    except (ValueError, IndexError):
        raise ValueError(
            f"{os.fspath(file)} is no file of clients' scores, of one round, that begins with {','.join(_HEADS)}"
        ) from None
    return done, ByClient(ids, own, scores)


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


def spread(folder: Path, rounds: int) -> dict[str, Any]:
    """How accuracies, or R2, spread over clients, for the summary; empty if there are no such files.

    Args:
      folder: of the run.
      rounds: done; a file of a later one is left from before the run went back to a checkpoint, and counts for nothing.

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
        if done <= rounds:
            entries = {name: _entry(values) for name, values in of.items() if len(values)}
            found[moment] = {"round": done, "scored": len(these.ids), "scores": entries}
    return {"clients": found} if found else {}


def _entry(values: np.ndarray) -> dict[str, Any]:
    deciles = [float(decile(i)(values)) for i in range(1, 10)]
    return {"mean": float(values.mean()), "worst_tenth": float(worst_tenth(values)), "deciles": deciles}
