"""Analyses from the command line: what a finished run gives, figures with their numbers beside them, and what is refused."""

import csv
import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from configs import fedavg, fedhe, fedit, fedoa, fedpft, fedskc
from fedjax_core import experiment
from fedjax_core.algorithm import find_nets
from fedjax_core.atomic_files import write_text
from fedjax_core.commands import analyze
from fedjax_core.commands.analyses import context, scalar_metrics, tables
from fedjax_core.reporting import analysis
from fedjax_core.storage.json_files import format_json_lines, read_json, write_json


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """FedAvg, and FedHe with two architectures, two rounds each."""
    place = tmp_path_factory.mktemp("runs")
    made = {}
    for name, module in (("fedavg", fedavg), ("fedhe", fedhe)):
        config = module.get_config("smoke")
        config.models = ("mlp(widths=(8,))", "mlp(widths=(6,))") if name == "fedhe" else ("mlp(widths=(8,))",)
        config.rounds = config.evaluation.every = 2
        config.data.clients, config.plan.devices = 4, 1
        made[name] = place / name
        experiment.execute(config, str(made[name]), progress=False, console=lambda text: None)
    return made


LOAD = experiment.load


@pytest.fixture(scope="module")
def known() -> dict:
    """Loaded runs by their directories."""
    return {}


@pytest.fixture(autouse=True)
def _loaded_once(known, monkeypatch):
    """Analyses of one run share its simulation, and what was compiled for it."""

    def load(run, *more, data=None, trust=False):
        del trust
        if more or data is not None:
            return LOAD(run, *more, data=data)
        if Path(run) not in known:
            known[Path(run)] = LOAD(run)
        return known[Path(run)]

    monkeypatch.setattr(experiment, "load", load)


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def call(*arguments) -> int:
    return analyze.main([*map(str, arguments), "--compilation_cache="])


def test_a_loaded_run_is_the_run(runs):
    config, simulation, state = experiment.load(runs["fedhe"])
    assert config.to_dict()["models"] == ("mlp(widths=(8,))", "mlp(widths=(6,))")
    summary = read_json(runs["fedhe"] / "summary.json")["metrics"]
    for name, value in simulation.evaluate(state).metrics.items():
        assert value == pytest.approx(summary[name]["last"], abs=1e-6), name
    assert int(state.round) == 2


def test_figures_have_their_numbers_beside_them(runs, tmp_path, capsys):
    what = ["--what=partition,tsne,clients,classes", "--what=landscape,communication"]
    named = ["--format=png,svg", "--labels=FedAvg,FedHe"]
    assert call(*runs.values(), *what, f"--out={tmp_path}", "--points=3", "--clients=2", "--rows=5", *named) == 0
    files = [Path(line) for line in capsys.readouterr().err.splitlines() if line.startswith("/")]
    figures = [file for file in files if file.suffix == ".png"]
    assert len(figures) == 4 + 2 + 1 + 3 + 2
    assert {file.with_suffix(".svg") for file in figures} == {file for file in files if file.suffix == ".svg"}
    assert "FedHe-classes_by_client" in {file.stem for file in figures}
    assert list(rows(tmp_path / "clients.csv")[0]) == ["client", "FedAvg", "FedHe"]
    for figure in figures:
        assert b"<svg" in figure.with_suffix(".svg").read_bytes()
        with Image.open(figure) as image:
            assert (np.asarray(image.convert("L")) < 250).mean() > 0.005, figure
        assert rows(figure.with_suffix(".csv")), figure


