"""Narrower networks as windows of a wide one: which entries of each array they have.

A narrower network has the same layers with fewer channels. It holds channels t, ..., t + k - 1
(modulo n) of each layer of n, as outputs of the layer and as inputs of the next. Input and output
of the network are whole. Where a dense layer reads a flattened image, each of its channels is an
input at every position (`Model.flattened`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.task import Model, PeerGroup, Task, count_parameters, find_model_axis


class Window(NamedTuple):
    """The part of one array.

    Attributes:
      whole: shape in the wide network, where the inputs are a flattened image split into
        [positions, channels].
      part: shape in the narrow one, of as many axes.
      is_flattened: whether inputs are split.
    """

    whole: tuple[int, ...]
    part: tuple[int, ...]
    is_flattened: bool

    def narrow_axes(self) -> list[tuple[int, int, int]]:
        """Returns (axis, channels of the wide network, of the narrow one) where these differ."""
        sizes = enumerate(zip(self.whole, self.part, strict=True))
        return [(axis, n, k) for axis, (n, k) in sizes if k < n]

    def merge(self, x: Array) -> Array:
        """Returns an array with flattened inputs in one axis again."""
        return x.reshape(-1, x.shape[-1]) if self.is_flattened else x


def find_widest(task: Task, method: str) -> PeerGroup:
    """Returns the architecture with the most parameters, of which the others are windows.

    Raises:
      ValueError: a network has batch statistics, is not trained from scratch as a whole, or does
        not declare `flattened` where widths differ.
    """
    widest = max(task.peers, key=lambda peers: count_parameters(peers.shapes))
    if task.frozen != ():
        raise ValueError(f"{method} cuts networks out of a wide one, and so needs weights=None, train='all' and no adapter")
    for peers in task.peers:
        if jax.tree.leaves(peers.shapes.stats):
            raise ValueError(
                f"{method}: network {peers.model.name!r} has batch statistics, which clients of several widths do not share; "
                "ResNets with norm='group' have none"
            )
        if peers.shapes != widest.shapes and peers.model.flattened is None:
            raise ValueError(
                f"{method}: network {peers.model.name!r} does not declare `flattened`, without which no narrower one can be "
                "cut of it; mlp, cnn and ResNets do"
            )
    return widest


def find_windows(whole: PeerGroup, part: PeerGroup, method: str) -> PyTree:
    """Returns a `Window` for each array of the parameters.

    Raises:
      ValueError: an array is larger in the narrow network, or is there in one network only.
    """
    if jax.tree.structure(whole.shapes.params) != jax.tree.structure(part.shapes.params):
        raise ValueError(f"{method}: the networks {whole.model.name!r} and {part.model.name!r} have different layers")

    def find_window(path, wide, narrow):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        shapes = [_split(peers.model, name, array.shape) for peers, array in ((whole, wide), (part, narrow))]
        has_window = len(shapes[0]) == len(shapes[1]) and all(n >= k for n, k in zip(*shapes, strict=True))
        positions_agree = shapes[0][:-2] == shapes[1][:-2]  # of flattened images, and of kernels
        if not (has_window and positions_agree):
            raise ValueError(f"{method}: {name} {list(narrow.shape)} is no part of {list(wide.shape)}, that of the widest network")
        return Window(shapes[0], shapes[1], len(shapes[0]) > wide.ndim)

    return jax.tree.map_with_path(find_window, whole.shapes.params, part.shapes.params)


def _split(model: Model, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of an array, with its inputs split where they are a flattened image."""
    channels = find_model_axis(name, model.flattened or ())
    return shape if channels is None else (shape[0] // channels, channels, shape[1])


def is_window(x: object) -> bool:
    """Returns whether x is a leaf of `find_windows`."""
    return isinstance(x, Window)


def take_windows(windows: PyTree, params: PyTree, start: Array | int) -> PyTree:
    """Returns the narrow network's parameters out of the wide one's; windows begin at channel `start`."""

    def take(window, x):
        x = x.reshape(window.whole)
        for axis, _, k in window.narrow_axes():
            x = x if isinstance(start, int) and start == 0 else _roll(x, -start, axis)
            x = jax.lax.slice_in_dim(x, 0, k, axis=axis)
        return window.merge(x)

    return jax.tree.map(take, windows, params, is_leaf=is_window)


def _roll(x: Array, shift: Array | int, axis: int) -> Array:
    """Returns `jnp.roll(x, shift, axis)`, which takes 20 ms to trace if the shift is traced."""
    size = x.shape[axis]
    return jax.lax.dynamic_slice_in_dim(jnp.concatenate([x, x], axis), -shift % size, size, axis)


def put_windows(windows: PyTree, params: PyTree, start: Array | int) -> PyTree:
    """Returns arrays of the wide network's shapes, zero outside of the windows that have `params`; as `take_windows`."""

    def put(window, x):
        x = x.reshape(window.part)
        for axis, n, k in window.narrow_axes():
            x = jnp.pad(x, [(0, n - k) if i == axis else (0, 0) for i in range(x.ndim)])
            x = x if isinstance(start, int) and start == 0 else _roll(x, start, axis)
        return window.merge(x)

    return jax.tree.map(put, windows, params, is_leaf=is_window)
