"""Sets with natural clients, as TensorFlow Federated publishes them, in either of its forms.

  EMNIST by writer   fed_emnist_train.h5, fed_emnist_test.h5      or emnist_all.sqlite.lzma         3,400 clients
  Shakespeare        shakespeare_train.h5, shakespeare_test.h5    or shakespeare.sqlite.lzma          715 clients, the roles
  StackOverflow      stackoverflow_train.h5, stackoverflow_test.h5 or stackoverflow.sqlite.lzma   342,477 clients to train on

HDF5 has a group `examples/CLIENT` with an array for each feature; reading it needs h5py. SQLite has
a table `examples(split_name, client_id, serialized_example_proto)`, a `tf.train.Example` each; it
may be unpacked, which saves time at each start. `dataset_cards.TFF` has them (HDF5 in
fed_emnist.tar.bz2 and the like).
"""

import contextlib
import lzma
import shutil
import sqlite3
import string
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_core.data.sources import vocabulary
from fedjax_core.data.sources.dataset import Dataset, from_arrays, shift_tokens
from fedjax_core.data.sources.dataset_cards import TFF
from fedjax_core.data.sources.file_checks import choose_users, find_file
from fedjax_core.data.sources.published_images import EMNIST_NAMES
from fedjax_core.data.sources.tfds_sets import decode_example
from fedjax_core.option_types import AtLeastOne, Width

CHARACTERS = "".join(sorted(string.ascii_letters + string.digits + "\n\r !\"#$%&'()*,-./:;?@[]_"))  # that Shakespeare has
Clients = Iterator[tuple[str, dict[str, Any]]]  # names and features: arrays, or lists of bytes


class Files(NamedTuple):
    """The files of a set.

    Attributes:
      name: of the set, and of its folder.
      database: the SQLite file, which has both parts; a packed one is unpacked once.
      h5: the HDF5 files, one for each part.
      splits: what the names of the database's splits begin with.
    """

    name: str
    database: str
    h5: str
    splits: str = ""


def femnist(data_dir: Path, users: AtLeastOne | None = None) -> Dataset:
    """Reads EMNIST's 62 classes, whose natural clients are the writers; ink is light, as in EMNIST.

    The files may be in the folder `femnist`.

    Args:
      users: so many writers, always the same ones; None: all 3,400.
    """
    parts: dict[str, list] = {name: [] for name in ("train_x", "train_y", "train_clients", "test_x", "test_y", "test_clients")}
    known: dict[str, int] = {}
    with open_parts(Files("femnist", "emnist_all", "fed_emnist", splits="all_"), data_dir) as readers:
        for part, read in readers:
            for name, features in read(("pixels", "label"), users, only=known):
                x = np.asarray(features["pixels"], np.float32).reshape(-1, 28, 28, 1)
                parts[f"{part}_x"].append(np.round(255 * (1 - x)).astype(np.uint8))
                parts[f"{part}_y"].append(np.asarray(features["label"]).reshape(-1))
                parts[f"{part}_clients"].append(np.full(len(x), known.setdefault(name, len(known))))
    whole: dict[str, Any] = {name: np.concatenate(blocks) for name, blocks in parts.items()}
    return from_arrays(**whole, class_names=EMNIST_NAMES["byclass"], name="femnist", client_names=list(known))


