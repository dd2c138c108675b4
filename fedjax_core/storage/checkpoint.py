"""Checkpoints: a pytree of arrays and a record beside it, by round.

A checkpoint is a directory named by its round:

    checkpoints/00000012/
      arrays/        Orbax's: the leaves, by number, as host arrays
      leaves.json    by number: path in the state, dtype, shape, and what Orbax must not know (key types, empty arrays)
      record.json    what the caller wants beside it
      digests.json   of the two files above and of every array (`digests.py`), compared when they are read
      parts/         rows that were written since the checkpoint before, and links to its parts (`parts.py`), if there are any

It is written under another name, synced, and renamed, so a process killed at any moment leaves the old checkpoints or the old
and the new. Leaves are stored as host arrays with no trace of the devices they lay on, and restored to wherever `like` wants
them: a run goes on with another number of devices. Saving is synchronous: when `save` returns the checkpoint is on the disk,
and the caller may donate the state's buffers.
"""

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.storage import digests
from fedjax_core.storage.arrays import read_arrays, write_arrays
from fedjax_core.storage.files import explained, sync_directory, write_text
from fedjax_core.storage.json_files import json_text, plain, read_json, write_json
from fedjax_core.storage.leaves import ENTRY, check_leaves, from_host, named_leaves, to_host
from fedjax_core.storage.parts import read as read_parts
from fedjax_core.storage.parts import write as write_parts

_log = logging.getLogger("fedjax_core")

_ARRAYS, _LEAVES, _RECORD, _DIGESTS = "arrays", "leaves.json", "record.json", "digests.json"
_COMPLETE = re.compile(r"(\d{8,})(?:-(\d+))?")  # round, and how often it was replaced
_UNFINISHED = ".unfinished-"  # prefix of what is being written or deleted


