"""Rows that are put together to be trained on."""

import chex
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Cohort
from fedjax_core.training.batching import uplinks_as_examples


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
