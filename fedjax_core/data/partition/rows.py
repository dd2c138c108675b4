"""Index lists: what every scheme checks, and rows chosen at random."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Index = list[np.ndarray]


def check_labels(labels: np.ndarray, clients: int, what: str = "label") -> np.ndarray:
    """Labels (or domains, or ids) as an array, checked, with at least as many rows as clients."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{what}s of shape {labels.shape} and type {labels.dtype}: must be integers of shape [rows].")
    if len(labels) and labels.min() < 0:
        raise ValueError(f"{what} {labels.min()} in row {labels.argmin()}: must be >= 0.")
    at_least_one_client(clients)
    if clients > len(labels):
        raise ValueError(f"{clients} clients for {len(labels)} rows; allowed: 1 to {len(labels)}.")
    return labels


def at_least_one_client(clients: int) -> None:
    if not isinstance(clients, int | np.integer) or isinstance(clients, bool) or clients < 1:
        raise ValueError(f"clients={clients!r}: must be an integer >= 1.")


def sorted_rows(rows: np.ndarray) -> np.ndarray:
    return np.sort(rows).astype(np.int32)


def choose_rows(rng: np.random.Generator, of_class: Index, numbers: np.ndarray, replace: bool) -> np.ndarray:
    """`numbers[c]` random rows of each class, sorted; with repetition only where a class has fewer and `replace` allows it."""
    drawn = [rng.choice(rows, n, replace=replace and n > len(rows)) for rows, n in zip(of_class, numbers, strict=True) if n]
    return sorted_rows(np.concatenate([np.zeros(0, np.int64), *drawn]))


def deal_classes(rng: np.random.Generator, classes: int, clients: int, each: int | Sequence[int]) -> np.ndarray:
    """[N, K] 0 or 1: `each` classes per client, those that the fewest clients hold so far, ties at random."""
    numbers = np.broadcast_to(each, clients)
    if not 1 <= numbers.min() <= numbers.max() <= classes:
        raise ValueError(f"classes_per_client={each}: must lie in [1, {classes}], the number of classes.")
    held, holders = np.zeros((clients, classes), np.int64), np.zeros(classes, np.int64)
    for client in range(clients):
        order = rng.permutation(classes)
        chosen = order[np.argsort(holders[order], kind="stable")[: numbers[client]]]
        held[client, chosen] = 1
        holders[chosen] += 1
    return held


def index_list(what: str, rows: Any, limit: int) -> np.ndarray:
    """One client's rows, checked and sorted, int32.

    Args:
      what: begins a message.
      rows: row numbers in any order; may be empty.
      limit: how many rows there are.

    Raises:
      ValueError: they are not integers of shape [n], or out of range.
    """
    rows = np.asarray(rows) if len(rows) else np.zeros(0, np.int32)
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"{what} has shape {rows.shape} and type {rows.dtype}: must be a list of integer row numbers.")
    if len(rows) and not 0 <= rows.min() <= rows.max() < limit:
        raise ValueError(f"{what} has row numbers from {rows.min()} to {rows.max()}: must lie in [0, {limit}).")
    return np.sort(rows).astype(np.int32)
