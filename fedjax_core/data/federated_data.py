"""A data set divided over clients: index lists into arrays that are stored once."""

import dataclasses
import hashlib
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import Examples, targets_of
from fedjax_core.data import client_test_split, partition
from fedjax_core.data.input_range import find_offset
from fedjax_core.data.partition.natural_clients import natural
from fedjax_core.data.partition.sampling import check_index
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.data.sources import Dataset
from fedjax_core.data.sources.dataset import check_distinct
from fedjax_core.data.target_types import label_table, label_table_columns, require_classes, stratify
from fedjax_core.option_types import escape_unprintable

LONGEST_NAME = 20  # characters of a client's name on the screen
READABLE = 50  # clients that a label table on the screen may have
TEST_SPLITS = ("proportional", "matched", "all", "partition", "merged")
log = logging.getLogger("fedjax_core")


class UnseenClients(NamedTuple):
    """Clients that have data and never train (`hold_out_clients`).

    Attributes:
      ids: [U] their numbers in the partition, sorted; all others are the population, in their
        order.
      train_index, test_index: U lists of example indices, as the population's.
      label_table, test_label_table: [U, K] examples of each class.
      names: U names, if clients have any.
    """

    ids: np.ndarray
    train_index: Sequence[np.ndarray]
    test_index: Sequence[np.ndarray]
    label_table: np.ndarray
    test_label_table: np.ndarray
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class FederatedData:
    """A population's data, on the host.

    Attributes:
      name: of the data set.
      train: Examples, with targets of one of `algorithm.TARGETS`; `train_index` says which are
        used.
      test: Examples, the official test set.
      class_names: K names, of classes, labels, numbers or tokens.
      train_index: N sorted int32 arrays of example indices into `train` (`RaggedIndex`).
      test_index: N arrays into `test`: each client's own test examples. May be empty for a client.
      validation_index: N arrays into `train`: examples kept out of everybody's `train_index`, to
        choose rounds and settings by (`hold_out_validation`); empty by default.
      partition_hash: sha256 of the index lists; two runs with the same hash train and test on the
        same examples.
      label_table: [N, K] training examples of each class, or with each label; [N, 1] training
        examples where targets are neither.
      test_label_table: the same of test examples.
      unseen: further clients, which never train, or None.
      client_names: N names, of natural clients; empty if clients have none but their numbers.
      poisoned_rows: number of the last training examples that attackers' poisons have made
        (`poisoning.py`).
      poisoned_by: the attack that has made them, its seed, and the attackers; empty without one.
      x_offset: [C] float64, subtracted from each channel (the last axis) of x before it became
        float32 (`center_features`); None: nothing.
      y_offset: [D], likewise of numbers to predict.
    """

    name: str
    train: Examples
    test: Examples
    class_names: tuple[str, ...]
    train_index: Sequence[np.ndarray]
    test_index: Sequence[np.ndarray]
    validation_index: Sequence[np.ndarray]
    partition_hash: str
    label_table: np.ndarray
    test_label_table: np.ndarray
    unseen: UnseenClients | None = None
    client_names: tuple[str, ...] = ()
    poisoned_rows: int = 0
    poisoned_by: tuple[Any, ...] = ()
    x_offset: np.ndarray | None = None
    y_offset: np.ndarray | None = None

    def __repr__(self) -> str:
        train, test = (sum(map(len, lists)) for lists in (self.train_index, self.test_index))
        unseen = "" if self.unseen is None else f", {len(self.unseen.ids)} unseen"
        return f"FederatedData({self.name!r}: {self.clients} clients{unseen}, with {train} training and {test} test examples)"

    @property
    def classes(self) -> int:
        """Number of classes K."""
        return len(self.class_names)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the label tables."""
        return label_table_columns(self.train.y, self.class_names)

    @property
    def clients(self) -> int:
        """Number of clients N."""
        return len(self.train_index)

    @property
    def names_of_all(self) -> tuple[str, ...]:
        """Names of the population and then of unseen clients; empty if they have none."""
        return self.client_names + (() if self.unseen is None else self.unseen.names)


def federate(
    dataset: Dataset,
    partition: str | Mapping[str, Any] | registry.ResolvedSpec | Callable,
    clients: int | None = None,
    seed: int = 0,
    *,
    long_tail: float | None = None,
    test_split: str | None = None,
    test_examples: int | None = None,
) -> FederatedData:
    """Divides a data set over clients.

    Args:
      dataset: from `sources.load` or `sources.from_arrays`. Its test set is never mixed into the
        training examples.
      partition: one of `partition.SCHEMES` with its options, as configs write it,
        `"dirichlet(alpha=0.5)"`, or as `{"name": "dirichlet", "alpha": 0.5}`, or resolved; or a function
        of any of (labels, clients, seed) by name, which returns a list of index lists.
      clients: N; None: with `natural` all that there are, else 20.
      seed: data seed, apart from the training seed: methods compared at one data seed see the same
        examples.
      long_tail: imbalance factor rho of `partition.long_tail`, applied to the training examples
        before they are divided.
      test_split: the clients' own test examples.
        "proportional": each class's test examples are divided over the clients in proportion to
          their training examples of it, so that they are disjoint and cover every class that
          somebody trains on. A client with few examples may get none.
        "matched": `test_examples` examples each, with the label distribution of the client's
          training examples; clients may share.
        "all": the whole test set for everyone.
        "partition": those that the partition itself defines (dirichlet_clients,
          pathological_clients, by_domain, natural).
        "merged": training and test set are one, which the partition divides, and a random quarter of
          each client's examples, rounded up, is its test set (PFLlib).
        None: "partition" where there are such, otherwise "proportional"; the latter also with
          `natural` where test examples have no clients: the examples of a client are then
          strangers'.
      test_examples: for "matched" only.

    Raises:
      ValueError: these data cannot be divided so; the message says why and what is possible.
      TypeError: an option that the partition does not have.
    """
    scheme = _resolve_scheme(partition)
    _check_dataset(dataset)
    if test_split is not None:
        registry.check_choice("test split", test_split, TEST_SPLITS)
    if (test_split == "matched") != (test_examples is not None):
        raise ValueError(f"test_split={test_split!r} with test_examples={test_examples}: 'matched' needs it, the others do not.")
    if test_split == "merged":
        return _federate_merged(dataset, scheme, clients, seed, long_tail)
    train_index, own = _divide(dataset, scheme, clients, seed, long_tail)
    if test_split == "partition" and own is None:
        raise ValueError(
            f"test_split='partition': {scheme.name!r} defines no test examples; use 'proportional', 'matched' or 'all'."
        )
    if test_split in (None, "partition") and own is not None:
        test_index = own
    elif test_split == "matched":
        test_index = client_test_split.sample_matched(dataset, train_index, test_examples or 0, seed)
    elif test_split == "all":
        test_index = RaggedIndex.repeat(np.arange(len(dataset.test.y), dtype=np.int32), len(train_index))
    else:
        test_index = client_test_split.split_proportionally(dataset, train_index, seed)
    names = _client_names(dataset, train_index) if scheme.function is natural else ()
    return _build(dataset, train_index, test_index, names)


def _federate_merged(
    dataset: Dataset, scheme: registry.ResolvedSpec, clients: int | None, seed: int, long_tail: float | None
) -> FederatedData:
    """Divides training and test set together, and then each client's examples."""
    takes = registry.read_parameters(scheme.function)[0]
    merged = client_test_split.merge_columns(dataset)
    own = "test_split='merged': this partition defines test examples itself"
    if any(takes[name].default is inspect.Parameter.empty for name in ("test_labels", "test_domains") if name in takes):
        raise ValueError(f"{own}, {scheme.spec!r}; take another, or leave test_split out.")
    if scheme.function is natural and dataset.train_clients is not None and dataset.test_clients is None:
        raise ValueError(
            "test_split='merged': partition 'natural' needs the client of each test example, too, and the data have those of "
            "training examples alone (test_clients is None); leave test_split out."
        )
    lists, test = _divide(merged, scheme, clients, seed, long_tail)
    if test is not None:
        raise ValueError(f"{own}, {scheme.spec!r}; take another, or leave test_split out.")
    names = _client_names(merged, lists) if scheme.function is natural else ()
    dataset, train_index, test_index = client_test_split.split_merged(dataset, lists, seed)
    return _build(dataset, train_index, test_index, names)


