"""Local training against loops: which rows it sees and when, what it trains, and optimisers as torch defines them."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import parameterized

from fedjax_core.algorithm import ClientData, ClientSettings, Examples, Net
from fedjax_core.training import local_training, losses, optimizers
from tests import naive, toy

MODEL = toy.model()
LOSS = local_training.model_loss(MODEL)


@functools.cache
def examples(n=40):
    rng = np.random.default_rng(3)
    y = (np.arange(n) % toy.CLASSES).astype(np.int32)
    return Examples((rng.normal(size=(n, toy.INPUTS)) + 2 * np.eye(toy.CLASSES, toy.INPUTS)[y]).astype(np.float32), y)


def on_device(arrays):
    return jax.tree.map(jnp.asarray, arrays)


def data(rows, padding=(), arrays=None):
    index = np.array([*rows, *padding], np.int32)
    return ClientData(on_device(examples() if arrays is None else arrays), jnp.asarray(index), jnp.int32(len(rows)))


def by_hand(rows, key, **settings):
    x, y = examples().x[list(rows)], examples().y[list(rows)]
    return naive.train(MODEL, *MODEL.init(jax.random.key(1)), x, y, key, **settings)


def fitted(rows, key, padding=(), *, lr=0.1, momentum=0.0, **settings):
    fit = jax.jit(local_training.fit(LOSS, local_training.sgd(lr, momentum=momentum)(0), **settings))
    return fit(MODEL.init(jax.random.key(1)), data(rows, padding), key)


def recorder(net, batch, key):
    """A loss that writes down, into its statistics, each step's rows, mask and key; examples' x is their row number."""
    i = net.stats["step"]
    stats = {
        "step": i + 1,
        "rows": net.stats["rows"].at[i].set(jnp.where(batch.mask, batch.x, -1)),
        "keys": net.stats["keys"].at[i].set(jax.random.key_data(key)),
    }
    return net.params["w"] * 0.0, local_training.Aux(stats, {"rows": jnp.sum(batch.mask)})


def recorded(rows, padding, *, epochs, batch, key, settings=None):
    """(steps, rows [steps, B] with -1 for the padding, keys [steps, 2], number of rows as summed)."""
    numbers = Examples(jnp.arange(40.0), jnp.zeros(40, jnp.int32))
    b = min(batch, len(rows) + len(padding))
    stats = {"step": jnp.int32(0), "rows": jnp.full((50, b), -2.0), "keys": jnp.zeros((50, 2), jnp.uint32)}
    fit = jax.jit(local_training.fit(recorder, optax.sgd(0.1), epochs=epochs, batch=batch))
    end = fit(Net({"w": jnp.float32(0)}, stats), data(rows, padding, numbers)._replace(settings=settings), key)
    steps = int(end.net.stats["step"])
    return steps, np.asarray(end.net.stats["rows"])[:steps], np.asarray(end.net.stats["keys"])[:steps], int(end.sums["rows"])


class BatchesTest(chex.TestCase):
    @parameterized.parameters((10, 4, 3), (3, 4, 5), (1, 4, 0), (5, 64, 1))
    def test_every_epoch_visits_every_row_once_in_the_documented_order(self, n, batch, padding):
        rows, key = list(range(30 - n, 30)), jax.random.key(n)
        steps, seen, _, total = recorded(rows, [39] * padding, epochs=2, batch=batch, key=key)
        each = -(-n // batch)
        self.assertEqual((steps, total), (2 * each, 2 * n))
        for e in range(2):
            expected = [rows[place] for place in naive.order(key, e, n)]
            found = seen[e * each : (e + 1) * each]
            np.testing.assert_array_equal(found[found >= 0], expected)
            np.testing.assert_array_equal((found >= 0).sum(1), [min(batch, n - i * batch) for i in range(each)])  # short batch last

    def test_epochs_differ_and_so_do_the_keys_of_all_steps(self):
        _, seen, keys, _ = recorded(range(12), [], epochs=3, batch=4, key=jax.random.key(0))
        self.assertLen({tuple(seen[i : i + 3].ravel()) for i in (0, 3, 6)}, 3)
        self.assertLen({tuple(key) for key in keys}, 9)

    @parameterized.parameters(
        (dict(epochs=3), 3, 4, 9),
        (dict(steps=5), 2, 4, 5),
        (dict(steps=2), 1, 4, 2),
        (dict(batch=3), 2, 3, 8),
        (dict(batch=9), 2, 4, 6),  # no more than the method's
        (dict(epochs=1, batch=1), 1, 1, 10),
        (dict(share=0.5), 2, 4, 3),
        (dict(epochs=3, share=7.25 / 9), 3, 4, 7),
    )
    def test_a_clients_own_steps_see_the_first_rows_of_its_own_order(self, own, epochs, batch, steps):
        """Ten rows, and a method with two epochs of minibatches of four."""
        rows, key = list(range(20, 30)), jax.random.key(5)
        settings = ClientSettings(**{name: jnp.asarray(value) for name, value in own.items()})
        of_all = local_training.EpochsByClient(2)
        number, seen, _, total = recorded(rows, [39] * 2, epochs=of_all, batch=4, key=key, settings=settings)
        starts = [(e, start) for e in range(epochs) for start in range(0, 10, batch)][:steps]
        self.assertEqual(number, steps)
        for (e, start), found in zip(starts, seen, strict=True):
            expected = [rows[place] for place in naive.order(key, e, 10)[start : start + batch]]
            np.testing.assert_array_equal(found[found >= 0], expected)
        self.assertEqual(total, sum(min(batch, 10 - start) for _, start in starts))

    @parameterized.parameters(dict(epochs=2), dict(steps=6), dict(batch=4), dict(share=1.0), dict(rate=1.0))
    def test_settings_that_all_clients_have_change_no_bit(self, **own):
        settings = ClientSettings(**{name: jnp.asarray(value) for name, value in own.items()})
        chain = optax.chain(local_training.sgd(0.1, momentum=0.5, anneal="cosine")(0), optimizers.scale_by_client_rate())
        fit = jax.jit(local_training.fit(LOSS, chain, epochs=local_training.EpochsByClient(2), batch=4))
        net, rows, key = MODEL.init(jax.random.key(1)), data(range(10)), jax.random.key(5)
        chex.assert_trees_all_equal(fit(net, rows._replace(settings=settings), key).net, fit(net, rows, key).net)

    def test_steps_and_rate_of_a_client_against_loops(self):
        """Of a minibatch of eight, five examples count; the rate is a quarter of 0.1."""
        settings = ClientSettings(epochs=jnp.int32(3), batch=jnp.int32(5), rate=jnp.float32(0.25))
        chain = optax.chain(local_training.sgd(0.1, momentum=0.5)(0), optimizers.scale_by_client_rate())
        fit = jax.jit(local_training.fit(LOSS, chain, epochs=local_training.EpochsByClient(1), batch=8))
        trained = fit(MODEL.init(jax.random.key(1)), data(range(12))._replace(settings=settings), jax.random.key(5))
        expected = by_hand(range(12), jax.random.key(5), epochs=3, batch=5, lr=0.025, momentum=0.5)
        chex.assert_trees_all_close(tuple(trained.net), expected[:2], atol=1e-6)

    def test_a_method_cannot_compute_with_epochs_that_differ(self):
        with self.assertRaisesRegex(TypeError, "epochs differ by client"):
            _ = 2 * local_training.EpochsByClient(3)

    def test_no_rows_no_steps(self):
        steps, _, _, total = recorded([], [0, 1, 2], epochs=2, batch=4, key=jax.random.key(0))
        self.assertEqual((steps, total), (0, 0))


class FitTest(chex.TestCase):
    @parameterized.parameters((10, 4, 0.0), (9, 4, 0.5), (3, 64, 0.9))
    def test_equals_loops_over_minibatches(self, n, batch, momentum):
        key, rows = jax.random.key(n), range(5, 5 + n)
        end = fitted(rows, key, epochs=3, batch=batch, momentum=momentum)
        hand = by_hand(rows, key, epochs=3, batch=batch, lr=0.1, momentum=momentum)
        chex.assert_trees_all_close(tuple(end.net), (hand.params, hand.stats), atol=2e-6)
        loss, accuracy = end.sums["loss"], end.sums["accuracy"]
        self.assertEqual((float(loss[1]), float(accuracy[1])), (3 * n, 3 * n))
        self.assertAlmostEqual(float(loss[0] / loss[1]), hand.loss, places=5)
        self.assertEqual(int(accuracy[0]), sum(label == int(row.argmax()) for label, row in hand.seen))

    def test_a_full_step_goes_down_the_mean_over_all_tokens(self):
        """Seven rows by three, with unequally many tokens, and what pads them; not down the mean of the minibatches' means."""
        rng, rows = np.random.default_rng(3), 9
        targets = np.where(rng.random((rows, 4)) < np.linspace(0.1, 0.9, rows)[:, None], rng.integers(0, 3, (rows, 4)), -1)
        x = {"z": rng.normal(size=(rows, 4, 5)).astype(np.float32), "targets": targets}
        apply = lambda net, x, key, train, mask: ({"logits": x["z"] @ net.params, "targets": x["targets"]}, net.stats)
        loss = local_training.model_loss(MODEL._replace(apply=apply))
        net = Net(jax.random.normal(jax.random.key(0), (5, 3)), {})
        index = jnp.asarray([4, 0, 8, 1, 7, 2, 3, 5, 6])
        step = jax.jit(local_training.full_batch_step(loss, local_training.sgd(0.5, anneal="cosine")(0), batch=3))
        end = step(net, ClientData(Examples(x, jnp.zeros(rows, int)), index, jnp.int32(7)), jax.random.key(1))

        def mean(params, chosen):
            """Over the tokens of some rows."""
            z, t = x["z"][chosen], targets[chosen]
            log = jax.nn.log_softmax(z @ params)[t >= 0]
            return -jnp.mean(log[jnp.arange(len(log)), t[t >= 0]])

        mine = np.asarray(index[:7])
        value, gradient = jax.value_and_grad(mean)(net.params, mine)
        np.testing.assert_allclose(end.net.params, net.params - 0.5 * gradient, atol=1e-6)
        tokens = int((targets[mine] >= 0).sum())
        self.assertEqual(float(end.sums["accuracy"][1]), tokens)
        others = [jax.grad(mean)(net.params, mine[start : start + 3]) for start in (0, 3, 6)]
        self.assertGreater(float(jnp.abs(sum(others) / 3 - gradient).max()), 0.01)
        self.assertGreater(float(value), 0.1)
        with self.assertRaisesRegex(ValueError, "batch=0 must be at least 1"):
            local_training.full_batch_step(loss, local_training.sgd(0.5)(0), batch=0)

    def test_padded_rows_are_invisible(self):
        """Whatever they hold, and however many they are."""
        key, far = jax.random.key(0), examples()._replace(x=examples().x.copy())
        far.x[30:] = 1e4
        plain = fitted(range(10), key, epochs=2, batch=4)
        for padding in ([30], [31] * 6):
            fit = jax.jit(local_training.fit(LOSS, local_training.sgd(0.1)(0), epochs=2, batch=4))
            end = fit(MODEL.init(jax.random.key(1)), data(range(10), padding, far), key)
            chex.assert_trees_all_close(end.net, plain.net, atol=1e-6)
            chex.assert_trees_all_close(end.sums, plain.sums, atol=1e-5)

    def test_no_epochs_change_nothing(self):
        net = MODEL.init(jax.random.key(1))
        end = fitted(range(10), jax.random.key(0), epochs=0, batch=4, momentum=0.9)
        chex.assert_trees_all_equal(end.net, net)
        chex.assert_trees_all_equal(jax.tree.leaves(end.sums), [jnp.zeros(())] * 4)

    def test_one_vmap_over_unequal_clients_is_one_by_one(self):
        sizes = (7, 1, 0, 4)
        index = np.stack([np.arange(7) + 8 * i for i in range(4)])
        keys = jax.random.split(jax.random.key(2), 4)
        net = MODEL.init(jax.random.key(1))
        fit = local_training.fit(LOSS, local_training.sgd(0.1, momentum=0.5)(0), epochs=2, batch=4)
        together = jax.jit(jax.vmap(lambda i, n, k: fit(net, ClientData(on_device(examples()), i, n), k)))(
            index, np.array(sizes), keys
        )
        for c, n in enumerate(sizes):
            hand = by_hand(index[c, :n], keys[c], epochs=2, batch=4, lr=0.1, momentum=0.5)
            mine = jax.tree.map(lambda x, c=c: x[c], together.net)
            chex.assert_trees_all_close(tuple(mine), (hand.params, hand.stats), atol=2e-6)

    def test_the_optimizer_state_starts_anew_and_is_returned(self):
        rows, key = range(10), jax.random.key(4)
        end = fitted(rows, key, epochs=1, batch=10, momentum=0.9)
        (trace, _) = end.optimizer_state
        hand = by_hand(rows, key, epochs=1, batch=10, lr=0.1)
        chex.assert_trees_all_close(trace.trace, hand.gradients[0], atol=1e-6)

    @parameterized.parameters((-1, 4), (1, 0))
    def test_impossible_numbers(self, epochs, batch):
        with self.assertRaisesRegex(ValueError, f"epochs={epochs}, batch={batch}"):
            local_training.fit(LOSS, optax.sgd(0.1), epochs=epochs, batch=batch)

    def test_what_is_beside_the_rows_goes_with_them(self):
        rows = [5, 3, 11, 8, 20, 2, 7]
        extra = {"own": jnp.asarray([10.0 * row for row in rows] + [jnp.nan, jnp.nan])}

        def loss(net, batch, key):
            right = jnp.where(batch.mask, batch.extra["own"] == 10 * batch.x, True)
            return net.params["w"] * 0.0, local_training.Aux(net.stats, (jnp.sum(right), jnp.sum(batch.mask)))

        numbers = Examples(jnp.arange(40.0), jnp.zeros(40, jnp.int32))
        run = jax.jit(local_training.fit(loss, optax.sgd(0.1), epochs=2, batch=4))
        end = run(Net({"w": jnp.float32(0)}), data(rows, (0, 0), numbers), jax.random.key(0), extra)
        self.assertEqual(tuple(map(int, end.sums)), (2 * 2 * 4, 2 * 7))

    @parameterized.parameters("linear", "cosine")
    def test_annealing_ends_at_zero_within_a_training(self, form):
        """Seven rows in twos are four steps, twice; each step alone is one by its share of the rate."""

        def loss(net, batch, key):
            return net.params["w"], local_training.Aux(net.stats, ())

        run = jax.jit(local_training.fit(loss, local_training.sgd(0.5, anneal=form)(0), epochs=2, batch=2))
        end = run(Net({"w": jnp.float32(0)}), data(range(7)), jax.random.key(0))
        shares = [1 - t / 8 if form == "linear" else (1 + np.cos(np.pi * t / 8)) / 2 for t in range(8)]
        np.testing.assert_allclose(end.net.params["w"], -0.5 * sum(shares), rtol=1e-6)

    def test_annealing_has_two_forms(self):
        for make in (local_training.sgd, local_training.adam):
            with self.assertRaisesRegex(ValueError, "optimizer.anneal='step' is not one of 'linear', 'cosine'"):
                make(0.1, anneal="step")


