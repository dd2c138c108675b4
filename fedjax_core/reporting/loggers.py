"""Loggers: callbacks that take a run's records to Weights & Biases or to MLflow. Neither package is needed by anything else.

    config.callbacks = ("wandb(project='heterogeneity')", "mlflow(experiment='heterogeneity')")

`pip install 'fedjax-core[loggers]'` brings both. A run that is resumed goes on in the logger's same run: its id is kept in the
run's directory. See `fedjax_core/run/callbacks.py` for what a callback is.

TensorBoard's files.
"""

import importlib
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_core.atomic_files import explained, read_bytes, write_text
from fedjax_core.storage.json_files import plain

LONGEST = 500  # signs of a parameter's value in MLflow


class WeightsAndBiases:
    """Records as metrics of a run of Weights & Biases, by round; the config as its config; the summary at the end."""

    def __init__(self, project: str = "fedjax", name: str = "", mode: str = "", directory: str = ""):
        """Args:
          project: where the run is listed.
          name: of the run; "" for the directory's.
          mode: "online", "offline" or "disabled"; "" for what WANDB_MODE says.
          directory: for its own files; "" for the run's directory.

        Raises:
          ValueError: the package is not installed, or there is no such mode.
        """
        if mode not in ("", "online", "offline", "disabled"):
            raise ValueError(f"wandb: mode={mode!r} is not one of online, offline, disabled")
        self._package = _package("wandb")
        self._settings = {"project": project, "name": name, "mode": mode, "dir": directory}
        self._run: Any = None

    def start(self, started: Any) -> None:
        given = self._settings | {"name": self._settings["name"] or started.directory.name}
        given["dir"] = given["dir"] or str(started.directory)
        note = started.directory / "wandb.id"
        known = _noted(note)
        self._run = self._package.init(
            **{name: value for name, value in given.items() if value},
            config=plain(started.config),
            id=known or None,
            resume="allow" if known else None,
        )
        if not known:
            write_text(note, self._run.id)

    def round(self, record: Mapping[str, Any]) -> None:
        self._run.log(dict(record), step=record["round"])

    def end(self, ended: Any) -> None:
        if self._run is not None:
            self._run.summary.update({"status": ended.status, "rounds_done": ended.done})
            self._run.finish(exit_code=int(ended.status == "failed"))


class MLflow:
    """Records as metrics of a run of MLflow, by round; the config's fields as parameters."""

    def __init__(self, experiment: str = "fedjax", name: str = "", uri: str = ""):
        """Args:
          experiment: where the run is listed.
          name: of the run; "" for the directory's.
          uri: of the tracking server, or of a local store; "" for what MLFLOW_TRACKING_URI says.

        Raises:
          ValueError: the package is not installed.
        """
        self._package = _package("mlflow")
        self._experiment, self._name, self._uri = experiment, name, uri
        self._client: Any = None
        self._id = ""

    def start(self, started: Any) -> None:
        client = self._package.MlflowClient(tracking_uri=self._uri or None)
        note = started.directory / "mlflow.id"
        self._id = _noted(note)
        if self._id:
            client.update_run(self._id, status="RUNNING")
        else:
            known = client.get_experiment_by_name(self._experiment)
            place = known.experiment_id if known else client.create_experiment(self._experiment)
            self._id = client.create_run(place, run_name=self._name or started.directory.name).info.run_id
            for field, value in _fields(plain(started.config)).items():
                client.log_param(self._id, field, str(value)[:LONGEST])
            write_text(note, self._id)
        self._client = client

    def round(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name != "round" and isinstance(value, (int, float)) and math.isfinite(value):
                self._client.log_metric(self._id, name, float(value), step=record["round"])

    def end(self, ended: Any) -> None:
        if self._client is not None:
            status = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[ended.status]
            self._client.set_terminated(self._id, status=status)


CALLBACKS = {"wandb": WeightsAndBiases, "mlflow": MLflow}  # by the names that configs use


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"callback {name!r} needs the package {name} ({error}); pip install 'fedjax-core[loggers]'") from None


def _noted(note: Path) -> str:
    """The logger's run that this directory's belongs to; "" at the first start."""
    return read_bytes(note).decode(errors="replace").strip() if note.exists() else ""


def _fields(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of nested dicts by dotted names."""
    fields: dict[str, Any] = {}
    for key, value in config.items():
        fields |= _fields(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return fields


class TensorBoardWriter:
    """TensorBoard's scalars, written in the caller's thread: tensorboardX's own writer waits for ever for a thread that a full
    disk has killed, and puts the machine's name into the file's. Imported when needed: it loads torch where there is one."""

    def __init__(self, directory: Path, from_round: int) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue] (made at import)
        from tensorboardX.record_writer import RecordWriter
        from tensorboardX.summary import scalar

        self._path, self._event, self._scalar = directory, Event, scalar
        with explained("write", directory):
            directory.mkdir(exist_ok=True)
            number = len(list(directory.glob("events.out.tfevents.*")))
            self._file = RecordWriter(str(directory / f"events.out.tfevents.{time.time():.0f}.{number}"))
            self._write(file_version="brain.Event:2")
            if number:  # TensorBoard then forgets what earlier files say from this step on
                self._write(step=from_round + 1, session_log=SessionLog(status=SessionLog.START))
            self._file.flush()
        self._flushed = time.monotonic()

    def _write(self, **event: Any) -> None:
        self._file.write(self._event(wall_time=time.time(), **event).SerializeToString())

    def add(self, record: Mapping[str, Any]) -> None:
        with explained("write", self._path):
            for name, value in record.items():
                if name != "round" and isinstance(value, (int, float)):
                    self._write(step=record["round"], summary=self._scalar(name, value))
            if time.monotonic() - self._flushed > 2:
                self._file.flush()
                self._flushed = time.monotonic()

    def close(self) -> None:
        with explained("write", self._path):
            self._file.flush()
            self._file.close()
