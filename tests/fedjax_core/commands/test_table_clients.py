"""What tables say beyond a mean: of single clients, and of what can be told apart. The runs are made up."""

import csv
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from configs.tables.base import Column, Measure, Row
from fedjax_core import experiment
from fedjax_core.commands import tables
from fedjax_core.commands.tables import client_statistics, runner, writers
from fedjax_core.engine.evaluation_step import ClientScores
from fedjax_core.reporting import bootstrap, client_scores, console
from fedjax_core.reporting import reporter as report
from tests.fedjax_core.commands.small_tables import definition, get_config, run

OWN, GLOBAL = "test/personal/own/accuracy", "test/global/own/accuracy"
MEAN = Measure("mean", (f"{OWN}/mean", f"{GLOBAL}/mean"))
WORST = Measure("worst tenth", (OWN, GLOBAL), clients="worst_tenth")
DECILE = Measure("decile", (OWN, GLOBAL), clients="decile(number=5)")
WORSE = Measure("worse off", (OWN, GLOBAL), clients="worse_than(row='Local')")
N = 40
NOISE = 0.05 * np.random.default_rng(0).normal(size=(4, 8, N))  # by row, seed, client
OF_CLIENT = np.linspace(0.4, 0.7, N)
ROWS = {"Local": 0.0, "Same": 0.002, "Better": 0.2}


def values(label: str, seed: int) -> np.ndarray:
    found = OF_CLIENT + ROWS[label] + NOISE[list(ROWS).index(label), seed]
    found[3] = np.nan  # without test rows
    return found


def table(**changes):
    rows = tuple(Row(label, get_config) for label in ROWS)
    made = definition(rows=rows, columns=(Column("IID", {}),), measures=(MEAN, WORST, DECILE, WORSE), targets=())
    return dataclasses.replace(made, **changes)


@pytest.fixture
def fake(monkeypatch):
    """Runs of three rows, whose accuracies by client are `values`; `fake.left_out` names what a run does not write."""
    made = SimpleNamespace(left_out=(), last=3)

    def execute(config, workdir, progress, *, data, console, draws):
        label = next(label for label in ROWS if Path(workdir).name.startswith(label.lower()))
        name, each = GLOBAL if label == "Better" else OWN, values(label, config.seed)
        Path(workdir).mkdir(parents=True)
        with report.Reporter(workdir, config.rounds, progress=False, tensorboard=False) as reporter:
            for i in range(1, 4):
                reporter.log({"round": i, "seconds": 1.0, f"{name}/mean": float(np.nanmean(each)) - 0.1 * (3 - i)})
            reporter.note(bytes_down=1.0, bytes_up=1.0, peak_memory_bytes=1)
            if label not in made.left_out:
                rows = np.full(N, 5) - 5 * np.isnan(each)
                client_scores.write_client_scores(
                    Path(workdir) / client_scores.LAST, made.last, ClientScores(np.arange(N), rows, {name: each})
                )
        return SimpleNamespace(stopped=False)

    monkeypatch.setattr(experiment, "execute", execute)
    monkeypatch.setattr(runner, "_release_memory", lambda: None)
    return made


def written(folder) -> dict[tuple[str, str], dict[str, str]]:
    with open(folder / "table.csv", newline="") as file:
        return {(row["row"], row["measure"]): row for row in csv.DictReader(file)}


