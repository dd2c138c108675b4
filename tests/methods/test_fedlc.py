"""FedLC, FedRS and logit adjustment in loops, and their limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.fedlc import fedlc, scale_and_shift
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedprox import compiled, one_round


def altered(params, stats, x, y, given):
    """Cross-entropy of logits that are scaled and shifted."""
    scale, shift = given
    outputs, stats = MODEL.apply(type(MODEL.init(jax.random.key(0)))(params, stats), x, train=True)
    logits = outputs["logits"]
    return naive.cross_entropy(scale[None] * logits + shift[None], y), (stats, logits, naive.cross_entropy(logits, y))


def averaged(seed, rounds, whole, given, *, cohort=5):
    """FedAvg by examples with a loss of each client's own: `given` is of the client and the model sent."""
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(seed, naive.INIT)))
    for r in range(rounds):
        deltas, share = [], []
        for k in naive.cohort(seed, r, len(clients), cohort):
            settings = dict(epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5, whole=whole, given=given(k, w))
            w_k = naive.train(None, *w, *clients[k], naive.client_key(seed, r, k), **settings)
            deltas.append(naive.minus((w_k.params, w_k.stats), w))
            share.append(len(clients[k][1]))
        w = naive.plus(w, naive.mean(deltas, share))
    return w


def terms(k, variant, tau=1.0, alpha=0.5):
    """What client k's logits are multiplied by and what is added, from its labels."""
    labels = toy.data().train.y[toy.data().train_index[k]].tolist()
    scale, shift = [], []
    for c in range(toy.CLASSES):
        n_c = labels.count(c)
        absent = {"fedrs": alpha}.get(variant, 1.0)
        scale.append(absent if n_c == 0 else 1.0)
        calibrated = {"fedlc": lambda n: -tau * n**-0.25, "logit_adjustment": lambda n: tau * np.log(n / len(labels))}
        shift.append(0.0 if variant == "fedrs" else -1e8 if n_c == 0 else calibrated[variant](n_c))
    return np.array(scale, np.float32), np.array(shift, np.float32)


class FedLCTest(chex.TestCase):
    @parameterized.parameters(("fedlc", "fedlc", dict(tau=0.7)), ("fedrs", "fedrs", dict(alpha=0.3)))
    def test_equals_the_loops(self, name, variant, options):
        _, _, after = toy.reference(name)
        w = averaged(0, 2, altered, lambda k, w: terms(k, variant, **options))
        chex.assert_trees_all_close(tuple(after.server.net), w, atol=1e-5)

    @parameterized.parameters("fedlc", "logit_adjustment", "fedrs")
    def test_terms_are_the_formulas(self, variant):
        for k in (0, 2, 7):  # client 7 lacks a class, client 2 two
            counts = np.bincount(toy.data().train.y[toy.data().train_index[k]], minlength=toy.CLASSES).astype(np.float32)
            scale, shift = scale_and_shift(jnp.asarray(counts), variant, 1.0, 0.5)
            expected = terms(k, variant)
            np.testing.assert_allclose(scale, expected[0], rtol=1e-6)
            np.testing.assert_allclose(np.maximum(shift, -1e8), expected[1], rtol=1e-5)

    def test_the_released_form_of_fedrs(self):
        scale, _ = scale_and_shift(jnp.asarray([4.0, 0.0, 2.0]), "fedrs_released", 1.0, 0.5)
        np.testing.assert_allclose(scale, [1.0, 0.5, 0.75])

    @parameterized.parameters(
        (dict(variant="fedlc", tau=0.0),), (dict(variant="logit_adjustment", tau=0.0),), (dict(variant="fedrs", alpha=1.0),)
    )
    def test_limits_are_fedavg(self, options):
        """Also for a client that lacks a class."""
        net = MODEL.init(jax.random.key(0))
        plain, ours = (one_round(update, net, i=7) for update in (compiled(fedavg), compiled(fedlc, **options)))
        chex.assert_trees_all_close(ours.uplink, plain.uplink, atol=1e-6)

    @parameterized.parameters("fedlc", "logit_adjustment")
    def test_equal_counts_are_plain_cross_entropy(self, variant):
        shift = scale_and_shift(jnp.asarray([3.0, 3.0, 3.0]), variant, 1.0, 0.5)[1]
        logits = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)
        y = jnp.asarray([0, 1, 2, 1])
        np.testing.assert_allclose(naive.cross_entropy(logits + shift[None], y), naive.cross_entropy(logits, y), rtol=1e-6)

    @parameterized.parameters(("fedlc", 0.0), ("logit_adjustment", 0.0), ("fedrs", 0.5))
    def test_an_absent_class_gets_a_part_of_its_gradient(self, variant, part):
        """None of FedLC's and of logit adjustment's; alpha times that of the altered loss with FedRS."""
        scale, shift = scale_and_shift(jnp.asarray([3.0, 0.0, 1.0]), variant, 1.0, 0.5)
        logits, y = jnp.asarray([[0.3, 1.2, -0.4]]), jnp.asarray([0])
        gradient = jax.grad(lambda o: naive.cross_entropy(scale[None] * o + shift[None], y))(logits)[0, 1]
        by_altered = jax.grad(lambda o: naive.cross_entropy(o, y))(scale[None] * logits + shift[None])[0, 1]
        np.testing.assert_allclose(gradient, part * by_altered, atol=1e-7)
        self.assertEqual(bool(gradient == 0), part == 0)

    @parameterized.parameters(
        (dict(variant="lc"), "variant='lc' must be one of 'fedlc', 'logit_adjustment', 'fedrs', 'fedrs_released'"),
        (dict(tau=-1.0), "^tau=-1.0 must be .*at least 0$"),
        (dict(alpha=1.5), r"^alpha=1.5 must be .*in \[0, 1\]$"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            fedlc(toy.task(), optimizer=local_training.sgd(0.1), **wrong)

    def test_fedrs_of_a_client_with_all_classes_is_fedavg(self):
        """Client 0 has all of them, client 7 lacks one."""
        net, update = MODEL.init(jax.random.key(0)), compiled(fedlc, variant="fedrs", alpha=0.3)
        for i, is_same in ((0, True), (7, False)):
            self.assertEqual(bool(np.all(terms(i, "fedrs", alpha=0.3)[0] == 1)), is_same)
            plain, ours = (one_round(each, net, i=i).uplink.params for each in (compiled(fedavg), update))
            if is_same:
                chex.assert_trees_all_close(ours, plain, atol=1e-6)
            else:
                self.assertGreater(np.abs(ours["head"]["bias"] - plain["head"]["bias"]).max(), 1e-3)

    @parameterized.parameters("fedlc", "logit_adjustment")
    def test_a_client_with_equal_counts_trains_as_in_fedavg(self, variant):
        """Softmax ignores a shift of all logits. Client 0 has three rows of each class."""
        self.assertEqual(np.bincount(naive.rows(toy.data())[0][1]).tolist(), [3, 3, 3])
        net = MODEL.init(jax.random.key(0))
        plain, ours = (one_round(update, net) for update in (compiled(fedavg), compiled(fedlc, variant=variant)))
        chex.assert_trees_all_close(ours.uplink, plain.uplink, atol=1e-6)
