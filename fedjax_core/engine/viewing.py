"""One client of a simulation, looked at outside of rounds."""

from collections.abc import Callable

import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.engine.client_view import View
from fedjax_core.engine.federation import Held, State
from fedjax_core.engine.planned import Planned


def of_client(now: Callable[[], Planned], state: State, client: int, trained: bool) -> View:
    """What one client holds, and its models.

    Args:
      now: gives the plan of the moment; there may be another one when the models are used.
      state: to look at; it stays as it is.
      client: id.
      trained: whether it is as the client would be right after its local training in the coming round.

    Raises:
      ValueError: there is no such client.
    """
    at = now()
    if not 0 <= client < at.fed.population:
        raise ValueError(f"client {client} is not one of 0 ... {at.fed.population - 1}")
    g = next(g for g, group in enumerate(at.fed.groups) if client in group.clients)
    ids = np.array([client], np.int32)
    _, rows, touched, initial = at.states.read(state, g, ids)
    held = at.arrays.supply.of_client(at.arrays.held, client, ["index"])
    plain, personal = at.programs.view[g](held, state, initial, at.put(ids), rows, touched, trained)
    holds = {name: plain if name == "global" else personal for name in at.method(g).predict}
    task = at.fed.groups[g].task.bind(at.arrays.held.tasks[g], state.round)

    def predict(name: str, holds: tuple[PyTree, PyTree], x: PyTree, held: Held | None = None):
        at = now()
        return at.programs.predict[g](at.arrays.held if held is None else held, state.round, name, holds, x)

    return View(client, task, holds, predict)
