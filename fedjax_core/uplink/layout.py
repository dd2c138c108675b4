"""A method's uplink as the trees and vectors that transforms change."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, Array, Cohort, PyTree, Reduce, find_nets, is_net, is_reduce
from fedjax_core.task import count_parameters
from fedjax_core.training import aggregators
from fedjax_core.uplink.staleness import KIND as SCHEDULE
from fedjax_core.uplink.transform import UplinkTransform, UplinkValue

LEAVE_OUT = "aggregation.not_finite='leave_out'"  # as messages name it


class UplinkLayout:
    """Takes uplinks of one method apart, and puts them together again.

    Attributes:
      shapes: shapes of the parts that transforms may change.
      collect: the method's `collect`, with leaves for pairs (part, whether the client counts).
    """

    def __init__(self, collect: PyTree, shapes: PyTree, method: str, transforms: Sequence[UplinkTransform]):
        """Validates the method's uplink.

        Raises:
          ValueError: clients send nothing; a part is neither a delta nor class means; deltas are
            weighted in different ways.
        """
        paths, self._structure = jax.tree.flatten_with_path(collect, is_leaf=is_reduce)
        self._reduces: list[Reduce] = [reduce for _, reduce in paths]
        self._method = method
        needs = transforms[0].label if transforms else LEAVE_OUT
        changing = next((t.label for t in transforms if t.send or t.attack_stack or t.reduce), None)
        # the rule "mean" and a compressed broadcast take no uplink apart; every schedule does
        reading = changing or next((t.label for t in transforms if t.kind == SCHEDULE), None)
        if not self._reduces:
            raise ValueError(f"{needs} needs an uplink; clients of {method} send nothing")
        for path, reduce in paths:
            part = f"part {jax.tree_util.keystr(path)} of the uplink" if path else "the uplink"
            if not reduce.payload and reading:
                own = "the method combines it in a way of its own"
                raise ValueError(f"{reading} supports deltas and class means; {part} of {method} is neither: {own}")
            if reduce.payload == "number" and changing:
                raise ValueError(f"{changing} changes what clients send; {part} of {method} is a number that belongs to the delta")
        weight_fns = [reduce.weight_fn for reduce in self._reduces if reduce.payload == "delta"]
        if len(set(weight_fns)) > 1 and reading:
            raise ValueError(
                f"{reading} needs the same client weights for all deltas; {method} weights the parts of its uplink differently"
            )
        self._weight_fn = weight_fns[0] if weight_fns else None
        self.shapes: UplinkValue = self.extract(shapes)
        self.collect = self._structure.unflatten([_with_count(reduce) for reduce in self._reduces])

    def check_uniform_weights(self, transform: UplinkTransform) -> None:
        """Raises ValueError if the method weights clients."""
        if self._weight_fn not in (None, aggregators.weight_uniformly):
            raise ValueError(
                f"{transform.label} needs uniform client weights; {self._method} weights clients by "
                "their numbers of examples, so that the contribution of one client has no bound; "
                "set method.weights='uniform', if the method has it"
            )

    def extract(self, uplink: PyTree) -> UplinkValue:
        """Returns the parts that transforms may change."""
        parts = self._structure.flatten_up_to(uplink)

        def select(payload: str) -> tuple:
            pairs = zip(parts, self._reduces, strict=True)
            return tuple(part for part, reduce in pairs if reduce.payload == payload)

        return UplinkValue(select("delta"), select("class means"))

    def insert(self, uplink: PyTree, value: UplinkValue) -> PyTree:
        """Returns the uplink with the parts of `value` in place of its own."""
        new = {"delta": iter(value.deltas), "class means": iter(value.class_means)}
        pairs = zip(self._structure.flatten_up_to(uplink), self._reduces, strict=True)
        return self._structure.unflatten([next(new[reduce.payload]) if reduce.payload in new else part for part, reduce in pairs])

    def attach_count(self, uplink: PyTree, is_counted: Array) -> PyTree:
        """Returns the uplink with a pair (part, whether the client counts) for each part."""
        parts = self._structure.flatten_up_to(uplink)
        return self._structure.unflatten([(part, is_counted) for part in parts])

    def weights(self, value: UplinkValue, client: Cohort) -> tuple[Array | None, tuple[Array, ...]]:
        """Returns the method's weights: [] of the deltas, and [K] of each of the class means."""
        weight = None if self._weight_fn is None else self._weight_fn(client).astype(jnp.float32)
        reduces = [reduce for reduce in self._reduces if reduce.payload == "class means"]
        pairs = zip(reduces, value.class_means, strict=True)
        class_weights = [reduce.map(part, client)[1] for reduce, part in pairs]
        is_present = client.examples > 0
        return weight, tuple(jnp.where(is_present, w, 0).astype(jnp.float32) for w in class_weights)

    def vectors(self, value: UplinkValue) -> tuple[Array | None, tuple[Array, ...]]:
        """Returns all deltas as one vector [D], and each of the class means as [K, D]."""
        deltas = flatten(value.deltas) if value.deltas else None
        of_classes = (x.reshape(len(x), -1).astype(jnp.float32) for x in value.class_values)
        return deltas, tuple(of_classes)

    def num_classes(self, part: int) -> int:
        """Returns the number of classes K of one of the class means."""
        return self.shapes.class_means[part][1].shape[0]

    def restore(self, delta: Array | None, class_vectors: Sequence[Array], class_weights: Sequence[Array]) -> PyTree:
        """Returns what the method's server gets, from reduced vectors.

        Args:
          delta: [D], or None for an uplink without deltas.
          class_vectors: [K, D] of each of the class means.
          class_weights: [K] of each, summed over the cohort; a class of weight 0 is set to 0.
        """
        deltas = () if delta is None else unflatten(delta, self.shapes.deltas)
        class_means = []
        for vectors, weights, old in zip(class_vectors, class_weights, self.shapes.class_values, strict=True):
            values = jnp.where((weights > 0)[:, None], vectors, 0).reshape(old.shape)
            class_means.append((values.astype(old.dtype), weights.astype(old.dtype)))
        new = {"delta": iter(deltas), "class means": iter(class_means)}
        return self._structure.unflatten([next(new[reduce.payload]) for reduce in self._reduces])