def test_personal_models_are_drawn_around_a_global_one(runs, tmp_path):
    """Figure 3 of FedOA: one mark for FedIT's model, one for each client of FedOA; the first run's is in the middle."""
    for name, module in (("fedit", fedit), ("fedoa", fedoa)):
        config = module.get_config("smoke")
        config.models, config.adapter, config.train = ("mlp(widths=(8,))",), None, "all"
        config.rounds = config.evaluation.every = 2
        config.data.clients, config.plan.devices = 4, 1
        experiment.execute(config, str(tmp_path / name), progress=False, console=lambda text: None)
    out = tmp_path / "out"
    assert call(tmp_path / "fedit", tmp_path / "fedoa", "--what=plane", f"--out={out}", "--points=3") == 0
    found = rows(out / "plane.csv")
    assert [row["what"] for row in found] == ["surface"] * 9 + ["fedit"] + ["fedoa"] * 4
    middle = next(row for row in found if (float(row["first"]), float(row["second"])) == (0, 0))
    summary = read_json(tmp_path / "fedit" / "summary.json")["metrics"]
    assert float(middle["loss"]) == pytest.approx(summary["test/global/loss"]["last"], abs=1e-5)
    assert float(found[9]["first"]) == pytest.approx(0, abs=1e-5)
    farthest = max(abs(float(row[way])) for row in found[10:] for way in ("first", "second"))
    assert max(float(row["first"]) for row in found[:9]) == pytest.approx(1.25 * farthest)
    with Image.open(out / "plane.png") as image:
        assert (np.asarray(image.convert("L")) < 250).mean() > 0.005


def test_local_losses_and_labels_of_cohorts_are_drawn(runs, tmp_path):
    """Figure 1b of FedSKC: all losses in the plane of the global model and two clients' after local training."""
    assert call(runs["fedavg"], "--what=drift", f"--out={tmp_path}", "--points=3", "--clients=0,2") == 0
    _, simulation, state = experiment.load(runs["fedavg"])
    data, net = simulation.spec.data, state.server.net
    model = simulation.spec.bound_groups[0].task.model

    def loss(net, x, y):
        logits = np.asarray(model.apply(net, x)[0]["logits"], np.float64)
        return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]))

    x, y = np.asarray(data.train.x), np.asarray(data.train.y)
    own = {f"client{i}": (x[data.train_index[i]], y[data.train_index[i]]) for i in (0, 2)}
    for name, examples in {**own, "global": data.test}.items():
        found = rows(tmp_path / f"drift_{name}.csv")
        assert [row["what"] for row in found] == ["surface"] * 9 + ["client 0", "client 2"]
        middle = next(row for row in found if (float(row["first"]), float(row["second"])) == (0, 0))
        assert float(middle["loss"]) == pytest.approx(loss(net, *examples), abs=1e-5)
    local = simulation.client_view(state, 2, trained=True).holds["global"]
    moved = [np.subtract(*both) for both in zip(*map(jax.tree.leaves, (find_nets(local)[0].params, net.params)), strict=True)]
    apart = float(np.sqrt(sum((part**2).sum() for part in moved)))
    assert np.hypot(*(float(found[-1][way]) for way in ("first", "second"))) == pytest.approx(apart, rel=1e-4)
    labels = rows(tmp_path / "drift_labels.csv")
    assert [row["round"] for row in labels] == ["1", "2"]
    size = simulation.spec.sampler.size
    sums = [data.label_table[list(ids)].sum(0).tolist() for ids in itertools.combinations(range(data.clients), size)]
    assert all([int(row[name]) for name in data.class_names] in sums for row in labels)


def test_class_knowledge_is_drawn_as_large_dots(runs, tmp_path, capsys):
    """Of FedSKC a client's and the server's, of FedAvg a client's."""
    config = fedskc.get_config("smoke")
    config.models, config.rounds, config.evaluation.every, config.plan.devices = ("mlp(widths=(8,))",), 2, 2, 1
    experiment.execute(config, str(tmp_path / "fedskc"), progress=False, console=lambda text: None)
    assert call(runs["fedavg"], tmp_path / "fedskc", "--what=knowledge", f"--out={tmp_path / 'out'}", "--clients=2") == 0
    files = {Path(line).name: Path(line) for line in capsys.readouterr().err.splitlines() if line.startswith("/")}
    assert set(files) == {"fedavg-knowledge_local.png", "fedskc-knowledge_local.png", "fedskc-knowledge_global.png"}
    _, simulation, state = experiment.load(tmp_path / "fedskc")
    for name, file in files.items():
        found = rows(file.with_suffix(".csv"))
        marks = [int(row["class"]) for row in found if row["what"] == "knowledge"]
        own = experiment.load(runs["fedavg"])[1] if name.startswith("fedavg") else simulation
        of_client = np.unique(own.spec.data.train.y[own.spec.data.train_index[2]])
        assert marks == (np.flatnonzero(state.server.known) if "global" in name else of_client).tolist()
        assert len(found) - len(marks) == len(own.spec.data.test.y)


