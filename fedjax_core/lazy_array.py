"""Arrays that are read from files, shard by shard, when they are put on devices."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

Index = tuple[slice, ...]


class LazyArray:
    """An array whose shape is known and that is read part by part.

    jax accepts it where shapes are enough, such as `jax.eval_shape`, and refuses it elsewhere.
    `numpy.asarray` and `jax.device_get` read all of it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, read: Callable[[Index], np.ndarray]):
        """Takes `read`: a slice without a step for each axis -> that part of the array."""
        self.shape, self.dtype, self._read = tuple(shape), np.dtype(dtype), read

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = self._read(tuple(slice(0, n) for n in self.shape))
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def put(self, sharding: jax.sharding.Sharding) -> jax.Array:
        """Returns the array on the devices of a sharding; equal shards are read once."""
        parts: dict[Any, np.ndarray] = {}

        def part(index: Any) -> np.ndarray:
            whole = tuple(slice(*axis.indices(n)[:2]) for axis, n in zip(index, self.shape, strict=True))
            key = tuple((axis.start, axis.stop) for axis in whole)
            if key not in parts:
                parts[key] = self._read(whole)
            return parts[key]

        return jax.make_array_from_callback(self.shape, sharding, part)


def with_zeros_for_lazy(tree: Any) -> Any:
    """Returns the tree with zeros, which take no memory, in place of lazy arrays: for its shapes."""
    return jax.tree.map(lambda leaf: blank_array(leaf) if isinstance(leaf, LazyArray) else leaf, tree)


def blank_array(like: Any) -> np.ndarray:
    """Returns zeros of the shape and dtype of an array, or of a shape; they take no memory."""
    return np.broadcast_to(np.zeros((), like.dtype), like.shape)
