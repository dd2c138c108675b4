"""FedGen in loops over clients, labels and the generator's steps; and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.engine import client_loop, simulator
from fedjax_core.nn import count_parameters
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.fedgen import Sent, diversity_loss, fedgen, generate, init_generator
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedprox import compiled, one_round, rows_of
from tests.methods.test_fedtgp import uplink_numbers

K, SERVER, STREAM = toy.CLASSES, 5, 0x67656E
NOISE, HIDDEN, MADE, STEPS = 3, 4, 6, 3
MODELS = toy.task_alike(6).model, toy.task_alike(7).model
TOY = dict(noise=NOISE, hidden=HIDDEN)
OFF, ALPHA = TOY | dict(alpha=0.0, beta=0.0), TOY | dict(alpha=1.0, beta=0.0)


def head_of(params, z):
    return z @ params["kernel"] + params["bias"][None]


def made(params, stats, eps, y, moving):
    """Features, and the moved statistics: batch normalisation written out."""
    h = jnp.concatenate([eps, jax.nn.one_hot(y, K)], 1) @ params["hidden"]["kernel"] + params["hidden"]["bias"][None]
    mean, var = stats["mean"], stats["var"]
    if moving:
        mean = jnp.mean(h, 0)
        var = jnp.mean((h - mean[None]) ** 2, 0)
        grown = var * len(h) / (len(h) - 1)
        stats = {"mean": 0.9 * stats["mean"] + 0.1 * mean, "var": 0.9 * stats["var"] + 0.1 * grown}
    h = (h - mean[None]) / jnp.sqrt(var + 1e-5)[None] * params["scale"][None] + params["bias"][None]
    return jnp.maximum(h, 0) @ params["out"]["kernel"] + params["out"]["bias"][None], stats


def rows_of_loss(logits, y):
    return jnp.stack([-jax.nn.log_softmax(row)[c] for row, c in zip(logits, y, strict=True)])


def teacher(params, stats, heads, share, w, eps, y, official):
    """The generator's loss: of the heads' mean logits, or of each head, weighed by label."""
    z, stats = made(params, stats, eps, y, True)
    if not official:
        logits = sum(s * head_of(head, z) for s, head in zip(share, heads, strict=True))
        return jnp.mean(rows_of_loss(logits, y)), stats
    total = 0.0
    for i, head in enumerate(heads):
        total += jnp.mean(jnp.stack([w[i, c] for c in y]) * rows_of_loss(head_of(head, z), y))
    pairs = [jnp.mean((eps[a] - eps[b]) ** 2) * jnp.mean(jnp.abs(z[a] - z[b])) for a in range(MADE) for b in range(MADE)]
    return total + jnp.exp(-sum(pairs) / MADE**2), stats


@functools.cache
def teaching(official):
    """The gradient of the generator's loss, compiled once."""
    return jax.jit(jax.grad(functools.partial(teacher, official=official), has_aux=True))


@jax.jit
def adam_step(params, moments, gradient, t, rate):
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, moments[1], gradient)
    step = lambda p, m, v: p - rate * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return jax.tree.map(step, params, first, second), (first, second)


