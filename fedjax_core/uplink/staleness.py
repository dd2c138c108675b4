"""Weights of stale deltas, under an asynchronous schedule (`devices/schedules.py`)."""

from typing import NamedTuple

import jax

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.training import aggregators
from fedjax_core.uplink.transform import ClientContext, TransformOutput, UplinkTransform, UplinkValue

KIND = "schedule"


class Stale(NamedTuple):
    """What the server knows about an update: the transform's memory, where it is not `()`.

    Attributes:
      weight: [] of the delta.
      gap: what is added to the delta before it is weighted, like the delta: what the client
        downloaded minus what is broadcast now; `()`: nothing.
    """

    weight: Array
    gap: PyTree = ()


def weight_stale(name: str, has_weights: bool) -> UplinkTransform:
    """Returns the transform that weights stale deltas as the server takes them.

    Args:
      name: of the schedule.
      has_weights: whether some weight is not 1; then the uplink must be one delta.
    """

    def send(value: UplinkValue, context: ClientContext, client_state: PyTree) -> TransformOutput:
        if not isinstance(context.memory, Stale):
            return TransformOutput(value, client_state)
        weight, gap = context.memory
        deltas = value.deltas if gap == () else jax.tree.map(lambda x, y: x + y, value.deltas, (gap,))
        return TransformOutput(value._replace(deltas=aggregators.multiply_by_weight(deltas, weight)), client_state)

    def check(method: str, shapes: UplinkValue) -> None:
        if not has_weights or (len(shapes.deltas) == 1 and not shapes.class_means):
            return
        parts = [f"{len(shapes.deltas)} deltas"] * bool(shapes.deltas) + ["class means"] * bool(shapes.class_means)
        hint = "; staleness='constant' with server_lr=1 weights nothing" if name == "fedbuff" else ""
        raise ValueError(f"schedule {name!r} weights one delta by its staleness; {method} sends {' and '.join(parts)}{hint}")

    return UplinkTransform(KIND, name, send=send if has_weights else None, check=check)
