"""FedSAM, FedASAM, MoFedSAM in loops with two gradients a step, and the limits of sharpness-aware steps."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

from configs import fedavg as config
from fedjax_core import experiment
from fedjax_core.training import local_training, optimizers
from methods.fedavg import fedavg
from methods.fedcm import Server, fedcm
from methods.fedsam import fedsam
from methods.fedspeed import fedspeed
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fednova import effective
from tests.methods.test_fedprox import compiled, one_round, rows_of


def length(tree):
    return np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree)))


def top(params, gradient, rho, eta=None):
    """w + rho T^2 g / |T g|; T is |w| + eta, of biases 1, and 1 without eta."""
    sizes = jax.tree.map(np.ones_like, params)
    if eta is not None:
        sizes = {name: {"kernel": np.abs(part["kernel"]) + eta, "bias": sizes[name]["bias"]} for name, part in params.items()}
    norm = length(jax.tree.map(np.multiply, sizes, gradient))
    return jax.tree.map(lambda w, t, g: w + rho * t**2 * g / norm, params, sizes, gradient)


def train(params, stats, x, y, key, climb, step=lambda params, low, high: high, *, lr=0.1, momentum=0.5):
    """Local training: `climb` (params, gradient) -> where the second gradient is taken; `step` (params, gradients) -> direction."""
    params, velocity, steps = naive.arrays(params), jax.tree.map(np.zeros_like, naive.arrays(params)), 0
    find = naive.gradient(MODEL, naive.nothing)
    for epoch in range(2):
        places = naive.order(key, epoch, len(y))
        for start in range(0, len(y), toy.BATCH):
            now = np.array(places[start : start + toy.BATCH])
            low, (moved, *_) = naive.arrays(find(params, stats, x[now], y[now], ()))
            high, _ = naive.arrays(find(climb(params, low), stats, x[now], y[now], ()))
            stats, direction = moved, step(params, low, high)
            velocity = jax.tree.map(lambda v, d: (momentum * v + d).astype(np.float32), velocity, direction)
            params, steps = naive.plus(params, velocity, -lr), steps + 1
    return params, stats, steps


def oracle(seed, rounds, climb, beta=1.0):
    """The model's params and statistics; with beta the direction of the last round is mixed in and weights are uniform."""
    clients = naive.rows(toy.data())
    w, stats = MODEL.init(naive.stream(seed, naive.INIT))
    shared = jax.tree.map(np.zeros_like, w)
    for r in range(rounds):
        deltas, share, directions = [], [], []
        mix = lambda params, low, high, shared=shared: jax.tree.map(lambda g, d: beta * g + (1 - beta) * d, high, shared)
        for k in naive.cohort(seed, r, len(clients), 5):
            y, new, steps = train(w, stats, *clients[k], naive.client_key(seed, r, k), climb, mix)
            deltas.append(naive.minus((y, new), (w, stats)))
            share.append(len(clients[k][1]) if beta == 1 else 1)
            worth = 0.1 * effective(steps, 0.5)
            directions.append(jax.tree.map(lambda d, a=worth: -d / a, deltas[-1][0]))
        w, stats = naive.plus((w, stats), naive.mean(deltas, share))
        shared = naive.mean(directions, [1] * len(directions))
    return w, stats


def sharp(round):  # noqa: A002
    return optax.chain(local_training.sharpness_aware(0.3), local_training.sgd(0.1)(round))


