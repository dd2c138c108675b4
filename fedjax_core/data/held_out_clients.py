"""Unseen clients: they have training and test rows, and never train. What a method does for a newcomer is scored on them."""

import numpy as np

from fedjax_core import option_types
from fedjax_core.data import apportion
from fedjax_core.data.federated_data import FederatedData, Newcomers, replace_index
from fedjax_core.data.ragged_index import RowLists
from fedjax_core.data.target_types import label_table


def set_apart(data: FederatedData, part: float | int, seed: int) -> FederatedData:
    """The same data with some clients, chosen at random, in `unseen`. The others are the population: they keep their order, and are
    numbered from 0.

    Args:
      data: without unseen clients. Validation rows of those that are chosen are training rows again.
      part: of the clients, a fraction in (0, 1), rounded, at least one; or how many clients, a whole number.
      seed: data seed.

    Raises:
      ValueError: the data have unseen clients already, or `part` is out of range.
    """
    if data.unseen is not None:
        raise ValueError(f"data.unseen_clients={part}: these data have unseen clients already")
    if option_types.must_be(part, option_types.Part) or max(part, 1) >= data.clients:
        what = f"data.unseen_clients={part} must be a fraction in (0, 1), or a number below that of all clients"
        raise ValueError(f"{what}, {data.clients}")
    number = int(part) if part >= 1 else min(max(1, round(part * data.clients)), data.clients - 1)
    ids = np.sort(apportion.make_generator(seed, "unseen").permutation(data.clients)[:number]).astype(np.int32)
    others = np.setdiff1d(np.arange(data.clients), ids)
    train, test, validation = map(RowLists.of, (data.train_index, data.test_index, data.validation_index))
    theirs = _united(train.chosen(ids), validation.chosen(ids))
    table = label_table(data.train.y, theirs, data.classes)
    names = [tuple(data.client_names[i] for i in which) if data.client_names else () for which in (ids, others)]
    unseen = Newcomers(ids, theirs, test.chosen(ids), table, data.test_label_table[ids], names[0])
    train, test, validation = (each.chosen(others) for each in (train, test, validation))
    return replace_index(data, train, test, validation, unseen, names[1])


def seen_rows(data: FederatedData) -> np.ndarray | None:
    """Training rows without those of unseen clients alone: what a network's inputs may be scaled by. None: all."""
    if data.unseen is None:
        return None
    seen = np.ones(len(data.train.y), bool)
    seen[RowLists.of(data.unseen.train_index).joined()] = False
    for index in (data.train_index, data.validation_index):
        seen[RowLists.of(index).joined()] = True
    return np.flatnonzero(seen)


def _united(one: RowLists, other: RowLists) -> RowLists:
    """The rows that each client has in either list, as often as they are there, ascending."""
    rows = np.concatenate([one.joined(), other.joined()])
    whose = np.concatenate([np.repeat(np.arange(len(of)), of.size) for of in (one, other)])
    return RowLists.dealt(rows, whose, len(one))
