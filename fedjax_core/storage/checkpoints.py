"""Checkpoints: a pytree of arrays and a record beside it, by round.

A checkpoint is a directory named by its round:

    checkpoints/00000012/
      arrays/        Orbax's: the leaves, by number, as host arrays
      leaves.json    by number: path in the state, dtype, shape, and what Orbax must not know (key types, empty arrays)
      record.json    what the caller wants beside it
      digests.json   of the two files above and of every array (`digests.py`), compared when they are read
      parts/         rows that this checkpoint wrote, and links to parts of the one before (`parts.py`), if there are any

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_core import distributed
from fedjax_core.algorithm import PyTree
from fedjax_core.atomic_files import check_regular, explained, read_bytes, sync_directory, write_text
from fedjax_core.storage import client_state_files as of_parts
from fedjax_core.storage import digests
from fedjax_core.storage.checkpoint_arrays import read_arrays, write_arrays
from fedjax_core.storage.json_files import json_text, plain, read_json, write_json
from fedjax_core.storage.leaves import ENTRY, check_leaves, from_host, named_leaves, to_host

_log = logging.getLogger("fedjax_core")

_ARRAYS, _LEAVES, _RECORD, _DIGESTS = "arrays", "leaves.json", "record.json", "digests.json"
_COMPLETE = re.compile(r"(\d{8,})(?:-(\d+))?")  # round, and how often it was replaced
_UNFINISHED = ".unfinished-"  # prefix of what is being written or deleted


class Checkpoints:
    """The checkpoints of one run.

    With several processes each calls `save` and `restore` with its own view of the same state. Process 0 writes the state, each
    process its own parts, if there are any; all read, so the directory must be one that all of them see. A leaf must be addressable
    as a whole by process 0: on the host, on its own devices, or replicated.
    """

    def __init__(
        self, directory: str | os.PathLike, keep: int = 3, *, writer: bool | None = None, beside: str | os.PathLike | None = None
    ) -> None:
        """Looks at nothing yet; the directory is made at the first save.

        Args:
          directory: where the checkpoints lie.
          keep: how many to keep; older ones are deleted once a newer one is complete. Where all that are kept, two or more, share
            parts with the newest, the last one that shares none is kept beside them, and the one after it, which is the next that
            will share none.
          writer: whether this process writes. By default process 0 does.
          beside: another directory of checkpoints of the same run, which may share parts with these: errors name its rounds.

        Raises:
          ValueError: if `keep` is less than 1.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}; a run needs at least 1 checkpoint to resume from")
        self.directory = Path(directory).absolute()
        self.keep = keep
        self.writer = jax.process_index() == 0 if writer is None else writer
        self._beside = None if beside is None else Path(beside).absolute()

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
        without: Collection[int] = (),
        of: "Checkpoints | None" = None,
    ) -> int:
        """Writes a checkpoint, then deletes those beyond the last `keep`.

        Saving a round again replaces its checkpoint, as atomically.

        Args:
          round: the number of rounds that `state` has seen.
          state: pytree of jax arrays (typed keys too), numpy arrays and Python numbers. It is only read.
          record: JSON values to keep beside it.
          parts: named arrays, which `parts` gives again; None: it has none. Of several processes each gives its own, and none
            returns before the checkpoint is complete.
          after: the round of the checkpoint whose parts stand before these; None: none do.
          without: numbers of parts of that one that do not.
          of: the checkpoints that it is one of; None: these.

        Returns:
          The number of the first of `parts`; those behind it follow. 0 where it has none.

        Raises:
          OSError: if it cannot be written, by any process where there are parts; one line that names the path. Earlier checkpoints
            are intact.
          TypeError: if a leaf is not an array; if `record` has a value that JSON cannot hold.
          ValueError: if a leaf is spread over several processes, or the round is negative.
        """
        if round < 0:
            raise ValueError(f"round is {round}; rounds count from 0")
        if not self.writer and (parts is None or jax.process_count() == 1):
            return 0
        all_do = _alone if parts is None else distributed.all_or_none
        begun, first = None, 0
        with explained(f"write the checkpoint of round {round} (earlier ones are intact) in", self.directory):
            try:
                earlier = (of or self, after, without) if parts is not None else None
                beginning = lambda: self._begin(round, state, record, earlier) if self.writer else None
                begun = all_do("begin a checkpoint", beginning)
                if parts is not None:
                    first = self._write_parts(begun, parts)
                all_do("end a checkpoint", lambda: None if begun is None else self._end(begun))
            except BaseException:
                if begun is not None:
                    shutil.rmtree(begun.temporary, ignore_errors=True)
                raise
        return first

    def cut(self, after: int) -> None:
        """Deletes the checkpoints of rounds that come after one, to which the run has gone back.

        Args:
          after: that round.

        Raises:
          OSError: what killed processes left behind cannot be deleted.
        """
        if not self.writer or (self.latest() or 0) <= after:
            return
        with explained("write", self.directory):
            self._sweep()  # a checkpoint that was replaced must not take the place of the one that is deleted
        for done, place in self._complete().items():
            if done > after:
                self._delete(place)

    def _begin(
        self,
        round: int,  # noqa: A002
        state: PyTree,
        record: Mapping[str, Any] | None,
        parts_of: "tuple[Checkpoints, int | None, Collection[int]] | None",
    ) -> "_Begun":
        """Everything of a checkpoint but its new parts, under another name. `parts_of`: whose checkpoint's parts it has, of
        which round, and without which numbers; None: it has no parts."""
        leaves = [to_host(name, leaf) for name, leaf in named_leaves(state)]
        arrays = {_number(position): array for position, (_, array) in enumerate(leaves) if array is not None}
        texts = {_LEAVES: json_text([entry for entry, _ in leaves]), _RECORD: json_text(plain(record or {}, "record"))}
        known = {
            "files": {file: digests.of_bytes(text.encode()) for file, text in texts.items()},
            "arrays": {number: digests.of_array(array) for number, array in arrays.items()},
        }
        of, after, without = parts_of or (self, None, ())
        before, earlier = self._complete().get(round), None if after is None else of._place(after)
        final = self.directory / f"{round:08d}{'' if before is None else f'-{_replaced(before) + 1}'}"
        begun = _Begun(self.directory / f"{_UNFINISHED}{final.name}", final, before, known)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._sweep()
        try:
            begun.temporary.mkdir()
            if arrays:
                write_arrays(begun.temporary / _ARRAYS, arrays)
            for file, text in texts.items():
                write_text(begun.temporary / file, text)
            if parts_of is not None:
                before_it = None if earlier is None else (_digests(earlier) or {}).get("parts")
                names, first = of_parts.begin(begun.temporary, earlier, without, before_it)
                begun = begun._replace(parts=names, first=first)
        except BaseException:
            shutil.rmtree(begun.temporary, ignore_errors=True)
            raise
        return begun

    def _write_parts(self, begun: "_Begun | None", parts: Iterable[Mapping[str, np.ndarray]]) -> int:
        """The parts of every process; the number of the first."""
        told = None if begun is None else [begun.temporary.name, begun.first]
        name, first = distributed.said(told)
        processes = jax.process_count()
        me = None if processes == 1 else jax.process_index()
        number = distributed.all_or_none("write its parts", lambda: of_parts.write(self.directory / name, parts, first, me))
        numbers = distributed.seen([number])[:, 0].tolist()
        if begun is not None and begun.parts is not None:
            each = [(first + at, process) for process, number in enumerate(numbers) for at in range(number)]
            begun.parts.extend(of_parts.called(at, None if processes == 1 else process) for at, process in sorted(each))
        return first

    def _end(self, begun: "_Begun") -> None:
        """Gives a checkpoint its name, and deletes those that are not kept."""
        names = {} if begun.parts is None else {"parts": begun.parts}
        write_json(begun.temporary / _DIGESTS, begun.known | names)
        _sync(begun.temporary)
        begun.temporary.rename(begun.final)
        sync_directory(self.directory)
        if begun.replaces is not None:
            self._delete(begun.replaces)
        places = [self._complete()[kept] for kept in self.rounds()]
        spared = self._spared(places) if self.keep > 1 else []
        for old in places[: -self.keep]:
            if old not in spared:
                self._delete(old)

    def _spared(self, places: list[Path]) -> list[Path]:
        """The last checkpoint that shares no part with the newest, and the one after it, which will be the next such; the first,
        where all share some."""
        *older, newest = places
        alone = [at for at, place in enumerate(older) if not of_parts.shares(newest, place)]
        return places[alone[-1] : alone[-1] + 2] if alone else places[:1]

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

    def parts(
        self,
        round: int,  # noqa: A002
        wanted: Callable[[Mapping[str, np.ndarray]], Collection[str]] | None = None,
    ) -> Iterator[dict[str, np.ndarray]]:
        """The parts of a checkpoint, in the order in which they were saved; none if it was saved without.

        Args:
          round: one of `rounds()`.
          wanted: of a part, the names of the arrays that will be looked at: they alone are read; None: all.

        Raises:
          ValueError, OSError: as `restore`.
        """
        place = self._place(round)
        with self._older_named(round, place):
            yield from of_parts.read(place, (_digests(place) or {}).get("parts", ()), True if wanted is None else wanted)

    def numbers_of_parts(self, round: int) -> list[int] | None:  # noqa: A002
        """The number of each of `parts`; None if there is no such checkpoint, or it was saved without.

        Raises:
          ValueError, OSError: as `restore`.
        """
        place = self._complete().get(round)
        if place is None:
            return None
        with self._older_named(round, place):
            found = (_digests(place) or {}).get("parts")
        return None if found is None else list(map(of_parts.number, found))

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
            remedy = self._remedy(round, place, error.name if isinstance(error, of_parts.Damaged) else None)
            reason = error.strerror if isinstance(error, OSError) else error
            text = f"the checkpoint of round {round} cannot be used ({reason}); {remedy}"
            raise (OSError(error.errno, text) if isinstance(error, OSError) else ValueError(text)) from error

    def unusable(self, round: int, reason: str) -> ValueError:  # noqa: A002
        """The error of a checkpoint that is not what it should be, for a reason: which others there are, and how to go back."""
        return ValueError(
            f"the checkpoint of round {round} cannot be used ({reason}); {self._remedy(round, self._place(round), None)}"
        )

    def _remedy(self, round: int, place: Path, damaged: str | None) -> str:  # noqa: A002
        """What to do where a checkpoint cannot be used; `damaged`: the part that is not what was written."""
        return self._back(round, place, damaged) + self._others(place, damaged)

    def _others(self, place: Path, damaged: str | None) -> str:
        """Which rounds the directory beside this one has."""
        other = {} if self._beside is None else Checkpoints(self._beside)._complete()
        spoilt = [at for at, path in sorted(other.items()) if damaged and of_parts.shares(place, path, damaged)]
        whole = [at for at in sorted(other) if at not in spoilt]
        said = f"; in {self._beside} round {', '.join(map(str, spoilt))} has the same file" if spoilt else ""
        return said + (f"; {self._beside} has round {', '.join(map(str, whole))}{' without it' if spoilt else ''}" if whole else "")

    def _back(self, round: int, place: Path, damaged: str | None) -> str:  # noqa: A002
        """How to go back to an older one."""
        complete, said = self._complete(), ""
        others = sorted(other for other in complete if other != round)
        spoilt = [other for other in others if damaged and of_parts.shares(place, complete[other], damaged)]
        if spoilt:
            said = f"round {', '.join(map(str, spoilt))} has the same file; "
        older = [other for other in others if other < round and other not in spoilt]
        if not older:
            return f"{said}there is no older one{' without it' if spoilt else ''}; start anew in another directory"
        away = [complete[other] for other in [*others, round] if other == round or (other in spoilt and other > older[-1])]
        names = " and ".join(f"{path} to {path.name}.damaged" for path in sorted(away))
        which = f"older{' without it' if spoilt else ''}: round {', '.join(map(str, older))}"
        return f"{said}{which}; to go back to round {older[-1]} rename {names} and call again"

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


class _Begun(NamedTuple):
    """A checkpoint on its way.

    Attributes:
      temporary: its directory by now.
      final: its place when it is complete.
      replaces: the directory of the checkpoint of that round that there is already.
      known: what digests.json says of files and arrays.
      parts: names of its parts, in their order; None if it has none.
      first: the number of the first that it writes itself.
    """

    temporary: Path
    final: Path
    replaces: Path | None
    known: dict[str, Any]
    parts: list[str] | None = None
    first: int = 0


def _alone(what: str, step: Callable[[], Any]) -> Any:
    """`distributed.all_or_none` of one process."""
    del what
    return step()


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
        found = digests.of_bytes(read_bytes(path))
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
        for file in (place / _ARRAYS).rglob("*"):
            if not file.is_dir():
                check_regular(file)
        arrays = read_arrays(place / _ARRAYS, list(paths)) if paths else {}
    for number, path in paths.items():
        if known is not None and digests.of_array(arrays[number]) != known["arrays"].get(number):
            raise ValueError(f"{place} is damaged: leaf {path} is not what was written (its digest differs)")
    return arrays
