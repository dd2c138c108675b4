"""Who comes back from a round in time, against loops over clients; and that programs without such policies stay as they are."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from fedjax_core.devices import Availability, ClientDevices, DeviceProfiles
from fedjax_core.engine import aot, participation
from fedjax_core.engine.client_work import measure_work
from fedjax_core.engine.streams import stream_key
from tests import naive, toy

N = toy.CLIENTS
ONES = np.ones(N)
SPEED = np.array([30.0, 10.0, 100.0, 20.0, 5.0, 80.0, 40.0, 60.0])
SIZES = np.array([len(index) for index in toy.data().train_index])


def profiles(failure: float = 0.0, speed: np.ndarray = SPEED) -> DeviceProfiles:
    return DeviceProfiles(speed, 1e3 * ONES, 2e3 * ONES, 0.25 * ONES, np.inf * ONES, failure * ONES)


@functools.cache
def simulate(mixed: bool = False, failure: float = 0.0, dropout: float = 0.0, available: bool = False, **devices):
    availability = Availability({"even": np.arange(N) % 2 == 0}, lambda arrays, r, ids: arrays["even"][ids] | (r % 2 == 1))
    client_devices = ClientDevices(profiles(failure), availability if available else None, **devices)
    return toy.simulate("local", mixed=mixed, dropout=dropout, client_devices=client_devices)


def drawn(simulation, round_num: int, seed: int = 4) -> dict[int, int]:
    """Examples of each client of a round's cohort."""
    key = np.asarray(jax.random.key_data(jax.random.key(seed)))
    groups = simulation.compiled.programs.draw_cohorts(simulation.compiled.device_arrays, key, np.int32(round_num))
    ids, examples = (np.concatenate([np.asarray(cohort[i]) for cohort, _ in groups]) for i in (0, 1))
    return {int(i): int(n) for i, n in zip(ids, examples, strict=True) if i < N}


def seconds_of(simulation) -> np.ndarray:
    """Seconds of each client's round."""
    assert simulation.spec.client_seconds is not None
    return simulation.spec.client_seconds


def text_of(simulation) -> str:
    arrays, state = aot.resident_shapes(simulation.compiled)
    return simulation.compiled.programs.run_resident_rounds.lower(arrays, state, np.int32(1)).as_text()


def test_a_profile_alone_changes_no_program():
    plain = toy.simulate("local", mixed=False)
    assert text_of(plain) == text_of(simulate()) == text_of(simulate(server_seconds=2.0))
    assert text_of(plain) != text_of(simulate(deadline=1.0))


@pytest.mark.parametrize("name", ["local", "fedproto"])  # which sends nothing, and which sends more than it receives
def test_seconds_by_hand(name):
    spec = toy.simulate(name, mixed=False, client_devices=ClientDevices(profiles())).spec
    down, up = (sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) for tree in spec.shapes.groups[0].wire)
    examples = 2 * SIZES if name == "local" else measure_work(spec).total()
    assert (down < up) == (name == "fedproto")
    np.testing.assert_allclose(spec.client_seconds, 0.25 + down / 1e3 + examples / SPEED + up / 2e3)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    "policy",
    [
        {"deadline": 0.8},
        {"wait_for": 3},
        {"wait_for": 0.5, "dropout": 0.3},
        {"failure": 0.4},
        {"available": True},
        {"failure": 0.3, "available": True, "deadline": 1.2, "wait_for": 2, "dropout": 0.2},
    ],
    ids=str,
)
def test_who_counts_is_who_comes_back_in_time(policy, mixed):
    simulation = simulate(mixed, **policy)
    seconds, seed, counts = seconds_of(simulation), 4, set()
    for r in range(6):
        cohort = drawn(simulation, r)
        there = set(naive.cohort(seed, r, N, 5, policy.get("dropout", 0.0)))
        assert set(cohort) == set(naive.cohort(seed, r, N, 5))
        if "failure" in policy:
            draws = [_uniform(seed, r, i) for i in range(N)]
            there &= {i for i in range(N) if draws[i] >= np.float32(policy["failure"])}
        if "available" in policy:
            there &= {i for i in range(N) if i % 2 == 0 or r % 2 == 1}
        if "deadline" in policy:
            there &= {i for i in range(N) if seconds[i] <= policy["deadline"]}
        if "wait_for" in policy:
            awaited = policy["wait_for"] if policy["wait_for"] >= 1 else round(policy["wait_for"] * 5)
            there = set(sorted(there, key=lambda i: (seconds[i], i))[:awaited])
        assert cohort == {i: SIZES[i] if i in there else 0 for i in cohort}
        counts.add(len(there))
    assert min(counts) < 5


def _uniform(seed: int, round_num: int, i: int) -> float:
    key = stream_key(jax.random.key_data(jax.random.key(seed)), "failure", round_num)
    return float(jax.random.uniform(jax.random.fold_in(key, i)))