def test_the_worst_tenth_deciles_and_who_is_worse_off(tmp_path, fake):
    outcome, said = run(tmp_path, table())
    assert not outcome.failures, said
    found = written(tmp_path)
    for label in ROWS:
        of_seed = [np.delete(values(label, seed), 3) for seed in range(3)]
        worst = [np.sort(each)[:4].mean() for each in of_seed]  # a tenth of 39
        assert float(found[label, "worst tenth"]["mean"]) == pytest.approx(100 * np.mean(worst))
        assert float(found[label, "decile"]["mean"]) == pytest.approx(100 * np.mean([np.median(each) for each in of_seed]))
        worse = [np.mean(each < np.delete(values("Local", seed), 3)) for seed, each in enumerate(of_seed)]
        if label == "Local":
            assert found[label, "worse off"]["n"] == "0"
        else:
            assert float(found[label, "worse off"]["mean"]) == pytest.approx(100 * np.mean(worse))
            assert float(found[label, "worse off"]["seed_1"]) == pytest.approx(100 * worse[1])
    text = (tmp_path / "table.md").read_text()
    assert "The mean of the worst tenth of the clients." in text
    assert "The share of clients that are worse off than in row Local, same seed" in text
    assert "difference to" not in text
    assert "Bold: the lowest mean of the column." in text.partition("## worse off")[2]


def test_indistinguishable_rows_are_marked_and_differences_have_intervals(tmp_path, fake):
    made = table(measures=(MEAN, WORST), against="Local")
    run(tmp_path, made, seeds=[0, 1])
    found = written(tmp_path)
    better, same = found["Better", "mean"], found["Same", "mean"]
    assert better["intervals_over"] == "seeds and clients"  # two seeds would not be enough
    assert float(better["minus_against"]) == pytest.approx(float(better["mean"]) - float(found["Local", "mean"]["mean"]))
    assert 15 < float(better["minus_against_low"]) < float(better["minus_against"]) < float(better["minus_against_high"]) < 25
    assert float(same["minus_against_low"]) < 0 < float(same["minus_against_high"])
    assert (better["rank"], better["rank_low"], better["rank_high"], better["like_best"]) == ("1.0", "1", "1", "0")
    assert (same["rank_low"], same["rank_high"], same["like_best"]) == ("2", "3", "0")
    assert found["Local", "mean"]["minus_against"] == ""
    text = (tmp_path / "table.md").read_text()
    assert "≈" not in text
    assert "The rank in the column [95 % interval of the rank]; the difference to Local [95 % interval of the difference]: " in text
    assert "a paired bootstrap over seeds and clients." in text
    few = "Intervals over 2 seeds are too narrow: drawn from 2 seeds alone they hold the true mean in about 50"
    tex = (tmp_path / "table.tex").read_text()
    assert few in text
    assert few in tex
    assert r"The rank in the column [95~\% interval of the rank]; the difference to Local" in tex
    assert "Better & 1 [1, 1]; +" in tex
    assert "| Better | 1 [1, 1]; +" in text
    run(tmp_path, dataclasses.replace(made, rows=made.rows[:2]), seeds=[0, 1])
    found = written(tmp_path)
    marks = {label: found[label, "mean"]["like_best"] for label in ("Local", "Same")}
    best = max(marks, key=lambda label: float(found[label, "mean"]["mean"]))
    assert marks == {best: "0", ({*marks} - {best}).pop(): "1"}
    text, tex = (tmp_path / "table.md").read_text(), (tmp_path / "table.tex").read_text()
    assert text.partition("## worst")[0].count(" ≈ |") == 1
    assert (
        "≈: not distinguishable from the best; the 95 % interval of the difference contains 0, a paired bootstrap over seeds"
        in text
    )
    assert r" $\approx$ \\" in tex


def test_intervals_are_drawn_where_results_are_new_alone(tmp_path, fake, monkeypatch):
    """If the table is written after each run: of two columns and two measures those of one column are drawn again."""
    drawn, resampled = [], bootstrap.resample_means
    monkeypatch.setattr(bootstrap, "resample_means", lambda *given, **options: drawn.append(1) or resampled(*given, **options))
    monkeypatch.setattr(runner, "MAX_WRITE_SHARE", math.inf)
    columns = Column("IID", {}), Column("Skewed", {"data.partition": "dirichlet(alpha=1.0)"})
    made = table(measures=(MEAN, DECILE), columns=columns, against="Local")
    run(tmp_path, made, seeds=[0])
    # with two rows finished, and with three, in each of two columns, of two measures; none for the figure and the last writing
    assert len(drawn) == 2 * 2 * 2
    drawn.clear()
    run(tmp_path, made, seeds=[0])
    assert len(drawn) == 2 * 2, "once, though it is written and drawn"