class TrainableTest(chex.TestCase):
    @parameterized.parameters("head", "body")
    def test_only_the_chosen_leaves_move(self, name):
        rows, key = range(9), jax.random.key(0)
        end = fitted(rows, key, epochs=2, batch=4, momentum=0.5, trainable=local_training.entries_filter(name))
        hand = by_hand(rows, key, epochs=2, batch=4, lr=0.1, momentum=0.5, chosen=(name,))
        chex.assert_trees_all_close(end.net.params, hand.params, atol=2e-6)
        other = {"head": "body", "body": "head"}[name]
        chex.assert_trees_all_equal(end.net.params[other], MODEL.init(jax.random.key(1)).params[other])
        self.assertLen(jax.tree.leaves(end.optimizer_state), 2)  # the velocity of two leaves, not of four

    def test_no_gradient_is_taken_for_the_others(self):
        @jax.custom_vjp
        def guarded(x):
            return x

        def forward(x):
            raise AssertionError("differentiated")

        guarded.defvjp(forward, lambda _, g: (g,))

        def loss(net, batch, key):
            return LOSS(net._replace(params=net.params | {"body": jax.tree.map(guarded, net.params["body"])}), batch, key)

        def run(name):
            fit = local_training.fit(loss, optax.sgd(0.1), epochs=1, batch=4, trainable=local_training.entries_filter(name))
            return jax.eval_shape(fit, MODEL.init(jax.random.key(1)), data(range(5)), jax.random.key(0))

        run("head")
        with self.assertRaisesRegex(AssertionError, "differentiated"):
            run("body")

    def test_phases_follow_each_other(self):
        rows, first, second = range(10), *jax.random.split(jax.random.key(8))
        head, body = (
            local_training.fit(LOSS, local_training.sgd(0.1)(0), epochs=n, batch=4, trainable=local_training.entries_filter(name))
            for n, name in [(2, "head"), (1, "body")]
        )
        both = jax.jit(lambda net: body(head(net, data(rows), first).net, data(rows), second).net)
        end = both(MODEL.init(jax.random.key(1)))
        x, y = examples().x[list(rows)], examples().y[list(rows)]
        w = tuple(MODEL.init(jax.random.key(1)))
        for key, n, name in [(first, 2, "head"), (second, 1, "body")]:
            w = naive.train(MODEL, *w, x, y, key, epochs=n, batch=4, lr=0.1, chosen=(name,))[:2]
        chex.assert_trees_all_close(tuple(end), w, atol=2e-6)