@pytest.fixture(scope="module")
def contrasted(tmp_path_factory) -> Path:
    """FedPFT+Con, two rounds."""
    config = fedpft.get_config("smoke")
    config.models, config.rounds, config.evaluation.every, config.plan.devices = ("mlp(widths=(8,))",), 2, 2, 1
    config.data.clients, config.data.partition, config.method.contrast.on, config.method.contrast.augment = 3, "iid", True, ""
    place = tmp_path_factory.mktemp("fedpft") / "run"
    experiment.execute(config, str(place), progress=False, console=lambda text: None)
    return place


def test_attention_is_drawn_for_either_prompts(contrasted, tmp_path, capsys):
    assert call(contrasted, "--what=attention", f"--out={tmp_path}", "--clients=1") == 0
    files = [Path(line) for line in capsys.readouterr().err.splitlines() if line.startswith("/")]
    assert [file.name for file in files] == ["attention.png", "contrast_attention.png"]
    for file, prompts in zip(files, (10, 20), strict=True):
        found = rows(file.with_suffix(".csv"))
        assert len(found) == 20
        for row in found:
            assert list(row) == ["example", "f", *(f"p{i}" for i in range(1, prompts + 1))]
            assert sum(float(v) for name, v in row.items() if name != "example") == pytest.approx(1, abs=1e-5)


def test_features_before_the_transformation_have_files_of_their_own(contrasted, tmp_path):
    """Of either prompts' too; a probe of them is another number."""
    assert call(contrasted, "--what=tsne,probe", f"--out={tmp_path}", "--features=extractor", "--rows=4") == 0
    assert {"tsne_extractor.png", "tsne_extractor.csv", "probe_extractor.csv"} <= {file.name for file in tmp_path.iterdir()}
    _, simulation, state = experiment.load(contrasted)
    found = [float(row["probe"]) for row in rows(tmp_path / "probe_extractor.csv")]
    np.testing.assert_allclose(found, analysis.score_probe(simulation, state, key="extractor"))
    points = {
        key: analysis.compute_features(simulation, state, key=key, most=4).features for key in ("extractor", "features", "contrast")
    }
    assert {f.shape for f in points.values()} == {(12, 8)}
    assert not np.allclose(points["features"], points["contrast"])


def test_centroids_are_the_means_of_each_clients_classes(contrasted, tmp_path):
    """In the plane beside the examples, as Figure 5 of FedPFT's paper has them."""
    assert call(contrasted, "--what=tsne", "--features=contrast", f"--out={tmp_path}", "--rows=6", "--centroids") == 0
    _, simulation, state = experiment.load(contrasted)
    points = analysis.compute_features(simulation, state, key="contrast", most=6)
    shown = analysis.with_centroids(points)
    n, found = len(points.classes), rows(tmp_path / "tsne_contrast.csv")
    assert [row["what"] for row in found] == ["example"] * n + ["centroid"] * (len(found) - n)
    pairs = sorted({*zip(points.clients.tolist(), points.classes.tolist(), strict=True)})
    assert len(pairs) < n  # some class is there twice
    assert list(zip(shown.clients[n:].tolist(), shown.classes[n:].tolist(), strict=True)) == pairs
    for (client, k), centre in zip(pairs, shown.features[n:], strict=True):
        mine = [f for f, c, y in zip(points.features, points.clients, points.classes, strict=True) if (c, y) == (client, k)]
        np.testing.assert_allclose(centre, sum(mine) / len(mine), rtol=1e-5, atol=1e-6)


def test_traffic_of_fedpft_by_part(contrasted, tmp_path):
    assert call(contrasted, "--what=communication", f"--out={tmp_path}") == 0
    text = (tmp_path / "communication.md").read_text()
    for part, numbers in (("net/body", 65 * 8), ("net/head", 9 * 10), ("transform", 4 * 8 * 8), ("projection", "1,152")):
        assert re.search(rf"\| up \| {part} \| {numbers} \|", text), part


