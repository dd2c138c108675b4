"""FedSKC in loops over clients, classes and rows, in its three readings, and its limits."""

import ast
import functools
import itertools
import math

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import ClientData, Cohort
from fedjax_core.engine import client_loop, simulator
from fedjax_core.task import make_task
from fedjax_core.training import aggregators, local_training
from methods import fedskc as module
from methods.fedskc import Gda, Gpr, Sent, contrastive_loss, fedskc, merge_neighbours, summarize_weights
from tests import naive, toy
from tests.fedjax_core.training.test_aggregators import cases, often

K, TAU = toy.CLASSES, 0.08
MODEL = toy.model()


def length(v):
    return jnp.sqrt(jnp.sum(v * v))


def cosine(a, b):
    """0 if `a` is zero, as it is of a batch of one example and no bias."""
    some = jnp.any(a != 0)
    a = jnp.where(some, a, 1.0)
    return jnp.where(some, jnp.dot(a, b) / (length(a) * length(b)), 0.0)


def similarity(logits, j, knowledge, known):
    return cosine(logits, jnp.where(known[j], knowledge[j], 1.0))


def lcl(logits, y, given):
    """Eq. 2 and 3, U over the batch, or given."""
    knowledge, known, fixed = given
    total = 0.0
    for i in range(len(y)):
        denominator, positive = -1e30, 0.0
        for j in range(K):
            c = jnp.where(known[j], knowledge[j], 1.0)
            u = sum(length(jax.lax.stop_gradient(row) - c) for row in logits) / len(y) if fixed is None else fixed[j]
            s = similarity(logits[i], j, knowledge, known) / u / TAU
            denominator = jnp.logaddexp(denominator, jnp.where(known[j], s, -1e30))
            positive += jnp.where(y[i] == j, s, 0.0)
        total += jnp.where(known[y[i]], denominator - positive, 0.0)
    return total / len(y)


def released_lcl(logits, y, given):
    """The released loss: all classes that are there, and in front of them the positive; own logits where the class is not there."""
    knowledge, known, strength = given
    total = 0.0
    for i in range(len(y)):
        mine = jax.lax.stop_gradient(logits[i])
        positive = cosine(logits[i], jnp.where(jnp.any(mine != 0), mine, 1.0))
        for j in range(K):
            positive = jnp.where((y[i] == j) & known[j], similarity(logits[i], j, knowledge, known), positive)
        terms = [positive] + [similarity(logits[i], j, knowledge, known) for j in range(K)]
        there = [True] + [known[j] for j in range(K)]
        total -= positive / TAU - jnp.log(sum(jnp.where(t, jnp.exp(s / TAU), 0.0) for s, t in zip(terms, there, strict=True)))
    return strength * total / len(y)


def logits_of(params, stats, x):
    net = type(jax.eval_shape(MODEL.init, jax.random.key(0)))(params, stats)
    return np.asarray(MODEL.apply(net, x)[0]["logits"], np.float64)


def means(pairs):
    """{class: mean} of (class, vector) pairs."""
    found = {}
    for j, v in pairs:
        found.setdefault(int(j), []).append(np.asarray(v, np.float64))
    return {j: sum(vectors) / len(vectors) for j, vectors in found.items()}


def merge(cs, neighbours=1):
    """{class: knowledge} of [{class: knowledge} per client]: Eq. 1 and what follows it."""
    merged = {}
    for j in {j for c in cs for j in c}:
        holders = [c[j] for c in cs if j in c]
        smooth = []
        for a, own in enumerate(holders):
            others = sorted((v for b, v in enumerate(holders) if b != a), key=lambda v, own=own: np.linalg.norm(own - v))
            group = [own, *others[:neighbours]]
            smooth.append(sum(group) / len(group))
        merged[j] = sum(smooth) / len(smooth)
    return merged


def discrepancy_weights(cs, merged, sizes, kind, distance, form):
    """e_k of Eq. 4, in float64."""
    d = [sum(np.linalg.norm(c[j] - merged[j]) for j in c) for c in cs]
    if distance == "mean":
        d = [total / len(c) for total, c in zip(d, cs, strict=True)]
    e = []
    for k in range(len(cs)):
        a = d[k] / sum(d) if sum(d) else 0.0
        b = sizes[k] / sum(sizes)
        relu = max(b - a / 2 + 0.1, 0)
        e.append(relu if form == "relu" else 1 / (1 + math.exp(-((sizes[k] if kind == "count" else b) - a * d[k] + b))))
    return [value / sum(e) for value in e]


