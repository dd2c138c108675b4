"""FFA-LoRA and its relatives against loops over a network with explicit factors."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.training import aggregators
from fedjax_core.uplink import compression
from methods.ffa_lora import ffa_lora
from tests import naive, toy
from tests.methods.test_fedper import SGD, STEPS, made

SCALE = 8.0  # alpha / rank, 16 / 2
EXACT = functools.partial(toy.task_adapted, dropout=0.0)


def first():
    """Returns the frozen kernel of the body, and the initial A, B and head; the body's bias and mean are zero."""
    task = EXACT()
    params = jax.device_get(task.model.init(naive.stream(0, naive.INIT)).params)
    own = params["adapter"]["body"]
    chex.assert_trees_all_equal((task.frozen.params["body"]["bias"], task.frozen.stats["mean"]), (np.zeros(6), np.zeros(5)))
    return np.asarray(task.frozen.params["body"]["kernel"]), {"a": own["a"], "b": own["b"], "head": params["head"]}


def lora_loss(params, stats, x, y, kernel):
    """Cross-entropy of tanh(x (W + s A B)) H + h."""
    hidden = jnp.tanh(x @ (kernel + SCALE * params["a"] @ params["b"]))
    logits = hidden @ params["head"]["kernel"] + params["head"]["bias"][None]
    ce = naive.cross_entropy(logits, y)
    return ce, (stats, logits, ce)


def train(i, r, params, kernel, chosen=None):
    """Returns the parameters of client i after round r's training."""
    x, y = naive.rows(toy.data())[i]
    key = naive.client_key(0, r, i)
    return naive.train(None, params, {}, x, y, key, epochs=2, whole=lora_loss, given=kernel, chosen=chosen, **STEPS).params


def cohort(r):
    return naive.cohort(0, r, toy.CLIENTS, 5)


def mean(values, weights=None):
    return naive.mean(values, [1] * len(values) if weights is None else weights)


def logits(params, kernel, x):
    return lora_loss(params, {}, x, np.zeros(len(x), int), kernel)[1][1]


def flat(net):
    """Returns the trained arrays of a `Net` of the library, named as those of the loops."""
    return {**net.params["adapter"]["body"], "head": net.params["head"]}


def after_one_round(name):
    """Returns the server's network after one round of the library."""
    sim, before, _ = toy.reference(name)
    return jax.device_get(sim.run_rounds(sim.compiled.put(before), 1)[0].server.net)


def oracle(rounds):
    kernel, w = first()
    for r in range(rounds):
        ends = [train(i, r, w, kernel, ("b", "head")) for i in cohort(r)]
        w = {"a": w["a"], "b": mean([end["b"] for end in ends]), "head": mean([end["head"] for end in ends])}
    return kernel, w


class FFALoRATest(chex.TestCase):
    def test_equals_the_loop(self):
        chex.assert_trees_all_close(flat(toy.reference("ffa_lora")[2].server.net), oracle(2)[1], atol=2e-6)

    def test_a_never_changes(self):
        _, before, after = toy.reference("ffa_lora")
        a = [flat(state.server.net)["a"] for state in (before, after)]
        np.testing.assert_array_equal(*a)
        np.testing.assert_array_equal(a[0], first()[1]["a"])

    def test_the_mean_is_exact(self):
        """The server's kernel is the mean of the kernels that clients have trained."""
        kernel, w = first()
        ends = [train(i, 0, w, kernel, ("b", "head")) for i in cohort(0)]
        kernels = [kernel + SCALE * end["a"] @ end["b"] for end in ends]
        end = flat(after_one_round("ffa_lora"))
        np.testing.assert_allclose(kernel + SCALE * end["a"] @ end["b"], mean(kernels), atol=1e-6)

    def test_without_training_it_is_the_base_model(self):
        sim, before, _ = toy.reference("ffa_lora")
        x = toy.data().test.x
        outputs = sim.spec.abstract_algorithm(0).predict["global"](before.server.net, (), x)
        np.testing.assert_allclose(outputs["logits"], logits(first()[1], first()[0], x), atol=1e-6)

    def test_what_travels(self):
        """B and the head, both ways; A is drawn from the seed."""
        shapes = toy.reference("ffa_lora")[0].spec.shapes
        self.assertEqual((shapes.down, shapes.up), (4 * (2 * 6 + 6 * 3 + 3),) * 2)

    def test_what_travels_in_half_precision(self):
        downlink = compression.compress_broadcast("float16")
        shapes = toy.simulate("ffa_lora", transforms=(downlink,)).spec.shapes
        self.assertEqual(shapes.down, 2 * (2 * 6 + 6 * 3 + 3))

    def test_weights(self):
        for name, weight_fn in aggregators.WEIGHT_FNS.items():
            self.assertIs(made(ffa_lora, weights=name)(toy.task_adapted()).collect.weight_fn, weight_fn)

    @parameterized.parameters((dict(weights="sample"), "weights='sample'"), (dict(epochs=-1), "epochs=-1"))
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            made(ffa_lora, **arguments)(toy.task_adapted())

    def test_needs_an_adapter(self):
        with self.assertRaisesRegex(ValueError, "ffa_lora needs a network with an adapter; set config.adapter"):
            made(ffa_lora)(toy.task())


class LoRATest(chex.TestCase):
    @parameterized.parameters("fedit", "ffa_lora", "fedsa_lora", "fedex_lora", "flora", "flexlora", "hetlora")
    def test_before_training_a_network_is_its_base(self, name):
        task, key, x = EXACT(), jax.random.key(1), toy.data().test.x
        algorithm = toy.METHODS[name](task, optimizer=SGD)
        server = algorithm.server_init(key)
        sent, client = algorithm.broadcast(server, 0), algorithm.client_init(key, server, 0)
        base = toy.model().init(jax.random.key(3))
        head = task.model.init(key).params["head"]
        expected = toy.model().apply(base._replace(params=base.params | {"head": head}), x)[0]["logits"]
        for predict in algorithm.predict.values():
            np.testing.assert_allclose(predict(sent, client, x)["logits"], expected, atol=1e-5)