def test_differences_are_drawn_with_what_the_table_says(tmp_path, fake):
    run(tmp_path, table(measures=(MEAN,)))
    assert not (tmp_path / "differences.csv").exists()  # nothing is compared with a row
    outcome, _ = run(tmp_path, table(against="Same", figure=("worst tenth", "mean")))
    drawn = [tmp_path / f"differences.{kind}" for kind in ("png", "pdf", "csv")]
    assert set(drawn) <= set(outcome.files)
    assert [file.read_bytes()[:4] for file in drawn[:2]] == [b"\x89PNG", b"%PDF"]
    with open(drawn[2], newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(one["title"], one["label"]) for one in lines] == [
        (title, label) for title in ("mean", "worst tenth") for label in ("Better", "Local")
    ]
    found = written(tmp_path)
    for one in lines:
        cell = found[one["label"], one["title"]]
        assert one["kind"] == ("global model" if one["label"] == "Better" else "personal model")
        assert one["like_best"] == str(one["label"] == "Better")
        for ours, theirs in (("value", ""), ("low", "_low"), ("high", "_high")):
            assert float(one[ours]) == float(cell[f"minus_against{theirs}"])


def test_a_row_that_one_measure_cannot_compare_is_in_the_panels_of_others(tmp_path, fake, monkeypatch):
    """Local and Same never reach the target, so that only Middle is compared with Better in rounds."""
    monkeypatch.setitem(ROWS, "Middle", 0.15)
    rounds = Measure("rounds", MEAN.scores, "rounds_to(target=0.65)")
    rows = tuple(Row(label, get_config) for label in ROWS)
    run(tmp_path, table(rows=rows, measures=(rounds, MEAN), against="Better", figure=("rounds", "mean")))
    with open(tmp_path / "differences.csv", newline="") as file:
        lines = [(line["title"], line["label"]) for line in csv.DictReader(file)]
    assert [label for title, label in lines if title == "rounds"] == ["Middle"]
    assert {label for title, label in lines if title == "mean"} == {"Middle", "Same", "Local"}


def test_without_files_of_clients_seeds_are_drawn_if_there_are_three(tmp_path, fake):
    fake.left_out = tuple(ROWS)
    made = table(measures=(MEAN,), against="Same")
    run(tmp_path, made, seeds=[0, 1])
    assert {row["intervals_over"] for row in written(tmp_path).values()} == {""}
    assert "interval" not in (tmp_path / "table.md").read_text()
    run(tmp_path, made)
    found = written(tmp_path)
    assert {row["intervals_over"] for row in found.values()} == {"seeds"}
    means = {label: [100 * np.nanmean(values(label, seed)) for seed in range(3)] for label in ROWS}
    between = np.subtract(means["Better"], means["Same"])  # of three seeds the interval is the range
    row = found["Better", "mean"]
    assert [float(row["minus_against_low"]), float(row["minus_against_high"])] == pytest.approx([between.min(), between.max()])


def test_a_row_without_files_of_clients_is_drawn_over_seeds_beside_the_others(tmp_path, fake):
    fake.left_out = ("Same",)
    run(tmp_path, table(measures=(MEAN,)))
    found = written(tmp_path)
    assert {label: found[label, "mean"]["intervals_over"] for label in ROWS} == {
        "Local": "seeds and clients",
        "Same": "seeds",
        "Better": "seeds and clients",
    }
    text = (tmp_path / "table.md").read_text()
    assert "over seeds and clients (of rows without values of the same clients over seeds alone)" in text
    assert "Not compared" not in text


