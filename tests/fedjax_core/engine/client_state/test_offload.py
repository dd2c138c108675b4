"""Client states that are read and written while a round trains are those that the rounds before have left."""

import threading
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.algorithm import Cohort
from fedjax_core.engine import client_loop
from fedjax_core.engine.client_state.multi_process import SharedExchange, StateShards
from fedjax_core.engine.client_state.offload import Exchange
from fedjax_core.engine.client_state.stores import DiskStore, HostStore
from fedjax_core.engine.sharding import mesh as meshes
from fedjax_core.run import checkpointing
from fedjax_core.storage import client_state_files
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import read_json, write_json
from tests import toy
from tests.fedjax_core.engine.client_state import snapshot

LIKE = {
    "w": jax.ShapeDtypeStruct((2,), jnp.float32),
    "n": jax.ShapeDtypeStruct((), jnp.int32),
    "none": jax.ShapeDtypeStruct((0,), jnp.int8),
}
KEY, N = np.zeros(2, np.uint32), 6
COHORTS = {  # places, and which come back; 6 is an empty place
    0: ([4, 1, 2], [1, 1, 1]),
    1: ([1, 3, 4], [1, 1, 0]),
    2: ([4, 6, 1], [1, 0, 1]),
    3: ([1, 1 + 4, 0], [1, 1, 1]),
    4: ([2, 5, 6], [1, 1, 0]),
    5: ([2, 4, 3], [1, 1, 1]),
}


def draw(key, number):
    del key
    places, there = (np.array(x, np.int32) for x in COHORTS[number])
    return [(Cohort(jnp.asarray(places), jnp.asarray(there)), jnp.asarray(places))]


def workers() -> set[threading.Thread]:
    """Threads that read and write states, also those of other tests' simulations."""
    return {thread for thread in threading.enumerate() if "client states" in thread.name}


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("store", [HostStore, DiskStore])
def test_rounds_see_what_the_rounds_before_have_left(store, shared):
    before = workers()
    kept, truth = store(N, LIKE), {}
    mesh = meshes.make_mesh(client_loop.Plan(1, 3 if shared else 1))
    exchange = SharedExchange([kept], draw, [StateShards(mesh)]) if shared else Exchange([kept], draw, meshes.client_sharded(mesh))
    for number in range(5):
        coming = exchange.get(KEY, number)
        assert coming.slots[0].tolist() == COHORTS[number][0]
        for at, place in enumerate(COHORTS[number][0]):
            if place < N:
                assert bool(coming.touched[0][at]) == (place in truth)
                if place in truth:
                    assert int(coming.states[0]["n"][at]) == truth[place]
                    assert coming.states[0]["w"][at].tolist() == [truth[place], -truth[place]]
        exchange.prefetch(KEY, number + 1, draw(KEY, number + 1))
        new = jnp.arange(3, dtype=jnp.int32) + 10 * (number + 1)
        left = {"w": jnp.stack([new, -new], 1).astype(jnp.float32), "n": new, "none": jnp.zeros((3, 0), jnp.int8)}
        exchange.put_async(coming, [jax.device_put(left, meshes.client_sharded(mesh))])
        truth |= {p: int(n) for p, n, there in zip(COHORTS[number][0], new, COHORTS[number][1], strict=True) if there}
    exchange.flush()
    assert {place: int(kept.states["n"][place]) for place in np.flatnonzero(kept.touched)} == truth
    exchange.close()
    assert workers() <= before


def test_states_that_are_patched_lie_as_those_that_were_read():
    """Else the round that takes them is compiled a second time."""
    mesh = meshes.make_mesh(client_loop.Plan(1, 8, 2))
    lies = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("clients", "model"))
    exchange = Exchange([HostStore(N, LIKE)], draw, [{"w": lies}])
    rows = {"w": jax.device_put(jnp.zeros((4, 2)), meshes.replicated(mesh))}
    assert exchange._patch[0](rows, rows, np.arange(4, dtype=np.int32), np.ones(4, bool))["w"].sharding == lies


def test_a_state_that_cannot_be_written_ends_the_round_after_in_one_line(monkeypatch):
    before = workers()
    kept = DiskStore(N, LIKE)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    exchange = Exchange([kept], draw, sharding)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    coming = exchange.get(KEY, 0)
    exchange.prefetch(KEY, 1, draw(KEY, 1))
    exchange.put_async(coming, coming.states)
    assert exchange._writes[0].exception() is not None  # it is over
    with pytest.raises(OSError, match=r"cannot keep client states in .*: No space left on device"):
        exchange.get(KEY, 1)
    with pytest.raises(OSError, match="No space left"):
        exchange.close()
    assert workers() <= before


