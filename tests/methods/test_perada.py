"""PerAda in loops, with its distillation step by step, and its limits."""

import functools
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort, Net
from fedjax_core.engine import simulator
from fedjax_core.training import local_training
from fedjax_core.training.local_batch_norm import with_local_statistics
from methods.ditto import ditto
from methods.perada import perada
from tests import naive, toy
from tests.methods.test_fedper import STEPS, first_round, one

SERVER = 5  # stream
MODEL = toy.model(outputs=toy.CLASSES + 2)


def pulled(params, stats, x, y, given):
    """Cross-entropy + lam |v - w|^2."""
    lam, w = given
    outputs, stats = MODEL.apply(Net(params, stats), x, train=True)
    ce = naive.cross_entropy(outputs["logits"], y)
    apart = sum(jnp.sum((a - b) ** 2) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(w), strict=True))
    return ce + lam * apart, (stats, outputs["logits"], ce)


def distilled(r, w, came, public):
    teacher = sum(MODEL.apply(Net(*w_i), public.x)[0]["logits"] for w_i in came) / len(came)
    return naive.distil(MODEL, *w, public.x, teacher, naive.stream(0, SERVER, r))


def oracle(rounds, lam):
    """Server's and all clients' networks."""
    clients, public = naive.rows(toy.data()), toy.task_with_public().public
    w = tuple(MODEL.init(naive.stream(0, naive.INIT)))
    v = [w] * len(clients)
    for r in range(rounds):
        came = []
        for i in naive.cohort(0, r, len(clients), 5):
            key = naive.client_key(0, r, i)
            v[i] = naive.train(MODEL, *v[i], *clients[i], key, epochs=2, whole=pulled, given=(lam, w[0]), **STEPS)[:2]
            came.append(naive.train(MODEL, *w, *clients[i], key, epochs=2, **STEPS)[:2])
        w = distilled(r, naive.mean(came, [1] * len(came)), came, public)
    return w, v


class PerAdaTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("perada")
        w, v = oracle(2, 0.35)
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=5e-5)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(tuple(one(state.clients[0], i)), v[i], atol=5e-5)

    def test_without_distillation_it_is_ditto(self):
        out, expected = (first_round(m, epochs=2, lam=lam, weights="uniform")[2] for m, lam in ((perada, 0.35), (ditto, 0.7)))
        chex.assert_trees_all_equal((out.state, out.uplink), (expected.state, expected.uplink))

    def test_whom_all_clients_equal_is_taught_nothing(self):
        """A teacher that is the student has no slope, one that differs has; absent clients are no teachers. By plain steps, for
        Adam's are as long for a slope of rounding; without batch statistics, which the student's training would move."""
        plain = lambda lr, anneal: local_training.sgd(lr, anneal=anneal)
        kd = {"on": True, "epochs": 2, "batch": 4, "lr": 1.0, "temperature": 2.0}
        task = toy.task_with_public(statistics=False)
        method = perada(task.bind(jax.device_put(task.bound_arrays), 0), optimizer=local_training.sgd(0.1), distil=kd)
        server = method.server_init(jax.random.key(0))
        cohort = Cohort(jnp.arange(3), jnp.array([4, 6, 0]))
        found = []
        with mock.patch.object(local_training, "adam", plain):
            update = jax.jit(method.server_update)
            for far in (0.0, 1.0):
                deltas = jax.tree.map(lambda w, far=far: jnp.stack([far + 0 * w, -far + 0 * w, 9 + w]), server.net)
                new, said = update(server, deltas, cohort, jax.random.key(1))
                moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), new.net, server.net)
                found.append((max(jax.tree.leaves(moved)), float(said["distillation"][0]), int(said["distillation"][1])))
        (still, no_kl, rows), (moved, kl, _) = found
        self.assertEqual(rows, 2 * toy.PUBLIC)
        self.assertLess(max(still, abs(no_kl)), 1e-5)
        self.assertGreater(min(moved, kl), 1e-2)
        ended = perada(
            task.bind(jax.device_put(task.bound_arrays), 3), optimizer=local_training.sgd(0.1), distil=kd | {"rounds": 3}
        )
        deltas = jax.tree.map(lambda w: jnp.stack([1 + 0 * w, -1 + 0 * w, 9 + w]), server.net)
        mean, _ = jax.jit(ended.server_update)(server, deltas, cohort, jax.random.key(1))  # of the two that came, and no more
        chex.assert_trees_all_close(mean.net, server.net, atol=1e-6)

    def test_a_server_without_batch_statistics_is_refused(self):
        build = functools.partial(perada, optimizer=local_training.sgd(0.1), batch=toy.BATCH, distil={"on": True, "batch": 4})
        sim = simulator.Simulator(
            simulator.build_spec(toy.groups(with_local_statistics(build), task=toy.task_with_public), toy.data(), cohort=5)
        )
        with self.assertRaisesRegex(ValueError, "^distil.on=True: with statistics='local' the server has no batch statistics"):
            sim.run_rounds(sim.init(0), 1)

    def test_released_has_no_pull_and_begins_in_the_second_round(self):
        a, b = (first_round(perada, round_num=1, lam=lam, variant="released") for lam in (0.5, 5.0))
        chex.assert_trees_all_equal(a[2].state, b[2].state)
        self.assertGreater(np.abs(a[2].state.params["head"]["bias"] - a[1].params["head"]["bias"]).max(), 1e-3)
        _, before, out = first_round(perada, variant="released")
        chex.assert_trees_all_equal(out.state, jax.device_get(before))

    def test_what_travels(self):
        shapes = toy.reference("perada")[0].spec.shapes  # nothing more for the distillation
        numbers = (5 * 6 + 6) + (6 * 5 + 5) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(lam=-1.0), "^lam=-1.0 must be at least 0$"),
        (dict(variant="printed"), "unknown variant 'printed'"),
        (dict(distil={"on": True}), "distil.on=True needs public examples, task.public is empty"),
        (dict(distil={"temperature": 0.0}), "^distil.temperature=0.0 must be positive$"),
        (dict(distil={"steps": 5}), "unknown option of distil 'steps'"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            perada(toy.task(), optimizer=local_training.sgd(0.1), **arguments)

    def test_logits_of_episodes_are_not_distilled(self):
        task = toy.task_with_public().wrap_model(lambda model: model._replace(is_episodic=True))
        perada(task, optimizer=local_training.sgd(0.1))
        with self.assertRaisesRegex(ValueError, "^perada with distil.on=True exchanges mean logits of classes"):
            perada(task, optimizer=local_training.sgd(0.1), distil={"on": True})