def _client_names(dataset: Dataset, train_index: Sequence[np.ndarray]) -> tuple[str, ...]:
    """Returns the names of natural clients; empty if they are their numbers from 0."""
    assert dataset.train_clients is not None
    lists = RaggedIndex.from_lists(train_index)
    ids = np.asarray(dataset.train_clients)[lists.rows[lists.start]]
    if dataset.client_names:
        return tuple(dataset.client_names[i] for i in ids)
    return () if np.array_equal(ids, np.arange(len(ids))) else tuple(map(str, ids.tolist()))


def from_index(
    dataset: Dataset,
    train_index: Iterable[Any] | Mapping[Any, Any],
    test_index: Iterable[Any] | Mapping[Any, Any] | None = None,
    *,
    seed: int = 0,
) -> FederatedData:
    """Divides a data set by index lists.

    >>> import numpy as np
    >>> from fedjax_core.data import sources
    >>> images = np.zeros((6, 8, 8, 1), np.uint8)
    >>> dataset = sources.from_arrays(images, [0, 1, 2, 0, 1, 2], images[:2], [0, 1], class_names=("cat", "dog", "owl"))
    >>> data = from_index(dataset, [[0, 1, 2], [3, 4, 5]], [[0], [1]])
    >>> data.label_table.tolist()
    [[1, 1, 1], [1, 1, 1]]

    Args:
      dataset: what the lists index.
      train_index: N lists of example indices into `dataset.train`; lists may overlap. Or a mapping
        of client names to lists, such as pandas' `frame.groupby("user").indices`. Millions of them
        are quickest as `RaggedIndex`.
      test_index: N lists into `dataset.test`, or, with a mapping of `train_index`, one of the same names,
        of which those without test examples may be missing; None: divided in proportion to the training examples
        (`federate`).
      seed: data seed of that division.

    Raises:
      ValueError: lists that are not integers, out of range, or not equally many for training and
        testing; or two clients of one name.
    """
    _check_dataset(dataset)
    names: tuple[str, ...] = ()
    if isinstance(train_index, Mapping):
        if isinstance(test_index, Mapping):
            if unknown := [name for name in test_index if name not in train_index]:
                raise ValueError(f"test_index has the client {unknown[0]!r}: must be one of those of train_index.")
            test_index = [test_index.get(name, ()) for name in train_index]
        names = () if list(train_index) == list(range(len(train_index))) else check_distinct("train_index", [*train_index])
        train_index = train_index.values()
    elif isinstance(test_index, Mapping):
        raise ValueError(
            "test_index is a mapping of client names, and train_index lists without names: give both as lists or mappings."
        )
    train = _check_lists("train_index", train_index, len(dataset.train.y))
    if not len(train):
        raise ValueError("train_index has no lists: must have one per client.")
    if test_index is None:
        test = client_test_split.split_proportionally(dataset, train, seed)
    else:
        test = _check_lists("test_index", test_index, len(dataset.test.y))
    if len(test) != len(train):
        raise ValueError(f"train_index has {len(train)} lists and test_index {len(test)}: must have one per client each.")
    return _build(dataset, train, test, names)


