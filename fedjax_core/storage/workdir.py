"""The directory of a run: what lies there, and who may write to it.

config.json        the resolved config; what a resumed run is compared with
environment.json   versions, devices, commit and command line of the first start and of every resumption
run.json           what the run chose once and keeps: plan, partition hash, label table, digest of the data (`WorkDir.record`)
label_table.csv    the whole label table of more than 50 clients (`label_tables.py`)
metrics.jsonl      one line a round or evaluation (`reporter.py`), beside it metrics.csv, summary.json, tensorboard/
clients.csv        scores of single clients (`client_scores.py`), of the last evaluation; clients_selected.csv of the selected one
checkpoints/       `checkpoints.py`
"""

import errno
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax

from fedjax_core.atomic_files import TEMPORARY, explained
from fedjax_core.storage.environment import environment
from fedjax_core.storage.forms import Positive
from fedjax_core.storage.json_files import compact, plain, read_json, write_json
from fedjax_core.storage.lock import Lock

_log = logging.getLogger("fedjax_core")

CONFIG, ENVIRONMENT, RUN = "config.json", "environment.json", "run.json"
METRICS, CHECKPOINTS = "metrics.jsonl", "checkpoints"
DATA, BEGUN_HERE = "data", "begun_here"  # in run.json: the digest of inputs and targets; who began it (`origin.py`)
_LOCK = ".lock"
WRITTEN = (  # what else there may be of a run in its directory; nothing but this is ever deleted there
    *(
        "summary.json",
        CHECKPOINTS,
        "selected",
        RUN,
        METRICS,
        "label_table.csv",
        "metrics.csv",
        "clients.csv",
        "clients_selected.csv",
    ),
    *("tensorboard", "profile", "analysis.json", "answers.json", "wandb.id", "mlflow.id", "diverged.txt", "error.txt"),
    *("accuracy.png", "accuracy.csv", "partition.png", "partition.csv"),
)
RECORDED = {  # the form of run.json, for `read_json`
    "partition?": {
        "hash": str,
        "class_names?": [str],
        "client_names?": [str],
        "label_table?": [[int]],
        "test_label_table?": [[int]],
        "number?": Positive,
        "whole?": str,
    },
    f"{DATA}?": {"digest": str, "sampled?": {str: str}, "public?": str},
    "unseen?": {"clients?": [int], "client_names?": [str], "label_table?": [[int]], "test_label_table?": [[int]], "number?": int},
    "plan?": {"chunk": Positive, "devices": Positive, "model?": Positive},
    f"{BEGUN_HERE}?": {"signature": str},
    "placement?": {"data?": str, "hold?": (str, type(None))},
}


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
        return compact(fields[name]) if fields.get(name) is not None else "absent"  # as a field newer than the directory

    return {
        name: f"{show(there, name)} in the directory, {show(asked, name)} asked"
        for name in sorted(there.keys() | asked.keys())
        if show(there, name) != show(asked, name)
    }


