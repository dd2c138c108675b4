"""FedDyn passes the contract of all methods, and its step is the paper's."""

import functools

import jax
import numpy as np
import pytest
from feddyn import feddyn

from fedjax_core import testing
from fedjax_core.training import local_training

ALPHA, RATE = 0.1, 0.2
CASE = testing.Case(functools.partial(feddyn, alpha=ALPHA, epochs=2, batch=4))


@pytest.mark.parametrize("holds", testing.CONTRACT, ids=lambda holds: holds.__name__)
def test_contract(holds):
    holds(CASE)


def test_two_rounds_equal_the_loop():
    """One full-batch step of every client in a round, written out: theta_k = theta - rate * (gradient - g_k)."""
    case = testing.Case(functools.partial(feddyn, alpha=ALPHA, epochs=1, batch=16))
    sim = case.simulate(cohort=8, statistics=False, optimizer=local_training.sgd(RATE))
    state = sim.init(0)
    theta = jax.device_get(state.server.net.params)
    model, (x, y), zero = case.task(statistics=False).model, sim.spec.data.train, jax.tree.map(np.zeros_like, theta)
    g, h = [zero] * 8, zero

    def loss(params, index):
        log_p = jax.nn.log_softmax(model.apply(state.server.net._replace(params=params), x[index])[0]["logits"])
        return -log_p[np.arange(len(index)), y[index]].mean()

    for _ in range(2):
        trained = []
        for k, index in enumerate(sim.spec.data.train_index):
            gradient = jax.grad(loss)(theta, index)
            trained.append(jax.tree.map(lambda t, d, own: t - RATE * (d - own), theta, gradient, g[k]))
            g[k] = jax.tree.map(lambda own, new, old: own - ALPHA * (new - old), g[k], trained[k], theta)
        mean = jax.tree.map(lambda *leaves: sum(leaves) / 8, *trained)
        h = jax.tree.map(lambda s, new, old: s - ALPHA * (new - old), h, mean, theta)
        theta = jax.tree.map(lambda new, s: new - s / ALPHA, mean, h)
    after = jax.device_get(sim.run_rounds(state, 2)[0])
    for ours, theirs in zip(*map(jax.tree.leaves, ((after.server.net.params, after.server.h), (theta, h))), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
