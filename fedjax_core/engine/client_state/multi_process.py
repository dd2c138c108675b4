"""`offload.py` where several processes keep client states, each its share (`shares.py`).

The thread of a process reads and writes what it keeps, and starts no program. What devices of several processes do together is
started between the rounds, in the same order by all: what keepers have read goes to the devices that train it when a round begins,
and what a round leaves goes back when it ends.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.engine.client_state.host_store import HostStore, OnHost
from fedjax_core.engine.client_state.offload import Coming, Exchange, again
from fedjax_core.engine.shares import Shares


class SharedExchange(Exchange):
    """Between the stores of several processes and their devices. All of them must call `take` and `give` in the same order."""

    def __init__(self, stores: Sequence[HostStore], draw: Callable[[Any, int], Any], shares: Sequence[Shares]):
        """Reads nothing yet. The arguments are `Exchange`'s, and per group who keeps whose states."""
        super().__init__(stores, draw, lambda rows: rows, None)
        self._shares = shares

    def _read(self, key: np.ndarray, number: int, drawn: Any = None) -> Coming:
        coming = self._known(number, self._draw(key, number) if drawn is None else drawn)
        each = list(zip(self._stores, coming.places, self._shares, strict=True))
        routes = [shares.route(places, len(store.touched)) for store, places, shares in each]
        rows = [shares.read(store.read, route) for (store, _, shares), route in zip(each, routes, strict=True)]
        return coming._replace(rows=rows, touched=[store.known(places) for store, places, _ in each], routes=routes)

    def _newest(self, found: Coming) -> Coming:
        sent = [shares.sent(rows) for shares, rows in zip(self._shares, found.rows, strict=True)]
        touched = list(found.touched)
        if self._last is not None:
            last, left = self._last
            for g, (at, both) in enumerate(again(found, last)):
                if both.any():
                    sent[g] = self._shares[g].newest(sent[g], found.routes[g], left[g], last.routes[g], at, both)
                    touched[g] = touched[g] | both
        travel = zip(self._shares, sent, found.routes, strict=True)
        rows = [shares.arrived(each, route) for shares, each, route in travel]
        return found._replace(rows=rows, touched=touched)

    def give(self, of: Coming, rows: list[PyTree]) -> None:
        travel = zip(self._shares, rows, of.routes, strict=True)
        super().give(of, [shares.returned(new, route) for shares, new, route in travel])

    def _write(self, of: Coming, rows: list[PyTree]) -> None:
        each = zip(self._stores, self._shares, of.routes, of.there, of.places, rows, strict=True)
        for store, shares, route, there, places, new in each:
            for position, mine in shares.of_here(new, route):
                real = (position >= 0) & there[position]
                store.put(places[position[real]], jax.tree.map(lambda x, real=real: x[real], mine))
            store.touch(places[there])


def between(kept: OnHost, draw: Callable[[Any, int], Any], sharding: Any) -> Exchange:
    """The exchange of these states; `sharding` of rows of clients on the devices, or for each group a tree of such in a list."""
    if kept.shares is not None:
        return SharedExchange(kept.stores, draw, kept.shares)
    return Exchange(kept.stores, draw, lambda rows: jax.device_put(rows, sharding), sharding)
