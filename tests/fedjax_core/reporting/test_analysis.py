"""Analyses on the toy federation, held against scikit-learn, against the engine's own scores, and against what the shapes say."""

import copy
import dataclasses
import functools
import weakref
from types import SimpleNamespace
from typing import Any
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import LogisticRegression

from fedjax_core.algorithm import Net
from fedjax_core.engine import client_loop, simulator
from fedjax_core.engine.simulator import Evaluation
from fedjax_core.reporting import analysis
from fedjax_core.reporting.analysis import linear_probe, loss_landscape, parameter_counts
from fedjax_core.storage.export_model import _compute_logits, find_trained_network
from fedjax_core.testing.case import Case
from fedjax_core.training import local_training, losses, param_partition
from methods.fedavg import fedavg
from methods.fedpft import fedpft
from tests import toy

ADAPTED = Case(  # its personal model is one network
    functools.partial(toy.METHODS["fedoa_lora"], reading={"micro": 3, "shared": 0.0}), task=toy.task_adapted
)


def with_data(sim, **changes):
    """Returns the specification of a simulation with other data."""
    spec = copy.copy(sim.spec)
    object.__setattr__(spec, "data", dataclasses.replace(spec.data, **changes))
    return spec


@functools.cache
def drawn(case: str | Case) -> tuple[simulator.Simulator, simulator.State]:
    """A simulation and a state that no two clients share: the first one, with noise."""
    case = toy.CASES[case] if isinstance(case, str) else case
    sim = case.simulate(evaluation=Evaluation(("global", "own")))
    rng = np.random.default_rng(0)
    noisy = lambda x: x + rng.normal(size=x.shape).astype(x.dtype) if x.dtype == np.float32 else x
    return sim, sim.compiled.put(jax.tree.map(noisy, jax.device_get(sim.init(0))))


