"""FedDF in loops over clients, public batches and architectures; and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from configs import feddf as config
from fedjax_core import experiment
from fedjax_core.algorithm import Cohort, Examples, Net
from fedjax_core.testing.case import Case
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.feddf import feddf
from tests import naive, toy
from tests.methods.test_fedper import STEPS

SERVER = 5  # stream
NARROW, WIDE = (toy.task_with_public(width).model for width in (6, 7))
PUBLIC = toy.task_with_public().public


def oracle(models, rounds):
    """The server's network of each architecture; client i has the one at i modulo their number."""
    clients = naive.rows(toy.data())
    nets = [tuple(model.init(naive.stream(0, naive.INIT))) for model in models]
    for r in range(rounds):
        came, share, logits = [[] for _ in models], [[] for _ in models], []
        for i in naive.cohort(0, r, len(clients), 5):
            g = i % len(models)
            w_i = naive.train(models[g], *nets[g], *clients[i], naive.client_key(0, r, i), epochs=2, **STEPS)[:2]
            came[g].append(w_i)
            share[g].append(len(clients[i][1]))
            logits.append(models[g].apply(Net(*w_i), PUBLIC.x)[0]["logits"])
        teacher = sum(logits) / len(logits)
        for g, model in enumerate(models):
            average = naive.mean(came[g], share[g]) if came[g] else nets[g]
            nets[g] = naive.distil(model, *average, PUBLIC.x, teacher, naive.stream(0, SERVER, r), 2.0)
    return nets


def built(task, **arguments):
    return feddf(task, **{"optimizer": local_training.sgd(0.1), "server_epochs": 2, "server_batch": 4} | arguments)


