"""LG-FedAvg in FedPer's loops with the other part personal, and its limits."""

import chex
import jax
import numpy as np

from fedjax_core.algorithm import Net
from methods.fedavg import fedavg
from methods.lg_fedavg import lg_fedavg
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import ended, made, one, plain, simulate, there
from tests.methods.test_local import of


def oracle(rounds):
    """The shared head, and all clients' (body, statistics); a uniform mean of whole heads, as printed."""
    clients = naive.rows(toy.data())
    params, first = MODEL.init(naive.stream(0, naive.INIT))
    head, mine = params["head"], [(params["body"], first)] * len(clients)
    for r in range(rounds):
        heads = []
        for i in naive.cohort(0, r, len(clients), 5):
            body, stats = mine[i]
            end = plain({"body": body, "head": head}, stats, *clients[i], naive.client_key(0, r, i))
            mine[i] = end.params["body"], end.stats
            heads.append(end.params["head"])
        head = naive.mean(heads, [1] * len(heads))
    return head, mine


def renamed(model):
    """The toy network, whose body's name holds the head's."""
    inside = lambda net: Net({"body": net.params["head_of_body"], "head": net.params["head"]}, net.stats)

    def init(key):
        net = model.init(key)
        return net._replace(params={"head_of_body": net.params["body"], "head": net.params["head"]})

    return model._replace(
        init=init,
        apply=lambda net, *inputs, **options: model.apply(inside(net), *inputs, **options),
        features=lambda net, *inputs, **options: model.features(inside(net), *inputs, **options),
        head=lambda net, z: model.head(net, z),
    )


class LGFedAvgTest(chex.TestCase):
    def test_equals_the_algorithm_box(self):
        _, _, state = toy.reference("lg_fedavg")
        head, mine = oracle(2)
        chex.assert_trees_all_close(there(state.server.params), {"head": head}, atol=2e-6)
        for i, (body, stats) in enumerate(mine):
            chex.assert_trees_all_close(there(one(state.clients[0].params, i)), {"body": body}, atol=2e-6)
            chex.assert_trees_all_close(one(state.clients[0].stats, i), stats, atol=2e-6)

    def test_a_client_predicts_with_its_body_and_the_newest_head(self):
        sim, _, state = toy.reference("lg_fedavg")
        head, mine = oracle(2)
        holds, x = sim.client_view(sim.compiled.put(state), 3).holds["personal"], toy.data().test.x
        logits = sim.spec.algorithm(0, sim.spec.host_arrays, 2).predict["personal"](*holds, x)["logits"]
        body, stats = mine[3]
        naive_logits = MODEL.apply(type(state.server)({"body": body, "head": head}, stats), x)[0]["logits"]
        np.testing.assert_allclose(logits, naive_logits, atol=5e-6)

    def test_all_shared_is_fedavg(self):
        """Without batch statistics, which belong to no entry of this network."""
        ends = [ended(made(method, epochs=2, **more), False).server for method, more in (
            (lg_fedavg, {"shared": ("body", "head")}), (fedavg, {"weights": "uniform"}),
        )]  # fmt: skip
        chex.assert_trees_all_close(ends[0].params, ends[1].net.params, atol=1e-7)

    def test_nothing_shared_is_local(self):
        clients = ended(made(lg_fedavg, epochs=2, shared=())).clients[0]
        for i in range(0, toy.CLIENTS, 2):
            chex.assert_trees_all_close(tuple(one(clients, i)), of(toy.reference("local")[2], i), atol=1e-7)

    def test_what_travels(self):
        shapes = toy.reference("lg_fedavg")[0].spec.shapes
        self.assertEqual((shapes.down, shapes.up), (4 * (6 * 3 + 3), 4 * (6 * 3 + 3)))

    def test_an_unknown_entry(self):
        with self.assertRaisesRegex(ValueError, "shared='haed' is not an entry of the network; it has body, head"):
            simulate(made(lg_fedavg, shared=("haed",)))

    def test_the_names_of_other_entries_do_not_matter(self):
        """The shared head is found by its whole name, and trains alike."""
        outputs = []
        for task in (toy.task(), toy.task().wrap_model(renamed)):
            algorithm, key = made(lg_fedavg, epochs=2)(task), jax.random.key(3)
            server = algorithm.server_init(key)
            self.assertEqual(set(there(server.params)), {"head"})
            outputs.append(toy.update_client(algorithm, server, algorithm.client_init(key, server, 0)))
        plain, other = outputs
        chex.assert_trees_all_close(there(other.uplink.params), there(plain.uplink.params), atol=1e-7)
        chex.assert_trees_all_close(there(other.state.params)["head_of_body"], there(plain.state.params)["body"], atol=1e-7)
