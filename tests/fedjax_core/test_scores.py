"""Scores that a config names: which there are, what they are called, and what a run and a table make of them."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from configs import fedavg
from configs.tables.base import Measure
from fedjax_core import experiment
from fedjax_core.commands.tables import measures
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import evaluation
from fedjax_core.reporting import console, score_labels
from fedjax_core.reporting.summary import format_summary, summarize_records
from fedjax_core.storage.json_files import read_jsonl
from fedjax_core.training.scores import AUROC, MacroF1
from tests.fedjax_core.test_given import certain

CODE = """
import jax.numpy as jnp


class FBeta:
    def __init__(self, beta: float = 1.0):
        self.beta = beta

    def __call__(self, outputs, x, y, mask):
        predicted = jnp.argmax(outputs["logits"], 1) == 0
        return jnp.stack([jnp.sum(mask & predicted & (y == 0)), jnp.sum(mask & predicted), jnp.sum(mask & (y == 0))])

    def finalize(self, sums):
        under = self.beta**2 * sums[2] + sums[1]
        return (1 + self.beta**2) * sums[0] / under if under else float("nan")


def top(outputs, x, y, mask, k: int = 1):
    among = jnp.any(jnp.argsort(outputs["logits"], 1)[:, -k:] == y[:, None], 1)
    return jnp.sum(jnp.where(mask, among, 0), dtype=jnp.float32), jnp.sum(mask, dtype=jnp.float32)


def named(outputs, x, y, mask, name: str = "loss"):
    return top(outputs, x, y, mask, k=len(name))
