"""pFedPT in loops with the frame written out, and its limits.

On the toy network without its normalisation, which takes the batch's mean, and so any frame, away from the inputs in training.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import ClientData, Examples, Net
from fedjax_core.task import Model, make_task
from fedjax_core.training import local_training
from fedjax_core.training.augment import pipeline
from methods.fedavg import fedavg
from methods.pfedpt import frame_indices, pfedpt
from tests import naive, toy
from tests.methods.test_fedavg import PLAIN as MODEL
from tests.methods.test_fedper import STEPS, ended, first_round, made, one, simulate

PROMPT = 0x707274


def prompted(x, p):
    """A frame of one entry at either end, in units of half a pixel."""
    return jnp.concatenate([x[:, :1] + 0.5 * p[0], x[:, 1:-1], x[:, -1:] + 0.5 * p[1]], 1)


def framed(params, stats, x, y, given):
    del given
    outputs, stats = MODEL.apply(Net({"body": params["body"], "head": params["head"]}, stats), prompted(x, params["p"]), train=True)
    ce = naive.cross_entropy(outputs["logits"], y)
    return ce, (stats, outputs["logits"], ce)


def start(i):
    return jax.random.normal(jax.random.fold_in(jax.random.fold_in(naive.stream(0, naive.INIT), PROMPT), i), (2,))


def oracle(rounds):
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(0, naive.INIT)))
    p = [start(i) for i in range(len(clients))]
    for r in range(rounds):
        deltas, share = [], []
        for i in naive.cohort(0, r, len(clients), 5):
            (x, y), key = clients[i], naive.client_key(0, r, i)
            settings = dict(STEPS, whole=framed)
            first = jax.random.fold_in(key, PROMPT)
            a = naive.train(MODEL, w[0] | {"p": p[i]}, w[1], x, y, first, epochs=1, chosen=("p",), **settings | {"lr": 0.3})
            b = naive.train(MODEL, a.params, a.stats, x, y, key, epochs=2, chosen=("body", "head"), **settings)
            p[i] = b.params["p"]
            deltas.append(naive.minus(({name: b.params[name] for name in w[0]}, b.stats), w))
            share.append(len(y))
        w = naive.plus(w, naive.mean(deltas, share))
    return w, p


class PFedPTTest(chex.TestCase):
    def test_equals_the_loops(self):
        state = ended(made(pfedpt, pad=1, prompt_epochs=1, prompt_lr=0.3, epochs=2), False)
        w, p = oracle(2)
        chex.assert_trees_all_close(tuple(state.server), w, atol=5e-6)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(one(state.clients[0], i), p[i], atol=5e-6)
            self.assertGreater(np.abs(p[i] - start(i)).max(), 1e-4)

    def test_without_a_frame_it_is_fedavg(self):
        expected = first_round(fedavg, epochs=2)[2].uplink
        out = first_round(pfedpt, pad=0, epochs=2, prompt_epochs=0)[2]
        chex.assert_trees_all_close(out.uplink, expected, atol=1e-6)
        algorithm = made(pfedpt, pad=1, epochs=2, prompt_epochs=0)(toy.task())  # nor with a frame of zeros that never learns
        out = toy.update_client(algorithm, algorithm.server_init(jax.random.key(3)), jnp.zeros(2))
        chex.assert_trees_all_close(out.uplink, expected, atol=1e-6)

    def test_each_phase_moves_its_own(self):
        _, prompt, out = first_round(pfedpt, False, pad=1, epochs=0, prompt_epochs=1)
        self.assertFalse(any(np.any(leaf) for leaf in jax.tree.leaves(out.uplink.params)))
        self.assertGreater(np.abs(out.state - prompt).max(), 1e-4)
        _, prompt, out = first_round(pfedpt, False, pad=1, epochs=1, prompt_epochs=0)
        np.testing.assert_array_equal(out.state, prompt)

    def test_the_frame_of_an_image(self):
        for shape, pad, numbers in (
            ((32, 32, 3), 4, 1344),
            ((8, 8, 1), 1, 28),
            ((8, 8, 1), 0, 0),
            ((6, 4, 2), 2, 48),
            ((5,), 1, 2),
        ):
            place = frame_indices(shape, pad)
            self.assertEqual(len(place[0]), numbers)
            marked = np.zeros(shape)
            marked[place] = 1
            self.assertEqual(marked.sum(), numbers)
            inside = marked[pad : shape[0] - pad]
            inside = inside[:, pad : shape[1] - pad] if len(shape) > 1 else inside
            self.assertFalse(inside.any())

    def test_bytes_are_scaled_as_the_network_scales_them(self):
        """A prompt of zeros leaves an image of bytes what it was to a network that divides bytes by 255."""

        def apply(net, x, key=None, train=False, mask=None):
            x = x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x
            return {"logits": x, "features": x}, net.stats

        task = dataclasses.replace(toy.task(), network=lambda frozen: MODEL._replace(apply=apply))
        predict = pfedpt(task, optimizer=local_training.sgd(0.1), pad=1).predict["personal"]
        x = np.arange(10, dtype=np.uint8).reshape(2, 5)
        logits = predict(MODEL.init(jax.random.key(0)), jnp.asarray([0.0, 2.0]), x)["logits"]
        np.testing.assert_allclose(logits, x / 255 + np.array([0, 0, 0, 0, 1.0]), rtol=1e-6)

    def test_the_frame_is_added_behind_augmentation(self):
        """Mirrored by augmentation or beforehand, images have the frame where evaluation has it."""
        shape, kernel = (4, 4, 1), jax.random.normal(jax.random.key(3), (16, 3))

        def apply(net, x, key=None, train=False, mask=None):
            z = x.reshape(len(x), -1)
            return {"logits": z @ net.params["head"]["kernel"], "features": z}, net.stats

        plain = Model(lambda key: Net({"head": {"kernel": kernel}}, ()), apply, None, None)
        x, y = jax.random.uniform(jax.random.key(4), (6, *shape)), jnp.arange(6) % 3

        def trained(model, x):
            task = make_task(model, classes=3, population=1, shape=shape)
            made = pfedpt(task, optimizer=local_training.sgd(0.1), pad=1, epochs=1, prompt_epochs=1, batch=3)
            client = made.client_init(jax.random.key(0), made.server_init(jax.random.key(0)), 0)
            data = ClientData(Examples(x, y), jnp.arange(6), jnp.int32(6))
            out = made.client_update(plain.init(None), client, data, jax.random.key(1))
            return out.state, out.uplink, out.metrics

        mirrored = pipeline.with_augmentation(plain, lambda key, image: image[:, ::-1])
        found, wanted, other = trained(mirrored, x), trained(plain, x[:, :, ::-1]), trained(plain, x)
        chex.assert_trees_all_close(found, wanted, atol=1e-6)
        self.assertGreater(np.abs(found[0] - other[0]).max(), 1e-3)

    def test_what_travels(self):
        shapes = toy.reference("pfedpt")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(pad=3), r"pad=3 must be at least 0 and at most half of a side of \(5,\)"),
        (dict(pad=-1), "pad=-1"),
        (dict(prompt_epochs=-1), "prompt_epochs=-1 must be at least 0"),
        (dict(prompt_lr=0.0), "^prompt_lr=0.0 must be positive$"),
        (dict(prompt_momentum=1.0), r"^prompt_momentum=1.0 must be in \[0, 1\)$"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(pfedpt, **arguments))

    def test_a_task_without_shape_is_refused(self):
        with self.assertRaisesRegex(ValueError, "task.shape=None: pfedpt must know"):
            pfedpt(dataclasses.replace(toy.task(), shape=None), optimizer=local_training.sgd(0.1))