class ViewTest(chex.TestCase):
    def test_a_trained_view_is_what_the_round_trains(self):
        """With one client in the cohort, FedAvg's next model is that client's."""
        sim = toy.simulate("fedavg", cohort=1)
        state = sim.init(3)
        views = [sim.client_view(state, i, trained=True).holds["global"][0] for i in range(toy.CLIENTS)]
        before = jax.device_get(state.server.net)
        after = jax.device_get(sim.run_rounds(state, 1)[0].server.net)
        apart = [max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(v), jax.tree.leaves(after), strict=True)) for v in views]
        self.assertLess(min(apart), 1e-6)
        self.assertEqual(sum(a < 1e-3 for a in apart), 1)
        self.assertGreater(
            max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)), 1e-3
        )

    def test_class_knowledge_is_the_mean_of_a_class(self):
        sim, state = drawn("fedavg")
        view = sim.client_view(state, 7)
        smooth, classes = analysis.collect_class_knowledge(sim, view)
        rows = sim.spec.data.train_index[7]
        x, y = sim.spec.data.train.x[rows], sim.spec.data.train.y[rows]
        self.assertEqual(classes.tolist(), sorted(set(y.tolist())))
        logits = analysis.compute_outputs(view, "global", x)["logits"]
        for vector, j in zip(smooth, classes, strict=True):
            c = logits[y == j].mean(0)
            np.testing.assert_allclose(vector, c / (1 + np.exp(-c)), atol=1e-6)
        without: Any = SimpleNamespace(spec=SimpleNamespace(data=SimpleNamespace(train_index=[np.zeros(0, int)] * toy.CLIENTS)))
        with self.assertRaisesRegex(ValueError, "client 7 has no training examples, so it knows no class"):
            analysis.collect_class_knowledge(without, view)

    def test_views_score_as_the_engine_does(self):
        """With two architectures, and with states on the host, some of them never touched."""
        host = toy.simulate("local", hold="host", mixed=False, evaluation=Evaluation(("own",)))
        state = host.init(0)
        assert host.offloaded_states is not None
        rng = np.random.default_rng(1)
        rows = jax.tree.map(lambda s: rng.normal(size=(4, *s.shape)).astype(s.dtype), host.spec.shapes.groups[0].client)
        host.offloaded_states.stores[0].write(np.array([1, 3, 4, 6]), rows, np.ones(4, bool))
        for sim, at in (drawn("local"), (host, state), drawn("fedavg")):
            for model, wanted in sim.client_scores(at)["own"].items():
                found = analysis.compute_client_accuracies(*analysis.compute_class_accuracies(sim, at, model))
                np.testing.assert_allclose(found, wanted["accuracy"][0] / wanted["accuracy"][1], err_msg=model)

    def test_clients_of_all_sizes_share_one_program(self):
        """A shape that a program has not seen is compiled; a client of its own size must not bring one."""
        for name in ("local", "fedavg"):
            sim, state = drawn(name)
            real, shapes, looked = sim.client_view, [], []

            def view(state, client, *, real=real, shapes=shapes, looked=looked, **more):
                found = real(state, client, **more)
                looked.append(client)

                def predict(model, holds, x, *held, found=found):
                    shapes.append((client % 2, x.shape))  # two architectures, where there are two
                    return found.predict(model, holds, x, *held)

                return found._replace(predict=predict)

            self.assertEqual({len(index) for index in sim.spec.data.test_index}, {3, 4})
            with mock.patch.object(sim, "client_view", view):
                analysis.compute_class_accuracies(sim, state)
            if name == "local":
                self.assertEqual(set(shapes), {(0, (4, toy.INPUTS)), (1, (4, toy.INPUTS))})
            else:
                self.assertEqual((set(shapes), set(looked)), ({(0, (30, toy.INPUTS))}, {0}), "one model for all, asked once")

    def test_the_whole_test_set(self):
        sim, state = drawn("fedavg")
        correct, total = analysis.compute_class_accuracies(sim, state, scope="all")
        np.testing.assert_array_equal(total, np.full((8, 3), 10))
        self.assertAlmostEqual(correct[3].sum() / 30, sim.evaluate(state).metrics["test/global/accuracy"], places=6)

    def test_what_is_not_there_is_named(self):
        sim, state = drawn("fedavg")
        self.assertEqual(analysis.choose_scored_model(sim, state), "global")
        self.assertEqual(analysis.choose_scored_model(*drawn("local")), "personal")
        with self.assertRaisesRegex(ValueError, "model 'personal' is not one that the method has: global"):
            analysis.score_probe(sim, state, "personal")
        with self.assertRaisesRegex(ValueError, "no output 'prompts'; it has features, logits"):
            analysis.compute_features(sim, state, key="prompts")
        with self.assertRaisesRegex(ValueError, r"client 8 is not one of 0 \.\.\. 7"):
            sim.client_view(state, 8)
        view, x = sim.client_view(state, 0), sim.spec.data.test.x
        with self.assertRaisesRegex(ValueError, "unknown model 'globe'; allowed: global"):
            view.predict("globe", view.holds["global"], x[:1])
        with self.assertRaisesRegex(ValueError, r"x has the shape \(.*\) of one example: must be \[n, \.\.\.\], such as x\[None\]"):
            view.predict("global", view.holds["global"], x[0])


