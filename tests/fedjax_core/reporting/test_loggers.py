"""Loggers: what a logging package is told, here by a small stand-in, and in their offline modes where they are installed."""

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fedjax_core.reporting import loggers
from fedjax_core.run import Ended, Started

CONFIG = {"seed": 3, "optimizer": {"lr": 0.1}, "models": ["mlp(widths=(4,))"]}
RECORDS = [{"round": 1, "train/loss": 0.5}, {"round": 2, "train/loss": 0.25, "test/global/accuracy": 0.75, "seconds": float("nan")}]


def tell(logger, directory, done=0, status="finished"):
    logger.start(Started(directory, CONFIG, 2, done))
    for record in RECORDS[done:]:
        logger.round(record)
    logger.end(Ended(status, 2, "", {}))


class Package(ModuleType):
    """Writes down what it is told, as wandb or mlflow."""

    def __init__(self, name):
        super().__init__(name)
        self.told: list[Any] = []
        for function in ("log_param", "log_metric", "set_terminated", "update_run"):
            setattr(self, function, lambda *a, function=function, **k: self.told.append((function, a, k)))

    def init(self, **given):
        self.told.append(("init", given))
        return SimpleNamespace(
            id=given["id"] or "new",
            log=lambda record, step: self.told.append(("log", record, step)),
            summary=SimpleNamespace(update=lambda facts: self.told.append(("summary", facts))),
            finish=lambda exit_code: self.told.append(("finish", exit_code)),
        )

    def MlflowClient(self, tracking_uri):
        self.told.append(("client", tracking_uri))
        return self

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return f"of {name}"

    def create_run(self, place, run_name):
        self.told.append(("create_run", place, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="new"))


@pytest.mark.parametrize("name", loggers.CALLBACKS)
def test_a_package_that_is_missing_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=rf"callback '{name}' needs the package {name} .*; pip install 'fedjax-core\[loggers\]'"):
        loggers.CALLBACKS[name]()


def test_wandb_is_told_and_goes_on_in_the_same_run(monkeypatch, tmp_path):
    package = Package("wandb")
    monkeypatch.setitem(sys.modules, "wandb", package)
    tell(loggers.WeightsAndBiases(project="p"), tmp_path, status="stopped")
    tell(loggers.WeightsAndBiases(project="p"), tmp_path, done=1)
    given = {"project": "p", "name": tmp_path.name, "dir": str(tmp_path), "config": CONFIG, "reinit": "create_new"}
    assert package.told == [
        ("init", given | {"id": None, "resume": None}),
        ("log", RECORDS[0], 1),
        ("log", RECORDS[1], 2),
        ("summary", {"status": "stopped", "rounds_done": 2}),
        ("finish", 0),
        ("init", given | {"id": "new", "resume": "allow"}),
        ("log", RECORDS[1], 2),
        ("summary", {"status": "finished", "rounds_done": 2}),
        ("finish", 0),
    ]
    with pytest.raises(ValueError, match="mode='off' is not one of online, offline, disabled"):
        loggers.WeightsAndBiases(mode="off")


def test_mlflow_is_told_and_goes_on_in_the_same_run(monkeypatch, tmp_path):
    package = Package("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", package)
    tell(loggers.MLflow(experiment="e", uri="file:x"), tmp_path, status="failed")
    tell(loggers.MLflow(experiment="e", uri="file:x"), tmp_path, done=1)
    metrics = [
        ("log_metric", ("new", "train/loss", 0.25), {"step": 2}),
        ("log_metric", ("new", "test/global/accuracy", 0.75), {"step": 2}),  # seconds are not finite
    ]
    assert package.told == [
        ("client", "file:x"),
        ("create_run", "of e", tmp_path.name),
        ("log_param", ("new", "seed", "3"), {}),
        ("log_param", ("new", "optimizer.lr", "0.1"), {}),
        ("log_param", ("new", "models", "['mlp(widths=(4,))']"), {}),
        ("log_metric", ("new", "train/loss", 0.5), {"step": 1}),
        *metrics,
        ("set_terminated", ("new",), {"status": "FAILED"}),
        ("client", "file:x"),
        ("update_run", ("new",), {"status": "RUNNING"}),
        *metrics,
        ("set_terminated", ("new",), {"status": "FINISHED"}),
    ]


def package(name):
    """A package, without which a test is skipped; CI sets the variable where it has installed both: no skip there."""
    return importlib.import_module(name) if os.environ.get("FEDJAX_TEST_LOGGERS") else pytest.importorskip(name)


@pytest.mark.filterwarnings("ignore")  # theirs
def test_wandb_offline(tmp_path):
    package("wandb")
    tell(loggers.WeightsAndBiases(mode="offline"), tmp_path)
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.filterwarnings("ignore")  # theirs
def test_wandb_offline_has_a_run_for_each_of_two_at_once(tmp_path):
    package("wandb")
    both = [loggers.WeightsAndBiases(mode="offline") for _ in range(2)]
    folders = [tmp_path / name for name in "ab"]
    for callback, folder in zip(both, folders, strict=True):
        folder.mkdir()
        callback.start(Started(folder, CONFIG, 2, 0))
    for record in RECORDS:
        for callback in both:
            callback.round(record)
    for callback in both:
        callback.end(Ended("finished", 2, "", {}))
    ids = [(folder / "wandb.id").read_text() for folder in folders]
    assert ids[0] != ids[1]
    assert all(len(list(folder.glob("wandb/offline-run-*/*.wandb"))) == 1 for folder in folders)


@pytest.mark.filterwarnings("ignore")  # theirs
def test_mlflow_in_a_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its newer versions want a data base, which the skinny one lacks
    mlflow = package("mlflow")
    uri = (tmp_path / "runs").as_uri()
    tell(loggers.MLflow(uri=uri), tmp_path)
    tell(loggers.MLflow(uri=uri), tmp_path, done=1)
    client = mlflow.MlflowClient(tracking_uri=uri)
    (place,) = client.search_experiments(filter_string="name = 'fedjax'")
    (found,) = client.search_runs([place.experiment_id])
    assert found.data.metrics == {"train/loss": 0.25, "test/global/accuracy": 0.75}
    assert (found.data.params["optimizer.lr"], found.info.status) == ("0.1", "FINISHED")
