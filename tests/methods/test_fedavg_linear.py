"""FedAvg+Linear in loops with the map written out, and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_core.algorithm import Net
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.fedavg_linear import add_linear_map, fedavg_linear
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import STEPS, first_round, one, oracle, there

D = 6


class WithMap:
    """What `oracle` needs of the extended network: where it starts."""

    @staticmethod
    def init(key):
        net = MODEL.init(key)
        return Net(net.params | {"linear": {"kernel": jnp.eye(D), "bias": jnp.zeros(D)}}, net.stats)


def mapped(params, stats, x, y, given):
    del given
    outputs, stats = MODEL.apply(Net({"body": params["body"], "head": params["head"]}, stats), x, train=True)
    z = outputs["features"] @ params["linear"]["kernel"] + params["linear"]["bias"][None]
    logits = z @ params["head"]["kernel"] + params["head"]["bias"][None]
    ce = naive.cross_entropy(logits, y)
    return ce, (stats, logits, ce)


def train(params, stats, x, y, key):
    return naive.train(MODEL, params, stats, x, y, key, epochs=2, whole=mapped, **STEPS)


class FedAvgLinearTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("fedavg_linear")
        shared, stats, mine = oracle(2, train, own=("linear",), model=WithMap)
        chex.assert_trees_all_close(there(after.server.params), shared, atol=5e-6)
        chex.assert_trees_all_close(after.server.stats, stats[0], atol=5e-6)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(there(one(after.clients[0].params, i)), mine[i], atol=5e-6)
        self.assertGreater(np.abs(after.clients[0].params["linear"]["kernel"] - np.eye(D)).max(), 1e-2)

    def test_a_map_that_never_moves_is_fedavg(self):
        def still(round):  # noqa: A002
            chain = local_training.sgd(0.1, momentum=0.5)(round)
            frozen = lambda params: {name: jax.tree.map(lambda _, n=name: n == "linear", p) for name, p in params.items()}
            return optax.chain(chain, optax.masked(optax.set_to_zero(), frozen))

        out = first_round(fedavg_linear, optimizer=still, epochs=2)[2]
        chex.assert_trees_all_close(there(out.uplink.params), first_round(fedavg, epochs=2)[2].uplink.params, atol=1e-6)

    def test_at_first_it_is_the_network(self):
        net, model = MODEL.init(jax.random.key(0)), add_linear_map(MODEL)
        extended, x = model.init(jax.random.key(0)), toy.data().test.x
        chex.assert_trees_all_close(model.apply(extended, x)[0], MODEL.apply(net, x)[0], atol=1e-6)
        numbers = [sum(leaf.size for leaf in jax.tree.leaves(n.params)) for n in (net, extended)]
        self.assertEqual(numbers[1] - numbers[0], D * D + D)

    def test_what_travels(self):
        shapes = toy.reference("fedavg_linear")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))