@pytest.mark.parametrize(
    ("devices", "ids", "sampled", "seconds"),
    [
        ({}, [1, 3, -1], 3, "slowest"),
        ({}, [-1, -1, -1], 3, 0.0),
        ({"server_seconds": 2.0}, [1, 3, 5], 3, "slowest"),
        ({"deadline": 9.0}, [1, 3, 5], 3, "slowest"),
        ({"deadline": 9.0}, [1, 3, -1], 3, 9.0),  # somebody that was sampled does not come: the server cannot know
        ({"deadline": 9.0, "wait_for": 2}, [1, 3, -1], 3, "slowest"),
        ({"deadline": 9.0, "wait_for": 3}, [1, 3, -1], 3, 9.0),
        ({"deadline": 9.0, "wait_for": 3}, [1, 3, -1], 2, "slowest"),  # no more were sampled
        ({"wait_for": 3}, [1, 3, -1], 3, "slowest"),
    ],
)
def test_a_round_lasts_until_those_are_back_that_the_server_waits_for(devices, ids, sampled, seconds):
    spec = simulate(**devices).spec
    record = {"ids": np.array(ids), "sampled": np.int32(sampled)}
    expected = max(seconds_of(simulate(**devices))[i] for i in ids if i >= 0) if seconds == "slowest" else seconds
    time = participation.round_time(spec, record)
    assert time == {"simulated_seconds": expected + devices.get("server_seconds", 0.0)}


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_a_fraction_is_of_the_sampled_clients_that_have_examples(sampling):
    index = [rows if i % 4 else rows[:0] for i, rows in enumerate(toy.data().train_index)]
    data, devices = dataclasses.replace(toy.data(), train_index=index), ClientDevices(profiles(), wait_for=0.75, deadline=9.0)
    simulation = toy.simulate("local", mixed=False, data=data, sampling=sampling, client_devices=devices)
    slots = simulation.spec.sampler.slots
    assert simulation.spec.host_arrays.participation.awaited.tolist() == [max(1, round(0.75 * n)) for n in range(slots + 1)]
    numbers = set()
    for r, record in enumerate(simulation.run_rounds(simulation.init(4), 6)[1]):
        seconds = np.sort(seconds_of(simulation)[[i for i in drawn(simulation, r) if len(index[i])]])
        awaited = max(1, round(0.75 * len(seconds)))
        assert (record["sampled"], record["cohort"]) == (len(seconds), awaited)
        assert record["simulated_seconds"] == seconds[awaited - 1]
        numbers.add(awaited)
    assert len(numbers) > 1


def test_a_client_that_comes_at_the_deadline_is_in_time():
    seconds = seconds_of(simulate())
    held = simulate(deadline=float(np.sort(seconds)[3])).spec.host_arrays.participation
    assert held is not None
    np.testing.assert_array_equal(held.is_late, np.argsort(np.argsort(seconds)) > 3)


def test_records_say_who_was_sampled_and_how_long_it_took():
    simulation = simulate(deadline=0.8)
    _, records = simulation.run_rounds(simulation.init(4), 2)
    for r, record in enumerate(records):
        cohort = drawn(simulation, r)
        there = [i for i, n in cohort.items() if n]
        assert (record["sampled"], record["cohort"]) == (5, len(there))
        assert record["simulated_seconds"] == (0.8 if len(there) < 5 else seconds_of(simulation)[there].max())
        assert record["train/examples"] == 2 * sum(cohort.values())


def test_off_the_devices_all_is_the_same():
    plain = simulate(deadline=0.8)
    other = toy.simulate("local", mixed=False, hold="host", data_on="host", client_devices=plain.spec.client_devices)
    for one, two in zip(*(sim.run_rounds(sim.init(4), 2)[1] for sim in (plain, other)), strict=True):
        assert {name: one[name] for name in ("sampled", "cohort", "simulated_seconds", "train/examples")}.items() <= two.items()


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({"deadline": 1e-3}, r"devices.deadline=0.001 s is before the fastest client's round ends, 0\.\d+ s"),
        ({"wait_for": 6}, "devices.wait_for=6 must be at most the 5 clients of a cohort"),
    ],
)
def test_policies_that_cannot_be(devices, message):
    with pytest.raises(ValueError, match=message):
        simulate(**devices)


def test_a_client_without_examples_meets_no_deadline_for_the_others():
    data = dataclasses.replace(toy.data(), train_index=[rows if i else rows[:0] for i, rows in enumerate(toy.data().train_index)])
    of_messages = float((seconds_of(simulate()) - 2 * SIZES / SPEED).max())
    with pytest.raises(ValueError, match=r"devices.deadline=\S+ s is before the fastest client's round ends"):
        toy.simulate("local", mixed=False, data=data, client_devices=ClientDevices(profiles(), deadline=of_messages + 1e-3))


def test_policies_need_profiles():
    with pytest.raises(ValueError, match=r"devices.deadline and devices.wait_for need devices.profile"):
        toy.simulate("local", client_devices=ClientDevices(deadline=1.0))


def test_a_pooled_method_has_no_devices():
    with pytest.raises(ValueError, match="a pooled method has no clients"):
        toy.simulate("centralized", client_devices=ClientDevices(profiles()))
