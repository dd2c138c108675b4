"""One client at one moment, outside of rounds: what it holds, and its models."""

from collections.abc import Callable
from typing import NamedTuple

import jax

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
