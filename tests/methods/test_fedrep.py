"""FedRep against its algorithm box in loops, and its limits."""

import chex
import jax
import numpy as np

from methods.fedavg import fedavg
from methods.fedbabu import fedbabu
from methods.fedrep import fedrep
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import STEPS, first_round, made, one, oracle, personalise_key, personalised, simulate, there

HEAD = 0x68656164


def phases(params, stats, x, y, key):
    """Two epochs of the head, then one of the body."""
    h = naive.train(MODEL, params, stats, x, y, jax.random.fold_in(key, HEAD), epochs=2, chosen=("head",), **STEPS)
    return naive.train(MODEL, h.params, h.stats, x, y, key, epochs=1, chosen=("body",), **STEPS)


class FedRepTest(chex.TestCase):
    def test_equals_the_algorithm_box(self):
        _, _, after = toy.reference("fedrep")
        shared, stats, mine = oracle(2, phases)
        chex.assert_trees_all_close(there(after.server.params), shared, atol=2e-6)
        chex.assert_trees_all_close(after.server.stats, stats[0], atol=2e-6)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(there(one(after.clients[0].params, i)), mine[i], atol=2e-6)

    def test_without_body_epochs_the_body_never_changes(self):
        _, before, out = first_round(fedrep, head_epochs=1, body_epochs=0)
        self.assertFalse(any(np.any(leaf) for leaf in jax.tree.leaves(out.uplink.params)))
        self.assertGreater(np.abs(out.state.params["head"]["bias"] - before.params["head"]["bias"]).max(), 1e-3)

    def test_without_head_epochs_it_is_fedbabu(self):
        out, expected = first_round(fedrep, head_epochs=0, body_epochs=2)[2], first_round(fedbabu, epochs=2)[2]
        chex.assert_trees_all_equal((out.uplink, out.state), (expected.uplink, expected.state))

    def test_without_a_head_it_is_fedavg_of_the_body_epochs(self):
        out = first_round(fedrep, personal=(), head_epochs=3, body_epochs=2)[2]
        chex.assert_trees_all_close(out.uplink, first_round(fedavg, epochs=2)[2].uplink, atol=1e-7)

    def test_heads_are_trained_again_before_scores(self):
        shared, stats, mine = oracle(2, phases)
        for i in (0, 3):
            x, y = naive.rows(toy.data())[i]
            end = naive.train(MODEL, shared | mine[i], stats[i], x, y, personalise_key(i), epochs=1, chosen=("head",), **STEPS)
            body, head = personalised("fedrep", i)
            chex.assert_trees_all_close(there(body.params) | there(head.params), end.params, atol=5e-6)
            self.assertGreater(np.abs(head.params["head"]["bias"] - mine[i]["head"]["bias"]).max(), 1e-4)

    def test_bad_epochs(self):
        for name in ("head_epochs", "body_epochs", "finetune_epochs"):
            with self.assertRaisesRegex(ValueError, f"^{name}=-1 must be at least 0$"):
                simulate(made(fedrep, **{name: -1}))

    def test_without_a_head_none_is_fine_tuned(self):
        with self.assertRaisesRegex(ValueError, r"^personal=\(\) and finetune_epochs=1: there is no head to fine-tune"):
            simulate(made(fedrep, personal=(), finetune_epochs=1))

    def test_what_travels(self):
        shapes = toy.reference("fedrep")[0].spec.shapes
        self.assertEqual((shapes.down, shapes.up), (4 * (36 + 5), 4 * (36 + 5)))
