"""Episodes and prototypical networks against loops over classes, queries and steps; and that they learn to tell unseen classes."""

import functools
import io

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from PIL import Image

from configs import base
from fedjax_core import experiment
from fedjax_core.algorithm import ClientData, Examples
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import client_loop
from fedjax_core.engine.simulator import Evaluation, Simulator, build_spec, one_group
from fedjax_core.task import make_task
from fedjax_core.training import local_training
from fedjax_core.training.few_shot import Episode, EpisodeSampler, prototypical_model
from methods.fedavg import fedavg
from methods.local import local
from methods.scaffold import scaffold
from tests import naive, toy

PLAIN = toy.model()
MODEL = prototypical_model(PLAIN, toy.CLASSES)
DRAWN = EpisodeSampler(way=2, shot=2, query=3, tests=20)
LR, BATCH = 0.05, 4
FEDAVG = functools.partial(fedavg, optimizer=local_training.sgd(LR), batch=BATCH)


# ---------------------------------------------------------------------------------------------------- as the docstrings say it


def naive_draw(y, key, way, shot, query):
    """[(class, places of its support, places of its queries)] of a client whose rows have the classes y."""
    of_class, of_row = jax.random.split(key)
    classes = sorted(set(y.tolist()), key=lambda c: (int(naive._bits(of_class, c)), c))[:way]
    drawn = []
    for c in classes:
        places = sorted(np.flatnonzero(y == c).tolist(), key=lambda place: int(naive._bits(of_row, place)))
        given = min(shot, max(len(places) - 1, 1))
        drawn.append((c, places[:given], places[given : given + query]))
    return drawn


def naive_distances(net, x, drawn, train):
    """For each query its class and squared distances to the classes of the episode, and the net's new statistics."""
    places = [p for _, support, _ in drawn for p in support] + [p for _, _, queries in drawn for p in queries]
    z, stats = PLAIN.features(net, x[np.array(places)], train=train)
    at = {place: z[i] for i, place in enumerate(places)}
    means = [sum(at[p] for p in support) / len(support) for _, support, _ in drawn]
    return [(k, [jnp.sum((at[p] - c) ** 2) for c in means]) for k, (_, _, queries) in enumerate(drawn) for p in queries], stats


def naive_loss(params, stats, x, drawn):
    net = type(jax.eval_shape(PLAIN.init, jax.random.key(0)))(params, stats)
    found, stats = naive_distances(net, x, drawn, True)
    each = [d[k] + jnp.log(sum(jnp.exp(-other) for other in d)) for k, d in found]
    return sum(each) / max(len(each), 1) + 0.0 * jnp.sum(params["head"]["bias"]), stats


