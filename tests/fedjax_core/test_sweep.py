"""Several runs: seeds in one program are what they are alone, each in its own directory; other runs go one after another."""

import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs import fedavg
from configs.tables.base import Column, Measure, Row, Table
from fedjax_core import experiment
from fedjax_core.commands import run as command
from fedjax_core.commands import tables
from fedjax_core.engine.simulator import Diverged
from fedjax_core.experiment import sweep
from fedjax_core.privacy.matrix_factorization import Participation, restore_strategy
from fedjax_core.run import Finished
from fedjax_core.storage.json_files import read_json, read_jsonl, write_json

silent = lambda text: None


def get_config(variant: str = "smoke") -> Any:
    config = fedavg.get_config(variant)
    config.rounds, config.evaluation.every, config.models = 4, 2, ("mlp(widths=(4,))",)
    config.data.update(clients=4, partition="iid")
    config.cohort.fraction, config.plan.lanes, config.plan.devices = 0.5, 3, 1
    config.method.epochs, config.evaluation.scopes = 1, ("global",)
    return config


def made(seed: int = 0, rounds: int = 4, **rates: float) -> Any:
    config = get_config()
    config.seed, config.rounds = seed, rounds
    config.optimizer.update(rates)
    return config


@pytest.fixture(scope="module")
def data():
    return experiment.dataset(made())


def records(place: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in one.items() if "seconds" not in k} for one in read_jsonl(place / "metrics.jsonl")]


def same(place: Path, alone: Path) -> None:
    for one, other in zip(records(place), records(alone), strict=True):
        assert one.keys() == other.keys()
        assert one["train/examples"] == other["train/examples"]
        np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-4, atol=1e-5)


def test_seeds_in_one_program(tmp_path, data):
    """Two seeds begin together. A run that diverges has the error that it has alone. Then one seed goes on alone, the other with a
    new one."""

    def runs(seeds: str, rounds: int) -> list[experiment.Run]:
        return [experiment.Run(made(int(seed), rounds), str(tmp_path / seed), silent) for seed in seeds]

    broken = experiment.Run(made(2, 2, lr=1e30), str(tmp_path / "broken"), silent)
    said: list[str] = []
    fine = experiment.execute_all(runs("01", 2), False, data=data, say=said.append)
    assert [isinstance(one, Finished) and one.summary["rounds"] for one in fine] == [2, 2]
    diverged, _ = experiment.execute_all([broken, runs("0", 2)[0]], False, data=data, say=said.append)
    assert not said
    with pytest.raises(Diverged) as alone:
        experiment.execute(broken.config, str(tmp_path / "broken alone"), False, data=data, console=silent)
    assert isinstance(diverged, Diverged)
    assert str(diverged) == str(alone.value)
    assert records(tmp_path / "broken") == records(tmp_path / "broken alone") == []
    experiment.execute(runs("0", 4)[0].config, str(tmp_path / "0"), False, data=data, console=silent)
    assert all(not isinstance(one, Exception) for one in experiment.execute_all(runs("13", 4), False, data=data))
    for seed in "01":
        experiment.execute(made(int(seed), 4), str(tmp_path / f"{seed} alone"), False, data=data, console=silent)
        same(tmp_path / seed, tmp_path / f"{seed} alone")


def test_where_seeds_cannot_share_a_program_nothing_is_on_the_devices(tmp_path, monkeypatch, data):
    made_so_far, build = [], sweep.build

    def built(*given, **named):
        made_so_far.append(build(*given, **named))
        return made_so_far[-1]

    def execute(config, workdir, progress, *, data, console, fresh, draws):
        assert not fresh
        assert all(not one.compiled.feed.is_on_device for one in made_so_far)
        return workdir

    monkeypatch.setattr(sweep, "build", built)
    monkeypatch.setattr(sweep, "execute", execute)
    monkeypatch.setattr(sweep, "find_vmap_obstacle", lambda simulation: "they are elsewhere")
    said: list[str] = []
    runs = [experiment.Run(made(seed), str(seed)) for seed in range(3)]
    assert experiment.execute_all(runs, False, data=data, say=said.append) == ["0", "1", "2"]
    assert said == ["plan.lanes=3: runs go one after another, because they are elsewhere"]
    assert len(made_so_far) == 1


def test_seeds_that_draw_frozen_parts_go_one_after_another_and_a_line_says_why(monkeypatch):
    """A transformer with an adapter, of which the seed draws the frozen kernels; one seed alone needs no line."""
    monkeypatch.setattr(sweep, "execute", lambda config, workdir, *rest, **named: workdir)
    configs = [made(seed) for seed in range(2)]
    for config in configs:
        config.models, config.adapter = ("vit(patch=4, width=8, depth=1, heads=2)",), "lora(rank=2)"
    runs, said = [experiment.Run(config, str(i)) for i, config in enumerate(configs)], []
    assert experiment.execute_all(runs[:1], False, say=said.append) == ["0"]
    assert not said
    assert experiment.execute_all(runs, False, say=said.append) == ["0", "1"]
    assert said == ["plan.lanes=3: runs go one after another, because each seed draws the frozen parts of its network"]