class FedDFTest(chex.TestCase):
    @parameterized.named_parameters(("one", "feddf", [NARROW]), ("two", "feddf_mixed", [NARROW, WIDE]))
    def test_equals_the_loops(self, name, models):
        nets = toy.reference(name)[2].server.nets
        self.assertLen(nets, len(models))
        for net, expected in zip(nets, oracle(models, 2), strict=True):
            chex.assert_trees_all_close(tuple(net), expected, atol=5e-5)

    def test_without_distillation_it_is_fedavg(self):
        found = []
        for method in (functools.partial(feddf, server_epochs=0), fedavg):
            sim = Case(functools.partial(method, epochs=2, batch=toy.BATCH), task=toy.task_with_public).simulate()
            found.append(jax.device_get(sim.run_rounds(sim.init(0), 2)[0].server))
        chex.assert_trees_all_close(found[0].nets[0], found[1].net, atol=1e-6)

    def test_who_does_not_come_teaches_nothing(self):
        """And without anybody no network moves, whatever is collected."""
        task = toy.task_with_public()
        algorithm = built(task.bind(jax.device_put(task.bound_arrays), 0))
        server = algorithm.server_init(jax.random.key(0))
        delta, logits = algorithm.collect
        for part in (delta, logits):
            for x in jax.tree.leaves(part.map(server.nets[0], Cohort(jnp.int32(1), jnp.int32(0)))):
                np.testing.assert_array_equal(x, 0)
        collected = jax.tree.map(jnp.zeros_like, server.nets), jnp.ones((toy.PUBLIC, toy.CLASSES + 2))
        update = jax.jit(algorithm.server_update)
        nobody, kl = update(server, collected, Cohort(jnp.arange(2), jnp.zeros(2, jnp.int32)), jax.random.key(1))
        chex.assert_trees_all_equal(nobody, server)
        self.assertEqual(float(kl["distillation"][1]), 0)
        somebody, kl = update(server, collected, Cohort(jnp.arange(2), jnp.ones(2, jnp.int32)), jax.random.key(1))
        self.assertGreater(
            float(jnp.abs(somebody.nets[0].params["head"]["bias"] - server.nets[0].params["head"]["bias"]).max()), 1e-4
        )
        self.assertEqual(float(kl["distillation"][1]), 2 * toy.PUBLIC)

    def test_an_architecture_of_which_nobody_came_is_taught_too(self):
        sim, before, _ = toy.reference("feddf_mixed")
        algorithm, server = sim.spec.algorithm(0, sim.compiled.device_arrays, 0), jax.tree.map(jnp.asarray, before.server)
        delta, logits = algorithm.collect
        client = Cohort(jnp.int32(0), jnp.int32(3))  # of the first one
        nothing = jax.tree.map(jnp.zeros_like, server.nets[0])
        collected = delta.finalize(delta.map(nothing, client)), logits.finalize(logits.map(server.nets[0], client))
        chex.assert_trees_all_equal(collected[0], jax.tree.map(jnp.zeros_like, server.nets))
        after, _ = jax.jit(algorithm.server_update)(server, collected, Cohort(*(x[None] for x in client)), jax.random.key(1))
        for net, old in zip(after.nets, server.nets, strict=True):
            self.assertGreater(float(jnp.abs(net.params["head"]["bias"] - old.params["head"]["bias"]).max()), 1e-4)

    def test_labels_are_not_read(self):
        algorithm = built(toy.task_with_public().bind(((), Examples(jnp.asarray(PUBLIC.x), ())), 0))
        server = algorithm.server_init(jax.random.key(0))
        _, logits = algorithm.collect
        sent = logits.finalize(logits.map(server.nets[0], Cohort(jnp.int32(0), jnp.int32(3))))
        self.assertEqual(sent.shape, (toy.PUBLIC, toy.CLASSES + 2))
        zero = jax.tree.map(jnp.zeros_like, server.nets)
        jax.eval_shape(algorithm.server_update, server, (zero, sent), Cohort(jnp.arange(1), jnp.arange(1)), jax.random.key(1))

    def test_what_travels(self):
        shapes = toy.reference("feddf")[0].spec.shapes  # nothing more for the distillation
        numbers = (5 * 6 + 6) + (6 * 5 + 5) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    def test_each_client_is_scored_with_the_model_of_its_architecture(self):
        self.assertEqual(list(toy.reference("feddf")[0].spec.abstract_algorithm(0).predict), ["global"])
        sim, _, state = toy.reference("feddf_mixed")
        self.assertEqual(list(sim.spec.abstract_algorithm(0).predict), ["personal"])
        for g, width in enumerate((6, 7)):
            sent = sim.spec.algorithm(g, sim.spec.host_arrays, 2).broadcast(state.server, g)
            self.assertEqual(sent.params["head"]["kernel"].shape, (width, toy.CLASSES + 2))
            chex.assert_trees_all_equal(sent, state.server.nets[g])

    @parameterized.parameters(
        (
            dict(models=("resnet8(width=4)",), statistics="local"),
            "statistics='local' needs an uplink with at most one network, this method's has 2",
        ),
        ({"train": "head"}, "feddf: several architectures need weights=None, train='all' and no adapter"),
        (
            {"models": ("mlp(widths=(4,))",), "task": "episodes(way=2, shot=1, query=1)", "evaluation.scopes": ("global",)},
            "feddf exchanges mean logits of classes, which a prototypical network does not have",
        ),
        ({"compression.uplink": "top_k(fraction=0.1)"}, r"part \[0\] of the uplink of feddf is neither"),
        ({"aggregation.rule": "median"}, r"part \[0\] of the uplink of feddf is neither"),
    )
    def test_settings_that_do_not_fit(self, fields, message):
        settings = config.get_config("smoke")
        settings.update_from_flattened_dict(fields)
        with self.assertRaisesRegex(ValueError, message):
            experiment.build(settings)

    @parameterized.parameters(
        (dict(weights="equal"), "weights='equal' is not one of 'samples', 'uniform'"),
        (dict(server_lr=0.0), "^server_lr=0.0 must be positive$"),
        (dict(server_batch=0), "server_batch=0 must be at least 1"),
        (dict(temperature=0.0), "^temperature=0.0 must be positive$"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            built(toy.task_with_public(), **arguments)

    def test_tasks_that_do_not_fit(self):
        with self.assertRaisesRegex(ValueError, r"task.public=\(\): feddf needs public examples; name a set by config.public"):
            built(toy.task())