def descend(optimizer, gradients, w):
    """The iterates under given gradients."""
    state, iterates = optimizer.init(w), []
    for g in gradients:
        updates, state = optimizer.update(jnp.asarray(g), state, w)
        w = optax.apply_updates(w, updates)
        iterates.append(np.asarray(w))
    return iterates


def test_examples_without_a_target_have_no_weight_in_the_mean_loss():
    """Else a minibatch of them would count as one of loss 0."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4, toy.INPUTS)).astype(np.float32), rng.integers(toy.CLASSES, size=(12, 4))
    y[[0, 1, 2, 7]] = -1
    y[3, 2:] = -1
    logits = jnp.asarray(rng.normal(size=(12, 4, toy.CLASSES)).astype(np.float32))
    has_target = np.ones(12, bool)
    has_target[[0, 1, 2, 7]] = False
    for rows in (slice(0, 3), slice(2, 9)):
        batch = local_training.Batch(jnp.asarray(x[rows]), jnp.asarray(y[rows].astype(np.int32)), jnp.ones(len(y[rows]), bool))
        value = losses.cross_entropy(logits[rows], batch.y, batch.mask)
        total, number = local_training.loss_metrics(value, logits[rows], batch)["loss"]
        assert number == has_target[rows].sum()
        np.testing.assert_allclose(total, value * has_target[rows].sum(), rtol=1e-6)


def test_nesterov_needs_momentum():
    with pytest.raises(ValueError, match=r"optimizer.nesterov=True needs optimizer.momentum, which is 0"):
        local_training.sgd(0.1, nesterov=True)


class OptimizersTest(chex.TestCase):
    GRADIENTS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    START = np.array([1.0, -2.0, 0.5], np.float32)

    @parameterized.parameters(
        dict(),
        dict(momentum=0.9),
        dict(momentum=0.9, nesterov=True),
        dict(momentum=0.9, weight_decay=0.1),
        dict(momentum=0.9, nesterov=True, weight_decay=0.1, clip=0.5),
        dict(weight_decay=0.3, clip=0.7, decay=0.5),
        dict(decay=0.5),
    )
    def test_sgd_as_torch_writes_it(self, momentum=0.0, nesterov=False, weight_decay=0.0, clip=None, decay=1.0):
        lr, r = 0.2, 3
        optimizer = local_training.sgd(lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, clip=clip, decay=decay)(
            jnp.int32(r)
        )
        w, buffer, expected = self.START.astype(np.float64), None, []
        for g in self.GRADIENTS.astype(np.float64):
            norm = np.sqrt((g**2).sum())
            if clip is not None and norm > clip:
                g = g * clip / norm
            g = g + weight_decay * w
            buffer = g if buffer is None else momentum * buffer + g
            d = g + momentum * buffer if nesterov else buffer
            w = w - lr * decay**r * (d if momentum else g)
            expected.append(w)
        np.testing.assert_allclose(descend(optimizer, self.GRADIENTS, jnp.asarray(self.START)), expected, rtol=2e-6, atol=2e-6)

    @parameterized.parameters(dict(), dict(weight_decay=0.1), dict(clip=0.5, decay=0.9, b1=0.8, b2=0.95, eps=1e-3))
    def test_adam_with_decoupled_decay(self, weight_decay=0.0, clip=None, decay=1.0, b1=0.9, b2=0.999, eps=1e-8):
        lr, r = 0.1, 2
        optimizer = local_training.adam(lr, weight_decay=weight_decay, clip=clip, decay=decay, b1=b1, b2=b2, eps=eps)(r)
        w, m, v, expected = self.START.astype(np.float64), 0.0, 0.0, []
        for t, g in enumerate(self.GRADIENTS.astype(np.float64), 1):
            norm = np.sqrt((g**2).sum())
            if clip is not None and norm > clip:
                g = g * clip / norm
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            rate = lr * decay**r
            w = w - rate * (m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + weight_decay * w)
            expected.append(w)
        found = descend(optimizer, self.GRADIENTS, jnp.asarray(self.START))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        if clip is None:
            published = optax.adamw(lr, b1, b2, eps, weight_decay=weight_decay)
            np.testing.assert_allclose(found, descend(published, self.GRADIENTS, jnp.asarray(self.START)), rtol=1e-6, atol=1e-6)

    @parameterized.parameters(
        (local_training.sgd, dict(lr=0.0), "optimizer.lr=0.0"),
        (local_training.sgd, dict(lr=0.1, clip=-1.0), "optimizer.clip=-1.0"),
        (local_training.sgd, dict(lr=float("nan")), "optimizer.lr=nan"),
        (local_training.adam, dict(lr=0.1, decay=0.0), "optimizer.decay=0.0"),
        (local_training.adam, dict(lr=0.1, eps=0.0), "optimizer.eps=0.0"),
    )
    def test_what_must_be_positive(self, make, arguments, message):
        with self.assertRaisesRegex(ValueError, f"{message} must be positive"):
            make(**arguments)

    def test_mean_gradient_passes_on_and_remembers(self):
        chain = local_training.track_mean_gradient()
        params = {"a": jnp.zeros(3), "b": None}
        state = chain.init(params)
        chex.assert_trees_all_equal(state.mean, params)
        for t, g in enumerate(self.GRADIENTS, 1):
            passed, state = chain.update({"a": jnp.asarray(g), "b": None}, state, params)
            np.testing.assert_array_equal(passed["a"], g)
            np.testing.assert_allclose(state.mean["a"], self.GRADIENTS[:t].mean(0), atol=1e-6)
        self.assertEqual(int(state.steps), 5)

    def test_proximal_pulls_to_where_training_began(self):
        chain = optax.chain(local_training.add_proximal_term(2.0), optax.sgd(0.1))
        start = {"a": jnp.asarray([1.0, -1.0]), "b": None}
        state, params = chain.init(start), start
        for g in self.GRADIENTS[:3, :2]:
            expected = params["a"] - 0.1 * (g + 2.0 * (params["a"] - start["a"]))
            updates, state = chain.update({"a": jnp.asarray(g), "b": None}, state, params)
            params = optax.apply_updates(params, updates)
            np.testing.assert_allclose(params["a"], expected, atol=1e-6)

    def test_proximal_pulls_to_a_given_centre(self):
        transform, centre = local_training.add_proximal_term(3.0, {"a": jnp.asarray([0.5, 2.0])}), np.array([0.5, 2.0])
        params = {"a": jnp.asarray([1.0, -1.0])}
        updates, _ = transform.update({"a": jnp.zeros(2)}, transform.init(params), params)
        np.testing.assert_allclose(updates["a"], 3.0 * (np.array([1.0, -1.0]) - centre), rtol=1e-6)


def test_a_schedule_of_steps_that_begins_anew_is_said_once(caplog):
    optimizers._warn_of_restarts.cache_clear()
    for optimizer in (optax.sgd(optax.linear_schedule(0.1, 0.0, 9)), optax.adam(optax.constant_schedule(0.1))):
        run = local_training.fit(LOSS, optimizer, epochs=1, batch=4)
        jax.eval_shape(run, MODEL.init(jax.random.key(0)), data(range(6)), jax.random.key(0))
    assert caplog.text.count("it begins anew in each client's training of each round") == 1


def test_an_optimizer_by_round_is_told():
    with pytest.raises(TypeError, match=r"fit: optimizer must be .*, it is a function: .* give optimizer\(task.round_num\)"):
        local_training.fit(LOSS, local_training.sgd(0.1), epochs=1, batch=4)  # pyright: ignore[reportArgumentType]
