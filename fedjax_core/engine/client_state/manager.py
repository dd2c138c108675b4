"""Client states between rounds: on the devices with the server's, or offloaded to stores on the host or the disk."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.engine.client_state import stores
from fedjax_core.engine.client_state.multi_process import SharedExchange, StateShards
from fedjax_core.engine.client_state.offload import Exchange
from fedjax_core.engine.client_state.stores import DiskStore, HostStore
from fedjax_core.engine.sharding import mesh as meshes
from fedjax_core.engine.sharding.model_parallel import Layout
from fedjax_core.engine.simulation_spec import SimulationSpec, State

STORES = {"host": HostStore, "disk": DiskStore}
PART_BYTES = 2**28  # of client states in one file of a checkpoint


class CheckpointPart(NamedTuple):
    """Client states of one part of a checkpoint; each process writes a file with its share.

    Attributes:
      slots: [n] int32, ascending, in the group's store.
    """

    group: int
    slots: np.ndarray


class OffloadedStates:
    """All client states of a simulation, on the host or on the disk; each of several processes keeps its share.

    Attributes:
      initial: the server's state before round 1, from which untouched clients begin.
      stores: per group.
      shards: per group, which process keeps which states; None on one process.
      owner: (data of the seed's key, rounds done) of the state that they belong to.
    """

    owner: tuple[bytes, int] | None = None

    def __init__(self, initial: PyTree, stores: Sequence[HostStore], shards: Sequence[StateShards] | None = None):
        self.initial, self.stores, self.shards = initial, list(stores), shards

    def touched_counts(self) -> list[int]:
        """Returns per group how many clients were touched."""
        return [int(store.touched.sum()) for store in self.stores]

    @property
    def max_part_bytes(self) -> int:
        """The most bytes of a part, unless one state is larger."""
        return PART_BYTES * (1 if self.shards is None else jax.process_count())

    def changed_bytes(self) -> int:
        """Returns the bytes of states that changed since they were last saved, in all processes."""
        return sum(int(store.changed.sum()) * store.state_bytes for store in self.stores)

    def live_bytes(self) -> dict[int, int]:
        """Returns by part of the last checkpoint the bytes of states that are still as saved there, in all processes.

        A part without such states is left out.
        """
        live: Counter[int] = Counter()
        for store in self.stores:
            counts = np.bincount(store.part_number[store.touched & ~store.changed])
            live.update({int(part): int(counts[part]) * store.state_bytes for part in np.flatnonzero(counts)})
        return dict(live)

    def plan_parts(self, again: Collection[int] | None) -> list[CheckpointPart]:
        """Returns the states to save, in parts of at most `max_part_bytes`; all processes agree.

        Args:
          again: parts of the last checkpoint whose states are written again, beside those that changed; None: all
            states that were touched.
        """
        parts: list[CheckpointPart] = []
        for g, store in enumerate(self.stores):
            chosen = store.touched if again is None else store.changed
            chosen = chosen | (store.touched & np.isin(store.part_number, list(again))) if again else chosen
            slots, step = np.flatnonzero(chosen).astype(np.int32), max(1, self.max_part_bytes // store.state_bytes)
            parts += [CheckpointPart(g, slots[begin : begin + step]) for begin in range(0, len(slots), step)]
        return parts

    def read_parts(self, parts: Sequence[CheckpointPart]) -> Iterator[dict[str, np.ndarray]]:
        """Yields this process's states of each part as named arrays, for `load_part`."""
        for g, slots in parts:
            slots = slots if self.shards is None else slots[self.shards[g].is_written_here(slots)]
            yield {f"{g}/places": slots} | _name_leaves(g, self.stores[g].read(slots)[0])

    def wanted_arrays(self, part: Mapping[str, np.ndarray]) -> list[str]:
        """Returns the names that `load_part` reads of a part: only the slots if none of its states is kept here."""
        name, store = self._find_store(part)
        return list(part) if store.is_local is None or store.is_local(part[name]).any() else [name]

    def load_part(self, number: int, part: Mapping[str, np.ndarray]) -> None:
        """Restores one of the parts, in their order.

        Raises:
          ValueError: it has states of another method or model.
        """
        name, store = self._find_store(part)
        count, g = len(part[name]), name.partition("/")[0]
        like = store.read(part[name][:0])[0]
        named = _name_leaves(g, like)
        if f"{g}/00000" in part:  # written before arrays were named by their paths
            named = {f"{g}/{index:05d}": leaf for index, leaf in enumerate(named.values())}
        expected = {path: ((count, *leaf.shape[1:]), leaf.dtype) for path, leaf in named.items()}
        if {path: (array.shape, array.dtype) for path, array in part.items() if path != name} != expected:
            raise ValueError("a checkpoint's client states are of another method or model than this run's")
        store.write(np.asarray(part[name]), jax.tree.structure(like).unflatten(part[path] for path in named), np.ones(count, bool))
        store.part_number[part[name]] = number

    def _find_store(self, part: Mapping[str, np.ndarray]) -> tuple[str, HostStore]:
        """Returns the name of a part's slots, and the store that they are of."""
        (name,) = [name for name in part if name.endswith("/places")]
        return name, self.stores[int(name.partition("/")[0])]

    def mark_saved(self, parts: Sequence[CheckpointPart] = (), first: int = 0) -> None:
        """Marks all states as saved; `parts` were written, into parts numbered from `first`."""
        for number, (g, slots) in enumerate(parts, first):
            self.stores[g].part_number[slots] = number
        for store in self.stores:
            store.changed[:] = False


def _name_leaves(group: int | str, states: PyTree) -> dict[str, np.ndarray]:
    """Returns the leaves of a group's states by the group's number and their paths."""
    return {f"{group}{jax.tree_util.keystr(path)}": leaf for path, leaf in jax.tree.leaves_with_path(states)}


class ClientStates:
    """The client states of one simulation, under one plan; offloaded ones are those of the newest state."""

    def __init__(self, spec: SimulationSpec, layout: Layout, offloaded: OffloadedStates | None):
        """Creates no store.

        Args:
          offloaded: states that the plan before has offloaded; None: there are none.
        """
        self._spec, self._layout, self._offloaded = spec, layout, offloaded
        self._exchange: Exchange | None = None

    @property
    def offloaded(self) -> OffloadedStates | None:
        """Offloaded client states, all of them written; None if the devices have them."""
        if self._exchange is not None:
            self._exchange.flush()
        return self._offloaded

    def replace_offloaded(self, offloaded: OffloadedStates, state: State) -> None:
        """Takes these states, which belong to `state`, in place of those before."""
        self.close()
        self._offloaded = offloaded
        offloaded.owner = identify_state(state)

    def check_owner(self, state: State) -> None:
        """Raises ValueError if client states are offloaded, and belong to another state than the given one."""
        if self._offloaded is None or self._offloaded.owner is None:
            return
        (key, done), (given_key, given) = self._offloaded.owner, identify_state(state)
        if (key, done) != (given_key, given):
            which = f"after round {given}" if key == given_key else f"of another seed (after round {given})"
            raise ValueError(
                f"plan.hold={self._spec.hold!r} keeps client states of the newest state alone, after round {done}; the given state "
                f"is one {which}. Go on with what the last `init`, `run_rounds` or `from_host` returned, or set plan.hold='device'"
            )

    def mark_round(self, key: np.ndarray, done: int) -> None:
        """Notes that offloaded states are now those after round `done`."""
        assert self._offloaded is not None
        self._offloaded.owner = key.tobytes(), done

    def make_untouched(self, initial: PyTree) -> OffloadedStates:
        """Returns stores in which no client has a state yet: all begin from the `initial` server."""
        spec, shardings, shards = self._spec, self._layout.client_rows, None
        if jax.process_count() > 1:
            of_groups = shardings if isinstance(shardings, list) else [shardings] * len(spec.groups)
            shards = [StateShards(spec.mesh, of_group) for of_group in of_groups]
        is_local, store = None if shards is None else shards[0].is_local, STORES[spec.hold]
        groups = zip(spec.groups, spec.shapes.groups, strict=True)
        return OffloadedStates(initial, [store(len(group.clients), s.client, is_local) for group, s in groups], shards)

    def read(self, state: State, g: int, ids: np.ndarray) -> tuple[np.ndarray, PyTree, Array, PyTree]:
        """Returns (slots, states, which were ever touched, initial server) of group g's clients `ids`; see `check_owner`."""
        self.check_owner(state)
        mesh, offloaded = self._spec.mesh, self.offloaded
        slots = self._spec.host_arrays.slots[g][ids]
        if offloaded is None:
            states = stores.gather(state.clients[g], meshes.put(slots, mesh))
            return slots, states, meshes.put(np.zeros(len(ids), bool), mesh), state.server
        store = offloaded.stores[g]
        if offloaded.shards is not None:
            states = offloaded.shards[g].fetch_states(store.read, slots, len(store.touched))
            return slots, states, meshes.put(store.is_touched(slots), mesh), offloaded.initial
        states, touched = store.read(slots)
        states = meshes.put(states, mesh, self._layout.client_blocks[g])
        return slots, states, meshes.put(touched, mesh), offloaded.initial

    def write(self, state: State, g: int, slots: np.ndarray, states: PyTree) -> State:
        """Returns the state with other states of group g's clients at `slots`; slots beyond the last are dropped."""
        offloaded = self.offloaded
        if offloaded is None:
            clients = list(state.clients)
            clients[g] = stores.scatter(clients[g], meshes.put(slots, self._spec.mesh), states)
            return state._replace(clients=tuple(clients))
        offloaded.stores[g].write(slots, meshes.fetch(states), slots < len(self._spec.groups[g].clients))
        self.close()  # what was prefetched is outdated
        return state

    def exchange(self, draw: Callable[[Any, int], Any]) -> tuple[Exchange, PyTree]:
        """Returns what moves states to rounds and back, and the initial server; `draw` as `Exchange` takes it."""
        assert self._offloaded is not None
        if self._exchange is None:
            stores, shards = self._offloaded.stores, self._offloaded.shards
            if shards is None:
                self._exchange = Exchange(stores, draw, self._layout.client_rows)
            else:
                self._exchange = SharedExchange(stores, draw, shards)
        return self._exchange, self._offloaded.initial

    def close(self) -> None:
        """Waits until all is written, and drops what was prefetched."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()


def identify_state(state: State) -> tuple[bytes, int]:
    """Returns (data of the seed's key, rounds done): two states of a simulation with the same are equal."""
    key, done = jax.device_get((state.key, state.round))
    return np.asarray(key).tobytes(), int(done)
