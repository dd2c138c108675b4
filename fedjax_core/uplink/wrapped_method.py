"""A method whose uplinks pass transforms: states, messages, and their static description.

The field names of `WrappedServer` and `WrappedClient` are part of checkpoints.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Algorithm, Array, PyTree
from fedjax_core.uplink.layout import UplinkLayout
from fedjax_core.uplink.transform import ClientContext, UplinkTransform, VectorReduce

_STREAM = 0x6C696E6B  # separates the transforms' draws from the method's, which use the same key


class WrappedServer(NamedTuple):
    """The server's state of a wrapped method.

    Attributes:
      inner: the method's server state.
      memory: of each transform.
    """

    inner: PyTree
    memory: tuple[PyTree, ...]


class WrappedClient(NamedTuple):
    """A client's state of a wrapped method.

    Attributes:
      inner: the method's client state.
      kept: each transform's client state.
    """

    inner: PyTree
    kept: tuple[PyTree, ...]


class WrappedBroadcast(NamedTuple):
    """The broadcast of a wrapped method to one client.

    Attributes:
      inner: the method's broadcast, as the client receives it.
      id: [] of the client.
      memory: of each transform.
    """

    inner: PyTree
    id: Array
    memory: tuple[PyTree, ...]


class WrappedUplink(NamedTuple):
    """The uplink of a wrapped method.

    Attributes:
      uplink: pairs (part, whether the client counts) for the method's own `collect`; `()` where
        vectors are reduced instead.
      deltas: contribution to the reduction of deltas, else `()`.
      class_means: contributions to that of each of the class means, else `()`.
      class_weights: the method's weights [K] for each of the class means, else `()`.
      is_counted: [] whether the client counts; False if it is left out.
    """

    uplink: PyTree
    deltas: PyTree
    class_means: tuple[PyTree, ...]
    class_weights: tuple[PyTree, ...]
    is_counted: PyTree
    metrics: PyTree


class WrappedMethod(NamedTuple):
    """A method with the transforms of its uplinks; all of it is known before compilation.

    Attributes:
      transforms: in the order in which a message meets them.
      leave_out: whether clients with non-finite results are left out.
      reduce: of vectors; the default is the weighted mean.
      reduce_slot: index of the transform that has `reduce`; None for the weighted mean.
      attack_slots: indices of the transforms that attack the stack.
    """

    method: Algorithm
    transforms: tuple[UplinkTransform, ...]
    layout: UplinkLayout
    leave_out: bool
    reduce: VectorReduce
    reduce_slot: int | None
    attack_slots: tuple[int, ...]

    @property
    def reduces_vectors(self) -> bool:
        """Whether uplinks are reduced as vectors, instead of by the method's own `collect`."""
        return self.reduce_slot is not None or bool(self.attack_slots)

    @property
    def is_stacked(self) -> bool:
        """Whether the vectors of the whole cohort are stacked."""
        return self.reduce.combine == "stack" or bool(self.attack_slots)

    def transform_key(self, key: Array, slot: int) -> Array:
        """Returns the key of a transform."""
        return jax.random.fold_in(jax.random.fold_in(key, _STREAM), slot)

    def reduce_key(self, key: Array) -> Array:
        """Returns the key of the reduction."""
        return self.transform_key(key, len(self.transforms))

    def reduce_memory(self, memory: tuple[PyTree, ...]) -> PyTree:
        """Returns the memory of the reduction; `()` for the weighted mean."""
        return () if self.reduce_slot is None else memory[self.reduce_slot]

    def map_vectors(self, vectors: Any, weights: Any, context: ClientContext) -> tuple[PyTree, tuple]:
        """Returns one client's contributions to the reductions of deltas and of class means.

        Args:
          vectors: of deltas [D] or None, and of each of the class means [K, D].
          weights: of deltas [] or None, and of each of the class means [K].
          context: of the client; its memory is the reduction's.
        """
        (delta, class_vectors), (weight, class_weights) = vectors, weights

        def map_present(vector, weight, context):
            # Noise and error feedback may have changed the zeros of an absent client.
            return self.reduce.map(jnp.where(weight > 0, vector, 0), weight, context)

        deltas = () if delta is None else map_present(delta, weight, context)
        no_memory = context._replace(memory=())
        map_classes = jax.vmap(lambda vector, weight: map_present(vector, weight, no_memory))
        pairs = zip(class_vectors, class_weights, strict=True)
        return deltas, tuple(map_classes(*pair) for pair in pairs)