def learn(generator, moments, labels, heads, share, w, key, official, count):
    """Adam's steps on the generator; `moments`: (first, second), and `count` steps were before."""
    params, stats = generator
    lr, decay = (3e-4, 0.01) if official else (0.005, 0.0)
    find = teaching(official)
    for i in range(STEPS):
        drawn, noises = jax.random.split(jax.random.fold_in(key, i))
        y = jax.random.categorical(drawn, jnp.log(labels), shape=(MADE,))
        eps = jax.random.uniform(noises, (MADE, NOISE))
        gradient, stats = find(params, stats, heads, share, w, eps, y)
        gradient = naive.plus(gradient, params, decay)
        gradient["hidden"]["bias"] = decay * params["hidden"]["bias"]  # its part of the loss is normalised away
        params, moments = adam_step(
            params, moments, gradient, count + i + 1.0, lr * (0.98 ** (count // STEPS) if official else 1.0)
        )
    return (params, stats), moments


def generated_term(params, outputs, x, y, given):
    """What a client's loss has beside its cross-entropy, from numbers drawn beforehand."""
    alpha, beta, drawn, z, own = given
    value = alpha * jnp.mean(rows_of_loss(head_of(params["head"], z), drawn))
    log_p = jax.nn.log_softmax(jax.lax.stop_gradient(head_of(params["head"], own)))
    return value + beta * jnp.mean(jnp.sum(jnp.exp(log_p) * (log_p - jax.nn.log_softmax(outputs["logits"])), 1))


@functools.partial(jax.jit, static_argnames="official")
def generated(generator, labels, key, y, official):
    """What a step generates: labels, features of them, and features of its examples' labels."""
    first, second = jax.random.split(jax.random.fold_in(key, STREAM))
    label_key, noise_key = jax.random.split(first)
    drawn = jax.random.categorical(label_key, jnp.log(labels), shape=(toy.BATCH,))
    z = made(*generator, jax.random.uniform(noise_key, (toy.BATCH, NOISE)), drawn, not official)[0]
    own = made(*generator, jax.random.uniform(second, (toy.BATCH, NOISE))[: len(y)], y, False)[0]
    return drawn, z, own


def local_round(model, params, stats, x, y, key, generator, labels, strength, official):
    """Two epochs of a client, whose every step generates anew."""
    velocity = jax.tree.map(jnp.zeros_like, params)
    find = naive.gradient_of(naive.with_term(model, generated_term))
    for epoch in range(2):
        steps = jax.random.split(jax.random.fold_in(key, epoch))[1]
        places = naive.order(key, epoch, len(y))
        for i, start in enumerate(range(0, len(places), toy.BATCH)):
            now = np.array(places[start : start + toy.BATCH])
            drawn, z, own = generated(generator, labels, jax.random.fold_in(steps, i), y[now], official)
            given = (strength * (10.0 if official else 1.0), strength * (10.0 if official else 0.0), drawn, z, own)
            g, (stats, _, _) = find(params, stats, x[now], y[now], given)
            velocity = naive.plus(g, velocity, 0.5)
            params = naive.plus(params, velocity, -0.1)
    return params, stats


def oracle(rounds, start, official):
    """(body or bodies, head, generator)."""
    clients = naive.rows(toy.data())
    models = [MODELS[0] if official else MODELS[i % 2] for i in range(len(clients))]
    w = [tuple(model.init(naive.stream(0, naive.INIT))) for model in models]
    head, shared = w[0][0]["head"], w[0]
    generator, labels = tuple(start), None
    moments = (jax.tree.map(jnp.zeros_like, generator[0]),) * 2
    for r in range(rounds):
        ends, n, counts = [], [], []
        for i in sorted(naive.cohort(0, r, len(clients), 5)):
            x, y = clients[i]
            params, stats = shared if official else w[i]
            strength = 0.0 if labels is None else 0.98**r if official else 1.0
            drawn = jnp.ones(K) if labels is None else labels
            key = naive.client_key(0, r, i)
            w[i] = local_round(models[i], params | {"head": head}, stats, x, y, key, generator, drawn, strength, official)
            ends.append(w[i])
            n.append(len(y))
            counts.append([int((y == c).sum()) for c in range(K)])
        share, counts = jnp.array(n) / sum(n), np.array(counts)
        heads = [end[0]["head"] for end in ends]
        seen = 1 + 2 * counts
        labels = jnp.asarray((counts.sum(0) > 0) if official else counts.sum(0), jnp.float32)
        key = naive.stream(0, SERVER, r)
        generator, moments = learn(generator, moments, labels, heads, share, seen / seen.sum(0), key, official, r * STEPS)
        if official:
            shared = naive.plus(shared, naive.mean([naive.minus(end, shared) for end in ends], n))
        head = shared[0]["head"] if official else naive.mean(heads, n)
    return shared if official else w, head, generator, labels


def sent_to(net, body=(), labels=(1.0, 2.0, 0.0)):
    made = init_generator(jax.random.key(1), K, NOISE, HIDDEN, 6)
    return Sent(body, net.params["head"], made, jnp.asarray(labels))


def without_head(net):
    return net._replace(params={name: p for name, p in net.params.items() if name != "head"})


class FedGenTest(chex.TestCase):
    @parameterized.named_parameters(("mixed", "fedgen"), ("official", "fedgen_official"))
    def test_equals_the_loops(self, name):
        _, before, after = toy.reference(name)
        official = name == "fedgen_official"
        bodies, head, generator, labels = oracle(2, before.server.generator, official)
        chex.assert_trees_all_close(after.server.head, head, atol=1e-5)
        chex.assert_trees_all_close(tuple(after.server.generator), generator, atol=2e-5)
        np.testing.assert_array_equal(after.server.labels, labels)
        if official:
            params, stats = bodies
            chex.assert_trees_all_close(after.server.body.params["body"], params["body"], atol=1e-5)
            chex.assert_trees_all_close(after.server.body.stats, stats, atol=1e-5)
        for i in range(0 if official else toy.CLIENTS):
            found = jax.tree.map(lambda x, i=i: x[i // 2], after.clients[i % 2])
            params, stats = bodies[i]
            chex.assert_trees_all_close(found.params, {n: p for n, p in params.items() if n != "head"}, atol=1e-5)
            chex.assert_trees_all_close(found.stats, stats, atol=1e-5)
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), before.server.generator, after.server.generator)
        self.assertEqual(moved.params["hidden"].pop("bias"), 0)  # normalised away
        self.assertGreater(min(jax.tree.leaves(moved)), 1e-4)

    def test_without_its_terms_it_is_fedavg_or_shares_the_head_alone(self):
        net = MODEL.init(jax.random.key(0))
        there = one_round(compiled(fedavg), net).uplink
        for labels, official, mixed in (((1.0,) * K, OFF | {"variant": "official"}, OFF), ((0.0,) * K, None, ALPHA)):
            if official is not None:
                out = one_round(compiled(fedgen, **official), sent_to(net, without_head(net), labels))
                chex.assert_trees_all_close(out.uplink[0], without_head(there), atol=1e-7)
                chex.assert_trees_all_close(out.uplink[1], there.params["head"], atol=1e-7)
            out = one_round(compiled(fedgen, **mixed), sent_to(net, (), labels), without_head(net))  # no label known: likewise
            chex.assert_trees_all_close(out.uplink[1], there.params["head"], atol=1e-7)
        self.assertEqual(int(out.uplink[2].sum()), int(rows_of(0).size))

    def test_terms_fade(self):
        """In round r by decay to the power r."""
        net, later = MODEL.init(jax.random.key(0)), toy.task().bind(((), ()), 2)
        faded = one_round(compiled(fedgen, task=later, decay=0.5, **ALPHA | {"alpha": 4.0}), sent_to(net), without_head(net))
        plain = one_round(compiled(fedgen, **ALPHA), sent_to(net), without_head(net))
        chex.assert_trees_all_close(faded.state, plain.state, atol=1e-7)

    def test_the_generator_learns_what_the_heads_say_or_stays(self):
        """With a hundred steps its features are of the labels that it is asked for; frozen, it is as it was, statistics too."""
        net = MODEL.init(jax.random.key(0))
        heads = jax.tree.map(lambda p: jnp.zeros((2, *p.shape)), net.params["head"])
        collected = (), heads, jnp.asarray([[2.0, 1.0, 0.0], [1.0, 0.0, 3.0]])
        cohort, noise = Cohort(jnp.array([6, 1]), jnp.array([3, 4])), jax.random.uniform(jax.random.key(5), (30, NOISE))
        y, right = jnp.arange(30) % K, []
        for frozen in (False, True):
            algorithm = fedgen(toy.task(), optimizer=local_training.sgd(0.1), generator_frozen=frozen, generator_lr=0.02, **TOY)
            server = algorithm.server_init(jax.random.key(0))
            after, said = jax.jit(algorithm.server_update)(server, collected, cohort, jax.random.key(3))
            z = generate(after.generator, noise, y, K, False)[0]
            right.append(float(jnp.mean(jnp.argmax(MODEL.head(net, z), 1) == y)))
            self.assertEqual(said["generator_loss"][1], 0 if frozen else 100)
            if frozen:
                chex.assert_trees_all_equal(after.generator, server.generator)
        self.assertGreater(right[0], 0.9)

    def test_nobody_came(self):
        for variant in ("mixed", "official"):
            algorithm = fedgen(toy.task(), optimizer=local_training.sgd(0.1), variant=variant, **TOY)
            server = algorithm.server_init(jax.random.key(0))._replace(labels=jnp.array([1.0, 0.0, 2.0]))
            nothing = jax.tree.map(lambda p: jnp.full((2, *p.shape), jnp.nan), server.head)
            body = jax.tree.map(jnp.zeros_like, server.body)
            cohort = Cohort(jnp.array([8, 8]), jnp.array([0, 0]))
            after, _ = jax.jit(algorithm.server_update)(server, (body, nothing, jnp.ones((2, K))), cohort, jax.random.key(3))
            chex.assert_trees_all_equal(after, server)

    def test_the_diversity_term(self):
        rng = np.random.default_rng(0)
        eps, z = (jnp.asarray(rng.normal(size=(5, d)), jnp.float32) for d in (NOISE, 6))
        pairs = [np.mean((eps[a] - eps[b]) ** 2) * np.mean(np.abs(z[a] - z[b])) for a in range(5) for b in range(5)]
        self.assertAlmostEqual(float(diversity_loss(eps, z)), float(np.exp(-np.mean(pairs))), places=6)
        self.assertLess(diversity_loss(eps, z), 1)
        self.assertEqual(diversity_loss(eps, jnp.ones((5, 6))), 1)
        self.assertEqual(diversity_loss(jnp.ones((5, NOISE)), z), 1)

    def test_numbers(self):
        """Of the generator with 10 and with 100 classes (FedHPL, Table 9: 0.507 and 0.551 of 2^20)."""
        numbers = [
            count_parameters(jax.eval_shape(lambda k=k: init_generator(jax.random.key(0), k, 512, 512, 512)).params)
            for k in (10, 100)
        ]
        self.assertEqual(numbers, [531_456, 577_536])
        self.assertEqual([round(n / 2**20, 3) for n in numbers], [0.507, 0.551])
        self.assertEqual([uplink_numbers(fedgen, k) for k in (10, 100)], [5_130 + 10, 51_300 + 100])  # head, and label counts
        generator = (NOISE + K + 1) * HIDDEN + 2 * HIDDEN + (HIDDEN + 1) * 6 + 2 * HIDDEN  # with its statistics
        head, body = 6 * K + K, 5 * 6 + 6 + 5
        shapes = toy.reference("fedgen")[0].spec.shapes
        self.assertEqual((shapes.up, shapes.down), (4 * (head + K), 4 * (head + generator + K)))
        shapes = toy.reference("fedgen_official")[0].spec.shapes
        self.assertEqual((shapes.up, shapes.down), (4 * (body + head + K), 4 * (body + head + generator + K)))

    def test_features_of_different_number_are_refused(self):
        make = functools.partial(fedgen, optimizer=local_training.sgd(0.1), batch=toy.BATCH)
        with self.assertRaisesRegex(ValueError, "toy6 has 6, toy7 has 7; fedgen exchanges features"):
            simulator.Simulator(simulator.build_spec(toy.groups(make, mixed=True), toy.data(), plan=client_loop.Plan(1, 1)))

    @parameterized.parameters(
        (dict(variant="released"), "unknown variant 'released'; allowed: mixed, official"),
        (dict(alpha=-1.0), "alpha=-1.0 must be at least 0"),
        (dict(generator_steps=-1), "generator_steps=-1 must be at least 0"),
        (dict(noise=0), "noise=0 must be at least 1"),
        (dict(generator_batch=0), "generator_batch=0 must be at least 1"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            fedgen(toy.task(), optimizer=local_training.sgd(0.1), **arguments)
