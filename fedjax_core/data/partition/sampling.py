"""Dirichlet draws at any concentration, random choices of examples, and checks of index lists."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_core.option_types import Positive

Index = list[np.ndarray]
Alpha = Positive | Sequence[Positive]
ALPHA_RANGE = (1e-100, 1e100)  # beyond it the logarithms of a draw overflow


def check_concentration(alpha: Alpha, number: int, per: str) -> np.ndarray:
    """Returns the concentration as a scalar or an array [number], checked."""
    low, high = ALPHA_RANGE
    try:
        values = np.asarray(alpha, float)
    except (TypeError, ValueError):
        raise ValueError(f"alpha={alpha!r}: must be a number > 0, or one number per {per}.") from None
    if values.shape not in ((), (number,)):
        raise ValueError(f"alpha has shape {values.shape}: must be one number, or {number} of them, one per {per}.")
    if not np.all((values >= low) & (values <= high)):  # NaN fails too
        raise ValueError(f"alpha={alpha}: must be > 0 and finite (from {low:g} to {high:g}); small alpha means more skew.")
    return values


def log_dirichlet(rng: np.random.Generator, alpha: np.ndarray | float, shape: tuple[int, ...]) -> np.ndarray:
    """Draws the logarithm of a Dirichlet sample over the last axis, finite at any alpha.

    Gamma(a) = Gamma(a + 1) * U^(1 / a).
    """
    alpha = np.broadcast_to(alpha, shape)
    log_gamma = np.log(rng.gamma(alpha + 1.0)) + np.log(1.0 - rng.random(shape)) / alpha
    return log_gamma - log_sum_exp(log_gamma, -1)


def log_sum_exp(logs: np.ndarray, axis: int) -> np.ndarray:
    """Returns log sum exp(logs) over an axis, which stays with length 1."""
    most = logs.max(axis, keepdims=True)
    return most + np.log(np.exp(logs - most).sum(axis, keepdims=True))


def draw_until_min_size(draw, name: str, alpha, min_size: int, rows: int, clients: int, max_tries: int) -> np.ndarray:
    """Returns the first table [K, N] drawn in which each client has `min_size` examples."""
    if not 0 <= min_size <= rows // clients:
        raise ValueError(
            f"{name}: min_size={min_size} for {clients} clients and {rows} examples: must lie in [0, {rows // clients}]."
        )
    if max_tries < 1:
        raise ValueError(f"{name}: max_tries={max_tries}: must be >= 1.")
    best = 0
    for _ in range(max_tries):
        table = draw(alpha)
        smallest = int(table.sum(0).min())
        if smallest >= min_size:
            return table
        best = max(best, smallest)
    advice = f"min_size <= {best}"
    if not isinstance(alpha, str) and alpha.ndim == 0:
        larger = (alpha * 2.0**step for step in range(1, 40))
        enough = (a for a in larger if any(draw(a).sum(0).min() >= min_size for _ in range(10)))
        if (sufficient := next(enough, None)) is not None:
            advice += f", or alpha >= {sufficient:.2g}"
    raise ValueError(
        f"{name}: none of {max_tries} draws with alpha={alpha} gave each of {clients} clients min_size={min_size} of {rows} "
        f"examples; in the best one the smallest client had {best}. Try {advice}, or fewer clients."
    )


def check_labels(labels: np.ndarray, clients: int, what: str = "label") -> np.ndarray:
    """Returns labels (or domains, or ids) as an array; checks it, and that no client need be empty."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{what}s of shape {labels.shape} and type {labels.dtype}: must be integers of shape [n].")
    if len(labels) and labels.min() < 0:
        raise ValueError(f"{what} {labels.min()} in row {labels.argmin()}: must be >= 0.")
    check_num_clients(clients)
    if clients > len(labels):
        raise ValueError(f"{clients} clients for {len(labels)} examples; allowed: 1 to {len(labels)}.")
    return labels


def check_num_clients(clients: int) -> None:
    """Raises ValueError for a number of clients that is no integer of at least 1."""
    if not isinstance(clients, int | np.integer) or isinstance(clients, bool) or clients < 1:
        raise ValueError(f"clients={clients!r}: must be an integer >= 1.")


def sort_indices(rows: np.ndarray) -> np.ndarray:
    """Returns example indices as lists have them: ascending, int32."""
    return np.sort(rows).astype(np.int32)


def choose_examples(rng: np.random.Generator, of_class: Index, numbers: np.ndarray, replace: bool) -> np.ndarray:
    """Draws `numbers[c]` examples of each class, sorted.

    They repeat only where a class has fewer and `replace` allows it.
    """
    drawn = [rng.choice(rows, n, replace=replace and n > len(rows)) for rows, n in zip(of_class, numbers, strict=True) if n]
    return sort_indices(np.concatenate([np.zeros(0, np.int64), *drawn]))


def assign_classes(rng: np.random.Generator, classes: int, clients: int, each: int | Sequence[int]) -> np.ndarray:
    """Assigns `each` classes per client, those that the fewest clients hold so far, ties at random.

    Returns:
      [N, K] 0 or 1.
    """
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


def check_index(what: str, rows: Any, limit: int) -> np.ndarray:
    """Returns one client's indices, checked and sorted, int32; they must be below `limit`."""
    rows = np.asarray(rows) if len(rows) else np.zeros(0, np.int32)
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"{what} has shape {rows.shape} and type {rows.dtype}: must be a list of integer example indices.")
    if len(rows) and not 0 <= rows.min() <= rows.max() < limit:
        raise ValueError(f"{what} has example indices from {rows.min()} to {rows.max()}: must lie in [0, {limit}).")
    return sort_indices(rows)