def test_their_numbers_are_the_runs(runs, tmp_path):
    assert call(*runs.values(), "--what=clients,classes,communication,curves", f"--out={tmp_path}", "--score=x,train/loss") == 0
    for name, score in (("fedavg", "test/global/own"), ("fedhe", "test/personal/own")):
        summary = read_json(runs[name] / "summary.json")
        found = [float(row[name]) for row in rows(tmp_path / "clients.csv")]
        assert np.mean(found) == pytest.approx(summary["metrics"][f"{score}/accuracy/mean"]["last"])
        sizes = [row for row in rows(tmp_path / "communication.csv") if row["run"] == name]
        groups = len({row["group"] for row in sizes})
        for way in ("down", "up"):
            assert sum(int(row["bytes"]) for row in sizes if row["way"] == way) == groups * summary["facts"][f"bytes_{way}"]
    assert [row["class"] for row in rows(tmp_path / "classes.csv")] == [str(k) for k in range(10)]
    assert {row["run"] for row in rows(tmp_path / "curves.csv")} == {"fedavg", "fedhe"}
    assert re.search(r"\| fedavg \| 0: mlp\S* \| up \| all \| 610 \| 2.44 kB \|", (tmp_path / "communication.md").read_text())


def test_accuracies_on_the_whole_test_set_are_the_runs(runs, tmp_path):
    """Of each client's model on all test data, as FedHPL's Figures 5 and 6 have them."""
    assert call(runs["fedhe"], "--what=clients,classes", f"--out={tmp_path}", "--scope=all") == 0
    summary = read_json(runs["fedhe"] / "summary.json")["metrics"]
    for name in ("clients", "classes"):
        found = [float(row["fedhe"]) for row in rows(tmp_path / f"{name}.csv")]
        if name == "classes":
            _, simulation, _ = experiment.load(runs["fedhe"])
            found = np.repeat(found, np.bincount(simulation.spec.data.test.y))
        assert np.mean(found) == pytest.approx(summary["test/personal/all/accuracy/mean"]["last"])


def test_sizes_are_those_of_the_networks_and_of_the_messages(runs, tmp_path):
    assert call(*runs.values(), "--what=sizes", f"--out={tmp_path}") == 0
    found = rows(tmp_path / "sizes.csv")
    assert [row["run"] for row in found] == ["fedavg", "fedhe", "fedhe"]
    assert [row["clients"] for row in found] == ["4", "2", "2"]
    assert [row["whole"] for row in found] == [row["trained"] for row in found] == ["610", "610", "460"]
    assert [row["body"] for row in found] == ["520", "520", "390"]
    assert [row["up"] for row in found] == ["610", "110", "110"]
    assert "| fedavg | 0: mlp(widths=(8,)) | 4 | 610 | 520 | 610 | 610 | 610 | 0 |" in (tmp_path / "sizes.md").read_text()


def test_probe_and_match_are_written_beside_the_run_and_into_tables(runs, capsys):
    run = runs["fedavg"]
    assert call(run, "--what=probe,match") == 0
    said = capsys.readouterr().err
    for what in ("probe", "match"):
        each = rows(run / "analysis" / f"{what}.csv")
        mean = scalar_metrics.make_metric(what)(run, None)
        assert mean == pytest.approx(np.mean([float(row[what]) for row in each]))
        assert f"{100 * mean:.2f} %" in said
        assert read_json(run / scalar_metrics.NUMBERS)[what] == {"round": 2, "value": mean}
    write_json(run / scalar_metrics.NUMBERS, {"origin": {"round": 2, "value": 0.125}, "probe": {"round": 1, "value": 0.125}})
    assert scalar_metrics.make_metric("origin")(run, None) == 0.125, "kept"
    assert scalar_metrics.make_metric("probe")(run, None) != 0.125, "of another round"
    for value, said in (([3], "analysis.json is a list"), ({"origin": 3}, "origin of .*analysis.json is an int")):
        write_json(run / scalar_metrics.NUMBERS, value)
        with pytest.raises(ValueError, match=said):
            scalar_metrics.make_metric("origin")(run, None)


