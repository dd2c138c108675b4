"""Tables: what a definition may say, what is run and what is kept, and the numbers that come out. Most runs here are made up."""

import contextlib
import csv
import dataclasses
import functools
import math
import re
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import optax
import pytest

from configs import base, fedavg, local
from configs.tables import digits, first
from configs.tables.base import Column, Measure, Paper, Row, Table
from configs.tables.fedpft import all_methods as fedpft
from fedjax_core import experiment, outside
from fedjax_core.commands import analyse, table, tables
from fedjax_core.commands.tables import latex, measures, progress, running, written
from fedjax_core.reporting import report
from fedjax_core.storage.json_files import read_json, read_jsonl
from methods.fedavg import fedavg as fedavg_method
from tests import test_configs

GLOBAL = Measure("global", ("test/global/accuracy",))
FIRST = "configs/tables/first.py"
DEFINITIONS = sorted((Path(__file__).parents[3] / "configs" / "tables").rglob("[!_]*.py"))


def get_config(variant: str) -> Any:
    config = fedavg.get_config(variant)
    config.rounds, config.data.clients, config.models = 3, 4, ("mlp(widths=(4,))",)
    return config


def definition(**changes) -> Table:
    """Two rows, two columns, one measure; three seeds."""
    table = Table(
        title="Small",
        rows=(Row("FedAvg", get_config), Row("Uniform & co.", get_config, {"method.weights": "uniform"})),
        columns=(Column("IID", {"data.partition": "iid"}), Column("Skewed", {"data.partition": "dirichlet(alpha=0.3)"})),
        measures=(GLOBAL,),
        targets=(0.5, 0.9),
    )
    return dataclasses.replace(table, **changes)


@pytest.fixture
def fake(monkeypatch):
    """Runs that take no time: accuracies 0.4, 0.6, 0.8 + seed / 100, and the scores of `fake.more`; `fake.done` lists the cells,
    `fake.act` is called for each."""
    made = SimpleNamespace(done=[], data=[], more={}, act=lambda name: False)

    def execute(config, workdir, progress, *, data, console):
        name = Path(workdir).name
        made.done.append(name.rpartition("--")[0])
        made.data.append(data)
        stopped = made.act(made.done[-1])
        Path(workdir).mkdir(parents=True)
        with report.Reporter(workdir, config.rounds, progress=False) as reporter:
            for i, accuracy in enumerate((0.4, 0.6, 0.8 + config.seed / 100), 1):
                reporter.log({"round": i, "seconds": 2.0, "compile_seconds": 1.5, "test/global/accuracy": accuracy} | made.more)
            reporter.note(bytes_down=2000.0, bytes_up=1500.0)
        return SimpleNamespace(stopped=bool(stopped))

    monkeypatch.setattr(experiment, "execute", execute)
    return made


def run(directory, table=None, **options) -> tuple[tables.Outcome, list[str]]:
    said: list[str] = []
    return tables.run(table or definition(), str(directory), "smoke", say=said.append, **options), said


# ------------------------------------------------------------------------------------------------ what is run


def test_one_seed_of_everything_comes_before_the_next(tmp_path, fake):
    run(tmp_path)
    names = ["fedavg--iid", "uniform-co--iid", "fedavg--skewed", "uniform-co--skewed"]
    assert fake.done == [f"{name}--seed{seed}" for seed in (0, 1, 2) for name in names]
    assert fake.data[0] is fake.data[1], "data are made once for a column"
    assert fake.data[1] is not fake.data[2]


def test_finished_runs_are_not_run_again_and_a_change_runs_its_row_only(tmp_path, fake):
    run(tmp_path, seeds=[0])
    run(tmp_path, seeds=[0])
    assert len(fake.done) == 4
    changed = definition(rows=(definition().rows[0], dataclasses.replace(definition().rows[1], changes={"optimizer.lr": 0.05})))
    outcome, said = run(tmp_path, changed, seeds=[0])
    assert fake.done[4:] == ["uniform-co--iid--seed0", "uniform-co--skewed--seed0"]
    assert said[0] == "2 of 4 runs are finished, 2 to do"
    assert len(outcome.results) == 4
    assert len(list((tmp_path / "runs").iterdir())) == 6, "nothing is lost"
    run(tmp_path, seeds=[0])
    assert len(fake.done) == 6, "the old setting is still there"


def test_a_new_measure_or_target_runs_nothing(tmp_path, fake):
    run(tmp_path, seeds=[0])
    best = definition(measures=(GLOBAL, Measure("best", GLOBAL.scores, "best")), targets=(0.6,))
    run(tmp_path, best, seeds=[0])
    assert len(fake.done) == 4


def test_a_failure_does_not_end_the_others_and_names_its_cell(tmp_path, fake):
    def act(name):
        if name == "uniform-co--iid--seed0":
            raise FileNotFoundError(2, "no data set here", "x.npz")

    fake.act = act
    outcome, said = run(tmp_path, seeds=[0])
    assert len(fake.done) == 4
    assert list(outcome.failures.values()) == ["no data set here: x.npz"]
    assert "failed: Uniform & co. / IID / seed 0: no data set here: x.npz" in said
    assert "1 of 4 runs failed" in said
    text = (tmp_path / "table.md").read_text()
    assert "| Uniform & co. | failed | 80.00 |" in text
    assert "- Uniform & co. / IID / seed 0: no data set here: x.npz" in text
    assert "FileNotFoundError" in next((tmp_path / "runs").glob("*.error.txt")).read_text()
    fake.act = lambda name: False
    outcome, _ = run(tmp_path, seeds=[0])
    assert fake.done[4:] == ["uniform-co--iid--seed0"]
    assert not outcome.failures
    assert not list((tmp_path / "runs").glob("*.error.txt"))


