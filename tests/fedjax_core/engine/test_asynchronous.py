"""Asynchronous rounds against loops over a plain event queue, and against synchronous rounds where these are the same."""

import dataclasses
import functools
import itertools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.devices import Availability, ClientDevices, DeviceProfiles, parse_schedule
from fedjax_core.engine import aot, asynchronous, dispatch
from fedjax_core.engine.client_loop import Plan
from fedjax_core.engine.vmapped_runs import VmappedSeeds
from fedjax_core.uplink import attacks, compression, robust_aggregation
from tests import naive, toy

N, PLACES, SEED = toy.CLIENTS, 5, 4
ONES = np.ones(N)
SPEED = np.array([30.0, 10.0, 100.0, 20.0, 5.0, 80.0, 40.0, 60.0])
HINGE = "fedasync(alpha=0.8, staleness='hinge(a=2, b=1)', max_staleness=3)"
MODEL = toy.model()


def devices(speed: np.ndarray = SPEED, **more: Any) -> ClientDevices:
    profiles = DeviceProfiles(speed, np.inf * ONES, np.inf * ONES, 0.25 * ONES, np.inf * ONES, 0 * ONES)
    return ClientDevices(profiles, **more)


@functools.cache
def simulate(schedule: str | None, name: str = "fedavg", unequal: bool = True, **settings: Any):
    client_devices = devices() if unequal else None
    asynchronous_by = None if schedule is None else parse_schedule(schedule)
    return toy.simulate(name, mixed=False, schedule=asynchronous_by, client_devices=client_devices, **settings)


def run(simulation: Any, rounds: int, seed: int = SEED) -> tuple[Any, list[dict[str, float]]]:
    state, records = simulation.run_rounds(simulation.init(seed), rounds)
    return simulation.to_host(state), records


def inner(state: Any) -> Any:
    """Returns the method's own states of the server and the clients, without transforms'."""
    unwrap = lambda x: getattr(x, "inner", x)
    return unwrap(state.server), [unwrap(client) for client in state.clients]


def plain_queue(steps: int, buffer: int, max_staleness: int | None = None, server_seconds: float = 0.0) -> list[Any]:
    seconds = 0.25 + 2 * np.array([len(index) for index in toy.data().train_index]) / SPEED
    candidates = itertools.chain.from_iterable(naive.cohort(SEED, r, N, PLACES) for r in itertools.count())
    return naive.arrivals(seconds, candidates, PLACES, buffer, steps, max_staleness, server_seconds)


def oracle(steps: list[Any], weigh: Any, mixes: bool, weights: str) -> Any:
    """Trains from the model that each client downloaded, when its update arrives."""
    rows = naive.rows(toy.data())
    versions = [tuple(naive.arrays(tuple(MODEL.init(naive.stream(SEED, naive.INIT)))))]
    for clients, downloads, *_ in steps:
        changes, w = [], versions[-1]
        for k, version in zip(clients, downloads, strict=True):
            key, start = naive.client_key(SEED, version, k), versions[version]
            trained = naive.train(MODEL, *start, *rows[k], key, epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)
            base, rate = (w if mixes else start), weigh(len(versions) - 1 - version)
            change = naive.minus((trained.params, trained.stats), base)
            changes.append(jax.tree.map(lambda x, rate=rate: np.float32(rate) * x, change))
        share = [len(rows[k][1]) if weights == "samples" else 1 for k in clients]
        versions.append(naive.arrays(naive.plus(w, naive.mean(changes, share))))
    return versions[-1]


def late():
    """Halves updates whose staleness is above 1; of integers it would make zeros."""

    def weigh(u):
        weights = np.ones_like(u)
        weights[u > 1] = 0.5
        return weights

    return weigh


