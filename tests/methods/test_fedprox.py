"""FedProx in loops, and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import ClientData, ClientSettings
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.fedprox import fedprox
from tests import naive, toy
from tests.methods.test_fedavg import MODEL


def pull(params, outputs, x, y, given):
    """mu / 2 times the squared distance to the model that was sent."""
    mu, sent = given
    return mu / 2 * sum(jnp.sum((v - w) ** 2) for v, w in zip(jax.tree.leaves(params), jax.tree.leaves(sent), strict=True))


def averaged(seed, rounds, whole, given, *, weights, cohort=5):
    """Averaging of what the clients make of the server's model by a loss: (params, statistics). `given` is of the params sent."""
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(seed, naive.INIT)))
    for r in range(rounds):
        deltas, share = [], []
        for k in naive.cohort(seed, r, len(clients), cohort):
            settings = dict(epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5, whole=whole, given=given(w[0]))
            w_k = naive.train(None, *w, *clients[k], naive.client_key(seed, r, k), **settings)
            deltas.append(naive.minus((w_k.params, w_k.stats), w))
            share.append(len(clients[k][1]) if weights == "samples" else 1)
        w = naive.plus(w, naive.mean(deltas, share))
    return w


@functools.cache
def rows_of(i=0):
    """Client i's view of the toy data."""
    held = toy.simulate("fedavg").spec.host_arrays
    return ClientData(held.train, held.index[i], held.size[i])


@functools.cache
def compiled(builder, **settings):
    """A method's client_update with plain SGD on the toy federation; compiled once for equal settings."""
    task = settings.pop("task", None) or toy.task()
    settings = {"optimizer": local_training.sgd(settings.pop("lr", 0.1)), "epochs": 2, "batch": toy.BATCH} | settings
    return jax.jit(builder(task, **settings).client_update)


def one_round(update, sent, client=(), i=0):
    """What client i's round leaves behind."""
    return update(sent, client, rows_of(i), jax.random.key(5))


class FedProxTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("fedprox")
        whole = naive.with_term(MODEL, pull)
        w = averaged(0, 2, whole, lambda params: (1.0, params), weights="samples")
        chex.assert_trees_all_close(tuple(after.server.net), w, atol=5e-6)

    def test_a_client_with_its_own_epochs_against_loops(self):
        net, (x, y) = MODEL.init(jax.random.key(0)), naive.rows(toy.data())[0]
        update = compiled(fedprox, mu=1.0, epochs=local_training.EpochsByClient(2))
        out = update(net, (), rows_of(0)._replace(settings=ClientSettings(epochs=jnp.int32(4))), jax.random.key(5))
        whole = naive.with_term(MODEL, pull)
        settings = dict(epochs=4, batch=toy.BATCH, lr=0.1, whole=whole, given=(1.0, net.params))
        trained = naive.train(None, *net, x, y, jax.random.key(5), **settings)
        chex.assert_trees_all_close(out.uplink.params, naive.minus(trained.params, net.params), atol=2e-6)

    def test_mu_zero_is_fedavg_bit_for_bit(self):
        net = MODEL.init(jax.random.key(0))
        chex.assert_trees_all_equal(one_round(compiled(fedprox, mu=0.0), net).uplink, one_round(compiled(fedavg), net).uplink)

    def test_the_first_step_is_fedavgs(self):
        net, full = MODEL.init(jax.random.key(0)), dict(epochs=1, batch=max(toy.SIZES))
        plain, near = compiled(fedavg, **full), compiled(fedprox, mu=50.0, **full)
        chex.assert_trees_all_close(one_round(near, net).uplink, one_round(plain, net).uplink, atol=1e-7)

    def test_with_lr_mu_one_every_step_starts_from_the_model_sent(self):
        lr, (x, y) = 0.2, naive.rows(toy.data())[0]
        net = MODEL.init(jax.random.key(0))
        w, stats = y_k, _ = tuple(net)
        for epoch in range(2):
            places = naive.order(jax.random.key(5), epoch, len(y))
            for start in range(0, len(y), toy.BATCH):
                now = np.array(places[start : start + toy.BATCH])
                g, (stats, _, _) = naive.gradient(MODEL, naive.nothing)(y_k, stats, x[now], y[now], ())
                y_k = naive.plus(w, g, -lr)
        out = one_round(compiled(fedprox, mu=1 / lr, lr=lr), net)
        chex.assert_trees_all_close(out.uplink.params, naive.minus(y_k, w), atol=1e-6)

    @parameterized.parameters(-0.1, float("nan"))
    def test_mu_must_not_be_negative(self, mu):
        with self.assertRaisesRegex(ValueError, f"^mu={mu} must be .*at least 0$"):
            fedprox(toy.task(), optimizer=local_training.sgd(0.1), mu=mu)
