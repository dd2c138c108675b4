"""Readers of data sets, one per format; all of them end in `from_arrays`, which checks.

`load(name)` takes
  digits                         scikit-learn's 8x8 digits: embedded, offline
  diabetes                       scikit-learn's patients, with a number to predict: embedded, offline
  multilabel                     examples with several labels each, drawn by scikit-learn
  text(path=FILE)                next characters of a text; of Python's own manual without a file
  cifar10, cifar100              the published binary archives
  fc100                          CIFAR-100 for few-shot learning, classes divided by superclass
  mnist, emnist                  the published IDX files
  femnist, shakespeare, stackoverflow  TensorFlow Federated's files, with their natural clients
  flair, landmarks, inaturalist  photographs by user: published lists, and folders of images
  svhn                           the published MATLAB files of cropped digits
  tfds:NAME                      an image classification set that tensorflow_datasets has prepared; TensorFlow is not needed
  npz:FILE                       arrays or encoded images in one file
  npy:DIR                        arrays in a file each, which are memory-mapped: for data that are larger than memory
  folder:DIR                     CLASS/image files
  pfllib:DIR                     the files of each client that PFLlib or HtFLlib has written
  csv:FILE                       delimited texts, whose first line names the columns, one of which may name the client
  jsonl:FILE                     JSON objects, one a line, with a column that names the client
  parquet:FILE, array_record:FILE  the same of tables, and of TensorFlow's records
  unseen(of=SOURCE, classes=...)  any of these, some of its classes only in the test set
  unseen_domain(of=SOURCE, domain=...)  any of these that has domains, one of them only in the test set
  only(of=SOURCE, classes=...)   any of these, some of its classes and no others
  resplit(of=SOURCE)             any of these, tested on a part of its training set
  rotated(of=SOURCE)             any of these, its images turned; a domain for each angle
  blank(shape=..., classes=...)  black images, to count and to time with
Files are read from `data_dir`, else from $FEDJAX_DATA, else in ~/fedjax_data. Nothing is downloaded
and no pickle is ever loaded (of PFLlib's, the arrays alone); files of published sets are checked by checksum or by exact size, but
for those of TensorFlow Federated, FLAIR, Landmarks and iNaturalist, whose form alone is. One source
never stands in for another.

A further set is a function that finds its files (`file_checks.find_file`), turns bytes into arrays
and hands them to `from_arrays`, and a line in `READERS`. A set from outside is the same function in
a module or file of its own, which a config names by its place, `package.module:name(option=...)` or
`path/to/file.py:name(option=...)`, or an entry point of the group `fedjax_core.sources`. It takes
those of these arguments that it names, and options of its own, whose annotations say which values
they may have:
  data_dir: Path                 where the files are
  load: str -> Dataset           reads another set by its spec, such as "digits" or "npz(path='mine.npz')"
  training_examples: int | None  how many training examples `data.examples` will keep, for one that
                                 can leave out the others unread (`file_checks.choose_stratified`)
It returns a `Dataset` (from `from_arrays` or `from_table`), or the arguments of `from_arrays`: a
mapping of them by name, or a tuple (train_x, train_y, test_x, test_y) or (train_x, train_y, test_x,
test_y, class_names). Whatever it returns is checked. What follows the colon of a name in `PREFIXED`
is the option `path`.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import targets_of
from fedjax_core.data.sources.char_text import text
from fedjax_core.data.sources.dataset import Dataset, from_arrays
from fedjax_core.data.sources.derived import fc100, only, resplit, rotated, unseen, unseen_domain
from fedjax_core.data.sources.file_checks import DATA_VARIABLE
from fedjax_core.data.sources.image_folder import folder
from fedjax_core.data.sources.numpy_files import npy, npz
from fedjax_core.data.sources.pfllib import pfllib
from fedjax_core.data.sources.published_images import cifar10, cifar100, emnist, mnist, svhn
from fedjax_core.data.sources.record_files import array_record, csv, jsonl, parquet
from fedjax_core.data.sources.tabular import from_table
from fedjax_core.data.sources.tfds_sets import tfds
from fedjax_core.data.sources.tff import femnist, shakespeare, stackoverflow
from fedjax_core.data.sources.toy import blank, diabetes, digits, multilabel
from fedjax_core.data.sources.user_photos import flair, inaturalist, landmarks

__all__ = ["DATA_VARIABLE", "GIVEN", "PREFIXED", "READERS", "Dataset", "find_reader", "from_arrays", "from_table", "load"]

READERS: dict[str, Callable[..., Dataset]] = {
    reader.__name__: reader
    for reader in (
        *(digits, cifar10, cifar100, fc100, mnist, emnist, femnist, shakespeare, stackoverflow, flair, landmarks, inaturalist),
        *(svhn, tfds, npz, npy, folder, pfllib, csv, jsonl, parquet, array_record),
        *(unseen, unseen_domain, only, resplit, rotated, blank, diabetes, multilabel, text),
    )
}
PREFIXED = dict.fromkeys(("npz", "csv", "jsonl", "parquet", "array_record"), "FILE") | {
    "tfds": "NAME",
    "npy": "DIR",
    "folder": "DIR",
    "pfllib": "DIR",
}
GIVEN = ("data_dir", "load", "training_examples")  # arguments of a reader that are no options of its own


def find_reader(spec: str, options: Mapping[str, Any] | None = None, *, field: str = "") -> registry.ResolvedSpec:
    """Finds the reader that a spec names and checks its options; reads no data.

    Args:
      spec: one of the names above, with options if it has any: "digits", "tfds:cifar10",
        "npz(path='pacs64.npz', size=32)", or one from outside.
      options: in addition to the spec's own.
      field: of the config, for messages about a spec that cannot be read.

    Raises:
      ValueError: an unknown name, or an option has a value that it may not have.
      TypeError: an option that the reader does not have, or one that is missing.
    """
    kind, colon, rest = registry.parse_spec(spec, field)[0].partition(":")
    path = {"path": rest} if colon and kind in PREFIXED else {}
    if path and not rest:
        raise ValueError(f"data set {spec!r} has nothing after the colon: must be {kind}:{PREFIXED[kind]}.")
    if path and "path" in (options or {}):
        raise ValueError(f"data set {spec!r} is also given path={dict(options or {})['path']!r}: give one of them.")
    return registry.resolve_spec(
        "data set", spec, READERS, given=GIVEN, prefixes=PREFIXED, field=field, options=path | dict(options or {})
    )


def load(name: str, data_dir: str | os.PathLike | None = None, **options: Any) -> Dataset:
    """Loads a data set by name.

    Args:
      name: one of the names above, or one from outside; with options in brackets, or without.
      data_dir: the folder of the files; None: $FEDJAX_DATA, else ~/fedjax_data.
      **options: the reader's own keyword arguments.

    Raises:
      ValueError: an unknown name, a value that an option may not have, or files that are damaged or
        not what they should be.
      FileNotFoundError: files are missing; the message says which, where to get and where to put
        them.
      TypeError: an option that the reader does not have; or a reader from outside that returns
        something else than a data set.
    """
    return read_dataset(find_reader(name, options), data_dir)


def read_dataset(
    reader: registry.ResolvedSpec, data_dir: str | os.PathLike | None = None, training_examples: int | None = None
) -> Dataset:
    """Loads a data set as `load` does, with a reader from `find_reader`.

    Args:
      reader: the reader, with its options.
      data_dir: as `load` has it.
      training_examples: how many `subsample` will keep, so that a reader may leave out the others;
        None: all.
    """
    root = Path(data_dir or os.environ.get(DATA_VARIABLE) or Path.home() / "fedjax_data").expanduser()
    result = reader(data_dir=root, load=lambda spec: load(spec, root), training_examples=training_examples)
    return result if reader.origin == registry.BUILT_IN else _check_result(reader.name, result)


def _check_result(name: str, result: Any) -> Dataset:
    """Validates what a reader from outside returned."""
    given: dict[str, Any]
    if isinstance(result, Dataset):
        (train_x, train_y), (test_x, test_y), columns = result.train, result.test, result._asdict()
        given = {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y, **columns}
        given = {key: value for key, value in given.items() if key not in ("train", "test")}
    elif isinstance(result, tuple) and len(result) in (4, 5):
        given = dict(zip(("train_x", "train_y", "test_x", "test_y", "class_names"), result, strict=False))
    elif isinstance(result, Mapping):
        given = dict(result)
    else:
        wanted = "a Dataset, a mapping of the arguments of from_arrays, or (train_x, train_y, test_x, test_y)"
        raise TypeError(f"data set {name!r} returned {type(result).__name__}: must be {wanted}.")
    registry.check_call(f"what data set {name!r} returned", from_arrays, (), given)
    try:
        if isinstance(result, Dataset):
            given["targets"] = targets_of(np.asarray(result.train.y))
        return from_arrays(**{"name": name.rpartition(":")[2]} | given)
    except (ValueError, TypeError) as error:
        raise ValueError(f"data set {name!r}: {error}") from error