class FeaturesTest(chex.TestCase):
    def test_rows_classes_and_clients(self):
        sim, state = drawn("fedavg")
        points = analysis.compute_features(sim, state, part="train", clients=[1, 4], most=3)
        self.assertEqual(points.clients.tolist(), [1] * 3 + [4] * 3)
        rows = [sim.spec.data.train_index[i][np.linspace(0, n - 1, 3).round().astype(int)] for i, n in ((1, 4), (4, 6))]
        np.testing.assert_array_equal(points.classes, sim.spec.data.train.y[np.concatenate(rows)])
        wanted, _ = toy.model().features(state.server.net, sim.spec.data.train.x[rows[1]])
        np.testing.assert_allclose(points.features[3:], wanted, atol=1e-6)

    def test_lengths_that_differ_are_refused(self):
        sim, state = drawn("local")
        with self.assertRaisesRegex(ValueError, r"lengths \[6, 7\] cannot be drawn together"):
            analysis.compute_features(sim, state)
        self.assertEqual(analysis.compute_features(sim, state, clients=[0, 2]).features.shape[1], 6)

    def test_clients_without_test_examples_are_refused(self):
        sim, state = drawn("fedavg")
        none = (np.zeros(0, np.int32),) * sim.spec.data.clients
        with mock.patch.object(type(sim), "spec", with_data(sim, test_index=none)):
            with self.assertRaisesRegex(ValueError, "no client has test examples of its own, so there are no features to show"):
                analysis.compute_features(sim, state)
            with self.assertRaisesRegex(ValueError, "none of clients 1, 2 has test examples"):
                analysis.compute_features(sim, state, clients=[1, 2])

    def test_embedding_keeps_clusters_apart(self):
        rng = np.random.default_rng(0)
        y = np.repeat(np.arange(3), 12)
        places = analysis.embed_by_tsne(rng.normal(size=(36, 5)) + 20 * np.eye(3, 5)[y])
        self.assertEqual(places.shape, (36, 2))
        distance = np.linalg.norm(places[:, None] - places[None], axis=-1) + 1e9 * np.eye(36)
        self.assertTrue((y[distance.argmin(1)] == y).all())


class RefitTest(chex.TestCase):
    def test_probe_is_logistic_regression(self):
        """scikit-learn's optimum of the same penalised loss gives the same probabilities."""
        rng = np.random.default_rng(1)
        f, y = rng.normal(size=(40, 5)).astype(np.float32), np.arange(40) % 3
        scale = f.mean(0), f.std(0)
        theta = {"kernel": jnp.zeros((5, 3)), "bias": jnp.zeros(3)}
        padded = np.pad(f, ((0, 9), (0, 0)), constant_values=np.nan), np.pad(y, (0, 9)), np.arange(49) < 40
        theta = linear_probe._minimize(linear_probe._linear_logits, theta, (scale, ()), np.nan_to_num(padded[0]), *padded[1:], 1.0)
        z = (f - scale[0]) / scale[1]
        wanted = LogisticRegression(C=1.0, tol=1e-8, max_iter=1000).fit(z, y).predict_proba(z)
        found = jax.nn.softmax(linear_probe._linear_logits(theta, (scale, ()), f), -1)
        np.testing.assert_allclose(found, wanted, atol=1e-3)

    def test_probe_of_clients(self):
        """Each client's own fit: a client whose training rows are of one class predicts that class."""
        sim, state = drawn("fedavg")
        probe = analysis.score_probe(sim, state)
        self.assertEqual(probe.shape, (8,))
        only = sim.spec.data.train.y[sim.spec.data.train_index[2]]
        own = sim.spec.data.test.y[sim.spec.data.test_index[2]]
        self.assertLen(only, 1)
        self.assertAlmostEqual(probe[2], np.mean(own == only[0]), places=6)
        self.assertTrue(((probe >= 0) & (probe <= 1)).all())

    def test_match_starts_at_the_model_and_ends_at_an_optimum(self):
        """At D = 0, d = 0 the layer is the identity; where it ends, the loss has no slope."""
        sim, state = drawn("fedavg")
        view = sim.client_view(state, 0)
        made = analysis.compute_outputs(view, "global", sim.spec.data.test.x)
        head = linear_probe._find_head(view, "global", made["features"], made["logits"])
        width = made["features"].shape[1]
        scale = made["features"].mean(0), made["features"].std(0)
        theta = {"kernel": jnp.zeros((width, width)), "bias": jnp.zeros(width)}
        matched, frozen = linear_probe._match_logits(view.task.network), (scale, (view.task.frozen, head))
        logits = jax.jit(matched)(theta, frozen, made["features"])
        np.testing.assert_allclose(logits, made["logits"], atol=1e-5)

        y = sim.spec.data.test.y
        best = linear_probe._minimize(matched, theta, frozen, made["features"], y, np.ones(len(y), bool), 1.0)

        def loss(theta):
            rows = losses.cross_entropy_per_example(matched(theta, frozen, made["features"]), y)
            return jnp.sum(rows) + jnp.sum(theta["kernel"] ** 2) / 2

        self.assertLess(*map(jax.jit(loss), (best, theta)))
        gradient = jax.jit(jax.grad(loss))
        for slope, steepest in zip(*(jax.tree.leaves(gradient(at)) for at in (best, theta)), strict=True):
            self.assertLess(jnp.abs(slope).max(), 0.02 * jnp.abs(steepest).max() + 0.02)

    def test_heads_are_found_wherever_they_are(self):
        """FedPFT's in a net; FedCAC's clients hold no net; a personal classifier of FedPFT's lies beside the prompts."""
        personal = functools.partial(fedpft, optimizer=local_training.sgd(0.1), prompts=2, batch=toy.BATCH, classifier="personal")
        own = simulator.Simulator(simulator.build_spec(toy.groups(personal), toy.data(), plan=client_loop.Plan(1, 1)))
        for sim, state in (drawn("fedpft"), drawn("fedcac"), (own, own.init(0))):
            view = sim.client_view(state, 4)
            made = analysis.compute_outputs(view, "personal", sim.spec.data.test.x)
            head = linear_probe._find_head(view, "personal", made["features"], made["logits"])
            wanted = made["features"] @ np.asarray(head["kernel"]) + np.asarray(head["bias"])
            np.testing.assert_allclose(wanted, made["logits"], atol=1e-5)
        with self.assertRaisesRegex(ValueError, "none of the nets that client 0 holds has a head"):
            analysis.score_match(*drawn("fedpft"), key="extractor")

    def test_a_model_without_its_head_cannot_match(self):
        def twice(task, **options):
            base = fedavg(task, **options)
            return base._replace(predict={"global": lambda sent, client, x: doubled(task.model.apply(sent, x)[0])})

        doubled = lambda made: made | {"logits": 2 * made["logits"] + 1}
        build = functools.partial(twice, optimizer=local_training.sgd(0.1))
        sim = simulator.Simulator(simulator.build_spec(toy.groups(build), toy.data(), plan=client_loop.Plan(1, 1)))
        with self.assertRaisesRegex(ValueError, "none of the nets that client 0 holds has a head"):
            analysis.score_match(sim, sim.init(0))