def replace_index(
    data: FederatedData,
    train_index: Sequence[np.ndarray],
    test_index: Sequence[np.ndarray],
    validation_index: Sequence[np.ndarray],
    unseen: UnseenClients | None = None,
    client_names: tuple[str, ...] | None = None,
) -> FederatedData:
    """Returns the same data with other index lists; unseen clients and names stay unless given."""
    dataset = Dataset(data.name, data.train, data.test, data.class_names)
    names = data.client_names if client_names is None else client_names
    divided = _build(dataset, train_index, test_index, names, validation_index, unseen or data.unseen)
    return dataclasses.replace(divided, x_offset=data.x_offset, y_offset=data.y_offset)


def center_features(data: FederatedData) -> FederatedData:
    """Returns the same data with float64 inputs and targets centred, as float32.

    Of a channel far from 0 its median is subtracted (`x_offset`, `y_offset`): seconds since 1970
    would lose their digits in the cast, as float32 has one number in 128 there.
    """
    parts: dict[str, Any] = {"x": (data.train.x, data.test.x), "y": (data.train.y, data.test.y)}
    changed = {}
    for name, (train, test) in parts.items():
        if getattr(train, "dtype", None) != np.float64 or (offset := find_offset(train)) is None:
            continue
        parts[name] = tuple((part - offset).astype(np.float32) for part in (train, test))
        changed[f"{name}_offset"] = offset
        far = np.flatnonzero(offset)
        others = f" and {len(far) - 1} more channels" if len(far) > 1 else ""
        log.warning(
            "%s: %s[..., %d]%s is centred at %.10g, where float32 would lose its digits; that number is subtracted (%s_offset)",
            *(data.name, name, far[0], others, offset[far[0]], name),
        )
    if not changed:
        return data
    train, test = (Examples(*columns) for columns in zip(parts["x"], parts["y"], strict=True))
    return dataclasses.replace(data, train=train, test=test, **changed)


