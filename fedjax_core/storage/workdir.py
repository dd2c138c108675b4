"""The directory of a run: who may write there, and how anything gets onto the disk.

    config.json        the resolved config; what a resumed run is compared with
    environment.json   versions, devices, commit and command line of the first start and of every resumption
    run.json           what the run chose once and keeps: plan, partition hash, label table (`WorkDir.record`)
    metrics.jsonl      one line a round or evaluation (`report.py`), beside it metrics.csv, summary.json, tensorboard/
    checkpoints/       `checkpoint.py`

A file is written beside its place, synced, and moved over it, so a reader finds the old one or the new one. JSON is strict:
floats that are not finite are the strings "NaN", "Infinity" and "-Infinity", which `float` understands and `read_json` and
`read_jsonl` turn back.
"""

import contextlib
import csv
import errno
import io
import json
import logging
import math
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

_log = logging.getLogger("fedjax_core")

CONFIG, ENVIRONMENT, RUN = "config.json", "environment.json", "run.json"
METRICS, CHECKPOINTS = "metrics.jsonl", "checkpoints"
_LOCK = ".lock"
_TEMPORARY = ".writing-"  # prefix of files on their way to their place
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@contextlib.contextmanager
def explained(action: str, path: str | os.PathLike) -> Iterator[None]:
    """Turns an OSError into one line that names the path: `cannot <action> <path>: <reason>`, same errno.

    Args:
      action: what is being done, "write" or "read".
      path: the file or directory that it is done to.

    Raises:
      OSError: whichever was raised inside, reworded.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno or errno.EIO, f"cannot {action} {os.fspath(path)}: {reason}") from error


def sync_directory(path: str | os.PathLike) -> None:
    """Makes renames inside a directory last through a power cut, where the platform can."""
    if os.name != "nt":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # some network drives cannot
                raise
        finally:
            os.close(handle)


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Writes a file atomically: after a crash at any moment it holds its old content or all of the new.

    Args:
      path: the file; its directory must exist.
      data: its content.

    Raises:
      OSError: one line that names the path; the old file is intact.
    """
    path = Path(path)
    temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{threading.get_ident()}-{path.name}")
    with explained("write", path):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_directory(path.parent)


def write_text(path: str | os.PathLike, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes a value as strict JSON for human eyes: keys sorted, one row of a table a line.

    Args:
      path: the file; its directory must exist.
      value: see `plain`.
    """
    write_text(path, _layout(plain(value), "") + "\n")


def write_csv(path: str | os.PathLike, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Writes rows under the union of their keys; a cell that a row lacks is empty.

    Args:
      path: the file; its directory must exist.
      rows: one mapping a line.
      columns: which come first, in this order; the others follow as they appear.
    """
    rows = list(rows)
    columns = list(dict.fromkeys([*columns, *(key for row in rows for key in row)]))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_json(path: str | os.PathLike) -> Any:
    """Reads what `write_json` wrote.

    Raises:
      OSError: if the file cannot be read.
      ValueError: if it is not JSON.
    """
    with explained("read", path):
        data = Path(path).read_bytes()
    try:
        return _finite_or_not(json.loads(data))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is not JSON ({error}); restore it, or take another directory") from None


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads a file of JSON lines. A last line that was never finished (the writer was killed) is left out.

    Raises:
      OSError: if the file cannot be read.
      ValueError: if a line before the last is not JSON.
    """
    with explained("read", path):
        *lines, _ = Path(path).read_bytes().split(b"\n")  # behind the last newline: nothing, or a torn line
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(_finite_or_not(json.loads(line)))
        except ValueError as error:
            raise ValueError(f"line {number} of {os.fspath(path)} is not JSON ({error}); remove that line") from None
    return records


def json_lines(records: Iterable[Mapping[str, Any]]) -> str:
    """Records as JSON, a line each, every line ended."""
    return "".join(_compact(plain(record)) + "\n" for record in records)


class JsonLines:
    """An append-only file of JSON lines: what `append` returned from is on the disk.

    A line that an earlier process left unfinished is cut when the file is opened, one that does not fit on the disk when
    the error is raised.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        """Opens the file, or makes it.

        Args:
          path: the file; its directory must exist.
        """
        self.path = Path(path)
        with explained("write", path):
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (open until close)
            self._file.seek(0)
            data = self._file.read()
            self._file.truncate(data.rfind(b"\n") + 1)

    def append(self, *records: Mapping[str, Any]) -> None:
        """Adds a line per record and syncs once.

        Raises:
          OSError: one line that names the file; the lines before these are intact.
        """
        data = json_lines(records).encode()
        with explained("write", self.path):
            end = os.fstat(self._file.fileno()).st_size
            try:
                rest = memoryview(data)
                while rest:  # a nearly full disk takes a part and fails at the next write
                    rest = rest[self._file.write(rest) :]
                os.fsync(self._file.fileno())
            except BaseException:
                self._file.truncate(end)
                raise

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        self._file.close()


def plain(value: Any, where: str = "") -> Any:
    """A copy made of what JSON has: dicts with string keys, lists, strings, numbers, booleans, None.

    Tuples become lists, arrays nested lists, numpy and jax scalars Python numbers, paths strings; anything with a `to_dict`
    (a ConfigDict) the dict that it returns; floats that are not finite the strings "NaN", "Infinity", "-Infinity".

    Args:
      value: what to copy.
      where: its name, for the error.

    Raises:
      TypeError: if JSON has no place for a value; the message names its field.
    """
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}" if where else str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return plain(np.asarray(value).tolist(), where)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{where or 'the value'} is a {type(value).__name__}, which JSON cannot hold: {value!r:.80}")


