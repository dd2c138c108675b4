"""FedBABU against its algorithm box in loops, and its limits."""

import chex
import jax
from absl.testing import parameterized

from methods.fedbabu import fedbabu
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import STEPS, made, one, oracle, personalise_key, personalised, simulate, there


def body(params, stats, x, y, key):
    return naive.train(MODEL, params, stats, x, y, key, epochs=2, chosen=("body",), **STEPS)


class FedBABUTest(chex.TestCase):
    def test_equals_the_algorithm_box(self):
        _, _, after = toy.reference("fedbabu")
        shared, stats, _ = oracle(2, body)
        chex.assert_trees_all_close(there(after.server.params), shared, atol=2e-6)
        chex.assert_trees_all_close(after.server.stats, stats[0], atol=2e-6)

    def test_the_head_stays_as_it_was_bit_for_bit(self):
        _, _, after = toy.reference("fedbabu")
        head = MODEL.init(naive.stream(0, naive.INIT)).params["head"]
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_equal(one(after.clients[0].params, i)["head"], jax.device_get(head))

    def test_fine_tuning_is_training_at_a_lower_rate(self):
        shared, stats, mine = oracle(2, body)
        slower = STEPS | {"lr": 0.5 * STEPS["lr"]}
        for i in (0, 3):
            end = naive.train(MODEL, shared | mine[i], stats[i], *naive.rows(toy.data())[i], personalise_key(i), epochs=1, **slower)
            w_b, w_p = personalised("fedbabu", i)
            chex.assert_trees_all_close(there(w_b.params) | there(w_p.params), end.params, atol=5e-6)

    def test_a_part_alone_is_fine_tuned(self):
        _, _, after = toy.reference("fedbabu")
        for part, frozen in (("head", "body"), ("body", "head")):
            sim = simulate(made(fedbabu, finetune_epochs=1, finetune_rate=1.0, finetune_part=part))
            w_b, w_p = sim.client_view(sim.compiled.put(after), 0).holds["personal"]
            moved = there(w_b.params) | there(w_p.params)
            before = there(after.server.params) | there(one(after.clients[0].params, 0))
            chex.assert_trees_all_equal(jax.device_get(moved[frozen]), before[frozen])
            self.assertGreater(abs(moved[part]["kernel"] - before[part]["kernel"]).max(), 1e-4)

    def test_without_fine_tuning_the_body_and_the_fixed_head_are_scored(self):
        sim = simulate(made(fedbabu, finetune_epochs=0))
        _, _, after = toy.reference("fedbabu")
        held = jax.device_get(sim.client_view(sim.compiled.put(after), 2).holds["personal"])
        chex.assert_trees_all_equal(held, (after.server, one(after.clients[0], 2)))

    def test_what_travels(self):
        shapes = toy.reference("fedbabu")[0].spec.shapes
        self.assertEqual((shapes.down, shapes.up), (4 * (36 + 5), 4 * (36 + 5)))

    @parameterized.parameters(
        (dict(finetune_rate=0.0), "finetune_rate=0.0 positive"),
        (dict(finetune_part="heads"), "finetune_part='heads' is not one of 'all', 'head', 'body'"),
        (dict(finetune_epochs=-1), "finetune_epochs=-1"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(fedbabu, **arguments))
