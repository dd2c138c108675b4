"""FedPer against its algorithm boxes in loops, and its limits."""

import functools

import chex
import jax
import numpy as np
from absl.testing import parameterized

from fedjax_core.engine import client_loop, simulator
from fedjax_core.training import aggregators, local_training
from methods.fedavg import fedavg
from methods.fedper import fedper
from methods.local import local
from tests import naive, toy
from tests.methods.test_fedavg import MODEL

SGD = local_training.sgd(0.1, momentum=0.5)
STEPS = dict(batch=toy.BATCH, lr=0.1, momentum=0.5)  # the same for the oracles
PERSONALISE = 6  # stream


def plain(params, stats, x, y, key):
    return naive.train(MODEL, params, stats, x, y, key, epochs=2, **STEPS)


def oracle(rounds, train=plain, own=("head",), model=MODEL, own_stats=False):
    """Shared entries, all clients' statistics, all clients' entries `own`; train: (params, stats, x, y, key) -> Trained."""
    clients = naive.rows(toy.data())
    params, first = model.init(naive.stream(0, naive.INIT))
    shared = {name: p for name, p in params.items() if name not in own}
    mine, stats = [{name: params[name] for name in own} for _ in clients], [first] * len(clients)
    for r in range(rounds):
        deltas, moved, share = [], [], []
        for i in naive.cohort(0, r, len(clients), 5):
            x, y = clients[i]
            end = train(shared | mine[i], stats[i], x, y, naive.client_key(0, r, i))
            mine[i] = {name: end.params[name] for name in own}
            deltas.append(naive.minus({name: end.params[name] for name in shared}, shared))
            share.append(len(y))
            moved.append(end.stats)
            if own_stats:
                stats[i] = end.stats
        shared = naive.plus(shared, naive.mean(deltas, share))
        if not own_stats:
            stats = [naive.mean(moved, share)] * len(clients)
    return shared, stats, mine


def there(params):
    """Entries of a part that it has leaves of."""
    return {name: entry for name, entry in params.items() if jax.tree.leaves(entry)}


def one(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


def simulate(build, statistics=True, **settings):
    settings = {"cohort": 5, "rounds_per_dispatch": 2, "plan": client_loop.Plan(1, 1)} | settings
    return simulator.Simulator(simulator.build_spec(toy.groups(build, statistics=statistics), toy.data(), **settings))


@functools.cache
def ended(build, statistics=True):
    """State after two rounds of the toy federation; `build` a method with its arguments, as `made` makes it."""
    sim = simulate(build, statistics)
    state, _ = sim.run_rounds(sim.init(0), 2)
    return jax.device_get(state)


@functools.cache
def made(method, **arguments):
    return functools.partial(method, **({"optimizer": SGD, "batch": toy.BATCH} | arguments))


@functools.cache
def first_round(method, statistics=True, round_num=0, **arguments):
    """(server's state, client 0's state, output of its round): all that a limit of a client's update needs, and no simulation."""
    algorithm = made(method, **arguments)(toy.task(statistics=statistics).bind(((), ()), round_num))
    key = jax.random.key(3)
    server = algorithm.server_init(key)
    client = algorithm.client_init(key, server, 0)
    return server, client, toy.update_client(algorithm, algorithm.broadcast(server, 0), client)


def personalised(name, i):
    """What client i's personal model predicts with after two rounds, as a host copy."""
    sim, _, after = toy.reference(name)
    return jax.device_get(sim.client_view(sim.compiled.put(after), i).holds["personal"])


def personalise_key(i):
    """That of the draws with which client i is personalised after two rounds."""
    return jax.random.fold_in(naive.stream(0, PERSONALISE, 2), i)


class FedPerTest(chex.TestCase):
    def test_equals_the_algorithm_boxes(self):
        _, _, after = toy.reference("fedper")
        shared, stats, mine = oracle(2)
        chex.assert_trees_all_close(there(after.server.params), shared, atol=2e-6)
        chex.assert_trees_all_close(after.server.stats, stats[0], atol=2e-6)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(there(one(after.clients[0].params, i)), mine[i], atol=2e-6)

    def test_nothing_personal_is_fedavg(self):
        out = first_round(fedper, epochs=2, personal=())[2]
        chex.assert_trees_all_close(out.uplink, first_round(fedavg, epochs=2)[2].uplink, atol=1e-7)

    def test_everything_personal_is_local(self):
        out = first_round(fedper, epochs=2, personal=("body", "head"))[2]
        chex.assert_trees_all_close(out.state.params, first_round(local, epochs=2)[2].state.params, atol=1e-7)

    def test_a_client_predicts_with_the_newest_body_and_its_own_head(self):
        sim, _, after = toy.reference("fedper")
        shared, stats, mine = oracle(2)
        scores = sim.client_scores(sim.compiled.put(after))["own"]["personal"]["accuracy"]
        for i in range(toy.CLIENTS):
            rows = toy.data().test_index[i]
            x, y = toy.data().test.x[rows], toy.data().test.y[rows]
            logits = MODEL.apply(type(after.server)(shared | mine[i], stats[i]), x)[0]["logits"]
            self.assertAlmostEqual(scores[0][i] / scores[1][i], np.mean(np.argmax(logits, 1) == y), places=6)

    def test_weights(self):
        for name, weight_fn in aggregators.WEIGHT_FNS.items():
            self.assertIs(made(fedper, weights=name)(toy.task()).collect.weight_fn, weight_fn)

    def test_what_travels(self):
        shapes = toy.reference("fedper")[0].spec.shapes
        body, stats = 5 * 6 + 6, 5
        self.assertEqual((shapes.down, shapes.up), (4 * (body + stats), 4 * (body + stats)))

    @parameterized.parameters(
        (dict(personal=("haed",)), "personal='haed' is not an entry of the network; it has body, head"),
        (dict(weights="sample"), "weights='sample' is not one of 'samples', 'uniform'"),
        (dict(epochs=-1), "epochs=-1"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(fedper, **arguments))