def test_damaged_answers_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "read_instructions", lambda config: None)
    monkeypatch.setattr(experiment, "resolve", lambda config: SimpleNamespace(adapter=None))
    monkeypatch.setattr(analysis, "choose_scored_model", lambda simulation, state, model: "global")
    row = {"client": 0, "task": "t", "dataset": "d", "answer": "yes", "said": "no", "rouge1": 0.0, "exact": False}
    asked: Any = (tmp_path, None, None, SimpleNamespace(round=2))
    for value, said in (
        ([], "answers.json is a list"),
        ({"global": {"round": 2, "rows": [row | {"exact": 3}]}}, r"rows\[0\].exact of"),
    ):
        write_json(tmp_path / tables.ANSWERS, value)
        with pytest.raises(ValueError, match=said):
            tables.collect_answers(*asked)
    write_json(tmp_path / tables.ANSWERS, {"global": {"round": 2, "rows": [row]}})
    assert tables.collect_answers(*asked) == [row]


def test_answers_that_cannot_be_kept_are_returned(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(experiment, "read_instructions", lambda config: None)
    monkeypatch.setattr(experiment, "resolve", lambda config: SimpleNamespace(adapter=None))
    monkeypatch.setattr(analysis, "choose_scored_model", lambda simulation, state, model: "personal")
    monkeypatch.setattr(tables.language, "choose_longest", lambda prepared: 80)
    data = SimpleNamespace(test_index=(), test=SimpleNamespace(x=np.zeros((1, 1))))
    spec = SimpleNamespace(data=data, batches=SimpleNamespace(test=4), scored_clients=lambda: np.arange(0))
    asked: Any = (tmp_path / "gone", None, SimpleNamespace(spec=spec), SimpleNamespace(round=2))
    assert tables.collect_answers(*asked) == []
    assert "answers.json: No such file or directory; the answers will be written anew next time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        (["--what=curve"], 2, "unknown analysis 'curve'; .*Did you mean 'curves'"),
        ([], 2, "--what"),
        (["--what=curves", "--rows=x"], 2, "--rows"),
        (["--what=tsne", "--clients=0,b"], 2, "--clients=0,b must be ids of clients with commas between"),
        (["--what=clients,rouge", "--clients=0"], 2, "--clients=0 has no effect on clients,rouge; it is of tsne, .*"),
        (["--what=partition", "--labels=a"], 2, "--labels=a has no effect on partition; it is of curves, .*"),
        (["--what=partition", "--what=sizes", "--seed=1"], 2, "--seed=1 has no effect on partition,sizes; it is of tsne, .*"),
        (["--what=tsne", "--what=landscape", "--clients=0,1"], 2, "--clients=0,1: landscape shows one client"),
        (["--what=tsne", "--seed=-1"], 2, r"--seed=-1 must be in \[0, 2\*\*32\)"),
        (["--what=curves", "--format=jpg"], 2, "unknown --format 'jpg'"),
        (["--what=clients", "--labels=a,b"], 1, "--labels has 'a', 'b' for 1 runs"),
        (["--what=clients", '--labels="a, b", c'], 1, "--labels has 'a, b', 'c' for 1 runs"),
        (["--what=curves", "--score=test/accuracy"], 1, "has no score test/accuracy; it has"),
        (["--what=clients", "--model=personal"], 1, "model 'personal' is not one that the method has: global"),
        (["--what=tsne", "--features=prompts"], 1, "no output 'prompts'"),
        (["--what=attention"], 1, "no output 'attention'"),
        (["--what=plane"], 1, "a plane needs two models beside the central one"),
        (["--what=rouge", "--beams=0"], 2, "--beams=0 must be at least 1"),
        (["--what=landscape", "--points=1"], 2, "--points=1 must be at least 2"),
        (["--what=landscape", "--span=0"], 2, "--span=0.0 must be positive"),
        (["--what=rouge"], 1, r"data\.source='digits' has no texts; instructions\(leave_out=\.\.\.\) has"),
    ],
)
def test_a_wrong_command_line_gets_one_line(runs, tmp_path, capsys, flags, status, said):
    assert call(runs["fedavg"], *flags, f"--out={tmp_path / 'out'}") == status
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: .*{said}", line)


