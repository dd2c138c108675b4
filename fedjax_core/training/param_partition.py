"""Partitions of a network: which leaves are trained, and which stay with a client.

`split_params` divides parameters into trained and frozen ones by a predicate over paths;
`split_net` divides a whole `Net` into what is sent and what is personal, by a selection such as
`personal_entries("head")`. `join_params` inverts both. `count_trainable` counts the parameters that
training changes, while a round is traced.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence

import jax

from fedjax_core.algorithm import Array, Net, PyTree
from fedjax_core.task import HEAD_HINT
from fedjax_core.training.adapters import ENTRY

Selection = Callable[[Net], Net]  # net -> a Net of bools, True for the personal leaves


def split_params(params: PyTree, trainable: Callable[[tuple], bool] | None) -> tuple[PyTree, PyTree]:
    """Splits `params` into (trained, frozen), each with None where the other has the leaf.

    Raises:
      ValueError: no leaf is trainable.
    """
    if trainable is None:
        return params, jax.tree.map(lambda _: None, params)
    is_trained = jax.tree_util.tree_map_with_path(lambda path, _: bool(trainable(path)), params)
    if not any(jax.tree.leaves(is_trained)):
        paths = ", ".join(jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))
        raise ValueError(f"trainable selects none of the leaves {paths}")
    frozen, trained = _split_by(params, is_trained)
    return trained, frozen


def join_params(trained: PyTree, frozen: PyTree) -> PyTree:
    """Joins what `split_params` or `split_net` has split."""
    return jax.tree.map(lambda t, f: f if t is None else t, trained, frozen, is_leaf=lambda x: x is None)


def entries_filter(*names: str) -> Callable[[tuple], bool]:
    """Returns a `trainable` that selects the leaves below the given entries of `params`."""
    return lambda path: path[0].key in names


PARTS: dict[str, Callable[[tuple], bool] | None] = {
    "all": None,
    "head": entries_filter("head"),
    "body": lambda path: path[0].key != "head",
}


def part_filter(name: str, params: PyTree | None = None) -> Callable[[tuple], bool] | None:
    """Returns the `trainable` of the part "all", "head" or "body" of the network.

    Raises:
      ValueError: another name, or `params` (or their shapes) are given and have no entry "head".
    """
    if name not in PARTS:
        raise ValueError(f"finetune_part={name!r} is not one of {', '.join(map(repr, PARTS))}")
    if name != "all" and params is not None and "head" not in params:
        raise ValueError(f"finetune_part={name!r}: the network has no entry 'head', only {', '.join(params)}; {hint_head(params)}")
    return PARTS[name]


def hint_head(params: PyTree) -> str:
    """Returns what to do about a method that needs the head of a network which has no such entry."""
    if ENTRY in params:
        return "it is frozen beside the adapter: set train='head', or for texts take a method that reads no head"
    return HEAD_HINT


def drop_entry(net: Net, name: str) -> Net:
    """Returns the network without this entry of its params, such as "correction", if it has that."""
    if not isinstance(net.params, dict) or name not in net.params:
        return net
    return net._replace(params={other: entry for other, entry in net.params.items() if other != name})


def put_entry(net: Net, name: str, entry: PyTree) -> Net:
    """Returns the network with this entry of its params, in place of an earlier one."""
    return net._replace(params=net.params | {name: entry})


def check_entries(net: Net, names: Sequence[str], option: str) -> None:
    """Raises ValueError if a network has no entry of one of the names that an option has."""
    for name in names:
        if name not in net.params:
            hint = f"; {hint_head(net.params)}" if name == "head" else ""
            raise ValueError(f"{option}={name!r} is not an entry of the network; it has {', '.join(net.params)}{hint}")


def personal_entries(*names: str) -> Selection:
    """Selects the leaves below the given entries of `params`, such as "head", with their statistics.

    Raises:
      ValueError: (by the selection) the network has no such entry.
    """

    def select(net: Net) -> Net:
        check_entries(net, names, "personal")
        return Net(*(_select(lambda path: path[0] in names, tree) for tree in net))

    return select


def personal_normalization(others: bool = False) -> Selection:
    """Selects batch normalization: all statistics, with the scales and biases of the same layers.

    With `others` also layers without statistics (group, layer normalization), which have "norm" in
    their name, or vectors alone and a "scale" among them.
    """

    def select(net: Net) -> Net:
        layers = {_names(path)[:-1] for path, _ in jax.tree_util.tree_leaves_with_path(net.stats)}
        if others:
            leaves = [(_names(path), leaf.ndim) for path, leaf in jax.tree_util.tree_leaves_with_path(net.params)]
            scaled = {path[:-1] for path, _ in leaves if path[-1] == "scale"}
            layers |= scaled - {path[:-1] for path, axes in leaves if axes != 1}
        is_norm = lambda path: others and any("norm" in str(name).lower() for name in path[:-1])
        params = _select(lambda path: path[:-1] in layers or is_norm(path), net.params)
        return Net(params, jax.tree.map(lambda _: True, net.stats))

    return select


def all_but(selection: Selection) -> Selection:
    """Selects the leaves that another selection leaves."""
    return lambda net: jax.tree.map(lambda is_selected: not is_selected, selection(net))


def split_net(net: Net, personal: Selection) -> tuple[Net, Net]:
    """Splits a network into (shared, personal); `join_params` is the inverse."""
    return _split_by(net, personal(net))


def _split_by(tree: PyTree, mask: PyTree) -> tuple[PyTree, PyTree]:
    """Returns the leaves outside and inside of a mask, each with None where the other has the leaf."""
    outside = jax.tree.map(lambda leaf, inside: None if inside else leaf, tree, mask)
    return outside, jax.tree.map(lambda leaf, inside: leaf if inside else None, tree, mask)


def _names(path: tuple) -> tuple:
    return tuple(step.key for step in path)


def _select(predicate: Callable[[tuple], bool], tree: PyTree) -> PyTree:
    return jax.tree_util.tree_map_with_path(lambda path, _: predicate(_names(path)), tree)


class TrainableCounter:
    """Counts the parameters that trainings change, as `count`.

    A parameter that a training starts from is the same as one that an earlier training returned
    (phases of one network) or started from (branches, functions traced twice). A parameter from
    elsewhere is another one, such as a second copy of the network.
    """

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[int, Array] = {}  # by id; the arrays are kept, so that no id is reused

    def add(self, before: PyTree, after: PyTree, trains: bool) -> None:
        """Counts one training from `before` to `after`; `trains` is False for one without steps."""
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            is_known = id(old) in self._known
            self.count += old.size if trains and not is_known else 0
            if trains or is_known:
                self._known |= {id(old): old, id(new): new}


_COUNTER: contextvars.ContextVar[TrainableCounter | None] = contextvars.ContextVar("counter", default=None)


@contextlib.contextmanager
def count_trainable() -> Iterator[TrainableCounter]:
    """Counts the trainings that this thread traces inside the block."""
    counter = TrainableCounter()
    token = _COUNTER.set(counter)
    try:
        yield counter
    finally:
        _COUNTER.reset(token)


def record_training(before: PyTree, after: PyTree, trains: bool = True) -> None:
    """Records a training where `count_trainable` is active; `local_training` calls it."""
    counter = _COUNTER.get()
    if counter is not None:
        counter.add(before, after, trains)