def _finite_or_not(value: Any) -> Any:
    """`plain` undone for the floats that are not finite."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _finite_or_not(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite_or_not(item) for item in value]
    return value


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _layout(value: Any, indent: str) -> str:
    """JSON with sorted keys, a field a line and a list of scalars on one line."""
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        lines = (f"{deeper}{_compact(key)}: {_layout(value[key], deeper)}" for key in sorted(value))
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        return "[\n" + ",\n".join(deeper + _layout(item, deeper) for item in value) + f"\n{indent}]"
    return _compact(value)


def environment() -> dict[str, Any]:
    """What the run ran on: versions, devices, commit, command line, time. Neither the user's name nor the machine's."""
    versions = {}
    for package in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    kinds = [device.device_kind for device in jax.devices()]
    return {
        "python": platform.python_version(),
        "versions": versions,
        "platform": f"{platform.system()} {platform.machine()}",
        "backend": jax.default_backend(),
        "devices": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "processes": jax.process_count(),
        "cpus": os.cpu_count(),
        "commit": _commit(),
        "command": [_without_home(argument) for argument in sys.argv],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _without_home(argument: str) -> str:
    home = os.path.expanduser("~").rstrip(os.sep)
    return argument.replace(home + os.sep, "~" + os.sep) if home else argument


def _commit() -> dict[str, Any] | None:
    """Commit of the project and whether its files differ from it; None for an installed copy or without git."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # another repository may lie around an installed copy
        return {"hash": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _fields(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of a nested dict under dotted names."""
    fields = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            fields |= _fields(value, f"{prefix}{key}.")
        else:
            fields[f"{prefix}{key}"] = value
    return fields


def differences(there: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, str]:
    """What differs between two configs: dotted name -> "<value> in the directory, <value> asked"."""
    there, asked = _fields(plain(there)), _fields(plain(asked))

    def show(fields: Mapping[str, Any], name: str) -> str:
        return _compact(fields[name]) if name in fields else "absent"

    return {
        name: f"{show(there, name)} in the directory, {show(asked, name)} asked"
        for name in sorted(there.keys() | asked.keys())
        if show(there, name) != show(asked, name)
    }


class _Lock:
    """A lock on a file that the system lets go of when its process dies, however it dies."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (open until close)
        try:
            self._take(path.parent)
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()
        except BaseException:
            self._file.close()
            raise

    def _take(self, directory: Path) -> None:
        try:
            if sys.platform == "win32":
                import msvcrt

                self._file.seek(0)
                msvcrt.locking(self._file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL):
                _log.warning("the file system of %s has no locks; start no second run there", directory)
                return
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
                raise
            holder = ""
            with contextlib.suppress(OSError):
                self._file.seek(0)
                holder = self._file.read().strip()
            if holder == str(os.getpid()):
                reason = "this process already runs there; close that run first"
            else:
                reason = f"another process runs there (pid {holder or 'unknown'}); wait for it, or take another directory"
            raise BlockingIOError(errno.EWOULDBLOCK, reason) from None

    def close(self) -> None:
        self._file.close()


class WorkDir:
    """The directory of one run, held by one process at a time. Made by `WorkDir.open`; closes as a context manager.

    Attributes:
      path: the directory.
      config: the resolved config, as plain JSON values.
      resumed: whether it held a run already.
      writer: whether this process writes to it.
    """

    def __init__(self, path: Path, config: dict[str, Any], *, resumed: bool, writer: bool, lock: _Lock | None) -> None:
        self.path = path
        self.config = config
        self.resumed = resumed
        self.writer = writer
        self._lock = lock
        self._kept: dict[str, Any] | None = None  # what run.json holds, on the only process that writes it

    @classmethod
    def open(
        cls,
        path: str | os.PathLike,
        config: Mapping[str, Any],
        *,
        may_differ: Sequence[str] = (),
        writer: bool | None = None,
    ) -> Self:
        """Makes the directory of a new run, or takes up the run that it holds.

        Args:
          path: the directory; it and its parents are made if they do not exist.
          config: the resolved config, of JSON values.
          may_differ: dotted names of fields (`"rounds"`), or of whole branches (`"report"`), in which a resumed run may
            differ from the directory's config. The directory then takes over the new values.
          writer: whether this process writes and locks. By default process 0 does. Another process changes nothing; it
            sees the same directory only once process 0 has opened it, so put a barrier between the two.

        Raises:
          ValueError: if the directory holds a run with another config (every differing field is listed), or something
            that is not a run.
          OSError: if another process runs there, or if the directory cannot be made, read or written.
        """
        path = Path(path)
        asked = plain(config)
        writer = jax.process_index() == 0 if writer is None else writer
        if not writer:
            resumed = (path / CONFIG).exists()
            if resumed:
                cls._compare(path, asked, may_differ)
            return cls(path, asked, resumed=resumed, writer=False, lock=None)

        with explained("make the run directory", path):
            if path.exists() and not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "it is a file; give a directory")
            path.mkdir(parents=True, exist_ok=True)
        cls._refuse_foreign(path)
        with explained("run in", path):
            lock = _Lock(path / _LOCK)
        try:
            for leftover in path.glob(f"{_TEMPORARY}*"):
                leftover.unlink(missing_ok=True)
            resumed = (path / CONFIG).exists()
            if resumed:
                changed = cls._compare(path, asked, may_differ)
                started = read_json(path / ENVIRONMENT)
                now = environment()
                news = {key: value for key, value in now.items() if value != started.get(key) or key == "time"}
                write_json(path / ENVIRONMENT, started | {"resumed": [*started.get("resumed", ()), news]})
                if changed:
                    write_json(path / CONFIG, asked)
                    _log.info("%s goes on with %s", path, "; ".join(f"{key}: {text}" for key, text in changed.items()))
            else:
                write_json(path / ENVIRONMENT, environment())
                write_json(path / CONFIG, asked)  # last: with it the directory holds a run
        except BaseException:
            lock.close()
            raise
        return cls(path, asked, resumed=resumed, writer=True, lock=lock)

    @staticmethod
    def _refuse_foreign(path: Path) -> None:
        with explained("read", path):
            names = {name for name in os.listdir(path) if not name.startswith(_TEMPORARY)}
        run = {CONFIG, ENVIRONMENT} <= names
        stillborn = _LOCK in names and names <= {_LOCK, ENVIRONMENT}  # killed before it could write its config
        if names and not run and not stillborn:
            some = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise ValueError(f"{path} is not empty and holds no run (found {some}); give a new or an empty directory")

    @staticmethod
    def _compare(path: Path, asked: Mapping[str, Any], may_differ: Sequence[str]) -> dict[str, str]:
        """Returns the differences that are allowed, raises for the others."""
        there = read_json(path / CONFIG)
        if not isinstance(there, dict):
            raise ValueError(f"{path / CONFIG} holds a {type(there).__name__}, not a config; take another directory")
        found = differences(there, asked)
        allowed = {
            name: text for name, text in found.items() if any(name == field or name.startswith(f"{field}.") for field in may_differ)
        }
        if refused := [f"{name}: {text}" for name, text in found.items() if name not in allowed]:
            raise ValueError(
                f"{path} holds a run with another config ({'; '.join(refused)}); "
                "take another directory, or ask for the same values to resume"
            )
        return allowed

    @property
    def metrics(self) -> Path:
        """The file of JSON lines that `report.py` writes."""
        return self.path / METRICS

    @property
    def checkpoints(self) -> Path:
        """The directory of the checkpoints."""
        return self.path / CHECKPOINTS

    def record(self, name: str, value: Mapping[str, Any]) -> None:
        """Keeps something that the run chose, in run.json, for the runs that resume it; replaces an earlier record.

        Args:
          name: e.g. "plan", "partition".
          value: what `plain` can copy. On a process that does not write nothing happens.
        """
        if self.writer:
            records = self._records() | {name: plain(value, name)}
            write_json(self.path / RUN, records)
            self._kept = records

    def recorded(self, name: str) -> dict[str, Any] | None:
        """What was recorded under a name, by this process or by one before it; None if nothing was."""
        return self._records().get(name)

    def _records(self) -> dict[str, Any]:
        if self._kept is not None:
            return self._kept
        file = self.path / RUN
        records = read_json(file) if file.exists() else {}
        if self.writer:
            self._kept = records
        return records

    def close(self) -> None:
        """Lets another process run here; a second call does nothing."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