def pool_clients(data: FederatedData) -> FederatedData:
    """Returns the same data with one client that has all clients' training, validation and test examples.

    Training examples are in increasing order, each once: where a partition uses every example, the
    result does not depend on it. A test example counts as often as clients are tested on it, or once
    where all are tested on the same.
    """
    tested = {index.tobytes(): index for index in map(np.asarray, data.test_index)}
    test = list(tested.values()) if len(tested) == 1 else list(data.test_index)
    own_test = np.sort(RaggedIndex.from_lists(test).concatenate()).astype(np.int32)
    names = ("all clients",) if data.client_names else ()
    return replace_index(data, [_union(data.train_index)], [own_test], [_union(data.validation_index)], client_names=names)


def format_summary(data: FederatedData, max_clients: int = 20, max_classes: int = 12) -> str:
    """Returns the label table as a string, cut to the first clients and classes.

    Of more than `READABLE` clients it is what the table adds up to.
    """
    kind = targets_of(data.train.y)
    sizes, tests = (RaggedIndex.from_lists(index).size for index in (data.train_index, data.test_index))
    held = (data.label_table > 0).sum(1)
    rows, columns = min(data.clients, max_clients), min(len(data.columns), max_classes)
    titles = [escape_unprintable(name)[:8] for name in data.columns[:columns]]
    names = [escape_unprintable(name)[:LONGEST_NAME] for name in data.client_names[:rows]] or [str(i) for i in range(rows)]
    across = max(6, *map(len, names))
    widths = [max(len(title), len(str(data.label_table[:, c].max()))) for c, title in enumerate(titles)]
    more = f" ... {len(data.columns) - columns} more" if columns < len(data.columns) else ""
    each = f"; {kind} per client: {held.min()} to {held.max()}" if len(data.columns) > 1 else ""

    def line(client, size, test, cells):
        counts = " ".join(str(cell).rjust(width) for cell, width in zip(cells, widths, strict=True))
        return f"{client:>{across}} {size:>7} {test:>6} | {counts}"

    lines = [
        f"{escape_unprintable(data.name)}: {len(data.train.y)} training and {len(data.test.y)} test examples, "
        f"{data.classes} {kind}, "
        f"{data.clients} clients, partition {data.partition_hash[:12]}",
        f"training examples per client: smallest {sizes.min()}, median {np.median(sizes):g}, largest {sizes.max()}{each}",
    ]
    if data.clients > READABLE:
        deciles = ", ".join(f"{size:g}" for size in np.quantile(sizes, np.arange(1, 10) / 10).round())
        lines.append(f"deciles of training examples: {deciles}")
        if len(data.columns) > 1:
            counts = ", ".join(f"{name} {number}" for name, number in zip(titles, data.label_table.sum(0)[:columns], strict=True))
            lines.append(f"training examples of each {'class' if kind == 'classes' else 'label'}: {counts}{more}")
    else:
        lines.append(line("client", "train", "test", titles) + more)
        lines += [line(names[i], sizes[i], tests[i], data.label_table[i, :columns]) for i in range(rows)]
        if rows < data.clients:
            lines.append(f"... {data.clients - rows} more clients")
    if data.unseen is not None:
        whose = [escape_unprintable(name)[:LONGEST_NAME] for name in data.unseen.names] or list(map(str, data.unseen.ids))
        known = ", ".join(whose[:max_clients]) + (", ..." if len(whose) > max_clients else "")
        both = [RaggedIndex.from_lists(index).total for index in (data.unseen.train_index, data.unseen.test_index)]
        who = f"{len(data.unseen.ids)} more clients (of the partition {known})"
        lines.append(f"unseen: {who}, {both[0]} training and {both[1]} test examples")
    return "\n".join(lines)