@pytest.mark.parametrize(
    ("schedule", "buffer", "weigh"),
    [
        (f"fedbuff(buffer=2, staleness='{__name__}:late')", 2, lambda u: 0.5 if u > 1 else 1.0),
        ("fedbuff(buffer=2)", 2, lambda u: (1 + u) ** -0.5),
        ("fedbuff(buffer=0.6, staleness='constant', server_lr=0.7)", 3, lambda u: 0.7),
        ("fedasync(alpha=0.6, staleness='polynomial(a=0.5)')", 1, lambda u: 0.6 * (1 + u) ** -0.5),
        (HINGE, 1, lambda u: 0.8 * (1 if u <= 1 else 1 / (2 * (u - 1) + 1))),
    ],
)
def test_equals_a_loop_over_a_plain_queue(schedule, buffer, weigh):
    rounds, simulation = 7, simulate(schedule, "fedavg_uniform" if buffer > 1 else "fedavg")
    state, records = run(simulation, rounds)
    most = simulation.spec.asynchrony.schedule.max_staleness
    steps = plain_queue(rounds, buffer, most)
    w = oracle(steps, weigh, schedule.startswith("fedasync"), "uniform")
    chex.assert_trees_all_close(tuple(state["state"].server.inner.net), w, atol=5e-6)
    before = 0.0
    for version, (record, (_, downloads, time, dropped)) in enumerate(zip(records, steps, strict=True)):
        staleness = version - np.array(downloads)
        assert (record["staleness"], record["max_staleness"]) == (staleness.mean(), staleness.max())
        assert record["simulated_seconds"] == pytest.approx(time - before, abs=1e-12)
        assert record["cohort"] == buffer
        assert record.get("too_stale") == (None if most is None else dropped)
        before = time
    assert max(record["max_staleness"] for record in records) >= 2
    assert most is None or any(record["too_stale"] for record in records)


@pytest.mark.parametrize(("name", "dropout"), [("fedavg", 0.3), ("scaffold", 0.0), ("fednova", 0.0)])
def test_equal_speeds_and_a_buffer_of_the_cohort_are_the_synchronous_run_bit_for_bit(name, dropout):
    """FedBuff's weights of fresh updates are 1; several deltas, and a number beside one, need constant ones."""
    plain, records = run(simulate(None, name, False, dropout=dropout), 5)
    staleness = "polynomial(a=0.5)" if name == "fedavg" else "constant"
    schedule = f"fedbuff(buffer={PLACES}, staleness='{staleness}')"
    state, stale_records = run(simulate(schedule, name, False, dropout=dropout), 5)
    chex.assert_trees_all_equal(inner(state["state"]), inner(plain["state"]))
    for one, other in zip(records, stale_records, strict=True):
        assert other == one | ({"staleness": 0.0, "max_staleness": 0} if one["cohort"] else {})


def test_one_place_is_one_long_chain_of_local_trainings():
    """FedAsync with one client at a time and alpha = 1; a constant weight is that of no staleness."""
    schedule = "fedasync(alpha=1.0, staleness='constant')"
    simulation = simulate(schedule, cohort=1)
    assert simulation.spec.asynchrony.slots == 1
    state, records = run(simulation, 4)
    w = tuple(naive.arrays(tuple(MODEL.init(naive.stream(SEED, naive.INIT)))))
    for r in range(4):
        (k,) = (int(i) for i in simulation.spec.asynchrony.read_steps(state["state"].key, r, 1)[0].ids)
        x, y = naive.rows(toy.data())[k]
        trained = naive.train(MODEL, *w, x, y, naive.client_key(SEED, r, k), epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)
        w = trained.params, trained.stats
    chex.assert_trees_all_close(tuple(state["state"].server.inner.net), w, atol=5e-6)
    assert [record["staleness"] for record in records] == [0.0] * 4


SCHEDULE = "fedbuff(buffer=2, staleness='constant')"
PLANS: list[dict[str, Any]] = [
    {"plan": Plan(2, 1)},
    {"plan": Plan(1, 2)},
    {"hold": "host"},
    {"hold": "disk", "data_on": "host"},
    {"data_on": "host"},
]


@pytest.mark.parametrize("settings", PLANS, ids=str)
def test_plans_and_places_of_states_and_data_agree(settings):
    """A client arrives at most once in a round, and its state is that of its last arrival."""
    state, records = run(simulate(SCHEDULE, "scaffold"), 7)
    other_simulation = toy.simulate(
        "scaffold", mixed=False, schedule=parse_schedule(SCHEDULE), client_devices=devices(), **settings
    )
    other, other_records = run(other_simulation, 7)
    chex.assert_trees_all_close(inner(other["state"])[0], inner(state["state"])[0], atol=2e-6)
    for one, two in zip(records, other_records, strict=True):
        np.testing.assert_allclose(list(one.values()), list(two.values()), atol=1e-5)


