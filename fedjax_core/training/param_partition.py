"""Which leaves of a network are trained: params taken apart into those and the frozen ones, and put together again."""

from collections.abc import Callable

import jax

from fedjax_core.algorithm import PyTree
from fedjax_core.task import TO_ADD


def split(params: PyTree, trainable: Callable[[tuple], bool] | None) -> tuple[PyTree, PyTree]:
    """`params` as (trained, frozen), each with None where the other has the leaf.

    Raises:
      ValueError: no leaf is trainable.
    """
    if trainable is None:
        return params, jax.tree.map(lambda _: None, params)
    chosen = jax.tree_util.tree_map_with_path(lambda path, _: bool(trainable(path)), params)
    if not any(jax.tree.leaves(chosen)):
        paths = ", ".join(jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))
        raise ValueError(f"trainable chose none of the leaves {paths}")
    return (
        jax.tree.map(lambda p, c: p if c else None, params, chosen),
        jax.tree.map(lambda p, c: None if c else p, params, chosen),
    )


def join(trained: PyTree, frozen: PyTree) -> PyTree:
    """The inverse of `split`."""
    return jax.tree.map(lambda t, f: f if t is None else t, trained, frozen, is_leaf=lambda x: x is None)


def under(*names: str) -> Callable[[tuple], bool]:
    """A `trainable` that chooses the leaves below the given entries of `params`, such as "head"."""
    return lambda path: path[0].key in names


PARTS: dict[str, Callable[[tuple], bool] | None] = {
    "all": None,
    "head": under("head"),
    "body": lambda path: path[0].key != "head",
}


def part(name: str, params: PyTree | None = None) -> Callable[[tuple], bool] | None:
    """The `trainable` of the part of a network called "all", "head" or "body".

    Args:
      name: of the part.
      params: of the network, or their shapes, to see whether it has the part; None: not to.

    Raises:
      ValueError: another name, or the network has no entry "head".
    """
    if name not in PARTS:
        raise ValueError(f"finetune_part={name!r} is not one of {', '.join(map(repr, PARTS))}")
    if name != "all" and params is not None and "head" not in params:
        raise ValueError(f"finetune_part={name!r}: the network has no entry 'head', only {', '.join(params)}; {TO_ADD}")
    return PARTS[name]