def shakespeare(data_dir: Path, length: Width = 80, users: AtLeastOne | None = None) -> Dataset:
    """Reads all that each role of Shakespeare says; each character predicts the next one.

    A role's lines, each between <bos> and <eos>, are concatenated and cut into examples, as FedJAX
    has it. The files may be in the folder `shakespeare`.

    Args:
      length: T, characters of an example.
      users: so many roles, always the same ones; None: all 715.
    """
    index = {character.encode()[0]: vocabulary.FIRST + i for i, character in enumerate(CHARACTERS)}
    unknown = vocabulary.FIRST + len(CHARACTERS)
    table = np.array([index.get(byte, unknown) for byte in range(256)], np.int32)
    parts: dict[str, Any] = {}
    known: dict[str, int] = {}
    with open_parts(Files("shakespeare", "shakespeare", "shakespeare"), data_dir) as readers:
        for part, read in readers:
            x, owners = [], []
            for name, features in read(("snippets",), users, only=known):
                lines = [[vocabulary.BOS, *table[list(line)], vocabulary.EOS] for line in features["snippets"]]
                x.append(cut_windows(np.concatenate(lines), length))
                owners.append(np.full(len(x[-1]), known.setdefault(name, len(known))))
            parts |= {f"{part}_x": np.concatenate(x), f"{part}_y": None, f"{part}_clients": np.concatenate(owners)}
    parts |= {"class_names": vocabulary.token_names(CHARACTERS), "client_names": list(known)}
    return from_arrays(**parts, targets="tokens", name="shakespeare")


def stackoverflow(
    data_dir: Path,
    words: AtLeastOne = 10_000,
    length: Width = 20,
    users: AtLeastOne | None = None,
    most: AtLeastOne = 64,
    test_users: AtLeastOne = 1000,
) -> Dataset:
    """Reads questions and answers on StackOverflow, by user; each word predicts the next one.

    Test examples are of users who never train. `natural` deals them over the clients in proportion
    to their training examples, so scores of the scope "own" are on strangers' sentences; use
    "global". The files may be in the folder `stackoverflow`.

    Args:
      words: that are distinguished, the most frequent of those read to train on (`vocabulary.py`).
      length: T, words of an example; longer sentences are cut.
      users: so many users to train on, always the same ones; None: all 342,477.
      most: sentences of each user.
      test_users: so many users of the test set.
    """
    words_of, queues = vocabulary.StreamingVocabulary(length, behind=True), {}
    owners: list[np.ndarray] = []
    names_of_users: list[str] = []
    with open_parts(Files("stackoverflow", "stackoverflow", "stackoverflow"), data_dir) as readers:
        for part, read in readers:
            queues[part] = deque()
            for user, features in read(("tokens",), users if part == "train" else test_users, most):
                sentences = [line.decode(errors="replace").split() for line in features["tokens"]]
                queues[part].append(words_of.encode(sentences, counted=part == "train"))
                if part == "train":
                    owners.append(np.full(len(sentences), len(names_of_users)))
                    names_of_users.append(user)
    names, x = words_of.index_texts(words, queues)
    (train_x, train_y), (test_x, test_y) = (shift_tokens(f"{part}_x", x[part]) for part in ("train", "test"))
    clients: dict[str, Any] = {"train_clients": np.concatenate(owners), "client_names": names_of_users}
    return from_arrays(train_x, train_y, test_x, test_y, names, targets="tokens", name="stackoverflow", **clients)


