"""What means must satisfy, whatever the values, weights and absences."""

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
        small = aggregators.mean(lambda client: 1e-3 * client.examples)
        close(streamed(small, values, n), naive_mean(values, n.astype(float)))
        index = rng.integers(0, 2, C)
        means, weights, members = streamed(aggregators.mean_by_index(3, aggregators.weight_by_examples), (values, index), n)
        for k in range(3):  # of which nobody has the last
            mine = np.where(index == k, n, 0).astype(float)
            self.assertEqual((float(weights[k]), int(members[k])), (mine.sum(), np.count_nonzero(mine)))
            expected = naive_mean(values, mine) if mine.any() else {"a": np.zeros(3), "b": 0.0}
            close(jax.tree.map(lambda x, k=k: x[k], means), expected)

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

    def test_pairs_are_of_two_that_are_there(self):
        found = aggregators.other_pairs(jnp.asarray([True, False, True]))
        np.testing.assert_array_equal(found, np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], bool))

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
        nobody = aggregator.update(value, 0 * delta, Cohort(jnp.arange(2), jnp.zeros(2, jnp.int32)), state)
        chex.assert_trees_all_equal(nobody, (value, state))

    def test_the_review_sees_value_and_context(self):
        def update(updates, state, params=None, *, scale, **extra):
            del extra
            return updates * scale + params, state

        review = optax.GradientTransformationExtraArgs(lambda params: (), update)
        aggregator = aggregators.make_aggregator(review=review)
        new, _ = aggregator.update(jnp.asarray(2.0), jnp.asarray(3.0), SOMEBODY, (), scale=10.0)
        self.assertEqual(float(new), 2.0 + 30.0 + 2.0)
