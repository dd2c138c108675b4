"""What is read of finished runs, and what is said where it is not there."""

import re

import pytest

from configs.tables.base import Measure
from fedjax_core import experiment
from fedjax_core.commands.tables.results import TableData
from tests.fedjax_core.commands.small_tables import GLOBAL, definition, get_config, run


def test_data_are_kept_for_configs_with_the_same_inputs(tmp_path, monkeypatch):
    """The model chooses the tokens of texts, so that two models of one column read two sets."""
    monkeypatch.setattr(experiment, "name_inputs", lambda config: str(config.models))
    monkeypatch.setattr(experiment, "dataset", lambda config: object())
    data, config, other = TableData(tmp_path, print), get_config("smoke"), get_config("smoke")
    other.models = ("another",)
    assert data.load(config) is data.load(get_config("smoke")) is not data.load(other)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "summary.json is a list, expected an object"),
        ('{"rounds": 3}', "summary.json has no facts"),
        (
            '{"rounds": 3, "facts": {"bytes_down": "much", "peak_memory_bytes": 1}}',
            "facts.bytes_down of .*summary.json is a string",
        ),
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


def test_records_of_a_run_that_another_process_extends_are_left_alone(tmp_path, fake):
    run(tmp_path, seeds=[0])
    before = (tmp_path / "table.md").read_text()
    (one, *_) = sorted((tmp_path / "runs").iterdir())
    text = (one / "metrics.jsonl").read_text()
    longer = text + text.splitlines()[-1].replace('"round": 3', '"round": 4') + "\n"
    assert longer.count('"round": 4') == 1
    (one / "metrics.jsonl").write_text(longer)
    run(tmp_path, seeds=[0])
    assert (one / "metrics.jsonl").read_text() == longer
    assert (tmp_path / "table.md").read_text() == before


def test_a_finished_run_that_lost_records_is_read_from_csv_or_refused(tmp_path, fake):
    run(tmp_path, seeds=[0])
    before = (tmp_path / "table.md").read_text()
    (one, *_) = sorted((tmp_path / "runs").iterdir())
    lines = (one / "metrics.jsonl").read_text().splitlines(keepends=True)
    (one / "metrics.jsonl").write_text(lines[0])
    run(tmp_path, seeds=[0])
    assert (one / "metrics.jsonl").read_text() == lines[0]
    assert (tmp_path / "table.md").read_text() == before
    (one / "metrics.jsonl").write_text(lines[0])
    (one / "metrics.csv").unlink()
    (reason,) = run(tmp_path, seeds=[0])[0].failures.values()
    assert "metrics.jsonl has 1 of the 3 rounds" in reason


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