def variances(knowledge, ddof=0):
    return {j: np.var(v, ddof=ddof) for j, v in knowledge.items()}


def ratio(now, before):
    """Of the variances of the classes that are in both."""
    both = now.keys() & before.keys()
    return own_ratio({j: now[j] for j in both}, {j: before[j] for j in both})


def own_ratio(now, before):
    """Of the variances of each round's classes."""
    total = sum(before.values())
    return (sum(now.values()) - total) / total if total else 0.0


def arrays(knowledge):
    """As a client sees it."""
    values = np.zeros((K, K), np.float32)
    for j, v in knowledge.items():
        values[j] = v
    return jnp.asarray(values), jnp.asarray([j in knowledge for j in range(K)])


def oracle(
    seed,
    rounds,
    *,
    scale="batch",
    size="fraction",
    distance="mean",
    weigh="sigmoid",
    form="interpolate",
    neighbours=1,
    cohort=5,
    dropout=0.0,
    momentum=0.0,
):
    """(params, stats, {class: knowledge}), with the classes that somebody sent in each round; `momentum` where a scale is none of
    each epoch's own."""
    assert momentum == 0 or scale == "batch"
    clients = naive.rows(toy.data())
    params, stats = MODEL.init(naive.stream(seed, naive.INIT))
    knowledge, before, sent_in = {}, None, []
    for r in range(rounds):
        nets, cs, sizes = [], [], []
        for i in naive.cohort(seed, r, len(clients), cohort, dropout):
            (x, y), key, seen = clients[i], naive.client_key(seed, r, i), arrays(knowledge)
            p, s = params, stats
            for e in range(2) if scale == "epoch" else (None,):
                fixed = None
                if scale == "epoch":
                    batches = [np.arange(a, min(a + toy.BATCH, len(y))) for a in range(0, len(y), toy.BATCH)]
                    rows = [np.asarray(forward(p, s, x[b])) for b in batches]
                    fixed = np.mean([[np.linalg.norm(v - c) for c in np.asarray(seen[0])] for part in rows for v in part], 0)
                epochs = {"epochs": 2} if e is None else {"epochs": 1, "first": e}
                given = (*seen, fixed)
                trained = naive.train(
                    MODEL, p, s, x, y, key, batch=toy.BATCH, lr=0.1, momentum=momentum, term=lcl, given=given, **epochs
                )
                p, s = trained.params, trained.stats
            c = means(zip(y, logits_of(p, s, x), strict=True))
            cs.append({j: v / (1 + np.exp(-v)) for j, v in c.items()})
            nets.append((p, s))
            sizes.append(len(y))
        if cs:
            merged = merge(cs, neighbours)
            knowledge = {**knowledge, **merged}
            w, s = naive.mean(nets, discrepancy_weights(cs, merged, sizes, size, distance, weigh))
            now = variances(knowledge)
            if before is not None:
                pull = 0.05 * ratio(now, before)
                keep = 0.95 if form == "printed" else 1.0
                w = jax.tree.map(lambda new, old, keep=keep, pull=pull: keep * new + pull * (old - new), w, params)
            params, stats, before = w, s, now
        sent_in.append({j for c in cs for j in c})
    return params, stats, knowledge, sent_in


@jax.jit
def forward(params, stats, x):
    net = type(jax.eval_shape(MODEL.init, jax.random.key(0)))(params, stats)
    return MODEL.apply(net, x, train=True)[0]["logits"]


