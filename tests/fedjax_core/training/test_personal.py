"""Leaves that stay with a client: what is chosen, and that nothing is lost between the two parts."""

import chex
import jax
import jax.numpy as jnp

from fedjax_core import nn
from fedjax_core.algorithm import Net
from fedjax_core.training import local_training, personal
from tests import toy


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
        for own in (personal.entries(), personal.entries("head"), personal.entries("body", "head"), personal.normalisation()):
            shared, mine = personal.divide(net, own)
            self.assertEqual(paths(shared) | paths(mine), paths(net))
            self.assertFalse(paths(shared) & paths(mine))
            chex.assert_trees_all_equal(local_training.join(shared, mine), net)
            chex.assert_trees_all_equal(local_training.join(mine, shared), net)

    def test_entries_take_their_statistics_along(self):
        net = Net({"body": {"scale": 1.0}, "head": {"kernel": 2.0}}, {"body": {"mean": 3.0}})
        self.assertEqual(paths(personal.divide(net, personal.entries("body"))[1]), {"params.body.scale", "stats.body.mean"})
        with self.assertRaisesRegex(ValueError, "personal='haed' is not an entry of the network; it has body, head"):
            personal.divide(net, personal.entries("haed"))

    def test_batch_normalisation_is_found_in_shortcuts_too(self):
        net = resnet("batch")
        mine = paths(personal.divide(net, personal.normalisation())[1])
        expected = {path for path in paths(net) if "norm" in path}
        self.assertEqual(mine, expected)
        self.assertEqual(len(mine), 4 * 9)  # stem, two per block, two shortcuts: scale, bias, mean, variance
        self.assertIn("params.stage2_block1.shortcut_norm.scale", mine)

    def test_other_normalisation_stays_only_if_asked(self):
        net = resnet("group")
        self.assertFalse(paths(personal.divide(net, personal.normalisation())[1]))
        mine = paths(personal.divide(net, personal.normalisation(others=True))[1])
        self.assertEqual(mine, {path for path in paths(net) if "norm" in path})
        self.assertEqual(len(mine), 2 * 9)

    def test_deltas_of_parts_are_parts(self):
        net = toy.model().init(jax.random.key(0))
        shared, _ = personal.divide(net, personal.entries("head"))
        delta = jax.tree.map(jnp.subtract, shared, shared)
        self.assertEqual(paths(delta), paths(shared))
