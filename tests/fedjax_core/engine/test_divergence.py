"""What is not finite ends a round by name; what is out of all proportion is said. One method that breaks wherever it is told to."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Algorithm, ClientOutput
from fedjax_core.engine import client_loop, divergence, simulator
from fedjax_core.training import aggregators
from tests import toy

LOSS, UPLINK, STATE, SERVER, LARGE = 1, 2, 4, 8, 16
ALL = -1


def breaking(task):
    """`what` breaks at client `who`. Server and clients keep an infinity on purpose."""

    def client_update(sent, client, data, key):
        def unless(what, value):
            return jnp.where((sent["what"] & what > 0) & sent["mine"], value, 1.0)

        uplink = {"delta": {"a": jnp.ones(3), "b": jnp.stack([unless(UPLINK, jnp.inf), unless(LARGE, -1e30)])}, "rows": data.size}
        return ClientOutput(client | {"kept": unless(STATE, jnp.nan)}, uplink, {"loss": (unless(LOSS, jnp.nan), jnp.float32(1))})

    def server_update(server, collected, cohort, key):
        return server | {"kept": jnp.where(server["what"] & SERVER > 0, jnp.nan, 1.0)}, {}

    return Algorithm(
        server_init=lambda key: {"what": jnp.int32(0), "who": jnp.int32(ALL), "kept": jnp.zeros(()), "never": jnp.float32(jnp.inf)},
        client_update=client_update,
        server_update=server_update,
        collect={"delta": aggregators.mean(), "rows": aggregators.stack},
        predict={"personal": lambda sent, client, x: {"logits": jnp.tile(client["kept"], (len(x), task.classes))}},
        client_init=lambda key, server, i: {"kept": jnp.zeros(()), "never": jnp.float32(jnp.inf)},
        broadcast=lambda server, i: {"what": server["what"], "mine": (server["who"] == i) | (server["who"] == ALL)},
    )


@functools.cache
def made():
    groups = simulator.one_group(breaking, toy.task(), toy.CLIENTS)
    settings = {"evaluation": simulator.Evaluation(("own",)), "rounds_per_dispatch": 3, "plan": client_loop.Plan(1, 1)}
    return simulator.Simulator(simulator.build_spec(groups, toy.data(), **settings))


def start(what, who):
    """Before a round in which `what` breaks at `who`."""
    sim = made()
    state = sim.init(0)
    return sim, state._replace(server=state.server | sim.compiled.put({"what": np.int32(what), "who": np.int32(who)}))


class FaultsTest(chex.TestCase):
    @parameterized.parameters(
        (LOSS, 2, "^round 1: the training loss of client 2 is not finite; try a lower learning rate, or clip gradients$"),
        (UPLINK, 5, "^round 1: the uplink of client 5 is not finite; "),
        (STATE, 0, "^round 1: the state of client 0 is not finite; "),
        (LOSS | UPLINK | STATE, 7, "^round 1: the training loss, the uplink and the state of client 7 are not finite; "),
        (
            LOSS | UPLINK,
            ALL,
            "^round 1: the training loss and the uplink of all 8 clients of the cohort are not finite; the cause may",
        ),
        (SERVER, 0, "^round 1: the server's new state is not finite, though all that clients sent is; "),
    )
    def test_a_round_says_what_is_not_finite_and_of_whom(self, what, who, message):
        sim, state = start(what, who)
        with self.assertRaisesRegex(simulator.Diverged, message):
            sim.run_rounds(state, 3)

    def test_infinities_that_a_method_keeps_are_none(self):
        sim, state = start(0, ALL)
        state, records = sim.run_rounds(state, 3)
        self.assertLen(records, 3)
        self.assertTrue(np.isinf(state.server["never"]))
        sim.evaluate(state)

    def test_some_of_many_are_counted(self):
        seen = divergence.ClientChecks(np.array([1, 0, 1, 1, 0]), np.zeros((5, 1)))
        with self.assertRaisesRegex(simulator.Diverged, r"the training loss of 3 of 4 clients \(3, 6, 9\) is not finite"):
            divergence.raise_if_diverged(np.array([9, -1, 3, 6, 4]), seen, False, 1)

    def test_a_round_that_leaves_everybody_out_ends(self):
        for left_out, present in ((0, 0), (2, 3)):
            divergence.raise_if_all_left_out(left_out, present, 1, None)
        for present, who in ((3, "all 3 clients"), (1, "the one client")):
            with self.assertRaisesRegex(simulator.Diverged, f"round 1: {who} of the cohort sent or kept something that is not"):
                divergence.raise_if_all_left_out(present, present, 1, None)

    def test_scores_of_who_is_absent_are_not_checked(self):
        scores = {"personal": {"loss": (np.array([np.nan, 1.0]), np.ones(2))}}
        divergence.raise_if_scores_diverged(scores, np.array([-1, 3]), "its examples", 1, None)
        with self.assertRaisesRegex(simulator.Diverged, "the personal model of client 2 on its examples is not finite"):
            divergence.raise_if_scores_diverged(scores, np.array([2, 3]), "its examples", 1, None)

    def test_a_score_says_whose_model_is_not_finite(self):
        sim, state = start(0, ALL)
        kept = state.clients[0]["kept"].at[3].set(jnp.nan)
        with self.assertRaisesRegex(
            simulator.Diverged, "^round 0: the loss of the personal model of client 3 on its own test examples is not finite"
        ):
            sim.evaluate(state._replace(clients=({**state.clients[0], "kept": kept},)))

    @parameterized.parameters(
        ([0.5, -1.0, 2.0], divergence.ADVICE),  # which any rate can learn
        (
            [250_000.0, 150_000.0, 350_000.0],
            "the targets have mean 2.5e+05 and deviation 8.165e+04: train on (y - 2.5e+05) / 8.165e+04",
        ),
        ([1e6, 1e6, 1e6], "(y - 1e+06) / 1"),
        ([[0.0, 1.0, -300.0], [1.0, 0.0, 300.0]], "number 2 of the targets has mean 0 and deviation 300: train on (y - 0) / 300"),
    )
    def test_numbers_that_lie_far_from_0_are_named_with_their_scale(self, y, advice):
        y = np.array(y, np.float32).reshape(len(y), -1)
        self.assertIn(advice, divergence.advice_for(y))
        with self.assertRaises(simulator.Diverged) as raised:
            divergence.raise_if_diverged(np.array([0]), divergence.ClientChecks(np.array([1]), np.zeros((1, 1))), False, 1, y)
        self.assertIn(advice, str(raised.exception))
        self.assertEqual("lower learning rate" in str(raised.exception), advice == divergence.ADVICE)

    def test_classes_have_no_scale(self):
        self.assertEqual(divergence.advice_for(np.array([0, 250_000])), divergence.ADVICE)
        self.assertEqual(divergence.advice_for(None), divergence.ADVICE)

    def test_an_outlier_is_said_once(self):
        """A client's rows count for nothing here: integers are not looked at, and parts are compared with themselves."""
        sim, state = start(LARGE, 6)
        sim._known_outliers.clear()
        with self.assertLogs("fedjax_core", "WARNING") as logs:
            sim.run_rounds(state, 3)
        self.assertEqual(
            [r.getMessage() for r in logs.records],
            ["round 1: what client 6 sent is 1e+30 times as large as the cohort's median; look at its data, or clip"],
        )

    @parameterized.parameters(
        ([1.0, 1.0, 1000.0], {}),  # no more than a thousand times
        ([1.0, 2.0, 2001.0], {2: 1000.5}),
        ([0.0, 0.0, 5.0], {}),  # where most send nothing there is no scale
        ([1.0, 5000.0], {}),
    )
    def test_outliers(self, sizes, expected):
        seen = divergence.ClientChecks(np.zeros(len(sizes) + 1), np.array([[9e9], *([size] for size in sizes)]))
        self.assertEqual(divergence.find_outliers(np.arange(-1, len(sizes)), seen), expected)

    def test_nothing_is_counted_of_who_is_absent(self):
        out = ClientOutput({"w": jnp.full(2, jnp.nan)}, {"d": jnp.full(2, jnp.inf)}, {"loss": (jnp.nan, 1.0)})
        for there, expected in ((True, LOSS | UPLINK | STATE), (False, 0)):
            seen = divergence.check_client(out, [out.uplink], {"w": jnp.zeros(2)}, jnp.bool(there))
            self.assertEqual(int(seen.faults), expected)
        self.assertEqual(jax.tree.map(jnp.shape, seen), divergence.ClientChecks((), (1,)))
