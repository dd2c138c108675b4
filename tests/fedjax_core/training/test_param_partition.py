"""What is trained of a network, and what is not."""

import chex
import jax

from fedjax_core.training import param_partition
from tests import toy

MODEL = toy.model()


class PartsTest(chex.TestCase):
    def test_split_and_join_are_inverse(self):
        params = MODEL.init(jax.random.key(0)).params
        trained, frozen = param_partition.split(params, param_partition.under("head"))
        self.assertLen(jax.tree.leaves(trained), 2)
        self.assertLen(jax.tree.leaves(frozen), 2)
        chex.assert_trees_all_equal(param_partition.join(trained, frozen), params)
        trained, frozen = param_partition.split(params, None)
        self.assertEmpty(jax.tree.leaves(frozen))
        chex.assert_trees_all_equal(param_partition.join(trained, frozen), params)

    def test_nothing_to_train(self):
        with self.assertRaisesRegex(ValueError, r"none of the leaves \['body'\]\['bias'\].*\['head'\]\['kernel'\]"):
            param_partition.split(MODEL.init(jax.random.key(0)).params, param_partition.under("tail"))

    def test_a_network_without_a_head_has_no_such_part(self):
        for name in ("head", "body"):
            with self.assertRaisesRegex(
                ValueError, f"finetune_part='{name}': the network has no entry 'head', only dense; give its"
            ):
                param_partition.part(name, {"dense": {}})
        self.assertIsNone(param_partition.part("all", {"dense": {}}))
