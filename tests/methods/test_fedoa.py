"""FedOA in loops, with features and their distances written out, and its limits."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import ClientData, Examples, Net
from fedjax_core.nn import build
from fedjax_core.training import adapters, local_training
from methods.fedit import fedit
from methods.fedoa import DISTANCES, fedoa, frobenius_distance
from methods.local import local
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedavg import oracle as fedavg_after
from tests.methods.test_fedopt import SOMEBODY
from tests.methods.test_fedper import STEPS, first_round, made, one, simulate

FRESH = 0x6672


def length(z):
    square = jnp.sum(z**2)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def far(e, g, kind):
    """D of one example."""
    if kind == "l2":
        return length(e - g)
    if kind == "squared_l2":
        return jnp.sum((e - g) ** 2)
    if kind == "pearson":
        e, g = e - jnp.mean(e), g - jnp.mean(g)
    return 1 - naive.direction(e) @ naive.direction(g)


@functools.cache
def objective(kind):
    """Eq. 3 with lambda and the global network given."""

    def whole(params, stats, x, y, given):
        lam, w = given
        outputs, stats = MODEL.apply(Net(params, stats), x, train=True)
        e, g = outputs["features"], MODEL.apply(Net(*w), x)[0]["features"]
        ce = naive.cross_entropy(outputs["logits"], y)
        if kind == "frobenius":  # of two rows after the other
            norms = [length((e[i : i + 2] - g[i : i + 2]).ravel()) for i in range(0, len(y), 2)]
            d = sum(norms) / len(norms)
        else:
            d = sum(far(a, b, kind) for a, b in zip(e, g, strict=True)) / len(y)
        return ce + lam * d, (stats, outputs["logits"], ce)

    return whole


def oracle(rounds, lam):
    """All clients' personal networks; the global one is uniform FedAvg's."""
    clients = naive.rows(toy.data())
    v = [tuple(MODEL.init(naive.stream(0, naive.INIT)))] * len(clients)
    for r in range(rounds):
        w = fedavg_after(0, r, weights="uniform", lr=0.1, momentum=0.5)
        for i in naive.cohort(0, r, len(clients), 5):
            key = naive.client_key(0, r, i)
            v[i] = naive.train(MODEL, *v[i], *clients[i], key, epochs=2, whole=objective("l2"), given=(lam, w), **STEPS)[:2]
    return v


def data_of(i):
    held = toy.reference("fedoa")[0].spec.host_arrays
    return ClientData(held.train, held.index[i], held.size[i])


@functools.cache
def update(**arguments):
    """One client's round from two networks of its own."""
    run = jax.jit(made(fedoa, **arguments)(toy.task()).client_update)
    w, v = (MODEL.init(jax.random.key(k)) for k in (1, 2))
    return jax.device_get(run(w, v, data_of(0), jax.random.key(5)))


@functools.cache
def adapted(what):
    """Task and data of a client, of which a bottleneck or LoRA is trained, and the head."""
    if what == "bottleneck":
        model, kind, data = toy.model(statistics=False), adapters.bottleneck(rank=2, targets="body"), data_of(0)
    else:
        model = build("vit", toy.CLASSES, (8, 8, 1), patch=4, width=8, depth=2, heads=2)
        kind, x = adapters.lora(rank=2, dropout=0.0), jax.random.normal(jax.random.key(8), (5, 8, 8, 1))
        data = ClientData(Examples(x, jnp.arange(5) % toy.CLASSES), jnp.arange(5), jnp.int32(5))
    settings = {"classes": toy.CLASSES, "population": toy.CLIENTS}
    return adapters.adapter_task(model, model.init(jax.random.key(3)), kind, "head", **settings), data