def test_an_interruption_leaves_the_table_of_what_is_finished(tmp_path, fake):
    def act(name):
        if name == "fedavg--skewed--seed0":
            raise KeyboardInterrupt

    fake.act = act
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert "2 of 12 runs are finished" in (tmp_path / "table.md").read_text()
    fake.act = lambda name: name == "uniform-co--skewed--seed0"  # asked to stop, but finished before it could
    with pytest.raises(KeyboardInterrupt, match=r"after Uniform & co\. / Skewed / seed 0"):
        run(tmp_path)
    assert fake.done[2:] == ["fedavg--skewed--seed0", "fedavg--skewed--seed0", "uniform-co--skewed--seed0"]
    assert "4 of 12 runs are finished" in (tmp_path / "table.md").read_text()


def test_only_and_seeds(tmp_path, fake):
    run(tmp_path, only=["fedavg", "Uniform & co./skewed"], seeds=[5])
    assert fake.done == ["fedavg--iid--seed5", "fedavg--skewed--seed5", "uniform-co--skewed--seed5"]
    every = tables.cells(definition(), "smoke")
    for only, said in {"fedaavg": "unknown row 'fedaavg'.*'fedavg'", "fedavg/idd": "unknown column 'idd'.*'iid'"}.items():
        with pytest.raises(ValueError, match=said):
            tables.choose(every, [only])


def test_labels_may_hold_commas():
    cell = tables.cells(definition(), "smoke")[0]
    every = [cell._replace(row=row, column=column) for row in ("A", "A, b", "C") for column in ("IID, x", "y")]
    assert tables.names(every, "A, b/IID, x, C ,a-b/y,,A") == ["A, b/IID, x", "C", "a-b/y", "A"]
    assert tables.names(every, "A, c") == ["A", "c"]
    assert tables.names(every, "") == []


def test_the_time_left_is_told(tmp_path, fake, monkeypatch):
    times = iter(range(0, 10_000, 30))
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: float(next(times))))
    monkeypatch.setattr(running, "Heartbeat", lambda *_: contextlib.nullcontext())  # asks for the time, too
    _, said = run(tmp_path, seeds=[0])
    assert said[1] == "1/4  FedAvg / IID / seed 0"
    assert said[2] == "2/4  Uniform & co. / IID / seed 0  (about 1 min 30 s left)"
    assert said[4] == "4/4  Uniform & co. / Skewed / seed 0  (about 30 s left)"


def test_what_a_name_depends_on():
    def name(**changes):
        return tables.cells(definition(changes=changes), "smoke", [0])[0].name

    plain = name()
    same = {"plan.devices": 1, "checkpoint.seconds": 1.0, "evaluation.last_k": 3, "evaluation.targets": (0.1,)}
    assert name(**same) == plain
    assert name(**{"data.long_tail": None}) == plain

    def of_before(variant: str) -> Any:
        config = get_config(variant)
        for group in ("adversary", "compression", "aggregation", "privacy"):
            del config[group]
        return config

    assert tables.cells(definition(rows=(Row("FedAvg", of_before),)), "smoke", [0])[0].name == plain
    for changes in ({"rounds": 4}, {"optimizer.lr": 0.2}, {"data.seed": 1}, {"method.weights": "uniform"}):
        assert name(**changes) != plain
    seeds = [cell.config.data.seed for cell in tables.cells(definition(new_partitions=True), "smoke", [0, 3])]
    assert seeds == [0] * 4 + [3] * 4


def test_code_of_ones_own_is_in_the_name_of_its_cells_alone(tmp_path):
    mine = tmp_path / "mine.py"
    rows = (definition().rows[0], Row("Mine", get_config, {"loss": f"{mine}:loss"}))

    def names(code: str) -> list[str]:
        mine.write_text(f"def loss(logits, y, mask):\n    {code}\n")
        return [cell.name for cell in tables.cells(definition(rows=rows), "smoke", [0])[:2]]

    before, changed, again = names("return 0.0"), names("return 1.0"), names("return 0.0")
    assert before[0] == changed[0] == tables.cells(definition(), "smoke", [0])[0].name
    assert before[1] != changed[1]
    assert before == again
    assert outside.own_files([optax.sgd, math.exp, fedavg_method, get_config]) == [Path(__file__)]


def test_changes_apply_from_the_table_to_the_cell():
    changed = definition(
        changes={"optimizer.lr": 0.01, "rounds": 7},
        columns=(Column("a", {"optimizer.lr": 0.02}), Column("b", {})),
        rows=(Row("r", get_config, {"rounds": 8}), Row("s", get_config)),
        cells={("r", "a"): {"rounds": 9, "method.batch": 5}},
    )
    found = {
        (c.row, c.column): (c.config.optimizer.lr, c.config.rounds, c.config.method.batch)
        for c in tables.cells(changed, "smoke", [0])
    }
    assert found == {("r", "a"): (0.02, 9, 5), ("s", "a"): (0.02, 7, 32), ("r", "b"): (0.01, 8, 32), ("s", "b"): (0.01, 7, 32)}


# ------------------------------------------------------------------------------------------------ what comes out

PAPER = {"FedAvg": {"IID": 80.5, "Skewed": Paper(82.0, 0.25, "Table 9")}, "Uniform & co.": None}


