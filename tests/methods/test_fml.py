"""FML in loops over clients and minibatches, and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from configs import fml as config
from fedjax_core import experiment
from fedjax_core.algorithm import Net
from methods.fml import fml
from tests import naive, toy
from tests.methods.test_fedper import ended, first_round, made, one, simulate
from tests.methods.test_local import of

MODELS = toy.model(6), toy.model(7)


@functools.cache
def gradient(model):
    """Gradient and new statistics of own CE + (1 - own) KL(softmax(other) | softmax(logits))."""

    def value(params, stats, x, y, other, own):
        outputs, new = model.apply(Net(params, stats), x, train=True)
        p, q = jax.nn.softmax(other), jax.nn.softmax(outputs["logits"])
        kl = jnp.mean(jnp.sum(p * (jnp.log(p) - jnp.log(q)), 1))
        return own * naive.cross_entropy(outputs["logits"], y) + (1 - own) * kl, new

    return jax.jit(jax.grad(value, has_aux=True))


@functools.cache
def answers(model):
    return jax.jit(lambda params, stats, x: model.apply(Net(params, stats), x, train=True)[0]["logits"])


def mutual(pair, nets, x, y, key, own):
    """Two epochs of both models; `pair`: theirs, `own`: the weights of their labels."""
    nets, speeds = list(nets), [jax.tree.map(np.zeros_like, params) for params, _ in nets]
    for epoch in range(2):
        places = naive.order(key, epoch, len(y))
        for start in range(0, len(places), toy.BATCH):
            now = np.array(places[start : start + toy.BATCH])
            said = [answers(model)(*net, x[now]) for model, net in zip(pair, nets, strict=True)]
            for k in (0, 1):
                g, stats = gradient(pair[k])(*nets[k], x[now], y[now], said[1 - k], own[k])
                speeds[k] = naive.plus(g, speeds[k], 0.5)
                nets[k] = naive.plus(nets[k][0], speeds[k], -0.1), stats
    return nets


def oracle(models, rounds):
    """The server's network and all clients' personal ones; client i has the architecture at i modulo their number."""
    clients, key = naive.rows(toy.data()), naive.stream(0, naive.INIT)
    w, v = tuple(models[0].init(key)), [tuple(models[i % len(models)].init(key)) for i in range(toy.CLIENTS)]
    for r in range(rounds):
        memes = []
        for i in naive.cohort(0, r, len(clients), 5):
            pair = models[i % len(models)], models[0]
            v[i], meme = mutual(pair, (v[i], w), *clients[i], naive.client_key(0, r, i), (0.3, 0.6))
            memes.append(meme)
        w = naive.mean(memes, [1] * len(memes))
    return w, v


class FMLTest(chex.TestCase):
    @parameterized.named_parameters(("one", "fml", MODELS[:1]), ("two", "fml_mixed", MODELS))
    def test_equals_the_loops(self, name, models):
        state = toy.reference(name)[2]
        w, v = oracle(models, 2)
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=5e-6)
        for i in range(toy.CLIENTS):
            groups = len(models)
            chex.assert_trees_all_close(tuple(one(state.clients[i % groups], i // groups)), v[i], atol=5e-6)

    def test_by_labels_alone_they_are_locals_and_fedavgs(self):
        state = ended(made(fml, epochs=2, alpha=1.0, beta=1.0, weights="samples"))
        chex.assert_trees_all_close(state.server.net, toy.reference("fedavg")[2].server.net, atol=1e-6)
        for i in range(0, toy.CLIENTS, 2):
            chex.assert_trees_all_close(tuple(one(state.clients[0], i)), of(toy.reference("local")[2], i), atol=1e-6)

    def test_models_that_answer_alike_teach_nothing(self):
        """And without labels they stay where they began, all but their batch statistics."""
        _, before, out = first_round(fml, epochs=2, alpha=0.0, beta=0.0)
        chex.assert_trees_all_close(out.state.params, jax.device_get(before).params, atol=1e-6)
        chex.assert_trees_all_close(out.uplink.params, jax.tree.map(jnp.zeros_like, out.uplink.params), atol=1e-6)

    def test_each_is_taught_by_the_other(self):
        """Two that differ come nearer to each other's answers, with a weight of 0 for labels."""
        algorithm = made(fml, epochs=2, alpha=0.0, beta=1.0)(toy.task(statistics=False))
        model = toy.task(statistics=False).model
        w, v = (model.init(jax.random.key(k)) for k in (1, 2))
        x = jnp.asarray(toy.data().train.x[toy.data().train_index[0]])
        apart = lambda a, b: float(jnp.mean(jnp.abs(jax.nn.softmax(model.apply(a, x)[0]["logits"]) - jax.nn.softmax(b))))
        out = toy.update_client(algorithm, w, v)
        end = jax.tree.map(jnp.add, w, out.uplink)
        self.assertLess(apart(out.state, model.apply(end, x)[0]["logits"]), apart(v, model.apply(w, x)[0]["logits"]))

    def test_personal_models_of_their_own(self):
        common, fresh = (
            simulate(made(fml, fresh=is_fresh)).init(0).clients[0].params["head"]["kernel"] for is_fresh in (False, True)
        )
        np.testing.assert_array_equal(common[0], common[1])
        self.assertGreater(float(jnp.abs(fresh[0] - fresh[1]).max()), 1e-2)

    def test_what_travels(self):
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5  # of the meme, whatever the personal model
        for name in ("fml", "fml_mixed"):
            shapes = toy.reference(name)[0].spec.shapes
            self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        ({"train": "head"}, "^fml: several architectures need weights=None, train='all' and no adapter$"),
        (
            {"statistics": "local", "models": ("resnet8(width=4)", "mlp")},
            "^fml: with several architectures statistics='local' cannot",
        ),
    )
    def test_settings_that_do_not_fit(self, fields, message):
        settings = config.get_config("smoke")
        settings.update(fields)
        with self.assertRaisesRegex(ValueError, message):
            experiment.build(settings)

    @parameterized.parameters(
        (dict(alpha=1.5), r"^alpha=1.5 must be in \[0, 1\]"),
        (dict(beta=-0.5), "^beta=-0.5 must be"),
        (dict(weights="equal"), "weights='equal' is not one of"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(fml, **arguments))