def naive_fit(params, stats, x, y, key, epochs, drawn=DRAWN):
    for epoch in range(epochs):
        draw, _ = jax.random.split(jax.random.fold_in(key, epoch))
        for step in range(-(-len(y) // BATCH)):
            episode = naive_draw(y, jax.random.fold_in(draw, step), drawn.way, drawn.shot, drawn.query)
            g, stats = jax.grad(naive_loss, has_aux=True)(params, stats, x, episode)
            params = naive.plus(params, g, -LR)
    return params, stats


def naive_accuracy(net, x, y, tests):
    """Mean over the test episodes of the part of their queries that lie nearest to the prototype of their class."""
    each = []
    for support, query in zip(*tests, strict=True):
        drawn = [(c, support[c].tolist(), query[c].tolist()) for c in range(len(support))]
        assert all(len({int(y[p]) for p in (*s, *q)}) == 1 for _, s, q in drawn)
        found, _ = naive_distances(net, x, drawn, False)
        each.append(np.mean([np.argmin(d) == k for k, d in found]))
    return np.mean(each)


# ---------------------------------------------------------------------------------------------------- episodes


@functools.cache
def numbered():
    """Rows that are their own number, of five classes."""
    return Examples(np.arange(40.0, dtype=np.float32), (np.arange(40) * 7 % 40 % 5).astype(np.int32))


@functools.partial(jax.jit, static_argnums=0)
def draw(episodes, index, size, key):
    return episodes(ClientData(jax.tree.map(jnp.asarray, numbered()), index, size), key)


class DrawTest(chex.TestCase):
    @parameterized.parameters(
        (range(40), 3, 2, 4, 0),
        (range(3, 30), 5, 5, 15, 4),  # fewer rows than an episode has places
        (range(0, 40, 5), 3, 2, 4, 2),  # one class or two
        ((1, 5, 9, 14, 20), 5, 1, 1, 3),
        ((7,), 2, 1, 1, 0),
        ((7, 12), 3, 5, 2, 1),
    )
    def test_is_the_documented_one_whatever_the_padding(self, rows, way, shot, query, padding):
        rows, episodes = np.array(list(rows), np.int32), EpisodeSampler(way, shot, query)
        for seed in range(3):
            key = jax.random.key(seed)
            x, y, mask, _ = jax.device_get(draw(episodes, np.pad(rows, (0, padding), constant_values=8), np.int32(len(rows)), key))
            self.assertIsInstance(x, Episode)
            chex.assert_shape([x.query, y, mask], (way * query,))
            chex.assert_shape([x.support, x.support_mask], (way, shot))
            expected = naive_draw(numbered().y[rows], key, way, shot, query)
            query_rows, asked, labels = (a.reshape(way, query) for a in (x.query, mask, y))
            for k in range(way):
                c, support, queries = expected[k] if k < len(expected) else (None, [], [])
                np.testing.assert_array_equal(x.support[k][x.support_mask[k]], rows[support])
                np.testing.assert_array_equal(query_rows[k][asked[k]], rows[queries])
                self.assertEqual((x.support_mask[k].sum(), asked[k].sum()), (len(support), len(queries)))
                if c is not None:
                    self.assertEqual(x.classes[k], c)
                    self.assertTrue(np.all(labels[k][asked[k]] == c))

    def test_nobody_to_draw_from(self):
        x, _, mask, _ = draw(DRAWN, np.zeros(3, np.int32), np.int32(0), jax.random.key(0))
        self.assertFalse(np.any(mask) or np.any(x.support_mask))

    def test_all_classes_come_equally_often(self):
        """Class 0 has one row in ten."""
        y = np.array([0] * 4 + [1] * 20 + [2] * 16, np.int32)
        data = ClientData(Examples(jnp.arange(40.0), jnp.asarray(y)), jnp.arange(40), jnp.int32(40))
        drawn = jax.jit(jax.vmap(lambda key: DRAWN(data, key).x.classes))(jax.random.split(jax.random.key(1), 600))
        np.testing.assert_allclose(np.bincount(np.ravel(drawn)) / 1200, 1 / 3, atol=0.05)

    def test_the_test_episodes_are_always_the_same(self):
        y = np.repeat(np.arange(6), (30, 3, 20, 25, 20, 19))
        support, query = EpisodeSampler(3, 5, 15, tests=200).draw_test_episodes(y)
        again = EpisodeSampler(3, 5, 15, tests=200).draw_test_episodes(y)
        chex.assert_trees_all_equal((support, query), again)
        chex.assert_shape([support, query], [(200, 3, 5), (200, 3, 15)])
        rows = np.concatenate([support, query], -1)
        self.assertTrue(np.all(np.diff(np.sort(rows, -1), axis=-1) > 0))  # nothing twice
        self.assertTrue(np.all(y[rows] == y[rows][..., :1]))  # one class each
        classes = y[support[..., 0]]
        self.assertTrue(np.all(np.diff(np.sort(classes), axis=1) > 0))
        self.assertEqual(set(classes.ravel().tolist()), {0, 2, 3, 4})  # those with 20 rows
        self.assertGreater(len(np.unique(rows)), 90)

    def test_the_test_set_must_have_enough(self):
        message = "way=5, but 1 of the test set's 3 classes have the 20 examples of shot=5 and query=15"
        with self.assertRaisesRegex(ValueError, message):
            EpisodeSampler().draw_test_episodes(np.repeat(np.arange(3), (20, 19, 5)))

    @parameterized.parameters(("way", 1), ("shot", 0), ("query", 2.5), ("tests", 0), ("way", True))
    def test_numbers_out_of_range(self, name, value):
        with self.assertRaisesRegex(ValueError, f"episodes: {name}={value} must be an int of at least"):
            EpisodeSampler(**{name: value})


# ---------------------------------------------------------------------------------------------------- training


def client(rows):
    """(x, y) of the toy federation's rows."""
    return toy.data().train.x[list(rows)], toy.data().train.y[list(rows)]


class TrainingTest(chex.TestCase):
    @parameterized.parameters(((0, 1, 2, 3, 4, 5, 6), 3, 2), ((0, 3, 6, 9), 3, 1), ((0, 1), 3, 1), ((4,), 2, 1))
    def test_fit_equals_loops_over_episodes(self, rows, padding, epochs):
        """The second client has one class, the third two of one row each, the last a single row: none of them has a gradient."""
        x, y = client(rows)
        fit = jax.jit(local_training.fit(local_training.model_loss(MODEL), local_training.sgd(LR)(0), epochs=epochs, batch=BATCH))
        start, key = MODEL.init(jax.random.key(1)), jax.random.key(2)
        index = np.pad(np.array(rows, np.int32), (0, padding), constant_values=30)
        arrays = jax.tree.map(jnp.asarray, toy.data().train)
        end = fit(start, ClientData(arrays, jnp.asarray(index), jnp.int32(len(rows)), DRAWN), key)
        params, stats = naive_fit(start.params, start.stats, x, y, key, epochs)
        chex.assert_trees_all_close(tuple(end.net), (params, stats), atol=3e-6)
        chex.assert_trees_all_equal(end.net.params["head"], start.params["head"])
        moved = np.abs(end.net.params["body"]["kernel"] - start.params["body"]["kernel"]).max()
        self.assertEqual(moved > 1e-3, len(rows) > 4)

    def test_one_vmap_over_unequal_clients_is_one_by_one(self):
        fit = local_training.fit(local_training.model_loss(MODEL), local_training.sgd(LR)(0), epochs=1, batch=BATCH)
        start, keys = MODEL.init(jax.random.key(1)), jax.random.split(jax.random.key(2), 3)
        index, sizes = np.arange(27, dtype=np.int32).reshape(3, 9), np.array([9, 0, 5], np.int32)
        arrays = jax.tree.map(jnp.asarray, toy.data().train)
        one = jax.jit(lambda i, n, key: fit(start, ClientData(arrays, i, n, DRAWN), key).net)
        together = jax.jit(jax.vmap(one))(index, sizes, keys)
        for c in range(3):
            chex.assert_trees_all_close(jax.tree.map(lambda a, c=c: a[c], together), one(index[c], sizes[c], keys[c]), atol=1e-6)

    def test_outputs_of_episodes_and_of_plain_examples(self):
        net, x = MODEL.init(jax.random.key(1)), toy.data().train.x
        z, _ = PLAIN.features(net, x[:4])
        plain, _ = MODEL.apply(net, x[:4])
        chex.assert_trees_all_equal(plain, {"features": z})
        episode = Episode(x[:3], x[3:7].reshape(2, 2, -1), jnp.array([2, 0]), jnp.array([[True, True], [True, False]]))
        out, _ = MODEL.apply(net, episode)
        chex.assert_trees_all_close(out["features"], z[:3], MODEL.features(net, episode)[0])
        support, _ = PLAIN.features(net, x[3:7])
        far = [[float(jnp.sum((q - c) ** 2)) for c in (support[2], (support[0] + support[1]) / 2)] for q in z[:3]]
        np.testing.assert_allclose(out["logits"][:, [0, 2]], -np.array(far), rtol=1e-5)
        self.assertLess(float(out["logits"][:, 1].max()), -1e6)  # a class that is not there
        with self.assertRaisesRegex(ValueError, "a prototypical toy6 has no linear head"):
            MODEL.head(net, z)


# ---------------------------------------------------------------------------------------------------- the engine


def simulate(build, *, plan=(1, 1), scopes=("global",), **settings):
    task = make_task(MODEL, classes=toy.CLASSES, population=toy.CLIENTS)
    settings = {"cohort": None, "episodes": DRAWN, "rounds_per_dispatch": 2} | settings
    groups = one_group(build, task, toy.CLIENTS)
    return Simulator(build_spec(groups, toy.data(), plan=client_loop.Plan(*plan), evaluation=Evaluation(scopes), **settings))


class EngineTest(chex.TestCase):
    def test_a_round_of_fedavg_and_its_score_equal_loops(self):
        sim = simulate(FEDAVG)
        state, _ = sim.run_rounds(sim.init(0), 1)
        start = PLAIN.init(naive.stream(0, naive.INIT))
        ends = []
        for i, (x, y) in enumerate(naive.rows(toy.data())):
            ends.append(naive_fit(start.params, start.stats, x, y, naive.client_key(0, 0, i), 1))
        wanted = naive.mean(ends, [len(y) for _, y in naive.rows(toy.data())])
        chex.assert_trees_all_close(tuple(state.server.net), wanted, atol=3e-6)
        x, y = toy.data().test
        accuracy = naive_accuracy(jax.device_get(state.server.net), x, y, DRAWN.draw_test_episodes(y))
        self.assertAlmostEqual(sim.evaluate(state).metrics["test/global/accuracy"], accuracy, places=5)
        self.assertEqual(set(sim.evaluate(state).metrics), {"test/global/accuracy", "test/global/loss"})

    def test_plans_and_places_agree(self):
        ends = []
        for settings in ({}, {"plan": (3, 2), "hold": "host"}):
            sim = simulate(functools.partial(scaffold, optimizer=local_training.sgd(LR), batch=BATCH), cohort=5, **settings)
            state, _ = sim.run_rounds(sim.init(0), 2)
            ends.append((jax.device_get(state.server), sim.evaluate(state).metrics))
        chex.assert_trees_all_close(*ends, atol=1e-5, rtol=1e-5)

    def test_personal_models_are_scored_on_all_test_episodes(self):
        sim = simulate(functools.partial(local, optimizer=local_training.sgd(LR), batch=BATCH), scopes=("all",), plan=(3, 1))
        state = sim.init(0)
        noise = jax.random.normal(jax.random.key(5), (toy.CLIENTS,))
        state = state._replace(clients=jax.tree.map(lambda a: jnp.einsum("n,n...->n...", noise, a), state.clients))
        scores = sim.client_scores(state)["all"]["personal"]["accuracy"]
        x, y = toy.data().test
        for i in (0, 7):
            net = jax.tree.map(lambda a, i=i: a[i], state.clients[0])
            self.assertAlmostEqual(scores[0][i] / scores[1][i], naive_accuracy(net, x, y, DRAWN.draw_test_episodes(y)), places=5)

    @parameterized.parameters("own", "post_local")
    def test_clients_have_no_test_episodes_of_their_own(self, scope):
        with self.assertRaisesRegex(ValueError, f"scopes has '{scope}', but clients have no .* it may have 'global', 'all'"):
            simulate(FEDAVG, scopes=("global", scope))

    def test_a_method_that_reads_logits_of_plain_examples_is_refused(self):
        def build(task):
            inner = FEDAVG(task)

            def client_update(sent, client, data, key):
                task.model.apply(sent, data.arrays.x[:2])[0]["logits"]
                return inner.client_update(sent, client, data, key)

            return inner._replace(client_update=client_update)

        with self.assertRaisesRegex(ValueError, "group 'all': the method reads logits of plain examples"):
            simulate(build)


# ---------------------------------------------------------------------------------------------------- configs and real images


def few_shot(method, **options):
    config = base.get_config("smoke")
    config.task = "episodes(way=3, shot=5, query=10, tests=40)"
    config.data.source = "unseen(of='digits', classes=(0, 1, 2, 3))"
    config.models = ("mlp(widths=(16,))",)
    config.method = dict(name=method, epochs=1, batch=30, **options)
    config.evaluation.scopes = ("global",)
    config.plan.devices = 1
    return config


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        ("episode", ValueError, "unknown task 'episode'; allowed: classification, episodes. Did you mean 'episodes'"),
        ("episodes(ways=3)", TypeError, "task 'episodes' has no option 'ways'; it takes: way, shot, query, tests"),
        ("classification(way=3)", TypeError, "task 'classification' has no option 'way'"),
        ("episodes(shot=0)", ValueError, "shot=0 must be an int of at least 1"),
    ],
)
def test_the_task_of_a_config_is_checked(task, error, message):
    config = few_shot("fedavg")
    config.task = task
    with pytest.raises(error, match=message):
        experiment.check_config(config)