def test_numbers_of_the_table(tmp_path, fake):
    run(tmp_path, definition(paper=PAPER, source="Table 2 of Them"))
    text = (tmp_path / "table.md").read_text()
    assert "| FedAvg | 81.00 ± 1.00 [80.50, +0.50] | 81.00 ± 1.00 [82.00 ± 0.25, -1.00] |" in text
    assert "| Uniform & co. | 81.00 ± 1.00 | 81.00 ± 1.00 |" in text
    assert "Table 2 of Them; Table 9" in text
    assert "| FedAvg | IID | 2 | never | 0.5 | 2 kB | 1.5 kB |" in text
    with open(tmp_path / "table.csv", newline="") as file:
        row = next(iter(csv.DictReader(file)))
    wanted = {"n": 3, "mean": 81, "std": 1, "paper": 80.5, "difference": 0.5, "seed_0": 80, "seed_2": 82, "seconds_per_round": 0.5}
    assert {key: round(float(row[key]), 6) for key in wanted} == wanted
    assert (row["rounds_to_0.5"], row["rounds_to_0.9"], row["source"]) == ("2", "never", "Table 2 of Them")
    tex = (tmp_path / "table.tex").read_text()
    assert r"FedAvg & 81.00 $\pm$ 1.00 & 81.00 $\pm$ 1.00 \\" in tex
    assert r"\quad paper, difference & 80.50, +0.50 & 82.00 $\pm$ 0.25, $-$1.00 \\" in tex
    assert r"Uniform \& co." in tex
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "summary.json is a list, expected an object"),
        ('{"rounds": 3}', "summary.json has no facts"),
        ('{"rounds": 3, "facts": {"bytes_down": "much"}}', "facts.bytes_down of .*summary.json is text"),
        ("{", "summary.json is not JSON"),
    ],
)
def test_a_damaged_summary_is_named_in_one_line(tmp_path, fake, text, said):
    run(tmp_path, seeds=[0], only=["fedavg/iid"])
    (one,) = (tmp_path / "runs").iterdir()
    (one / "summary.json").write_text(text)
    outcome, _ = run(tmp_path, seeds=[0], only=["fedavg/iid"])
    (why,) = outcome.failures.values()
    assert re.search(said, why)
    assert "\n" not in why
    outcome, said = run(tmp_path, seeds=[0], only=["uniform-co/iid"])
    assert (outcome.failures, said[-2]) == ({}, "all 1 runs are finished"), "what was not asked for does not fail the command"


def test_a_finished_run_that_lost_records_has_them_back_or_is_refused(tmp_path, fake):
    run(tmp_path, seeds=[0])
    before = (tmp_path / "table.md").read_text()
    (one, *_) = sorted((tmp_path / "runs").iterdir())
    lines = (one / "metrics.jsonl").read_text().splitlines(keepends=True)
    (one / "metrics.jsonl").write_text(lines[0])
    run(tmp_path, seeds=[0])
    assert (one / "metrics.jsonl").read_text().count("\n") == len(lines)
    assert (tmp_path / "table.md").read_text() == before
    (one / "metrics.jsonl").write_text(lines[0])
    (one / "metrics.csv").unlink()
    (reason,) = run(tmp_path, seeds=[0])[0].failures.values()
    assert "metrics.jsonl has 1 of the 3 rounds" in reason


def test_statistics_and_few_seeds(tmp_path, fake):
    measures = (
        Measure("best", GLOBAL.scores, "best"),
        Measure("mean", ("test/personal/own/accuracy/mean", *GLOBAL.scores), "mean_of_last"),
    )
    table = definition(measures=measures, changes={"evaluation.last_k": 2})
    run(tmp_path, table, seeds=[0])
    run(tmp_path, table, only=["fedavg/iid"], seeds=[0, 2])
    text = (tmp_path / "table.md").read_text()
    best, mean = text.split("## mean")
    assert "| FedAvg | **81.00** ± 1.41 | 80.00 (n=1) |" in best
    assert "| FedAvg | **70.50** ± 0.71 | 70.00 (n=1) |" in mean
    assert "All cells hold `test/global/accuracy`." in mean
    assert "best over rounds, selected on test data" in best


def contents(values: dict[str, dict[int, float]], scores: dict[str, str], **changes) -> tables.Contents:
    """One column, a row for each label: its values by seed, and the score that they are of."""
    table = definition(
        rows=tuple(Row(label, get_config) for label in values), columns=(Column("IID", {}),), seeds=(0, 1), **changes
    )
    every = tables.cells(table, "smoke")
    label = table.measures[0].label
    results = {
        cell.name: tables.Result({label: values[cell.row][cell.seed]}, {label: scores[cell.row]}, {}, 1.0, 1.0, 0.0, 0.0)
        for cell in every
        if cell.seed in values[cell.row]
    }
    return tables.Contents(table, "smoke", every, results, {})


def test_a_cell_says_which_of_the_scores_it_holds():
    own = "test/personal/own/accuracy/mean"
    measure = Measure("accuracy", (*GLOBAL.scores, own))
    found = contents({"A": {0: 0.5}, "B": {0: 0.75}}, {"A": GLOBAL.scores[0], "B": own}, measures=(measure,))
    text = tables.markdown(found)
    assert "A cell's letter says which: (a) `test/global/accuracy`, (b) `test/personal/own/accuracy/mean`." in text
    assert "| A | 50.00 (n=1) (a) |\n| B | **75.00** (n=1) (b) |" in text
    tex = latex.latex(found)
    assert r"B & \textbf{75.00} (n=1)$^{b}$ \\" in tex
    assert r"(b) test/personal/own/accuracy/mean" in tex
    assert [row["score"] for row in written.records(found)] == [GLOBAL.scores[0], own]


