"""Draws from Dirichlet distributions, at any concentration."""

from collections.abc import Sequence

import numpy as np

from fedjax_core.option_types import Positive

Alpha = Positive | Sequence[Positive]
ALPHA_RANGE = (1e-100, 1e100)  # beyond it the logarithms of a draw overflow


def concentrations(alpha: Alpha, number: int, per: str) -> np.ndarray:
    """Concentration as a scalar or [number] array, checked."""
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
    """Logarithm of a Dirichlet draw over the last axis, finite at any alpha: Gamma(a) = Gamma(a + 1) * U^(1 / a)."""
    alpha = np.broadcast_to(alpha, shape)
    log_gamma = np.log(rng.gamma(alpha + 1.0)) + np.log(1.0 - rng.random(shape)) / alpha
    return log_gamma - log_sum(log_gamma, -1)


def log_sum(logs: np.ndarray, axis: int) -> np.ndarray:
    most = logs.max(axis, keepdims=True)
    return most + np.log(np.exp(logs - most).sum(axis, keepdims=True))


def draw_until(draw, name: str, alpha, min_size: int, rows: int, clients: int, max_tries: int) -> np.ndarray:
    """The first of at most `max_tries` tables [K, N] in which every client has `min_size` rows."""
    if not 0 <= min_size <= rows // clients:
        raise ValueError(f"{name}: min_size={min_size} for {clients} clients and {rows} rows: must lie in [0, {rows // clients}].")
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
        if (found := next(enough, None)) is not None:
            advice += f", or alpha >= {found:.2g}"
    raise ValueError(
        f"{name}: none of {max_tries} draws with alpha={alpha} gave each of {clients} clients min_size={min_size} of {rows} "
        f"rows; in the best one the smallest client had {best}. Try {advice}, or fewer clients."
    )
