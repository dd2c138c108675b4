"""What data need to know of targets (`algorithm.TARGETS`): by what rows are told apart, and what is counted of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_core.algorithm import TARGETS, targets_of
from fedjax_core.data.ragged_index import RowLists

ROWS = ("rows",)  # the one column of a label table where nothing else can be counted


def stratify(y: np.ndarray) -> np.ndarray:
    """[rows] int32: the classes of rows; 0 where targets are none, so that rows are told apart by their number alone."""
    return np.asarray(y) if targets_of(y) == "classes" else np.zeros(len(y), np.int32)


def number(y: np.ndarray, classes: int) -> int:
    """How many strata there are."""
    return classes if targets_of(y) == "classes" else 1


def columns(y: Any, class_names: Sequence[str]) -> tuple[str, ...]:
    """What the columns of a label table are: classes, labels, or all rows."""
    return tuple(class_names) if targets_of(y) in ("classes", "labels") else ROWS


def label_table(y: np.ndarray, lists: RowLists, classes: int) -> np.ndarray:
    """[N, K] rows of each class, or with each label; of other targets [N, 1] rows."""
    if targets_of(y) == "labels":
        return np.stack([lists.counts(column, 2)[:, 1] for column in np.asarray(y).T], 1)
    return lists.counts(stratify(y), number(y, classes))


def need_classes(what: str, y: np.ndarray, instead: str) -> None:
    """Raises ValueError where `what` reads classes and there are none; says what to use instead."""
    if (kind := targets_of(y)) != "classes":
        raise ValueError(f"{what} needs classes, the data have {kind}: {TARGETS[kind]}; {instead}")
