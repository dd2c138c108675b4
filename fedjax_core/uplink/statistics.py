"""Running statistics of batch normalisation among what travels."""

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Net, PyTree

VARIANCE = "var"  # the last entry of a running variance's path, in Flax's modules as in ours


def _is_net(x) -> bool:
    return isinstance(x, Net)


def has_statistics(tree: PyTree) -> bool:
    """Whether a network in the tree has running statistics."""
    nets = [x for x in jax.tree.leaves(tree, is_leaf=_is_net) if _is_net(x)]
    return any(jax.tree.leaves(net.stats) for net in nets)


def floored(tree: PyTree) -> PyTree:
    """Every network in the tree with running variances of at least 0, whatever attackers and votes have made of them.

    States of optax's transformations stay as they are: momentum of a variance is below 0 wherever the variance falls.
    """

    def floor(path, leaf):
        last = getattr(path[-1], "key", getattr(path[-1], "name", None)) if path else None
        return jnp.maximum(leaf, 0) if last == VARIANCE else leaf

    of_net = lambda x: x._replace(stats=jax.tree_util.tree_map_with_path(floor, x.stats)) if _is_net(x) else x
    return jax.tree.map(of_net, tree, is_leaf=lambda x: _is_net(x) or type(x).__module__.partition(".")[0] == "optax")
