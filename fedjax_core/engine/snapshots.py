"""A simulation's state as host arrays for a checkpoint, and back on any devices."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np

from fedjax_core import distributed
from fedjax_core.algorithm import PyTree
from fedjax_core.engine import client_loop
from fedjax_core.engine.client_state import host_store
from fedjax_core.engine.federation import State
from fedjax_core.engine.planned import Planned


def whole(at: Planned, state: State) -> PyTree:
    """Everything that a checkpoint must keep."""
    kept = at.states.kept
    return {"state": client_loop.fetched(state)} | ({} if kept is None else kept.packed())


def without_clients(at: Planned, state: State) -> PyTree:
    """`whole` without client states that are kept off the devices."""
    kept = at.states.kept
    return {"state": client_loop.fetched(state)} | ({} if kept is None else {"initial": client_loop.fetched(kept.initial)})


def like(at: Planned, touched: list[int] | None, clients: Sequence[PyTree]) -> PyTree:
    """The structure of `whole`, as NumPy arrays, to restore into.

    Args:
      at: the plan.
      touched: per group, how many client states were kept off the devices; None for one `without_clients`.
      clients: per group, the shapes of a client's state.
    """
    state = jax.eval_shape(at.programs.init, at.arrays.host, jax.random.key_data(jax.random.key(0)))
    kept = {}
    if at.fed.on_host:
        kept = {"initial": state.server}
        kept |= {} if touched is None else host_store.like_packed(state.server, clients, touched)
    return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), {"state": state} | kept)


def restored(at: Planned, saved: PyTree, parts: Callable[..., Iterable[tuple[int, Mapping[str, np.ndarray]]]]) -> State:
    """The inverse of `whole`, or of `without_clients` and `OnHost.parts`, on the plan's devices, whatever they were.

    Args:
      at: the plan.
      saved: what was kept.
      parts: (part -> names of the arrays that will be looked at) -> numbers of parts, and what `OnHost.parts` gave.
    """
    if at.fed.on_host:
        kept = at.states.untouched(client_loop.place(saved["initial"], at.fed.mesh, at.lies.server))
        if "stores" in saved:
            kept.unpack(saved)
        distributed.all_or_none("read its client states", lambda: [kept.take(*part) for part in parts(kept.wanted)])
        kept.saved()
        at.states.keep(kept)
    return client_loop.place(saved["state"], at.fed.mesh, at.lies.state)
