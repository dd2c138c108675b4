"""Validation rows: a part of each client's training rows that nobody trains on, to choose rounds and settings by."""

import numpy as np

from fedjax_core.data import draws
from fedjax_core.data.federated import FederatedData, divided_anew
from fedjax_core.data.row_lists import RowLists
from fedjax_core.data.targets import number as strata_number
from fedjax_core.data.targets import strata


def hold_out(data: FederatedData, part: float | int, seed: int) -> FederatedData:
    """The same data with some of each client's training rows in `validation_index`, its classes in proportion as far as they go.

    Args:
      data: without validation rows.
      part: of each client's training rows, a fraction in (0, 1), rounded down; or how many rows, a whole number.
      seed: data seed.

    Raises:
      ValueError: the data have validation rows already, `part` is out of range, or a client would have nothing left to train on.
    """
    if RowLists.of(data.validation_index).total:
        raise ValueError(f"data.validation={part}: these data have validation rows already")
    whole = isinstance(part, int | np.integer)
    if isinstance(part, bool) or not (part >= 1 if whole else 0 < part < 1):
        raise ValueError(f"data.validation={part} must be a fraction in (0, 1), or a number of rows of at least 1")
    rng, classes = draws.generator(seed, "holdout"), strata_number(data.train.y, data.classes)
    kept, held = [], []
    for client, rows in enumerate(data.train_index):
        number = int(part if whole else part * len(rows))
        if 0 < len(rows) <= number:
            most = min(len(rows) for rows in data.train_index if len(rows)) - 1
            what = f"data.validation={part}: client {client} has {len(rows)} training rows"
            raise ValueError(f"{what}; it must be at most {most}, or a fraction")
        labels = strata(data.train.y[rows])
        counts = np.bincount(labels, minlength=classes)
        wanted = draws.apportion(number, counts) if len(rows) else np.zeros_like(counts)
        chosen = [rng.choice(rows[labels == c], n, replace=False) for c, n in enumerate(wanted) if n]
        mine = np.sort(np.concatenate([np.zeros(0, np.int32), *chosen])).astype(np.int32)
        kept.append(np.setdiff1d(rows, mine).astype(np.int32))
        held.append(mine)
    return divided_anew(data, kept, data.test_index, held)