def test_runs_that_cannot_be_analysed_get_one_line(runs, tmp_path, capsys):
    assert call(*runs.values(), "--what=curves") == 2
    assert "several runs need --out=DIR" in capsys.readouterr().err
    assert call(*runs.values(), "--what=partition", f"--out={tmp_path / 'out'}", "--labels=a/b,a-b") == 1
    assert "--labels: files of 'a/b', 'a-b' would all begin with 'a-b-'" in capsys.readouterr().err
    assert call(tmp_path / "none", "--what=clients") == 1
    assert "none" in capsys.readouterr().err
    for change, said in (("checkpoints", "has no checkpoint yet"), ("run.json", "was run on other data")):
        broken = tmp_path / change / "run"
        broken.mkdir(parents=True)
        for name in ("config.json", "run.json"):
            (broken / name).write_bytes((runs["fedavg"] / name).read_bytes())
        if change == "run.json":
            (broken / "checkpoints").symlink_to(runs["fedavg"] / "checkpoints")
            record = read_json(broken / "run.json")
            record["partition"]["hash"] = "0" * 64
            write_json(broken / "run.json", record)
        assert call(broken, "--what=clients") == 1
        assert said in capsys.readouterr().err


def fake(folder: Path, seed: int = 0, **scores: float) -> Path:
    folder.mkdir()
    write_text(folder / "metrics.jsonl", format_json_lines([{"round": r, **{k: v * r for k, v in scores.items()}} for r in (1, 2)]))
    write_json(folder / "config.json", {"seed": seed, "method": {"name": folder.name.partition("-")[0]}})
    return folder


def test_curves_over_simulated_time(tmp_path, capsys):
    a = fake(tmp_path / "fedavg", **{"test/global/accuracy": 0.25, "simulated_seconds_total": 90.0})
    assert call(a, "--what=curves", "--axis=seconds", f"--out={tmp_path / 'out'}") == 0
    assert [row["seconds"] for row in rows(tmp_path / "out" / "curves_seconds.csv")] == ["90.0", "180.0"]
    b = fake(tmp_path / "local", **{"test/global/accuracy": 0.25})
    assert call(a, b, "--what=curves", "--axis=seconds", f"--out={tmp_path / 'out'}") == 1
    assert "local has no simulated time, for it ran without devices.profile" in capsys.readouterr().err


def test_curves_of_global_and_of_personal_models(tmp_path, capsys):
    """Each run's own main score; a run without one is told which there are."""
    a = fake(tmp_path / "fedavg", **{"test/global/accuracy": 0.25})
    b = fake(tmp_path / "local", **{"test/personal/own/accuracy/mean": 0.5})
    assert call(a, b, "--what=curves", f"--out={tmp_path / 'out'}", "--format=pdf,svg") == 0
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"curves.pdf", "curves.svg", "curves.csv"}
    assert [row["run"] for row in rows(tmp_path / "out" / "curves.csv")] == ["fedavg"] * 2 + ["local"] * 2
    capsys.readouterr()
    c = fake(tmp_path / "odd", **{"server/norm": 1.0, "train/loss": 2.0})
    assert call(a, c, "--what=curves", f"--out={tmp_path / 'out'}") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "odd has neither test/global/accuracy nor" in line
    assert line.endswith("choose with --score=NAME of server/norm, train/loss")


def test_curves_of_seeds_under_the_methods_names(tmp_path):
    made = [fake(tmp_path / f"fedavg-{seed}", seed, **{"test/global/accuracy": 0.1 * (seed + 1)}) for seed in range(3)]
    made.append(fake(tmp_path / "moon-0", **{"test/global/accuracy": 0.4}))
    assert call(*made, "--what=curves", f"--out={tmp_path / 'out'}", "--labels=FedAvg,MOON") == 0
    found = rows(tmp_path / "out" / "curves.csv")
    assert [(row["run"], row["seeds"]) for row in found] == [("FedAvg", "3")] * 2 + [("MOON", "")] * 2
    assert float(found[0]["test/global/accuracy"]) == pytest.approx(0.2)
    assert float(found[0]["standard_deviation"]) == pytest.approx(0.1)