class FedSAMTest(chex.TestCase):
    @parameterized.parameters(
        ("fedsam", dict(rho=0.3), 1.0), ("fedasam", dict(rho=0.5, eta=0.2), 1.0), ("mofedsam", dict(rho=0.3), 0.4)
    )
    def test_equals_the_loops(self, name, options, beta):
        _, _, after = toy.reference(name)
        climb = lambda params, gradient: top(params, gradient, **options)
        chex.assert_trees_all_close(tuple(after.server.net), oracle(0, 2, climb, beta), atol=1e-5)

    def test_rho_zero_is_the_parent(self):
        net = MODEL.init(jax.random.key(0))
        plain, ours = (one_round(update, net) for update in (compiled(fedavg), compiled(fedsam, rho=0.0)))
        chex.assert_trees_all_equal(ours.uplink, plain.uplink)
        sent = Server(net, jax.tree.map(lambda w: 0.1 * w, net.params))
        plain, ours = (one_round(update, sent) for update in (compiled(fedcm, alpha=0.4), compiled(fedsam, rho=0.0, beta=0.4)))
        chex.assert_trees_all_equal(ours.uplink, plain.uplink)

    def test_the_step_up_has_length_rho_and_none_of_a_zero_gradient(self):
        params, gradient = ({"w": jnp.asarray(x, jnp.float32), "v": jnp.float32(y)} for x, y in (([1, -2], 0.5), ([3, 0.1], -1)))
        up = optax.tree.sub(optimizers.Ascent(0.3).find_top(params, gradient), params)
        np.testing.assert_allclose(length(up), 0.3, rtol=1e-6)
        np.testing.assert_allclose(up["w"][0] / up["v"], -3, rtol=1e-5)
        raw = optax.tree.sub(optimizers.Ascent(0.3, normalized=False).find_top(params, gradient), params)
        chex.assert_trees_all_close(raw, optax.tree.scale(0.3, gradient), rtol=1e-6)
        for ascent in (optimizers.Ascent(0.3), optimizers.Ascent(0.3, eta=0.2), optimizers.Ascent(0.3, normalized=False)):
            chex.assert_trees_all_equal(ascent.find_top(params, optax.tree.zeros_like(params)), params)

    def test_adaptive_steps_do_not_feel_how_layers_share_their_scale(self):
        """ReLU networks without biases and eta 0: one layer times c, the next over c, and the loss at the top is the same."""
        rng = np.random.default_rng(0)
        x, a, b = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((6, 4), (4, 5), (5, 3)))
        loss = lambda params: jnp.mean((jax.nn.relu(x @ params["a"]) @ params["b"] - 1) ** 2)
        tops = []
        for c in (1.0, 3.0):
            params = {"a": a * c, "b": b / c}
            tops.append(float(loss(optimizers.Ascent(0.4, eta=0.0).find_top(params, jax.grad(loss)(params)))))
        np.testing.assert_allclose(tops[1], tops[0], rtol=1e-4)
        self.assertGreater(tops[0], float(loss({"a": a, "b": b})))

    def test_a_config_gives_any_method_sharpness_aware_steps(self):
        settings = config.get_config("smoke")
        settings.optimizer.sharpness = "asam(rho=0.3, eta=0.1)"
        optimizer = experiment.resolve(settings).optimizer
        self.assertEqual(optimizers.find_ascent(optimizer(0).init({"w": jnp.ones(2)})), optimizers.Ascent(0.3, 0.1))
        for wrong, message in [
            ("sap", "unknown sharpness 'sap'; allowed: sam, asam"),
            ("sam(rho=-1.0)", "rho=-1.0 must be at least 0"),
        ]:
            settings.optimizer.update(name="sgd", sharpness=wrong)
            with self.assertRaisesRegex(ValueError, message):
                experiment.resolve(settings)

    def test_the_steps_of_a_config_are_not_beside_the_methods_own(self):
        sharp = lambda round: optax.chain(local_training.sharpness_aware(0.05), local_training.sgd(0.1)(round))  # noqa: A006
        for method in (fedsam, fedspeed):
            with self.assertRaisesRegex(ValueError, "^optimizer.sharpness must be None with .*; it is Ascent.rho=0.05"):
                method(toy.task(), optimizer=sharp, rho=0.05)

    def test_links_before_it_get_the_gradients_of_the_top(self):
        """A proximal term and SCAFFOLD's control variates then belong to the loss that is trained."""
        net = MODEL.init(jax.random.key(0))
        sharp = lambda round: optax.chain(local_training.sharpness_aware(0.3), local_training.sgd(0.1)(round))  # noqa: A006
        tracked = lambda round: optax.chain(local_training.track_mean_gradient(), sharp(round))  # noqa: A006
        train_ = local_training.fit(local_training.supervised_loss(toy.task()), tracked(0), epochs=2, batch=toy.BATCH)
        trained = jax.jit(train_)(net, rows_of(0), jax.random.key(5))
        steps = trained.optimizer_state[0].steps
        expected = jax.tree.map(lambda new, old: (old - new) / (0.1 * steps), trained.net.params, net.params)
        chex.assert_trees_all_close(trained.optimizer_state[0].mean, expected, atol=1e-5)
        step = local_training.full_batch_step(local_training.supervised_loss(toy.task()), sharp(0), batch=4)
        with self.assertRaisesRegex(ValueError, "^optimizer.sharpness: "):
            jax.jit(step)(net, rows_of(0), jax.random.key(5))

    @parameterized.parameters(
        (dict(rho=-1.0), "^rho=-1.0 must be .*at least 0$"),
        (dict(eta=-1.0), "^eta=-1.0 must be .*at least 0"),
        (dict(beta=0.0), r"^beta=0.0 must be .*in \(0, 1\]$"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            fedsam(toy.task(), optimizer=local_training.sgd(0.1), **wrong)

    def test_mofedsam_of_the_own_gradient_alone_is_fedsam(self):
        """Whatever direction was sent: FedCM of a share of 1 with such steps, which beta=1 leaves out."""
        net = MODEL.init(jax.random.key(0))
        sent = Server(net, jax.tree.map(lambda w: 0.1 + w, net.params))
        mixed = one_round(compiled(fedcm, alpha=1.0, optimizer=sharp), sent)
        plain = one_round(compiled(fedsam, rho=0.3, beta=1.0), net)
        chex.assert_trees_all_close(mixed.uplink[0], plain.uplink, atol=1e-6)

    def test_adaptive_steps_for_weights_of_one_size_are_sams(self):
        """T = |w| + eta is 1 for all."""
        signs = jnp.asarray([[1.0, -1, 1], [-1, -1, 1]])
        params, gradient = (
            {"kernel": 0.75 * signs, "bias": jnp.asarray([0.2, -3.0])},
            {
                "kernel": jnp.asarray([[0.3, -2, 0.1], [1.0, 0.5, 4.0]]),
                "bias": jnp.asarray([0.4, -0.7]),
            },
        )
        tops = [optimizers.Ascent(0.3, eta=eta).find_top(params, gradient) for eta in (None, 0.25)]
        chex.assert_trees_all_equal(*tops)
