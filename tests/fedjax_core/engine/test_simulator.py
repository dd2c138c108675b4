"""What no simulation can be made of is refused, and what a method breaks is named."""

import functools
import re
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.engine import simulator
from fedjax_core.engine.simulator import Evaluation
from methods.fedavg import fedavg
from tests import naive, toy
from tests.fedjax_core.engine.tallied import SGD, N, simulate, tally, two_groups


class RefusalTest(chex.TestCase):
    @parameterized.parameters(((0, 1, 2), (3, 4, 6, 7)), ((0, 1, 2, 3, 5), (3, 4, 6, 7)))
    def test_groups_must_cover_everybody_once(self, first, second):
        with self.assertRaisesRegex(ValueError, r"the groups' clients must be each of 0 \.\.\. 7 once, not \[0, 1, 2, 3, "):
            simulate(None, two_groups(tally, first, second))

    def test_averaging_needs_one_architecture(self):
        build = functools.partial(fedavg, optimizer=SGD)
        with self.assertRaisesRegex(
            ValueError, r"groups 'narrow' and 'wide' .* one architecture .*'bias'\], float32\[6\] against float32\[7\]"
        ):
            simulate(None, [g._replace(build=build) for g in toy.groups(build, mixed=True)])

    @parameterized.parameters(
        (dict(cohort=9), "cohort=9 is neither"),
        (dict(dropout=1.0), r"dropout=1.0 is not in \[0, 1\)"),
        (dict(hold="attic"), "hold='attic' is not one of device, host, disk"),
        (dict(data_on="attic"), "unknown plan.data 'attic'; allowed: device, host, disk"),
        (
            dict(evaluation=Evaluation(("own", "mine"))),
            "scopes has 'mine', which is not one of global, own, post_local, all",
        ),
        (dict(evaluation=Evaluation(batch=0)), "evaluation.batch=0 must be at least 1"),
        (dict(evaluation=Evaluation(clients=0)), "evaluation.clients=0 must be at least 1"),
        (dict(rounds_per_dispatch=0), "rounds_per_dispatch=0 must be at least 1"),
    )
    def test_settings_out_of_range(self, settings, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(tally, **settings)

    @parameterized.parameters(1.5, "1", None, True, -1, 2**32, np.int64(2**40), 2**70)
    def test_a_seed_that_is_none(self, seed):
        """JAX takes 2**32 for 0, -1 for 2**32 - 1, and refuses others without the argument's name."""
        sim = simulate(tally)
        with self.assertRaisesRegex(ValueError, rf"^seed={re.escape(repr(seed))} must be .*in \[0, 2\*\*32\)$"):
            sim.init(seed)
        of_numpy: Any = np.uint8(3)
        chex.assert_trees_all_equal(sim.init(of_numpy), sim.init(3))

    @parameterized.parameters(
        (lambda mine: mine | {"rounds": jnp.int32(1)}, r"at \['rounds'\], float32\[\] against int32\[\]"),
        (lambda mine: mine | {"new": jnp.zeros(2)}, r"at \['new'\], nothing against float32\[2\]"),
        (lambda mine: {"rounds": mine["rounds"], "sent": mine["sent"]}, r"at \['draw'\], float32\[\] against nothing"),
        (lambda mine: mine | {"more": ()}, "against PyTreeDef"),
    )
    def test_a_client_keeps_its_states_structure(self, change, message):
        def build(task):
            inner = tally(task)

            def client_update(*arguments):
                out = inner.client_update(*arguments)
                return out._replace(state=change(out.state))

            return inner._replace(client_update=client_update)

        with self.assertRaisesRegex(ValueError, f"group 'all': client_update must return .* as client_init made it: .*{message}"):
            simulate(build)

    def test_a_pooled_method_has_no_groups(self):
        with self.assertRaisesRegex(ValueError, "a pooled method trains one network; it cannot have groups"):
            simulate(None, two_groups(functools.partial(tally, pooled=True)))

    @parameterized.parameters("device", "host")
    def test_divergence_names_client_and_round(self, hold):
        """Client 3 fails in the third round in which it takes part."""

        def build(task):
            inner = tally(task)

            def client_update(sent, client, data, key):
                out = inner.client_update(sent, client, data, key)
                bad = (sent["mine"] >= 32) & (sent["mine"] < 40)
                return out._replace(metrics={"loss": (jnp.where(bad, jnp.nan, 1.0), jnp.float32(1))})

            return inner._replace(client_update=client_update)

        sim = simulate(build, hold=hold, rounds_per_dispatch=10)
        taken = [r + 1 for r in range(12) if 3 in naive.cohort(0, r, N, 5)]
        with self.assertRaisesRegex(simulator.Diverged, f"^round {taken[2]}: the training loss of client 3 is not finite"):
            sim.run_rounds(sim.init(0), 12)


class ConsumedTest(chex.TestCase):
    def test_a_consumed_state_is_named(self):
        sim = simulate(tally)
        before, _ = sim.run_rounds(sim.init(0), 1)
        copied = jax.tree.map(jnp.copy, before)
        after, _ = sim.run_rounds(before, 1)
        for use in (sim.evaluate, sim.client_scores, sim.to_host, lambda state: sim.run_rounds(state, 1)):
            with self.assertRaisesRegex(
                ValueError, "this state was consumed by run_rounds.*: use the state that run_rounds returned"
            ):
                use(before)
        with self.assertRaisesRegex(ValueError, "consumed by run_rounds"):
            sim.client_view(before, 0)
        again, _ = sim.run_rounds(copied, 1)
        chex.assert_trees_all_equal(again, after)

    def test_a_view_outlives_its_state(self):
        """Also where a predictor reads the round."""

        def build(task):
            predict = lambda sent, client, x: {"logits": jnp.full((len(x), task.classes), client["rounds"] + task.round_num)}
            return tally(task, predict={"personal": predict})

        sim = simulate(build)
        state, _ = sim.run_rounds(sim.init(0), 2)
        view, x = sim.client_view(state, 3), sim.spec.data.test.x[:2]
        before = view.predict("personal", view.holds["personal"], x)
        sim.run_rounds(state, 2)
        chex.assert_trees_all_equal(view.predict("personal", view.holds["personal"], x), before)
        self.assertEqual(view.task.round_num, 2)


class OtherStateTest(chex.TestCase):
    def test_a_state_of_another_simulation_is_named(self):
        """JAX reads beyond the clients of an array that is too short: it takes the last one's for them."""
        sim = simulate(tally)
        state = sim.init(0)
        fewer = state._replace(clients=jax.tree.map(lambda leaf: leaf[:3], state.clients))
        with self.assertRaisesRegex(
            ValueError, rf"not one of this simulation: state\.clients\[0\]\S* has the shape \(3.*, must be \({N}"
        ):
            sim.run_rounds(fewer, 1)
        with self.assertRaisesRegex(
            ValueError, "not one of this simulation: it has other entries, as of another method or network"
        ):
            sim.evaluate(state._replace(server=()))
        rerun = simulate(tally)  # of the same settings
        chex.assert_trees_all_equal(rerun.run_rounds(jax.tree.map(jnp.copy, state), 1)[0], sim.run_rounds(state, 1)[0])


class PastCohortsTest(chex.TestCase):
    @parameterized.parameters(
        (None, {}),
        (None, {"dropout": 0.4}),
        (two_groups(tally), {"dropout": 0.4}),
        (None, {"sampling": "poisson"}),
    )
    def test_they_are_those_that_the_server_saw(self, groups, settings):
        sim = simulate(tally, groups, **settings)
        self.assertEqual(sim.past_cohorts(sim.init(0)), [])
        state, records = sim.run_rounds(sim.init(0), 5)
        cohorts = sim.past_cohorts(state)
        self.assertEqual([len(cohort) for cohort in cohorts], [record["cohort"] for record in records])
        seen = np.bincount(np.concatenate(cohorts), minlength=N)
        np.testing.assert_array_equal(seen, state.server["seen"])