def _check_dataset(dataset: Dataset) -> None:
    """Checks a `Dataset`, which users may make by hand: inputs, targets and names must agree."""
    classes = len(dataset.class_names)
    for part, examples in (("train", dataset.train), ("test", dataset.test)):
        y, rows = np.asarray(examples.y), {len(leaf) for leaf in jax.tree.leaves(examples.x)}
        try:
            kind = targets_of(y)
        except TypeError:
            kind = None
        if kind is None or rows != {len(y)}:
            lengths = " and ".join(map(str, sorted(rows)))
            wanted = "must be one integer per example, or other targets of `from_arrays(targets=...)`"
            raise ValueError(f"{part}: labels {y.dtype} {y.shape} for {lengths} examples: {wanted}.")
        if kind in ("labels", "numbers"):
            if y.shape[1] != classes:
                raise ValueError(f"{part}: {kind} {y.dtype} {y.shape} with {classes} names: must be equally many for each example.")
        elif len(y) and not (0 if kind == "classes" else -1) <= y.min() <= y.max() < classes:
            raise ValueError(f"{part}: labels from {y.min()} to {y.max()}: must lie in [0, {classes}), as there are names.")


def _resolve_scheme(spec: str | Mapping[str, Any] | registry.ResolvedSpec | Callable) -> registry.ResolvedSpec:
    if isinstance(spec, registry.ResolvedSpec):
        return spec
    if callable(spec):
        name = getattr(spec, "__name__", "partition")
        return registry.ResolvedSpec("partition", name, name, {}, spec, "given in Python")
    options: dict[str, Any] = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    if "name" not in options:
        raise ValueError(f"partition {options}: needs a name, such as {{'name': 'dirichlet', 'alpha': 0.5}}.")
    name = options.pop("name")
    return registry.resolve_spec("partition", name, partition.SCHEMES, given=partition.GIVEN, options=options, field="partition")


