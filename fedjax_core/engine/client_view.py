"""One client at one moment, outside of rounds: what it holds, and its models."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.engine import evaluation_step
from fedjax_core.engine.client_state import stores
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.simulation_spec import SimulationSpec, State
from fedjax_core.engine.streams import stream_key
from fedjax_core.task import Task
from fedjax_core.uplink import unwrap

Holdings = tuple[PyTree, PyTree]  # (sent, client state)


class ClientView(NamedTuple):
    """One client at one moment.

    Attributes:
      task: its group's task at this round.
      holds: by model's name, the (sent, client state) that it predicts with: after the newest broadcast, and but for "global"
        personalised, if the method does that before scoring; or all of them right after a round of local training.
      predict: (model's name, what it predicts with, x) -> {"logits": [B, K], "features": [B, D]}; compiled once per shape. Inside
        another program it takes `compiled.device_arrays` as a fourth argument, which would else be a constant there.
    """

    client: int
    task: Task
    holds: dict[str, Holdings]
    predict: Callable[..., dict[str, Array]]


def check_inputs(x: PyTree, shape: Sequence[int], dtype: Any, offset: Any = None) -> None:
    """Raises ValueError for inputs that a network would read as something else than the examples that it was trained on.

    Checked are inputs of networks that read uint8 or floats; not token ids and texts.

    Args:
      x: the inputs, [n, *shape].
      shape: of one example in training.
      dtype: of the examples in training; None: it is not known, and not checked.
      offset: [C] that was subtracted from them (`FederatedData.x_offset`), and must be from x; None: nothing.
    """
    is_uint8 = dtype is not None and np.dtype(dtype) == np.uint8
    if not (dtype is None or is_uint8 or jnp.issubdtype(dtype, jnp.floating)):
        return
    wanted = f"[n, {', '.join(map(str, shape))}]"
    if not isinstance(x, np.ndarray | jax.Array):
        raise ValueError(
            f"x is a {type(x).__name__}: must be an array {wanted} of NumPy or JAX, of the type of the examples in training"
        )
    if x.shape == tuple(shape):
        raise ValueError(f"x has the shape {x.shape} of one example: must be [n, ...], such as x[None]")
    if x.shape[1:] != tuple(shape):
        raise ValueError(f"x has the shape {x.shape}: must be {wanted}, as the examples in training")
    if is_uint8 and jnp.issubdtype(x.dtype, jnp.floating):
        if isinstance(x, Tracer) or not x.size:
            return
        low, high = float(x.min()), float(x.max())
        if not (low >= -1 and high <= 2):  # a perturbation may leave [0, 1] a little
            raise ValueError(
                f"x has floats from {low:g} to {high:g}: must be uint8 in 0 ... 255, as in training, or floats in [0, 1]; "
                "the network normalises them itself"
            )
    elif dtype is not None and is_uint8 != (x.dtype == np.uint8):
        given = "uint8, or floats in [0, 1]" if is_uint8 else "floats, as in training; uint8 are pixels, which are divided by 255"
        raise ValueError(f"x is of {x.dtype}: must be {given}")
    if offset is not None and not isinstance(x, Tracer) and x.size:
        _check_centred(np.asarray(x), np.asarray(offset))


def _check_centred(x: np.ndarray, offset: np.ndarray) -> None:
    """Raises ValueError for inputs of which a channel far from 0 is nearer to its offset than to 0."""
    for channel in np.flatnonzero(offset):
        if (centre := float(np.median(x[..., channel]))) / offset[channel] > 0.5:
            raise ValueError(
                f"x[..., {channel}] is near {centre:.10g}: must be less its offset in training, {offset[channel]:.10g}; pass "
                "(x.astype(np.float64) - offset).astype(np.float32)"
            )


def view_client(
    spec: SimulationSpec,
    g: int,
    arrays: DeviceArrays,
    state: State,
    initial: PyTree,
    ids: Array,
    client_states: PyTree,
    touched: Array,
    trained: bool,
) -> tuple[Holdings, Holdings]:
    """Returns what client `ids` [1] holds as it is, and personalised; if `trained`, both right after local training."""
    if spec.is_offloaded:
        client_states = stores.init_untouched(spec, g, arrays, initial, state.key, ids, client_states, touched)
    algorithm = spec.algorithm(g, arrays, state.round)
    i, client = ids[0], jax.tree.map(lambda x: x[0], client_states)
    size = arrays.size[i]
    if trained:
        sent, data = algorithm.broadcast(state.server, i), spec.client_data(arrays, i, size, in_round=True)
        draw = jax.random.fold_in(stream_key(state.key, "client", state.round), i)
        out = algorithm.client_update(sent, client, data, draw)
        plain = personal = out.after_training(sent)
    else:
        shared = arrays, state.server, state.round, state.key
        plain, personal = evaluation_step.make_holdings(spec, algorithm, shared, i, client, size)
    return (unwrap(plain[0]), unwrap(plain[1])), (unwrap(personal[0]), unwrap(personal[1]))


def predict(spec: SimulationSpec, g: int, arrays: DeviceArrays, round_num: Array, name: str, holds: Holdings, x: PyTree):
    """Returns the outputs of one model of group g's method."""
    return spec.algorithm(g, arrays, round_num).predict[name](*holds, x)