def test_a_method_by_its_config():
    sim = experiment.build(few_shot("fedskc", knowledge=dict(of="features")))
    state, records = sim.run_rounds(sim.init(0), 2)
    assert sim.evaluate(state).metrics["test/global/accuracy"] > 0.4
    assert state.server.net.params["head"]["kernel"].shape == (16, 1)  # nobody reads it
    assert records[-1]["train/lcl"] > 0
    assert state.server.knowledge.shape == (10, 16)
    assert state.server.known.tolist() == [True] * 6 + [False] * 4


@pytest.mark.parametrize(
    ("method", "options", "says"),
    [
        ("fedskc", {}, "fedskc exchanges mean logits of classes, which a prototypical network does not have"),
        ("fedhpl", {}, "the method reads logits of plain examples"),
        ("moon", {}, "predictor 'global' classifies with a head of the method's own"),
        ("fedgh", {"projection": 4}, "predictor 'personal' classifies with a head of the method's own"),
    ],
)
def test_methods_that_tell_the_training_sets_classes_apart_are_refused(method, options, says):
    config = few_shot(method, **options)
    if method in ("fedgh", "fedhpl"):
        config.evaluation.scopes = ("all",)
    with pytest.raises(ValueError, match=says):
        experiment.build(config)


def test_augmentation_reaches_support_and_queries():
    config = few_shot("fedavg")
    config.augment = "flip(probability=1.0)"
    data = experiment.dataset(config)
    model = experiment.build(config, data).spec.bound_groups[0].task.model
    config.augment = None
    plain = experiment.build(config, data).spec.bound_groups[0].task.model
    net, x = plain.init(jax.random.key(0)), np.asarray(data.train.x[:9], np.float32) / 255
    episode = Episode(x[:3], x[3:].reshape(3, 2, *x.shape[1:]), jnp.arange(3), jnp.ones((3, 2), bool))
    mirrored = episode._replace(query=episode.query[..., ::-1, :], support=episode.support[..., ::-1, :])
    found, _ = model.apply(net, episode, jax.random.key(1), train=True)
    chex.assert_trees_all_close(found, plain.apply(net, mirrored, jax.random.key(1), train=True)[0], atol=1e-5)
    chex.assert_trees_all_close(model.apply(net, episode)[0], plain.apply(net, episode)[0])