def test_a_state_goes_on_as_if_it_had_not_been_saved():
    whole, records = run(simulate("fedbuff(buffer=2)"), 7)
    other = toy.simulate("fedavg", mixed=False, schedule=parse_schedule("fedbuff(buffer=2)"), client_devices=devices())
    saved = simulate("fedbuff(buffer=2)")
    before = saved.to_host(saved.run_rounds(saved.init(SEED), 3)[0])
    state, last = other.run_rounds(other.from_host(before), 4)
    chex.assert_trees_all_equal(other.to_host(state), whole)
    assert last == records[3:]


def test_streamed_rounds_do_not_wait_for_the_one_that_trains(monkeypatch):
    simulation = simulate("fedbuff(buffer=2)", data_on="host", rounds_per_dispatch=4)
    state, _ = simulation.run_rounds(simulation.init(SEED), 1)  # which ends before another is dispatched
    compiled, made, read, device_get = simulation.compiled, [], [], jax.device_get

    def spied(*given):
        state, record = compiled.programs.run_resident_rounds(*given)
        made.extend(jax.tree.leaves(state))
        return state, record

    monkeypatch.setattr(jax, "device_get", lambda tree: read.extend(jax.tree.leaves(tree)) or device_get(tree))
    spying = dataclasses.replace(compiled, programs=compiled.programs._replace(run_resident_rounds=spied))
    state, records = dispatch.dispatch_rounds(spying, state, 3, scored=False)
    assert len(records) == 3
    assert not {id(leaf) for leaf in made} & {id(leaf) for leaf in read}
    monkeypatch.undo()
    chex.assert_trees_all_equal(
        simulation.to_host(state), run(simulate("fedbuff(buffer=2)", data_on="host", rounds_per_dispatch=4), 4)[0]
    )
    simulation.release()


def test_seeds_in_one_program_have_their_own_arrivals():
    simulation = simulate("fedbuff(buffer=2)")
    alone = [run(simulation, 4, seed) for seed in (0, 1)]
    vmapped = VmappedSeeds(simulation, 2)
    results = vmapped.advance_seeds([(replica, replica.init(seed)) for seed, replica in enumerate(vmapped.replicas)], 4)
    assert alone[0][1][3]["simulated_seconds"] != alone[1][1][3]["simulated_seconds"]
    for result, (state, records) in zip(results, alone, strict=True):
        assert not isinstance(result, Exception)
        chex.assert_trees_all_close(jax.device_get(result[0].server), state["state"].server, atol=1e-5)
        for one, other in zip(result[1], records, strict=True):
            np.testing.assert_allclose(list(one.values()), list(other.values()), atol=1e-5)
    vmapped.trace()


def test_rules_and_compression_meet_weighted_deltas():
    """With one update a step the median is that update; and packing is the same whatever the weight."""
    plain, _ = run(simulate(HINGE), 4)
    rule = toy.simulate(
        "fedavg",
        mixed=False,
        schedule=parse_schedule(HINGE),
        client_devices=devices(),
        transforms=[robust_aggregation.parse_rule("median"), compression.parse_compressor("top_k(fraction=1.0)")],
    )
    state, _ = run(rule, 4)
    chex.assert_trees_all_close(state["state"].server.inner, plain["state"].server.inner, atol=2e-6)


def test_the_ring_has_what_broadcasts_are_made_of():
    """FedAvg's momentum of the server is not broadcast."""
    simulation = simulate("fedbuff(buffer=2)", "fedopt")
    spec, (_, state) = simulation.spec, aot.resident_shapes(simulation.compiled)
    net = spec.shapes.groups[0].server.inner.net
    assert sum(spec.asynchrony.in_ring) == len(jax.tree.leaves(net)) < len(spec.asynchrony.in_ring)
    assert [leaf.shape for leaf in state.ring] == [(spec.asynchrony.slots, *leaf.shape) for leaf in jax.tree.leaves(net)]
    assert asynchronous._find_used(jax.make_jaxpr(lambda a, b, c: (jnp.sin(a) + c, 1.0))(1.0, 2.0, 3.0).jaxpr) == [
        True,
        False,
        True,
    ]


