"""Checkpoints: a pytree of arrays and a record beside it, by round. The only module that knows Orbax.

A checkpoint is a directory named by its round:

    checkpoints/00000012/
      arrays/        Orbax's: the leaves, by number, as host arrays
      leaves.json    by number: path in the state, dtype, shape, and what Orbax must not know (key types, empty arrays)
      record.json    what the caller wants beside it

It is written under another name, synced, and renamed, so a process killed at any moment leaves the old checkpoints or the old
and the new. Leaves are stored as host arrays with no trace of the devices they lay on, and restored to wherever `like` wants
them: a run goes on with another number of devices. Saving is synchronous: when `save` returns the checkpoint is on the disk,
and the caller may donate the state's buffers.
"""

import collections
import concurrent.futures
import contextlib
import errno
import functools
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from fedjax_core.algorithm import PyTree
from fedjax_core.storage.files import explained, sync_directory
from fedjax_core.storage.json_files import plain, read_json, write_json

_log = logging.getLogger("fedjax_core")

_ARRAYS, _LEAVES, _RECORD = "arrays", "leaves.json", "record.json"
_COMPLETE = re.compile(r"(\d{8,})(?:-(\d+))?")  # round, and how often it was replaced
_UNFINISHED = ".unfinished-"  # prefix of what is being written or deleted

T = TypeVar("T")


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

    def save(self, round: int, state: PyTree, record: Mapping[str, Any] | None = None) -> None:  # noqa: A002
        """Writes a checkpoint, then deletes those beyond the last `keep`.

        Saving a round again replaces its checkpoint, as atomically.

        Args:
          round: the number of rounds that `state` has seen.
          state: pytree of jax arrays (typed keys too), numpy arrays and Python numbers. It is only read.
          record: JSON values to keep beside it.

        Raises:
          OSError: if it cannot be written; one line that names the path. Earlier checkpoints are intact.
          TypeError: if a leaf is not an array; if `record` has a value that JSON cannot hold.
          ValueError: if a leaf is spread over several processes, or the round is negative.
        """
        if round < 0:
            raise ValueError(f"round is {round}; rounds count from 0")
        if not self.writer:
            return
        leaves = [_to_host(name, leaf) for name, leaf in _named_leaves(state)]
        arrays = {_number(position): array for position, (_, array) in enumerate(leaves) if array is not None}
        beside = plain(record or {}, "record")
        before = self._complete().get(round)
        final = self.directory / f"{round:08d}{'' if before is None else f'-{_replaced(before) + 1}'}"
        temporary = self.directory / f"{_UNFINISHED}{final.name}"
        with explained(f"write the checkpoint of round {round} (earlier ones are intact) in", self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._sweep()
            try:
                temporary.mkdir()
                if arrays:
                    _orbax(lambda: _write(temporary / _ARRAYS, arrays))
                write_json(temporary / _LEAVES, [entry for entry, _ in leaves])
                write_json(temporary / _RECORD, beside)
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
        """Reads a checkpoint back, bit for bit.

        Args:
          round: one of `rounds()`.
          like: the state's structure. Where a leaf is a numpy array (or `Rows`) or a Python number such a leaf comes back;
            where it is a jax array or a ShapeDtypeStruct, a jax array, laid out by its `sharding` if it has one and, if it
            is an array, is committed to it, otherwise on the default device.

        Returns:
          The state and its record.

        Raises:
          ValueError: if there is no such checkpoint, or its leaves are not those of `like`: the message names the leaf.
          OSError: if it cannot be read.
        """
        place = self._place(round)
        entries, record = read_json(place / _LEAVES), read_json(place / _RECORD)
        wanted = _named_leaves(like)
        _check(place, entries, wanted)
        stored = [_number(position) for position, entry in enumerate(entries) if entry["stored"]]
        with explained("read", place):
            arrays = _orbax(lambda: _read(place / _ARRAYS, stored)) if stored else {}
        found = {entry["path"]: (entry, arrays.get(_number(position))) for position, entry in enumerate(entries)}
        leaves = [_from_host(*found.pop(name), leaf) for name, leaf in wanted]
        return jax.tree.unflatten(jax.tree.structure(like), leaves), record

    def record(self, round: int) -> dict[str, Any]:  # noqa: A002
        """The record beside a checkpoint, alone.

        Raises:
          ValueError: if there is no such checkpoint.
          OSError: if it cannot be read.
        """
        return read_json(self._place(round) / _RECORD)

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


def _named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Leaves under the names that errors and leaves.json call them: "server/net/params/0/kernel"."""
    found = jax.tree.leaves_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") or "the state" for path, _ in found]
    if twice := [name for name, count in collections.Counter(names).items() if count > 1]:
        raise ValueError(f"two leaves are called {twice[0]}; keys in the state must be told apart without their types")
    return [(name, leaf) for name, (_, leaf) in zip(names, found, strict=True)]


def _kind(name: str, leaf: Any) -> tuple[str, list[int]]:
    """Dtype and shape of a leaf: "float32", of keys "key<fry>" and the shape of the keys, of Python numbers "int" ..."""
    if _is_number(leaf):
        return type(leaf).__name__, []
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not (_is_key(leaf) or (np.dtype(dtype).kind in "biufcV" and np.dtype(dtype).names is None)):
        what = f"{type(leaf).__name__} of {dtype}" if dtype is not None else type(leaf).__name__
        raise TypeError(f"{name} is a {what}; a checkpoint holds arrays of numbers, anything else goes into its record")
    return str(dtype), list(leaf.shape)


def _is_number(leaf: Any) -> bool:
    """Whether a leaf is Python's own number; np.float64 is a float too, but not this."""
    return isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_impl(like: Any) -> Any:
    """Which generator the keys are for, of an array of keys or its ShapeDtypeStruct."""
    found = []
    jax.eval_shape(lambda keys: found.append(jax.random.key_impl(keys)), jax.ShapeDtypeStruct(like.shape, like.dtype))
    return found[0]


def _to_host(name: str, leaf: Any) -> tuple[dict[str, Any], np.ndarray | None]:
    """A leaf's entry in leaves.json, and its bits as Orbax takes them; None if there are none."""
    dtype, shape = _kind(name, leaf)
    if isinstance(leaf, jax.Array):
        if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            raise ValueError(f"{name} is spread over several processes; gather or replicate it before saving")
        leaf = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    host = np.asarray(leaf)
    if host.dtype.isbuiltin != 1:  # bfloat16 and its like: the integers that their bits are
        host = np.ascontiguousarray(host).view(f"uint{8 * host.dtype.itemsize}").reshape(host.shape)
    stored = host.size > 0  # Orbax refuses arrays without elements
    return {"path": name, "dtype": dtype, "shape": shape, "stored": stored}, host if stored else None


def _from_host(entry: Mapping[str, Any], host: np.ndarray | None, like: Any) -> Any:
    """`_to_host` undone, in the form and at the place of `like`."""
    dtype, shape = entry["dtype"], entry["shape"]
    if _is_number(like):
        return np.asarray(host).item()
    sharding = like.sharding if isinstance(like, jax.ShapeDtypeStruct) or getattr(like, "committed", False) else None
    if _is_key(like):
        form = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(like.shape, like.dtype))
        data = np.empty(form.shape, form.dtype) if host is None else host
        wrap = functools.partial(jax.random.wrap_key_data, impl=_key_impl(like))
        if sharding is not None and not sharding.is_fully_addressable:
            return jax.jit(wrap, out_shardings=sharding)(data)
        keys = wrap(jnp.asarray(data))
        return keys if sharding is None else jax.device_put(keys, sharding)
    array = np.empty(shape, np.dtype(dtype)) if host is None else host.view(np.dtype(dtype))
    if isinstance(like, np.generic):
        return array[()]
    if isinstance(like, np.ndarray):
        return array if array.flags.writeable else array.copy()
    if sharding is None:
        return jnp.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _check(place: Path, entries: list[dict[str, Any]], like: list[tuple[str, Any]]) -> None:
    """Raises ValueError for the first leaf in which a checkpoint is not what is wanted."""

    def show(kind: tuple[str, list[int]] | None) -> str:
        return "nothing" if kind is None else f"{kind[0]}[{','.join(map(str, kind[1]))}]"

    found = {entry["path"]: (entry["dtype"], entry["shape"]) for entry in entries}
    wanted = {name: _kind(name, leaf) for name, leaf in like}
    names = [*wanted, *(name for name in found if name not in wanted)]
    wrong = [name for name in names if found.get(name) != wanted.get(name)]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{place} does not fit this run: leaf {wrong[0]} is {show(found.get(wrong[0]))} there, "
            f"{show(wanted.get(wrong[0]))} is wanted{more}; resume with the method, model and data that wrote it"
        )
    for name, leaf in like:
        if isinstance(leaf, jax.ShapeDtypeStruct) and not _is_key(leaf) and jnp.result_type(leaf) != leaf.dtype:
            raise ValueError(f"leaf {name} is wanted as a jax array of {leaf.dtype}, which needs jax_enable_x64")


