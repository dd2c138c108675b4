"""The directory of a run: its files, and the lock that admits one process at a time.

config.json        the resolved config; a resumed run must match it
environment.json   versions, devices, commit and command line of the first start and of every resumption
run.json           choices that later starts reuse: plan, partition hash, label table, digest of the data (`WorkDir.record`)
label_table.csv    the label table of more than 50 clients (`label_tables.py`)
metrics.jsonl      one line per round or evaluation (`reporter.py`); also metrics.csv, summary.json, tensorboard/
clients.csv        scores per client (`client_scores.py`), of the last evaluation; clients_selected.csv of the selected one
checkpoints/       `checkpoints.py`
"""

import contextlib
import errno
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Self

import jax

from fedjax_core import __version__
from fedjax_core.atomic_files import TEMPORARY, reword_os_errors
from fedjax_core.storage.json_files import PositiveInt, dump_compact, flatten, read_json, to_json_values, write_json

_log = logging.getLogger("fedjax_core")

CONFIG, ENVIRONMENT, RUN = "config.json", "environment.json", "run.json"
METRICS, CHECKPOINTS = "metrics.jsonl", "checkpoints"
FIGURES = ("accuracy.png", "partition.png")
INCIDENTAL = (  # fields of a config that say how a run is placed, saved, watched and summarised
    *("plan", "checkpoint", "profile", "callbacks"),
    *("evaluation.targets", "evaluation.last_k"),
)
DATA, BEGUN_HERE = "data", "begun_here"  # keys of run.json: digest of inputs and targets; signature of the config
_LOCK = ".lock"
WRITTEN = (  # the other files of a run; a restart deletes these and nothing else
    *("summary.json", CHECKPOINTS, "selected", RUN, METRICS, "label_table.csv", "metrics.csv"),
    *("clients.csv", "clients_selected.csv", "tensorboard", "profile", "analysis.json", "answers.json", "audit"),
    *("wandb.id", "mlflow.id", "diverged.txt", "error.txt"),
    *FIGURES,
    *("accuracy.csv", "partition.csv"),
)
FILE_DIGESTS = ("code", "weights", "model_files", "method_files")  # entries of run.json with digests of files by name
RUN_SCHEMA = {  # of run.json, for `read_json`
    "partition?": {
        "hash": str,
        "class_names?": [str],
        "client_names?": [str],
        "label_table?": [[int]],
        "test_label_table?": [[int]],
        "number?": PositiveInt,
        "whole?": str,
    },
    f"{DATA}?": {"digest": str, "sampled?": {str: str}, "public?": str},
    "unseen?": {
        **{"clients?": [int], "client_names?": [str], "number?": int},
        **{"label_table?": [[int]], "test_label_table?": [[int]]},
    },
    "plan?": {"chunk": PositiveInt, "devices": PositiveInt, "model?": PositiveInt},
    f"{BEGUN_HERE}?": {"signature": str},
    **{f"{name}?": {str: str} for name in FILE_DIGESTS},
    "placement?": {"data?": str, "hold?": (str, type(None))},
}


def diff_configs(
    recorded: Mapping[str, Any], requested: Mapping[str, Any], where: tuple[str, str] = ("in the directory", "now")
) -> dict[str, str]:
    """Returns the fields in which two configs differ, with both values and where each is."""
    recorded, requested = flatten(to_json_values(recorded)), flatten(to_json_values(requested))

    def show(fields: Mapping[str, Any], name: str) -> str:
        return dump_compact(fields[name]) if fields.get(name) is not None else "absent"  # as a field newer than the directory

    pairs = {name: (show(recorded, name), show(requested, name)) for name in sorted(recorded.keys() | requested.keys())}
    return {name: f"{old} {where[0]}, {new} {where[1]}" for name, (old, new) in pairs.items() if old != new}


def is_within(name: str, fields: Sequence[str]) -> bool:
    """Returns whether a dotted name is one of some fields, or in one that is a group."""
    return any(f"{name}.".startswith(f"{field}.") for field in fields)


