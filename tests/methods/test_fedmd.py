"""FedMD in loops over clients, batches and public examples; and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

from configs import fedmd as config
from fedjax_core import experiment
from fedjax_core.algorithm import ClientSettings, Examples, Net
from fedjax_core.task import make_task
from fedjax_core.training import local_training, optimizers
from methods.fedmd import Server, draw_stratified, fedmd
from methods.local import local
from tests import naive, toy
from tests.methods.test_fedprox import rows_of

K, P, SERVER, PREPARE = toy.CLASSES, toy.PUBLIC, 5, 1
DIGEST, REVISIT = 0x646967, 0x726576
MODELS = toy.task_with_public(6).model, toy.task_with_public(7).model
O, A = K + 2, 4
PUBLIC = jax.tree.map(jnp.asarray, toy.task_with_public().public)
STEPS = dict(lr=0.1, momentum=0.5)


@functools.cache
def away(model):
    """The loss of a digest: mean absolute difference of logits."""
    net = type(jax.eval_shape(model.init, jax.random.key(0)))

    def whole(params, stats, x, y, given):
        del given
        outputs, stats = model.apply(net(params, stats), x, train=True)
        value = sum(jnp.sum(jnp.abs(logits - wanted)) for logits, wanted in zip(outputs["logits"], y, strict=True)) / y.size
        return value, (stats, outputs["logits"], value)

    return whole


def digest(model, params, stats, x, wanted, key):
    """Two epochs of batches of three towards logits."""
    find, velocity = naive.gradient_of(away(model)), jax.tree.map(jnp.zeros_like, params)
    for epoch in range(2):
        places = naive.order(key, epoch, len(x))
        for start in range(0, len(places), 3):
            now = np.array(places[start : start + 3])
            g, (stats, _, _) = find(params, stats, x[now], wanted[now], ())
            velocity = naive.plus(g, velocity, 0.5)
            params = naive.plus(params, velocity, -0.1)
    return params, stats


def oracle(rounds, asked):
    """(networks of all clients, consensus); `asked`: the rows of each round."""
    clients = naive.rows(toy.data())
    models = [MODELS[i % 2] for i in range(len(clients))]
    w = []
    for i, model in enumerate(models):
        key = jax.random.fold_in(naive.stream(0, PREPARE), i)
        start = model.init(naive.stream(0, naive.INIT))
        first = naive.train(model, *start, PUBLIC.x, PUBLIC.y + K, key, epochs=1, batch=4, **STEPS)
        again = jax.random.fold_in(key, REVISIT)
        w.append(naive.train(model, first.params, first.stats, *clients[i], again, epochs=1, batch=4, **STEPS)[:2])
    consensus = rows = None
    for r in range(rounds):
        sent = []
        for i in naive.cohort(0, r, len(clients), 5):
            key = naive.client_key(0, r, i)
            if consensus is not None:
                w[i] = digest(models[i], *w[i], PUBLIC.x[rows], consensus, jax.random.fold_in(key, DIGEST))
            w[i] = naive.train(models[i], *w[i], *clients[i], key, epochs=2, batch=toy.BATCH, **STEPS)[:2]
            net = type(models[i].init(key))(*w[i])
            sent.append(np.stack([np.asarray(models[i].apply(net, PUBLIC.x[j : j + 1])[0]["logits"][0]) for j in asked[r]]))
        consensus, rows = sum(sent) / len(sent), asked[r]
    return w, consensus


def draws(rounds):
    keys = [jax.random.fold_in(naive.stream(0, naive.INIT), DIGEST), *(naive.stream(0, SERVER, r) for r in range(rounds - 1))]
    return [np.asarray(draw_stratified(key, jnp.asarray(PUBLIC.y), A)) for key in keys]


def alone(**arguments):
    """FedMD on the network without statistics, of one client; and a task for it."""
    model = toy.model(6, False, O)
    task = make_task(model, classes=K, population=1, public=PUBLIC, shape=(toy.INPUTS,))
    settings = dict(optimizer=local_training.sgd(0.1, momentum=0.5), digest_batch=P, epochs=2, batch=toy.BATCH)
    return model, task, fedmd(task, **settings | arguments)


def answer(net, model, rows):
    return model.apply(net, PUBLIC.x[rows])[0]["logits"]


class FedMDTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("fedmd")
        w, consensus = oracle(2, asked := draws(2))
        chex.assert_trees_all_close(after.server.logits, consensus, atol=1e-5)
        np.testing.assert_array_equal(after.server.rows, asked[-1])
        self.assertTrue(after.server.known)
        for i in range(toy.CLIENTS):
            found = jax.tree.map(lambda x, i=i: x[i // 2], after.clients[i % 2])
            chex.assert_trees_all_close(tuple(found), tuple(w[i]), atol=1e-5)

    def test_public_rows_are_drawn_evenly_over_classes(self):
        y = jnp.asarray([0] * 12 + [1] * 6 + [2] * 2)
        for seed in range(3):
            rows = np.asarray(draw_stratified(jax.random.key(seed), y, 10))
            self.assertLen(set(rows.tolist()), 10)
            self.assertEqual(np.bincount(np.asarray(y)[rows]).tolist(), [6, 3, 1])
            self.assertCountEqual(np.asarray(draw_stratified(jax.random.key(seed), y, 20)).tolist(), range(20))
        drawn = {tuple(sorted(np.asarray(draw_stratified(jax.random.key(seed), y, 10)).tolist())) for seed in range(5)}
        self.assertGreater(len(drawn), 1)

    def test_alone_or_without_a_digest_it_is_local(self):
        """Of one client the consensus is its own logits, from which they do not move."""
        model, task, _ = alone()
        net, data, key = model.init(jax.random.key(0)), rows_of(0), jax.random.key(5)
        there = local(task, optimizer=local_training.sgd(0.1, momentum=0.5), epochs=2, batch=toy.BATCH)
        there = jax.jit(there.client_update)((), net, data, key)
        rows = jnp.arange(P)
        own = Server(answer(net, model, rows), rows, jnp.bool(True), rows)
        other = own._replace(logits=own.logits + 1.0)
        for sent, epochs in ((own, 3), (other, 0), (other._replace(known=jnp.bool(False)), 3)):
            out = jax.jit(alone(digest_epochs=epochs)[2].client_update)(sent, net, data, key)
            chex.assert_trees_all_close(out.state, there.state, atol=1e-6)
        out = jax.jit(alone(digest_epochs=3)[2].client_update)(other, net, data, key)
        self.assertGreater(np.abs(out.state.params["head"]["bias"] - there.state.params["head"]["bias"]).max(), 1e-2)

    def test_a_digest_nears_the_consensus(self):
        model, _, algorithm = alone(epochs=0, digest_epochs=5, optimizer=local_training.sgd(0.05))
        net, rows = model.init(jax.random.key(0)), jnp.array([4, 1, 6, 0, 2, 5, 3])
        wanted = answer(net, model, rows) + jnp.asarray(np.random.default_rng(0).normal(size=(P, O)), jnp.float32)
        sent = Server(wanted, rows, jnp.bool(True), rows)
        out = jax.jit(algorithm.client_update)(sent, net, rows_of(0), jax.random.key(0))
        before, after = (float(jnp.mean(jnp.abs(answer(n, model, rows) - wanted))) for n in (net, out.state))
        self.assertLess(after, 0.95 * before)
        chex.assert_trees_all_close(out.uplink[0], answer(out.state, model, rows), atol=1e-6)

    def test_before_the_rounds_public_and_private_examples_are_learnt(self):
        model, _, _ = alone()
        net, moved = model.init(jax.random.key(0)), []
        for public, private in ((1, 0), (0, 1), (0, 0)):
            prepare = alone(public_epochs=public, private_epochs=private)[2].prepare
            assert prepare is not None
            ready = jax.jit(prepare)((), net, rows_of(0), jax.random.key(1))
            moved.append(np.asarray(ready.params["head"]["bias"] - net.params["head"]["bias"]))
        self.assertTrue((moved[0][K:] > 0).all())  # the public classes gain, the private lose
        self.assertTrue((moved[0][:K] < 0).all())
        self.assertTrue((moved[1][K:] < 0).all())
        np.testing.assert_array_equal(moved[2], 0)

    def test_nobody_came(self):
        _, _, algorithm = alone()
        server = algorithm.server_init(jax.random.key(0))._replace(known=jnp.bool(True), logits=jnp.ones((P, O)))
        collected = jnp.zeros((P, O)), jnp.zeros(P)
        after, _ = algorithm.server_update(server, collected, None, jax.random.key(1))
        chex.assert_trees_all_equal(after, server)

    def test_the_clients_rates_are_those_of_all_its_trainings(self):
        """A rate of 0 stops public pre-training and digests, too."""
        optimizer = lambda round: optax.chain(local_training.sgd(0.1)(round), optimizers.scale_by_client_rate())  # noqa: A006
        sim = toy.simulate("fedmd", optimizer=optimizer, client_settings=ClientSettings(rate=np.zeros(toy.CLIENTS, np.float32)))
        state = sim.init(0)
        before = jax.device_get(state.clients)
        after = jax.device_get(sim.run_rounds(state, 3)[0].clients)
        params = lambda tree: [
            net.params for net in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Net)) if isinstance(net, Net)
        ]
        chex.assert_trees_all_equal(params(after), params(before))

    def test_stale_answers_to_other_questions_are_refused(self):
        settings = config.get_config("smoke")
        settings.method.align, settings.schedule = 20, "fedbuff(buffer=2, staleness='constant')"
        with self.assertRaisesRegex(ValueError, "and method.align=20: stale clients answer for the public examples of an earlier"):
            experiment.resolve(settings)

    def test_what_travels(self):
        """(O + 1) numbers up for each public example that is asked about: 21 and 111 in FedHPL's Table 9."""
        shapes = toy.reference("fedmd")[0].spec.shapes
        self.assertEqual((shapes.up, shapes.down), (4 * A * (O + 1), 4 * A * O + 8 * A + 1))
        for classes, number in ((10, 21), (100, 111)):
            model = toy.model(outputs=classes + 10)
            public = Examples(jnp.zeros((50, toy.INPUTS)), jnp.arange(50) % 10)
            task = make_task(model, classes=classes, population=8, public=public)
            algorithm = fedmd(task, optimizer=local_training.sgd(0.1))
            key = jax.random.key(0)
            sent, net = jax.eval_shape(algorithm.server_init, key), jax.eval_shape(model.init, key)
            out = jax.eval_shape(algorithm.client_update, sent, net, rows_of(0), key)
            self.assertEqual(sum(leaf.size for leaf in jax.tree.leaves(out.uplink)), number * 50)

    @parameterized.parameters(
        (dict(align=0), "align=0 must be between 1 and the 7 public examples"),
        (dict(align=8), "align=8 must be"),
        (dict(digest_batch=0), "digest_batch=0 must be at least 1"),
        (dict(public_epochs=-1), "public_epochs=-1 must be at least 0"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            alone(**arguments)

    def test_tasks_that_do_not_fit(self):
        with self.assertRaisesRegex(ValueError, r"task.public=\(\): fedmd needs a public labelled set"):
            fedmd(toy.task(), optimizer=local_training.sgd(0.1))
        task = make_task(toy.model(), classes=K, population=8, public=toy.task_with_public().public)
        with self.assertRaisesRegex(ValueError, "the network has 3 outputs; fedmd needs 5, for private and public classes"):
            fedmd(task, optimizer=local_training.sgd(0.1))
