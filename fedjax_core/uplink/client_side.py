"""The client's side of a wrapped method: what it is sent, and how its uplink changes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Array, ClientData, ClientOutput, Cohort, PyTree
from fedjax_core.finite_checks import became_nonfinite, is_finite
from fedjax_core.uplink.transform import ClientContext, UplinkValue
from fedjax_core.uplink.wrapped_method import (
    WrappedBroadcast,
    WrappedClient,
    WrappedMethod,
    WrappedServer,
    WrappedUplink,
)


class _Message(NamedTuple):
    """One client's uplink behind all `send` transforms.

    Attributes:
      wire: arrays that are transmitted, or None for the uplink itself.
      was_finite: [] whether the uplink was finite wherever a transform may have hidden that it is
        not.
    """

    value: UplinkValue
    kept: tuple[PyTree, ...]
    metrics: dict[str, Any]
    wire: PyTree
    was_finite: Array


def broadcast(wrapped: WrappedMethod, server: WrappedServer, client_id: Array) -> WrappedBroadcast:
    """Returns the method's broadcast as the client receives it."""
    received, _ = _transmit_broadcast(wrapped, wrapped.method.broadcast(server.inner, client_id))
    return WrappedBroadcast(received, client_id, server.memory)


def _transmit_broadcast(wrapped: WrappedMethod, sent: PyTree) -> tuple[PyTree, PyTree]:
    """Returns the broadcast as the client receives it, and the arrays that are transmitted."""
    wire = sent
    for transform in wrapped.transforms:
        if transform.broadcast is not None:
            sent, wire = transform.broadcast(sent)
    return sent, wire


def update_client(
    wrapped: WrappedMethod, sent: WrappedBroadcast, client: WrappedClient, data: ClientData, key: Array
) -> ClientOutput:
    """Trains one client by the method, and passes its uplink through the transforms."""
    out = wrapped.method.client_update(sent.inner, client.inner, data, key)
    message = _send_uplink(wrapped, out.uplink, sent, client, data.size, key)
    uplink = wrapped.layout.insert(out.uplink, message.value)
    wire = _find_transmitted(wrapped, sent, out, uplink, message)
    state, metrics = WrappedClient(out.state, message.kept), out.metrics
    local = out.local and (sent._replace(inner=out.local[0]), WrappedClient(out.local[1], client.kept))
    is_counted = jnp.bool(True)
    if wrapped.leave_out:
        is_counted = message.was_finite & is_finite((uplink, metrics)) & ~became_nonfinite(state, client)

        def zero_if_left_out(tree: Any) -> Any:
            return optax.tree.where(is_counted, tree, optax.tree.zeros_like(tree))

        message = message._replace(value=zero_if_left_out(message.value), metrics=zero_if_left_out(message.metrics))
        uplink, metrics, state = zero_if_left_out(uplink), zero_if_left_out(metrics), optax.tree.where(is_counted, state, client)
        local = local and optax.tree.where(is_counted, local, (sent, client))
    size = jnp.where(is_counted, data.size, 0)
    if wrapped.reduces_vectors:
        wrapped_uplink = _map_uplink(wrapped, message, is_counted, size, sent, key)
    else:
        parts = wrapped.layout.attach_count(uplink, is_counted)
        wrapped_uplink = WrappedUplink(parts, (), (), (), is_counted, message.metrics)
    may_hide = any(transform.may_hide_nonfinite for transform in wrapped.transforms)
    if may_hide and not wrapped.leave_out:
        is_kept = message.was_finite | (data.size == 0)
        wrapped_uplink = jax.tree.map(lambda x: _nan_unless(is_kept, x), wrapped_uplink)
    return ClientOutput(state, wrapped_uplink, metrics, local, wire)


def _find_transmitted(
    wrapped: WrappedMethod, sent: WrappedBroadcast, out: ClientOutput, uplink: PyTree, message: _Message
) -> tuple[PyTree, PyTree]:
    """Returns the arrays that are transmitted to the client, and those from it, whose `uplink` has passed the transforms."""
    wire_down, wire_up = (sent.inner, uplink) if out.wire is None else out.wire
    changes = [transform for transform in wrapped.transforms if transform.send is not None]
    # a schedule changes deltas at the server only; an attack sends as many bytes
    if any(transform.kind not in ("schedule", "attack") for transform in changes):
        wire_up = uplink
    return _transmit_broadcast(wrapped, wire_down)[1], wire_up if message.wire is None else message.wire


def _send_uplink(
    wrapped: WrappedMethod, uplink: PyTree, sent: WrappedBroadcast, client: WrappedClient, size: Array, key: Array
) -> _Message:
    """Passes one client's uplink through each transform's `send`."""
    value, metrics, wire = wrapped.layout.extract(uplink), {}, None
    kept, was_finite = [], jnp.bool(True)
    for slot, transform in enumerate(wrapped.transforms):
        if transform.may_hide_nonfinite:
            was_finite &= is_finite(value)
        if transform.send is None:
            kept.append(client.kept[slot])
            continue
        context = ClientContext(sent.id, size, wrapped.transform_key(key, slot), sent.memory[slot])
        output = transform.send(value, context, client.kept[slot])
        value = output.value
        kept.append(output.client_state)
        metrics |= output.metrics
        wire = wire if output.wire is None else output.wire
    return _Message(value, tuple(kept), metrics, wire, was_finite)


def _map_uplink(
    wrapped: WrappedMethod, message: _Message, is_counted: Array, size: Array, sent: WrappedBroadcast, key: Array
) -> WrappedUplink:
    """Returns one client's contributions to the reduction of vectors.

    Where the stack is attacked, these are vectors with weights: the server maps them afterwards.
    """
    weights = wrapped.layout.weights(message.value, Cohort(sent.id, size))
    vectors = wrapped.layout.vectors(message.value)
    if wrapped.attack_slots:
        deltas, class_means = (vectors[0], weights[0]), tuple(zip(vectors[1], weights[1], strict=True))
    else:
        memory = wrapped.reduce_memory(sent.memory)
        context = ClientContext(sent.id, size, wrapped.reduce_key(key), memory)
        deltas, class_means = wrapped.map_vectors(vectors, weights, context)
    return WrappedUplink((), deltas, class_means, weights[1], is_counted, message.metrics)


def _nan_unless(is_kept: Array, x: Array) -> Array:
    """Returns `x` if it is kept, else NaN: the engine must see a hidden fault, and end the run."""
    return jnp.where(is_kept, x, jnp.nan) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def prepare(wrapped: WrappedMethod, sent: WrappedBroadcast, client: WrappedClient, data: ClientData, key: Array) -> WrappedClient:
    """Runs the method's `prepare` on its own client state."""
    assert wrapped.method.prepare is not None
    return client._replace(inner=wrapped.method.prepare(sent.inner, client.inner, data, key))


def personalise(
    wrapped: WrappedMethod, sent: WrappedBroadcast, client: WrappedClient, data: ClientData, key: Array
) -> tuple[WrappedBroadcast, WrappedClient]:
    """Runs the method's `personalise` on its own broadcast and client state."""
    assert wrapped.method.personalise is not None
    inner_sent, inner = wrapped.method.personalise(sent.inner, client.inner, data, key)
    return sent._replace(inner=inner_sent), client._replace(inner=inner)


def init_unseen_client(wrapped: WrappedMethod, sent: WrappedBroadcast, client: WrappedClient) -> WrappedClient:
    """Runs the method's `init_unseen` on its own client state."""
    assert callable(wrapped.method.init_unseen)
    return client._replace(inner=wrapped.method.init_unseen(sent.inner, client.inner))
