"""Unseen clients: they have training and test examples, and never train. They score what a method
does for clients that join later.
"""

import numpy as np

from fedjax_core import option_types
from fedjax_core.data import apportion
from fedjax_core.data.federated_data import FederatedData, UnseenClients, replace_index
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.data.target_types import label_table


def hold_out_clients(data: FederatedData, part: float | int, seed: int) -> FederatedData:
    """Moves random clients into `unseen`. The others are the population: they keep their order, and
    are numbered from 0.

    Args:
      data: without unseen clients. Validation examples of those that are chosen are training
        examples again.
      part: of the clients, a fraction in (0, 1), rounded, at least one; or how many clients, an
        integer.
      seed: data seed.

    Raises:
      ValueError: the data have unseen clients already, or `part` is out of range.
    """
    if data.unseen is not None:
        raise ValueError(f"data.unseen_clients={part}: these data have unseen clients already")
    if option_types.describe_mismatch(part, option_types.Part) or max(part, 1) >= data.clients:
        what = f"data.unseen_clients={part} must be a fraction in (0, 1), or a number below that of all clients"
        raise ValueError(f"{what}, {data.clients}")
    number = int(part) if part >= 1 else min(max(1, round(part * data.clients)), data.clients - 1)
    ids = np.sort(apportion.make_generator(seed, "unseen").permutation(data.clients)[:number]).astype(np.int32)
    others = np.setdiff1d(np.arange(data.clients), ids)
    train, test, validation = map(RaggedIndex.from_lists, (data.train_index, data.test_index, data.validation_index))
    train_of_unseen = _united(train.select(ids), validation.select(ids))
    table = label_table(data.train.y, train_of_unseen, data.classes)
    names = [tuple(data.client_names[i] for i in which) if data.client_names else () for which in (ids, others)]
    unseen = UnseenClients(ids, train_of_unseen, test.select(ids), table, data.test_label_table[ids], names[0])
    train, test, validation = (each.select(others) for each in (train, test, validation))
    return replace_index(data, train, test, validation, unseen, names[1])


def find_seen_examples(data: FederatedData) -> np.ndarray | None:
    """Returns the training examples that seen clients hold, by which inputs may be scaled; None:
    all.
    """
    if data.unseen is None:
        return None
    seen = np.ones(len(data.train.y), bool)
    seen[RaggedIndex.from_lists(data.unseen.train_index).concatenate()] = False
    for index in (data.train_index, data.validation_index):
        seen[RaggedIndex.from_lists(index).concatenate()] = True
    return np.flatnonzero(seen)


def _united(one: RaggedIndex, other: RaggedIndex) -> RaggedIndex:
    """Merges two lists per client, repeats included, ascending."""
    rows = np.concatenate([one.concatenate(), other.concatenate()])
    whose = np.concatenate([np.repeat(np.arange(len(lists)), lists.size) for lists in (one, other)])
    return RaggedIndex.group_by_client(rows, whose, len(one))
