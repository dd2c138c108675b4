"""Several runs: in lanes each is what it is alone, in its own directory; what cannot be a lane goes its own way."""

import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import fedavg
from configs.tables.base import Column, Measure, Row, Table
from fedjax_core import experiment
from fedjax_core.commands import run as command
from fedjax_core.commands import tables
from fedjax_core.engine.simulator import Diverged
from fedjax_core.experiment import sweep
from fedjax_core.experiment.numbers import Differs, Number
from fedjax_core.privacy.matrix_factorization import Participation, recorded
from fedjax_core.run import Finished
from fedjax_core.storage.json_files import read_json, read_jsonl, write_json
from fedjax_core.training import local_training

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


def test_rates_and_seeds_in_lanes(tmp_path, data):
    """Two rates with a seed each; a third one diverges and ends alone, with the error that it has alone. Then one of them goes on
    alone, and the other in lanes beside a run that begins."""
    kinds = {"a": (0, 0.05), "b": (1, 0.2), "c": (2, 1e30), "d": (3, 0.1)}

    def runs(names: str, rounds: int) -> list[experiment.Run]:
        return [experiment.Run(made(kinds[name][0], rounds, lr=kinds[name][1]), str(tmp_path / name), silent) for name in names]

    said: list[str] = []
    *fine, broken = experiment.execute_all(runs("abc", 2), False, data=data, say=said.append)
    assert not said
    assert [isinstance(one, Finished) and one.summary["rounds"] for one in fine] == [2, 2]
    with pytest.raises(Diverged) as alone:
        experiment.execute(made(2, 2, lr=1e30), str(tmp_path / "c alone"), False, data=data, console=silent)
    assert isinstance(broken, Diverged)
    assert str(broken) == str(alone.value)
    assert records(tmp_path / "c") == records(tmp_path / "c alone") == []
    experiment.execute(runs("a", 4)[0].config, str(tmp_path / "a"), False, data=data, console=silent)
    assert all(not isinstance(one, Exception) for one in experiment.execute_all(runs("bd", 4), False, data=data))
    for name in "ab":
        config = runs(name, 4)[0].config
        assert json.loads((tmp_path / name / "config.json").read_text())["optimizer"]["lr"] == kinds[name][1]
        experiment.execute(config, str(tmp_path / f"{name} alone"), False, data=data, console=silent)
        same(tmp_path / name, tmp_path / f"{name} alone")


def test_what_python_decides_by_splits_lanes(data):
    """Momentum 0 is no link of the optimiser; Adam's own rates are plain numbers, which programs of optax take as such."""
    said: list[str] = []
    configs = [made(lr=0.1, momentum=momentum) for momentum in (0.0, 0.5, 0.9)]
    found = list(sweep._split(configs, data, said.append))
    assert [places for places, _ in found] == [[0], [1, 2]]
    assert found[0][1] is None
    assert len(found[1][1].each) == 2
    assert said == ["3 runs that differ in optimizer.momentum are 2 groups of lanes (lanes differ: False, True, True)"]


def test_what_takes_plain_numbers_alone_is_found_out(monkeypatch, data):
    tried = []

    def needs_plain(configs, data, values, plan):
        tried.append(sorted(values))
        if "optimizer.clip" in values:
            raise ValueError("no number")
        return sweep._made(configs, data, plan, values)

    monkeypatch.setattr(sweep, "_tried", needs_plain)
    said: list[str] = []
    configs = [made(lr=rate, clip=clip) for rate, clip in ((0.1, 1.0), (0.2, 1.0), (0.1, 2.0))]
    assert [places for places, _ in sweep._split(configs, data, said.append)] == [[0, 1], [2]]
    assert tried == [["optimizer.clip", "optimizer.lr"], ["optimizer.clip"], ["optimizer.lr"], ["optimizer.lr"]]
    assert said == [
        "3 runs that differ in optimizer.clip, optimizer.lr are 2 groups of lanes (optimizer.clip must be plain: no number)"
    ]


