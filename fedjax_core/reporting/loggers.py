"""Loggers: TensorBoard files, and callbacks that send a run's records to Weights & Biases or
MLflow.

    config.callbacks = ("wandb(project='heterogeneity')", "mlflow(experiment='heterogeneity')")

`pip install 'fedjax-core[loggers]'` installs both. A resumed run continues the logger's run, whose
id is stored in the run's directory. `fedjax_core/run/callbacks.py` describes callbacks.
"""

import importlib
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_core.atomic_files import read_bytes, reword_os_errors, write_text
from fedjax_core.storage.json_files import flatten, to_json_values

MAX_PARAM_LENGTH = 500  # characters of a parameter's value in MLflow


class WeightsAndBiases:
    """Logs records as metrics by round to Weights & Biases, with the config and a summary."""

    def __init__(self, project: str = "fedjax", name: str = "", mode: str = "", directory: str = ""):
        """Args:
          project: of the run.
          name: of the run; "": the directory's name.
          mode: "online", "offline" or "disabled"; "": WANDB_MODE.
          directory: for the package's files; "": the run's directory.

        Raises:
          ValueError: the package is not installed, or `mode` is unknown.
        """
        if mode not in ("", "online", "offline", "disabled"):
            raise ValueError(f"wandb: mode={mode!r} is not one of online, offline, disabled")
        self._package = _import_package("wandb")
        self._settings = {"project": project, "name": name, "mode": mode, "dir": directory}
        self._run: Any = None

    def start(self, started: Any) -> None:
        settings = self._settings | {"name": self._settings["name"] or started.directory.name}
        settings["dir"] = settings["dir"] or str(started.directory)
        id_file = started.directory / "wandb.id"
        run_id = _read_id(id_file)
        self._run = self._package.init(
            **{name: value for name, value in settings.items() if value},
            config=to_json_values(started.config),
            id=run_id or None,
            resume="allow" if run_id else None,
            reinit="create_new",  # the seeds of a table's row may train at once, each with a run of its own
        )
        if not run_id:
            write_text(id_file, self._run.id)

    def round(self, record: Mapping[str, Any]) -> None:
        self._run.log(dict(record), step=record["round"])

    def end(self, ended: Any) -> None:
        if self._run is not None:
            self._run.summary.update({"status": ended.status, "rounds_done": ended.done})
            self._run.finish(exit_code=int(ended.status == "failed"))


class MLflow:
    """Logs records as metrics by round to MLflow, with the config's fields as parameters."""

    def __init__(self, experiment: str = "fedjax", name: str = "", uri: str = ""):
        """Args:
          experiment: of the run.
          name: of the run; "": the directory's name.
          uri: of the tracking server or a local store; "": MLFLOW_TRACKING_URI.

        Raises:
          ValueError: the package is not installed.
        """
        self._package = _import_package("mlflow")
        self._experiment, self._name, self._uri = experiment, name, uri
        self._client: Any = None
        self._id = ""

    def start(self, started: Any) -> None:
        client = self._package.MlflowClient(tracking_uri=self._uri or None)
        id_file = started.directory / "mlflow.id"
        self._id = _read_id(id_file)
        if self._id:
            client.update_run(self._id, status="RUNNING")
        else:
            known = client.get_experiment_by_name(self._experiment)
            experiment_id = known.experiment_id if known else client.create_experiment(self._experiment)
            self._id = client.create_run(experiment_id, run_name=self._name or started.directory.name).info.run_id
            for field, value in flatten(to_json_values(started.config)).items():
                if value != {}:
                    client.log_param(self._id, field, str(value)[:MAX_PARAM_LENGTH])
            write_text(id_file, self._id)
        self._client = client

    def round(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name != "round" and isinstance(value, (int, float)) and math.isfinite(value):
                self._client.log_metric(self._id, name, float(value), step=record["round"])

    def end(self, ended: Any) -> None:
        if self._client is not None:
            status = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[ended.status]
            self._client.set_terminated(self._id, status=status)


CALLBACKS = {"wandb": WeightsAndBiases, "mlflow": MLflow}  # by their names in configs


def _import_package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"callback {name!r} needs the package {name} ({error}); pip install 'fedjax-core[loggers]'") from None


def _read_id(file: Path) -> str:
    """Returns the id of the logger's run; "" at the first start."""
    return read_bytes(file).decode(errors="replace").strip() if file.exists() else ""


class TensorBoardWriter:
    """Writes TensorBoard scalars in the caller's thread.

    tensorboardX's own writer blocks forever once a full disk has killed its thread, and puts the
    machine's name into the file name. The package is imported here because it loads torch if that
    is installed.
    """

    def __init__(self, directory: Path, from_round: int) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue] (made at import)
        from tensorboardX.record_writer import RecordWriter
        from tensorboardX.summary import scalar

        self._path, self._event, self._scalar = directory, Event, scalar
        with reword_os_errors("write", directory):
            directory.mkdir(exist_ok=True)
            number = len(list(directory.glob("events.out.tfevents.*")))
            self._file = RecordWriter(str(directory / f"events.out.tfevents.{time.time():.0f}.{number}"))
            self._write(file_version="brain.Event:2")
            if number:  # TensorBoard then ignores earlier files from this step on
                self._write(step=from_round + 1, session_log=SessionLog(status=SessionLog.START))
            self._file.flush()
        self._flushed = time.monotonic()

    def _write(self, **event: Any) -> None:
        self._file.write(self._event(wall_time=time.time(), **event).SerializeToString())

    def add(self, record: Mapping[str, Any]) -> None:
        with reword_os_errors("write", self._path):
            for name, value in record.items():
                if name != "round" and isinstance(value, (int, float)):
                    self._write(step=record["round"], summary=self._scalar(name, value))
            if time.monotonic() - self._flushed > 2:
                self._file.flush()
                self._flushed = time.monotonic()

    def close(self) -> None:
        with reword_os_errors("write", self._path):
            self._file.flush()
            self._file.close()
