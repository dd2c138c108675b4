"""A simulation under one plan: its programs, what they read and what they change. Another plan makes another one of it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_core.algorithm import Algorithm, PyTree
from fedjax_core.engine import client_loop
from fedjax_core.engine.client_state.manager import ClientStates
from fedjax_core.engine.data_feed.device_arrays import Arrays
from fedjax_core.engine.federation import Federation
from fedjax_core.engine.programs import Programs
from fedjax_core.engine.sharding.model_parallel import Layout

BLOCK_BYTES = 2**26  # of what clients' scores are made of, of one block of clients
LEAST_BLOCK = 64  # clients, where states or data are not on the devices


@dataclasses.dataclass(frozen=True, eq=False)
class Planned:
    """What is dispatched, and on what.

    Attributes:
      fed: what the programs are made of, with the plan.
      lies: where arrays lie.
      programs: compiled when they are first called.
      arrays: what all rounds read.
      states: the clients', between rounds.
      cohort: C.
      pace: seconds that programs of an evaluation took for a chunk of each device, by the program, as last seen.
      fits: whether scored rounds, or plain ones (True, False), have been done: their program fits the devices.
    """

    fed: Federation
    lies: Layout
    programs: Programs
    arrays: Arrays
    states: ClientStates
    cohort: int
    fits: set[bool] = dataclasses.field(default_factory=set)
    pace: dict[str, float] = dataclasses.field(default_factory=dict)

    def put(self, tree: PyTree) -> PyTree:
        """Host values on the plan's devices."""
        return client_loop.place(tree, self.fed.mesh)

    def method(self, g: int) -> Algorithm:
        """Group g's method before round 1, for what it has and which names: no array of it is on a device."""
        return self.fed.algorithm(g, self.arrays.host, 0)

    def blocks(self, g: int, clients: np.ndarray, nobody: int, work: np.ndarray, each: int = 0) -> list[np.ndarray]:
        """Client ids in blocks of one size, padded with `nobody`, dealt to the devices by their work.

        Args:
          g: the clients' group.
          clients: their ids.
          nobody: the id of an empty place.
          work: [nobody] of every client, such as its rows.
          each: bytes that a client is given, of which a block has BLOCK_BYTES at most.

        Returns:
          All at once if states and data are on the device, else a cohort's worth.
        """
        whole = not self.fed.on_host and not self.arrays.supply.streamed
        most = len(clients) if whole else min(len(clients), max(self.cohort, LEAST_BLOCK))
        most = min(most, max(1, BLOCK_BYTES // max(1, each)))
        size = client_loop.slots(most, self.fed.plan_of(g))
        ids = np.full(-(-len(clients) // size) * size, nobody, np.int32)
        ids[: len(clients)] = clients
        plan, of_clients = self.fed.plan_of(g), np.append(work, 0).astype(np.int32)
        return [block[client_loop.arrange_on_host(of_clients[block], plan)] for block in ids.reshape(-1, size)]

    def close(self) -> None:
        """Ends what is under way for coming rounds; all that came is written."""
        try:
            self.arrays.close()
        finally:
            self.states.close()


Fitting = Callable[[Callable[[Planned], Any]], Any]  # does work, under a plan of smaller chunks if a device cannot hold it
