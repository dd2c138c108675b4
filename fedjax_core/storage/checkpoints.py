"""Checkpoints: a pytree of arrays with a JSON record, by round.

    checkpoints/00000012/
      arrays/        Orbax's: the leaves, by number, as host arrays
      leaves.json    by number: path in the state, dtype, shape, and what Orbax cannot store (key
        types, empty arrays)
      record.json    the caller's record
      digests.json   checksums of the two files above and of every array, compared on restore
      parts/         files of client states, partly shared with earlier checkpoints
      (`client_state_files.py`), if any

A checkpoint is written under another name, synced, and renamed, so a process killed at any moment
leaves either the old checkpoints or the old and the new. Leaves are stored as host arrays without
their sharding, and restored to that of `like`: a run may resume on another number of devices. When
`save` returns, the checkpoint is on the disk and the caller may donate the state's buffers.

Orbax's CheckpointManager does less: it does not sync files, verifies no content on restore, never
replaces a round, and cannot share files between steps.
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
from fedjax_core.atomic_files import (
    check_regular,
    digest_array,
    digest_bytes,
    read_bytes,
    reword_os_errors,
    sync_directory,
    write_text,
)
from fedjax_core.storage import client_state_files
from fedjax_core.storage.checkpoint_arrays import (
    ENTRY,
    check_leaves,
    from_host,
    named_leaves,
    read_arrays,
    to_host,
    write_arrays,
)
from fedjax_core.storage.client_state_files import DamagedPart
from fedjax_core.storage.json_files import format_json, read_json, to_json_values, write_json

_log = logging.getLogger("fedjax_core")

_ARRAYS, _LEAVES, _RECORD, _DIGESTS = "arrays", "leaves.json", "record.json", "digests.json"
_COMPLETE = re.compile(r"(\d{8,})(?:-(\d+))?")  # round, and how often it was replaced
_UNFINISHED = ".unfinished-"  # prefix of directories that are being written or deleted


class Checkpoints:
    """The checkpoints of one run.

    With several processes each calls `save` and `restore` with its own view of the same state.
    Process 0 writes the state, each process its own parts, if there are any. All processes read, so
    all must see the directory. A leaf must be addressable as a whole by process 0.
    """

    def __init__(
        self, directory: str | os.PathLike, keep: int = 3, *, writer: bool | None = None, beside: str | os.PathLike | None = None
    ) -> None:
        """Reads nothing; the directory is created at the first save.

        Args:
          directory: of the checkpoints.
          keep: number of checkpoints to keep; older ones are deleted after a newer one is complete.
            If all of these, two or more, share parts with the newest, the last one that shares none
            is kept as well, and so is the one after it, which is the next that will share none.
          writer: whether this process writes; default: process 0 does.
          beside: another directory of checkpoints of this run, which may share parts with these;
            errors name its rounds.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}; a run needs at least 1 checkpoint to resume from")
        self.directory = Path(directory).absolute()
        self.keep = keep
        self.writer = jax.process_index() == 0 if writer is None else writer
        self._beside = None if beside is None else Path(beside).absolute()

    def rounds(self) -> list[int]:
        """Returns the rounds with a complete checkpoint, ascending."""
        return sorted(self._list_complete())

    def latest(self) -> int | None:
        """Returns the last round with a complete checkpoint; None if there is none."""
        return max(self._list_complete(), default=None)

    def save(
        self,
        round_num: int,
        state: PyTree,
        record: Mapping[str, Any] | None = None,
        parts: Iterable[Mapping[str, np.ndarray]] | None = None,
        earlier_round: int | None = None,
        dropped: Collection[int] = (),
        earlier_in: "Checkpoints | None" = None,
    ) -> int:
        """Writes a checkpoint, then deletes old ones beyond `keep`.

        Saving a round again replaces its checkpoint atomically.

        Args:
          round_num: number of rounds done.
          state: pytree of jax arrays (typed keys too), numpy arrays and Python numbers; only read.
          record: JSON values.
          parts: named arrays, read back by `read_parts`; None: the checkpoint has no parts. With
            several processes each passes its own, and none returns before the checkpoint is
            complete.
          earlier_round: round of the checkpoint whose parts come before these; None: none do.
          dropped: numbers of its parts to leave out.
          earlier_in: the checkpoints that `earlier_round` refers to; None: these.

        Returns:
          The number of the first new part; 0 without parts.

        Raises:
          OSError: the checkpoint cannot be written, with parts by any process; earlier ones are
            intact.
          TypeError: a leaf is not an array, or `record` has a value that JSON cannot represent.
          ValueError: a leaf is sharded over several processes, or the round is negative.
        """
        if round_num < 0:
            raise ValueError(f"round is {round_num}; rounds count from 0")
        has_parts = parts is not None
        if not self.writer and (not has_parts or jax.process_count() == 1):
            return 0
        run_step = distributed.all_or_none if has_parts else lambda _, step: step()
        pending, first = None, 0
        with reword_os_errors(f"write the checkpoint of round {round_num} (earlier ones are intact) in", self.directory):
            try:
                earlier = (earlier_in or self, earlier_round, dropped) if has_parts else None
                begin = lambda: self._begin(round_num, state, record, earlier) if self.writer else None
                pending = run_step("begin a checkpoint", begin)
                if parts is not None:
                    first = self._write_parts(pending, parts)
                run_step("end a checkpoint", lambda: None if pending is None else self._commit(pending))
            except BaseException:
                if pending is not None:
                    shutil.rmtree(pending.temporary, ignore_errors=True)
                raise
        return first

    def delete_after(self, after: int) -> None:
        """Deletes the checkpoints of all rounds after `after`, to which the run has gone back."""
        if not self.writer or (self.latest() or 0) <= after:
            return
        with reword_os_errors("write", self.directory):
            self._sweep()  # otherwise a replaced checkpoint would take the place of a deleted one
        for round_num, checkpoint in self._list_complete().items():
            if round_num > after:
                self._delete(checkpoint)

    def _begin(
        self,
        round_num: int,
        state: PyTree,
        record: Mapping[str, Any] | None,
        earlier: "tuple[Checkpoints, int | None, Collection[int]] | None",
    ) -> "_Pending":
        """Writes everything but the new parts to a temporary directory.

        `earlier` are the parts to link, as (checkpoints, round, numbers of dropped parts), if it
        has any.
        """
        leaves = [to_host(name, leaf) for name, leaf in named_leaves(state)]
        arrays = {_number(index): array for index, (_, array) in enumerate(leaves) if array is not None}
        texts = {_LEAVES: format_json([entry for entry, _ in leaves]), _RECORD: format_json(to_json_values(record or {}, "record"))}
        digests = {
            "files": {file: digest_bytes(text.encode()) for file, text in texts.items()},
            "arrays": {number: digest_array(array) for number, array in arrays.items()},
        }
        replaced = self._list_complete().get(round_num)
        suffix = "" if replaced is None else f"-{_replacements(replaced) + 1}"
        final = self.directory / f"{round_num:08d}{suffix}"
        temporary = self.directory / f"{_UNFINISHED}{final.name}"
        source, names = None, None
        if earlier is not None and earlier[1] is not None:
            source = earlier[0]._path(earlier[1])
            names = (_read_digests(source) or {}).get("parts")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._sweep()
        try:
            temporary.mkdir()
            if arrays:
                write_arrays(temporary / _ARRAYS, arrays)
            for file, text in texts.items():
                write_text(temporary / file, text)
            if earlier is None:
                return _Pending(temporary, final, replaced, digests)
            linked, first = client_state_files.link_parts(temporary, source, earlier[2], names)
            return _Pending(temporary, final, replaced, digests, linked, first)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _write_parts(self, pending: "_Pending | None", parts: Iterable[Mapping[str, np.ndarray]]) -> int:
        """Writes this process's parts, registers those of all, and returns the number of the first."""
        name, first = distributed.broadcast_from_process_0(None if pending is None else [pending.temporary.name, pending.first])
        is_single = jax.process_count() == 1
        process = None if is_single else jax.process_index()
        write = lambda: client_state_files.write_parts(self.directory / name, parts, first, process)
        count = distributed.all_or_none("write its parts", write)
        counts = distributed.allgather([count])[:, 0].tolist()
        if pending is not None and pending.parts is not None:
            files = sorted((first + i, process) for process, count in enumerate(counts) for i in range(count))
            pending.parts.extend(client_state_files.part_name(i, None if is_single else process) for i, process in files)
        return first

    def _commit(self, pending: "_Pending") -> None:
        """Gives a checkpoint its final name, and deletes those that are not kept."""
        parts = {} if pending.parts is None else {"parts": pending.parts}
        write_json(pending.temporary / _DIGESTS, pending.digests | parts)
        _sync_tree(pending.temporary)
        pending.temporary.rename(pending.final)
        sync_directory(self.directory)
        if pending.replaces is not None:
            self._delete(pending.replaces)
        complete = self._list_complete()
        checkpoints = [complete[round_num] for round_num in sorted(complete)]
        spared = self._unshared(checkpoints) if self.keep > 1 else []
        for checkpoint in checkpoints[: -self.keep]:
            if checkpoint not in spared:
                self._delete(checkpoint)

    def _unshared(self, checkpoints: list[Path]) -> list[Path]:
        """Returns the last checkpoint that shares no part with the newest, and the next one."""
        *older, newest = checkpoints
        unshared = [i for i, checkpoint in enumerate(older) if not client_state_files.has_shared_part(newest, checkpoint)]
        return checkpoints[unshared[-1] : unshared[-1] + 2] if unshared else checkpoints[:1]

    def restore(self, round_num: int, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """Reads a checkpoint, and compares everything with the digests that were written with it.

        A checkpoint of an earlier version, without digests, is read with a warning.

        Args:
          round_num: one of `rounds()`.
          like: the state's structure. A numpy array or Python number gives such a leaf. A jax array
            or ShapeDtypeStruct gives a jax array, with its `sharding` if it has one and, if it is
            an array, is committed to it, otherwise on the default device.

        Returns:
          The state and the record.

        Raises:
          ValueError: there is no such checkpoint; its leaves do not match `like`; it is damaged.
            The message names the leaf, or the older checkpoints and how to go back to one.
          OSError: it cannot be read; the message names the older checkpoints too.
        """
        checkpoint, wanted = self._path(round_num), named_leaves(like)
        with self._suggest_older(round_num, checkpoint):
            digests = _read_digests(checkpoint)
            entries = _read_verified_json(checkpoint, _LEAVES, digests, [ENTRY])
            record = _read_verified_json(checkpoint, _RECORD, digests, dict)
        check_leaves(checkpoint, entries, wanted)
        if digests is None and self.writer:
            _log.warning("%s has no digests, so damage to it cannot be detected; the next checkpoint has them", checkpoint)
        with self._suggest_older(round_num, checkpoint):
            arrays = _read_verified_arrays(checkpoint, entries, digests)
        stored = {entry["path"]: (entry, arrays.get(_number(index))) for index, entry in enumerate(entries)}
        leaves = [from_host(*stored.pop(name), leaf) for name, leaf in wanted]
        return jax.tree.unflatten(jax.tree.structure(like), leaves), record

    def read_parts(
        self, round_num: int, wanted: Callable[[Mapping[str, np.ndarray]], Collection[str]] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the parts of a checkpoint in the order of saving; none if it was saved without.

        Args:
          round_num: one of `rounds()`.
          wanted: part -> names of its arrays that will be used; only these are read. None: all.
        """
        checkpoint = self._path(round_num)
        with self._suggest_older(round_num, checkpoint):
            names = (_read_digests(checkpoint) or {}).get("parts", ())
            yield from client_state_files.read_parts(checkpoint, names, True if wanted is None else wanted)

    def part_numbers(self, round_num: int) -> list[int] | None:
        """Returns the number of each part; None if there is no such checkpoint or it has no parts."""
        checkpoint = self._list_complete().get(round_num)
        if checkpoint is None:
            return None
        with self._suggest_older(round_num, checkpoint):
            names = (_read_digests(checkpoint) or {}).get("parts")
        return None if names is None else list(map(client_state_files.part_number, names))

    def read_record(self, round_num: int) -> dict[str, Any]:
        """Returns the record of a checkpoint."""
        checkpoint = self._path(round_num)
        with self._suggest_older(round_num, checkpoint):
            return _read_verified_json(checkpoint, _RECORD, _read_digests(checkpoint), dict)

    @contextlib.contextmanager
    def _suggest_older(self, round_num: int, checkpoint: Path) -> Iterator[None]:
        """Adds the older checkpoints to an error in reading one, and how to go back to one."""
        try:
            yield
        except (ValueError, OSError) as error:
            damaged = error.name if isinstance(error, DamagedPart) else None
            reason = error.strerror if isinstance(error, OSError) else error
            text = self._describe_unusable(round_num, checkpoint, reason, damaged)
            raise (OSError(error.errno, text) if isinstance(error, OSError) else ValueError(text)) from error

    def unusable_error(self, round_num: int, reason: str) -> ValueError:
        """Returns the error of a checkpoint with wrong content, which names the others."""
        return ValueError(self._describe_unusable(round_num, self._path(round_num), reason, None))

    def _describe_unusable(self, round_num: int, checkpoint: Path, reason: Any, damaged: str | None) -> str:
        """Returns the text of an error: which checkpoints lack the damaged part, and how to go back."""
        complete = self._list_complete()
        affected, intact = _split_by_part({n: complete[n] for n in complete if n != round_num}, checkpoint, damaged)
        older = [other for other in intact if other < round_num]
        remedy = f"round {_join(affected)} has the same file; " if affected else ""
        without = " without it" if affected else ""
        if older:
            renamed = sorted(complete[n] for n in complete if n == round_num or (n in affected and n > older[-1]))
            names = " and ".join(f"{path} to {path.name}.damaged" for path in renamed)
            remedy += f"older{without}: round {_join(older)}; to go back to round {older[-1]} rename {names} and call again"
        else:
            remedy += f"there is no older one{without}; start anew in another directory"
        if self._beside is not None:
            affected, intact = _split_by_part(Checkpoints(self._beside)._list_complete(), checkpoint, damaged)
            remedy += f"; in {self._beside} round {_join(affected)} has the same file" if affected else ""
            without = " without it" if affected else ""
            remedy += f"; {self._beside} has round {_join(intact)}{without}" if intact else ""
        return f"the checkpoint of round {round_num} cannot be used ({reason}); {remedy}"

    def _path(self, round_num: int) -> Path:
        path = self._list_complete().get(round_num)
        if path is None:
            available = _join(self.rounds()) or "none"
            raise ValueError(f"{self.directory} has no checkpoint of round {round_num}; it has: {available}")
        return path

    def _list_complete(self) -> dict[int, Path]:
        """Returns the directories of complete checkpoints by round; the newest of a replaced one."""
        if not self.directory.exists():
            return {}
        newest: dict[int, tuple[int, Path]] = {}
        with reword_os_errors("read", self.directory):
            for path in self.directory.iterdir():
                if match := _COMPLETE.fullmatch(path.name):
                    round_num, version = int(match[1]), (_replacements(path), path)
                    newest[round_num] = max(newest.get(round_num, version), version)
        return {round_num: path for round_num, (_, path) in newest.items()}

    def _delete(self, path: Path) -> None:
        """Deletes a checkpoint; renamed first, as a partly deleted one must not look complete."""
        renamed = self.directory / f"{_UNFINISHED}{path.name}"
        try:
            path.rename(renamed)
            shutil.rmtree(renamed)
        except OSError as error:  # the new checkpoint is safe
            _log.warning("cannot delete the old checkpoint %s: %s", path, error.strerror)

    def _sweep(self) -> None:
        """Deletes leftovers of killed processes."""
        newest = set(self._list_complete().values())
        for path in self.directory.iterdir():
            if path.name.startswith(_UNFINISHED):
                shutil.rmtree(path)
            elif _COMPLETE.fullmatch(path.name) and path not in newest:
                self._delete(path)


class _Pending(NamedTuple):
    """A checkpoint that is being written.

    Attributes:
      temporary: its directory until it is complete.
      final: its directory afterwards.
      replaces: the directory of an earlier checkpoint of this round.
      digests: of its files and arrays, for digests.json.
      parts: file names of its parts, in order; None: it has none.
      first: number of the first new part.
    """

    temporary: Path
    final: Path
    replaces: Path | None
    digests: dict[str, Any]
    parts: list[str] | None = None
    first: int = 0


def _split_by_part(others: Mapping[int, Path], checkpoint: Path, part: str | None) -> tuple[list[int], list[int]]:
    """Returns the rounds of other checkpoints that share a part with this one, and those that do not."""
    affected = {n for n, path in others.items() if part and client_state_files.has_shared_part(checkpoint, path, part)}
    return sorted(affected), sorted(others.keys() - affected)


def _join(rounds: Iterable[int]) -> str:
    return ", ".join(map(str, rounds))


def _replacements(path: Path) -> int:
    """Returns how often the checkpoint of this round had been replaced."""
    return int(path.name.partition("-")[2] or 0)


def _number(index: int) -> str:
    return f"{index:05d}"


def _sync_tree(directory: Path) -> None:
    for folder, _, files in os.walk(directory):
        for file in files:
            with open(os.path.join(folder, file), "r+b") as handle:
                os.fsync(handle.fileno())
        sync_directory(folder)


def _read_digests(checkpoint: Path) -> dict[str, Any] | None:
    """Returns digests.json of a checkpoint; None if an earlier version wrote it without one."""
    path = checkpoint / _DIGESTS
    return read_json(path, {"files": {str: str}, "arrays": {str: str}, "parts?": [str]}) if path.exists() else None


def _read_verified_json(checkpoint: Path, file: str, digests: Mapping[str, Mapping[str, str]] | None, schema: Any) -> Any:
    """Reads a JSON file of a checkpoint; raises ValueError if its digest or its schema differs."""
    path = checkpoint / file
    if digests is not None and digest_bytes(read_bytes(path)) != digests["files"].get(file):
        raise ValueError(f"{path} is damaged: it is not what was written (its digest differs)")
    return read_json(path, schema)


def _read_verified_arrays(
    checkpoint: Path, entries: list[dict[str, Any]], digests: Mapping[str, Mapping[str, str]] | None
) -> dict[str, np.ndarray]:
    """Reads the arrays of a checkpoint by number; raises ValueError if the digest of one differs."""
    paths = {_number(index): entry["path"] for index, entry in enumerate(entries) if entry["stored"]}
    with reword_os_errors("read", checkpoint):
        for file in (checkpoint / _ARRAYS).rglob("*"):
            if not file.is_dir():
                check_regular(file)
        arrays = read_arrays(checkpoint / _ARRAYS, list(paths)) if paths else {}
    for number, path in paths.items():
        if digests is not None and digest_array(arrays[number]) != digests["arrays"].get(number):
            raise ValueError(f"{checkpoint} is damaged: leaf {path} is not what was written (its digest differs)")
    return arrays
