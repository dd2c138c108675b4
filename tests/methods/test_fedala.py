"""FedALA in loops over epochs and minibatches of its mixture, and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from methods.fedala import Client, draw_window, fedala
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import STEPS, ended, made, one, personalise_key, personalised, simulate

ALA, WINDOW = 0x616C61, 0x77


def mixed(old, new, a, top):
    """The mixture of the entries `top`, the server's for the others."""
    return {
        name: jax.tree.map(lambda o, n, a: o + (n - o) * a, old[name], entry, a[name]) if name in top else entry
        for name, entry in new.items()
    }


def learned(w, old, a, x, y, key, *, epochs, eta, fraction, threshold, top):
    """(Theta_hat, W_i)."""
    (new, stats), gradient, losses = naive.arrays(tuple(w)), naive.gradient(MODEL, naive.nothing), []
    size = max(1, int(fraction * len(y)))
    start = int(jax.random.randint(jax.random.fold_in(key, WINDOW), (), 0, len(y) - size + 1))
    x, y = x[start : start + size], y[start : start + size]
    for n in range(epochs):
        total = 0.0
        places = naive.order(jax.random.fold_in(key, n), 0, size)
        for first in range(0, size, toy.BATCH):
            now = np.array(places[first : first + toy.BATCH])
            g, (_, _, ce) = naive.arrays(gradient(mixed(old, new, a, top), stats, x[now], y[now], ()))
            total += float(ce) * len(now)
            for name in top:
                step = lambda a, g, o, n: np.clip(a - eta * g * (n - o), 0, 1).astype(a.dtype)
                a = a | {name: jax.tree.map(step, a[name], g[name], old[name], new[name])}
        losses.append(total / size)
        if len(losses) > 10 and np.std(losses[-10:]) < threshold:
            break
    return mixed(old, new, a, top), a


def oracle(rounds, top=("head",), **settings):
    """The server's network, and all clients' (last parameters, W_i, rounds)."""
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(0, naive.INIT)))
    state = [(w[0], {name: jax.tree.map(np.ones_like, w[0][name]) for name in top}, 0)] * len(clients)
    for r in range(rounds):
        ends, share = [], []
        for i in naive.cohort(0, r, len(clients), 5):
            key, (x, y), (old, a, seen) = naive.client_key(0, r, i), clients[i], state[i]
            theta = w[0]
            if seen:
                epochs = 15 if seen == 1 else 1
                theta, a = learned(w, old, a, x, y, jax.random.fold_in(key, ALA), epochs=epochs, top=top, **settings)
            end = naive.train(MODEL, theta, w[1], x, y, key, epochs=2, **STEPS)
            state[i] = end.params, a, seen + 1
            ends.append((end.params, end.stats))
            share.append(len(y))
        w = naive.mean(ends, share)
    return w, state


SETTINGS = {"eta": 2.0, "fraction": 0.7, "threshold": 0.02}


class FedALATest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("fedala")
        w, states = oracle(2, **SETTINGS)
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=5e-6)
        for i, (params, a, seen) in enumerate(states):
            client = one(state.clients[0], i)
            self.assertEqual(client.rounds, seen)
            chex.assert_trees_all_close(client.local.params, params, atol=5e-6)
            chex.assert_trees_all_close({"head": client.mix["head"]}, a, atol=5e-6)
        self.assertLess(min(np.min(client[1]["head"]["kernel"]) for client in states), 0.99)

    def test_a_client_predicts_with_a_mixture_of_the_newest_model(self):
        w, states = oracle(2, **SETTINGS)
        for i in (1, 3):
            params, a, seen = states[i]
            x, y = naive.rows(toy.data())[i]
            epochs = {0: 0, 1: 15}.get(seen, 1)
            theta, _ = learned(w, params, a, x, y, personalise_key(i), epochs=epochs, top=("head",), **SETTINGS)
            _, client = personalised("fedala", i)
            chex.assert_trees_all_close(client.local.params, theta if seen else w[0], atol=5e-6)

    @parameterized.named_parameters(("without_layers", dict(top=())), ("without_steps", dict(mix_lr=0.0)))
    def test_is_fedavg(self, arguments):
        server = ended(made(fedala, epochs=2, **arguments)).server
        chex.assert_trees_all_close(server.net, toy.reference("fedavg")[2].server.net, atol=1e-6)

    def test_with_weights_of_zero_everywhere_it_goes_on_from_its_own_model(self):
        w, own = (MODEL.init(jax.random.key(k)) for k in (1, 2))
        start = Client(own, jax.tree.map(jnp.zeros_like, own.params), np.float32(2))
        out = toy.update_client(made(fedala, top=("body", "head"), mix_lr=0.0)(toy.task()), w, start)
        x, y = naive.rows(toy.data())[0]
        end = naive.train(MODEL, own.params, w.stats, x, y, jax.random.key(5), epochs=1, **STEPS)
        chex.assert_trees_all_close(out.state.local.params, end.params, atol=2e-6)

    def test_equal_models_leave_the_weights(self):
        w = MODEL.init(jax.random.key(1))
        mix = {
            "body": jax.tree.map(lambda _: None, w.params["body"]),
            "head": jax.tree.map(lambda p: 0.3 + 0 * p, w.params["head"]),
        }
        out = toy.update_client(made(fedala, mix_lr=100.0)(toy.task()), w, Client(w, mix, np.float32(2)))
        chex.assert_trees_all_close(out.state.mix["head"], mix["head"], atol=1e-6)

    def test_weights_stay_fractions(self):
        w, own = (MODEL.init(jax.random.key(k)) for k in (1, 2))
        mix = {"body": jax.tree.map(lambda _: None, w.params["body"]), "head": jax.tree.map(jnp.ones_like, w.params["head"])}
        out = toy.update_client(made(fedala, mix_lr=1e4)(toy.task()), w, Client(own, mix, np.float32(1)))
        ends = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(out.state.mix)])
        self.assertEqual((ends.min(), ends.max()), (0.0, 1.0))

    def test_a_window_is_a_run_of_the_clients_examples(self):
        data = toy.client_data(0)._replace(size=jnp.int32(6))
        for key in range(9):
            window = draw_window(data, 0.5, jax.random.key(key))
            rows = np.asarray(window.index[: int(window.size)])
            self.assertLen(rows, 3)
            (start,) = np.flatnonzero(data.index == rows[0])
            np.testing.assert_array_equal(rows, data.index[start : start + 3])
            self.assertLessEqual(start + 3, 6)

    def test_what_travels(self):
        shapes = toy.reference("fedala")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(fraction=0.0), r"^fraction=0.0 must be in \(0, 1\]$"),
        (dict(mix_lr=-1.0), "^mix_lr=-1.0 must be at least 0$"),
        (dict(first_limit=0), "^first_limit=0 must be at least 1$"),
        (dict(top=("head", "haed")), "^top='haed' is not an entry of the network; it has body, head"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(fedala, **arguments))