def test_real_images_of_unseen_classes_are_told_apart(shared_data):
    """Tiny-ImageNet at 8x8: 50 classes are trained on by three clients, the episodes of the test are of 20 others."""
    with np.load(shared_data / "tiny_imagenet64_sample.npz") as file:
        labels, blob, offsets = file["train_labels"], file["train_bytes"].tobytes(), file["train_offsets"]
    rows = np.flatnonzero(labels < 70)
    x, y = np.empty((len(rows), 8, 8, 3), np.uint8), labels[rows].astype(np.int32)
    for i, row in enumerate(rows):
        image = Image.open(io.BytesIO(blob[offsets[row] : offsets[row + 1]]))
        image.draft("RGB", (8, 8))  # the JPEG decoder's own reduction
        x[i] = image.convert("RGB")
    seen = y < 50
    tiny = sources.from_arrays(x[seen], y[seen], x[~seen], y[~seen], [str(c) for c in range(70)], name="tiny")
    config = few_shot("fedavg")
    config.task = "episodes(way=5, shot=5, query=10, tests=100)"
    config.models = ("cnn(widths=(16, 32), dense=64, padding='SAME')",)
    config.method = dict(name="fedavg", epochs=1, batch=75)
    config.optimizer.lr = 0.02
    config.cohort.fraction = 1.0
    sim = experiment.build(config, federated_data.federate(tiny, {"name": "dirichlet", "alpha": 0.5}, 3, 0))
    state = sim.init(0)
    before = sim.evaluate(state).metrics["test/global/accuracy"]
    state, records = sim.run_rounds(state, 8)
    after = sim.evaluate(state).metrics["test/global/accuracy"]
    assert records[-1]["train/loss"] < records[0]["train/loss"]
    assert after > max(0.33, before + 0.03)  # by chance 0.2; random kernels tell some
