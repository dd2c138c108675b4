"""One contract for all methods. A newcomer adds a line to `toy.METHODS`."""

import functools
import tempfile

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.engine import parallel
from fedjax_core.storage import checkpoint
from tests import toy

EVERY = [(name, name) for name in toy.METHODS if name != "fedavg_uniform"]  # which is FedIT without an adapter


@functools.cache
def on_host(name):
    """The same method under the other plan: client states on the host, two clients at once on each of two devices, more padding.

    Its compiled round is a function of the cohort and its states.
    """
    sim = toy.simulate(name, plan=(2, 2), hold="host")
    toy.pad(sim)
    state, _ = sim.rounds(sim.init(0), 2)
    return sim, state, [jax.tree.map(np.copy, (store.rows, store.touched)) for store in sim._stores]


def one_round(name):
    """(drawn, client states) -> (server, states, record); and a cohort drawn for it. All from the state before round 1."""
    sim, state, _ = on_host(name)
    _, before, _ = toy.reference(name)
    start = sim.put(before)._replace(clients=state.clients)
    drawn = sim._draw(sim.held, start.key, start.round)
    rows = [
        jax.tree.map(lambda x, p=p: jnp.take(x, p, axis=0, mode="clip"), s) for s, (_, p) in zip(before.clients, drawn, strict=True)
    ]
    spread = parallel.spread(sim.mesh)
    touched = jax.device_put([np.ones(len(p), bool) for _, p in drawn], spread)

    def run(drawn, rows):
        drawn, rows = sim.put(drawn), jax.device_put(rows, spread)  # where the round expects them: else it would compile anew
        after, rows, record = sim._host_round[False](sim.held, start, start.server, drawn, rows, touched)
        return after.server, rows, record

    return run, drawn, rows


