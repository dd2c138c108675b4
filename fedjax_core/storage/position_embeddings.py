"""Interpolates position embeddings of a vision transformer to another grid of patches, as each
layout's own code does.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedjax_core.algorithm import Net


def interpolate(positions: np.ndarray, grid: tuple[int, int], layout: str, old: tuple[int, int] | None = None) -> np.ndarray:
    """Interpolates position embeddings to another grid of patches; that of [cls] is unchanged.

    Args:
      positions: [1 + old patches, D].
      grid: rows and columns of new patches.
      layout: whose interpolation to follow.
      old: rows and columns of old patches; None: a square.

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
    """Returns the weights [new, old] of old positions along an axis."""
    if layout == "npz":  # linear; first and last positions are fixed
        at = np.arange(new) * ((old - 1) / max(new - 1, 1))
        return np.maximum(1 - np.abs(at[:, None] - np.arange(old)[None]), 0)
    at = (np.arange(new) + 0.5) * (old / new) - 0.5
    if layout == "transformers":  # four neighbours, edges replicated
        first = np.floor(at).astype(int)
        weights = np.zeros((new, old))
        for tap in range(-1, 3):
            np.add.at(weights, (np.arange(new), np.clip(first + tap, 0, old - 1)), _cubic(at - (first + tap), -0.75))
        return weights
    wide = max(old / new, 1.0)  # antialiased: the kernel widens with the step; no padding
    weights = _cubic((np.arange(old)[None] - at[:, None]) / wide, -0.5)
    return weights / weights.sum(1, keepdims=True)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Evaluates Keys' kernel of cubic convolution."""
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def fit_positions(array, shape, like: Net, layout: str, image, seen: Sequence[int], where: str) -> np.ndarray:
    """Interpolates a file's position embeddings to the grid of a network.

    Args:
      array: of the file, [..., 1 + old patches, D].
      shape: of the result, [..., 1 + new patches, D].
      like: arrays of the network.
      layout: of the file.
      image: height and width of the network's images; None: square.
      seen: height and width of the file's images; () if unknown.
      where: begins an error.

    Raises:
      ValueError: a number of patches is not a grid.
    """
    patch, number, before = like.params["patches"]["kernel"].shape[0], shape[-2] - 1, array.shape[-2] - 1
    grid = _square(number) if image is None else (image[0] // patch, image[1] // patch)
    old = (seen[0] // patch, seen[1] // patch) if seen else (0, 0)
    old = old if math.prod(old) == before else _square(before)
    for what, size, patches in (("its network", old, before), ("the network", grid, number)):
        if math.prod(size) != patches:
            raise ValueError(f"{where}: the {patches} patches of {what} are not a grid of {size[0]} x {size[1]}")
    return interpolate(array.reshape(-1, array.shape[-1]), grid, layout, old).reshape(shape)