def compare_configs(
    recorded: Mapping[str, Any], requested: Mapping[str, Any], may_differ: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the allowed differences of two configs, and the others."""
    differences = diff_configs(recorded, requested)
    allowed = {name: text for name, text in differences.items() if is_within(name, may_differ)}
    return allowed, {name: text for name, text in differences.items() if name not in allowed}


def _delete(path: Path) -> None:
    """Deletes a file, link or folder, if it exists; pipes and devices stay."""
    if path.is_dir() and not path.is_symlink():
        renamed = path.with_name(f"{TEMPORARY}{path.name.removeprefix(TEMPORARY)}")
        path.rename(renamed)  # a partly deleted checkpoint must not look complete
        shutil.rmtree(renamed)
    elif path.is_file() or path.is_symlink():
        path.unlink()


class DirectoryInUse(BlockingIOError):
    """Another process has the lock."""


class Lock:
    """A file lock that the operating system releases when its process ends, however it ends."""

    _held: ClassVar[weakref.WeakSet["Lock"]] = weakref.WeakSet()  # of this process; in another container a process may have its pid

    def __init__(self, path: Path) -> None:
        """Acquires the lock, and writes this process's id into the file.

        Raises:
          DirectoryInUse: another process has it.
          OSError: this process has it, or the file cannot be opened.
        """
        self._file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (open until close)
        try:
            self._file_status = os.fstat(self._file.fileno())
            self._acquire(path.parent)
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()
            Lock._held.add(self)
        except BaseException:
            self._file.close()
            raise

    def _acquire(self, directory: Path) -> None:
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
            if any(os.path.samestat(lock._file_status, self._file_status) for lock in Lock._held):  # waiting would never end
                raise OSError(errno.EDEADLK, "this process already runs there; close that run first") from None
            reason = f"another process runs there (pid {holder or 'unknown'}); wait for it, or take another directory"
            raise DirectoryInUse(errno.EWOULDBLOCK, reason) from None

    def close(self) -> None:
        """Releases the lock; a second call does nothing."""
        Lock._held.discard(self)
        self._file.close()


def lock_directory(path: Path) -> Lock:
    """Acquires the lock of a run's directory; raises as `Lock`, and names the directory."""
    try:
        with reword_os_errors("run in", path):
            return Lock(path / _LOCK)
    except BlockingIOError as error:
        raise DirectoryInUse(*error.args) from None  # the rewording has lost the class


class WorkDir:
    """The directory of one run, locked by one process: `WorkDir.open`; a context manager.

    Attributes:
      path: the directory.
      config: the resolved config, as JSON values.
      resumed: whether the directory holds a run that is continued.
      restarted: whether an earlier run was deleted.
      writer: whether this process writes here.
    """

    def __init__(self, path: Path, config: dict[str, Any], *, resumed: bool, writer: bool, lock: Lock | None) -> None:
        self.path = path
        self.config = config
        self.resumed = resumed
        self.restarted = False
        self.writer = writer
        self._lock = lock
        self._cached_records: dict[str, Any] | None = None  # run.json, cached by the process that writes it
        self._pending_files: dict[Path, Any] = {}  # written by `commit_resume`
        self._pending_changes: dict[str, str] = {}  # config fields that a resumed run changes

    @classmethod
    def open(
        cls,
        path: str | os.PathLike,
        config: Mapping[str, Any],
        *,
        may_differ: Sequence[str] = (),
        writer: bool | None = None,
        should_restart: Callable[[], bool] = lambda: False,
    ) -> Self:
        """Creates the directory of a new run, or opens that of an earlier one.

        Args:
          path: the directory; created with its parents.
          config: the resolved config, of JSON values.
          may_differ: dotted names of fields (`"rounds"`) or branches (`"report"`) that a resumed
            run may change. The directory gets the new values from `commit_resume`.
          writer: whether this process writes and locks; default: process 0 does. The other
            processes see the same directory only after process 0 has opened it, so put a barrier
            between the two.
          should_restart: whether to delete an earlier run and start again; called while the lock is
            held.

        Raises:
          ValueError: the directory holds a run with another config (all differences are listed) or
            something else.
          DirectoryInUse: another process runs there.
          OSError: the directory cannot be created, read or written.
        """
        path = Path(path)
        requested = to_json_values(config)
        writer = jax.process_index() == 0 if writer is None else writer
        if not writer:
            resumed = (path / CONFIG).exists()
            if resumed:
                cls._check_config(path, requested, may_differ)
            return cls(path, requested, resumed=resumed, writer=False, lock=None)

        with reword_os_errors("make the run directory", path):
            if path.exists() and not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "it is a file; give a directory")
            if path.is_symlink() and not path.exists():
                raise FileNotFoundError(errno.ENOENT, f"it is a link to {os.readlink(path)}, which is not there")
            path.mkdir(parents=True, exist_ok=True)
        cls._refuse_foreign(path)
        lock = lock_directory(path)
        try:
            for leftover in path.glob(f"{TEMPORARY}*"):
                _delete(leftover)
            exists = (path / CONFIG).exists()
            resumed = exists and not should_restart()
            workdir = cls(path, requested, resumed=resumed, writer=True, lock=lock)
            if resumed:
                workdir._prepare_resume(may_differ)
            elif exists:
                workdir.restart()
            else:
                workdir._write_initial_files()
        except BaseException:
            lock.close()
            raise
        return workdir

    def _prepare_resume(self, may_differ: Sequence[str]) -> None:
        """Collects what `commit_resume` will write."""
        self._pending_changes = self._check_config(self.path, self.config, may_differ)
        first = read_json(self.path / ENVIRONMENT, {"resumed?": [dict]})
        changes = {key: value for key, value in describe_environment().items() if value != first.get(key) or key == "time"}
        self._pending_files[self.path / ENVIRONMENT] = first | {"resumed": [*first.get("resumed", ()), changes]}
        if self._pending_changes:
            self._pending_files[self.path / CONFIG] = self.config

    def _write_initial_files(self) -> None:
        write_json(self.path / ENVIRONMENT, describe_environment())
        write_json(self.path / CONFIG, self.config)  # last: a directory with a config holds a run

    def restart(self) -> None:
        """Deletes the files of the earlier run (`WRITTEN`) and initialises a new one.

        Other files stay. Links stay too; what they point to is deleted.
        """
        self.resumed, self.restarted = False, True
        self._cached_records, self._pending_files, self._pending_changes = None, {}, {}
        if not self.writer:
            return
        for path in (self.path / name for name in WRITTEN):
            with reword_os_errors("delete", path):
                if path.is_symlink() and path.is_dir():
                    for child in list(path.iterdir()):
                        _delete(child)
                else:
                    _delete(Path(os.path.realpath(path)))
        self._write_initial_files()

    def commit_resume(self) -> None:
        """Records the resumption and the changed config fields, once all checks have passed."""
        for file, value in self._pending_files.items():
            write_json(file, value)
        if self._pending_changes:
            changes = "; ".join(f"{key}: {text}" for key, text in self._pending_changes.items())
            _log.info("%s goes on with %s", self.path, changes)
        self._pending_files, self._pending_changes = {}, {}

    @staticmethod
    def _refuse_foreign(path: Path) -> None:
        """Raises ValueError for a directory that is neither empty nor a run."""
        with reword_os_errors("read", path):
            names = {name for name in os.listdir(path) if not name.startswith(TEMPORARY)}
        is_run = {CONFIG, ENVIRONMENT} <= names
        is_unfinished = _LOCK in names and names <= {_LOCK, ENVIRONMENT}  # killed before its config was written
        if names and not is_run and not is_unfinished:
            listed = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise ValueError(f"{path} is not empty and holds no run (it has {listed}); give a new or an empty directory")

    @staticmethod
    def _check_config(path: Path, requested: Mapping[str, Any], may_differ: Sequence[str]) -> dict[str, str]:
        """Returns the allowed differences from the directory's config; refuses others."""
        allowed, refused = compare_configs(read_json(path / CONFIG, dict), requested, may_differ)
        if refused:
            raise ValueError(
                f"{path} holds a run with another config ({'; '.join(f'{name}: {text}' for name, text in refused.items())}); "
                "take another directory, ask for the same values to resume, or begin it anew (--fresh)"
            )
        return allowed

    def record(self, name: str, value: Mapping[str, Any]) -> None:
        """Stores a choice of this run, such as "plan", in run.json for later starts."""
        if self.writer:
            self._cached_records = self._read_records() | {name: to_json_values(value, name)}
            write_json(self.path / RUN, self._cached_records)

    def get_record(self, name: str) -> dict[str, Any] | None:
        """Returns the record of a name, from this start or an earlier one; None if there is none."""
        return self._read_records().get(name)

    def _read_records(self) -> dict[str, Any]:
        if self._cached_records is not None:
            return self._cached_records
        file = self.path / RUN
        records = read_json(file, RUN_SCHEMA) if file.exists() else {}
        if self.writer:
            self._cached_records = records
        return records

    def close(self) -> None:
        """Releases the lock; a second call does nothing."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def describe_environment() -> dict[str, Any]:
    """Returns versions, devices, commit, command and time, without names of user and machine."""
    versions = {}
    for package in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    kinds = [device.device_kind for device in jax.devices()]
    home = os.path.expanduser("~").rstrip(os.sep) + os.sep
    return {
        "python": platform.python_version(),
        "versions": versions,
        "platform": f"{platform.system()} {platform.machine()}",
        "backend": jax.default_backend(),
        "devices": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "processes": jax.process_count(),
        "cpus": os.cpu_count(),
        "commit": _commit() or {"version": __version__},
        "command": [argument.replace(home, f"~{os.sep}") for argument in sys.argv] if home != os.sep else sys.argv,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _commit() -> dict[str, Any] | None:
    """Returns the project's commit and whether its files differ; None for an installed copy."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # an installed copy may be inside another repository
        return {"hash": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None
