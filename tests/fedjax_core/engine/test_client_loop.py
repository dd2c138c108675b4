"""The client loop under every plan, against a loop; and what happens where memory ends."""

import dataclasses
import functools
from types import SimpleNamespace
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_core.algorithm import Cohort
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import client_loop, dispatch, simulator
from fedjax_core.engine.client_loop import Plan
from fedjax_core.engine.sharding import mesh as meshes
from fedjax_core.training import aggregators, local_training
from fedjax_core.uplink import dp_mechanisms, robust_aggregation
from methods.fedavg import fedavg
from tests import toy

FULL = "RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes."


class ChooseTest(chex.TestCase):
    @parameterized.parameters(
        (dict(cohort=20), (1, 8)),  # on CPU one after another, on all devices
        (dict(cohort=3), (1, 3)),  # no more devices than clients
        (dict(cohort=20, devices=2), (1, 2)),
        (dict(cohort=20, devices=2, chunk=4), (4, 2)),
        (dict(cohort=20, devices=4, chunk=100), (5, 4)),  # no larger than a device's share
        (dict(cohort=5, devices=2, chunk=100), (3, 2)),
        (dict(cohort=2, devices=8), (1, 8)),
        (dict(cohort=20, model=4), (1, 8, 4)),
        (dict(cohort=1, model=2), (1, 2, 2)),  # no more devices than the clients' networks take
        (dict(cohort=20, devices=4, model=2, chunk=100), (10, 4, 2)),
    )
    def test_what_is_given_is_kept(self, arguments, expected):
        self.assertEqual(tuple(client_loop.choose_plan(**arguments)), (*expected, 1)[:3])

    def test_on_an_accelerator_all_at_once(self):
        with mock.patch.object(jax, "default_backend", return_value="gpu"):
            self.assertEqual(client_loop.choose_plan(20), Plan(3, 8))
            self.assertEqual(client_loop.choose_plan(20, devices=1), Plan(20, 1))

    @parameterized.parameters(
        (dict(devices=9), "plan.devices=9 is not between 1 and 8"),
        (dict(devices=0), "plan.devices=0 is not between 1 and 8"),
        (dict(chunk=0), "plan.chunk=0 must be at least 1"),
        (dict(model=3), "plan.model=3 does not divide the 8 devices; allowed: 1, 2, 4, 8"),
        (dict(model=4, devices=6), "plan.model=4 does not divide the 6 devices; allowed: 1, 2, 3, 6"),
        (dict(model=0), "plan.model=0 does not divide"),
    )
    def test_impossible(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            client_loop.choose_plan(20, **arguments)

    @parameterized.parameters(
        (dict(model=4), "devices of one process hold a network together, and process 0 has 6; allowed: 1, 2$"),
        (dict(model=2, devices=4), "process 0 has 3; allowed: 1$"),
        (dict(devices=2, model=2), "plan.devices=2 leaves 1 of 2 processes without a device"),
    )
    def test_networks_stay_in_a_process(self, arguments, message):
        six_and_two = [SimpleNamespace(process_index=p, platform="cpu", id=i) for i, p in enumerate([0, 0, 0, 1, 0, 0, 0, 1])]
        self.assertEqual(client_loop.choose_plan(20, model=2, among=six_and_two), Plan(1, 8, 2))
        with self.assertRaisesRegex(ValueError, message):
            client_loop.choose_plan(20, among=six_and_two, **arguments)
        self.assertEqual([device.id for device in meshes.group_by_process(six_and_two)], [0, 1, 2, 4, 5, 6, 3, 7])

    def test_slots(self):
        self.assertEqual([Plan(2, 3).slots(c) for c in (1, 6, 7)], [6, 6, 12])


class ArrangeTest(chex.TestCase):
    @given(st.integers(0, 1000), st.sampled_from([(1, 1), (4, 1), (1, 4), (2, 3), (12, 1), (3, 2)]))
    @settings(max_examples=30, deadline=None)
    def test_a_permutation_that_balances(self, seed, plan):
        plan = Plan(*plan)
        work = np.random.default_rng(seed).integers(0, 100, 12)
        order = np.asarray(client_loop.arrange(jnp.asarray(work), plan))
        self.assertEqual(sorted(order.tolist()), list(range(12)))
        if plan.devices == 1 and plan.chunk in (1, 12):
            return
        # by device, then chunk: a chunk costs its largest client
        chunks = work[order].reshape(plan.devices, -1, plan.chunk)
        ranked = np.sort(work)[::-1].reshape(-1, plan.devices, plan.chunk)
        for turn, wanted in zip(chunks.swapaxes(0, 1), ranked, strict=True):  # neighbours by size, whichever device has them
            self.assertEqual(sorted(map(sorted, turn.tolist())), sorted(map(sorted, wanted.tolist())))
        time = chunks.max(-1).sum(1)
        self.assertLessEqual(time.max() - time.min(), work.max())

    def test_no_device_gets_the_larger_chunk_of_every_turn(self):
        """Dealt alternately, the first of two devices would have 480 against 430 of these."""
        work = np.array([90, 80, 75, 70, 66, 61, 58, 55, 52, 48, 45, 42, 40, 36, 34, 24, 20, 14], int)
        for parts in (2, 3):
            of_devices = work[np.asarray(client_loop.arrange(jnp.asarray(work), Plan(1, parts)))].reshape(parts, -1).sum(1)
            self.assertLess(of_devices.max() / of_devices.mean(), 1.02)
            alternately = work.reshape(-1, parts).sum(0)
            self.assertGreater(alternately.max() / alternately.mean(), 1.03)

    def test_the_host_arranges_as_the_devices_do(self):
        for plan in (Plan(1, 4), Plan(3, 2), Plan(4, 1)):
            work = np.random.default_rng(0).integers(0, 100, 24).astype(np.int32)
            np.testing.assert_array_equal(client_loop.arrange_on_host(work, plan), client_loop.arrange(jnp.asarray(work), plan))


def work(shared, entry):
    """Something whose sums and stacks, of several shapes and types, are all different for each client."""
    x, i = entry
    value = jnp.tanh(x @ shared["w"])
    return {"sum": value, "count": jnp.int32(1), "weighted": i * jnp.sum(x)}, (value * i, {"id": i, "python": 3.0})


class MapClientsTest(chex.TestCase):
    @parameterized.parameters((1, 1), (4, 1), (24, 1), (2, 3))
    def test_equals_a_loop(self, chunk, devices):
        rng = np.random.default_rng(0)
        w, x, ids = rng.normal(size=(5, 2)).astype(np.float32), rng.normal(size=(24, 5)).astype(np.float32), np.arange(24)
        sums = {"sum": np.zeros(2), "count": 0, "weighted": 0.0}
        rows = []
        for i in range(24):
            value = np.tanh(x[i] @ w)
            sums = {"sum": sums["sum"] + value, "count": sums["count"] + 1, "weighted": sums["weighted"] + i * x[i].sum()}
            rows.append(value * i)
        plan = Plan(chunk, devices)
        run = functools.partial(client_loop.map_clients, work, plan=plan, mesh=meshes.make_mesh(plan))
        added, (values, rest) = jax.jit(run)({"w": w}, (x, ids))
        chex.assert_trees_all_close(added, sums, rtol=1e-5, atol=1e-5)
        self.assertEqual(added["count"].dtype, jnp.int32)
        np.testing.assert_allclose(values, np.stack(rows), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(rest["id"], ids)
        np.testing.assert_array_equal(rest["python"], np.full(24, 3.0, np.float32))

    @parameterized.parameters((1, 1), (1000, 1), (5, 8))
    def test_a_sum_in_half_precision_does_not_stop_growing(self, chunk, devices):
        """Added up in bfloat16, a thousand of one size come to half of what they are."""
        plan, mean = Plan(chunk, devices), aggregators.mean()
        given = jnp.full((1000, 2), 1e-3, jnp.bfloat16), Cohort(jnp.arange(1000), jnp.full(1000, 257))
        run = functools.partial(
            client_loop.map_clients, lambda _, part: (mean.map(*part), ()), plan=plan, mesh=meshes.make_mesh(plan)
        )
        found = mean.finalize(jax.jit(run)((), given)[0])
        self.assertEqual(found.dtype, jnp.bfloat16)
        np.testing.assert_allclose(found.astype(np.float32), given[0][0].astype(np.float32), rtol=2**-6)

    @parameterized.parameters((1, 1), (4, 1), (3, 2))
    def test_part_after_part_equals_all_at_once(self, chunk, devices):
        """To the bit, and the loop over all clients to rounding; entries of other parts are zero."""
        plan = Plan(chunk, devices)
        on, rng = meshes.make_mesh(plan), np.random.default_rng(0)
        shared, mapped = (
            {"w": rng.normal(size=(5, 2)).astype(np.float32)},
            (rng.normal(size=(24, 5)).astype(np.float32), np.arange(24)),
        )
        added, stacked = jax.jit(functools.partial(client_loop.map_clients, work, plan=plan, mesh=on))(shared, mapped)
        part = jax.jit(functools.partial(client_loop.map_chunk_range, work, plan=plan, mesh=on))
        number, found = 24 // (chunk * devices), []
        sums = client_loop.init_sums(work, shared, mapped, plan)
        at_once = part(shared, mapped, sums, (0, number))
        for first in range(0, number, 2):
            sums, entries = part(shared, mapped, sums, (first, min(first + 2, number)))
            found.append(entries)
        parts = functools.reduce(functools.partial(jax.tree.map, jnp.add), found)
        chex.assert_trees_all_equal((sums, parts), at_once)
        total = jax.jit(functools.partial(client_loop.add_up_shards, plan=plan, mesh=on))(sums)
        chex.assert_trees_all_close((total, parts), (added, stacked), rtol=1e-5, atol=1e-5)

    def test_every_device_takes_its_part(self):
        plan = Plan(1, 8)
        run = functools.partial(client_loop.map_clients, work, plan=plan, mesh=meshes.make_mesh(plan))
        _, (values, _) = jax.jit(run)({"w": np.ones((5, 2), np.float32)}, (np.ones((16, 5), np.float32), np.arange(16)))
        self.assertLen({s.device for s in values.addressable_shards}, 8)
        self.assertEqual({s.data.shape for s in values.addressable_shards}, {(2, 2)})

    def test_place_puts_whole_copies(self):
        on = meshes.make_mesh(Plan(1, 8))
        self.assertEqual(on.axis_names, ("clients",))
        placed = meshes.put({"x": np.arange(3)}, on)
        self.assertEqual([s.data.shape for s in placed["x"].addressable_shards], [(3,)] * 8)


def simulate(cohort, population=64, chunk=1, hidden=400, transforms=()):
    """FedAvg of a network that outweighs everything else, on as many clients as wanted."""
    whole = toy.data()
    dataset = sources.Dataset("toy", whole.train, whole.test, whole.class_names)
    data = federated_data.from_index(dataset, [[i % 30, i % 30 + 1] for i in range(population)], [[0]] * population)
    build = functools.partial(
        fedavg, optimizer=local_training.sgd(0.1), batch=toy.BATCH, weights="uniform" if transforms else "samples"
    )
    groups = simulator.one_group(build, toy.task(hidden, statistics=not transforms), population)
    return simulator.Simulator(simulator.build_spec(groups, data, cohort=cohort, plan=Plan(chunk, 1), transforms=transforms))


def temporary(cohort, chunk, transforms=()):
    """Bytes of a round beside its arguments, and of a model."""
    sim = simulate(cohort, chunk=chunk, transforms=transforms)
    state = jax.eval_shape(sim.compiled.programs.init_state, sim.compiled.device_arrays, jax.random.key_data(jax.random.key(0)))
    compiled = sim.compiled.programs.run_resident_rounds.lower(
        sim.compiled.device_arrays, state, jax.ShapeDtypeStruct((), jnp.int32)
    ).compile()
    return compiled.memory_analysis().temp_size_in_bytes, 4 * sum(x.size for x in jax.tree.leaves(state.server))


class MemoryTest(chex.TestCase):
    def test_of_a_private_sum_does_not_grow_with_the_cohort_and_of_a_rule_by_a_delta_a_client(self):
        noise, rule = dp_mechanisms.gaussian(1.0, 1.0, 8, 8), robust_aggregation.parse_rule("median")
        (few, model), (many, _) = (temporary(cohort, 1, [noise]) for cohort in (8, 64))
        self.assertLess(many - few, model)
        (few, model), (many, _) = (temporary(cohort, 1, [rule]) for cohort in (8, 64))
        self.assertGreater(many - few, 56 * model)

    def test_of_averaging_does_not_grow_with_the_cohort(self):
        few, model = temporary(8, 1)
        many, _ = temporary(64, 1)
        self.assertLess(many - few, model)  # 56 more clients, less than one more model


class SmallerChunksTest(chex.TestCase):
    def test_halves_until_it_fits_and_says_so(self):
        sim, tried = toy.simulate("fedavg", cohort=7, plan=(7, 1)), []

        def work(compiled):
            chunk = compiled.spec.plan.chunk
            tried.append(chunk)
            if chunk > 2:
                raise jax.errors.JaxRuntimeError(FULL + "\nmore") if chunk > 4 else MemoryError("it needs 3 GiB")
            return "done"

        with self.assertLogs("fedjax_core", "WARNING") as logs:
            result = sim._retry_on_oom(work)
        self.assertEqual((result, sim.spec.plan, tried), ("done", Plan(2, 1), [7, 4, 2]))
        self.assertEqual(
            [r.getMessage() for r in logs.records],
            [f"7 clients at once do not fit ({FULL}); trying 4", "4 clients at once do not fit (it needs 3 GiB); trying 2"],
        )

    def test_one_client_that_does_not_fit_is_an_error(self):
        def work(compiled):
            raise jax.errors.JaxRuntimeError(FULL)

        sim = toy.simulate("fedavg", plan=(2, 1))
        with self.assertLogs("fedjax_core", "WARNING"), self.assertRaisesRegex(jax.errors.JaxRuntimeError, "RESOURCE_EXHAUSTED"):
            sim._retry_on_oom(work)

    def test_other_errors_are_not_swallowed(self):
        tried = []

        def work(compiled):
            tried.append(compiled)
            raise jax.errors.JaxRuntimeError("INTERNAL: something else")

        with self.assertRaisesRegex(jax.errors.JaxRuntimeError, "INTERNAL"):
            toy.simulate("fedavg", plan=(4, 1))._retry_on_oom(work)
        self.assertLen(tried, 1)

    def test_through_a_simulation(self):
        """The first dispatch fails after it was started; the next plan takes over and comes to the same end."""
        sim = toy.simulate("fedavg", plan=(5, 1))
        real = sim.compiled.programs.run_resident_rounds

        def fails(*_):
            raise jax.errors.JaxRuntimeError(FULL)

        class Failing:
            lower = staticmethod(real.lower)
            __call__ = staticmethod(fails)

        sim.compiled = dataclasses.replace(sim.compiled, programs=sim.compiled.programs._replace(run_resident_rounds=Failing()))
        state = sim.init(0)
        with self.assertLogs("fedjax_core", "WARNING") as logs:
            state, records = sim.run_rounds(state, 2)
        self.assertEqual([r.getMessage() for r in logs.records], [f"5 clients at once do not fit ({FULL}); trying 3"])
        self.assertEqual(sim.spec.plan, Plan(3, 1))
        self.assertEqual([r["round"] for r in records], [1, 2])
        chex.assert_trees_all_close(jax.device_get(state), toy.reference("fedavg")[2], atol=1e-5, rtol=1e-5)

    @parameterized.parameters((200, 0, None), (150, 0, "it needs 0.0 GiB of 0.0 GiB"), (200, 40, "it needs 0.0 GiB of 0.0 GiB"))
    def test_too_large(self, limit, beside, expected):
        analysis = SimpleNamespace(
            temp_size_in_bytes=100, argument_size_in_bytes=50, output_size_in_bytes=30, alias_size_in_bytes=20
        )
        compiled = SimpleNamespace(memory_analysis=lambda: analysis)
        found = dispatch.too_large_reason(compiled, limit, beside)
        if expected is None:
            self.assertIsNone(found)
        else:
            self.assertStartsWith(found, expected)
