"""Client states that several processes keep, each its share: who keeps whose, and how they get to the devices that train them.

The clients axis of the mesh has D places. The keeper of a client's state is one of them, by the client's place in its store modulo
D: the state lies in the process of that place's device. The states of a program's clients [C] leave their keepers, and go back, by
one exchange between all devices, in which each pair of devices has room for K rows. Where a place is several devices that hold
networks together, each of them has, sends and receives its part of every row.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.engine.client_loop import AXIS, spread

Read = Callable[[np.ndarray], tuple[PyTree, np.ndarray]]  # of a store: places [n] -> (rows [n, ...], which were touched [n])


class Route(NamedTuple):
    """How the states of clients [C] travel; all processes make the same one.

    Attributes:
      position: [D, D * K] for each keeper, whose row lies at each of its slots: a position in [0, C), or -1.
      places: [D, D * K] that client's place in the store, or -1.
      keeper, slot: [C] where each client's row lies with its keeper; -1 for one that is none.
      arrived: [D, C / D] for each device, where in what has arrived the row of each of its clients lies.
      leaving: [D, D * K] for each device, which of its clients' rows goes where in what it sends back.
    """

    position: np.ndarray
    places: np.ndarray
    keeper: np.ndarray
    slot: np.ndarray
    arrived: np.ndarray
    leaving: np.ndarray


class Shares:
    """Of one group's states, in the processes that a mesh's devices belong to. All methods but `route`, `read` and `of_here` start
    programs that devices do together: all processes must call them in the same order.

    Attributes:
      keepers: D.
    """

    def __init__(self, mesh: Mesh, rows: PyTree = None):
        """Starts nothing.

        Args:
          mesh: a place on its clients axis has devices of one process.
          rows: shardings of rows [C, ...] on the devices that train them, a prefix of their tree; None: divided as clients are.
        """
        devices = np.moveaxis(mesh.devices, mesh.axis_names.index(AXIS), 0)
        whose = np.array([[device.process_index for device in row] for row in devices.reshape(len(devices), -1)])
        self.keepers, self._mesh = len(devices), mesh
        self._here = (whose == jax.process_index()).any(1)
        self._first = whose[:, 0] == jax.process_index()
        self._by_keeper = NamedSharding(mesh, PartitionSpec(AXIS))
        lies = spread(mesh) if rows is None else rows
        at = lambda *front: jax.tree.map(lambda one: PartitionSpec(*front, *one.spec[1:]), lies)
        on = lambda specs: jax.tree.map(functools.partial(NamedSharding, mesh), specs)
        spec, trained, kept = PartitionSpec(AXIS), at(AXIS), at(AXIS, None)
        self._kept = on(kept)
        each = {"mesh": mesh, "check_vma": False}
        self._there = jax.jit(jax.shard_map(_to_trainers, in_specs=(kept, spec), out_specs=trained, **each))
        self._back = jax.jit(jax.shard_map(_to_keepers, in_specs=(trained, spec), out_specs=kept, **each))
        self._patch = jax.jit(jax.shard_map(_patched, in_specs=(kept, kept, spec, spec), out_specs=kept, **each))
        first = lambda rows, n: jax.tree.map(lambda x: x[:n], rows)
        self._some = jax.jit(first, static_argnums=1, out_shardings=on(at(None)))

    def keeps(self, places: np.ndarray) -> np.ndarray:
        """[n] whether this process keeps the states at these places of a store."""
        return self._here[places % self.keepers]

    def writes(self, places: np.ndarray) -> np.ndarray:
        """[n] whether it is this process that writes them into a checkpoint; of each state one process does."""
        return self._first[places % self.keepers]

    def route(self, places: np.ndarray, population: int) -> Route:
        """For clients at these places [C] of a store of so many; C is a multiple of D, places beyond the store are nobody's."""
        there, each = places < population, len(places) // self.keepers
        (trainer, own), keeper = np.divmod(np.arange(len(places)), each), np.where(there, places % self.keepers, -1)
        pair = np.where(there, keeper * self.keepers + trainer, self.keepers**2)
        order = np.argsort(pair, kind="stable")
        number = np.bincount(pair, minlength=self.keepers**2 + 1)
        rank = np.empty(len(places), np.int64)
        rank[order] = np.arange(len(places)) - np.repeat(np.cumsum(number) - number, number)
        room = _room(each, self.keepers, int(number[:-1].max(initial=0)))
        slot = np.where(there, trainer * room + rank, -1)
        position = np.full((self.keepers, self.keepers * room), -1, np.int32)
        position[keeper[there], slot[there]] = np.flatnonzero(there)
        arrived = np.where(there, keeper * room + rank, 0).astype(np.int32)
        leaving = np.zeros(position.shape, np.int32)
        leaving[trainer[there], arrived[there]] = own[there]
        found = np.where(position < 0, -1, places[position])
        return Route(position, found, keeper, slot, arrived.reshape(self.keepers, each), leaving)

    def read(self, read: Read, route: Route) -> PyTree:
        """The rows that keepers of this process have, [those keepers, D * K, ...]; zeros where there are none."""
        mine = route.places[self._here]
        rows = read(mine[mine >= 0])[0]

        def laid_out(found):
            out = np.zeros((*mine.shape, *found.shape[1:]), found.dtype)
            out[mine >= 0] = found
            return out

        return jax.tree.map(laid_out, rows)

    def sent(self, rows: PyTree) -> PyTree:
        """What `read` gave, on the keepers' devices: [D, D * K, ...]."""
        at = np.cumsum(self._here) - 1
        one = lambda x, lies: _laid(lambda d: x[at[d]], (self.keepers, *x.shape[1:]), x.dtype, lies)
        return jax.tree.map(lambda lies, part: jax.tree.map(lambda x: one(x, lies), part), self._kept, rows)

    def newest(self, sent: PyTree, route: Route, left: PyTree, before: Route, at: np.ndarray, both: np.ndarray) -> PyTree:
        """`sent`, but of clients in `both` [C] what the route before has `left` with keepers; they stood there at `at` [C]."""
        places, chosen = np.zeros(route.position.shape, np.int32), np.zeros(route.position.shape, bool)
        where = route.keeper[both], route.slot[both]
        places[where], chosen[where] = before.slot[at[both]], True
        return self._patch(sent, left, self._each(places), self._each(chosen))

    def arrived(self, sent: PyTree, route: Route) -> PyTree:
        """Rows [C, ...], each with the device that trains its client."""
        return self._there(sent, self._each(route.arrived))

    def returned(self, rows: PyTree, route: Route) -> PyTree:
        """`arrived` undone: [D, D * K, ...]."""
        return self._back(rows, self._each(route.leaving))

    def of_here(self, returned: PyTree, route: Route) -> list[tuple[np.ndarray, PyTree]]:
        """Of each keeper of this process: (positions [D * K] of its slots, rows [D * K, ...] on the host)."""
        each = [_by_start(leaf) for leaf in jax.tree.leaves(returned)]
        structure = jax.tree.structure(returned)
        return [(route.position[d], structure.unflatten([rows[d] for rows in each])) for d in np.flatnonzero(self._here).tolist()]

    def brought(self, read: Read, places: np.ndarray, population: int) -> PyTree:
        """Rows [n, ...] of clients at some places of a store, on the devices."""
        number = -(-len(places) // self.keepers) * self.keepers
        route = self.route(np.pad(places, (0, number - len(places)), constant_values=population), population)
        rows = self.arrived(self.sent(self.read(read, route)), route)
        return rows if number == len(places) else self._some(rows, len(places))

    def _each(self, array: np.ndarray) -> Array:
        return _laid(lambda d: array[d], array.shape, array.dtype, self._by_keeper)


def of_processes(mesh: Mesh, rows: Sequence[PyTree]) -> list[Shares] | None:
    """For each group; None on one process, which keeps all states. `rows`: per group, shardings as `Shares` takes them."""
    return [Shares(mesh, each) for each in rows] if jax.process_count() > 1 else None


def _laid(row: Callable[[int], np.ndarray], shape: tuple[int, ...], dtype: np.dtype, lies: NamedSharding) -> Array:
    """An array [D, ...] of the keepers' rows; this process is asked for those of its own."""
    part = lambda index: row(index[0].start or 0)[index[1:]][None]
    return jax.make_array_from_callback(shape, lies, part, dtype=dtype)


def _by_start(array: Array) -> dict[int, np.ndarray]:
    """[D, ...], the entries that this process has."""
    if not array.size:  # which all have whole
        return dict(enumerate(np.zeros(array.shape, array.dtype)))
    found: dict[int, np.ndarray] = {}
    for shard in array.addressable_shards:
        start, part = shard.index[0].start or 0, np.asarray(shard.data)[0]
        if part.shape == array.shape[1:]:
            found[start] = part
        else:
            found.setdefault(start, np.empty(array.shape[1:], array.dtype))[shard.index[1:]] = part
    return found


def _room(each: int, keepers: int, most: int) -> int:
    """K: enough for nearly all random cohorts, or for the others as many clients as a device trains: two sizes, so that few
    programs are compiled."""
    mean = each / keepers
    enough = min(each, math.ceil(mean + 6 * math.sqrt(mean) + 4))
    return enough if most <= enough else each


def _to_trainers(sent: PyTree, arrived: Array) -> PyTree:
    return jax.tree.map(lambda x: _exchanged(x[0])[arrived[0]], sent)


def _to_keepers(rows: PyTree, leaving: Array) -> PyTree:
    return jax.tree.map(lambda x: _exchanged(x[leaving[0]])[None], rows)


def _exchanged(x: Array) -> Array:
    """[D * K, ...], K rows for each device -> [D * K, ...], K rows from each."""
    if not x.size:
        return x
    number = jax.lax.axis_size(AXIS)
    parts = x.reshape(number, -1, *x.shape[1:])
    return jax.lax.all_to_all(parts, AXIS, 0, 0).reshape(x.shape)


def _patched(sent: PyTree, left: PyTree, at: Array, both: Array) -> PyTree:
    """`sent` [1, D * K, ...], those of `both` taken from `left` at their places."""
    chosen = lambda new, old: jnp.where(both.reshape(*both.shape, *[1] * (new.ndim - 2)), old[:, at[0]], new)
    return jax.tree.map(chosen, sent, left)