def cut_windows(ids: np.ndarray, length: int) -> np.ndarray:
    """Cuts ids into windows of `length` + 1, each beginning with the last of the one before.

    The last one is filled up with -1.
    """
    number = max(1, -(-(len(ids) - 1) // length))
    padded = np.full(number * length + 1, -1, np.int32)
    padded[: len(ids)] = ids
    return padded[np.arange(number)[:, None] * length + np.arange(length + 1)[None]]


@contextlib.contextmanager
def open_parts(files: Files, data_dir: Path) -> Iterator[Iterator[tuple[str, Callable[..., Clients]]]]:
    """Opens the parts "train" and "test".

    Each has a reader: (features, number of clients, most examples of each, only=those clients) ->
    its clients.
    """
    with contextlib.ExitStack() as stack:
        yield _open_each(stack, files, data_dir)


def _open_each(stack: contextlib.ExitStack, files: Files, data_dir: Path) -> Iterator[tuple[str, Callable[..., Clients]]]:
    name, database, h5, splits = files
    how = f"get {database}.sqlite.lzma, or {h5}_train.h5 and {h5}_test.h5 (in {h5}.tar.bz2), from {TFF} and put them there"
    unpacked: dict[Path, Path] = {}
    for part in ("train", "test"):
        names = (f"{database}.sqlite", f"{h5}_{part}.h5", f"{database}.sqlite.lzma")
        file = find_file(name, data_dir, [folder / each for folder in (data_dir, data_dir / name) for each in names], how)
        if file.suffix == ".h5":
            yield part, stack.enter_context(_open_h5(file, part))
            continue
        if file not in unpacked:
            unpacked[file] = stack.enter_context(_unpack(file)) if file.suffix == ".lzma" else file
        yield part, stack.enter_context(_open_database(unpacked[file], f"{splits}{part}", file))


@contextlib.contextmanager
def _unpack(file: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder) / "unpacked.sqlite"
        try:
            with lzma.open(file) as packed, open(unpacked, "wb") as plain:
                shutil.copyfileobj(packed, plain, 2**24)
        except (lzma.LZMAError, EOFError) as error:
            raise _damage_error(file, error) from error
        except OSError as error:
            hint = "TMPDIR names the folder; or unpack the file yourself"
            raise OSError(error.errno, f"{file}: cannot be unpacked into {folder} ({error.strerror}); {hint}") from error
        yield unpacked


def _damage_error(file: Path, error: Exception) -> ValueError:
    return ValueError(f"{file}: cannot be read ({error}): truncated, damaged or another file; get it again.")


def _choose_clients(names: Sequence[str], number: int | None, only: Collection[str], file: Path, split: str) -> list[str]:
    """Chooses `number` clients, sorted; always the same ones, or those of `only`."""
    if not names:
        raise ValueError(f"{file}: has no clients of the split {split!r}: another file, or damaged; get it again.")
    if only:
        if not (both := {*names} & {*only}):
            raise ValueError(f"{file}: has none of the {len(only)} clients in the split {split!r}; ask for more users.")
        return sorted(both)
    if number is None:
        return sorted(names)
    return choose_users(names, number, file)


@contextlib.contextmanager
def _open_h5(file: Path, split: str) -> Iterator[Callable[..., Clients]]:
    try:
        import h5py  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(f"{file.name} is read with h5py: pip install h5py, or get the .sqlite.lzma file") from None

    try:
        opened: Any = h5py.File(file)
    except OSError as error:
        raise _damage_error(file, error) from error

    def read(features: Sequence[str], number: int | None = None, most: int | None = None, only: Collection[str] = ()) -> Clients:
        try:
            for name in _choose_clients(list(opened["examples"]), number, only, file, split):
                yield name, {feature: opened["examples"][name][feature][:most] for feature in features}
        except (KeyError, OSError) as error:
            raise _damage_error(file, error) from error

    with opened:
        yield read


@contextlib.contextmanager
def _open_database(plain: Path, split: str, file: Path) -> Iterator[Callable[..., Clients]]:
    """Opens a SQLite file, or what was unpacked of `file`."""

    def read(features: Sequence[str], number: int | None = None, most: int | None = None, only: Collection[str] = ()) -> Clients:
        try:
            clients = connection.execute("SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ?", (split,))
            wanted = "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? ORDER BY rowid LIMIT ?"
            for name in _choose_clients([row[0] for row in clients], number, only, file, split):
                limit = -1 if most is None else most
                rows = [decode_example(blob, features) for (blob,) in connection.execute(wanted, (split, name, limit))]
                yield name, {feature: [value for row in rows for value in _as_values(row[feature])] for feature in features}
        except (sqlite3.Error, KeyError, UnicodeDecodeError) as error:
            raise _damage_error(file, error) from error

    with contextlib.closing(sqlite3.connect(f"{plain.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        yield read


def _as_values(feature: list[bytes] | np.ndarray) -> list[Any]:
    """Returns an example's one value in a list: its bytes, its number, or its array of numbers."""
    return feature if isinstance(feature, list) else [feature] if len(feature) > 1 else feature.tolist()
