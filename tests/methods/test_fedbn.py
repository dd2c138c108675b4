"""FedBN in loops on a network that has batch normalisation, and its limits."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Net
from fedjax_core.engine import client_loop, simulator
from fedjax_core.task import Model
from fedjax_core.training.local_batch_norm import with_local_statistics
from methods.fedavg import fedavg
from methods.fedbn import fedbn
from tests import naive, toy
from tests.methods.test_fedper import STEPS, first_round, made, one, oracle, there


def normalised() -> Model:
    """The toy network with a normalisation of its inputs that has a scale and a running mean, under a name without "norm"."""
    inner = toy.model(statistics=False)

    def init(key):
        net = inner.init(key)
        return Net(net.params | {"first": {"scale": jnp.ones(toy.INPUTS)}}, {"first": {"mean": jnp.zeros(toy.INPUTS)}})

    def features(net, x, key=None, train=False, mask=None):
        mean = net.stats["first"]["mean"]
        if train:
            weight = jnp.ones(len(x)) if mask is None else mask.astype(x.dtype)
            batch = jnp.sum(jnp.where(weight[:, None] > 0, x, 0), 0) / jnp.maximum(jnp.sum(weight), 1)
            used, mean = batch, 0.9 * mean + 0.1 * batch
        else:
            used = mean
        z, _ = inner.features(net, (x - used[None]) * net.params["first"]["scale"][None])
        return z, {"first": {"mean": mean}}

    def apply(net, x, key=None, train=False, mask=None):
        z, stats = features(net, x, key, train, mask)
        return {"logits": inner.head(net, z), "features": z}, stats

    return Model(init, apply, features, inner.head, "normalised")


MODEL = normalised()


def simulate(wrap=lambda build: build):
    task = dataclasses.replace(toy.task(), network=lambda frozen: MODEL)
    groups = simulator.one_group(wrap(made(fedbn, epochs=2)), task, toy.CLIENTS)
    return simulator.Simulator(
        simulator.build_spec(groups, toy.data(), cohort=5, rounds_per_dispatch=2, plan=client_loop.Plan(1, 1))
    )


@functools.cache
def after():
    sim = simulate()
    state, _ = sim.run_rounds(sim.init(0), 2)
    return sim, jax.device_get(state)


def train(params, stats, x, y, key):
    return naive.train(MODEL, params, stats, x, y, key, epochs=2, **STEPS)


class FedBNTest(chex.TestCase):
    def test_equals_the_algorithm_box(self):
        _, state = after()
        shared, stats, mine = oracle(2, train, own=("first",), model=MODEL, own_stats=True)
        chex.assert_trees_all_close(there(state.server.params), shared, atol=2e-6)
        self.assertFalse(jax.tree.leaves(state.server.stats))
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(there(one(state.clients[0].params, i)), mine[i], atol=2e-6)
            chex.assert_trees_all_close(one(state.clients[0].stats, i), stats[i], atol=2e-6)
        self.assertGreater(np.std(state.clients[0].params["first"]["scale"], 0).max(), 1e-3)

    def test_local_statistics_change_nothing(self):
        sim = simulate(with_local_statistics)
        state, _ = sim.run_rounds(sim.init(0), 2)
        chex.assert_trees_all_equal(jax.device_get(state.server.params), after()[1].server.params)
        chex.assert_trees_all_equal(jax.device_get(state.clients[0][0]), after()[1].clients[0])

    def test_without_normalisation_it_is_fedavg(self):
        ends = [first_round(method, False, epochs=2)[2].uplink.params for method in (fedbn, fedavg)]
        chex.assert_trees_all_close(*ends, atol=1e-7)

    def test_normalisation_never_travels(self):
        shapes = after()[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3)
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))