class Checkpoints:
    """The checkpoints of one run.

    With several processes each calls `save` and `restore` with its own view of the same state. Process 0 writes; all read, so
    the directory must be one that all of them see. A leaf must be addressable as a whole by process 0: on the host, on its own
    devices, or replicated.
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 3, *, writer: bool | None = None) -> None:
        """Looks at nothing yet; the directory is made at the first save.

        Args:
          directory: where the checkpoints lie.
          keep: how many to keep; older ones are deleted once a newer one is complete.
          writer: whether this process writes. By default process 0 does.

        Raises:
          ValueError: if `keep` is less than 1.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}; a run needs at least 1 checkpoint to resume from")
        self.directory = Path(directory).absolute()
        self.keep = keep
        self.writer = jax.process_index() == 0 if writer is None else writer

    def rounds(self) -> list[int]:
        """Rounds with a complete checkpoint, ascending."""
        return sorted(self._complete())

    def latest(self) -> int | None:
        """The last round with a complete checkpoint; None if there is none."""
        return max(self._complete(), default=None)

    def save(
        self,
        round: int,  # noqa: A002
        state: PyTree,
        record: Mapping[str, Any] | None = None,
        parts: Iterable[Mapping[str, np.ndarray]] | None = None,
        after: int | None = None,
    ) -> None:
        """Writes a checkpoint, then deletes those beyond the last `keep`.

        Saving a round again replaces its checkpoint, as atomically.

        Args:
          round: the number of rounds that `state` has seen.
          state: pytree of jax arrays (typed keys too), numpy arrays and Python numbers. It is only read.
          record: JSON values to keep beside it.
          parts: named arrays, which `parts` gives again; None: it has none.
          after: the round of the checkpoint whose parts stand before these; None: none do.

        Raises:
          OSError: if it cannot be written; one line that names the path. Earlier checkpoints are intact.
          TypeError: if a leaf is not an array; if `record` has a value that JSON cannot hold.
          ValueError: if a leaf is spread over several processes, or the round is negative.
        """
        if round < 0:
            raise ValueError(f"round is {round}; rounds count from 0")
        if not self.writer:
            return
        leaves = [to_host(name, leaf) for name, leaf in named_leaves(state)]
        arrays = {_number(position): array for position, (_, array) in enumerate(leaves) if array is not None}
        texts = {_LEAVES: json_text([entry for entry, _ in leaves]), _RECORD: json_text(plain(record or {}, "record"))}
        known = {
            "files": {file: digests.of_bytes(text.encode()) for file, text in texts.items()},
            "arrays": {number: digests.of_array(array) for number, array in arrays.items()},
        }
        before, earlier = self._complete().get(round), None if after is None else self._place(after)
        final = self.directory / f"{round:08d}{'' if before is None else f'-{_replaced(before) + 1}'}"
        temporary = self.directory / f"{_UNFINISHED}{final.name}"
        with explained(f"write the checkpoint of round {round} (earlier ones are intact) in", self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._sweep()
            try:
                temporary.mkdir()
                if arrays:
                    write_arrays(temporary / _ARRAYS, arrays)
                for file, text in texts.items():
                    write_text(temporary / file, text)
                names = {} if parts is None else {"parts": write_parts(temporary, parts, earlier)}
                write_json(temporary / _DIGESTS, known | names)
                _sync(temporary)
                temporary.rename(final)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_directory(self.directory)
        if before is not None:
            self._delete(before)
        for old in self.rounds()[: -self.keep]:
            self._delete(self._complete()[old])

    def restore(self, round: int, like: PyTree) -> tuple[PyTree, dict[str, Any]]:  # noqa: A002
        """Reads a checkpoint back, bit for bit: everything is compared with the digests that were written with it.

        A checkpoint of an earlier version, without digests, is read with a warning.

        Args:
          round: one of `rounds()`.
          like: the state's structure. Where a leaf is a numpy array (or `Rows`) or a Python number such a leaf comes back;
            where it is a jax array or a ShapeDtypeStruct, a jax array, laid out by its `sharding` if it has one and, if it
            is an array, is committed to it, otherwise on the default device.

        Returns:
          The state and its record.

        Raises:
          ValueError: if there is no such checkpoint, or its leaves are not those of `like`: the message names the leaf; if it is
            damaged: the message names the older ones and how to go back to one.
          OSError: if it cannot be read; the message names the older ones too.
        """
        place, wanted = self._place(round), named_leaves(like)
        with self._older_named(round, place):
            known = _digests(place)
            entries, record = _read_text(place, _LEAVES, known, [ENTRY]), _read_text(place, _RECORD, known, dict)
        check_leaves(place, entries, wanted)
        if known is None and self.writer:
            _log.warning("%s was written without digests, so damage to it goes unnoticed; the next checkpoint has them", place)
        with self._older_named(round, place):
            arrays = _read_verified(place, entries, known)
        found = {entry["path"]: (entry, arrays.get(_number(position))) for position, entry in enumerate(entries)}
        leaves = [from_host(*found.pop(name), leaf) for name, leaf in wanted]
        return jax.tree.unflatten(jax.tree.structure(like), leaves), record

    def parts(self, round: int) -> Iterator[dict[str, np.ndarray]]:  # noqa: A002
        """The parts of a checkpoint, in the order in which they were saved; none if it was saved without.

        Raises:
          ValueError, OSError: as `restore`.
        """
        place = self._place(round)
        with self._older_named(round, place):
            yield from read_parts(place, (_digests(place) or {}).get("parts", ()))

    def number_of_parts(self, round: int) -> int | None:  # noqa: A002
        """How many parts a checkpoint has; None if there is no such checkpoint, or it was saved without."""
        place = self._complete().get(round)
        found = None if place is None else (_digests(place) or {}).get("parts")
        return None if found is None else len(found)

    def record(self, round: int) -> dict[str, Any]:  # noqa: A002
        """The record beside a checkpoint, alone.

        Raises:
          ValueError: if there is no such checkpoint, or the record is damaged, as in `restore`.
          OSError: if it cannot be read.
        """
        place = self._place(round)
        with self._older_named(round, place):
            return _read_text(place, _RECORD, _digests(place), dict)

    @contextlib.contextmanager
    def _older_named(self, round: int, place: Path) -> Iterator[None]:  # noqa: A002
        """Adds to an error in reading a checkpoint which older ones there are, and how to go back to one."""
        try:
            yield
        except (ValueError, OSError) as error:
            older = [other for other in self.rounds() if other < round]
            if older:
                rounds = ", ".join(map(str, older))
                remedy = (
                    f"older: round {rounds}; to go back to round {older[-1]} rename {place} to {place.name}.damaged and call again"
                )
            else:
                remedy = "there is no older one; start anew in another directory"
            reason = error.strerror if isinstance(error, OSError) else error
            text = f"the checkpoint of round {round} cannot be used ({reason}); {remedy}"
            raise (OSError(error.errno, text) if isinstance(error, OSError) else ValueError(text)) from error

    def _place(self, round: int) -> Path:  # noqa: A002
        place = self._complete().get(round)
        if place is None:
            have = ", ".join(map(str, self.rounds())) or "none"
            raise ValueError(f"{self.directory} has no checkpoint of round {round}; it has: {have}")
        return place

    def _complete(self) -> dict[int, Path]:
        """Directories of the complete checkpoints; of a round that was replaced, the newest."""
        if not self.directory.exists():
            return {}
        found: dict[int, tuple[int, Path]] = {}
        with explained("read", self.directory):
            for path in self.directory.iterdir():
                if match := _COMPLETE.fullmatch(path.name):
                    found[int(match[1])] = max(found.get(int(match[1]), (-1, path)), (_replaced(path), path))
        return {key: path for key, (_, path) in found.items()}

    def _delete(self, path: Path) -> None:
        """Takes the name away first: a checkpoint half deleted must not look complete."""
        doomed = self.directory / f"{_UNFINISHED}{path.name}"
        try:
            path.rename(doomed)
            shutil.rmtree(doomed)
        except OSError as error:  # the new checkpoint is safe, which is what matters
            _log.warning("cannot delete the old checkpoint %s: %s", path, error.strerror)

    def _sweep(self) -> None:
        """Removes what killed processes left behind."""
        newest = set(self._complete().values())
        for path in self.directory.iterdir():
            if path.name.startswith(_UNFINISHED):
                shutil.rmtree(path)
            elif _COMPLETE.fullmatch(path.name) and path not in newest:
                self._delete(path)


def _replaced(path: Path) -> int:
    """How often a complete checkpoint had been replaced by the one in this directory."""
    return int(path.name.partition("-")[2] or 0)


def _number(position: int) -> str:
    return f"{position:05d}"


def _sync(directory: Path) -> None:
    """Makes a tree of files last through a power cut."""
    for folder, _, files in os.walk(directory):
        for file in files:
            with open(os.path.join(folder, file), "r+b") as handle:
                os.fsync(handle.fileno())
        sync_directory(folder)


def _digests(place: Path) -> dict[str, Any] | None:
    """What digests.json of a checkpoint says; None if an earlier version wrote it, without one."""
    path = place / _DIGESTS
    return read_json(path, {"files": {str: str}, "arrays": {str: str}, "parts?": [str]}) if path.exists() else None


def _read_text(place: Path, file: str, known: Mapping[str, Mapping[str, str]] | None, form: Any) -> Any:
    """The value of a JSON file of a checkpoint, as it was written.

    Raises:
      ValueError: it is not what was written.
      OSError: it cannot be read.
    """
    path = place / file
    if known is not None:
        with explained("read", path):
            found = digests.of_bytes(path.read_bytes())
        if found != known["files"].get(file):
            raise ValueError(f"{path} is damaged: it is not what was written (its digest differs)")
    return read_json(path, form)


def _read_verified(
    place: Path, entries: list[dict[str, Any]], known: Mapping[str, Mapping[str, str]] | None
) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by number, as they were written.

    Raises:
      ValueError: one is not what was written; the message names its leaf.
      OSError: they cannot be read.
    """
    paths = {_number(position): entry["path"] for position, entry in enumerate(entries) if entry["stored"]}
    with explained("read", place):
        arrays = read_arrays(place / _ARRAYS, list(paths)) if paths else {}
    for number, path in paths.items():
        if known is not None and digests.of_array(arrays[number]) != known["arrays"].get(number):
            raise ValueError(f"{place} is damaged: leaf {path} is not what was written (its digest differs)")
    return arrays