class LandscapeTest(chex.TestCase):
    def test_its_centre_is_the_model_and_it_moves_along_the_directions(self):
        sim, state = drawn("fedavg")
        found = analysis.compute_landscape(sim, state, points=3, span=0.5)
        scores = sim.evaluate(state).metrics
        self.assertAlmostEqual(found.loss[1, 1], scores["test/global/loss"], places=5)
        self.assertAlmostEqual(found.accuracy[1, 1], scores["test/global/accuracy"], places=5)
        centre = state.server.net
        across, down = ([jax.tree.map(lambda w, k=k: jnp.full_like(w, k), centre.params)] for k in (1.0, -2.0))
        found = analysis.compute_landscape(sim, state, points=3, span=0.5, directions=(across, down))
        moved = Net(jax.tree.map(lambda w: w + 0.5 * 1.0 - 0.5 * -2.0, centre.params), centre.stats)
        logits = toy.model().apply(moved, sim.spec.data.test.x)[0]["logits"]
        self.assertAlmostEqual(found.accuracy[0, 2], float(np.mean(logits.argmax(-1) == sim.spec.data.test.y)), places=6)

    def test_filters_have_the_norm_of_the_models(self):
        params = {"k": jnp.arange(24.0).reshape(2, 3, 4), "b": jnp.ones(4)}
        d = loss_landscape._direction(jax.random.key(0), params)
        np.testing.assert_allclose(np.sqrt((d["k"] ** 2).sum((0, 1))), np.sqrt((params["k"] ** 2).sum((0, 1))), rtol=1e-5)
        np.testing.assert_array_equal(d["b"], 0)

    def test_each_block_of_a_stack_has_filters_of_its_own_and_its_norms_stay(self):
        shapes = {"mlp1": {"kernel": (3, 4, 5), "bias": (3, 5)}, "norm1": {"scale": (3, 4)}, "qkv": {"bias": (3, 3, 2, 2)}}
        blocks = jax.tree.map(
            lambda shape: 1.0 + jnp.arange(np.prod(shape)).reshape(shape), shapes, is_leaf=lambda x: isinstance(x, tuple)
        )
        d = loss_landscape._direction(jax.random.key(0), {"blocks": blocks})["blocks"]
        norms = [np.sqrt((tree["mlp1"]["kernel"] ** 2).sum(1)) for tree in (d, blocks)]  # [depth, filters]
        np.testing.assert_allclose(*norms, rtol=1e-5)
        for fixed in (d["mlp1"]["bias"], d["norm1"]["scale"], d["qkv"]["bias"]):
            np.testing.assert_array_equal(fixed, 0)


