"""The parts of a method's uplink: which of them transforms may change, as trees and as vectors."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array, Cohort, PyTree, Reduce
from fedjax_core.training import aggregators
from fedjax_core.uplink.flatten import flatten, unflatten
from fedjax_core.uplink.transform import UplinkTransform, UplinkValue


class UplinkLayout:
    """Takes uplinks of one method apart, and puts them together again.

    Attributes:
      shapes: shapes of the parts that transforms may change.
      collect: the method's `collect`, with leaves for pairs (part, whether the client counts).
    """

    def __init__(self, collect: PyTree, shapes: PyTree, method: str, transforms: Sequence[UplinkTransform]):
        """Validates the method's uplink.

        Args:
          collect: the method's.
          shapes: of one client's uplink.
          method: its name, for messages.
          transforms: those that uplinks pass.

        Raises:
          ValueError: clients send nothing; a part is neither a delta nor class means; deltas are
            weighted in different ways.
        """
        paths, self._structure = jax.tree.flatten_with_path(collect, is_leaf=_is_reduce)
        self._reduces: list[Reduce] = [reduce for _, reduce in paths]
        self._method = method
        needs = transforms[0].label if transforms else "aggregation.not_finite='leave_out'"
        if not self._reduces:
            raise ValueError(f"{needs} needs an uplink; clients of {method} send nothing")
        for path, reduce in paths:
            if not reduce.payload and transforms:
                part = f"part {jax.tree_util.keystr(path)} of the uplink" if path else "the uplink"
                raise ValueError(
                    f"{needs} supports deltas and class means; {part} of {method} is neither: its server reads it client by client"
                )
        weight_fns = [reduce.weight_fn for reduce in self._reduces if reduce.payload == "delta"]
        if len(set(weight_fns)) > 1 and transforms:
            raise ValueError(
                f"{needs} needs the same client weights for all deltas; {method} weights the parts of its uplink differently"
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
        return self._structure.unflatten([next(new[reduce.payload]) if reduce.payload else part for part, reduce in pairs])

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


def _is_reduce(x: object) -> bool:
    return isinstance(x, Reduce)


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
