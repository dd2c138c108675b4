"""PromptFL: uniform FedAvg of the prompts of a frozen CLIP."""

import chex
import jax
from absl.testing import parameterized

from fedjax_core import experiment
from methods.promptfl import promptfl
from tests import naive, toy
from tests.methods.test_fedper import made


class PromptFLTest(chex.TestCase):
    def test_is_the_loop(self):
        """In the loop clients train whole networks, whose encoders get no gradient."""
        sim, before, after = toy.reference("promptfl")
        model, frozen = toy.prompted_clip(), toy.task_with_class_texts().frozen.params
        params = frozen | before.server.net.params
        for r in range(2):
            deltas = []
            for i in naive.cohort(0, r, toy.CLIENTS, sim.spec.sampler.slots):
                x, y = naive.rows(toy.data())[i]
                end = naive.train(
                    model, params, {}, x, y, naive.client_key(0, r, i), epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5
                )
                chex.assert_trees_all_equal(end.params["clip"], frozen["clip"])
                deltas.append(naive.minus(end.params, params))
            params = naive.plus(params, naive.mean(deltas, [1] * len(deltas)))
        chex.assert_trees_all_close(after.server.net.params, {"prompts": params["prompts"]}, atol=1e-5)

    def test_clients_send_prompts_alone(self):
        sim, _, after = toy.reference("promptfl")
        numbers = toy.PROMPTS * toy.CLIP_WIDTHS["hidden_size"]
        self.assertEqual((sim.spec.shapes.down, sim.spec.shapes.up), (4 * numbers, 4 * numbers))
        self.assertEmpty(jax.tree.leaves(after.clients))

    @parameterized.parameters((toy.task, "trains body, head; it must train prompts"), (toy.task_in_part, "trains head, prompts"))
    def test_needs_a_network_that_trains_prompts_alone(self, task, message):
        with self.assertRaisesRegex(ValueError, message):
            made(promptfl)(task())

    @parameterized.parameters(
        ({"train": "all"}, "train='all'.*'prompts'"),
        ({"adapter": "lora(rank=2)"}, "adapter='lora"),
        ({"normalise": "unit"}, "normalise='unit'.*'clip'"),
        ({"models": ("clip(text='a photo')",)}, "text='a photo' must have one {}, for the name of a class"),
        ({"models": ("clip(folder='no_such')",)}, "no_such"),
    )
    def test_configs_that_clip_cannot_have(self, changes, message):
        config = experiment.load_config("promptfl:smoke")
        with config.unlocked(), self.assertRaisesRegex((ValueError, OSError), message):
            for field, value in changes.items():
                config.update_from_flattened_dict({field: value})
            experiment.build(config)

    def test_rows_are_no_images(self):
        with self.assertRaisesRegex(ValueError, "model 'clip' reads images .* examples have the shape \\(5,\\)"):
            experiment.build(experiment.load_config("promptfl:smoke"), toy.data())