class EveryMethodTest(chex.TestCase):
    @parameterized.named_parameters(EVERY)
    def test_two_rounds_one_trace_no_transfer(self, name):
        sim, before, after = toy.reference(name)
        state = sim.put(before)
        two = sim.put(np.int32(2))
        with jax.transfer_guard("disallow"):
            state, _ = sim._many(sim.held, state, two)  # traces anew if another test has cleared jax's caches
            traces = sim._many._cache_size()
            for _ in range(2):
                state, _ = sim._many(sim.held, state, two)
        self.assertEqual(sim._many._cache_size(), traces)
        self.assertEqual(int(state.round), 6)
        chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
        self.assertEqual(jax.tree.structure(before), jax.tree.structure(jax.device_get(state)))

    @parameterized.named_parameters(EVERY)
    def test_something_is_learnt_and_runs_repeat_bit_for_bit(self, name):
        sim, before, after = toy.reference(name)
        again, _ = sim.rounds(sim.put(before), 2)
        chex.assert_trees_all_equal(jax.device_get(again), after)
        moved = jax.tree.map(lambda a, b: np.abs(np.subtract(a, b, dtype=np.float64)).max(initial=0), before[:2], after[:2])
        self.assertGreater(max(jax.tree.leaves(moved)), 1e-3)
        self.assertTrue(all(np.isfinite(np.asarray(x, np.float64)).all() for x in jax.tree.leaves(after)))

    @parameterized.named_parameters(EVERY)
    def test_plans_and_places_agree_and_padding_is_invisible(self, name):
        """States on the host, two clients at once on each of two devices, more padding, against one after another on one."""
        _, before, after = toy.reference(name)
        _, state, stores = on_host(name)
        chex.assert_trees_all_close(jax.device_get(state.server), after.server, atol=1e-5, rtol=1e-5)
        for (held, touched), rows, first in zip(stores, after.clients, before.clients, strict=True):
            for mine, theirs, untouched in zip(*map(jax.tree.leaves, (held, rows, first)), strict=True):
                np.testing.assert_allclose(mine[touched], theirs[touched], atol=1e-5, rtol=1e-5)
                np.testing.assert_array_equal(theirs[~touched], untouched[~touched])

    @parameterized.named_parameters(EVERY)
    def test_order_of_the_cohort_is_irrelevant(self, name):
        run, drawn, rows = one_round(name)
        server, after, _ = run(drawn, rows)
        flip = functools.partial(jax.tree.map, lambda x: x[::-1])
        server2, after2, _ = run(flip(drawn), flip(rows))
        chex.assert_trees_all_close(server, server2, atol=1e-5, rtol=1e-5)
        chex.assert_trees_all_close(after, flip(after2), atol=1e-6, rtol=1e-6)

    @parameterized.named_parameters(EVERY)
    def test_an_absent_client_changes_nothing(self, name):
        """A client that drops out, whose state holds NaN, leaves the round as if it had not been sampled."""
        run, drawn, rows = one_round(name)
        if toy.reference(name)[0].cohort == 1:
            self.skipTest("a pooled method has one client")
        gone = [(Cohort(c.ids, c.examples.at[0].set(0)), p) for c, p in drawn]
        poison = lambda x: jnp.nan if jnp.issubdtype(x.dtype, jnp.inexact) else 99  # a place in a queue is no float
        poisoned = [jax.tree.map(lambda x: x.at[0].set(poison(x)), r) for r in rows]
        server, after, record = run(gone, poisoned)
        empty = [(Cohort(c.ids.at[0].set(toy.CLIENTS), c.examples.at[0].set(0)), p.at[0].set(10**6)) for c, p in drawn]
        server2, after2, record2 = run(empty, rows)
        chex.assert_trees_all_equal(server, server2)
        rest = functools.partial(jax.tree.map, lambda x: x[1:])
        chex.assert_trees_all_equal(rest(after), rest(after2))
        chex.assert_trees_all_equal(record, record2)
        for x in jax.tree.leaves(after):  # its own state: untouched
            np.testing.assert_array_equal(x[0], poison(x))

    @parameterized.named_parameters(EVERY)
    def test_a_checkpoint_goes_on_where_it_was_left(self, name):
        sim, before, _ = toy.reference(name)
        state, _ = sim.rounds(sim.put(before), 1)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        store = checkpoint.Checkpoints(directory.name)
        store.save(1, sim.snapshot(state))
        like = jax.tree.map(np.zeros_like, sim.snapshot(state))
        saved, _ = store.restore(1, like)
        a, _ = sim.rounds(state, 2)
        b, _ = sim.rounds(sim.restore(saved), 2)
        chex.assert_trees_all_equal(jax.device_get(a), jax.device_get(b))

    @parameterized.named_parameters(EVERY)
    def test_the_round_exports_for_every_platform(self, name):
        sim, before, _ = toy.reference(name)
        state = sim.put(before)
        exported = jax.export.export(sim._many, platforms=("cpu", "tpu", "cuda"))(sim.held, state, sim.put(np.int32(1)))
        self.assertEqual(exported.platforms, ("cpu", "tpu", "cuda"))

    @parameterized.named_parameters(EVERY)
    def test_scores_cover_every_predictor(self, name):
        sim, _, after = toy.reference(name)
        scores = sim.evaluate(sim.put(after))
        for model in sim._algorithm(0, sim._held_on_host, 0).predict:
            self.assertIn(f"test/{model}/own/accuracy/mean", scores)
        self.assertTrue(all(0 <= v <= 1 for k, v in scores.items() if "accuracy" in k))


class EnginePlansTest(chex.TestCase):
    @parameterized.named_parameters(
        (f"{name}_{chunk}x{devices}", name, (chunk, devices))
        for name, chunk, devices in [
            *(("fedavg", *plan) for plan in [(5, 1), (3, 1), (1, 8), (2, 3)]),
            *((name, 2, 2) for name in ("scaffold", "fedhe_mixed", "fedamp", "fedskc")),
        ]
    )
    def test_states_on_the_devices_agree_under_more_plans(self, name, plan):
        _, before, after = toy.reference(name)
        sim = toy.simulate(name, plan=plan)
        toy.pad(sim)
        state, _ = sim.rounds(sim.put(before), 2)
        chex.assert_trees_all_close(jax.device_get(state), after, atol=1e-5, rtol=1e-5)

    @parameterized.parameters("scaffold", "fedhe_mixed")
    def test_states_on_the_host_are_those_on_the_device(self, name):
        """Under one plan: to rounding of one program in another."""
        _, _, after = toy.reference(name)
        sim = toy.simulate(name, hold="host")
        state, _ = sim.rounds(sim.init(0), 2)
        chex.assert_trees_all_close(jax.device_get(state.server), after.server, atol=1e-6, rtol=1e-6)
        for store, rows in zip(sim._stores, after.clients, strict=True):
            for mine, theirs in zip(jax.tree.leaves(store.rows), jax.tree.leaves(rows), strict=True):
                np.testing.assert_allclose(mine[store.touched], theirs[store.touched], atol=1e-6, rtol=1e-6)