"""


def config(*scores: str, **changes):
    made = fedavg.get_config("smoke")
    made.models, made.data.examples, made.data.clients, made.plan.devices = ("mlp(widths=(4,))",), 100, 4, 1
    made.evaluation.scores = scores or None
    for field, value in changes.items():
        part, _, name = field.rpartition("__")
        (made[part] if part else made)[name] = value
    return made


def test_own_losses_and_scores_compute_with_labels_as_numbers():
    """Labels are booleans; as bytes, 2 * y - 1 would be 255 for a label that is absent."""

    def hinge(logits, y, mask):
        return jnp.sum(jnp.where(mask, jnp.maximum(0, 1 - (2 * y - 1) * logits).mean(1), 0)) / jnp.sum(mask)

    def margin(outputs, x, y, mask):
        return jnp.sum(jnp.where(mask, ((2 * y - 1) * outputs["logits"]).mean(1), 0)), jnp.sum(mask)

    made = config(data__source="multilabel", data__partition="iid", cohort__fraction=1.0, optimizer__lr=1e-12)
    made.evaluation.scores = None
    simulation = experiment.build(made, loss=hinge, scores=[margin])
    state, (record,) = simulation.run_rounds(simulation.init(seed=0), 1)
    model, data = simulation.spec.groups[0].task.model, simulation.spec.data

    def margins(examples):
        return np.where(examples.y, 1, -1) * np.asarray(model.apply(state.server.net, examples.x)[0]["logits"])

    np.testing.assert_allclose(simulation.evaluate(state).metrics["test/global/margin"], margins(data.test).mean(), atol=1e-5)
    np.testing.assert_allclose(record["train/loss"], np.maximum(0, 1 - margins(data.train)).mean(), atol=1e-5)


@pytest.fixture
def mine(tmp_path) -> str:
    (tmp_path / "mine.py").write_text(CODE)
    return str(tmp_path / "mine.py")


def test_scores_have_names_of_their_own(mine):
    asked = experiment.resolve(
        config(
            "macro_f1",
            "auroc",
            "auroc(bins=64, name='coarse')",
            f"{mine}:FBeta",
            f"{mine}:FBeta(beta=2.0, name='f2')",
            f"{mine}:top(k=3)",
            f"{mine}:top(k=5, name='top5')",
            f"{mine}:named(name='abc')",
        )
    )
    assert list(asked.scores) == ["macro_f1", "auroc", "coarse", "FBeta", "f2", "top", "top5", "named"]
    assert asked.scores["auroc"] == AUROC()
    assert asked.scores["coarse"] == AUROC(64)
    assert (asked.scores["FBeta"].beta, asked.scores["f2"].beta) == (1.0, 2.0)
    assert asked.scores["top5"].keywords == {"k": 5}
    assert asked.scores["named"].keywords == {"name": "abc"}  # an option of the function's own
    simulation = experiment.build(config(f"{mine}:FBeta(beta=2.0, name='f2')", f"{mine}:top(k=5, name='top5')"))
    scores = simulation.evaluate(simulation.init(0)).metrics
    assert {"test/global/f2", "test/global/own/f2/mean", "test/global/top5"} <= set(scores)


def test_what_is_given_in_python():
    simulation = experiment.build(config(), scores=[MacroF1, functools.partial(AUROC, bins=8), certain])
    scores = simulation.evaluate(simulation.init(0)).metrics
    assert {"test/global/MacroF1", "test/global/AUROC", "test/global/certain"} <= set(scores)
    simulation = experiment.build(config(), scores={"f1": MacroF1(), "area": AUROC(8)})
    assert {"test/global/f1", "test/global/area"} <= set(simulation.evaluate(simulation.init(0)).metrics)


@pytest.mark.parametrize(
    ("scores", "error", "message"),
    [
        (
            ("auroc", "auroc(bins=8)"),
            ValueError,
            r"'auroc' and 'auroc\(bins=8\)' would both be .* name of its own, such as \"auroc\(bins=8, name='auroc_2'\)",
        ),
        (("auroc(name='x')", "macro_f1(name='x')"), ValueError, "would both be recorded as 'x'"),
        (("macro_f1(name='gap')",), ValueError, "evaluation.scores: a score cannot be recorded as 'gap'"),
        (("macro_f1(name='a/b')",), ValueError, "cannot be recorded as 'a/b'; a name has letters, digits and _"),
        (("macro_f1(name=3)",), ValueError, "evaluation.scores: name of 'macro_f1'=3 must be"),
        (("macro_f2",), ValueError, "unknown score 'macro_f2'; allowed: macro_f1, .* Did you mean 'macro_f1'"),
        (("auroc(bins=0)",), ValueError, "score 'auroc': bins=0 must be at least 1"),
        (("auroc(bin=8)",), TypeError, "score 'auroc' has no option 'bin'; it takes: bins"),
        (("builtins:int",), TypeError, r"score 'builtins:int' is a class, whose objects must have __call__\(outputs, x, y, mask\)"),
        (("MINE:FBeta(beta='a')",), ValueError, "FBeta': beta='a' must be"),
    ],
)
def test_names_and_options_that_cannot_be(mine, scores, error, message):
    with pytest.raises(error, match=message):
        experiment.resolve(config(*(score.replace("MINE", mine) for score in scores)))


def test_a_score_is_for_some_targets():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=(40, 1)).astype(np.float32)
    numbers = federated_data.federate(sources.from_arrays(x, y, x, y, targets="numbers"), {"name": "iid"}, 4, 0)
    with pytest.raises(
        ValueError, match=r"evaluation\.scores has 'macro_f1', which is for classes or labels, the data have numbers"
    ):
        experiment.build(config("macro_f1"), data=numbers)
    labels = (rng.random((40, 3)) < 0.5).astype(np.uint8)
    several = federated_data.federate(sources.from_arrays(x, labels, x, labels, targets="labels"), {"name": "iid"}, 4, 0)
    simulation = experiment.build(config("macro_f1", "auroc"), data=several)
    scores = simulation.evaluate(simulation.init(0)).metrics
    assert 0 < scores["test/global/macro_f1"] < 1
    assert {"test/global/average_precision", "test/global/auroc", "test/global/own/auroc/mean"} <= set(scores)
    with pytest.raises(ValueError, match="'balanced_accuracy', which is for classes, the data have labels"):
        experiment.build(config("balanced_accuracy"), data=several)


def test_episodes_have_classes_of_their_own():
    made = config("macro_f1", task="episodes(way=2, shot=1, query=3)", evaluation__scopes=("global",))
    made.data.source, made.models = "unseen(of='digits', classes=(7, 8, 9))", ("cnn(widths=(2,))",)
    with pytest.raises(ValueError, match="'macro_f1', which is for classes that all examples share; an episode's are its own"):
        experiment.build(made)
    made.evaluation.scores = ("expected_calibration_error",)
    assert evaluation.list_test_scores(experiment.build(made).spec)[-1] == "test/global/expected_calibration_error"


def test_no_score_takes_the_place_of_one_that_is_there():
    made = config(adversary__attack="backdoor(target=0)", adversary__fraction=0.3)
    with pytest.raises(ValueError, match=r"evaluation\.scores has 'backdoor', the score of adversary.attack"):
        experiment.build(made, scores={"backdoor": certain}, shapes_only=True)


def test_a_run_selects_stops_and_ends_by_a_score(tmp_path, mine):
    made = config("macro_f1", "expected_calibration_error", f"{mine}:FBeta(beta=2.0, name='f2')", data__validation=0.2)
    made.rounds, made.evaluation.every, made.checkpoint.seconds = 6, 1, 0.0
    made.evaluation.select, made.evaluation.patience = "validation/global/expected_calibration_error", 1
    made.evaluation.targets = (0.01, 0.999)
    said: list[str] = []
    finished = experiment.execute(made, str(tmp_path / "run"), progress=False, console=said.append)
    records = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    errors = [record[made.evaluation.select] for record in records]
    assert finished.selected == 1 + int(np.argmin(errors))
    assert len(records) == min(6, 2 + int(np.argmin(errors)))  # patience
    closing = next(text for text in said if "mean of last" in text)
    rows = [line.split()[0] for line in closing.splitlines() if line.startswith(("test/", "validation/"))]
    for name in ("macro_f1", "expected_calibration_error", "f2"):
        assert {f"test/global/{name}", f"test/global/own/{name}/mean", f"validation/global/{name}"} <= set(rows)
        assert f"test/global/own/{name}/lowest" not in rows
    entry = finished.summary["metrics"]["test/global/macro_f1"]
    assert set(entry["rounds_to"]) == {"0.01", "0.999"}
    assert entry["best"] == max(record["test/global/macro_f1"] for record in records)
    made.evaluation.select = made.evaluation.patience = None
    made.evaluation.until = "test/global/own/macro_f1/mean >= 0.0"
    assert len(read_jsonl(execute_again(made, tmp_path / "until"))) == 1


def execute_again(made, directory):
    experiment.execute(made, str(directory), progress=False, console=lambda text: None)
    return directory / "metrics.jsonl"


def test_a_table_and_a_search_know_the_scores(mine):
    made = config("macro_f1", f"{mine}:FBeta(name='f2')", data__validation=0.2)
    asked = experiment.resolve(made)
    for score in ("test/global/macro_f1", "test/global/own/f2/weighted", "validation/global/f2"):
        measures.check_scores(Measure("x", (score,)), made, asked)
    measures.check_search_scores(("validation/global/macro_f1", "validation/global/own/f2/mean"), asked)
    with pytest.raises(ValueError, match=r"unknown score in 'test/global/macro_f2' of measure 'x' 'macro_f2'.*'macro_f1'"):
        measures.check_scores(Measure("x", ("test/global/macro_f2",)), made, asked)


def test_which_value_is_the_better_one():
    names = ("macro_f1", "balanced_accuracy", "auroc", "expected_calibration_error", "my_loss", "error_15", "mae", "f2", "errors")
    found = {name: score_labels.better_direction(f"test/global/own/{name}/mean") for name in names}
    assert found == dict.fromkeys(names[:3], "larger") | dict.fromkeys(names[3:7], "smaller") | dict.fromkeys(names[7:], "neither")
    assert not score_labels.describe_direction("validation/global/mae")
    assert score_labels.describe_direction("validation/global/f2").startswith(
        "the largest validation/global/f2 is taken as the best"
    )
    assert score_labels.axis_label("test/global/macro_f1") == "test macro f1"
    assert score_labels.better_direction("train/my_loss") == "neither"  # what methods report is as it was
    summary = summarize_records([{"round": 1, "test/global/auroc": 0.5, "test/global/mine": 2.0, "server/norm": 1.0}])
    rows = format_summary(summary).splitlines()
    assert [row.split()[:3] for row in rows[1:3]] == [["test/global/auroc", "50.0", "%"], ["test/global/mine", "2", "2"]]
    assert "server/norm" not in format_summary(summary)


def test_accuracies_of_two_kinds_are_distinguished_in_a_figure(tmp_path):
    from fedjax_core.reporting.plots import run_overview

    records = [{"round": 1, "test/global/accuracy": 0.5, "test/global/macro_f1": 0.25}]
    figure = run_overview._progress(records, ["test/global/accuracy", "test/global/macro_f1"], [])
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == [
        "test accuracy: global model, all test data",
        "test macro f1: global model, all test data",
    ]
    assert axes.get_ylabel() == "test score"


def test_an_own_score_of_the_wrong_form_is_one_line_before_round_1(tmp_path):
    (tmp_path / "bad.py").write_text("def bad(outputs, x, y, mask):\n    return outputs['logits'][:, 0], 1\n")
    with pytest.raises(TypeError) as caught:
        execute_again(config(f"{tmp_path / 'bad.py'}:bad"), tmp_path / "run")
    line = console.one_line(caught.value)
    assert "score of evaluation.scores must return (sum, weight), each of the two one number; 'bad' has an array of shape" in line
    assert not (tmp_path / "run").exists()


def test_sums_of_several_scores_are_those_of_one_evaluation(mine):
    """Beside the others a score is what it is alone."""
    many = experiment.build(config("macro_f1", "auroc", "balanced_accuracy"))
    one = experiment.build(config("auroc"))
    alone, beside = (simulation.evaluate(simulation.init(0)).metrics for simulation in (one, many))
    for name, value in alone.items():
        assert beside[name] == pytest.approx(value, abs=1e-6)
    assert jnp.isfinite(beside["test/global/balanced_accuracy"])