def test_where_lanes_are_refused_nothing_lies_on_the_devices(tmp_path, monkeypatch, data):
    made_so_far, build = [], sweep.build

    def built(*given, **named):
        made_so_far.append(build(*given, **named))
        return made_so_far[-1]

    def execute(config, workdir, progress, *, data, console, fresh):
        assert not fresh
        assert all(not one.compiled.feed.is_on_device for one in made_so_far)
        return workdir

    monkeypatch.setattr(sweep, "build", built)
    monkeypatch.setattr(sweep, "execute", execute)
    monkeypatch.setattr(sweep, "reason", lambda simulation: "they are elsewhere")
    said: list[str] = []
    runs = [experiment.Run(made(seed, lr=rate), str(seed)) for seed, rate in enumerate((0.1, 0.2, 0.3, 0.4))]
    assert experiment.execute_all(runs, False, data=data, say=said.append) == ["0", "1", "2", "3"]
    assert said == ["plan.lanes=3: runs go one after the other, for they are elsewhere"]
    assert len(made_so_far) == 1


def test_each_lane_is_checked_and_those_of_a_plan_go_together(tmp_path, monkeypatch, data):
    """Two directories have another plan than is chosen now, one has that one, one is new, and one has a wrong number."""
    configs = [made(seed, lr=0.1 + seed, momentum=0.5) for seed in range(5)]
    configs[3].optimizer.momentum = -0.5
    for config in configs:
        config.plan.devices = None
    now = experiment.build(configs[0], data).spec.plan
    other = now._replace(chunk=now.chunk + 1)
    for at, plan in ((0, now), (1, other), (2, other)):
        (tmp_path / str(at)).mkdir()
        (tmp_path / str(at) / "run.json").write_text(json.dumps({"plan": plan._asdict()}))
        write_json(tmp_path / str(at) / "config.json", configs[at].to_dict())
    together = []

    def in_lanes(runs, lanes, progress, noise):
        together.append(([Path(one.workdir).name for one in runs], lanes.each[0].spec.plan))
        return [ValueError("no more")] * len(runs)

    monkeypatch.setattr(sweep, "_in_lanes", in_lanes)
    said: list[str] = []
    runs = [experiment.Run(config, str(tmp_path / str(at))) for at, config in enumerate(configs)]
    ended = experiment.execute_all(runs, False, data=data, say=said.append)
    assert str(ended[3]) == "optimizer.momentum=-0.5 must be in [0, 1)"
    assert together == [(["0", "4"], now), (["1", "2"], other)]
    assert said == [f"4 runs are 2 groups of lanes: their directories have other plans (a new one, {other})"]


@pytest.mark.skipif(
    importlib.util.find_spec("dp_accounting") is None, reason="the extra privacy, of the accountant, is not installed"
)
def test_lanes_have_the_noise_that_is_recorded(tmp_path, data):
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
    found["sensitivity"] = recorded("banded", turns, found).sensitivity()
    for seed in (0, 1):
        write_json(tmp_path / str(seed) / "run.json", read_json(tmp_path / str(seed) / "run.json") | {"privacy": found})
    said: list[str] = []
    again = experiment.execute_all([of_seed(seed) for seed in range(3)], False, data=data, say=said.append)
    assert [one for one in again if not isinstance(one, Finished)] == said == []
    assert noise(2) == found


def test_configs_that_are_alike():
    other = made(4)
    other.method.batch = 16
    assert experiment.alike([made(0), made(1, lr=0.3), other, made(2), made(3, rounds=5)]) == [[0, 1, 3], [2], [4]]
    alone = [made(0), made(1)]
    for config in alone:
        config.plan.lanes = None
    assert experiment.alike(alone) == [[0], [1]]
    for config in (drawn := [made(0), made(1)]):
        config.train = "head"  # the rest is drawn by the seed
    assert experiment.alike(drawn) == [[0], [1]]


