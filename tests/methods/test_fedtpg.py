"""FedTPG against loops in which each client's network has the texts of its own classes and no others."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import ClientData, Examples
from methods.fedtpg import fedtpg
from methods.promptfl import promptfl
from tests import naive, toy
from tests.methods.test_fedper import made

STEPS = dict(batch=toy.BATCH, lr=0.1, momentum=0.5)


@functools.cache
def task():
    return toy.task_with_class_texts(generated=True)


@functools.cache
def network_of(*classes):
    """A network whose outputs are some of the classes."""
    return toy.prompted_clip(toy.CLASS_TOKENS[list(classes)], generated=True)


def train_naively(params, i, key):
    x, y = naive.rows(toy.data())[i]
    classes = np.unique(y)
    return naive.train(network_of(*classes.tolist()), params, {}, x, np.searchsorted(classes, y), key, epochs=2, **STEPS).params


class FedTPGTest(chex.TestCase):
    def test_is_the_loop(self):
        sim, before, after = toy.reference("fedtpg")
        params = task().frozen.params | before.server.net.params
        for r in range(2):
            cohort = naive.cohort(0, r, toy.CLIENTS, sim.spec.sampler.slots)
            deltas = [naive.minus(train_naively(params, i, naive.client_key(0, r, i)), params) for i in cohort]
            params = naive.plus(params, naive.mean(deltas, [1] * len(deltas)))
        rounding = jax.tree.map(
            lambda new, old: 1e-3 * jnp.abs(new - old).max() + 1e-6, params["prompts"], before.server.net.params["prompts"]
        )
        error = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), after.server.net.params["prompts"], params["prompts"])
        self.assertTrue(all(jax.tree.leaves(jax.tree.map(jnp.less, error, rounding))), error)

    def test_a_client_of_two_classes_has_the_prompts_of_their_names(self):
        """The last client lacks a class."""
        algorithm = made(fedtpg, epochs=2)(task())
        net = algorithm.server_init(jax.random.key(0)).net
        end = train_naively(task().frozen.params | net.params, toy.CLIENTS - 1, jax.random.key(5))
        output = toy.update_client(algorithm, net, (), toy.CLIENTS - 1)
        chex.assert_trees_all_close(
            output.uplink.params["prompts"], naive.minus(end, task().frozen.params | net.params)["prompts"], atol=1e-5
        )

    def test_classes_that_nobody_trained_on_get_prompts(self):
        """Trained without the last class; a new client has it and another one."""
        algorithm, index = made(fedtpg, epochs=2)(task()), np.flatnonzero(toy.data().train.y < 2)
        seen = ClientData(toy.data().train, jnp.asarray(index, jnp.int32), jnp.int32(len(index)))
        sent = algorithm.server_init(jax.random.key(0)).net
        trained = jax.jit(algorithm.client_update)(sent, (), seen, jax.random.key(1)).local[0]
        x = toy.data().test.x[:6]
        new = ClientData(Examples(jnp.asarray(x[:3]), jnp.array([2, 1, 2])), jnp.arange(3), jnp.int32(3))
        view, client = algorithm.personalise(trained, (), new, jax.random.key(2))
        logits = np.asarray(algorithm.predict["personal"](view, client, x)["logits"])
        own = network_of(1, 2).apply(trained._replace(params=task().frozen.params | trained.params), x)[0]["logits"]
        np.testing.assert_allclose(logits[:, 1:], own, atol=1e-5)
        self.assertTrue((logits[:, 0] < -1e8).all())

    def test_where_clients_have_all_classes_it_is_promptfl(self):
        """Learned prompts see no names, so with all classes nothing else is left."""
        learned, key = toy.task_with_class_texts(), jax.random.key(0)
        deltas = []
        for method in (fedtpg, promptfl):
            algorithm = made(method, epochs=2)(learned)
            deltas.append(toy.update_client(algorithm, algorithm.server_init(key).net, ()).uplink)
        chex.assert_trees_all_close(*deltas, atol=1e-6)

    def test_needs_a_network_that_predicts_among_some_classes(self):
        with self.assertRaisesRegex(ValueError, "cannot predict among a client's own classes"):
            made(fedtpg)(toy.task_with_prompts())
