"""Builds an Algorithm whose uplinks pass transforms; the package's docstring has the picture."""

import functools
from collections.abc import Callable, Sequence

from fedjax_core.algorithm import Algorithm, Array, PyTree, Reduce, builder_name, map_built
from fedjax_core.task import Task
from fedjax_core.uplink import client_side, server_side
from fedjax_core.uplink.layout import UplinkLayout
from fedjax_core.uplink.transform import UplinkTransform, VectorReduce, order_transforms
from fedjax_core.uplink.wrapped_method import (
    WrappedBroadcast,
    WrappedClient,
    WrappedMethod,
    WrappedServer,
    WrappedUplink,
)


def wrap_builder(
    build: Callable[[Task], Algorithm], transforms: Sequence[UplinkTransform], shapes: PyTree, leave_out: bool
) -> Callable[[Task], Algorithm]:
    """Returns a method's builder whose methods are wrapped by `wrap_method`."""
    name = builder_name(build)
    return map_built(build, lambda method, _: wrap_method(method, transforms, shapes, leave_out, name))


def wrap_method(
    method: Algorithm,
    transforms: Sequence[UplinkTransform],
    shapes: PyTree,
    leave_out: bool = False,
    name: str = "the method",
) -> Algorithm:
    """Returns the method with transforms applied to its uplinks.

    Args:
      shapes: of one client's uplink.
      leave_out: whether a client whose metrics, uplink or state are not finite counts as dropped
        out: it keeps its old state, and the number of such clients is logged. Otherwise such a
        round ends the run.

    Raises:
      ValueError: a part of the uplink is neither a delta nor class means; two transforms replace
        the mean; a transform does not support the method; an attack on the stack meets central
        privacy.
    """
    wrapped = _make_wrapped_method(method, transforms, shapes, leave_out, name)

    def wrap_predictor(predict: Callable) -> Callable:
        return lambda sent, client, x: predict(unwrap(sent), unwrap(client), x)

    return method._replace(
        broadcast=functools.partial(client_side.broadcast, wrapped),
        client_update=functools.partial(client_side.update_client, wrapped),
        collect=_collect(wrapped),
        server_update=functools.partial(server_side.update_server, wrapped),
        server_init=functools.partial(init_server, wrapped),
        client_init=functools.partial(init_client, wrapped),
        prepare=method.prepare and functools.partial(client_side.prepare, wrapped),
        personalise=method.personalise and functools.partial(client_side.personalise, wrapped),
        init_unseen=functools.partial(client_side.init_unseen_client, wrapped)
        if callable(method.init_unseen)
        else method.init_unseen,
        predict={name: wrap_predictor(predict) for name, predict in method.predict.items()},
    )


def _make_wrapped_method(
    method: Algorithm, transforms: Sequence[UplinkTransform], shapes: PyTree, leave_out: bool, name: str
) -> WrappedMethod:
    """Validates that the transforms support the method and each other, and sorts them by use."""
    transforms = order_transforms(transforms)
    layout = UplinkLayout(method.collect, shapes, name, transforms)
    for transform in transforms:
        transform.check(name, layout.shapes)
        if transform.requires_uniform_weights:
            layout.check_uniform_weights(transform)
    reducing = {slot: transform.reduce for slot, transform in enumerate(transforms) if transform.reduce is not None}
    slot, reduce = next(iter(reducing.items()), (None, VectorReduce()))
    attack_slots = tuple(slot for slot, transform in enumerate(transforms) if transform.attack_stack is not None)
    central = next((transform.name for transform in transforms if transform.kind == "privacy"), None)
    if attack_slots and central is not None:
        raise ValueError(
            f"attack {transforms[attack_slots[0]].name!r} depends on the uplinks of other clients, so that one "
            f"client could move the sum by more than its clip, and privacy {central!r} has no epsilon; use an "
            "attack on the client's own uplink, such as sign_flip, or local noise, such as local_gaussian"
        )
    return WrappedMethod(method, transforms, layout, leave_out, reduce, slot, attack_slots)


def _collect(wrapped: WrappedMethod) -> WrappedUplink:
    """Returns the `collect` of a wrapped method: how its uplinks cross the client axis."""
    summed, stacked = Reduce(combine="add"), Reduce()
    num_parts = len(wrapped.layout.shapes.class_means) if wrapped.reduces_vectors else 0
    contributions = stacked if wrapped.is_stacked else summed
    return WrappedUplink(
        uplink=() if wrapped.reduces_vectors else wrapped.layout.collect,
        deltas=contributions if wrapped.reduces_vectors else (),
        class_means=(contributions,) * num_parts,
        class_weights=(summed,) * num_parts,
        is_counted=stacked,
        metrics=summed,
    )


def init_server(wrapped: WrappedMethod, key: Array) -> WrappedServer:
    """Returns the method's server state, and the memory of each transform."""
    memory = tuple(transform.init_memory(wrapped.layout.shapes) for transform in wrapped.transforms)
    return WrappedServer(wrapped.method.server_init(key), memory)


def init_client(wrapped: WrappedMethod, key: Array, server: WrappedServer, client_id: Array) -> WrappedClient:
    """Returns the method's client state, and each transform's."""
    kept = tuple(transform.init_client_state(wrapped.layout.shapes) for transform in wrapped.transforms)
    return WrappedClient(wrapped.method.client_init(key, server.inner, client_id), kept)


def unwrap(wrapped: PyTree) -> PyTree:
    """Returns the method's own state or broadcast, without what wrapping has added."""
    return wrapped.inner if isinstance(wrapped, (WrappedServer, WrappedClient, WrappedBroadcast)) else wrapped