def test_each_config_is_checked_and_runs_of_one_plan_train_together(tmp_path, monkeypatch, data):
    """Two directories have another plan than is chosen now, one has that one, one is new, and one has a wrong seed."""
    configs = [made(seed) for seed in range(5)]
    configs[3].seed = -1
    for config in configs:
        config.plan.devices = None
    now = experiment.build(configs[0], data).spec.plan
    other = now._replace(chunk=now.chunk + 1)
    for at, plan in ((0, now), (1, other), (2, other)):
        (tmp_path / str(at)).mkdir()
        (tmp_path / str(at) / "run.json").write_text(json.dumps({"plan": plan._asdict()}))
        write_json(tmp_path / str(at) / "config.json", configs[at].to_dict())
    together = []

    def run_together(runs, vmapped, progress, noise):
        together.append(([Path(one.workdir).name for one in runs], vmapped.replicas[0].spec.plan))
        return [ValueError("no more")] * len(runs)

    monkeypatch.setattr(sweep, "_run_together", run_together)
    said: list[str] = []
    runs = [experiment.Run(config, str(tmp_path / str(at))) for at, config in enumerate(configs)]
    ended = experiment.execute_all(runs, False, data=data, say=said.append)
    assert str(ended[3]).startswith("seed=-1 must be")
    assert together == [(["0", "4"], now), (["1", "2"], other)]
    assert said == [f"4 runs train in 2 programs: their directories have other plans or privacy ({now}, {other})"]


@pytest.mark.skipif(
    importlib.util.find_spec("dp_accounting") is None, reason="the extra privacy, of the accountant, is not installed"
)
def test_seeds_have_the_noise_that_is_recorded(tmp_path, data):
    """Another machine finds other last digits; they were refused. A run that begins has the others'."""

    def of_seed(seed: int) -> experiment.Run:
        config = made(seed, rounds=2)
        config.method.weights, config.cohort.sampling, config.normalise = "uniform", "cyclic", "unit"
        config.privacy.update(mechanism="banded(bands=2)", clip=1.0, noise=1.0, delta=1e-5)
        return experiment.Run(config, str(tmp_path / str(seed)), silent)

    def noise(seed: int) -> dict[str, Any]:
        return read_json(tmp_path / str(seed) / "run.json")["privacy"]

    begun = experiment.execute_all([of_seed(0), of_seed(1)], False, data=data)
    assert [one for one in begun if not isinstance(one, Finished)] == []
    found = noise(0) | {"coefficients": [1.0, noise(0)["coefficients"][1] * (1 + 2e-6)]}
    turns = Participation(2, found["min_separation"], found["participations"])
    found["sensitivity"] = restore_strategy("banded", turns, found).sensitivity()
    for seed in (0, 1):
        write_json(tmp_path / str(seed) / "run.json", read_json(tmp_path / str(seed) / "run.json") | {"privacy": found})
    said: list[str] = []
    again = experiment.execute_all([of_seed(seed) for seed in range(3)], False, data=data, say=said.append)
    assert [one for one in again if not isinstance(one, Finished)] == said == []
    assert noise(2) == found


def test_configs_that_are_alike():
    other = made(4)
    other.method.batch = 16
    assert experiment.group_seeds([made(0), made(1), other, made(2), made(3, rounds=5), made(0, lr=0.3)]) == [
        [0, 1, 3],
        [2],
        [4],
        [5],
    ]
    alone = [made(0), made(1)]
    for config in alone:
        config.plan.lanes = None
    assert experiment.group_seeds(alone) == [[0], [1]]
    for config in (drawn := [made(0), made(1)]):
        config.train = "head"  # the rest is drawn by the seed
    assert experiment.group_seeds(drawn) == [[0], [1]]


def test_the_command_runs_seeds(tmp_path, monkeypatch, capsys):
    """One line names each of them; a directory of one is resumed alone."""
    (tmp_path / "small.py").write_text("from tests.fedjax_core.test_sweep import get_config\n")
    line = [str(tmp_path / "small.py"), f"--workdir={tmp_path / 'runs'}", "--seeds=0,1", "--compilation_cache="]
    warnings.simplefilter("ignore", DeprecationWarning)  # of how ml_collections loads a file
    assert command.main([*line, "--config.rounds=2"]) == 0
    said = capsys.readouterr().err
    assert "seed 0  " in said
    assert "seed 1  " in said
    alone = [line[0], f"--workdir={tmp_path / 'runs' / 'seed1'}", "--config.seed=1", "--compilation_cache="]
    assert command.main(alone) == 0
    assert "plan.lanes=3 is for several seeds, such as --seeds=0,1,2; this is one run" in capsys.readouterr().err
    assert [len(records(tmp_path / "runs" / f"seed{seed}")) for seed in (0, 1)] == [2, 4]
    assert command.main([*line[:2], "--seeds=0,0"]) == 2
    assert "--seeds=0,0 must have each seed once" in capsys.readouterr().err


def test_a_table_trains_seeds_together(tmp_path):
    """Cells that differ in their seed train together, in the directories that they have alone; another learning rate goes alone."""
    table = Table(
        title="Small",
        rows=(Row("A", get_config), Row("B", get_config, {"optimizer.lr": 0.3})),
        columns=(Column("IID", {}),),
        measures=(Measure("global", ("test/global/accuracy",)),),
        seeds=(0, 1),
        changes={"rounds": 2},
        differ=("optimizer",),
    )
    said: list[str] = []
    outcome = tables.run(table, str(tmp_path), "smoke", progress=False, say=said.append)
    assert not outcome.failures
    begun = [line for line in said if line[1:3] == "/4" and ": round" not in line]  # a slow one says its rounds
    assert [line.split("  ")[1] for line in begun] == [f"{row} / IID / seed {seed}" for row in "AB" for seed in (0, 1)]
    assert [line.endswith("  (together)") for line in begun] == [False, True] * 2
    alone = tables.build_cells(table, "smoke")
    assert {place.name for place in (tmp_path / "runs").iterdir()} == {one.name for one in alone}
    said.clear()
    tables.run(table, str(tmp_path), "smoke", progress=False, say=said.append)
    assert said[1] == "4 of 4 runs are finished, 0 to do"