def released(seed, rounds, ramp, dropout):
    """The released rules: no silu, no U, knowledge of the last epoch's logits, of this round's classes alone; samples decide."""
    clients = naive.rows(toy.data())
    params, stats = MODEL.init(naive.stream(seed, naive.INIT))
    knowledge, before, changes = {}, None, 0
    for r in range(rounds):
        nets, cs, sizes = [], [], []
        for i in naive.cohort(seed, r, len(clients), 5, dropout):
            (x, y), key = clients[i], naive.client_key(seed, r, i)
            given = (*arrays(knowledge), jnp.float32(min(1, (r + 1) / ramp)))
            trained = naive.train(
                MODEL, params, stats, x, y, key, epochs=2, batch=toy.BATCH, lr=0.1, term=released_lcl, given=given
            )
            cs.append(means(trained.seen[-len(y) :]))
            nets.append((trained.params, trained.stats))
            sizes.append(len(y))
        if not cs:
            continue
        knowledge = merge(cs)
        w = naive.mean(nets, sizes)
        now = variances(knowledge, ddof=1)
        if before is not None:
            changes += now.keys() != before.keys()
            pull = (1 - 0.99) * own_ratio(now, before)
            w = jax.tree.map(lambda new, old, pull=pull: 0.99 * new + pull * (old - new), w, (params, stats))
        (params, stats), before = w, now
    return params, stats, knowledge, changes


def simulate(rounds, seed=0, *, dropout=0.0, **options):
    build = functools.partial(fedskc, batch=toy.BATCH, **{"optimizer": local_training.sgd(0.1), "epochs": 2} | options)
    sim = simulator.Simulator(
        simulator.build_spec(
            toy.groups(build), toy.data(), plan=client_loop.Plan(1, 1), rounds_per_dispatch=rounds, cohort=5, dropout=dropout
        )
    )
    state, _ = sim.run_rounds(sim.init(seed), rounds)
    return jax.device_get(state.server)


OFF = {"lcl": {"on": False}, "gda": {"on": False}, "gpr": {"on": False}}


def sent(known=(True, True, True), seed=0):
    knowledge = np.random.default_rng(seed).normal(size=(K, K)).astype(np.float32)
    return Sent(MODEL.init(jax.random.key(1)), jnp.asarray(knowledge), jnp.asarray(known))


@functools.cache
def compiled(at, options):
    """Client 0's round, 0 being the one with most examples; compiled once for equal options."""
    task = toy.task().bind(((), ()), at)
    algorithm = fedskc(task, optimizer=local_training.sgd(0.1), batch=toy.BATCH, epochs=2, **ast.literal_eval(options))
    return jax.jit(algorithm.client_update)


def client(given=None, at=0, **options):
    """What client 0's round gives."""
    return compiled(at, repr(options))(sent() if given is None else given, (), toy.client_data(0), jax.random.key(5))


def close(server, expected, atol=2e-5):
    params, stats, knowledge = expected
    chex.assert_trees_all_close((server.net.params, server.net.stats), (params, stats), atol=atol)
    assert {j for j in range(K) if server.known[j]} == set(knowledge)
    for j, v in knowledge.items():
        np.testing.assert_allclose(server.knowledge[j], v, atol=5 * atol)