def _sync(directory: Path) -> None:
    """Makes a tree of files last through a power cut."""
    for folder, _, files in os.walk(directory):
        for file in files:
            with open(os.path.join(folder, file), "r+b") as handle:
                os.fsync(handle.fileno())
        sync_directory(folder)


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with _checkpointer() as checkpointer:
        checkpointer.save(path, args=ocp.args.PyTreeSave(arrays))


def _read(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    host = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
    with _checkpointer() as checkpointer:
        return checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=host))


def _checkpointer() -> ocp.Checkpointer:
    """Orbax for host arrays, in this process alone: the others are not waited for."""
    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(),
        active_processes={jax.process_index()},
        barrier_sync_key_prefix=f"process{jax.process_index()}",
    )
    return ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, multiprocessing_options=alone),
        multiprocessing_options=alone,
    )


def _orbax(call: Callable[[], T]) -> T:
    """Calls Orbax silently, in a thread of its own (a notebook's thread runs an event loop already).

    Raises:
      OSError: whatever Orbax raises, with the errno that its message tells.
    """
    with _no_logs("absl"), concurrent.futures.ThreadPoolExecutor(1) as thread:
        before, sys.unraisablehook = sys.unraisablehook, _unless_loop_closed(sys.unraisablehook)
        try:
            result = thread.submit(call).result()
            sys.unraisablehook = before  # after a failure it stays: writes under way still report to a closed loop
            return result
        except (OSError, MemoryError):
            raise
        except Exception as error:  # tensorstore reports a full disk as a ValueError
            if code := re.search(r"os_error_code='(\d+)'", str(error)):
                raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
            raise OSError(errno.EIO, str(error).partition("\n")[0] or type(error).__name__) from error


def _unless_loop_closed(hook: Callable) -> Callable:
    """An unraisablehook that leaves out what TensorStore's threads print when the event loop that waited for them has failed."""

    def filtered(unraisable):
        if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
            hook(unraisable)

    return filtered


@contextlib.contextmanager
def _no_logs(name: str) -> Iterator[None]:
    """Silences a logger: what goes wrong is raised."""
    logger = logging.getLogger(name)
    refuse = lambda record: False
    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