def test_a_row_that_is_not_compared_is_named(tmp_path, fake):
    made = table(measures=(MEAN,))
    run(tmp_path, made, seeds=[0], only=["better"])
    run(tmp_path, made, seeds=[0, 1], only=["local", "same"])
    text = (tmp_path / "table.md").read_text()
    assert " ≈ |" not in text
    assert "or the clients are others: Better (IID). The best of a column is among them, so nothing is marked ≈ there." in text


def test_a_run_older_than_its_files_of_clients_is_named_with_what_to_do(tmp_path, fake):
    fake.left_out = ("Local",)
    outcome, _ = run(tmp_path, table(), seeds=[0])
    (reason,) = outcome.failures.values()
    assert "clients.csv: the run is older than such files; remove its directory, and the same command runs it again" in reason
    assert "local--iid--seed0" in reason
    again, _ = run(tmp_path, table(), seeds=[0])
    assert again.failures == outcome.failures
    assert len(again.results) == 2, "the others' are in the table"
    fake.left_out, fake.last = (), 2
    outcome, _ = run(tmp_path / "other", table(), seeds=[0])
    assert len(outcome.failures) == 3
    assert all("is of round 2, not 3" in reason for reason in outcome.failures.values())


def test_scores_that_a_run_has_not_are_named(tmp_path, fake):
    all_ = Measure("x", ("test/personal/all/accuracy",), clients="worst_tenth")
    made = table(measures=(all_,), changes={"evaluation.scopes": ("own", "all")})
    outcome, _ = run(tmp_path, made, only=["local"], seeds=[0])
    (reason,) = outcome.failures.values()
    assert "local--iid--seed0" in reason
    assert reason.endswith("has no test/personal/all/accuracy of single clients")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(against="Lokal"), "unknown row in against 'Lokal'.*'Local'"),
        (dict(against="Local", figure=("men",)), "unknown measure in figure 'men'; .* Did you mean 'mean'"),
        (dict(figure=("mean",)), "the table names none"),
        (dict(measures=(dataclasses.replace(WORSE, clients="worse_than(row='FedAvg')"),)), "unknown row in clients of .* 'FedAvg'"),
        (dict(measures=(dataclasses.replace(WORST, clients="worst_tent"),)), "Did you mean 'worst_tenth'"),
        (dict(measures=(dataclasses.replace(WORST, clients="decile"),)), "'decile'.*number"),
        (dict(measures=(dataclasses.replace(WORST, clients="decile(number=10)"),)), r"number=10 must be in \[1, 9\]"),
        (dict(measures=(dataclasses.replace(WORST, statistic="best"),)), "with clients 'best'; allowed: last, selected"),
        (dict(measures=(dataclasses.replace(WORST, scores=MEAN.scores),)), "must be a score of clients without a statistic"),
        (dict(measures=(dataclasses.replace(WORST, scores=("test/personal/all/accuracy",)),)), "needs 'all' in evaluation.scopes"),
        (dict(measures=(dataclasses.replace(WORST, scores=("test/personal/own/length",)),)), "neither the larger nor"),
        (dict(measures=(dataclasses.replace(WORST, scores=("test/personal/post_local/accuracy",)),)), "a round's cohort; single"),
        (dict(targets=(0.9,), measures=(WORST, MEAN)), "of the first measure, and 'worst tenth' is no accuracy of every"),
    ],
)
def test_wrong_definitions_end_before_anything_runs(changes, said):
    with pytest.raises((ValueError, TypeError), match=said) as caught:
        tables.build_cells(table(**changes), "smoke")
    assert "\n" not in console.one_line(caught.value)