def _with_count(reduce: Reduce) -> Reduce:
    """Returns the Reduce of pairs (part, whether the client counts); who does not, is absent."""

    def map_counted(part, client):
        value, is_counted = part
        examples = jnp.where(is_counted, client.examples, 0)
        contribution = reduce.map(value, client._replace(examples=examples))
        if reduce.combine != "add":
            return contribution
        return jax.tree.map(lambda x: jnp.where(is_counted, x, 0), contribution)

    return reduce._replace(map=map_counted)


def count_delta_parameters(method: Algorithm, shapes: PyTree) -> int:
    """Returns the numbers in all deltas of a method's uplink; `shapes` are those of the uplink."""
    return count_parameters(UplinkLayout(method.collect, shapes, "the method", ()).shapes.deltas)


VARIANCE = "var"  # the last key of a running variance's path, in Flax modules and in ours


def flatten(tree: PyTree) -> Array:
    """Returns all leaves concatenated, [D] float32."""
    leaves = (x.reshape(-1).astype(jnp.float32) for x in jax.tree.leaves(tree))
    return jnp.concatenate([jnp.zeros(0), *leaves])


def unflatten(vector: Array, shapes: PyTree) -> PyTree:
    """Inverts `flatten`: returns a tree with the shapes and dtypes of `shapes`."""
    leaves, structure = jax.tree.flatten(shapes)
    ends = np.cumsum([math.prod(x.shape) for x in leaves])
    pieces = zip(jnp.split(vector, ends[:-1]) if leaves else [], leaves, strict=True)
    return structure.unflatten([piece.reshape(x.shape).astype(x.dtype) for piece, x in pieces])


def check_shape(value: Any, shape: tuple[int, ...], source: str) -> Array:
    """Returns the result of a user's function, if it is a real array of the expected shape.

    Args:
      source: subject of the message, such as "rule 'mine'".

    Raises:
      ValueError: it is no array, has another shape, or is complex.
    """
    actual, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if actual != shape or dtype is None or jnp.issubdtype(dtype, jnp.complexfloating):
        what = type(value).__name__ if actual is None else f"an array {list(actual)}"
        what += f" of {dtype}" if actual == shape else ""
        raise ValueError(f"{source} returned {what}; expected a real array {list(shape)}")
    return value


def masked_sum(stacked: PyTree, mask: Array) -> PyTree:
    """Returns the sums over the leading axis [C] of the entries that the mask [C] selects."""

    def sum_leaf(x: Array) -> Array:
        return jnp.sum(jnp.where(aggregators.append_axes(mask, x), x, 0), 0)

    return jax.tree.map(sum_leaf, stacked)


def masked_mean(vectors: Array, mask: Array) -> Array:
    """Returns the mean [D] of the vectors [C, D] that the mask selects; zeros if there are none."""
    return masked_sum(vectors, mask) / jnp.maximum(jnp.sum(mask), 1)


def has_statistics(tree: PyTree) -> bool:
    """Returns whether a network in the tree has running statistics."""
    return any(jax.tree.leaves(net.stats) for net in find_nets(tree))


def clamp_variances(tree: PyTree) -> PyTree:
    """Returns the tree with all running variances of networks at least 0.

    Attacks and majority votes can make them negative. States of optax transformations are left as
    they are: the momentum of a variance is negative wherever the variance falls.
    """

    def clamp(path, leaf):
        last = getattr(path[-1], "key", getattr(path[-1], "name", None)) if path else None
        return jnp.maximum(leaf, 0) if last == VARIANCE else leaf

    def clamp_net(x):
        return x._replace(stats=jax.tree.map_with_path(clamp, x.stats)) if is_net(x) else x

    def is_whole(x):
        return is_net(x) or type(x).__module__.partition(".")[0] == "optax"

    return jax.tree.map(clamp_net, tree, is_leaf=is_whole)