def test_constant_weights_change_nothing_that_is_sent():
    """FedCM's clients send fewer numbers than they return, as the method says."""
    shapes = [simulate(schedule, "fedcm").spec.shapes for schedule in (None, "fedbuff(buffer=2, staleness='constant')")]
    assert shapes[0].up == shapes[1].up


def test_without_a_schedule_nothing_is_added():
    simulation = simulate(None)
    arrays, state = aot.resident_shapes(simulation.compiled)
    assert (arrays.arrivals, state.ring) == ((), ())


@pytest.mark.parametrize(
    ("name", "schedule", "settings", "message"),
    [
        ("fedavg", "fedbuff(buffer=6)", {}, "buffer=6 must be at most the 5 clients that train at once"),
        ("scaffold", "fedbuff(buffer=2)", {}, "weights one delta by its staleness; scaffold sends 2 deltas; staleness='constant'"),
        ("fedproto", "fedbuff(buffer=2)", {}, "weights one delta by its staleness; fedproto sends class means"),
        ("fedcm", "fedasync", {}, "clients of fedcm do not send back what they were broadcast, with its changes; 'fedbuff'"),
        ("fedamp", "fedbuff(buffer=2)", {}, "the uplink of fedamp is neither: the method combines it in a way of its own"),
        ("local", "fedbuff(buffer=2)", {}, "schedule 'fedbuff' needs an uplink; clients of local send nothing"),
        ("centralized", "fedbuff(buffer=2)", {}, "a pooled method has no clients, so it goes without config.schedule"),
        ("fedavg", "fedbuff(buffer=2)", {"deadline": 9.0}, "the schedule's buffer says for whom the server waits"),
        ("fedavg", "fedbuff(buffer=2)", {"wait_for": 2}, "the schedule's buffer says for whom the server waits"),
        (
            "fedavg",
            "fedbuff(buffer=2)",
            {"availability": Availability((), lambda arrays, r, ids: ids >= 0)},
            "rounds of availability are those of a synchronous server",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(name, schedule, settings, message):
    given = devices(**settings) if settings else None
    with pytest.raises(ValueError, match=message):
        toy.simulate(name, mixed=False, schedule=parse_schedule(schedule), client_devices=given)


def test_clients_without_examples_do_not_fill_the_buffer():
    """Their rounds take no time, so they would arrive again and again."""
    data = toy.data()
    index = [rows if i != 3 else rows[:0] for i, rows in enumerate(data.train_index)]
    made = lambda given: toy.simulate(
        "fedavg",
        mixed=False,
        schedule=parse_schedule("fedbuff(buffer=2)"),
        client_devices=given,
        data=dataclasses.replace(data, train_index=tuple(index)),
    )
    with pytest.raises(ValueError, match=r"1 of 8 clients, such as client 3, have no training examples; .* with min_size=1"):
        made(devices())
    made(None)


def test_a_step_whose_only_update_is_left_out_changes_nothing():
    bad = [attacks.make_attack("not_finite", attacks.not_finite(), [2])]
    simulation = toy.simulate("fedavg", mixed=False, schedule=parse_schedule("fedasync"), transforms=bad, leave_out=True, cohort=5)
    state, servers, left_out = simulation.init(SEED), [], []
    for _ in range(8):
        servers.append(jax.device_get(inner(state)[0]))
        state, (record,) = simulation.run_rounds(state, 1)
        left_out.append(int(record["server/left_out"]))
    servers.append(jax.device_get(inner(state)[0]))
    assert 0 < sum(left_out) < 8
    for is_out, (before, after) in zip(left_out, itertools.pairwise(servers), strict=True):
        assert np.array_equal(before.net.params["head"]["kernel"], after.net.params["head"]["kernel"]) == is_out