def test_clients_that_are_not_those_of_the_named_row_leave_the_cell_empty(fake):
    """Such as a pooled method's: its only client is nobody's."""
    made = table(measures=(WORSE,))
    every = tables.build_cells(made, "smoke", [0])
    results = {}
    for cell in every:
        number = 1 if cell.row == "Same" else N
        found = client_statistics.ClientValues(np.arange(number), np.ones(number), values(cell.row, 0)[:number])
        one = {"worse off": float("nan")}, {"worse off": OWN}, {}, 1.0, 1.0, 0.0, 0.0, {"worse off": found}
        results[cell.name] = tables.Result(*one)
    contents = tables.Contents(made, "smoke", every, results, {})
    text = tables.render_markdown(contents)
    assert "| Same |  |" in text
    assert "| Better | 0.00 |" in text
    assert "nan" not in text + writers.render_latex(contents)


def test_a_row_without_models_for_unseen_clients_leaves_the_cells_of_all_empty():
    """Local scores no unseen clients, so nobody is worse off than with it."""
    unseen = Measure("worse off", ("test/global/unseen/accuracy",), clients="worse_than(row='Local')")
    made = table(measures=(unseen,), changes={"data.unseen_clients": 0.2})
    every, results = tables.build_cells(made, "smoke", [0]), {}
    for cell in every:
        some = {unseen.label: client_statistics.ClientValues(np.arange(4), np.ones(4), np.ones(4))} if cell.row == "Better" else {}
        scored = dict.fromkeys(some, unseen.scores[0])
        results[cell.name] = tables.Result(dict.fromkeys(some, float("nan")), scored, {}, 1.0, 1.0, 0.0, 0.0, some)
    contents = tables.Contents(made, "smoke", every, results, {})
    assert [contents.client_values(row, "IID", unseen) for row in ROWS] == [{}, {}, {}]
    assert "| Better |  |" in tables.render_markdown(contents)


def test_clients_of_other_scores_in_the_file_are_no_other_clients(tmp_path):
    """FedAvg scores unseen clients too, Local cannot; their own test rows are those of the same five clients all the same."""
    own, unseen = np.r_[np.full(5, 0.5), np.full(2, np.nan)], np.r_[np.full(5, np.nan), np.ones(2)]
    files = {
        "fedavg": ClientScores(np.arange(7), np.full(7, 4), {GLOBAL: own, "test/global/unseen/accuracy": unseen}),
        "local": ClientScores(np.arange(5), np.full(5, 4), {OWN: np.linspace(0, 1, 5)}),
    }
    found = []
    for name, of in files.items():
        (tmp_path / name).mkdir()
        client_scores.write_client_scores(tmp_path / name / client_scores.LAST, 3, of)
        found.append(client_statistics.read_values_of_measure(tmp_path / name, WORSE, 3))
    (score, fedavg), (_, local) = found
    assert client_statistics.have_same_clients(fedavg, local)
    worse = client_statistics.find_worse_off(fedavg, score, local)
    assert worse is not None
    assert worse.values.tolist() == [0, 0, 0, 1, 1]
    single = client_statistics.read_values_behind(tmp_path / "fedavg", MEAN, f"{GLOBAL}/mean", 3)
    assert single is not None
    assert len(single.values) == 5


def test_an_infinite_score_counts_as_the_worst(tmp_path):
    """A perplexity is exp(loss); that of a client that a model serves badly is beyond float32."""
    score = "test/personal/own/perplexity"
    worst = Measure("worst tenth", (score,), clients="worst_tenth")
    of = ClientScores(np.arange(4), np.full(4, 5), {score: np.array([2.0, 3.0, np.inf, np.nan])})
    client_scores.write_client_scores(tmp_path / client_scores.LAST, 3, of)
    found = client_statistics.read_values_of_measure(tmp_path, worst, 3)
    assert found is not None
    assert found[1].ids.tolist() == [0, 1, 2], "one of NaN has no rows for the score"
    assert client_statistics.compute_number(worst, *found) == math.inf
    worse = client_statistics.find_worse_off(found[1], score, found[1]._replace(values=np.array([2.0, 4.0, 5.0])))
    assert worse is not None
    assert worse.values.tolist() == [0, 0, 1]
