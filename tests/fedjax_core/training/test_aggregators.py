"""What means must satisfy, whatever the values, weights and absences."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_core.algorithm import Cohort
from fedjax_core.training import aggregators

C, K = 6, 4
cases = st.integers(0, 2**32 - 1).map(np.random.default_rng)
often = settings(max_examples=6, deadline=None)


def drawn(rng, absent=True):
    """(values {"a": [C, 3], "b": [C]}, examples [C], some of them 0)."""
    values = {"a": rng.normal(size=(C, 3)).astype(np.float32), "b": rng.normal(size=C).astype(np.float32)}
    examples = rng.integers(1, 50, C)
    if absent:
        examples[rng.permutation(C)[: rng.integers(0, C - 1)]] = 0
    return values, examples.astype(np.int32)


def streamed(reduce, values, examples):
    """A Reduce with join "add" as the engine runs it: lift each, add, lower."""
    total = None
    for i, n in enumerate(examples):
        lifted = reduce.map(jax.tree.map(lambda x, i=i: jnp.asarray(x[i]), values), Cohort(jnp.int32(i), jnp.int32(n)))
        total = lifted if total is None else jax.tree.map(jnp.add, total, lifted)
    return reduce.finalize(total)


def naive_mean(values, weights):
    return {k: sum(w * v[i] for i, w in enumerate(weights) if w) / sum(weights) for k, v in values.items()}


def close(a, b):
    chex.assert_trees_all_close(a, b, atol=1e-5, rtol=1e-5)


class MeanTest(chex.TestCase):
    @given(cases)
    @often
    def test_streamed_is_the_weighted_mean(self, rng):
        values, n = drawn(rng)
        close(streamed(aggregators.mean(), values, n), naive_mean(values, n.astype(float)))
        close(streamed(aggregators.mean(aggregators.weight_uniformly), values, n), naive_mean(values, (n > 0).astype(float)))

    @given(cases)
    @often
    def test_order_and_scale_of_weights_are_irrelevant_and_the_mean_lies_within(self, rng):
        values, n = drawn(rng)
        weights = jnp.asarray(n, jnp.float32)
        mean = aggregators.weighted_mean(values, weights)
        close(mean, naive_mean(values, n.astype(float)))
        order = rng.permutation(C)
        close(aggregators.weighted_mean(jax.tree.map(lambda x: x[order], values), weights[order]), mean)
        close(aggregators.weighted_mean(values, weights * 1e-3), mean)
        for name, x in values.items():
            self.assertTrue(np.all(mean[name] >= x[n > 0].min(0) - 1e-6))
            self.assertTrue(np.all(mean[name] <= x[n > 0].max(0) + 1e-6))

    @given(cases)
    @often
    def test_the_mean_of_group_means_weighed_by_their_weights(self, rng):
        values, n = drawn(rng, absent=False)
        weights = jnp.asarray(n, jnp.float32)
        halves = [jax.tree.map(lambda x, s=s: x[s], values) for s in (slice(0, 2), slice(2, C))]
        sums = jnp.stack([weights[:2].sum(), weights[2:].sum()])
        means = [aggregators.weighted_mean(h, w) for h, w in zip(halves, (weights[:2], weights[2:]), strict=True)]
        of_means = aggregators.weighted_mean(jax.tree.map(lambda *x: jnp.stack(x), *means), sums)
        close(of_means, aggregators.weighted_mean(values, weights))

    @given(cases)
    @often
    def test_nothing_of_weight_zero_is_seen(self, rng):
        values, n = drawn(rng)
        mean = aggregators.weighted_mean(values, jnp.asarray(n, jnp.float32))
        poisoned = {"a": np.where(n[:, None] > 0, values["a"], np.nan), "b": np.where(n > 0, values["b"], np.inf)}
        chex.assert_trees_all_equal(aggregators.weighted_mean(poisoned, jnp.asarray(n, jnp.float32)), mean)

    @given(cases)
    @often
    def test_a_weight_per_client_and_class(self, rng):
        values = {"prototypes": rng.normal(size=(C, K, 3)).astype(np.float32), "scores": rng.normal(size=(C, K)).astype(np.float32)}
        w = (rng.integers(0, 3, (C, K))).astype(np.float32)
        w[:, 0] = 0  # a class that nobody has
        values["prototypes"][w == 0] = np.nan
        found = aggregators.weighted_mean(values, jnp.asarray(w))
        for c in range(K):
            for name, x in values.items():
                expected = np.zeros(x.shape[2:])
                if w[:, c].sum():
                    expected = sum(w[i, c] * x[i, c] for i in range(C) if w[i, c]) / w[:, c].sum()
                np.testing.assert_allclose(found[name][c], expected, atol=1e-5)

    def test_nobody_came(self):
        values, n = {"a": jnp.ones((C, 3)), "b": jnp.ones(C)}, np.zeros(C, np.int32)
        zero = {"a": jnp.zeros(3), "b": jnp.zeros(())}
        chex.assert_trees_all_equal(streamed(aggregators.mean(), values, n), zero)
        chex.assert_trees_all_equal(aggregators.weighted_mean(values, jnp.zeros(C)), zero)

    def test_types_are_kept(self):
        part = {"a": jnp.ones((C, 3), jnp.bfloat16), "b": jnp.ones(C)}
        for mean in (streamed(aggregators.mean(), part, np.ones(C, np.int32)), aggregators.weighted_mean(part, jnp.ones(C))):
            self.assertEqual((mean["a"].dtype, mean["b"].dtype), (jnp.bfloat16, jnp.float32))

    @parameterized.parameters(("samples", [7.0, 0.0]), ("uniform", [1.0, 0.0]))
    def test_weights_by_name(self, name, expected):
        weigh = aggregators.make_weight_fn(name)
        self.assertEqual([float(weigh(Cohort(jnp.int32(0), jnp.int32(n)))) for n in (7, 0)], expected)

    def test_unknown_weights(self):
        with self.assertRaisesRegex(ValueError, "weights='size' is not one of 'samples', 'uniform'"):
            aggregators.make_weight_fn("size")


class MixTest(chex.TestCase):
    @given(cases)
    @often
    def test_equals_the_loops(self, rng):
        values, n = drawn(rng)
        w = np.where(n > 0, rng.normal(size=(3, C)), 0).astype(np.float32)
        expected = {k: np.stack([sum(w[r, j] * v[j] for j in range(C)) for r in range(3)]) for k, v in values.items()}
        poisoned = {k: np.where((n > 0).reshape((C,) + (1,) * (v.ndim - 1)), v, np.nan) for k, v in values.items()}
        close(aggregators.mix_clients(poisoned, w), expected)

    def test_rows_of_those_who_came_are_written(self):
        store = {"a": jnp.zeros((5, 2))}
        cohort = Cohort(jnp.asarray([3, 0, 5, 1]), jnp.asarray([2, 0, 0, 4]))  # one dropped out, one place is empty
        rows = {"a": jnp.asarray([[1.0, 1], [np.nan, 2], [np.nan, 3], [4, 4]])}
        found = aggregators.scatter_clients(store, cohort, rows)["a"]
        np.testing.assert_array_equal(found, [[0, 0], [4, 4], [0, 0], [1, 1], [0, 0]])


class ClassMeanTest(chex.TestCase):
    @given(cases)
    @often
    def test_uniform_over_those_who_have_the_class(self, rng):
        values = rng.normal(size=(C, K, 2)).astype(np.float32)
        counts = rng.integers(0, 3, (C, K)).astype(np.float32) * 5
        counts[:, 1] = 0
        values[counts == 0] = np.nan
        mean, holders = streamed(aggregators.class_mean(), (values, counts), np.ones(C, np.int32))
        for c in range(K):
            owners = [i for i in range(C) if counts[i, c] > 0]
            self.assertEqual(int(holders[c]), len(owners))
            expected = sum(values[i, c] for i in owners) / len(owners) if owners else np.zeros(2)
            np.testing.assert_allclose(mean[c], expected, atol=1e-6)
        mean, total = streamed(aggregators.class_mean("samples"), (values, counts), np.ones(C, np.int32))
        np.testing.assert_array_equal(total, counts.sum(0))
        for c in np.flatnonzero(total):
            pooled = np.repeat(values[:, c], counts[:, c].astype(int), axis=0).mean(0)
            np.testing.assert_allclose(mean[c], pooled, atol=1e-6)
        self.assertTrue((mean[total == 0] == 0).all())

    def test_unknown_weights(self):
        with self.assertRaisesRegex(ValueError, "weights='size' is not one of 'samples', 'uniform'"):
            aggregators.class_mean("size")


SOMEBODY = Cohort(jnp.arange(2), jnp.asarray([3, 0]))


class AggregatorTest(chex.TestCase):
    def test_plain_adds_the_mean_delta(self):
        aggregator = aggregators.make_aggregator()
        value, delta = {"w": jnp.asarray([1.0, 2.0])}, {"w": jnp.asarray([0.5, -1.0])}
        new, _ = aggregator.update(value, delta, SOMEBODY, aggregator.init(value))
        np.testing.assert_allclose(new["w"], [1.5, 1.0])

    def test_a_review_remembers(self):
        aggregator = aggregators.make_aggregator(review=optax.trace(0.9))
        value, delta = jnp.asarray(1.0), jnp.asarray(0.5)
        state = aggregator.init(value)
        expected, velocity = 1.0, 0.0
        for _ in range(3):
            value, state = aggregator.update(value, delta, SOMEBODY, state)
            velocity = 0.9 * velocity + 0.5
            expected += velocity
            np.testing.assert_allclose(value, expected, rtol=1e-6)

    def test_weights_found_in_what_came_back(self):
        def weigh(cohort, scores):
            return jnp.where(cohort.examples > 0, scores, 0)

        aggregator = aggregators.make_aggregator(aggregators.stack, weigh)
        self.assertEqual(aggregator.collect.combine, "stack")
        cohort = Cohort(jnp.arange(3), jnp.asarray([5, 0, 2]))
        delta = jnp.asarray([[1.0], [jnp.nan], [4.0]])
        value, state = jnp.asarray([10.0]), aggregator.init(jnp.asarray([10.0]))
        new, _ = aggregator.update(value, delta, cohort, state, scores=jnp.asarray([1.0, 9.0, 2.0]))
        np.testing.assert_allclose(new, [10 + (1 * 1 + 2 * 4) / 3], rtol=1e-6)

    def test_the_review_sees_value_and_context(self):
        def update(updates, state, params=None, *, scale, **extra):
            del extra
            return updates * scale + params, state

        review = optax.GradientTransformationExtraArgs(lambda params: (), update)
        aggregator = aggregators.make_aggregator(review=review)
        new, _ = aggregator.update(jnp.asarray(2.0), jnp.asarray(3.0), SOMEBODY, (), scale=10.0)
        self.assertEqual(float(new), 2.0 + 30.0 + 2.0)


def knowledge(rng, clients=5, classes=4, width=3):
    """([C, K, D], held [C, K]), with one class that nobody has and one that a single client has; NaN where there is none."""
    values = rng.normal(size=(clients, classes, width)).astype(np.float32)
    held = rng.random((clients, classes)) < 0.7
    held[:, 0] = False
    held[:, 1] = np.arange(clients) == rng.integers(clients)
    values[~held] = np.nan
    return values, held


def naive_merge(values, held, neighbours):
    merged = {}
    for j in range(values.shape[1]):
        holders = [v[j].astype(np.float64) for v, h in zip(values, held, strict=True) if h[j]]
        smooth = []
        for a, own in enumerate(holders):
            others = [v for b, v in enumerate(holders) if b != a]
            near = sorted(others, key=lambda v, own=own: np.sum((v - own) ** 2))[:neighbours]
            smooth.append(np.mean([own, *near], 0))
        if smooth:
            merged[j] = np.mean(smooth, 0)
    return merged


class KnowledgeTest(chex.TestCase):
    @parameterized.parameters(0, 1, 2, 9)
    @often
    @given(cases)
    def test_merge_equals_the_loops(self, neighbours, rng):
        values, held = knowledge(rng)
        merged, known = aggregators.merge_neighbours(values, held, neighbours)
        expected = naive_merge(values, held, neighbours)
        self.assertEqual(set(np.flatnonzero(known)), set(expected))
        for j in range(values.shape[1]):
            np.testing.assert_allclose(merged[j], expected.get(j, np.zeros(3)), atol=1e-6)
        order = rng.permutation(len(values))
        chex.assert_trees_all_close(aggregators.merge_neighbours(values[order], held[order], neighbours)[0], merged, atol=1e-6)

    @often
    @given(cases)
    def test_without_neighbours_it_is_the_mean_and_one_client_keeps_its_own(self, rng):
        values, held = knowledge(rng)
        merged, _ = aggregators.merge_neighbours(values, held, 0)
        mean = np.where(held.any(0)[:, None], np.nansum(values, 0) / np.maximum(held.sum(0), 1)[:, None], 0)
        np.testing.assert_allclose(merged, mean, atol=1e-6)
        alone, known = aggregators.merge_neighbours(values[:1], held[:1], 3)
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
    @given(cases)
    def test_discrepancy_equals_the_loops(self, size, distance, form, rng):
        values, held = knowledge(rng)
        examples = rng.integers(0, 7, len(values)).astype(np.int32)
        examples[0] = 3
        held &= examples[:, None] > 0
        merged, _ = aggregators.merge_neighbours(values, held)
        weigh = aggregators.discrepancy_weights(size, distance, form)
        e = weigh(Cohort(np.arange(5), examples), values=values, held=held, merged=merged)
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
        merged, _ = aggregators.merge_neighbours(values, held)
        cohort = Cohort(np.arange(3), np.full(3, 100, np.int32))
        count, fraction = (
            aggregators.discrepancy_weights(s)(cohort, values=values, held=held, merged=merged) for s in ("count", "fraction")
        )
        np.testing.assert_allclose(count / count.sum(), np.full(3, 1 / 3), atol=1e-6)
        self.assertLess(fraction[2] / fraction.sum(), 0.1)

    @parameterized.parameters("sigmoid", "relu")
    def test_the_mean_does_not_count_classes(self, form):
        """Two clients of a size, equally far from the knowledge in each class, one with one class, the other with all four."""
        held = np.asarray([[True, False, False, False], [True] * 4, [True] * 4])
        merged = np.zeros((4, 2), np.float32)
        values = np.where(held[..., None], np.float32([3, 4]) * np.float32([1, 1, 2])[:, None, None], np.nan)
        cohort = Cohort(np.arange(3), np.full(3, 50, np.int32))
        mean, total = (
            aggregators.discrepancy_weights("fraction", d, form)(cohort, values=values, held=held, merged=merged)
            for d in ("mean", "sum")
        )
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
        e = aggregators.discrepancy_weights(distance=distance, form=form)(cohort, values=values, held=held, merged=merged)
        b = np.asarray([0.75, 0.25])
        want = b + 0.1 if form == "relu" else 1 / (1 + np.exp(-2 * b))
        np.testing.assert_allclose(e / e.sum(), want / want.sum(), rtol=1e-5)
        alone = Cohort(np.arange(2), np.asarray([0, 10], np.int32))
        e = aggregators.discrepancy_weights(distance=distance, form=form)(
            alone, values=values, held=held & [[False], [True]], merged=merged
        )
        np.testing.assert_array_equal(e > 0, [False, True])

    def test_far_apart_all_weights_are_still_finite(self):
        """Each sigmoid underflows to 0; their ratios do not."""
        values = np.asarray([[[0.0]], [[5000.0]], [[20000.0]]], np.float32)
        held = np.ones((3, 1), bool)
        merged, _ = aggregators.merge_neighbours(values, held)
        cohort = Cohort(np.arange(3), np.asarray([1, 2, 0], np.int32))
        e = aggregators.discrepancy_weights()(cohort, values=values, held=held & (cohort.examples > 0)[:, None], merged=merged)
        self.assertTrue(np.isfinite(e).all())
        self.assertGreater(e.sum(), 0)

    @parameterized.parameters(("interpolate", 0, "both"), ("printed", 0, "both"), ("printed", 1, "own"))
    @often
    @given(cases)
    def test_review_equals_the_formula(self, form, ddof, over, rng):
        review = aggregators.period_review(3, 0.9, form, ddof, over)
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
        review = aggregators.period_review(2)
        w, delta = {"a": jnp.ones(2)}, {"a": jnp.full(2, 0.5)}
        known = jnp.ones(2, bool)
        _, state = review.update(delta, review.init(w), w, knowledge=jnp.ones((2, 3)), known=known)
        updates, _ = review.update(delta, state, w, knowledge=jnp.eye(2, 3), known=known)
        chex.assert_trees_all_equal(updates, delta)

    @parameterized.parameters(
        (lambda: aggregators.discrepancy_weights("rows"), "size='rows' must be one of 'fraction', 'count'"),
        (lambda: aggregators.discrepancy_weights(distance="max"), "distance='max' must be one of 'mean', 'sum'"),
        (lambda: aggregators.discrepancy_weights(form="x"), "form='x' must be one of 'sigmoid', 'relu'"),
        (lambda: aggregators.discrepancy_weights("count", form="relu"), "size='count' needs form='sigmoid'"),
        (lambda: aggregators.period_review(3, over="all"), "over='all' must be one of 'both', 'own'"),
        (lambda: aggregators.period_review(3, -0.1), r"beta=-0.1 must be in \[0, 1\]"),
        (lambda: aggregators.period_review(3, form="x"), "form='x' must be one of 'interpolate', 'printed'"),
        (lambda: aggregators.period_review(3, ddof=2), "ddof=2 must be one of 0, 1"),
        (
            lambda: aggregators.merge_neighbours(jnp.ones((1, 1, 1)), jnp.ones((1, 1), bool), -1),
            "neighbours=-1 must be at least 0",
        ),
    )
    def test_bad_settings(self, make, message):
        with self.assertRaisesRegex(ValueError, message):
            make()


class WeightedLogitsTest(chex.TestCase):
    @given(cases)
    @often
    def test_equals_a_loop_over_receivers_clients_classes_and_examples(self, rng):
        beta = rng.uniform(0.2, 1, (3, C))
        examples = [[(c, rng.normal(size=K)) for c in rng.integers(0, K, rng.integers(0, 5))] for _ in range(C)]
        sizes = rng.integers(5, 9, (C, K))
        sums, n = np.zeros((C, K, K)), np.zeros((C, K))
        for j, own in enumerate(examples):
            for c, p in own:
                sums[j, c] += p
                n[j, c] += 1
        means = np.where(n[..., None] > 0, sums / np.maximum(n, 1)[..., None], np.nan)
        for m in (n, sizes):
            part = (means, n) if m is n else (means, n, m)
            part = tuple(x.astype(np.float32) for x in part)
            logits, counts = streamed(aggregators.weighted_logits(beta), part, np.ones(C, int))
            for r in range(3):
                for c in range(K):
                    above = sum((beta[r, j] * p for j in range(C) for y, p in examples[j] if y == c), np.zeros(K))
                    below = 1 + sum(beta[r, j] * m[j, c] for j in range(C))
                    close(np.asarray(logits[r, c]), (above / below).astype(np.float32))
            close(np.asarray(counts), n.sum(0).astype(np.float32))

    @given(cases)
    @often
    def test_of_one_width_it_is_the_mean_by_counts_nearly(self, rng):
        """n / (1 + n) of it, where n examples were sent."""
        means, n = rng.normal(size=(C, K, K)).astype(np.float32), rng.integers(0, 4, (C, K)).astype(np.float32)
        logits, total = streamed(aggregators.weighted_logits(np.ones((1, C))), (means, n), np.ones(C, int))
        mean, _ = streamed(aggregators.class_mean("samples"), (means, n), np.ones(C, int))
        close(logits[0], mean * (total / (1 + total))[:, None])


class MeanByFormTest(chex.TestCase):
    @given(cases)
    @often
    def test_those_of_a_form_are_averaged_alone(self, rng):
        values, n = drawn(rng)
        forms = [jax.ShapeDtypeStruct((3,), np.float32), jax.ShapeDtypeStruct((), np.float32)]
        total = None
        for i in range(C):  # even clients send "a", odd ones "b"
            name = "ab"[i % 2]
            reduce = aggregators.mean_by_shape(forms, [i % 2])
            lifted = reduce.map((jnp.asarray(values[name][i]),), Cohort(jnp.int32(i), jnp.int32(n[i])))
            total = lifted if total is None else jax.tree.map(jnp.add, total, lifted)
        for parity, (mean, weight) in enumerate(reduce.finalize(total)):
            mine, own = values["ab"[parity]][parity::2], n[parity::2]
            self.assertEqual(weight, own.sum())
            close(mean, naive_mean({"x": mine}, own.astype(float))["x"] if own.sum() else np.zeros_like(mine[0]))