class FedOATest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("fedoa")
        for i, v in enumerate(oracle(2, 0.7)):
            chex.assert_trees_all_close(tuple(one(state.clients[0], i)), v, atol=5e-6)

    @parameterized.parameters("squared_l2", "cosine", "pearson", "frobenius")
    def test_other_distances_equal_the_loops(self, kind):
        options = {"reading": {"reduction": kind, "micro": 2}} if kind == "frobenius" else {"distance": kind}
        run = jax.jit(made.__wrapped__(fedoa, lam=0.7, **options)(toy.task()).client_update)
        w, v = (MODEL.init(jax.random.key(k)) for k in (1, 2))
        out = run(w, v, data_of(0), jax.random.key(5))
        x, y = naive.rows(toy.data())[0]
        want = naive.train(MODEL, *v, x, y, jax.random.key(5), epochs=2, whole=objective(kind), given=(0.7, tuple(w)), **STEPS)
        chex.assert_trees_all_close(tuple(out.state), (want.params, want.stats), atol=5e-6)

    def test_records_the_personal_loss_and_the_distance(self):
        """The values are those of all rows before the one step."""
        w, v = (MODEL.init(jax.random.key(k)) for k in (1, 2))
        whole, (_, _, ce) = objective("l2")(*v, *naive.rows(toy.data())[0], (0.7, tuple(w)))
        metrics = update(lam=0.7, epochs=1, batch=64).metrics
        for name, value in {"personal_loss": ce, "distance": (whole - ce) / 0.7}.items():
            self.assertAlmostEqual(float(np.divide(*metrics[name])), float(value), places=5)

    def test_the_global_model_is_fedits_bit_for_bit_whatever_lambda(self):
        chex.assert_trees_all_equal(toy.reference("fedoa")[2].server.net, toy.reference("fedit")[2].server.net)
        uplinks = [first_round(fedoa, epochs=2, lam=50.0)[2].uplink, first_round(fedit, epochs=2)[2].uplink]
        chex.assert_trees_all_equal(*uplinks)

    def test_without_the_regulariser_the_personal_models_are_locals(self):
        expected = first_round(local, epochs=2)[2].state
        chex.assert_trees_all_close(first_round(fedoa, epochs=2, lam=0.0)[2].state, expected, atol=1e-7)

    def test_lambda_brings_features_together(self):
        found = [update(lam=lam, measure=True).metrics for lam in (0.0, 0.7, 5.0)]
        total, rows = (np.array([m["feature_distance"][k] for m in found]) for k in (0, 1))
        np.testing.assert_array_equal(rows, [toy.SIZES[0]] * 3)
        self.assertGreater(total[0], total[1] + 0.01)
        self.assertGreater(total[1], 1.5 * total[2])

    def test_where_nothing_is_apart_there_is_no_gradient(self):
        z = jax.random.normal(jax.random.key(0), (4, 6))
        for distance in (*DISTANCES.values(), lambda e, g, tolerance: frobenius_distance(e, g, jnp.ones(4, bool), 2, tolerance)):
            value, slope = jax.value_and_grad(lambda e, distance=distance: jnp.sum(distance(e, z, 1e-5)))(z)
            self.assertAlmostEqual(float(value), 0, places=5)
            np.testing.assert_allclose(slope, np.zeros((4, 6)), atol=1e-5)

    def test_padding_counts_for_no_norm(self):
        e, g = (jax.random.normal(jax.random.key(k), (7, 3)) for k in (0, 1))
        padded = jnp.pad(e, ((0, 3), (0, 0)), constant_values=9.0), jnp.pad(g, ((0, 3), (0, 0)))
        want = np.mean([np.linalg.norm(e[i : i + 3] - g[i : i + 3]) for i in (0, 3, 6)])
        np.testing.assert_allclose(frobenius_distance(*padded, jnp.arange(10) < 7, 3, 1e-5), want, rtol=1e-6)

    def test_features_that_are_all_equal_have_no_correlation(self):
        """Centred they are rounding alone."""
        e = 0.3 * jnp.ones((2, 7)) + 1e-8 * jax.random.normal(jax.random.key(0), (2, 7))
        g = jax.random.normal(jax.random.key(1), (2, 7))
        slope = jax.grad(lambda e: jnp.sum(DISTANCES["pearson"](e, g, 1e-5)))(e)
        np.testing.assert_array_equal(slope, np.zeros((2, 7)))

    def test_released_personal_models_begin_in_the_second_round(self):
        sim = simulate(made(fedoa, lam=0.7, variant="released"))
        state = sim.init(0)
        begin = jax.device_get(state.clients[0])
        key = naive.stream(0, naive.INIT)
        for i in (0, 5):
            own = MODEL.init(jax.random.fold_in(jax.random.fold_in(key, FRESH), i))
            chex.assert_trees_all_close(one(begin, i), own, atol=1e-6)
        state, _ = sim.run_rounds(state, 1)
        chex.assert_trees_all_equal(jax.device_get(state.clients[0]), begin)
        chex.assert_trees_all_close(state.server.net, Net(*fedavg_after(0, 1, weights="uniform", lr=0.1, momentum=0.5)), atol=2e-6)
        state, _ = sim.run_rounds(state, 1)
        came = naive.cohort(0, 1, toy.CLIENTS, 5)
        moved = np.abs(jax.device_get(state.clients[0]).params["head"]["bias"] - begin.params["head"]["bias"]).max(1)
        self.assertEqual({i for i in range(8) if moved[i] > 0}, set(came))

    @parameterized.parameters("float32", "bfloat16")
    def test_equal_adapters_feel_no_distance(self, dtype):
        """The first step, where the pass that trains rounds each entry by one bit otherwise than the one that made Phi(phi_g)."""
        model = toy.model(statistics=False)

        def apply(net, x, key=None, train=False, **more):
            outputs, stats = model.apply(net, x, key, train, **more)
            features = outputs["features"].astype(dtype)
            features *= 1 + jnp.finfo(dtype).eps if train else 1
            return outputs | {"features": features}, stats

        task = dataclasses.replace(toy.task(statistics=False), network=lambda frozen: model._replace(apply=apply))
        v, settings = model.init(jax.random.key(1)), dict(optimizer=local_training.sgd(0.1), epochs=1, batch=16)
        options = (dict(lam=0.0), dict(lam=5.0), dict(lam=5.0, reading={"reduction": "frobenius"}))
        ends = [jax.jit(fedoa(task, **settings, **o).client_update)(v, v, data_of(0), jax.random.key(5)).state for o in options]
        for end in ends[1:]:
            chex.assert_trees_all_close(end, ends[0], atol=1e-7)

    def test_the_released_evaluation_has_half_of_either_adapter(self):
        """Of each, the update of the base's kernels; of a head the parameters."""
        task, data = adapted("vit")
        draw = lambda key: lambda leaf: leaf + 0.5 * jax.random.normal(jax.random.fold_in(key, leaf.size), leaf.shape)
        w, v = (jax.tree.map(draw(jax.random.key(k)), task.model.init(jax.random.key(k))) for k in (1, 2))
        found, alone = (
            fedoa(task, optimizer=local_training.sgd(0.1), variant=variant).predict["personal"](w, v, data.arrays.x)["logits"]
            for variant in ("released", "default")
        )
        net = jax.tree.map(lambda a, b: (a + b) / 2, *(task.model.full_net(net) for net in (w, v)))  # what is frozen is the same
        model = build("vit", toy.CLASSES, (8, 8, 1), patch=4, width=8, depth=2, heads=2)
        np.testing.assert_allclose(found, model.apply(net, data.arrays.x)[0]["logits"], atol=1e-5)
        np.testing.assert_array_equal(alone, task.model.apply(v, data.arrays.x)[0]["logits"])
        self.assertGreater(np.abs(found - alone).max(), 1e-2)

    @parameterized.parameters(64, toy.BATCH)
    def test_printed_the_global_model_makes_one_full_step(self, batch):
        """Also of minibatches, the last of them a single row, where they have no statistics of their own."""
        model = MODEL if batch == 64 else toy.model(statistics=False)
        w, (x, y) = model.init(jax.random.key(1)), naive.rows(toy.data())[0]
        method = made.__wrapped__(fedoa, variant="printed", batch=batch, personal_epochs=0)(toy.task(statistics=batch == 64))
        out = jax.jit(method.client_update)(w, w, data_of(0), jax.random.key(5))
        gradient, (stats, _, ce) = naive.gradient(model, naive.nothing)(*w, x, y, ())
        chex.assert_trees_all_close(out.uplink.params, jax.tree.map(lambda g: -0.1 * g, gradient), atol=1e-6)
        chex.assert_trees_all_close(out.uplink.stats, jax.tree.map(jnp.subtract, stats, w.stats), atol=1e-6)
        np.testing.assert_allclose(out.metrics["loss"], (len(y) * ce, len(y)), rtol=1e-5)

    @parameterized.parameters(("bottleneck", "features"), ("vit", "block1"))
    def test_the_distance_moves_the_adapter_and_what_lies_below(self, what, features):
        """Of a perceptron beside a kernel; of LoRA up to the first of two blocks. One step with and without it."""
        task, data = adapted(what)

        def noisy(key):
            draw = lambda leaf: leaf + 0.5 * jax.random.normal(jax.random.fold_in(key, leaf.size), leaf.shape)
            return jax.tree.map(draw, task.model.init(key))

        w, v = (noisy(jax.random.key(k)) for k in (1, 2))
        options = dict(features=features, epochs=1, batch=16)
        ends = []
        for lam in (0.0, 2.0):
            out = jax.jit(fedoa(task, optimizer=local_training.sgd(0.1), lam=lam, **options).client_update)(
                w, v, data, jax.random.key(5)
            )
            chex.assert_tree_all_finite(out)
            self.assertGreater(float(out.metrics["distance"][0] / out.metrics["distance"][1]), 0.01)
            ends.append(out.state.params)
        moved = jax.tree.map(lambda a, b: np.abs(a - b), *ends)
        self.assertLess(max(leaf.max() for leaf in jax.tree.leaves(moved["head"])), 1e-7)
        for leaf in jax.tree.leaves(moved["adapter"]):
            self.assertGreater((leaf if what == "bottleneck" else leaf[0]).max(), 1e-4)
            if what == "vit":
                self.assertLess(leaf[1].max(), 1e-7)

    def test_features_of_a_layer(self):
        with self.assertRaisesRegex(ValueError, "unknown features of toy6 'block1'; allowed: features"):
            update(features="block1")

    def test_another_server(self):
        """With momentum a second equal delta moves the model further than the first."""
        algorithm = made(fedoa, server="momentum")(toy.task())
        server = algorithm.server_init(jax.random.key(0))
        once, _ = algorithm.server_update(server, jax.tree.map(jnp.ones_like, server.net), SOMEBODY, None)
        twice, _ = algorithm.server_update(once, jax.tree.map(jnp.ones_like, server.net), SOMEBODY, None)
        moved = naive.minus(twice.net.params, once.net.params)
        chex.assert_trees_all_close(moved, jax.tree.map(lambda p: np.full(p.shape, 1.9, np.float32), moved), atol=1e-5)

    def test_a_rate_of_no_server_is_refused(self):
        with self.assertRaisesRegex(ValueError, r"server_lr=0.1 is a rate of method.server, which is None; set it too"):
            made(fedoa, server_lr=0.1)(toy.task())

    def test_what_travels(self):
        shapes = toy.reference("fedoa")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))
        shapes = toy.reference("fedoa_lora")[0].spec.shapes  # LoRA of 5 x 6 with rank 2, and the head; never the body
        numbers = (5 * 2 + 2 * 6) + (6 * 3 + 3)
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(lam=-1.0), "^lam=-1.0 must be at least 0$"),
        (dict(distance="l1"), "unknown distance 'l1'; allowed: l2, squared_l2, cosine, pearson"),
        (dict(variant="ours"), "unknown variant 'ours'; allowed: default, printed, released"),
        (dict(variant="released", distance="cosine"), "distance='cosine' has no reading.reduction='frobenius'"),
        (dict(server="adamm"), "server='adamm' is not one of"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            fedoa(toy.task(), optimizer=local_training.sgd(0.1), **arguments)
        for reading, message in (
            ({"begin": -1}, "^reading.begin=-1 must be at least 0$"),
            ({"micro": 0}, "reading.micro=0 must be at least 1"),
            ({"shared": 1.5}, r"reading.shared=1.5 must be in \[0, 1\]"),
            ({"reduction": "sum"}, "reading.reduction='sum' must be one of 'mean', 'frobenius'"),
            ({"start": 1}, "unknown option of reading 'start'"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                fedoa(toy.task(), optimizer=local_training.sgd(0.1), reading=reading)