def test_the_best_of_a_column_is_bold():
    """Means that look alike are best together; where all do, none is. Of a loss the lowest is best, of a count none."""
    values = {"A": {0: 0.9, 1: 0.7}, "B": {0: 0.800001, 1: 0.8}, "C": {0: 0.1, 1: 0.3}}
    names = dict.fromkeys(values, GLOBAL.scores[0])
    text = tables.markdown(contents(values, names))
    assert "| A | **80.00** ± 14.14 |\n| B | **80.00** ± 0.00 |\n| C | 20.00 ± 14.14 |" in text
    assert "mean ± sample standard deviation over seeds 0, 1" in text
    assert "Bold: the highest mean of the column." in text
    losses = Measure("loss", ("train/loss",))
    text = tables.markdown(contents(values, names, measures=(losses,)))
    assert "| C | **0.2** ± 0.1414 |" in text
    assert text.count("**") == 2
    assert "**" not in tables.markdown(contents({"A": {0: 0.5}, "B": {0: 0.5}}, names))
    assert "**" not in tables.markdown(contents({"A": {0: 0.5}}, names))
    for name, better in {"analysis:trained": "neither", "analysis:probe": "larger", "server/norm": "neither"}.items():
        assert measures.better(Measure("x", (name,))) == better
    assert measures.better(dataclasses.replace(losses, better="neither")) == "neither"
    tex = latex.latex(contents(values, names))
    assert r"A & \textbf{80.00} $\pm$ 14.14 \\" in tex
    assert r"Mean $\pm$ sample standard deviation over seeds 0, 1." in tex


def test_a_long_run_says_how_far_it_is(tmp_path, fake, monkeypatch):
    """Without a terminal a run would be silent until its end."""
    monkeypatch.setattr(progress, "SILENCE", 0.01)
    said: list[str] = []

    def act(name):
        del name
        before = len(said)
        start = time.monotonic()
        while len(said) < before + 2 and time.monotonic() - start < 60:
            time.sleep(0.005)

    fake.act = act
    tables.run(definition(), str(tmp_path), "smoke", only=["fedavg/iid", "uniform-co/iid"], seeds=[0], say=said.append)
    first = next(line for line in said if line.startswith("1/2  FedAvg / IID / seed 0: "))
    assert re.fullmatch(r"1/2  FedAvg / IID / seed 0: round 0/3 after 0 s", first)
    second = next(line for line in said if line.startswith("2/2  Uniform & co. / IID / seed 0: "))
    assert re.fullmatch(r"2/2  Uniform & co\. / IID / seed 0: round 0/3 after \d s  \(about \d s left\)", second)
    assert not [thread for thread in threading.enumerate() if "_talk" in thread.name], "they end with their runs"


def test_time_left_is_of_this_runs_pace_once_it_has_one(tmp_path, monkeypatch):
    (first, second, *_) = tables.cells(definition(), "smoke", [0])
    times = iter((0.0, 10.0, 20.0))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(times)))
    jobs = [progress.Job(cell, cell.config.rounds) for cell in (first, second)]
    beat = progress.Heartbeat(tmp_path, jobs, "1/4", progress.Pace(), None)
    folder = tmp_path / "runs" / first.name
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("{}\n")
    assert beat.line() == f"1/4  {first}: round 1/3 after 10 s"
    (folder / "metrics.jsonl").write_text("{}\n{}\n")
    assert beat.line() == f"1/4  {first}: round 2/3 after 20 s  (about 40 s left)"  # 10 s here, 30 s for the other


def test_a_score_that_no_run_has_is_named(tmp_path, fake):
    own = "test/personal/own/accuracy/mean"
    outcome, _ = run(tmp_path, definition(measures=(Measure("x", (own,)),)), only=["fedavg/iid"], seeds=[0])
    (reason,) = outcome.failures.values()
    assert reason == f"the run has no last of {own}; it has test/global/accuracy"
    again, said = run(tmp_path, definition(measures=(Measure("x", (own,)),)), only=["fedavg/iid"], seeds=[0])
    assert again.failures == outcome.failures, "the table is written, and no run is done again"
    assert said[-2:] == ["1 of 1 runs failed", f"tables   {tmp_path / 'table.md'}"]
    assert len(fake.done) == 1


def test_one_of_a_measures_scores_is_enough(tmp_path, fake):
    either = Measure("x", ("validation/global/accuracy", *GLOBAL.scores))
    outcome, _ = run(tmp_path, definition(measures=(either,)), only=["fedavg/iid"], seeds=[0])
    assert (len(outcome.results), outcome.failures) == (1, {})


def test_scores_of_unseen_clients_are_left_out_only_where_a_run_has_none(tmp_path, fake):
    unseen = Measure("x", ("test/personal/unseen/accuracy/mean",))
    table = definition(measures=(unseen,), changes={"data.unseen_clients": 1})
    outcome, _ = run(tmp_path / "none", table, only=["fedavg/iid"], seeds=[0])
    assert ([result.values for result in outcome.results.values()], outcome.failures) == ([{}], {})
    fake.more = {"test/global/unseen/accuracy/mean": 0.5}
    outcome, _ = run(tmp_path / "other", table, only=["fedavg/iid"], seeds=[0])
    (reason,) = outcome.failures.values()
    assert reason.startswith(f"the run has no last of {unseen.scores[0]}; it has test/global/accuracy, test/global/unseen/")


def test_reading_many_finished_runs_is_not_silent(tmp_path, fake, monkeypatch):
    run(tmp_path, seeds=[0])
    assert run(tmp_path, seeds=[0])[1][0] == "4 of 4 runs are finished, 0 to do"
    monkeypatch.setattr(running, "SILENCE", -1.0)
    _, said = run(tmp_path, seeds=[0])
    assert said[:2] == ["reading 1/4  FedAvg / IID / seed 0", "reading 2/4  Uniform & co. / IID / seed 0"]


# ------------------------------------------------------------------------------------------------ wrong definitions