class PlaneTest(chex.TestCase):
    def test_models_of_a_plane_stand_where_they_are(self):
        rng = np.random.default_rng(0)
        centre = Net({"k": rng.normal(size=(2, 3)).astype(np.float32), "b": rng.normal(size=4).astype(np.float32)}, {})
        first, second = np.linalg.qr(rng.normal(size=(10, 2)))[0].T
        wanted = np.array([[3, 0], [-1, 1], [2, -0.5], [0, 0.5]])
        tree = lambda d: {"k": d[:6].reshape(2, 3), "b": d[6:]}
        others = [
            Net(jax.tree.map(lambda w, d: (w + d).astype(np.float32), centre.params, tree(a * first + b * second)), {})
            for a, b in wanted
        ]
        found = analysis.find_plane(centre, others)
        for net, place in zip(others, found.places, strict=True):
            at = jax.tree.map(lambda w, a, b, place=place: w + place[0] * a + place[1] * b, centre.params, *found.directions)
            chex.assert_trees_all_close(at, net.params, atol=1e-5)
        np.testing.assert_allclose(found.places @ found.places.T, wanted @ wanted.T, atol=1e-5)
        np.testing.assert_allclose(found.share, (found.places**2).sum(0) / (wanted**2).sum(), rtol=1e-5)
        self.assertGreater(found.share[0], found.share[1])
        apart = [Net({"k": row}, {}) for row in np.diag([3, 2, 1]).astype(np.float32)]  # the last one is outside of the plane
        share = analysis.find_plane(Net({"k": np.zeros(3, np.float32)}, {}), apart).share
        np.testing.assert_allclose(share, [9 / 14, 4 / 14], rtol=1e-5)
        for few in ([others[0]], [others[0]] * 3, [centre] * 3):
            with self.assertRaisesRegex(ValueError, "a plane needs two models beside the central one"):
                analysis.find_plane(centre, few)
        with self.assertRaisesRegex(ValueError, "must have the same parameters"):
            analysis.find_plane(centre, [others[0], Net({"k": np.zeros((2, 3))}, {})])

    def test_the_loss_around_a_global_model(self):
        sim, state = drawn("fedoa")
        x = sim.spec.data.test.x[:8]
        nets = [find_trained_network(sim.client_view(state, i), "personal", x) for i in range(3)]
        chex.assert_trees_all_equal(nets[1], jax.tree.map(lambda leaf: leaf[1], state.clients[0]))
        found, where = analysis.compute_surroundings(sim, state, nets, points=3)
        scores = sim.evaluate(state).metrics
        self.assertAlmostEqual(found.loss[1, 1], scores["test/global/loss"], places=5)
        reach = 1.25 * np.abs(where.places).max()
        np.testing.assert_allclose(found.steps, [-reach, 0, reach])
        centre = state.server.net
        corner = jax.tree.map(lambda w, a, b: w + reach * a - reach * b, centre.params, *where.directions)
        logits = toy.model().apply(Net(corner, centre.stats), sim.spec.data.test.x)[0]["logits"]
        self.assertAlmostEqual(found.accuracy[0, 2], float(np.mean(logits.argmax(-1) == sim.spec.data.test.y)), places=6)