def test_a_number_of_lanes():
    """It is rounded as a plain one would be, and Python decides by it where lanes agree."""
    rates = (0.1, 0.25, 0.7)
    x = jnp.linspace(-1.0, 1.0, 5)

    def of(rate: Any) -> Any:
        optimizer = local_training.sgd(rate, momentum=rate / 2 + 0.3, weight_decay=rate, clip=rate, decay=1 - rate * 0.1)(
            jnp.int32(3)
        )
        updates, state = optimizer.update(x, optimizer.init(x), x)
        more = x > rate, -rate + x, 2**rate * x, x / rate, x.astype(jnp.bfloat16) * rate
        return (*more, optimizer.update(updates, state, x)[0])

    lanes = jax.jit(jax.vmap(lambda lane: of(Number(rates, lane))))(jnp.arange(3))
    for at, rate in enumerate(rates):
        for found, alone in zip(lanes, jax.jit(lambda rate=rate: of(rate))(), strict=True):
            assert found.dtype == alone.dtype
            np.testing.assert_allclose(np.float32(found[at]), np.float32(alone), rtol=1e-6, atol=1e-7)
    number = Number((0.0, 0.5), jnp.int32(0))
    assert number >= 0
    assert number != "auto"
    assert hash(number) == hash(Number((0.0, 0.5), jnp.int32(1)))
    for decides in (bool, float, np.asarray, lambda n: n > 0.2, lambda n: 1 if n == 0 else 2):
        with pytest.raises(Differs):
            decides(number)


def test_the_command_runs_seeds(tmp_path, monkeypatch, capsys):
    """One line names each of them; a directory of one is resumed alone."""
    (tmp_path / "small.py").write_text("from tests.fedjax_core.test_several import get_config\n")
    line = [str(tmp_path / "small.py"), f"--workdir={tmp_path / 'runs'}", "--seeds=0,1", "--compilation_cache="]
    warnings.simplefilter("ignore", DeprecationWarning)  # of how ml_collections loads a file
    assert command.main([*line, "--config.rounds=2"]) == 0
    said = capsys.readouterr().err
    assert "seed 0  " in said
    assert "seed 1  " in said
    alone = [line[0], f"--workdir={tmp_path / 'runs' / 'seed1'}", "--config.seed=1", "--compilation_cache="]
    assert command.main(alone) == 0
    assert "plan.lanes=3: this is one run, so it goes alone; --seeds=0,1,2 has several, which are lanes" in capsys.readouterr().err
    assert [len(records(tmp_path / "runs" / f"seed{seed}")) for seed in (0, 1)] == [2, 4]
    assert command.main([*line[:2], "--seeds=0,0"]) == 2
    assert "--seeds=0,0 must have each seed once" in capsys.readouterr().err


def test_a_table_in_lanes(tmp_path):
    """Cells that differ in seeds and numbers train together, in the directories that they have alone."""
    table = Table(
        title="Small",
        rows=(Row("A", get_config), Row("B", get_config, {"optimizer.lr": 0.3})),
        columns=(Column("IID", {}),),
        measures=(Measure("global", ("test/global/accuracy",)),),
        seeds=(0,),
        changes={"rounds": 2},
        differ=("optimizer",),
    )
    said: list[str] = []
    outcome = tables.run(table, str(tmp_path), "smoke", progress=False, say=said.append)
    assert not outcome.failures
    assert said[2:4] == ["1/2  A / IID / seed 0", "1/2  B / IID / seed 0  (in lanes)"]
    alone = tables.cells(table, "smoke")
    assert {place.name for place in (tmp_path / "runs").iterdir()} == {one.name for one in alone}
    said.clear()
    tables.run(table, str(tmp_path), "smoke", progress=False, say=said.append)
    assert said[1] == "2 of 2 runs are finished, 0 to do"