IID = {"IID": 1.0, "Skewed": 2.0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(rows=()), "the table has no rows"),
        (dict(rows=(Row("A b", get_config), Row("a-B", get_config))), "rows 'A b' and 'a-B' have one name, 'a-b'"),
        (dict(columns=(Column("x", {}), Column("x", {}))), "columns 'x' and 'x' have one name"),
        (dict(rows=(Row("?", get_config),)), "row '\\?' has no letter or digit"),
        (dict(rows=(Row("x", get_config, {"method": {"name": "fedavgg"}}),)), "x / IID: unknown method 'fedavgg'.* 'fedavg'\\?"),
        (dict(changes={"optimizer.lrr": 1.0}), "the config has no field optimizer.lrr. Did you mean 'optimizer.lr'\\?"),
        (dict(changes={"optimiser.lr": 1.0}), "no field optimiser.lr. Did you mean 'optimizer.lr'"),
        (dict(changes={"method.weight": "uniform"}), "method 'fedavg' has no option 'weight'.*'weights'"),
        (dict(changes={"rounds": "many"}), "rounds='many'"),
        (dict(changes={"models": ("mpl",)}), "unknown model 'mpl'.*'mlp'"),
        (dict(columns=(Column("x", {"data.partition": "dirichlt(alpha=1)"}),)), "x: unknown partition 'dirichlt'.*'dirichlet'"),
        (dict(changes={"data.source": "cifar"}), "unknown data set 'cifar'"),
        (dict(cells={("FedAvg", "IDD"): {}}), "unknown column in cells 'IDD'.*'IID'"),
        (dict(paper={"FedAvgg": IID}), "unknown row in paper 'FedAvgg'.*'FedAvg'"),
        (dict(paper={"FedAvg": {"IDD": 1.0}}), "unknown column in paper 'IDD'.*'IID'"),
        (dict(paper={"FedAvg": IID}, source="T"), "row 'Uniform & co.' is missing; write None"),
        (dict(paper={"FedAvg": {"IID": 1.0}, "Uniform & co.": None}, source="T"), "'FedAvg' / 'Skewed' is missing; write None"),
        (dict(paper={"FedAvg": IID, "Uniform & co.": None}), "say which table of which paper 1.0 is from"),
        (dict(paper={"FedAvg": {"IID": "80", "Skewed": None}, "Uniform & co.": None}, source="T"), "'80' is not a number"),
        (dict(measures=(Measure("x", GLOBAL.scores, "final"),)), "unknown statistic of measure 'x' 'final'.*last"),
        (dict(measures=(Measure("x", "test/global/accuracy"),)), "scores must be a tuple"),
        (dict(measures=(Measure("x", ("test/accuracy",)),)), "'test/accuracy' is no name of a score"),
        (dict(measures=(Measure("x", ("test/personal/all/accuracy/mean",)),)), "measure 'x' needs 'all' in evaluation.scopes"),
        (dict(measures=(Measure("x", ("test/global/acuracy",)),)), "unknown score in .* of measure 'x' 'acuracy'.*'accuracy'"),
        (dict(measures=(Measure("x", ("test/personal/own/loss/maen",)),)), "unknown statistic in .* 'maen'.*'mean'"),
        (dict(measures=(Measure("x", GLOBAL.scores, "selected"),)), "measure 'x' is of the selected round; set evaluation.select"),
        (dict(measures=(Measure("x", ("validation/global/loss",)),)), "'validation/global/loss' needs data.validation"),
        (dict(measures=(Measure("x", ("test/global/gap/accuracy",)),)), "needs data.unseen_clients"),
        (
            dict(
                measures=(Measure("x", ("test/global/gap/accuracy",)),),
                changes={"data.unseen_clients": 1, "evaluation.scopes": ("global",)},
            ),
            "measure 'x' needs 'own' in evaluation.scopes",
        ),
        (dict(measures=(Measure("x", ("analysis:prob",)),)), "unknown analysis 'prob'.*'probe'"),
        (dict(measures=(Measure("x", GLOBAL.scores, better="higher"),)), "unknown better of measure 'x' 'higher'.*larger"),
        (dict(targets=(80,)), "target 80 is not an accuracy"),
        (dict(seeds=(0, 0)), "each once"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),  # no addresses: workers must agree
)
def test_a_wrong_definition_ends_before_anything_runs(tmp_path, fake, changes, said):
    with pytest.raises((ValueError, TypeError), match=said) as caught:
        run(tmp_path / "table", definition(**changes))
    assert "\n" not in report.one_line(caught.value)
    assert not fake.done
    assert not (tmp_path / "table").exists()


