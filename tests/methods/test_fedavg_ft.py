"""FedAvg with fine-tuning before scores: FedAvg, then a loop over each client's rows."""

import dataclasses

import chex
import jax
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Net
from methods.fedavg_ft import fedavg_ft
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedavg import oracle as fedavg_after
from tests.methods.test_fedper import STEPS, made, personalise_key, personalised, simulate


class FedAvgFTTest(chex.TestCase):
    def test_training_is_fedavgs(self):
        chex.assert_trees_all_close(toy.reference("fedavg_ft")[2].server.net, toy.reference("fedavg")[2].server.net, atol=1e-7)

    def test_fine_tuning_equals_the_loop(self):
        w = fedavg_after(0, 2, weights="samples", lr=0.1, momentum=0.5)
        slower = STEPS | {"lr": 0.5 * STEPS["lr"]}
        for i in (0, 3):
            end = naive.train(MODEL, *w, *naive.rows(toy.data())[i], personalise_key(i), epochs=1, **slower)
            chex.assert_trees_all_close(tuple(personalised("fedavg_ft", i)[0]), (end.params, end.stats), atol=5e-6)

    def test_a_part_alone(self):
        _, _, after = toy.reference("fedavg_ft")
        sim = simulate(made(fedavg_ft, finetune_epochs=2, finetune_part="head"))
        w, _ = jax.device_get(sim.client_view(sim.compiled.put(after), 0).holds["personal"])
        chex.assert_trees_all_equal(w.params["body"], after.server.net.params["body"])
        self.assertGreater(np.abs(w.params["head"]["bias"] - after.server.net.params["head"]["bias"]).max(), 1e-3)

    def test_the_part_of_a_network_without_a_head_is_refused(self):
        model = toy.task().model
        headless = model._replace(init=lambda key: Net({"dense": model.init(key).params["body"]}, {}))
        task = dataclasses.replace(toy.task(), network=lambda frozen: headless)
        with self.assertRaisesRegex(ValueError, "finetune_part='head': the network has no entry 'head', only dense"):
            made(fedavg_ft, finetune_part="head")(task)

    def test_without_epochs_the_servers_model_is_scored(self):
        _, _, after = toy.reference("fedavg_ft")
        sim = simulate(made(fedavg_ft, finetune_epochs=0))
        scores = sim.client_scores(sim.compiled.put(after))["own"]
        chex.assert_trees_all_equal(scores["personal"], scores["global"])

    def test_the_global_score_is_not_fine_tuned(self):
        sim, _, after = toy.reference("fedavg_ft")
        scores, plain = sim.client_scores(sim.compiled.put(after))["own"], toy.reference("fedavg")
        chex.assert_trees_all_close(
            scores["global"], plain[0].client_scores(plain[0].compiled.put(plain[2]))["own"]["global"], atol=1e-5
        )
        self.assertFalse(np.allclose(scores["global"]["loss"][0], scores["personal"]["loss"][0]))

    @parameterized.parameters(
        (dict(finetune_rate=-1.0), "finetune_rate=-1.0 positive"),
        (dict(finetune_part="none"), "finetune_part='none' is not one of 'all', 'head', 'body'"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(fedavg_ft, **arguments))
