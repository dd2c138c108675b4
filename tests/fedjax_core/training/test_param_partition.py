"""Partitions of a network lose nothing, and select the leaves that they should."""

import chex
import jax
import jax.numpy as jnp

from fedjax_core import nn
from fedjax_core.algorithm import Net
from fedjax_core.training import local_training, param_partition
from tests import toy

MODEL = toy.model()


class PartsTest(chex.TestCase):
    def test_split_and_join_are_inverse(self):
        params = MODEL.init(jax.random.key(0)).params
        trained, frozen = param_partition.split_params(params, param_partition.entries_filter("head"))
        self.assertLen(jax.tree.leaves(trained), 2)
        self.assertLen(jax.tree.leaves(frozen), 2)
        chex.assert_trees_all_equal(param_partition.join_params(trained, frozen), params)
        trained, frozen = param_partition.split_params(params, None)
        self.assertEmpty(jax.tree.leaves(frozen))
        chex.assert_trees_all_equal(param_partition.join_params(trained, frozen), params)

    def test_nothing_to_train(self):
        with self.assertRaisesRegex(ValueError, r"none of the leaves \['body'\]\['bias'\].*\['head'\]\['kernel'\]"):
            param_partition.split_params(MODEL.init(jax.random.key(0)).params, param_partition.entries_filter("tail"))

    def test_a_network_without_a_head_has_no_such_part(self):
        for name in ("head", "body"):
            with self.assertRaisesRegex(
                ValueError, f"finetune_part='{name}': the network has no entry 'head', only dense; give its"
            ):
                param_partition.part_filter(name, {"dense": {}})
        self.assertIsNone(param_partition.part_filter("all", {"dense": {}}))


def paths(part):
    """Names of the leaves that a part has, such as "params.head.bias"."""
    named = jax.tree_util.tree_leaves_with_path(part)
    return {".".join(str(getattr(step, "name", getattr(step, "key", step))) for step in path) for path, _ in named}


def resnet(norm: str) -> Net:
    model = nn.build("resnet8", 10, (8, 8, 3), width=4, norm=norm)
    return jax.eval_shape(model.init, jax.random.key(0))


class PersonalTest(chex.TestCase):
    def test_the_parts_are_the_whole(self):
        net = toy.model().init(jax.random.key(0))
        for own in (
            param_partition.personal_entries(),
            param_partition.personal_entries("head"),
            param_partition.personal_entries("body", "head"),
            param_partition.personal_normalization(),
        ):
            shared, mine = param_partition.split_net(net, own)
            self.assertEqual(paths(shared) | paths(mine), paths(net))
            self.assertFalse(paths(shared) & paths(mine))
            chex.assert_trees_all_equal(local_training.join_params(shared, mine), net)
            chex.assert_trees_all_equal(local_training.join_params(mine, shared), net)

    def test_entries_take_their_statistics_along(self):
        net = Net({"body": {"scale": 1.0}, "head": {"kernel": 2.0}}, {"body": {"mean": 3.0}})
        self.assertEqual(
            paths(param_partition.split_net(net, param_partition.personal_entries("body"))[1]),
            {"params.body.scale", "stats.body.mean"},
        )
        with self.assertRaisesRegex(ValueError, "personal='haed' is not an entry of the network; it has body, head"):
            param_partition.split_net(net, param_partition.personal_entries("haed"))

    def test_batch_normalisation_is_found_in_shortcuts_too(self):
        net = resnet("batch")
        mine = paths(param_partition.split_net(net, param_partition.personal_normalization())[1])
        expected = {path for path in paths(net) if "norm" in path}
        self.assertEqual(mine, expected)
        self.assertEqual(len(mine), 4 * 9)  # stem, two per block, two shortcuts: scale, bias, mean, variance
        self.assertIn("params.stage2_block1.shortcut_norm.scale", mine)

    def test_other_normalisation_stays_only_if_asked(self):
        net = resnet("group")
        self.assertFalse(paths(param_partition.split_net(net, param_partition.personal_normalization())[1]))
        mine = paths(param_partition.split_net(net, param_partition.personal_normalization(others=True))[1])
        self.assertEqual(mine, {path for path in paths(net) if "norm" in path})
        self.assertEqual(len(mine), 2 * 9)

    def test_normalisation_of_another_name_is_known_by_its_scale(self):
        layer = {"scale": jnp.ones(3), "bias": jnp.zeros(3)}
        adapter = {"scale": jnp.ones(3), "kernel": jnp.ones((3, 3))}
        net = Net({"ln": layer, "block": {"rms": {"scale": jnp.ones(3)}}, "dense": adapter, "head": {"bias": jnp.zeros(3)}}, {})
        mine = paths(param_partition.split_net(net, param_partition.personal_normalization(others=True))[1])
        self.assertEqual(mine, {"params.ln.scale", "params.ln.bias", "params.block.rms.scale"})

    def test_deltas_of_parts_are_parts(self):
        net = toy.model().init(jax.random.key(0))
        shared, _ = param_partition.split_net(net, param_partition.personal_entries("head"))
        delta = jax.tree.map(jnp.subtract, shared, shared)
        self.assertEqual(paths(delta), paths(shared))
