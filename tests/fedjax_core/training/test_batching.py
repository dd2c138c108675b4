"""Means of classes, and rows that are put together to be trained on."""

import chex
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import ClientData, Cohort, Examples
from fedjax_core.training.batching import class_means, uplinks_as_examples


class ReceivedTest(chex.TestCase):
    def test_what_clients_sent_stands_in_the_order_of_their_ids(self):
        """Whoever is absent, or has nothing of a class, sent nothing, whatever stands in its place."""
        means = np.arange(4 * 3 * 2, dtype=np.float32).reshape(4, 3, 2)
        means[1] = np.nan
        counts = jnp.array([[2, 0, 1], [1, 1, 1], [0, 0, 0], [0, 5, 5]])
        places, empty = [3, 8, 5, 0], [4, 0, 4, 4]
        expected = [(means[3, 1], 1), (means[3, 2], 2), (means[0, 0], 0), (means[0, 2], 2)]  # of clients 0 and 3
        for order in ([0, 1, 2, 3], [2, 3, 1, 0]):
            cohort = Cohort(jnp.array(places)[jnp.array(order)], jnp.array(empty)[jnp.array(order)])
            found = uplinks_as_examples(cohort, jnp.asarray(means)[jnp.array(order)], counts[jnp.array(order)])
            self.assertEqual(int(found.size), 4)
            rows = found.index[:4]
            chex.assert_trees_all_equal(found.arrays.x[rows], np.stack([x for x, _ in expected]))
            self.assertEqual(found.arrays.y[rows].tolist(), [y for _, y in expected])
            self.assertTrue(np.isfinite(found.arrays.x).all())


class ClassMeansTest(chex.TestCase):
    def test_features_of_few_bits_are_summed_in_float32(self):
        """In bfloat16 the number of a class's examples stops at 8192, and the mean of 10000 is a fifth too large."""
        rows = jnp.arange(20_000, dtype=jnp.int32)
        data = ClientData(Examples(jnp.full((len(rows), 2), 2.0), rows % 2), rows, jnp.int32(len(rows)))
        means, counts = class_means(lambda batch: batch.x.astype(jnp.bfloat16), data, classes=3, batch=64)
        self.assertEqual(counts.tolist(), [10_000, 10_000, 0])
        self.assertEqual(means.tolist(), [[2.0, 2.0], [2.0, 2.0], [0.0, 0.0]])