class FrozenTest(chex.TestCase):
    """What is frozen may be a foundation model: it is an argument of every program, and clients share them."""

    def setUp(self):
        super().setUp()
        self.addCleanup(jax.config.update, "jax_captured_constants_warn_bytes", jax.config.jax_captured_constants_warn_bytes)
        jax.config.update("jax_captured_constants_warn_bytes", 100)  # fewer than the body's kernel has; warnings are errors

    def test_no_program_has_it_as_a_constant(self):
        sim, state = drawn(ADAPTED)
        on_device = weakref.ref(jax.tree.leaves(sim.compiled.device_arrays.tasks)[0])
        kernel = sim.spec.bound_groups[0].task.frozen.params["body"]["kernel"]
        self.assertGreater(kernel.nbytes, 100)
        with self.assertRaisesRegex(UserWarning, "constants"):
            jax.jit(lambda x: x @ jnp.asarray(kernel))(jnp.ones((1, len(kernel))))
        found = analysis.compute_landscape(sim, state, "global", points=3)
        self.assertAlmostEqual(found.loss[1, 1], sim.evaluate(state).metrics["test/global/loss"], places=5)
        self.assertIsNotNone(on_device())
        sim.release()
        self.assertIsNone(on_device(), "no analysis keeps it")

    def test_clients_share_programs(self):
        sim, state = drawn(ADAPTED)
        on_device = weakref.ref(jax.tree.leaves(sim.compiled.device_arrays.tasks)[0])
        before = _compute_logits._cache_size(), linear_probe._minimize._cache_size()
        x = sim.spec.data.test.x[:8]
        nets = [find_trained_network(sim.client_view(state, i), "personal", x) for i in range(3)]
        self.assertEqual(
            [float(net.params["head"]["bias"][0]) for net in nets], state.clients[0].params["head"]["bias"][:3, 0].tolist()
        )
        self.assertEqual(analysis.score_match(sim, state, "personal").shape, (toy.CLIENTS,))
        self.assertEqual((_compute_logits._cache_size(), linear_probe._minimize._cache_size()), (before[0] + 1, before[1] + 1))
        sim.release()
        self.assertIsNone(on_device(), "no analysis keeps it")


class AttentionTest(chex.TestCase):
    def test_weights_are_those_of_the_clients_own_prompts(self):
        sim, state = drawn("fedpft_con")
        found, labels = analysis.compute_attention(sim, state, client=4, most=3)
        rows = sim.spec.data.test_index[4]
        rows = rows[np.linspace(0, len(rows) - 1, 3).round().astype(int)]
        np.testing.assert_array_equal(labels, sim.spec.data.test.y[rows])
        f = analysis.compute_outputs(sim.client_view(state, 4), "personal", sim.spec.data.test.x[rows])["extractor"]
        client = jax.tree.map(lambda leaf: leaf[4], state.clients[0])
        tau = state.server.transform
        for name, prompts in (("attention", client.prompts), ("contrast_attention", client.contrast.prompts)):
            for row, weights in zip(f, found[name], strict=True):
                scores = np.array([(row @ tau["query"]) @ (token @ tau["key"]) / len(row) ** 0.5 for token in (row, *prompts)])
                wanted = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
                np.testing.assert_allclose(weights, wanted, atol=1e-5)

    def test_what_cannot_be_shown_is_named(self):
        with self.assertRaisesRegex(ValueError, "no output 'attention'; it has features, logits"):
            analysis.compute_attention(*drawn("fedavg"))
        sim, state = drawn("fedpft")
        empty = with_data(sim, test_index=(np.zeros(0, np.int32), *sim.spec.data.test_index[1:]))
        with mock.patch.object(type(sim), "spec", empty), self.assertRaisesRegex(ValueError, "client 0 has no test examples"):
            analysis.compute_attention(sim, state)


