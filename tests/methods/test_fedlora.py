"""FedLoRA: FedIT, then a loop over each client's rows."""

import chex
import numpy as np
from absl.testing import parameterized

from methods.fedlora import fedlora
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedavg import oracle as fedavg_after
from tests.methods.test_fedper import STEPS, made, personalise_key, personalised, simulate


class FedLoRATest(chex.TestCase):
    def test_training_is_fedits(self):
        chex.assert_trees_all_equal(toy.reference("fedlora")[2].server.net, toy.reference("fedit")[2].server.net)

    def test_tuning_equals_the_loop(self):
        w = fedavg_after(0, 2, weights="uniform", lr=0.1, momentum=0.5)
        for i in (0, 3):
            end = naive.train(MODEL, *w, *naive.rows(toy.data())[i], personalise_key(i), epochs=1, **STEPS)
            chex.assert_trees_all_close(tuple(personalised("fedlora", i)[0]), (end.params, end.stats), atol=5e-6)

    def test_without_tuning_fedits_model_is_scored(self):
        _, _, after = toy.reference("fedlora")
        sim = simulate(made(fedlora, finetune_epochs=0))
        scores = sim.client_scores(sim.compiled.put(after))["own"]
        chex.assert_trees_all_equal(scores["personal"], scores["global"])
        self.assertTrue(np.isfinite(scores["global"]["loss"][0]).all())

    @parameterized.parameters((dict(finetune_epochs=-1), "finetune_epochs=-1"), (dict(weights="sample"), "weights='sample'"))
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(fedlora, **arguments))
