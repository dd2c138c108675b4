"""Scores of single clients: files, and how a score spreads."""

import csv
import tracemalloc

import numpy as np
import pytest

from fedjax_core.engine import evaluation_step
from fedjax_core.reporting import client_scores
from fedjax_core.reporting import reporter as report
from fedjax_core.reporting.summary import format_summary

OWN = "test/personal/own/accuracy"


def some(values, **more) -> evaluation_step.ClientScores:
    values = np.asarray(values, np.float32)
    return evaluation_step.ClientScores(np.arange(len(values)), np.full(len(values), 7), {OWN: values, **more})


@pytest.mark.parametrize("block", [2, 2**16])
def test_a_file_gives_back_what_was_written(tmp_path, monkeypatch, block):
    monkeypatch.setattr(client_scores, "_BLOCK", block)
    client_scores.write_client_scores(tmp_path / "clients.csv", 5, some([0.1, np.nan, 0.7]))
    done, found = client_scores.read_client_scores(tmp_path / "clients.csv")
    assert done == 5
    np.testing.assert_array_equal(found.scores[OWN].astype(np.float32), np.float32([0.1, np.nan, 0.7]))
    assert (found.ids.tolist(), found.rows.tolist()) == ([0, 1, 2], [7, 7, 7])
    assert (tmp_path / "clients.csv").read_text().splitlines()[2] == "5,1,7,"


def test_lines_of_many_clients_are_made_and_read_in_parts(tmp_path, monkeypatch):
    """A dict for each takes ten times as much."""
    monkeypatch.setattr(client_scores, "_BLOCK", 500)
    values = np.random.default_rng(0).random(10_000)
    tracemalloc.start()
    client_scores.write_client_scores(tmp_path / "clients.csv", 5, some(values))
    _, found = client_scores.read_client_scores(tmp_path / "clients.csv")
    assert tracemalloc.get_traced_memory()[1] < 200 * len(values)
    tracemalloc.stop()
    np.testing.assert_array_equal(found.scores[OWN].astype(np.float32), values.astype(np.float32))


HEAD = f"round,client,test_rows,{OWN}\n"


@pytest.mark.parametrize(
    "text", ["", "client,x\n1,2\n", f"{HEAD}1,0,7,a\n", "round,client,test_rows\n", f"{HEAD}1,0,7,0.5\n2,1,7,0.5\n"]
)
def test_a_file_that_is_none_is_named(tmp_path, text):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=r"x.csv is not a file of clients' scores"):
        client_scores.read_client_scores(tmp_path / "x.csv")


def test_the_worst_tenth_and_deciles():
    values = np.random.default_rng(0).permutation(25) / 1.0
    assert client_scores.mean_of_worst_tenth(values) == 1.0  # of 0, 1, 2
    assert client_scores.mean_of_worst_tenth(values[None, :9]).tolist() == [values[:9].min()]
    assert client_scores.make_decile(5)(values) == 12.0
    assert client_scores.make_decile(1)(np.arange(11.0)) == 1.0


def test_the_summary_tells_the_spread_in_a_line_for_each_score(tmp_path):
    loss = {"test/personal/own/loss": np.ones(22), "validation/personal/own/accuracy": np.r_[np.ones(20), np.nan, np.nan]}
    client_scores.write_client_scores(tmp_path / client_scores.LAST, 2, some([*np.arange(21) / 20, np.nan], **loss))
    client_scores.write_client_scores(tmp_path / client_scores.SELECTED, 9, some([0.5]))  # of a round that this run has not reached
    with report.Reporter(tmp_path, 2, progress=False, tensorboard=False) as reporter:
        reporter.log({"round": 1}, {"round": 2, f"{OWN}/mean": 0.5})
    summary = reporter.close()
    assert list(summary["clients"]) == ["last"]
    last = summary["clients"]["last"]
    assert (last["round"], last["scored"]) == (2, 21)
    assert list(last["scores"]) == [OWN, "validation/personal/own/accuracy"]
    assert last["scores"][OWN]["worst_tenth"] == pytest.approx(0.05)  # of 0, 0.05, 0.1
    assert last["scores"][OWN]["deciles"] == pytest.approx([0.1 * i for i in range(1, 10)])
    lines = [line for line in format_summary(summary).splitlines() if line.startswith("clients")]
    of_round = lambda selected: client_scores.summarize_spread(tmp_path, 20, selected)["clients"].get("selected", {}).get("round")
    assert [of_round(selected) for selected in (9, 4, None)] == [9, None, None]
    assert client_scores.summarize_spread(tmp_path, 1, None) == {}  # the last file is of round 2
    assert lines == [f"clients  {OWN}: worst tenth 5.0 %, deciles 1, 5, 9: 10.0 %, 50.0 %, 90.0 %"]
    other = last | {"scores": {OWN: last["scores"][OWN] | {"worst_tenth": 0.5}}}
    assert "worst tenth 50.0 %" in format_summary(summary | {"clients": {"last": last, "selected": other}})


def test_names_of_clients_stand_beside_their_numbers(tmp_path):
    names = ["not scored", 'of "two", words', "=1+1", "unseen"]
    found = evaluation_step.ClientScores(np.array([1, 2, 3]), np.array([5, 6, 7]), {OWN: np.array([0.5, np.nan, 1.0])})
    client_scores.write_client_scores(tmp_path / "clients.csv", 5, found, names)
    with open(tmp_path / "clients.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["round", "client", "name", "test_rows", OWN]
    assert [row[:4] for row in rows[1:]] == [["5", "1", names[1], "5"], ["5", "2", "'=1+1", "6"], ["5", "3", "unseen", "7"]]
    done, again = client_scores.read_client_scores(tmp_path / "clients.csv")
    assert (done, again.ids.tolist(), again.rows.tolist()) == (5, [1, 2, 3], [5, 6, 7])
    np.testing.assert_array_equal(again.scores[OWN], [0.5, np.nan, 1.0])