def test_a_file_that_may_not_be_as_large_as_the_states_is_named(monkeypatch):
    """Names the file where it may not grow, as under `ulimit -f`."""

    def refuse(*arguments):
        raise OSError(27, "File too large")

    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: SimpleNamespace(truncate=refuse, close=lambda: None))
    with pytest.raises(OSError, match=r"cannot keep client states in .*: File too large"):
        DiskStore(N, LIKE)


def test_a_run_that_stops_and_goes_on_has_the_same_states(tmp_path):
    """Bit for bit; five of eight clients a round, so that most are in two rounds running. Checkpoints write what changed."""
    sim, *_ = toy.CASES["scaffold"].offloaded_run
    state, whole = sim.run_rounds(sim.init(0), 3)
    wanted = snapshot.take(sim, state)
    state, first = sim.run_rounds(sim.init(0), 1)
    state, rest = sim.run_rounds(snapshot.restore(sim, snapshot.take(sim, state)), 2)
    chex.assert_trees_all_equal(snapshot.take(sim, state), wanted)
    assert first + rest == whole

    store = Checkpoints(tmp_path, keep=1)
    state, _ = sim.run_rounds(sim.init(0), 1)
    checkpointing.save_checkpoint(sim, store, state, 1, 0)
    state, _ = sim.run_rounds(state, 1)
    checkpointing.save_checkpoint(sim, store, state, 2, 1)
    number = lambda done: [len(part["0/places"]) for part in store.read_parts(done)]
    assert number(2) == [sum(sim.offloaded_states.touched_counts())]  # what changed is more than what is left, and pays for it
    state = checkpointing.restore_state(sim, store, 2)
    state, _ = sim.run_rounds(state, 1)
    chex.assert_trees_all_equal(snapshot.take(sim, state), wanted)
    checkpointing.save_checkpoint(sim, store, state, 3, 2)
    touched = sum(sim.offloaded_states.touched_counts())
    state = checkpointing.restore_state(sim, store, 3)
    chex.assert_trees_all_equal(snapshot.take(sim, state), wanted)
    selected = Checkpoints(tmp_path / "selected", keep=1)
    checkpointing.save_selected(sim, selected, state, 3, store)  # nothing is written again
    assert client_state_files.has_shared_part(tmp_path / "00000003", tmp_path / "selected" / "00000003")
    chex.assert_trees_all_equal(snapshot.take(sim, checkpointing.restore_state(sim, selected, 3)), wanted)
    checkpointing.save_selected(sim, selected, state, 3, Checkpoints(tmp_path / "none"))
    assert [len(part["0/places"]) for part in selected.read_parts(3)] == [touched]
    (digests,) = (tmp_path / "selected").glob("00000003*/digests.json")
    write_json(digests, read_json(digests) | {"parts": []})  # as one that went on from a checkpoint whose part had vanished
    with pytest.raises(
        ValueError, match=rf"round 3 cannot be used \(its parts have states of 0 clients, {touched} were written: one"
    ):
        checkpointing.restore_state(sim, selected, 3)
    sim.release()


def test_states_stay_on_or_off_the_devices(tmp_path):
    sim, *_ = toy.CASES["scaffold"].offloaded_run
    for file, text in (("config.json", '{"plan": {"hold": "device"}}'), ("run.json", '{"placement": {"hold": "device"}}')):
        (tmp_path / file).write_text(text)
        with pytest.raises(
            ValueError, match=rf"plan.hold='{sim.spec.hold}': .* holds a run with plan.hold='device'; resume it with that"
        ):
            checkpointing.check_same_hold(sim, tmp_path)
    (tmp_path / "run.json").write_text('{"placement": {"hold": "host"}}')
    checkpointing.check_same_hold(sim, tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("run.json", "[]", "run.json is a list, expected an object"),
        ("run.json", '{"placement": 3}', "placement of .*run.json is an int .3., expected an object"),
        ("config.json", "[]", "config.json is a list, expected an object"),
        ("config.json", '{"plan": {"hold": []}}', "plan.hold of .*config.json is a list, expected a string or null"),
    ],
)
def test_what_says_where_states_were_has_another_form(tmp_path, file, text, said):
    sim, *_ = toy.CASES["scaffold"].offloaded_run
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=said):
        checkpointing.check_same_hold(sim, tmp_path)


def test_a_run_whose_last_digests_are_damaged_names_the_way_back(tmp_path):
    sim, *_ = toy.CASES["scaffold"].offloaded_run
    store = Checkpoints(tmp_path)
    for number in (1, 2):
        store.save(number, {"w": np.arange(3)}, {"touched": []})
    (tmp_path / "00000002" / "digests.json").write_text("{")
    said = "the checkpoint of round 2 cannot be used .*digests.json is not JSON.*older: round 1; to go back to round 1 rename"
    with pytest.raises(ValueError, match=said):
        checkpointing.restore_state(sim, store, 2)
