"""A labelled data set on the host, and the checks that every source ends in."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import TARGETS, Examples
from fedjax_core.data import input_range
from fedjax_core.data.row_readers import locate_in_file

CHANNELS = (1, 3, 4)  # of images
UNNAMED = 1000  # classes that there may be without names, however many of them are missing
EXACT_INTEGER = 2**24  # up to which float32 has every integer
BLOCK = 2**24  # numbers that are looked at at once
log = logging.getLogger("fedjax_core")


class Dataset(NamedTuple):
    """A labelled set on the host, with its official test set.

    Attributes:
      name: what tables call it.
      train: Examples(x, y), where y is [n] int32 in [0, K), or other targets of
        `algorithm.TARGETS`, and x is [n, H, W, C] uint8 in 0..255 (images), [n, ...] float32, or
        [n, ...] int32 (numbers, or token ids for a network that embeds). It is float64 where
        float32 would lose digits of a column far from 0; its median is then taken off before a run
        casts it (`FederatedData.x_offset`). Numbers to predict likewise.
      test: Examples of the same kind.
      class_names: K names: of the classes, labels, numbers or tokens.
      train_domains, test_domains: [n] int32 in [0, len(domain_names)), or None.
      domain_names: empty if there are no domains.
      train_clients, test_clients: [n] int32, the natural client of each example (a writer, a user),
        or None.
      client_names: of the natural clients 0 ...; empty: they are called by their numbers.
    """

    name: str
    train: Examples
    test: Examples
    class_names: tuple[str, ...]
    train_domains: np.ndarray | None = None
    test_domains: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()
    train_clients: np.ndarray | None = None
    test_clients: np.ndarray | None = None
    client_names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        x, classes = self.train.x, len(self.class_names)
        counts = f"{len(x)} training and {len(self.test.x)} test examples"
        return f"Dataset({self.name!r}: {counts} {x.shape[1:]} {x.dtype}, {classes} outputs)"

    def select(self, train: Any = slice(None), test: Any = slice(None)) -> "Dataset":
        """Returns some of the training and test examples, given by masks or indices."""
        parts = (("train", self.train, train), ("test", self.test, test))
        changes: dict[str, Any] = {part: Examples(x[index], y[index]) for part, (x, y), index in parts}
        for part, _, index in parts:
            for column in (f"{part}_domains", f"{part}_clients"):
                values = getattr(self, column)
                changes[column] = None if values is None else values[index]
        return self._replace(**changes)


def from_arrays(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    class_names: Sequence[str] | None = None,
    *,
    targets: str = "classes",
    name: str = "arrays",
    train_domains: Any = None,
    test_domains: Any = None,
    domain_names: Sequence[str] = (),
    train_clients: Any = None,
    test_clients: Any = None,
    client_names: Sequence[str] = (),
) -> Dataset:
    """Makes a data set from arrays, and checks them.

    >>> import numpy as np
    >>> images = np.zeros((6, 8, 8, 1), np.uint8)
    >>> data = from_arrays(images, [0, 1, 2, 0, 1, 2], images[:2], [0, 1], class_names=("cat", "dog", "owl"))
    >>> data.train.x.shape, data.train.y.tolist(), data.class_names
    ((6, 8, 8, 1), [0, 1, 2, 0, 1, 2], ('cat', 'dog', 'owl'))

    >>> many = from_arrays(images, np.eye(6, 4), images[:2], np.eye(2, 4), ("sun", "sea", "dog", "cat"), targets="labels")
    >>> many.train.y.shape, many.train.y.dtype.name
    ((6, 4), 'bool')

    Args:
      train_x: [n, ...], one array of numbers. Images are [n, H, W, C], uint8 or floats; features
        [n, D], series [n, T, D], volumes and others have any shape. Floats become float32, truth
        values 0.0 and 1.0. uint8 is 0..255, which networks divide by 255. All other integers are
        numbers, normalised as the same floats would be, except where a network asks for token ids
        [n, T] (`nn/flax_adapter.py`) or targets are "tokens": it gets them as they are.
      train_y: the targets, see `targets`; None of "tokens": those of x shifted by one place.
      test_x, test_y: the same of the test set.
      class_names: K names; None: "0" ... up to the largest label, with a warning if one of these has
        no example.
      targets: what `train_y` and `test_y` are.
        "classes": [n] integers in [0, K).
        "labels": [n, K] truth values, or 0 and 1: which of K labels an example has, none or
          several.
        "numbers": [n] or [n, D] real numbers.
        "tokens": [n, T] integers in [0, K), one for each place of x [n, T], negative where none
          counts. Without them x is [n, T + 1] token ids, negative at the end of shorter texts, of
          which each position predicts the next. K counts the ids of x, too, unless targets and
          `class_names` are given, such as the tags of words.
      name: what tables call it.
      train_domains: [n] integers, where examples come from several domains.
      test_domains: [n_test]; given if `train_domains` is.
      domain_names: their names; empty: "0" ... up to the largest.
      train_clients: [n] integers >= 0, the client that each example belongs to.
      test_clients: [n_test], or None.
      client_names: what tables of results call the natural clients 0 ...; empty: by their numbers.

    Raises:
      ValueError: a wrong shape, type or range, or images of training and test set in different
        ranges; the message names the array, the value and what is allowed.
    """
    registry.check_choice("targets", targets, TARGETS)
    parts = {"train": (train_x, train_y), "test": (test_x, test_y)}
    if targets == "tokens" and train_y is None and test_y is None:
        parts = {part: shift_tokens(f"{part}_x", x) for part, (x, _) in parts.items()}
    read = {"classes": _check_integers, "labels": _check_truths, "numbers": _check_numbers, "tokens": _check_tokens}[targets]
    x = _unify_types({f"{part}_x": _check_inputs(f"{part}_x", x) for part, (x, _) in parts.items()}, targets)
    y = {f"{part}_y": read(f"{part}_y", y) for part, (_, y) in parts.items()}
    y = _unify_types(y, targets) if targets == "numbers" else y
    train, test = (Examples(x[f"{part}_x"], y[f"{part}_y"]) for part in parts)
    _check_examples(train, test, targets)
    _check_channel_axis(train.x)
    if targets != "tokens":
        check_scales("train_x", train.x, "test_x", test.x)
    names_ids = targets == "tokens" and (class_names is None or train_y is None)
    class_names = _target_names(targets, class_names, train, test, names_ids)
    domains = _check_columns({"train_domains": train_domains, "test_domains": test_domains}, train, test)
    clients = _check_columns({"train_clients": train_clients, "test_clients": test_clients}, train, test)
    if (domains["train_domains"] is None) != (domains["test_domains"] is None):
        raise ValueError("train_domains and test_domains: give both or neither.")
    if clients["train_clients"] is None and clients["test_clients"] is not None:
        raise ValueError("test_clients without train_clients: give both, or train_clients alone.")
    domain_names = () if domains["train_domains"] is None else _check_names("domain_names", domain_names or None, domains)
    if len(client_names) and clients["train_clients"] is None:
        raise ValueError(f"client_names has {len(client_names)} names without train_clients: give both.")
    present = {what: values for what, values in clients.items() if values is not None}
    client_names = _check_names("client_names", client_names, present) if len(client_names) else ()
    return Dataset(name, train, test, class_names, domain_names=domain_names, client_names=client_names, **domains, **clients)


def _check_examples(train: Examples, test: Examples, targets: str) -> None:
    """Raises ValueError unless inputs and targets are equally many, and alike in training and test set."""
    for what, train_array, test_array in (("x", train.x, test.x), ("y", train.y, test.y)):
        if train_array.shape[1:] != test_array.shape[1:] or train_array.dtype != test_array.dtype:
            shapes = " and ".join(f"{array.shape} {array.dtype}" for array in (train_array, test_array))
            types = {train_array.dtype, test_array.dtype}
            hint = "; uint8 are pixels, 0 ... 255" if len(types) > 1 and np.dtype(np.uint8) in types else ""
            raise ValueError(f"train_{what} and test_{what} are {shapes}: examples must agree in shape and type{hint}.")
    for part, (x, y) in (("train", train), ("test", test)):
        if len(x) != len(y) or not len(y):
            raise ValueError(f"{part}_x has {len(x)} examples and {part}_y {len(y)}: must be equally many, at least 1.")
        if targets == "tokens" and x.shape[:2] != y.shape:
            raise ValueError(f"{part}_x is {x.shape} and {part}_y {y.shape}: there must be a target for each place.")


def _check_columns(columns: Mapping[str, Any], train: Examples, test: Examples) -> dict[str, Any]:
    """Returns columns of integers as arrays, None where there is none; a name begins with its part, "train" or "test"."""
    checked = dict(columns)
    for what, values in columns.items():
        if values is None:
            continue
        checked[what] = integers = _check_integers(what, values)
        rows = len(train.y if what.startswith("train") else test.y)
        if len(integers) != rows:
            raise ValueError(f"{what} has {len(integers)} entries for {rows} examples: must be one per example.")
    return checked


def shift_tokens(what: str, tokens: Any) -> tuple[np.ndarray, np.ndarray]:
    """Splits token ids [n, T + 1] into inputs and targets [n, T], the next tokens.

    Ids are negative at the end of shorter texts; there targets are -1 and inputs 0.
    """
    tokens = _to_array(what, tokens)
    if tokens.ndim != 2 or tokens.shape[1] < 2 or not np.issubdtype(tokens.dtype, np.signedinteger):
        raise ValueError(f"{what} has shape {tokens.shape} and type {tokens.dtype}: must be token ids [n, T + 1], T at least 1.")
    return np.maximum(tokens[:, :-1], 0), np.where(tokens[:, :-1] >= 0, np.maximum(tokens[:, 1:], -1), -1)


def add_channel_axis(images: np.ndarray) -> np.ndarray:
    """Adds a channel axis to images [n, H, W]; returns other arrays as they are."""
    return images[..., None] if images.ndim == 3 else images


def _to_array(what: str, values: Any) -> np.ndarray:
    if np.ma.is_masked(values):
        raise ValueError(f"{what} is a masked array with masked entries: fill them first, such as with x.filled(0).")
    if hasattr(values, "toarray"):
        raise ValueError(f"{what} is a sparse matrix: must be an array, such as {what}.toarray().")
    try:
        array = np.asarray(values)
    except ValueError:
        array = None
    if array is None or (array.dtype == object and array.ndim == 1 and len(array) and np.ndim(array[0])):
        if _is_pair(next(iter(values))):
            apart = "np.stack([np.asarray(x) for x, y in data]) and np.array([y for x, y in data])"
            raise ValueError(f"{what} has pairs (x, y) as examples: pass inputs and targets as two arrays, {apart}.")
        raise ValueError(f"{what} has examples of different shapes: must be one array; pad or cut them first.")
    return array


def _is_pair(example: Any) -> bool:
    """Returns whether an example is an input and its target, as in the data sets of torch."""
    try:
        return isinstance(example, tuple) and len(example) == 2 and np.ndim(example[0]) > 0 and np.ndim(example[1]) == 0
    except ValueError:  # a list of lists of different lengths
        return False


def _check_inputs(what: str, values: Any) -> np.ndarray:
    if isinstance(values, Mapping):
        raise ValueError(
            f"{what} is a mapping of {', '.join(map(str, values))}: must be one array; put them side by side on the last axis, "
            "take them apart in the network, and set config.normalise='unit'"
        )
    values = _to_array(what, values)
    if values.ndim < 2 or 0 in values.shape[1:]:
        hint = f"; pass {what}[:, None] for one number per example" if values.ndim == 1 else ""
        raise ValueError(f"{what} has shape {values.shape}: must be [n, ...] with no empty axis{hint}.")
    if np.issubdtype(values.dtype, np.integer):
        return values
    if values.dtype != np.bool_ and not np.issubdtype(values.dtype, np.floating):
        raise ValueError(f"{what} has type {values.dtype}: must be uint8 (0..255), floats or integers.")
    return _check_floats(what, values)


def _check_floats(what: str, values: np.ndarray) -> np.ndarray:
    """Returns finite numbers as float32, or as float64 if they are more precise than that."""
    values = values.astype(np.float64 if values.dtype.itemsize > 4 else np.float32, copy=False)
    largest, step = np.finfo(np.float32).max, max(1, BLOCK // math.prod(values.shape[1:]))
    blocks = (values[start : start + step] for start in range(0, len(values), step))
    if count := sum(int((~(np.abs(block) <= largest)).sum()) for block in blocks):
        raise ValueError(f"{what} has {count} values that are NaN or infinite (as float32): must be finite.")
    return values


def _unify_types(parts: Mapping[str, np.ndarray], targets: str) -> dict[str, np.ndarray]:
    """Returns arrays of the training and then the test set in one of the types of a `Dataset`.

    Pixels (uint8) stay apart from other numbers. Integers must fit token ids, or, in an array that
    stays in its file, float32.
    """
    types = {values.dtype for values in parts.values()}
    if np.dtype(np.uint8) in types:
        return dict(parts)
    if all(np.issubdtype(dtype, np.integer) for dtype in types):
        limit = np.iinfo(np.int32).max if targets == "tokens" else EXACT_INTEGER
        large = {
            name: values
            for name, values in parts.items()
            if values.size and not -limit <= int(values.min()) <= int(values.max()) <= limit
        }
        if not large:
            return {name: values.astype(np.int32, copy=False) for name, values in parts.items()}
        for name, values in large.items():
            value_range = f"{name} has values from {values.min()} to {values.max()}"
            if targets == "tokens":
                raise ValueError(f"{value_range}: token ids must fit 32 bits.")
            if locate_in_file(values):
                raise ValueError(
                    f"{value_range}, and float32 has every integer up to {limit} alone: subtract a number near them, "
                    "and write the file as float32."
                )
    elif targets == "tokens" and len(types) > 1:
        return dict(parts)
    train = next(iter(parts.values()))
    is_precise = any(dtype.itemsize > 4 or np.issubdtype(dtype, np.integer) for dtype in types)
    is_far = is_precise and train.size > 0 and input_range.find_offset(train) is not None
    return {name: values.astype(np.float64 if is_far else np.float32, copy=False) for name, values in parts.items()}


def check_scales(what: str, x: np.ndarray, other_what: str, other: np.ndarray) -> None:
    """Refuses images of which one part is on another scale, and warns of other numbers.

    Raises:
      ValueError: images of different scales, such as [0, 1] and 0 ... 255.
    """
    if x.shape[1:] != other.shape[1:] or input_range.is_alike(ratio := input_range.ratio_of_deviations(x, other)):
        return
    ranges = [f"in [{sample.min():.4g}, {sample.max():.4g}]" for sample in map(input_range.sample_channels, (x, other))]
    line = (
        f"{what} is {ranges[0]} and {other_what} {ranges[1]}, whose deviation is {ratio:.3g} times as large: must be on one scale, "
        "such as pixels all in [0, 1], or all bytes"
    )
    if is_images(x):
        raise ValueError(f"{line}.")
    log.warning("%s", line)


def _check_channel_axis(x: np.ndarray) -> None:
    """Warns of images that look like [n, C, H, W]."""
    if x.ndim == 4 and x.shape[1] in CHANNELS and x.shape[3] not in CHANNELS:
        log.warning("train_x has shape %s, read as [n, H, W, C]; if its channels come first, pass x.transpose(0, 2, 3, 1)", x.shape)


def is_images(x: np.ndarray) -> bool:
    """Returns whether an array is images [n, H, W, C] by its shape."""
    return x.ndim == 4 and x.shape[3] in CHANNELS


def _check_integers(what: str, values: Any) -> np.ndarray:
    values = _to_array(what, values)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        hint = "; other targets are named by targets='labels', 'numbers' or 'tokens'" if what.endswith("_y") else ""
        if values.ndim == 1 and values.dtype.kind in "USO":
            hint = f"; of texts, {_advise_recoding(what)}, and from_table takes them"
        raise ValueError(f"{what} has shape {values.shape} and type {values.dtype}: must be integers of shape [n]{hint}.")
    if len(values) and (values.min() < 0 or values.max() > np.iinfo(np.int32).max):
        limits = f"{what} has values from {values.min()} to {values.max()}: must be >= 0 and fit 32 bits"
        raise ValueError(f"{limits}; of others, {_advise_recoding(what)}, and from_table takes them.")
    return values.astype(np.int32)


def _advise_recoding(what: str) -> str:
    """Returns how values become integers, by one code for the training and the test set."""
    part, column = what.split("_", 1)
    both = what if part not in ("train", "test") else f"np.concatenate([train_{column}, test_{column}])"
    return f"np.unique({both}, return_inverse=True) has the names and the integers"


def _check_truths(what: str, values: Any) -> np.ndarray:
    values = _to_array(what, values)
    if values.ndim != 2 or 0 in values.shape[1:] or values.dtype.kind not in "buif" or not np.isin(values, (0, 1)).all():
        raise ValueError(f"{what} has shape {values.shape} and type {values.dtype}: must be truth values, or 0 and 1, [n, K].")
    return values.astype(bool)


def _check_numbers(what: str, values: Any) -> np.ndarray:
    values = _to_array(what, values)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or 0 in values.shape[1:] or values.dtype.kind not in "uif":
        raise ValueError(f"{what} has shape {values.shape} and type {values.dtype}: must be real numbers, [n] or [n, D].")
    return _check_floats(what, values if values.dtype.kind == "f" else values.astype(np.float64))


def _check_tokens(what: str, values: Any) -> np.ndarray:
    values = _to_array(what, values)
    if values.ndim != 2 or 0 in values.shape[1:] or not np.issubdtype(values.dtype, np.signedinteger):
        wanted = "must be signed integers of shape [n, T]"
        raise ValueError(f"{what} has shape {values.shape} and type {values.dtype}: {wanted}.")
    if len(values) and values.max() > np.iinfo(np.int32).max:
        raise ValueError(f"{what} has values up to {values.max()}: must fit 32 bits.")
    return np.maximum(values, -1).astype(np.int32)


def _target_names(targets: str, names: Sequence[str] | None, train: Examples, test: Examples, names_ids: bool) -> tuple[str, ...]:
    """Returns the names of a network's outputs: classes or tokens, labels, or numbers; `names_ids`: also those of x's token ids."""
    if targets in ("labels", "numbers"):
        width = train.y.shape[1]
        if names is not None and len(names) != width:
            raise ValueError(f"class_names has {len(names)} names, train_y {width} columns: must be equally many.")
        return check_distinct("class_names", range(width) if names is None else names)
    columns = {"train_y": train.y, "test_y": test.y}
    if targets == "tokens":
        columns = {what: np.maximum(values, 0) for what, values in columns.items()}
        if names_ids and np.issubdtype(train.x.dtype, np.signedinteger):  # token ids; uint8 are pixels
            columns |= {"train_x": train.x, "test_x": test.x}
    given, names = names, _check_names("class_names", names, columns)
    if given is None and "train_x" not in columns:
        _warn_of_empty_classes(len(names), np.concatenate([columns["train_y"], columns["test_y"]]))
    if len(names) < 2:
        what = "class: classification" if targets == "classes" else "token: a text"
        raise ValueError(f"{len(names)} {what} needs at least 2; pass class_names if labels are missing.")
    return names


def _warn_of_empty_classes(classes: int, y: np.ndarray) -> None:
    """Warns of classes without an example, which are there since labels do not count from 0."""
    empty = np.setdiff1d(np.arange(classes), y)
    if len(empty):
        begins = f"labels begin at {y.min()}, so that " if y.min() else ""
        better = f"subtract {y.min()}" if len(empty) == y.min() else "make labels count from 0 without gaps"
        what = (
            "%s%d of %d classes, such as %d, have neither training nor test examples: %s, or pass class_names (in a table, texts)"
        )
        log.warning(what, begins, len(empty), classes, empty[0], better)


def _check_names(what: str, names: Sequence[str] | None, columns: dict[str, Any]) -> tuple[str, ...]:
    """Returns the names of the values 0 ... of the columns, checked; by default the numbers."""
    top = {column: int(values.max()) for column, values in columns.items()}
    if names is None:
        column, largest = max(top.items(), key=lambda item: item[1])
        different = len(np.unique(np.concatenate([*columns.values()])))
        if is_code(largest, different):
            raise ValueError(
                f"{column} has the value {largest}, and all columns together {different} different ones: must count from 0 without "
                f"large gaps; {_advise_recoding(column)}; or pass {what}, {largest + 1} of them."
            )
        return tuple(str(i) for i in range(max(top.values()) + 1))
    for column, largest in top.items():
        if largest >= len(names):
            raise ValueError(f"{column} has the value {largest}, {what} has {len(names)} names: must lie in [0, {len(names)}).")
    return check_distinct(what, names)


def is_code(largest: int, different: int) -> bool:
    """Returns whether integers up to `largest`, of which so many differ, are codes, such as years, and do not count from 0."""
    return largest >= max(UNNAMED, 10 * different)


def check_distinct(what: str, names: Sequence[Any]) -> tuple[str, ...]:
    """Returns names as strings; raises ValueError if two are the same."""
    strings = tuple(map(str, names))
    if len({*strings}) < len(strings):
        twice = next(name for i, name in enumerate(strings) if name in strings[:i])
        raise ValueError(f"{what} has {twice!r} more than once: names must differ.")
    return strings
