"""Where client states are between rounds: with the server's on the devices, or in stores on the host or the disk."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.engine import client_loop
from fedjax_core.engine.client_state import host_store
from fedjax_core.engine.client_state.disk_store import DiskStore
from fedjax_core.engine.client_state.multi_process import between
from fedjax_core.engine.client_state.offload import Exchange
from fedjax_core.engine.federation import Federation, State
from fedjax_core.engine.sharding.model_parallel import Layout
from fedjax_core.engine.shares import of_processes

STORES = {"host": host_store.HostStore, "disk": DiskStore}


class ClientStates:
    """The client states of one simulation, under one plan. Off the devices it has those of the newest state only."""

    def __init__(
        self,
        fed: Federation,
        lies: Layout,
        like: Sequence[PyTree],
        places: Sequence[np.ndarray],
        hold: str,
        kept: host_store.OnHost | None = None,
    ):
        """Makes no store.

        Args:
          fed: with its plan.
          lies: where arrays lie.
          like: per group, the shapes of a client's state.
          places: of `Held`.
          hold: "device", "host" or "disk".
          kept: states off the devices, of the plan before.
        """
        self._of, self._lies, self._like, self._places, self._hold = fed, lies, like, places, hold
        self._on_host, self._exchange = kept, None

    @property
    def kept(self) -> host_store.OnHost | None:
        """Client states that are not on the devices, all of them written; None if the devices have them."""
        if self._exchange is not None:
            self._exchange.settle()
        return self._on_host

    def keep(self, kept: host_store.OnHost) -> None:
        """Takes these in place of those before."""
        self.close()
        self._on_host = kept

    def untouched(self, initial: PyTree) -> host_store.OnHost:
        """Stores in which no client has a state yet: all begin from the `initial` server's."""
        groups, rows = self._of.groups, self._lies.rows
        shares = of_processes(self._of.mesh, rows if isinstance(rows, list) else [rows] * len(groups))
        keeps, store = None if shares is None else shares[0].keeps, STORES[self._hold]
        made = [store(len(group.clients), like, keeps) for group, like in zip(groups, self._like, strict=True)]
        return host_store.OnHost(initial, made, shares)

    def read(self, state: State, g: int, ids: np.ndarray) -> tuple[np.ndarray, PyTree, Array, PyTree]:
        """Of group g's clients `ids`: (places, states, which were ever touched, the server that the others begin from)."""
        places, kept, put = self._places[g][ids], self.kept, lambda tree: client_loop.place(tree, self._of.mesh)
        if kept is None:
            return places, host_store.gather(state.clients[g], put(places)), put(np.zeros(len(ids), bool)), state.server
        store, shares = kept.stores[g], kept.shares
        if shares is not None:
            rows = shares[g].brought(store.read, places, len(store.touched))
            return places, rows, put(store.known(places)), kept.initial
        rows, touched = store.read(places)
        return places, client_loop.place(rows, self._of.mesh, self._lies.blocks[g]), put(touched), kept.initial

    def write(self, state: State, g: int, places: np.ndarray, rows: PyTree) -> State:
        """The state with other states of group g's clients at `places`; those beyond the last are dropped."""
        kept = self.kept
        if kept is None:
            clients = list(state.clients)
            clients[g] = host_store.scatter(clients[g], client_loop.place(places, self._of.mesh), rows)
            return state._replace(clients=tuple(clients))
        kept.stores[g].write(places, client_loop.fetched(rows), places < len(self._of.groups[g].clients))
        self.close()  # what was read ahead is not the newest any more
        return state

    def exchange(self, draw: Callable[[Any, int], Any]) -> tuple[Exchange, PyTree]:
        """(what brings states to rounds and takes them back, the server before round 1). `draw`: as `Exchange` takes it."""
        assert self._on_host is not None
        if self._exchange is None:
            self._exchange = between(self._on_host, draw, self._lies.rows)
        return self._exchange, self._on_host.initial

    def close(self) -> None:
        """Waits until all that came is written, and forgets what was read ahead."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()