def test_scores_are_drawn_over_bytes_and_over_epsilon(tmp_path, capsys):
    a = fake(tmp_path / "plain", **{"test/global/accuracy": 0.25})
    b = fake(tmp_path / "private", **{"test/global/accuracy": 0.2, "privacy/epsilon": 1.5})
    for run, each in ((a, 400.0), (b, 30.0)):
        write_json(run / "summary.json", {"rounds": 2, "facts": {"bytes_up": each}})
    out = tmp_path / "out"
    assert call(a, b, "--what=traffic", f"--out={out}", "--labels=A,B") == 0
    assert [(row["run"], float(row["bytes"])) for row in rows(out / "traffic.csv")] == [
        ("A", 400),
        ("A", 800),
        ("B", 30),
        ("B", 60),
    ]
    assert call(b, "--what=epsilon", f"--out={out}") == 0
    assert [(float(row["epsilon"]), float(row["test/global/accuracy"])) for row in rows(out / "epsilon.csv")] == [
        (1.5, 0.2),
        (3, 0.4),
    ]
    assert call(a, b, "--what=epsilon", f"--out={out}") == 0
    assert [(row["run"], row["epsilon"]) for row in rows(out / "epsilon.csv")] == [
        ("plain", ""),
        ("plain", ""),
        ("private", "1.5"),
        ("private", "3.0"),
    ]
    capsys.readouterr()
    assert call(a, "--what=epsilon", f"--out={out}") == 1
    assert "plain has no epsilon, for it ran without privacy.mechanism" in capsys.readouterr().err


def test_of_runs_without_records_the_figure_over_costs_says_so(tmp_path, capsys):
    a = fake(tmp_path / "plain", **{"test/global/accuracy": 0.25})
    (a / "metrics.jsonl").write_text("")
    write_json(a / "summary.json", {"rounds": 2, "facts": {"bytes_up": 4.0}})
    assert call(a, "--what=traffic", f"--out={tmp_path / 'out'}", "--score=test/global/accuracy") == 1
    assert "has no score test/global/accuracy" in capsys.readouterr().err


def test_seeds_are_one_line_over_what_they_cost(tmp_path):
    made = []
    for seed in range(3):
        made.append(fake(tmp_path / f"fedavg-{seed}", seed, **{"test/global/accuracy": 0.1 * (seed + 1)}))
        write_json(made[-1] / "summary.json", {"rounds": 2, "facts": {"bytes_up": 100.0 * (seed + 1)}})
    assert call(*made, "--what=traffic", f"--out={tmp_path / 'out'}") == 0
    found = rows(tmp_path / "out" / "traffic.csv")
    assert [(row["run"], float(row["bytes"]), row["seeds"]) for row in found] == [("fedavg", 200, "3"), ("fedavg", 400, "3")]
    assert float(found[0]["standard_deviation"]) == pytest.approx(0.1)


def test_what_holds_no_run_is_left_as_it_is(tmp_path, capsys):
    """A folder that an analysis made would refuse the run that is begun there later."""
    missing = tmp_path / "later"
    assert analyze.main([str(missing), "--what=clients"]) == 1
    assert f"error: {missing} holds no run: there is neither config.json nor metrics.jsonl" in capsys.readouterr().err
    assert not missing.exists()


def test_the_partition_of_a_run_without_a_label_table_gets_one_line(tmp_path, capsys):
    run = fake(tmp_path / "fedavg", **{"test/global/accuracy": 0.25})
    assert call(run, "--what=partition", f"--out={tmp_path / 'out'}") == 1
    assert f"error: {run} has no label table, which {run / 'run.json'} would hold" in capsys.readouterr().err
    write_json(run / "run.json", {"partition": {"hash": "ab", "number": 60, "whole": "label_table.csv"}})
    assert call(run, "--what=partition", f"--out={tmp_path / 'out'}") == 1
    assert f"error: {run} has no label table, which {run / 'label_table.csv'} would hold" in capsys.readouterr().err
    write_json(run / "run.json", {"partition": {"hash": "ab", "label_table": [[1, 2], [3, 4]]}})
    assert call(run, "--what=partition", f"--out={tmp_path / 'out'}") == 0


def test_a_bar_in_a_label_is_no_border_of_a_cell(tmp_path):
    assert (
        context.write_markdown(tmp_path / "x.md", [{"run": "a|b", "p|q": "1"}]).read_text()
        == "| run | p\\|q |\n| --- | --- |\n| a\\|b | 1 |\n"
    )