class CommunicationTest(chex.TestCase):
    def test_parts_of_a_network_and_beside_it(self):
        rows = [row for row in analysis.count_communication(drawn("fedpft_con")[0]) if row["way"] == "up"]
        sums = {part: sum(row["numbers"] for row in rows if row["part"] == part) for part in {row["part"] for row in rows}}
        d, classes, size = drawn("fedpft_con")[1].server.transform["key"].shape[0], toy.CLASSES, 4
        wanted = {"transform": 4 * d * d, "net/head": (d + 1) * classes, "projection": (d + 1) * size}
        self.assertEqual({part: n for part, n in sums.items() if part != "net/body"}, wanted)
        self.assertGreater(sums["net/body"], 0)
        self.assertEqual(parameter_counts._part(["params", "head", "bias"]), "head")
        self.assertEqual(parameter_counts._part(["net", "stats", "norm1", "mean"]), "net/body")
        self.assertEqual(parameter_counts._part(["control", "head", "bias"]), "control")

    def test_sums_are_the_engines(self):
        for name in ("scaffold", "fedhe_mixed"):
            sim = toy.simulate(name)
            rows = analysis.count_communication(sim)
            for way, wanted in (("down", sim.spec.shapes.down), ("up", sim.spec.shapes.up)):
                groups = len(sim.spec.bound_groups)
                self.assertEqual(sum(row["bytes"] for row in rows if row["way"] == way), wanted * groups, name)
        logits, known = (row for row in rows if (row["group"], row["way"]) == ("narrow", "down"))
        self.assertEqual((logits["array"], logits["shape"], logits["numbers"], logits["bytes"]), ("logits", "3x3", 9, 36))
        self.assertEqual((known["dtype"], known["bytes"]), ("bool", 3))


class SizesTest(chex.TestCase):
    """The toy network has 36 parameters in its body, 21 in its head, and 5 running means."""

    def sizes(self, name: str, **settings) -> dict[str, int]:
        (row,) = analysis.count_sizes(toy.simulate(name, **settings))
        return {what: row[what] for what in ("whole", "body", "trained", "down", "up", "statistics")}

    def test_trained_is_what_gradient_steps_change(self):
        """Two phases of one network count once, two copies of it twice, and what is beside it counts too."""
        body, head, features = 36, 21, toy.model().init(jax.random.key(0)).params["head"]["kernel"].shape[0]
        whole = body + head
        for name, wanted in {
            "fedavg": whole,
            "fedbabu": body,  # under a fixed head
            "fedrep": whole,  # head, then body
            "ditto": 2 * whole,
            "pfedpt": whole + 2,  # and two pixels of a frame
            "fedpft": whole + 4 * features**2 + 3 * features,  # and transformation and prompts
        }.items():
            self.assertEqual(self.sizes(name)["trained"], wanted, name)

    def test_statistics_count_nowhere_but_in_their_own_column(self):
        for name, messages in (("fedavg", 57), ("scaffold", 2 * 57)):
            found = self.sizes(name)
            self.assertEqual(found, {"whole": 57, "body": 36, "trained": 57, "down": messages, "up": messages, "statistics": 5})
            self.assertEqual(found | {"statistics": 0}, self.sizes(name, statistics=False))

    def test_a_training_of_no_steps_trains_nothing(self):
        with param_partition.count_trainable() as counter:
            first, second, third = (jnp.zeros(n) for n in (2, 3, 5))
            param_partition.record_training({"a": first}, {"a": second}, trains=False)
            self.assertEqual(counter.count, 0)
            param_partition.record_training({"a": first}, {"a": third})
            param_partition.record_training({"a": third}, {"a": second})
            self.assertEqual(counter.count, 2)
        param_partition.record_training({"a": first}, {"a": second})
        self.assertEqual(counter.count, 2)
