"""Where data come from: one small reader per format, all of them ending in `from_arrays`, which checks.

`load(name)` takes
  digits                         scikit-learn's 8x8 digits: embedded, offline
  cifar10, cifar100              the published binary archives
  fc100                          CIFAR-100 for few-shot learning, classes divided by superclass
  mnist, emnist                  the published IDX files
  svhn                           the published MATLAB files of cropped digits
  tfds:NAME                      an image classification set that tensorflow_datasets has prepared; TensorFlow is not needed
  npz:FILE                       arrays or encoded images in one file
  folder:DIR                     CLASS/image files
  unseen(of=SOURCE, classes=...) any of these, some of its classes in the test set alone
  unseen_domain(of=SOURCE, domain=...)  any of these that has domains, one of them in the test set alone
  only(of=SOURCE, classes=...)   any of these, some of its classes and no others
  resplit(of=SOURCE)             any of these, tested on a part of its training set
  rotated(of=SOURCE)             any of these, its images turned; a domain for each angle
  blank(shape=..., classes=...)  black images, to count and to time with
Files are looked for in `data_dir`, else in $FEDJAX_DATA, else in ~/fedjax_data. Nothing is downloaded and no pickle is ever
loaded; files of published sets are checked by checksum or by exact size. One source never stands in for another.

A further set is a function that finds its files (`files.find`), turns bytes into arrays and hands them to `from_arrays`, and a
line in `READERS`. It takes those of these arguments that it names, and options of its own:
  data_dir: Path                 where the files lie
  load: str -> Dataset           reads another set by its spec, such as "digits" or "npz(path='mine.npz')"
What follows the colon of a name in `PREFIXED` is the option `path`.
"""

import os
from collections.abc import Callable
from pathlib import Path

from fedjax_core import by_name
from fedjax_core.data.sources.archive import npz
from fedjax_core.data.sources.cifar import cifar10, cifar100
from fedjax_core.data.sources.dataset import Dataset, from_arrays
from fedjax_core.data.sources.derived import fc100, only, resplit, rotated, unseen, unseen_domain
from fedjax_core.data.sources.files import DATA_VARIABLE
from fedjax_core.data.sources.idx import emnist, mnist
from fedjax_core.data.sources.images import folder
from fedjax_core.data.sources.made import blank, digits
from fedjax_core.data.sources.matlab import svhn
from fedjax_core.data.sources.prepared import tfds
from fedjax_core.data.sources.table import from_table

__all__ = ["DATA_VARIABLE", "GIVEN", "PREFIXED", "READERS", "Dataset", "from_arrays", "from_table", "load"]

READERS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "fc100": fc100,
    "mnist": mnist,
    "emnist": emnist,
    "svhn": svhn,
    "tfds": tfds,
    "npz": npz,
    "folder": folder,
    "unseen": unseen,
    "unseen_domain": unseen_domain,
    "only": only,
    "resplit": resplit,
    "rotated": rotated,
    "blank": blank,
}
PREFIXED = {"tfds": "NAME", "npz": "FILE", "folder": "DIR"}
GIVEN = ("data_dir", "load")  # arguments of a reader that are no options of its own


def load(name: str, data_dir: str | os.PathLike | None = None, **options) -> Dataset:
    """Loads a data set by name.

    Args:
      name: one of the names above, such as "digits", "tfds:cifar10" or "npz:pacs64.npz"; what follows the colon can also be
        the option `path`.
      data_dir: where the files lie; None: $FEDJAX_DATA, else ~/fedjax_data.
      **options: the reader's own keyword arguments: those of the function in `READERS` that are not in `GIVEN`.

    Raises:
      ValueError: an unknown name, or files that are damaged or not what they should be.
      FileNotFoundError: the files are not there; the message says which, where to get and where to put them.
      TypeError: an option that the reader does not have.
    """
    kind, colon, rest = name.partition(":")
    if kind not in READERS or (colon and (kind not in PREFIXED or not rest)):
        names = {reader: f"{reader}:{PREFIXED[reader]}" if reader in PREFIXED else reader for reader in READERS}
        hint = f" Did you mean {names[kind]!r}?" if kind in names else by_name.did_you_mean(kind, names)
        raise ValueError(f"unknown data set {name!r}; allowed: {', '.join(names.values())}.{hint}")
    if colon and "path" in options:
        raise ValueError(f"data set {name!r} has a path of its own beside path={options['path']!r}: give one of them.")
    root = Path(data_dir or os.environ.get(DATA_VARIABLE) or Path.home() / "fedjax_data").expanduser()

    def another(spec: str) -> Dataset:
        of, its_options = by_name.parse(spec)
        return load(of, root, **its_options)

    return by_name.call(
        f"data set {name!r}", READERS[kind], {"data_dir": root, "load": another}, options | ({"path": rest} if colon else {})
    )