class FedSkcTest(chex.TestCase):
    def test_equals_the_loops(self):
        close(toy.reference("fedskc")[2].server, oracle(0, 2, momentum=0.5)[:3])

    @parameterized.named_parameters(
        ("printed", {"variant": "printed"}, {"scale": "epoch", "size": "count", "distance": "sum", "form": "printed"}),
        (
            "other_weights",  # each of them alone: KnowledgeTest
            {"gda": {"distance": "sum", "form": "relu"}, "knowledge": {"neighbours": 2}},
            {"distance": "sum", "weigh": "relu", "neighbours": 2},
        ),
    )
    def test_variants_equal_the_loops(self, options, switches):
        close(simulate(3, **options), oracle(0, 3, **switches)[:3])

    def test_equals_the_loops_when_few_come_back(self):
        """In some round a class is unknown, in another a known one is not sent, in another nobody comes."""
        *expected, sent_in = oracle(2, 5, dropout=0.75)
        so_far = [set().union(*sent_in[:r]) for r in range(6)]
        self.assertTrue(any(now and set() < so_far[r] < set(range(K)) for r, now in enumerate(sent_in)))
        self.assertTrue(any(now and so_far[r] - now for r, now in enumerate(sent_in)))
        close(simulate(5, seed=2, dropout=0.75), expected)

    def test_released_equals_its_rules(self):
        """Where a round's classes are not always those of the round before, and the ramp ends in the third of five."""
        *expected, changes = released(2, 5, ramp=3, dropout=0.75)
        self.assertGreater(changes, 0)
        close(simulate(5, seed=2, dropout=0.75, variant="released", lcl={"ramp": 3}), expected)

    def test_without_its_parts_it_is_fedavg(self):
        without = simulate(2, optimizer=local_training.sgd(0.1, momentum=0.5), **OFF)
        chex.assert_trees_all_close(without.net, toy.reference("fedavg")[2].server.net, atol=1e-6)
        for name, weight_fn in aggregators.WEIGHT_FNS.items():
            algorithm = fedskc(toy.task(), optimizer=local_training.sgd(0.1), weights=name, **OFF)
            self.assertIs(algorithm.collect[0].weight_fn, weight_fn)

    def test_records_the_weights_of_the_aggregation(self):
        """As NumPy has them, absent clients left out; without GDA there are none to record."""
        weights, examples = np.array([0.2, 0.0, 0.5, 0.1], np.float32), np.array([10, 0, 30, 15])
        cohort = Cohort(jnp.arange(4), jnp.asarray(examples))
        found = {name: float(v / w) for name, (v, w) in summarize_weights(jnp.asarray(weights), cohort).items()}
        active = examples > 0
        shares = weights[active] / weights.sum()
        wanted = {
            "weight_min": shares.min(),
            "weight_max": shares.max(),
            "weight_size_correlation": np.corrcoef(shares, examples[active])[0, 1],
        }
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5)
        equal = summarize_weights(jnp.full(4, 0.25), cohort._replace(examples=jnp.full(4, 7)))
        self.assertEqual(float(equal["weight_size_correlation"][1]), 0)
        nobody = summarize_weights(jnp.zeros(4), cohort._replace(examples=jnp.zeros(4, int)))
        self.assertEqual({float(x) for pair in nobody.values() for x in pair}, {0})
        names = [f"server/{name}" for name in wanted]
        for method, on in (("fedskc", True), ("fedskc_released", False)):
            sim, before, _ = toy.reference(method)
            record = sim.run_rounds(sim.compiled.put(before), 1)[1][0]
            self.assertEqual([name in record for name in names], [on] * 3)
            if on:
                self.assertLess(0, record["server/weight_min"])
                self.assertLessEqual(record["server/weight_min"], 0.2)
                self.assertLessEqual(0.2, record["server/weight_max"])

    def test_the_first_round_is_cross_entropy(self):
        nothing = sent(known=(False, False, False))
        with_lcl, without = client(nothing), client(nothing, lcl={"on": False})
        chex.assert_trees_all_close(with_lcl.uplink[0], without.uplink[0], atol=1e-7)
        self.assertEqual(float(with_lcl.metrics["lcl"][0]), 0.0)

    @parameterized.parameters(
        {"lcl": {"on": False}},
        {"lcl": {"tau": 0.2}},
        {"lcl": {"scale": "epoch"}},
        {"lcl": {"scale": "none"}},
        {"lcl": {"twice": True}},
        {"lcl": {"ramp": 4}, "at": 2},
    )
    def test_every_option_of_the_contrast_moves_the_client(self, at=0, **options):
        apart = jax.tree.map(lambda a, b: np.abs(a - b).max(), client().uplink[0].params, client(at=at, **options).uplink[0].params)
        self.assertGreater(max(jax.tree.leaves(apart)), 1e-4)

    def test_own_logits_count_where_the_class_is_unknown(self):
        given = sent(known=(True, False, True))
        a, b = (client(given, lcl={"own": own}).uplink[0].params["head"]["bias"] for own in (False, True))
        self.assertGreater(np.abs(a - b).max(), 1e-4)

    def test_a_positive_of_ones_own_stands_in_the_denominator(self):
        """With `twice` and without: else the loss has no bound below, and is -inf where nothing is known."""
        logits, knowledge = jnp.asarray([[1.0, 2, 3]]), jnp.asarray([[3.0, 1, 2], [1, -1, 0], [0, 0, 0]])
        y, mask, scale = jnp.asarray([2]), jnp.ones(1, bool), jnp.ones(3)
        for known in ((True, True, False), (False, False, False)):
            there = [float(cosine(logits[0], knowledge[j])) / TAU for j in range(3) if known[j]]
            wanted = np.logaddexp.reduce([*there, 1 / TAU]) - 1 / TAU
            for twice in (False, True):
                found = contrastive_loss(logits, y, mask, knowledge, jnp.asarray(known), scale, TAU, twice=twice, own=True)
                np.testing.assert_allclose(found, wanted, atol=1e-5)

    def test_networks_that_draw_in_training_have_a_scale_of_the_epoch(self):
        """Augmentation and dropout need a key."""

        def apply(net, x, key=None, train=False, mask=None):
            assert key is not None or not train
            return MODEL.apply(net, x, key, train, mask)

        task = make_task(MODEL._replace(apply=apply), classes=K, population=toy.CLIENTS)
        made = fedskc(task, optimizer=local_training.sgd(0.1), batch=toy.BATCH, lcl={"scale": "epoch"}, epochs=2)
        held = toy.reference("fedavg")[0].spec.host_arrays
        out = jax.jit(made.client_update)(sent(), (), ClientData(held.train, held.index[0], held.size[0]), jax.random.key(5))
        chex.assert_trees_all_close(out.uplink, client(lcl={"scale": "epoch"}).uplink, atol=1e-6)

    def test_the_ramp_ends(self):
        """In its last round; the first has the weight 1 / 4."""
        chex.assert_trees_all_equal(client().uplink, client(at=3, lcl={"ramp": 4}).uplink)
        first, without = client(at=0, lcl={"ramp": 4}), client(lcl={"on": False})
        self.assertGreater(np.abs(first.uplink[0].params["head"]["bias"] - without.uplink[0].params["head"]["bias"]).max(), 1e-4)

    def test_knowledge_is_of_the_final_model(self):
        out = client(knowledge={"silu": False})
        params = jax.tree.map(jnp.add, sent().net, out.uplink[0])
        x, y = naive.rows(toy.data())[0]
        c, held = out.uplink[1]
        for j, v in means(zip(y, logits_of(*params, x), strict=True)).items():
            np.testing.assert_allclose(c[j], v, atol=1e-5)
            self.assertTrue(held[j])
        smooth = client().uplink[1][0]
        np.testing.assert_allclose(smooth, c / (1 + np.exp(-c)), atol=1e-6)

    def test_features_can_stand_for_the_logits(self):
        knowledge = jnp.asarray(np.random.default_rng(0).normal(size=(K, 6)), jnp.float32)
        values, held = client(sent()._replace(knowledge=knowledge), knowledge={"of": "features"}).uplink[1]
        self.assertEqual(values.shape, (K, 6))
        self.assertTrue(np.isfinite(values).all() and held.all())

    def test_a_low_temperature_stays_finite(self):
        """The paper meets NaN at 0.01."""
        for scale in ("batch", "none"):
            chex.assert_tree_all_finite(client(lcl={"tau": 0.01, "scale": scale}).uplink)

    def test_the_contrast_at_its_edges(self):
        """Knowledge of one class: no loss. Nothing known, logits of zero, logits equal to the knowledge: no NaN."""
        y, mask = jnp.asarray([0, 1, 2, 0]), jnp.asarray([True, True, True, False])
        logits = jnp.asarray([[1.0, 2, 3], [0, 0, 0], [3, 1, 2], [jnp.nan, 0, 0]])
        knowledge = jnp.asarray([[1.0, 2, 3], [0, 0, 0], [jnp.inf, 0, 0]])
        for known, expected in (((True, False, False), 0.0), ((False, False, False), 0.0)):
            value, gradient = jax.value_and_grad(contrastive_loss)(logits, y, mask, knowledge, jnp.asarray(known), jnp.ones(3), TAU)
            self.assertEqual(float(value), expected)
            self.assertTrue(np.isfinite(gradient[:3]).all())
        value, gradient = jax.value_and_grad(contrastive_loss)(
            logits, y, mask, knowledge, jnp.asarray([True, True, False]), jnp.full(3, module.MIN_SCALE), 0.01
        )
        self.assertTrue(np.isfinite(value))
        self.assertTrue(np.isfinite(gradient[:3]).all())

    def test_the_scale_is_a_constant(self):
        """LCL's gradient is that of the cosines alone, so it is orthogonal to each row of logits."""
        rng = np.random.default_rng(3)
        logits, knowledge = (jnp.asarray(rng.normal(size=(4, K)), jnp.float32) for _ in range(2))
        y, known = jnp.asarray([0, 1, 2, 0]), jnp.ones(K, bool)

        def loss(logits):
            u = module.sum_distances(jax.lax.stop_gradient(logits), knowledge[:K], jnp.ones(4, bool)) / 4
            return contrastive_loss(logits, y, jnp.ones(4, bool), knowledge[:K], known, u, TAU)

        gradient = jax.grad(loss)(logits)
        chex.assert_trees_all_close(jnp.sum(gradient * logits, 1), jnp.zeros(4), atol=1e-4)
        np.testing.assert_allclose(gradient, jax.grad(lcl)(logits, y, (knowledge, known, None)), rtol=1e-3, atol=1e-4)

    def test_what_travels(self):
        shapes = toy.simulate("fedskc").spec.shapes
        weights = toy.simulate("fedavg").spec.shapes.up
        self.assertEqual(shapes.up, weights + 4 * K * K + K)
        self.assertEqual(shapes.down, weights + 4 * K * K + K)

    @parameterized.parameters(
        ({"variant": "ours"}, "unknown variant 'ours'; allowed: default, printed, released"),
        ({"lcl": {"scale": "round"}}, "lcl.scale='round' must be one of 'batch', 'epoch', 'none'"),
        ({"lcl": {"temperature": 1.0}}, "unknown option of lcl 'temperature'; allowed: on, tau"),
        ({"lcl": {"tau": 0.0}}, "lcl.tau=0.0 must be positive"),
        ({"lcl": {"ramp": -1}}, "lcl.ramp=-1 must be at least 0"),
        ({"gda": {"size": "rows"}}, "gda.size='rows' must be one of 'fraction', 'count'"),
        ({"gda": {"distance": "max"}}, "gda.distance='max' must be one of 'mean', 'sum'"),
        ({"gda": {"form": "linear"}}, "gda.form='linear' must be one of 'sigmoid', 'relu'"),
        ({"gda": {"form": "relu"}, "variant": "printed"}, "size='count' needs form='sigmoid'"),
        ({"gpr": {"over": "all"}}, "gpr.over='all' must be one of 'both', 'own'"),
        ({"gpr": {"beta": 1.5}}, r"gpr.beta=1.5 must be in \[0, 1\]"),
        ({"gpr": {"on": False, "beta": 7.0}}, r"gpr.beta=7.0 must be in \[0, 1\]"),
        ({"gpr": {"on": False, "ddof": 2}}, "gpr.ddof=2 must be one of 0, 1"),
        ({"gda": {"on": False, "size": "count", "form": "relu"}}, "size='count' needs form='sigmoid'"),
        ({"weights": "sizes"}, "weights='sizes' is not one of 'samples', 'uniform'"),
        ({"gpr": {"form": "other"}}, "gpr.form='other' must be one of 'interpolate', 'printed'"),
        ({"knowledge": {"neighbours": -1}}, "knowledge.neighbours=-1 must be at least 0"),
        ({"epochs": 0}, "epochs=0 must be at least 1"),
    )
    def test_bad_options(self, options, message):
        with self.assertRaisesRegex(ValueError, message):
            fedskc(toy.task(), optimizer=local_training.sgd(0.1), **options)


