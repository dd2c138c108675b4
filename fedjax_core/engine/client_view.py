"""One client at one moment, outside of rounds: what it holds, and its models."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.engine import evaluation_step
from fedjax_core.engine.client_state import host_store
from fedjax_core.engine.federation import Federation, Held, State, key
from fedjax_core.task import Task
from fedjax_core.uplink import bare


class View(NamedTuple):
    """One client at one moment.

    Attributes:
      client: its id.
      task: its group's task at this round.
      holds: by model's name, the (sent, client state) that it predicts with: after the newest broadcast, and but for "global"
        personalised, if the method does that before scoring; or all of them right after a round of local training.
      predict: (model's name, what it predicts with, x) -> {"logits": [B, K], "features": [B, D]}; compiled once per shape. Inside
        another program it takes `Simulation.held` as a fourth argument, which would else be a constant there.
    """

    client: int
    task: Task
    holds: dict[str, tuple[PyTree, PyTree]]
    predict: Callable[..., dict[str, Array]]


def holdings(
    fed: Federation, g: int, held: Held, state: State, initial: PyTree, ids: Array, rows: PyTree, touched: Array, trained: bool
):
    """(sent, client state) of the client `ids` [1] as they are, and personalised; or both right after local training."""
    if fed.on_host:
        rows = host_store.begun(fed, g, held, initial, state.key, ids, rows, touched)
    algorithm, client = fed.algorithm(g, held, state.round), jax.tree.map(lambda x: x[0], rows)
    if trained:
        sent, data = algorithm.broadcast(state.server, ids[0]), fed.rows_of(held, ids[0], held.size[ids[0]])
        draw = jax.random.fold_in(key(state.key, "client", state.round), ids[0])
        out = algorithm.client_update(sent, client, data, draw)
        sent, client = (sent, out.state) if out.local is None else out.local
        local = bare(sent), bare(client)
        return local, local
    plain, personal = evaluation_step.holdings(
        fed, algorithm, (held, state.server, state.round, state.key), ids[0], client, held.size[ids[0]]
    )
    return (bare(plain[0]), bare(plain[1])), (bare(personal[0]), bare(personal[1]))


def predict(fed: Federation, g: int, held: Held, round: Array, name: str, holds: tuple[PyTree, PyTree], x: PyTree):  # noqa: A002
    """Outputs of one model of group g's method."""
    return fed.algorithm(g, held, round).predict[name](*holds, x)
