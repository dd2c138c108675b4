"""Strata and label tables of targets (`algorithm.TARGETS`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_core.algorithm import TARGETS, targets_of
from fedjax_core.data.ragged_index import RaggedIndex

ROWS = ("rows",)  # the one column of a label table where nothing else can be counted


def stratify(y: np.ndarray) -> np.ndarray:
    """Returns the classes [n] of examples, int32; 0 where targets are no classes."""
    return np.asarray(y) if targets_of(y) == "classes" else np.zeros(len(y), np.int32)


def num_strata(y: np.ndarray, classes: int) -> int:
    """Returns the number of strata."""
    return classes if targets_of(y) == "classes" else 1


def label_table_columns(y: Any, class_names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of a label table's columns: classes, labels, or all examples."""
    return tuple(class_names) if targets_of(y) in ("classes", "labels") else ROWS


def label_table(y: np.ndarray, lists: RaggedIndex, classes: int) -> np.ndarray:
    """Counts the examples of each class, or with each label, [N, K]; of other targets all, [N, 1]."""
    if targets_of(y) == "labels":
        return np.stack([lists.count_labels(column, 2)[:, 1] for column in np.asarray(y).T], 1)
    return lists.count_labels(stratify(y), num_strata(y, classes))


def require_classes(what: str, y: np.ndarray, instead: str) -> None:
    """Raises ValueError if targets are no classes; `what` begins the message, `instead` ends it."""
    if (kind := targets_of(y)) != "classes":
        raise ValueError(f"{what} needs classes, the data have {kind}: {TARGETS[kind]}; {instead}")
