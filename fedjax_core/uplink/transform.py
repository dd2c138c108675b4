"""The type of a transform between clients and server, and what it works on."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.training import aggregators

# Kinds of transforms, in the order in which a message meets them.
KIND_ORDER = ("local privacy", "attack", "compression", "schedule", "rule", "privacy")


class UplinkValue(NamedTuple):
    """The parts of an uplink that transforms may change.

    Attributes:
      deltas: parts of which the server takes the mean, each a tree.
      class_means: parts of which it takes the mean per class, each (values [K, ...], counts [K]).
    """

    deltas: tuple[PyTree, ...]
    class_means: tuple[tuple[Array, Array], ...]

    @property
    def class_values(self) -> tuple[Array, ...]:
        """The values of all class means, without their counts."""
        return tuple(values for values, _ in self.class_means)

    def with_class_values(self, class_values: Sequence[Array]) -> "UplinkValue":
        """Returns the uplink with other values of class means, and the same counts."""
        pairs = zip(class_values, self.class_means, strict=True)
        return self._replace(class_means=tuple((values, counts) for values, (_, counts) in pairs))


class ClientContext(NamedTuple):
    """What a transform knows about the client whose uplink it changes.

    Attributes:
      id: [] client id.
      examples: [] number of training examples; 0 for an absent client.
      key: random key of this client, round and transform.
      memory: the transform's memory at the server, as of the beginning of the round.
    """

    id: Array
    examples: Array
    key: Array
    memory: PyTree


class TransformOutput(NamedTuple):
    """The result of `UplinkTransform.send`.

    Attributes:
      value: the uplink as the server will have it.
      metrics: (sum, weight) pairs, merged over the cohort; logged as "server/<name>".
      wire: the arrays that are transmitted, if they differ from `value`.
    """

    value: UplinkValue
    client_state: PyTree = ()
    metrics: dict[str, tuple[Array, Array]] = {}  # noqa: RUF012 - never written to
    wire: PyTree = None


def _map_weighted(vector: Array, weight: Array, context: ClientContext) -> tuple[Array, Array]:
    del context
    return jnp.where(weight > 0, weight * vector, 0), weight


def _finalize_mean(combined: PyTree, memory: PyTree, key: Array) -> tuple[Array, PyTree, dict]:
    del key
    return aggregators.divide_by_weight(*combined), memory, {}


class VectorReduce(NamedTuple):
    """Reduces the vectors of a cohort to one; the default is the weighted mean.

    A vector is the concatenation of all deltas of an uplink, [D] float32. Of class means it is the
    values of one class: the reduction is then vmapped over classes and has no memory.

    Attributes:
      map: (vector [D], weight [], ClientContext) -> one client's contribution. An absent or
        left-out client has weight 0 and a vector of zeros.
      combine: "add" sums contributions inside the client loop; "stack" keeps them, [C, ...].
      finalize: (combined, memory, key) -> (vector [D], memory, metrics); once a round. The memory
        is `()` for class means.
      shardable: whether `finalize` of (vectors [C, D], weights [C]) may see some of the coordinates
        on each device. It must then sum over coordinates by `sharded_aggregation.sum_over_devices`,
        have memory arrays of shape [D], and ignore trailing coordinates of zeros.
    """

    map: Callable[[Array, Array, ClientContext], PyTree] = _map_weighted
    combine: str = "add"
    finalize: Callable[[PyTree, PyTree, Array], tuple[Array, PyTree, dict]] = _finalize_mean
    shardable: bool = False


class UplinkTransform(NamedTuple):
    """A transform of uplinks; see the package's docstring.

    Attributes:
      kind: one of `KIND_ORDER`.
      send: (value, ClientContext, client state) -> TransformOutput; runs inside the client loop.
      attack_stack: (vectors [C, D], mask [C], ids [C], key) -> vectors as the server receives them;
        `mask` selects the clients that count.
      broadcast: what is sent to a client -> (as the client receives it, the arrays transmitted).
      init_memory: shapes of one client's `UplinkValue` -> the transform's memory at the server.
      init_client_state: the same shapes -> what each client keeps.
      check: (name of the method, shapes of `UplinkValue`) -> None; raises ValueError for a method
        that the transform does not support.
      requires_uniform_weights: whether a method that weights clients is rejected.
      reported_cohort_size: number of participants that the method's server is given, instead of the
        round's own.
    """

    kind: str
    name: str
    send: Callable[[UplinkValue, ClientContext, PyTree], TransformOutput] | None = None
    attack_stack: Callable[[Array, Array, Array, Array], Array] | None = None
    reduce: VectorReduce | None = None
    broadcast: Callable[[PyTree], tuple[PyTree, PyTree]] | None = None
    init_memory: Callable[[UplinkValue], PyTree] = lambda shapes: ()
    init_client_state: Callable[[UplinkValue], PyTree] = lambda shapes: ()
    check: Callable[[str, UplinkValue], Any] = lambda method, shapes: None
    requires_uniform_weights: bool = False
    reported_cohort_size: int | None = None

    @property
    def label(self) -> str:
        """Kind and name, for messages."""
        return f"{self.kind} {self.name!r}"

    @property
    def may_hide_nonfinite(self) -> bool:
        """Whether the transform may replace NaN or Inf by a finite number."""
        hiding = self.kind in ("local privacy", "compression", "privacy")
        return hiding and (self.send is not None or self.reduce is not None)


def order_transforms(transforms: Sequence[UplinkTransform]) -> tuple[UplinkTransform, ...]:
    """Returns the transforms sorted by `KIND_ORDER`; those of one kind keep their order.

    Raises:
      ValueError: two of them replace the mean.
    """
    ordered = tuple(sorted(transforms, key=lambda transform: KIND_ORDER.index(transform.kind)))
    reducing = [transform.label for transform in ordered if transform.reduce is not None]
    if len(reducing) > 1:
        raise ValueError(f"{' and '.join(reducing[:2])} each replace the mean of uplinks; choose one of them")
    return ordered