def compare_configs(
    there: Mapping[str, Any], asked: Mapping[str, Any], may_differ: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the `differences` that are allowed, and the others; `may_differ` as `WorkDir.open` takes it."""
    found = differences(there, asked)
    allowed = {name for name in found if any(name == field or name.startswith(f"{field}.") for field in may_differ)}
    return {name: found[name] for name in found if name in allowed}, {name: found[name] for name in found if name not in allowed}


def _delete(place: Path) -> None:
    """Deletes a file, a link or a folder, if it is there; no pipe and no device."""
    if place.is_dir() and not place.is_symlink():
        doomed = place.with_name(f"{TEMPORARY}{place.name.removeprefix(TEMPORARY)}")
        place.rename(doomed)  # a checkpoint half deleted must not look complete
        shutil.rmtree(doomed)
    elif place.is_file() or place.is_symlink():
        place.unlink()


def lock_directory(path: Path) -> Lock:
    """Returns the lock of a run's directory, taken: no run begins there before it is closed.

    Raises:
      BlockingIOError: another process runs there.
      OSError: this process does, or the lock cannot be made.
    """
    return Lock(path / _LOCK)


class WorkDir:
    """The directory of one run, held by one process at a time. Made by `WorkDir.open`; closes as a context manager.

    Attributes:
      path: the directory.
      config: the resolved config, as plain JSON values.
      resumed: whether it holds a run that goes on.
      begun_anew: whether what it held of a run was deleted.
      writer: whether this process writes to it.
    """

    def __init__(self, path: Path, config: dict[str, Any], *, resumed: bool, writer: bool, lock: Lock | None) -> None:
        self.path = path
        self.config = config
        self.resumed = resumed
        self.begun_anew = False
        self.writer = writer
        self._lock = lock
        self._kept: dict[str, Any] | None = None  # what run.json holds, on the only process that writes it
        self._news: dict[Path, Any] = {}  # files of a resumed run that `take_over` is to write
        self._changed: dict[str, str] = {}  # fields in which its config differs

    @classmethod
    def open(
        cls,
        path: str | os.PathLike,
        config: Mapping[str, Any],
        *,
        may_differ: Sequence[str] = (),
        writer: bool | None = None,
        should_begin_anew: Callable[[], bool] = lambda: False,
    ) -> Self:
        """Makes the directory of a new run, or takes up the run that it holds.

        Args:
          path: the directory; it and its parents are made if they do not exist.
          config: the resolved config, of JSON values.
          may_differ: dotted names of fields (`"rounds"`), or of whole branches (`"report"`), in which a resumed run may
            differ from the directory's config. The directory has the new values after `take_over`; until then a run that is
            resumed is as it was.
          writer: whether this process writes and locks. By default process 0 does. Another process changes nothing; it
            sees the same directory only once process 0 has opened it, so put a barrier between the two.
          should_begin_anew: whether a run that the directory holds is given up; called when no other process can run there.

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
            lock = Lock(path / _LOCK)
        try:
            for leftover in path.glob(f"{TEMPORARY}*"):
                _delete(leftover)
            there = (path / CONFIG).exists()
            resumed = there and not should_begin_anew()
            run = cls(path, asked, resumed=resumed, writer=True, lock=lock)
            if there and not resumed:
                run.begin_anew()
            elif resumed:
                run._changed = cls._compare(path, asked, may_differ)
                started = read_json(path / ENVIRONMENT, {"resumed?": [dict]})
                now = environment()
                news = {key: value for key, value in now.items() if value != started.get(key) or key == "time"}
                run._news[path / ENVIRONMENT] = started | {"resumed": [*started.get("resumed", ()), news]}
                if run._changed:
                    run._news[path / CONFIG] = asked
            else:
                run._write_beginning()
        except BaseException:
            lock.close()
            raise
        return run

    def _write_beginning(self) -> None:
        write_json(self.path / ENVIRONMENT, environment())
        write_json(self.path / CONFIG, self.config)  # last: with it the directory holds a run

    def begin_anew(self) -> None:
        """Deletes what the directory holds of a run (`WRITTEN`), and makes it that of a new one. Other files stay, and so do links:
        what they lead to is deleted.

        Raises:
          OSError: if something cannot be deleted or written.
        """
        self.resumed, self.begun_anew = False, True
        self._kept, self._news, self._changed = None, {}, {}
        if not self.writer:
            return
        for name in WRITTEN:
            place = self.path / name
            with explained("delete", place):
                if place.is_symlink() and place.is_dir():
                    for each in list(place.iterdir()):
                        _delete(each)
                else:
                    _delete(Path(os.path.realpath(place)))
        self._write_beginning()

    def take_over(self) -> None:
        """Writes down that a run is resumed, and the fields of its config that differ; call it when nothing can refuse the run.

        A second call, or one for a new run, does nothing.

        Raises:
          OSError: if a file cannot be written.
        """
        for file, value in self._news.items():
            write_json(file, value)
        if self._changed:
            _log.info("%s goes on with %s", self.path, "; ".join(f"{key}: {text}" for key, text in self._changed.items()))
        self._news, self._changed = {}, {}

    @staticmethod
    def _refuse_foreign(path: Path) -> None:
        with explained("read", path):
            names = {name for name in os.listdir(path) if not name.startswith(TEMPORARY)}
        run = {CONFIG, ENVIRONMENT} <= names
        stillborn = _LOCK in names and names <= {_LOCK, ENVIRONMENT}  # killed before it could write its config
        if names and not run and not stillborn:
            some = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise ValueError(f"{path} is not empty and holds no run (found {some}); give a new or an empty directory")

    @staticmethod
    def _compare(path: Path, asked: Mapping[str, Any], may_differ: Sequence[str]) -> dict[str, str]:
        """Returns the differences that are allowed, raises for the others."""
        allowed, others = compare_configs(read_json(path / CONFIG, dict), asked, may_differ)
        if refused := [f"{name}: {text}" for name, text in others.items()]:
            raise ValueError(
                f"{path} holds a run with another config ({'; '.join(refused)}); "
                "take another directory, ask for the same values to resume, or begin it anew (--fresh)"
            )
        return allowed

    @property
    def metrics(self) -> Path:
        """The file of JSON lines that `reporter.py` writes."""
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
        records = read_json(file, RECORDED) if file.exists() else {}
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
