"""Offloaded client states on several processes: which process keeps which, and how states reach their devices.

The clients axis of the mesh has D positions. A client's keeper is one of them, its slot in the store modulo D: the
state is in the process of that position's device. The states of a program's clients [C] leave their keepers, and go
back, by one all-to-all exchange in which each pair of devices has K slots. Where a position is several devices that
hold networks together, each of them has, sends and receives its shard of every state.

A process's thread reads and writes what the process keeps, and starts no program. Programs of several processes start
between the rounds, in the same order in all of them.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.data.ragged_index import list_places
from fedjax_core.engine.client_state.offload import Exchange, PrefetchedRound, Route, find_returning_clients
from fedjax_core.engine.client_state.stores import HostStore
from fedjax_core.engine.sharding.mesh import AXIS, client_sharded
from fedjax_core.training.aggregators import append_axes

Read = Callable[[np.ndarray], tuple[PyTree, np.ndarray]]  # slots [n] of a store -> (states [n, ...], touched [n])


class StateShards:
    """One group's states over the processes of a mesh.

    All methods but `make_route`, `read` and `split_by_keeper` start programs that devices run together: all processes
    must call them in the same order.

    Attributes:
      keepers: D.
    """

    def __init__(self, mesh: Mesh, shardings: PyTree = None):
        """Starts nothing.

        Args:
          mesh: each position of its clients axis has devices of one process.
          shardings: of states [C, ...] on the devices that train them, a prefix of their tree; None: by client.
        """
        devices = np.moveaxis(mesh.devices, mesh.axis_names.index(AXIS), 0)
        process = np.array([[device.process_index for device in row] for row in devices.reshape(len(devices), -1)])
        self.keepers, self.mesh = len(devices), mesh
        self._has_device = (process == jax.process_index()).any(1)
        self._is_first = process[:, 0] == jax.process_index()
        self._by_keeper = client_sharded(mesh)
        shardings = client_sharded(mesh) if shardings is None else shardings
        specs = lambda *front: jax.tree.map(lambda sharding: PartitionSpec(*front, *sharding.spec[1:]), shardings)
        on_mesh = lambda specs: jax.tree.map(functools.partial(NamedSharding, mesh), specs)
        spec, trained, kept = PartitionSpec(AXIS), specs(AXIS), specs(AXIS, None)
        self._kept = on_mesh(kept)
        shard_map = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
        self._send = jax.jit(shard_map(_to_trainers, in_specs=(kept, spec), out_specs=trained))
        self._return = jax.jit(shard_map(_to_keepers, in_specs=(trained, spec), out_specs=kept))
        self._patch = jax.jit(shard_map(_patch, in_specs=(kept, kept, spec, spec), out_specs=kept))
        head = lambda states, n: jax.tree.map(lambda x: x[:n], states)
        self._head = jax.jit(head, static_argnums=1, out_shardings=on_mesh(specs(None)))

    def is_local(self, slots: np.ndarray) -> np.ndarray:
        """Returns [n] whether this process stores the states at these slots."""
        return self._has_device[slots % self.keepers]

    def is_written_here(self, slots: np.ndarray) -> np.ndarray:
        """Returns [n] whether this process writes them into a checkpoint; exactly one process writes each state."""
        return self._is_first[slots % self.keepers]

    def make_route(self, slots: np.ndarray, population: int) -> Route:
        """Returns the route of the clients at `slots` [C] of a store of `population`; C is a multiple of D.

        Slots beyond the store are empty.
        """
        mask, size = slots < population, len(slots) // self.keepers
        trainer, own = np.divmod(np.arange(len(slots)), size)
        keeper = np.where(mask, slots % self.keepers, -1)
        pair = np.where(mask, keeper * self.keepers + trainer, self.keepers**2)
        order = np.argsort(pair, kind="stable")
        counts = np.bincount(pair, minlength=self.keepers**2 + 1)
        rank = np.empty(len(slots), np.int64)
        rank[order] = list_places(counts)
        room = _pair_slots(size, self.keepers, int(counts[:-1].max(initial=0)))
        slot = np.where(mask, trainer * room + rank, -1)
        position = np.full((self.keepers, self.keepers * room), -1, np.int32)
        position[keeper[mask], slot[mask]] = np.flatnonzero(mask)
        arrived = np.where(mask, keeper * room + rank, 0).astype(np.int32)
        leaving = np.zeros(position.shape, np.int32)
        leaving[trainer[mask], arrived[mask]] = own[mask]
        store_slots = np.where(position < 0, -1, slots[position])
        return Route(position, store_slots, keeper, slot, arrived.reshape(self.keepers, size), leaving)

    def read(self, read: Read, route: Route) -> PyTree:
        """Returns the states that keepers of this process have, [those keepers, D * K, ...]; zeros in empty slots."""
        slots = route.store_slots[self._has_device]
        states = read(slots[slots >= 0])[0]

        def lay_out(leaf):
            out = np.zeros((*slots.shape, *leaf.shape[1:]), leaf.dtype)
            out[slots >= 0] = leaf
            return out

        return jax.tree.map(lay_out, states)

    def put(self, states: PyTree) -> PyTree:
        """Puts what `read` returned on the keepers' devices: [D, D * K, ...]."""
        index = np.cumsum(self._has_device) - 1
        put_leaf = lambda x, sharding: _from_keepers(lambda d: x[index[d]], (self.keepers, *x.shape[1:]), x.dtype, sharding)
        return jax.tree.map(put_leaf, states, jax.tree.broadcast(self._kept, states))

    def patch_newest(
        self, states: PyTree, route: Route, left: PyTree, before: Route, index: np.ndarray, mask: np.ndarray
    ) -> PyTree:
        """Replaces `states` of clients in `mask` [C] by what the route `before` has `left` with keepers.

        `index` [C]: where these clients were in the cohort of `before`.
        """
        slots, is_patched = np.zeros(route.position.shape, np.int32), np.zeros(route.position.shape, bool)
        where = route.keeper[mask], route.slot[mask]
        slots[where], is_patched[where] = before.slot[index[mask]], True
        return self._patch(states, left, self._put_by_keeper(slots), self._put_by_keeper(is_patched))

    def send_to_trainers(self, states: PyTree, route: Route) -> PyTree:
        """Returns the states [C, ...], each on the device that trains its client."""
        return self._send(states, self._put_by_keeper(route.arrived))

    def return_to_keepers(self, states: PyTree, route: Route) -> PyTree:
        """Undoes `send_to_trainers`: [D, D * K, ...]."""
        return self._return(states, self._put_by_keeper(route.leaving))

    def split_by_keeper(self, returned: PyTree, route: Route) -> list[tuple[np.ndarray, PyTree]]:
        """Returns for each keeper of this process (positions [D * K] of its slots, host states [D * K, ...])."""
        leaves, structure = jax.tree.flatten(returned)
        local = [_local_entries(leaf) for leaf in leaves]
        keepers = np.flatnonzero(self._has_device).tolist()
        return [(route.position[d], structure.unflatten([of_leaf[d] for of_leaf in local])) for d in keepers]

    def fetch_states(self, read: Read, slots: np.ndarray, population: int) -> PyTree:
        """Returns the states [n, ...] of clients at any slots of a store, on the devices."""
        number = -(-len(slots) // self.keepers) * self.keepers
        padded = np.pad(slots, (0, number - len(slots)), constant_values=population)
        route = self.make_route(padded, population)
        states = self.send_to_trainers(self.put(self.read(read, route)), route)
        return states if number == len(slots) else self._head(states, len(slots))

    def _put_by_keeper(self, array: np.ndarray) -> Array:
        return _from_keepers(lambda d: array[d], array.shape, array.dtype, self._by_keeper)


class SharedExchange(Exchange):
    """An `Exchange` over several processes. All must call `get` and `put_async` in the same order."""

    def __init__(self, stores: Sequence[HostStore], draw: Callable[[Any, int], Any], shards: Sequence[StateShards]):
        """Reads nothing yet; `stores` and `draw` as in `Exchange`, `shards` per group."""
        super().__init__(stores, draw, None)
        self._shards = shards

    def _read(self, key: np.ndarray, round_num: int, drawn: Any = None) -> PrefetchedRound:
        coming = self._without_states(round_num, self._draw(key, round_num) if drawn is None else drawn)
        groups = list(zip(self._stores, coming.slots, self._shards, strict=True))
        routes = [shards.make_route(slots, len(store.touched)) for store, slots, shards in groups]
        states = [shards.read(store.read, route) for (store, _, shards), route in zip(groups, routes, strict=True)]
        touched = [store.is_touched(slots) for store, slots, _ in groups]
        return coming._replace(states=states, touched=touched, routes=routes)

    def _patch_newest(self, coming: PrefetchedRound) -> PrefetchedRound:
        states = [shards.put(states) for shards, states in zip(self._shards, coming.states, strict=True)]
        touched = list(coming.touched)
        if self._last is not None:
            last, left = self._last
            for g, (index, mask) in enumerate(find_returning_clients(coming, last)):
                if mask.any():
                    states[g] = self._shards[g].patch_newest(states[g], coming.routes[g], left[g], last.routes[g], index, mask)
                    touched[g] = touched[g] | mask
        groups = zip(self._shards, states, coming.routes, strict=True)
        states = [shards.send_to_trainers(of_group, route) for shards, of_group, route in groups]
        return coming._replace(states=states, touched=touched)

    def put_async(self, done: PrefetchedRound, states: list[PyTree]) -> None:
        groups = zip(self._shards, states, done.routes, strict=True)
        super().put_async(done, [shards.return_to_keepers(new, route) for shards, new, route in groups])

    def _write(self, done: PrefetchedRound, states: list[PyTree]) -> None:
        groups = zip(self._stores, self._shards, done.routes, done.mask, done.slots, states, strict=True)
        for store, shards, route, mask, slots, new in groups:
            for position, returned in shards.split_by_keeper(new, route):
                is_real = (position >= 0) & mask[position]
                store.put(slots[position[is_real]], jax.tree.map(lambda x, keep=is_real: x[keep], returned))
            store.touch(slots[mask])


def _from_keepers(entry: Callable[[int], np.ndarray], shape: tuple[int, ...], dtype: np.dtype, sharding: NamedSharding) -> Array:
    """Returns an array [D, ...]; each process provides the entries of its own keepers."""
    read = lambda index: entry(index[0].start or 0)[index[1:]][None]
    return jax.make_array_from_callback(shape, sharding, read, dtype=dtype)


def _local_entries(array: Array) -> dict[int, np.ndarray]:
    """Returns the entries of an array [D, ...] that this process has, by index."""
    if not array.size:  # which all have whole
        return dict(enumerate(np.zeros(array.shape, array.dtype)))
    entries: dict[int, np.ndarray] = {}
    for shard in array.addressable_shards:
        start, part = shard.index[0].start or 0, np.asarray(shard.data)[0]
        if part.shape == array.shape[1:]:
            entries[start] = part
        else:
            entries.setdefault(start, np.empty(array.shape[1:], array.dtype))[shard.index[1:]] = part
    return entries


def _pair_slots(size: int, keepers: int, most: int) -> int:
    """Returns K: enough for nearly all random cohorts, else `size`; two values, so that few programs are compiled."""
    mean = size / keepers
    enough = min(size, math.ceil(mean + 6 * math.sqrt(mean) + 4))
    return enough if most <= enough else size


def _to_trainers(states: PyTree, arrived: Array) -> PyTree:
    return jax.tree.map(lambda x: _all_to_all(x[0])[arrived[0]], states)


def _to_keepers(states: PyTree, leaving: Array) -> PyTree:
    return jax.tree.map(lambda x: _all_to_all(x[leaving[0]])[None], states)


def _all_to_all(x: Array) -> Array:
    """Exchanges [D * K, ...], K for each device, for [D * K, ...], K from each."""
    if not x.size:
        return x
    number = jax.lax.axis_size(AXIS)
    parts = x.reshape(number, -1, *x.shape[1:])
    return jax.lax.all_to_all(parts, AXIS, 0, 0).reshape(x.shape)


def _patch(states: PyTree, left: PyTree, slots: Array, mask: Array) -> PyTree:
    """Replaces `states` [1, D * K, ...] where `mask` by those of `left` at `slots`."""
    choose = lambda new, old: jnp.where(append_axes(mask, new), old[:, slots[0]], new)
    return jax.tree.map(choose, states, left)