def _divide(dataset: Dataset, scheme: registry.ResolvedSpec, clients: int | None, seed: int, long_tail: float | None):
    """Returns the partition's index lists into the whole training set."""
    takes = registry.read_parameters(scheme.function)[0]
    if scheme.name not in partition.WITHOUT_CLASSES and {"labels", "test_labels"} & set(takes):
        require_classes(
            f"partition {scheme.name!r}", dataset.train.y, f"one of {', '.join(partition.WITHOUT_CLASSES)} divides any targets"
        )
    columns = {"labels": stratify(dataset.train.y), "domains": dataset.train_domains, "ids": dataset.train_clients}
    kept = None
    if long_tail is not None:
        require_classes(f"long_tail={long_tail}", dataset.train.y, "leave it out")
        try:
            kept = partition.long_tail(dataset.train.y, seed, rho=long_tail)
        except ValueError as error:
            raise ValueError(f"long_tail={long_tail}: {error}") from error
        columns = {key: None if values is None else values[kept] for key, values in columns.items()}
    columns |= {"test_labels": stratify(dataset.test.y), "test_domains": dataset.test_domains, "test_ids": dataset.test_clients}
    train, test = partition.divide(scheme, columns, clients, seed)
    if kept is None:
        return train, test
    train = RaggedIndex.from_lists(train)
    return RaggedIndex(kept[train.rows], train.start, train.size), test


def _check_lists(what: str, lists: Iterable[Any], limit: int) -> Sequence[np.ndarray]:
    """Returns index lists, checked and sorted."""
    if not isinstance(lists, RaggedIndex):
        lists = list(lists)
        if len(lists) and np.ndim(lists[0]) == 0:
            raise ValueError(f"{what} is one list of {len(lists)} numbers: must be a list of index lists, one per client.")
        return [check_index(f"{what}[{i}]", rows, limit) for i, rows in enumerate(lists)]
    once, back = lists.unique()
    rows = once.concatenate()
    if len(rows) and not 0 <= rows.min() <= rows.max() < limit:
        raise ValueError(f"{what} has example indices from {rows.min()} to {rows.max()}: must lie in [0, {limit}).")
    ascending, ends = np.diff(rows) >= 0, np.cumsum(once.size)
    ascending[ends[(ends > 0) & (ends < len(rows))] - 1] = True  # from one list to the next
    return lists if ascending.all() else RaggedIndex.split(rows, once.size).select(back)


def _union(index: Sequence[np.ndarray]) -> np.ndarray:
    return np.unique(RaggedIndex.from_lists(index).concatenate()).astype(np.int32)


def _hash(*parts: Sequence[np.ndarray]) -> str:
    """Returns the sha256 of all lists, each with its length in front; the same on every machine."""
    digest = hashlib.sha256()
    for index in map(RaggedIndex.from_lists, parts):
        digest.update(np.concatenate([[len(index)], index.size]).astype("<i8").tobytes())
        if index.total <= len(index.rows):
            digest.update(np.ascontiguousarray(index.concatenate(), "<i4").data)
        else:  # shared lists are not written out for everybody at once
            for block in index.blocks():
                digest.update(np.ascontiguousarray(index.concatenate(block), "<i4").data)
    return digest.hexdigest()


def _build(
    dataset: Dataset,
    train_index,
    test_index,
    client_names: tuple[str, ...],
    validation_index=None,
    unseen: UnseenClients | None = None,
) -> FederatedData:
    if validation_index is None:
        validation_index = RaggedIndex.repeat(np.zeros(0, np.int32), len(train_index))
    train_index, test_index, validation_index = map(RaggedIndex.from_lists, (train_index, test_index, validation_index))
    classes = len(dataset.class_names)
    beside = () if unseen is None else ([unseen.ids], unseen.train_index, unseen.test_index)
    return FederatedData(
        name=dataset.name,
        train=dataset.train,
        test=dataset.test,
        class_names=dataset.class_names,
        train_index=train_index,
        test_index=test_index,
        validation_index=validation_index,
        partition_hash=_hash(train_index, test_index, validation_index, *beside),
        label_table=label_table(dataset.train.y, train_index, classes),
        test_label_table=label_table(dataset.test.y, test_index, classes),
        unseen=unseen,
        client_names=client_names,
    )
