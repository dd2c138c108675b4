"""Which leaves of a network stay with a client; the others are sent and averaged.

own = entries("head")                  # or normalisation(), or any function like them
shared, mine = divide(net, own)        # two Nets, each with None where the other has the leaf
net = training.join(shared, mine)
"""

from collections.abc import Callable

import jax

from fedjax_core.algorithm import Net, PyTree
from fedjax_core.task import TO_ADD

Selection = Callable[[Net], Net]  # net -> a Net of bools, True for the leaves that are personal


def entries(*names: str) -> Selection:
    """What stands below the given entries of `params`, such as "head", with its statistics.

    Raises:
      ValueError: (of the selection) the network has no such entry.
    """

    def select(net: Net) -> Net:
        for name in names:
            if name not in net.params:
                add = f"; {TO_ADD}" if name == "head" else ""
                raise ValueError(f"personal={name!r} is not an entry of the network; it has {', '.join(net.params)}{add}")
        return Net(*(_where(lambda path: path[0] in names, tree) for tree in net))

    return select


def normalisation(others: bool = False) -> Selection:
    """Batch normalisation: all statistics, and the scales and biases that stand beside them, wherever in the network.

    Args:
      others: also the layers that have no statistics (group, layer normalisation): those with "norm" in their name.
    """

    def select(net: Net) -> Net:
        layers = {_names(path)[:-1] for path, _ in jax.tree_util.tree_leaves_with_path(net.stats)}
        named = lambda path: others and any("norm" in str(name).lower() for name in path[:-1])
        return Net(_where(lambda path: path[:-1] in layers or named(path), net.params), jax.tree.map(lambda _: True, net.stats))

    return select


def divide(net: Net, own: Selection) -> tuple[Net, Net]:
    """(shared, personal); `training.join` is the inverse."""
    chosen = own(net)
    shared = jax.tree.map(lambda leaf, personal: None if personal else leaf, net, chosen)
    return shared, jax.tree.map(lambda leaf, personal: leaf if personal else None, net, chosen)


def _names(path: tuple) -> tuple:
    return tuple(step.key for step in path)


def _where(chosen: Callable[[tuple], bool], tree: PyTree) -> PyTree:
    return jax.tree_util.tree_map_with_path(lambda path, _: chosen(_names(path)), tree)
