"""Position embeddings of a vision transformer for another grid of patches, as each layout's own code interpolates them."""

import math
from collections.abc import Sequence

import numpy as np

from fedjax_core.algorithm import Net


def interpolate(positions: np.ndarray, grid: tuple[int, int], layout: str, old: tuple[int, int] | None = None) -> np.ndarray:
    """Position embeddings for another grid of patches; that of [cls] stays.

    Args:
      positions: [1 + old patches, D].
      grid: rows and columns of the new patches.
      layout: whose code to follow.
      old: rows and columns of the old ones; None: a square.

    Returns:
      [1 + new patches, D].
    """
    rows, columns = old or _square(len(positions) - 1)
    image = positions[1:].reshape(rows, columns, -1).astype(np.float64)
    down, across = _resampling_weights(rows, grid[0], layout), _resampling_weights(columns, grid[1], layout)
    image = np.einsum("ir,jc,rcd->ijd", down, across, image).reshape(-1, positions.shape[1])
    return np.concatenate([positions[:1], image.astype(positions.dtype)])


def _square(number: int) -> tuple[int, int]:
    side = math.isqrt(number)
    return side, side


def _resampling_weights(old: int, new: int, layout: str) -> np.ndarray:
    """[new, old], the weights of a line's old places in its new ones."""
    if layout == "npz":  # linear; the first and last places stay
        at = np.arange(new) * ((old - 1) / max(new - 1, 1))
        return np.maximum(1 - np.abs(at[:, None] - np.arange(old)[None]), 0)
    at = (np.arange(new) + 0.5) * (old / new) - 0.5
    if layout == "transformers":  # four neighbours; beyond the edge the edge counts
        first = np.floor(at).astype(int)
        weights = np.zeros((new, old))
        for tap in range(-1, 3):
            np.add.at(weights, (np.arange(new), np.clip(first + tap, 0, old - 1)), _cubic(at - (first + tap), -0.75))
        return weights
    wide = max(old / new, 1.0)  # the kernel grows with the step; beyond the edge nothing counts
    weights = _cubic((np.arange(old)[None] - at[:, None]) / wide, -0.5)
    return weights / weights.sum(1, keepdims=True)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel of cubic convolution."""
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def fit_positions(array, shape, like: Net, layout: str, image, seen: Sequence[int], where: str) -> np.ndarray:
    """A file's position embeddings for the network's grid, in the file's form; `seen`: shape of the file's own images, if known."""
    patch, number, before = like.params["patches"]["kernel"].shape[0], shape[-2] - 1, array.shape[-2] - 1
    grid = _square(number) if image is None else (image[0] // patch, image[1] // patch)
    size = seen[:2]
    old = (size[0] // patch, size[1] // patch) if size else (0, 0)
    old = old if math.prod(old) == before else _square(before)
    for what, found, patches in (("its network", old, before), ("the network", grid, number)):
        if math.prod(found) != patches:
            raise ValueError(f"{where}: the {patches} patches of {what} are no grid of {found[0]} x {found[1]}")
    return interpolate(array.reshape(-1, array.shape[-1]), grid, layout, old).reshape(shape)
