"""pFedSD in loops, and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Net
from methods.fedavg import fedavg
from methods.pfedsd import Client, pfedsd
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import STEPS, made, one, simulate
from tests.methods.test_fedprox import compiled, one_round


def distilled(params, stats, x, y, given):
    """Cross-entropy + lambda tau^2 KL(teacher || student) at temperature tau, the teacher in evaluation mode."""
    lam, tau, teacher = given
    outputs, stats = MODEL.apply(Net(params, stats), x, train=True)
    p = jax.nn.softmax(MODEL.apply(Net(*teacher), x)[0]["logits"] / tau)
    q = jax.nn.softmax(outputs["logits"] / tau)
    ce = naive.cross_entropy(outputs["logits"], y)
    return ce + lam * tau**2 * jnp.mean(jnp.sum(p * (jnp.log(p) - jnp.log(q)), 1)), (stats, outputs["logits"], ce)


def oracle(rounds, lam, tau):
    """The server's network, every client's previous one, and who took part at all."""
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(0, naive.INIT)))
    previous, seen = [None] * len(clients), set()
    for r in range(rounds):
        deltas, share = [], []
        for i in naive.cohort(0, r, len(clients), 5):
            x, y = clients[i]
            given = (0.0, tau, w) if previous[i] is None else (lam, tau, previous[i])
            end = naive.train(MODEL, *w, x, y, naive.client_key(0, r, i), epochs=2, whole=distilled, given=given, **STEPS)
            previous[i] = end.params, end.stats
            seen.add(i)
            deltas.append(naive.minus(previous[i], w))
            share.append(len(y))
        w = naive.plus(w, naive.mean(deltas, share))
    return w, previous, seen


class PFedSDTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("pfedsd")
        w, previous, seen = oracle(2, 0.5, 2.0)
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=5e-6)
        both = set(naive.cohort(0, 0, 8, 5)) & set(naive.cohort(0, 1, 8, 5))
        self.assertTrue(both)
        for i in seen:
            chex.assert_trees_all_close(tuple(one(state.clients[0].previous, i)), previous[i], atol=5e-6)
            self.assertEqual(state.clients[0].rounds[i], 1 + (i in both))

    def test_without_distillation_it_is_fedavg(self):
        w, teacher = (MODEL.init(jax.random.key(k)) for k in (0, 1))
        out = one_round(compiled(pfedsd, lam=0.0), w, Client(teacher, jnp.ones(())))
        chex.assert_trees_all_close(out.uplink, one_round(compiled(fedavg), w).uplink, atol=1e-7)

    def test_round_one_is_fedavg(self):
        ends = []
        for name in ("pfedsd", "fedavg"):
            sim, before, _ = toy.reference(name)
            state, _ = sim.run_rounds(sim.compiled.put(before), 1)
            ends.append(jax.device_get(state.server.net))
        chex.assert_trees_all_close(*ends, atol=1e-7)

    def test_whoever_never_took_part_has_the_servers_model(self):
        sim, before, state = toy.reference("pfedsd")
        predict, x = sim.spec.algorithm(0, sim.spec.host_arrays, 2).predict["personal"], toy.data().test.x
        known = one(state.clients[0], 0)
        for client, net in ((one(before.clients[0], 0), state.server.net), (known, known.previous)):
            logits = predict(state.server.net, client, x)["logits"]
            np.testing.assert_allclose(logits, MODEL.apply(net, x)[0]["logits"], atol=1e-6)
        self.assertEqual((before.clients[0].rounds[0], known.rounds > 0), (0, True))

    def test_what_travels(self):
        shapes = toy.reference("pfedsd")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(lam=-1.0), "^lam=-1.0 must be at least 0$"), (dict(temperature=0.0), "^temperature=0.0 must be positive$")
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(pfedsd, **arguments))