def draw_knowledge(rng, clients=5, classes=4, width=3):
    """([C, K, D], held [C, K]), with one class that nobody has and one that a single client has; NaN where there is none."""
    values = rng.normal(size=(clients, classes, width)).astype(np.float32)
    held = rng.random((clients, classes)) < 0.7
    held[:, 0] = False
    held[:, 1] = np.arange(clients) == rng.integers(clients)
    values[~held] = np.nan
    return values, held


def weigh(cohort, values, held, merged, **options):
    return module.discrepancy_weights(cohort, values, held, merged, Gda(**options))


class KnowledgeTest(chex.TestCase):
    @parameterized.parameters(0, 1, 2, 9)
    @often
    @hypothesis.given(cases)
    def test_merge_equals_the_loops(self, neighbours, rng):
        values, held = draw_knowledge(rng)
        merged, known = merge_neighbours(values, held, neighbours)
        clients = [{j: v[j] for j in np.flatnonzero(h)} for v, h in zip(values.astype(np.float64), held, strict=True)]
        expected = merge(clients, neighbours)
        self.assertEqual(set(np.flatnonzero(known)), set(expected))
        for j in range(values.shape[1]):
            np.testing.assert_allclose(merged[j], expected.get(j, np.zeros(3)), atol=1e-6)
        order = rng.permutation(len(values))
        chex.assert_trees_all_close(merge_neighbours(values[order], held[order], neighbours)[0], merged, atol=1e-6)

    @often
    @hypothesis.given(cases)
    def test_without_neighbours_it_is_the_mean_and_one_client_keeps_its_own(self, rng):
        values, held = draw_knowledge(rng)
        merged, _ = merge_neighbours(values, held, 0)
        mean = np.where(held.any(0)[:, None], np.nansum(values, 0) / np.maximum(held.sum(0), 1)[:, None], 0)
        np.testing.assert_allclose(merged, mean, atol=1e-6)
        alone, known = merge_neighbours(values[:1], held[:1], 3)
        np.testing.assert_array_equal(known, held[0])
        np.testing.assert_allclose(alone, np.where(held[0][:, None], values[0], 0), atol=1e-7)

    @parameterized.parameters(
        ("fraction", "mean", "sigmoid"),
        ("fraction", "sum", "sigmoid"),
        ("count", "sum", "sigmoid"),
        ("fraction", "mean", "relu"),
        ("fraction", "sum", "relu"),
    )
    @often
    @hypothesis.given(cases)
    def test_discrepancy_equals_the_loops(self, size, distance, form, rng):
        values, held = draw_knowledge(rng)
        examples = rng.integers(0, 7, len(values)).astype(np.int32)
        examples[0] = 3
        held &= examples[:, None] > 0
        merged, _ = merge_neighbours(values, held)
        e = weigh(Cohort(np.arange(5), examples), values, held, merged, size=size, distance=distance, form=form)
        there = np.flatnonzero(examples)
        d = {k: sum(np.linalg.norm(values[k, j] - merged[j]) for j in np.flatnonzero(held[k])) for k in there}
        if distance == "mean":
            d = {k: d[k] / max(held[k].sum(), 1) for k in there}
        expected = {}
        for k in there:
            a = d[k] / sum(d.values()) if sum(d.values()) else 0
            b = examples[k] / examples.sum()
            expected[k] = 1 / (1 + np.exp(-((examples[k] if size == "count" else b) - a * d[k] + b)))
            if form == "relu":
                expected[k] = max(b - 0.5 * a + 0.1, 0)
        np.testing.assert_array_equal(e[examples == 0], 0)
        total = sum(expected.values())
        np.testing.assert_allclose(e[there] / e.sum(), [expected[k] / total for k in there], atol=1e-5)

    def test_counts_drown_the_discrepancy_and_fractions_do_not(self):
        values = np.asarray([[[0.0]], [[1.0]], [[9.0]]], np.float32)
        held = np.ones((3, 1), bool)
        merged, _ = merge_neighbours(values, held)
        cohort = Cohort(np.arange(3), np.full(3, 100, np.int32))
        count, fraction = (weigh(cohort, values, held, merged, size=s) for s in ("count", "fraction"))
        np.testing.assert_allclose(count / count.sum(), np.full(3, 1 / 3), atol=1e-6)
        self.assertLess(fraction[2] / fraction.sum(), 0.1)

    @parameterized.parameters("sigmoid", "relu")
    def test_the_mean_does_not_count_classes(self, form):
        """Two clients of a size, equally far from the knowledge in each class, one with one class, the other with all four."""
        held = np.asarray([[True, False, False, False], [True] * 4, [True] * 4])
        merged = np.zeros((4, 2), np.float32)
        values = np.where(held[..., None], np.float32([3, 4]) * np.float32([1, 1, 2])[:, None, None], np.nan)
        cohort = Cohort(np.arange(3), np.full(3, 50, np.int32))
        mean, total = (weigh(cohort, values, held, merged, distance=d, form=form) for d in ("mean", "sum"))
        self.assertAlmostEqual(float(mean[0] / mean[1]), 1, places=6)
        self.assertGreater(float(mean[1]), float(mean[2]))
        self.assertGreater(float(total[0]), 1.2 * float(total[1]))

    @parameterized.parameters(*itertools.product(("mean", "sum"), ("sigmoid", "relu")))
    def test_equal_knowledge_has_no_discrepancy(self, distance, form):
        """But for rounding, of which a_k = d_k / sum d would make anything: sizes decide alone, and one client has all."""
        rng = np.random.default_rng(0)
        merged = rng.normal(size=(3, 4)).astype(np.float32)
        values = (merged[None] * (1 + 1e-7 * rng.integers(0, 3, (2, 3, 4)))).astype(np.float32)
        cohort, held = Cohort(np.arange(2), np.asarray([30, 10], np.int32)), np.ones((2, 3), bool)
        e = weigh(cohort, values, held, merged, distance=distance, form=form)
        b = np.asarray([0.75, 0.25])
        want = b + 0.1 if form == "relu" else 1 / (1 + np.exp(-2 * b))
        np.testing.assert_allclose(e / e.sum(), want / want.sum(), rtol=1e-5)
        alone = Cohort(np.arange(2), np.asarray([0, 10], np.int32))
        e = weigh(alone, values, held & [[False], [True]], merged, distance=distance, form=form)
        np.testing.assert_array_equal(e > 0, [False, True])

    def test_far_apart_all_weights_are_still_finite(self):
        """Each sigmoid underflows to 0; their ratios do not."""
        values = np.asarray([[[0.0]], [[5000.0]], [[20000.0]]], np.float32)
        held = np.ones((3, 1), bool)
        merged, _ = merge_neighbours(values, held)
        cohort = Cohort(np.arange(3), np.asarray([1, 2, 0], np.int32))
        e = weigh(cohort, values, held & (cohort.examples > 0)[:, None], merged)
        self.assertTrue(np.isfinite(e).all())
        self.assertGreater(e.sum(), 0)

    @parameterized.parameters(("interpolate", 0, "both"), ("printed", 0, "both"), ("printed", 1, "own"))
    @often
    @hypothesis.given(cases)
    def test_review_equals_the_formula(self, form, ddof, over, rng):
        review = module.period_review(3, Gpr(beta=0.9, form=form, ddof=ddof, over=over))
        w = {"a": rng.normal(size=4).astype(np.float32)}
        state, before = review.init(w), None
        for known in ([True, True, False], [True, True, True], [False, True, True]):
            known = np.asarray(known)
            c = rng.normal(size=(3, 5)).astype(np.float32)
            delta = rng.normal(size=4).astype(np.float32)
            updates, state = review.update({"a": delta}, state, w, knowledge=c, known=known)
            now = {j: np.var(c[j].astype(np.float64), ddof=ddof) for j in np.flatnonzero(known)}
            new = w["a"] + delta
            if before is not None:
                both = now.keys() & before.keys()
                here, there = (now, before) if over == "own" else ({j: v[j] for j in both} for v in (now, before))
                ratio = (sum(here.values()) - sum(there.values())) / sum(there.values())
                new = (0.9 if form == "printed" else 1) * new + (1 - 0.9) * ratio * (w["a"] - new)
            w = {"a": w["a"] + np.asarray(updates["a"])}
            np.testing.assert_allclose(w["a"], new, rtol=1e-4, atol=1e-5)
            before = now

    def test_review_without_variance_before_keeps_the_delta(self):
        review = module.period_review(2, Gpr())
        w, delta = {"a": jnp.ones(2)}, {"a": jnp.full(2, 0.5)}
        known = jnp.ones(2, bool)
        _, state = review.update(delta, review.init(w), w, knowledge=jnp.ones((2, 3)), known=known)
        updates, _ = review.update(delta, state, w, knowledge=jnp.eye(2, 3), known=known)
        chex.assert_trees_all_equal(updates, delta)