def test_files_that_define_no_table(tmp_path, capsys, fake):
    (tmp_path / "a.py").write_text("def get_table(variant):\n    return Tabel()\n")
    (tmp_path / "b.py").write_text("def get_table(variant):\n    return {}\n")
    (tmp_path / "c.py").write_text("x = 1\n")
    for name, said in {"none.py": "there is no table", "a.py": "'Tabel' is not defined", "b.py": "", "c.py": "get_table"}.items():
        assert table.main([f"--table={tmp_path / name}", f"--workdir={tmp_path / 'w'}"]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
        assert said in lines[0]
    for flags, said in {
        (f"--table={FIRST}",): "--workdir",
        (f"--table={FIRST}", "--workdir=w", "--seeds=a"): "--seeds=a: ",
    }.items():
        assert table.main(list(flags)) == 2
        assert said in capsys.readouterr().err
    assert table.main([f"--table={FIRST}", f"--workdir={tmp_path / 'w'}", "--variant=huge"]) == 2
    assert "'huge' is not one of paper, small, smoke" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()
    assert not fake.done


# ------------------------------------------------------------------------------------------------ real runs


@pytest.mark.parametrize("variant", base.VARIANTS)
@pytest.mark.parametrize("file", [path for path in DEFINITIONS if "def get_table" in path.read_text()], ids=lambda path: path.stem)
def test_every_table_is_well_defined(file, variant):
    """Every cell of its first seed: those of the others differ in the seed alone."""
    table = tables.read(str(file), variant)
    assert len(set(table.seeds)) == len(table.seeds) > 0
    cells = tables.cells(table, variant, table.seeds[:1])
    assert len(cells) == len({cell.name for cell in cells}) == len(table.rows) * len(table.columns)


def test_tables_of_one_paper_share_their_runs():
    first, third = (
        {cell.name for cell in tables.cells(tables.read(f"configs/tables/fedskc/table{n}.py", "paper"), "paper", [0])}
        for n in (1, 3)
    )
    assert third < first
    large, small, both = (
        {cell.name for cell in tables.cells(tables.read(f"configs/tables/fedpft/table{n}.py", "paper"), "paper", [0])}
        for n in (2, 8, 9)
    )
    assert {name for name in both if not name.startswith("fedavg-linear")} < large | small


def test_epochs_of_fedpft():
    """4 + 1, but 3 + 2 of FedPFT+Con at alpha 0.1; the others have five as well."""
    for cell in tables.cells(tables.read("configs/tables/fedpft/table8.py", "paper"), "paper", [0]):
        method = cell.config.method
        if cell.row.startswith("FedPFT"):
            early = (cell.row, cell.column) == ("FedPFT+Con", "CIFAR-10, alpha 0.1")
            assert (method.transform_epochs, method.model_epochs) == ((3, 2) if early else (4, 1))
            assert method.transform_rate == (0.1 if cell.row == "FedPFT+Con" else 0.5)
        elif cell.row != "FedRep":
            assert method.epochs + method.get("prompt_epochs", 0) == 5, cell.row
        assert (cell.config.rounds, cell.config.evaluation.every, cell.config.optimizer.lr, method.batch) == (1000, 1, 0.1, 100)


def test_a_row_of_the_paper_that_is_too_short_is_refused():
    columns = [Column("a", {}), Column("b", {})]
    assert fedpft.published({"x": "1.5±0.5 2.5"}, "Table 1", columns) == {
        "x": {
            "a": {"best round": Paper(1.5, 0.5, "FedPFT, Table 1"), "last round": None},
            "b": {"best round": Paper(2.5, None, "FedPFT, Table 1"), "last round": None},
        }
    }
    with pytest.raises(ValueError, match="shorter"):
        fedpft.published({"x": "1.5±0.5"}, "Table 1", columns)


def test_pacs_is_a_domain_per_client(shared_data):
    """As the paper has it, 4 clients with 1000 + 500 images, of the file that we have."""
    of_file = ["data.source=npz(path='pacs64.npz', test_fraction=0.32)", f"data.dir={shared_data}"]
    table = tables.changed(tables.read("configs/tables/fedpft/table10.py", "paper"), of_file)
    (cell,) = tables.choose(tables.cells(table, "paper", [0]), ["FedPFT/PACS"])
    data = experiment.dataset(cell.config)
    assert data.label_table.sum(1).tolist() == [1000] * 4
    assert data.test_label_table.sum(1).tolist() == [500] * 4
    cell.config.plan.devices = 1
    assert experiment.build(cell.config, data).population == 4


@pytest.mark.parametrize(("number", "clients", "rows"), [(2, 6, 1000), (7, 30, 200)])
def test_protocol_of_fedoa(number, clients, rows):
    """At full size, without the files: a data set per client or a fifth of one, everybody tested on what was left out."""
    table = tables.read(f"configs/tables/fedoa/table{number}.py", "paper")
    cells = tables.cells(table, "paper", [0])
    assert {cell.config.data.source.partition("leave_out='")[2].rstrip("')") for cell in cells} == set(test_configs.TASKS)
    for cell in cells:
        method = cell.config.method
        together = cell.row == "Centralized"
        assert cell.config.rounds * method.epochs == (10 if together else 40), cell
        assert method.get("lam", 0.5) == 0.5
        assert (cell.config.optimizer.lr, cell.config.optimizer.anneal, method.batch) == (3e-4, "linear", 32)
    (cell,) = tables.choose(cells, ["fedoa/sentiment"])
    simulation = test_configs.build(cell.config)
    data = simulation.data
    assert [len(index) for index in data.train_index] == [rows] * clients
    assert [len(index) for index in data.test_index] == [len(data.test.y)] * clients == [400] * clients
    adapter = jax.eval_shape(simulation.groups[0].task.model.init, jax.random.key(0)).params
    assert sum(leaf.size for leaf in jax.tree.leaves(adapter)) == 4_194_304


def test_tables_of_fedoa_share_their_runs():
    names = lambda n: {cell.name for cell in tables.cells(tables.read(f"configs/tables/fedoa/{n}.py", "paper"), "paper", [0])}
    assert {name for name in names("all_methods") if not name.startswith(("local", "pfedme-released"))} < names("table2")
    assert not names("table2") & names("table6"), "own tests are others"


def test_domains_of_fedoa(shared_data):
    """Its Table 8 in small, on the file that we have: three clients, three domains, tested on the fourth."""
    of_file = [f"data.dir={shared_data}"]
    table = tables.changed(tables.read("configs/tables/fedoa/table8.py", "small"), of_file)
    (cell,) = tables.choose(tables.cells(table, "small", [0]), ["FedOA/Photo"])
    data = experiment.dataset(cell.config)
    assert data.label_table.sum() == 3000
    assert data.test_label_table.sum(1).tolist() == [1670] * 3
    cell.config.plan.devices = 1
    assert experiment.build(cell.config, data).population == 3


# ------------------------------------------------------------------------------------------------ counts


@functools.cache
def data_of(source: str):
    config = local.get_config("small")
    config.data.update(source=source, clients=5, partition="iid")
    return experiment.dataset(config)


ENTRIES: dict[tuple, dict[str, int]] = {}  # of a network for data of a shape and a number of classes


def entries(spec: str, source: str) -> dict[str, int]:
    """Numbers in each entry of a network's params."""
    data = data_of(source)
    key = spec, data.train.x.shape[1:], data.classes
    if key not in ENTRIES:
        params = jax.eval_shape(experiment.network(spec, data).init, jax.random.key(0)).params
        ENTRIES[key] = {name: sum(leaf.size for leaf in jax.tree.leaves(entry)) for name, entry in params.items()}
    return ENTRIES[key]


def counts(config) -> list[tuple[int, int, int]]:
    """Of the config's network on each client, from shapes: body, whole, and what is trained of it (FedBABU's head is fixed)."""
    found = []
    for spec in config.models:
        number = entries(spec, config.data.source)
        trained = {"all": number, "prompts": ("prompts", "head"), "head": ("head",)}[config.train]
        if config.method.name == "fedbabu":
            trained = [name for name in trained if name != "head"]
        body = sum(n for name, n in number.items() if name not in ("prompts", "head"))
        found.append((body, sum(number.values()), sum(number[name] for name in trained)))
    return [found[i % len(found)] for i in range(config.data.clients)]


OURS = {  # where the printed number is not of the network alone, or is not right: what it should be
    ("ViT-S", "entire"): 20.666,  # printed 20.57; 20.70 is of 100 classes
    ("pFedPT", "a client"): 1.026,  # printed with its frame
    ("pFedPG", "a client"): 0.015,  # printed with the server's generator
    ("FedGen", "five clients"): 84.360,  # printed with the generator
    ("FedTGP", "five clients"): 84.360,
    ("FedProto", "five clients"): 84.360,  # printed with a mapping layer in each
    ("FedGH", "five clients"): 84.336,  # printed with a linear layer in each
    ("FedMD", "five clients"): 84.336,  # printed with ten outputs more
    ("FedHE", "five clients"): 84.336,  # printed as the sum of rounded numbers, 84.335
}


@pytest.mark.parametrize("name", ["table5", "table6", "table7", "table8", "parameters"])
def test_parameters_of_fedhpl_are_the_published_ones(name):
    """To the last printed digit, by built networks of full size."""
    table = tables.read(f"configs/tables/fedhpl/{name}.py", "small")
    compared = 0
    for cell in tables.cells(table, "small"):
        each = counts(cell.config)
        for measure in table.measures:
            what, _, option = measure.scores[0].removeprefix("analysis:").partition("(")
            numbers = [dict(zip(("body", "whole", "trained"), n, strict=True))[what] for n in each]
            ours = (sum(numbers) if option else sum(numbers) / len(numbers)) / measure.unit
            paper = (table.paper[cell.row] or {}).get(cell.column, {}).get(measure.label)
            if paper is None:
                continue
            wanted = paper.value
            if cell.column != "CIFAR-100":
                wanted = OURS.get((cell.row, measure.label), wanted)
            printed = min(len(str(wanted).partition(".")[2]), 3 if name in ("table7", "parameters") else 2)
            assert abs(ours - wanted) < 0.5001 * 10**-printed, (cell.row, cell.column, measure.label, ours)
            compared += 1
    assert compared == {"table5": 14, "table6": 42, "table7": 24, "table8": 12, "parameters": 16}[name]


def test_uplinks_of_fedhpl_and_of_its_baselines_are_the_published_ones(tmp_path):
    """Nothing is trained, and no run is left; any network with 512 features sends as much."""
    table = tables.changed(tables.read("configs/tables/fedhpl/table9.py", "small"), ["models=('cnn(widths=(2,), dense=512)',)"])
    chosen = ["fedhpl", *(f"{row}/cifar-10-svhn" for row in ("fedgen", "fedgh", "fedproto", "fedtgp", "fedhe"))]
    outcome, said = run(tmp_path, table, only=chosen)
    assert not outcome.failures, said
    assert not (tmp_path / "runs").exists()
    for cell in tables.choose(tables.cells(table, "smoke"), chosen):
        paper = table.paper[cell.row][cell.column]
        values = outcome.results[cell.name].values
        labels = 10 if cell.row == "FedGen" else 0  # how many of each, where the paper has all of them
        assert values["a client"] == paper["a client"].value + labels
        if paper["five clients"]:
            assert values["five clients"] / 2**10 == pytest.approx(paper["five clients"].value, abs=0.005)
    text = (tmp_path / "table.md").read_text()
    assert "| FedHPL | 110 [110, +0] | 10,100 [10,100, +0] |" in text
    assert "in units of 2^10" in text
    assert "nan" not in text


def test_counts_stand_beside_accuracies(tmp_path):
    """Of a run that trains, from the same shapes."""
    measures = (GLOBAL, Measure("trained", ("analysis:trained",)), Measure("sent", ("analysis:up(total=True)",), unit=2**10))
    made = definition(measures=measures, changes={"plan.devices": 1, "rounds": 1, "evaluation.every": 1}, targets=())
    outcome, said = run(tmp_path, made, only=["fedavg/iid"], seeds=[0])
    assert not outcome.failures, said
    (result,) = outcome.results.values()
    assert result.values["trained"] == 64 * 4 + 4 + 4 * 10 + 10
    assert result.values["sent"] == 4 * result.values["trained"]
    for text, said in (("trained(group=1)", "group=1 must lie in"), ("trainde", "Did you mean 'trained'")):
        with pytest.raises(ValueError, match=said):
            analyse.number(text)(next((tmp_path / "runs").iterdir()), None)
    with pytest.raises(ValueError, match="unit=1024 of what is shown in per cent"):
        tables.cells(definition(measures=(Measure("x", GLOBAL.scores, unit=1024),)), "smoke")


def test_a_setting_on_the_command_line_is_of_all_runs():
    changed = tables.changed(
        definition(cells={("FedAvg", "IID"): {"rounds": 2}}), ["optimizer.lr=0.5", "data.source=tfds:cifar10", "rounds=4"]
    )
    for cell in tables.cells(changed, "smoke", [0]):
        assert (cell.config.optimizer.lr, cell.config.data.source, cell.config.rounds) == (0.5, "tfds:cifar10", 4)
    assert tables.changed(definition(), []) == definition()
    with pytest.raises(ValueError, match="--set=rounds is not of the form FIELD=VALUE"):
        tables.changed(definition(), ["rounds"])


def test_the_first_table_runs_and_leaves_nothing_in_memory(tmp_path):
    before = len(jax.live_arrays())
    defined = dataclasses.replace(first.get_table("smoke"), changes=first.get_table("smoke").changes | {"plan.devices": 1})
    rows = ["FedAvg (samples)", "FedHe", "Local", "Centralized"]  # one model for all, two with one per client, a pooled method
    outcome, said = run(tmp_path, defined, only=[f"{row}/Dirichlet(0.5)" for row in rows], seeds=[0])
    assert not outcome.failures, said
    assert len(outcome.results) == len(rows)
    for result in outcome.results.values():
        assert set(result.values) == {"own test rows", "whole test set"}
        assert all(0.1 < value <= 1 for value in result.values.values())
        assert result.seconds_per_round > 0
    assert (tmp_path / "table.md").read_text().count("Dirichlet(0.5) |") == 2 * 2 + len(rows), (
        "of two measures, their intervals, and costs"
    )
    assert len(jax.live_arrays()) <= before


ENDLESS = """
from configs import fedavg
from configs.tables.base import Column, Measure, Row, Table

def get_table(variant):
    changes = {"models": ("mlp(widths=(4,))",), "data.clients": 4, "checkpoint.seconds": 0.0, "evaluation.every": 1}
    rows = Row("short", fedavg.get_config, {"rounds": 2}), Row("long", fedavg.get_config, {"rounds": ROUNDS})
    columns = (Column("iid", {"data.partition": "iid"}),)
    return Table("Two", rows, columns, (Measure("x", ("test/global/accuracy",)),), (0,), changes)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_table_that_is_killed_goes_on(launcher, tmp_path, number):
    file = tmp_path / "two.py"
    file.write_text(ENDLESS.replace("ROUNDS", "60"))
    flags = [f"--table={file}", f"--workdir={tmp_path / 'table'}", "--variant=smoke"]

    def long(name):
        found = list((tmp_path / "table" / "runs").glob(f"long--*/{name}"))
        return found[0] if found else None

    process = launcher.start(*flags, module="fedjax_core.commands.table")
    assert process.until(lambda: long("checkpoints/0*/record.json"), "a checkpoint")
    process.send(number)
    ended = process.wait()
    assert ended.status == (130 if number == signal.SIGINT else -number), ended.err
    assert "1 of 2 runs are finished." in (tmp_path / "table" / "table.md").read_text()
    short = next((tmp_path / "table" / "runs").glob("short--*"))
    before = {path: path.stat().st_mtime_ns for path in short.rglob("*")}
    ended = launcher.run(*flags, module="fedjax_core.commands.table")
    assert ended.status == 0, ended.err
    assert "1 of 2 runs are finished, 1 to do" in ended.err
    assert {path: path.stat().st_mtime_ns for path in short.rglob("*")} == before
    assert [r["round"] for r in read_jsonl(long("metrics.jsonl"))] == list(range(1, 61))
    assert len(read_json(long("environment.json"))["resumed"]) == 1
    assert " runs are finished." not in (tmp_path / "table" / "table.md").read_text()


def test_an_interrupted_notebook_cell_leaves_a_run_that_goes_on(tmp_path):
    """The signal arrives in this very process, in the first round."""
    config = get_config("smoke")
    config.plan.devices, config.evaluation.every = 1, 1
    interrupts = lambda text: signal.raise_signal(signal.SIGINT) if text.startswith("digits") else None
    with pytest.raises(KeyboardInterrupt, match="after round 1; the same command resumes"):
        experiment.execute(config, str(tmp_path / "a"), False, console=interrupts)
    said: list[str] = []
    resumed = experiment.execute(config, str(tmp_path / "a"), False, console=said.append)
    assert any("after round 1" in text for text in said)
    whole = experiment.execute(config, str(tmp_path / "b"), False, console=said.append)
    for name in ("train/loss", "test/global/accuracy"):
        assert resumed.history[name].rounds.tolist() == [1, 2, 3]
        assert resumed.history[name].values.tolist() == whole.history[name].values.tolist()


def test_the_table_of_digits_has_every_method_once_on_digits():
    """Each cell's names and settings are found and checked; other targets and data have configs, and no row."""
    of_digits = digits.get_table("small")
    configs = {cell.row: cell.config for cell in tables.cells(of_digits, "small")}
    assert experiment.names().keys() - configs.keys() == set()
    for row, config in configs.items():
        assert "digits" in experiment.resolve(config).data.source.spec, row
    plain = [row for row in configs if row in digits.NAMES]
    assert [configs[row].method.name for row in plain] == plain
