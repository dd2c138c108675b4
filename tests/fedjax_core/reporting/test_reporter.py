"""What a run reports: every place tells the same, a resumed run leaves no seam, and the summary's numbers are right by hand."""

import csv
import io
import json
import math
import re
import struct
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.record_writer import masked_crc32c

from fedjax_core.atomic_files import write_text
from fedjax_core.reporting.console import fail, say
from fedjax_core.reporting.reporter import Reporter
from fedjax_core.reporting.summary import format_summary, summarize_records
from fedjax_core.storage.json_files import format_json_lines, read_json, read_jsonl
from fedjax_core.storage.workdir import WorkDir

ROOT = Path(__file__).parents[3]


def record(number: int, **more: float) -> dict[str, float]:
    return {"round": number, "train/loss": 1 / number, **more}


def events(directory: Path) -> list:
    """All events in the order of the files, their checksums verified."""
    found = []
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("Q", data[:8])
            header, body = data[:12], data[12 : 16 + length]
            assert struct.unpack("I", header[8:]) == (masked_crc32c(header[:8]),)
            assert struct.unpack("I", body[length:]) == (masked_crc32c(body[:length]),)
            found.append(Event.FromString(body[:length]))
            data = data[16 + length :]
    return found


def scalars(directory: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard would show: name -> step -> value, less what a restart purges."""
    shown: dict[str, dict[int, float]] = {}
    for event in events(directory):
        if event.HasField("session_log"):
            shown = {name: {s: v for s, v in values.items() if s < event.step} for name, values in shown.items()}
        for value in event.summary.value:
            shown.setdefault(value.tag, {})[event.step] = value.simple_value
    return shown


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_all_places_tell_the_same(tmp_path):
    logged = [record(1), record(2, **{"test/global/accuracy": 0.5}), record(3) | {"seconds": np.float32(0.25)}]
    with WorkDir.open(tmp_path, {}) as run, Reporter(run, 3, progress=False) as reporter:
        reporter.resume(0)
        assert not (tmp_path / "tensorboard").exists(), "what writes it is imported after the first round"
        for one in logged:
            reporter.log(one)
        assert read_jsonl(tmp_path / "metrics.jsonl") == logged  # at once
    assert [{k: float(v) for k, v in row.items() if v} for row in rows(tmp_path / "metrics.csv")] == logged
    assert list(rows(tmp_path / "metrics.csv")[0]) == ["round", "train/loss", "test/global/accuracy", "seconds"]
    shown = scalars(tmp_path / "tensorboard")
    assert shown.keys() == {"train/loss", "test/global/accuracy", "seconds"}
    assert shown["train/loss"] == pytest.approx({1: 1, 2: 0.5, 3: 1 / 3})
    assert shown["test/global/accuracy"] == {2: 0.5}
    summary = read_json(tmp_path / "summary.json")
    assert (summary["rounds"], summary["total_rounds"]) == (3, 3)
    assert summary["metrics"]["test/global/accuracy"]["last"] == 0.5


def test_a_resumed_run_leaves_no_seam(tmp_path):
    def run(start: int, end: int) -> None:
        with Reporter(tmp_path, 10, progress=False) as reporter:
            reporter.resume(start)
            for number in range(start + 1, end + 1):
                reporter.log(record(number, attempt=start))

    run(0, 7)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"round": 8, "tr')  # killed in the middle of a line
    run(5, 10)
    assert [(r["round"], r["attempt"]) for r in read_jsonl(tmp_path / "metrics.jsonl")] == [
        *((n, 0) for n in range(1, 6)),
        *((n, 5) for n in range(6, 11)),
    ]
    assert [int(row["round"]) for row in rows(tmp_path / "metrics.csv")] == list(range(1, 11))
    assert scalars(tmp_path / "tensorboard")["attempt"] == {n: 0 if n <= 5 else 5 for n in range(1, 11)}
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    run(0, 2)
    assert [r["round"] for r in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2]


def logged(tmp_path: Path, rounds: int) -> list[dict]:
    with Reporter(tmp_path, rounds, progress=False, tensorboard=False) as reporter:
        reporter.resume(0)
        for number in range(1, rounds + 1):
            reporter.log(record(number, **({"test/global/accuracy": math.nan} if number == 2 else {})) | {"cohort": 5})
    return read_jsonl(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("lost", ["all", "the file", "the first", "the last", "one inside", "half of the last"])
def test_lost_records_are_taken_from_the_other_file(tmp_path, lost):
    """A summary of some rounds must not pass for one of all."""
    before, metrics = logged(tmp_path, 4), tmp_path / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    left = {"all": [], "the first": lines[1:], "the last": lines[:-1], "one inside": lines[:1] + lines[2:]}
    if lost == "the file":
        metrics.unlink()
    else:
        metrics.write_text("".join(left.get(lost, [*lines[:-1], lines[-1][:9]])))
    damaged, said = metrics.read_bytes() if metrics.exists() else None, []
    with Reporter(tmp_path, 4, progress=False, tensorboard=False, console=said.append) as reporter:
        reporter.resume(4)
    sorted_ = lambda records: [repr(sorted(one.items())) for one in records]
    assert sorted_(read_jsonl(metrics)) == sorted_(before)
    assert len(said) == 1
    assert re.search(r"metrics\.jsonl had \d of 4 rounds; the others are taken from metrics\.csv", said[0])
    (tmp_path / "metrics.csv").unlink()
    if damaged is None:
        metrics.unlink()
    else:
        metrics.write_bytes(damaged)
    reporter = Reporter(tmp_path, 4, progress=False, tensorboard=False)
    with pytest.raises(ValueError, match=r"has \d of the 4 rounds of the checkpoint, and metrics\.csv lacks"):
        reporter.resume(4)
    assert (metrics.read_bytes() if metrics.exists() else None) == damaged, "left as it was"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1, 2]", "line 2 of .* is a list, expected an object"),
        ('"text"', "line 2 of .* is a string .*, expected an object"),
        ('{"train/loss": 1.0}', "line 2 of .* is not the record of a round"),
        ('{"round": "2"}', "line 2 of .* is not the record of a round"),
        ('{"round": 1}', "line 2 of .* is of round 1, after one of round 1"),
        ('{"round": 2, "tr{"round": 3}', "line 2 of .* is not JSON"),
    ],
)
def test_a_line_of_another_shape_is_named(tmp_path, line, said):
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n' + line + '\n{"round": 4}\n')
    reporter = Reporter(tmp_path, 4, progress=False, tensorboard=False)
    for act in (lambda: reporter.resume(4), reporter.close):
        with pytest.raises(ValueError, match=said):
            act()


def test_a_stop_is_said_once(capsys):
    for error, wanted in (
        ("stopped after round 3; go on", "stopped after round 3; go on"),
        ("interrupted", "stopped: interrupted"),
    ):
        assert fail(KeyboardInterrupt(error), 130) == 130
        assert capsys.readouterr().err == wanted + "\n"


def test_rounds_go_up(tmp_path):
    with Reporter(tmp_path, 9, progress=False) as reporter:
        reporter.log(record(3))
        with pytest.raises(ValueError, match=r"a record of round 3 cannot follow round 4 in .*metrics\.jsonl"):
            reporter.log(record(4), record(3))
        with pytest.raises(ValueError, match="a record of round None cannot follow round 3"):
            reporter.log({"train/loss": 1.0})
        reporter.log(record(4), record(6))
    with Reporter(tmp_path, 9, progress=False) as reporter, pytest.raises(ValueError, match="round 5 cannot follow round 6"):
        reporter.log(record(5))
    assert [r["round"] for r in read_jsonl(tmp_path / "metrics.jsonl")] == [3, 4, 6]


def test_numbers_that_are_not(tmp_path):
    with Reporter(tmp_path, 2, progress=False, targets=(0.5,)) as reporter:
        reporter.log({"round": np.int64(1), "test/global/accuracy": 0.25, "train/loss": jnp.float32(2)})
        reporter.log({"round": 2, "test/global/accuracy": math.nan, "train/loss": math.inf})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    strict = json.loads(lines[1], parse_constant=pytest.fail)
    assert strict == {"round": 2, "test/global/accuracy": "NaN", "train/loss": "Infinity"}
    assert rows(tmp_path / "metrics.csv")[1] == {"round": "2", "test/global/accuracy": "nan", "train/loss": "inf"}
    entry = read_json(tmp_path / "summary.json")["metrics"]["test/global/accuracy"]
    assert (entry["best"], entry["best_round"], entry["rounds_to"]) == (0.25, 1, {"0.5": None})
    assert math.isnan(entry["last"])
    assert math.isnan(entry["mean_last_k"])


def test_scores_added_to_a_record_may_be_undefined(tmp_path):
    """An evaluation that an earlier start did not end adds such scores."""
    said: list[str] = []
    with Reporter(tmp_path, 1, console=said.append) as reporter:
        reporter.log(record(1))
        reporter.add_scores({"test/global/r2": math.nan, "test/global/loss": 0.5})
    assert said[0].startswith("round 1/1  test/global/r2 nan")
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["test/global/r2"] == "NaN"
    shown = scalars(tmp_path / "tensorboard")
    assert math.isnan(shown["test/global/r2"][1])
    assert shown["test/global/loss"] == {1: 0.5}


def test_lines_of_text_where_there_is_no_terminal(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("fedjax_core.reporting.reporter.LINE_SECONDS", 0)
    with Reporter(tmp_path, 3, console=said.append) as reporter:
        reporter.log(record(1, **{"train/accuracy": 0.9}))  # no evaluation
        reporter.log(record(2, **{"train/accuracy": 0.9, "test/global/accuracy": 0.5}))
        reporter.log(record(3, **{"test/global/accuracy": 0.25}))
        reporter.say("done")
    assert len(said) == 3
    assert said[0].startswith("round 2/3  test/global/accuracy 50.0 %  train/loss 0.5  ")
    assert re.search(r" rounds/s  \S+ s, about \S+ s left$", said[0])
    assert "e+" not in said[0], "over a thousand rounds a second have all digits"
    assert said[1].startswith("round 3/3  test/global/accuracy 25.0 %")
    assert re.search(r" rounds/s  \S+ s$", said[1])
    assert said[2] == "done"


def test_lines_come_at_most_so_often_and_at_the_end(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("fedjax_core.reporting.reporter.LINE_SECONDS", 1000)
    with Reporter(tmp_path, 50, console=said.append) as reporter:
        for number in range(1, 51):
            reporter.log(record(number, **{"test/global/accuracy": 0.5}))
    assert [line.split()[1] for line in said] == ["1/50", "50/50"]


def test_the_bar_goes_to_stderr_and_shows_the_accuracy(tmp_path, capsys):
    write_text(tmp_path / "metrics.jsonl", format_json_lines([record(1)]))
    with Reporter(tmp_path, 4, progress=True) as reporter:
        reporter.resume(1)
        reporter.log(record(2, **{"test/personal/own/accuracy/mean": 0.5}), record(4, **{"test/global/accuracy": 0.75}))
    output, errors = capsys.readouterr()
    assert output == ""
    assert "25%" in errors
    assert "4/4" in errors
    assert "round/s, test/global/accuracy 75.0 %" in errors


def test_silence(tmp_path, capsys):
    with Reporter(tmp_path, 1, progress=False, tensorboard=False) as reporter:
        reporter.log(record(1, **{"test/global/accuracy": 0.5}))
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "tensorboard").exists()


def test_a_process_that_does_not_write(tmp_path):
    with WorkDir.open(tmp_path / "x", {}, writer=False) as run, Reporter(run, 3, progress=True) as reporter:
        reporter.resume(0)
        reporter.log(record(1))
        reporter.say("nothing")
        assert reporter.close() == {}
    assert not (tmp_path / "x").exists()


def test_an_error_of_the_run_is_not_hidden_by_one_of_the_report(tmp_path):
    said: list[str] = []

    def run() -> None:
        with Reporter(tmp_path, 3, progress=False, tensorboard=False, console=said.append) as reporter:
            reporter.log(record(1))
            (tmp_path / "summary.json").mkdir()
            raise RuntimeError("the run's")

    with pytest.raises(RuntimeError, match="the run's"):
        run()
    assert "summary.json" in said[0]
    assert len(rows(tmp_path / "metrics.csv")) == 1


def test_a_start_that_fails_before_it_goes_on_writes_nothing(tmp_path):
    """Of an earlier start all is as it was, also where metrics.csv alone has its records."""
    with Reporter(tmp_path, 3, progress=False, tensorboard=False) as reporter:
        reporter.log(record(1), record(2))
        reporter.note(bytes_up=8)
    (tmp_path / "metrics.jsonl").unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fails(after: int | None) -> None:
        with Reporter(tmp_path, 3, progress=False, tensorboard=False, console=lambda text: None) as reporter:
            reporter.note(bytes_up=9)
            if after is not None:
                reporter.resume(after)
            raise MemoryError

    with pytest.raises(MemoryError):
        fails(None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(MemoryError):
        fails(2)
    assert read_json(tmp_path / "summary.json")["facts"] == {"bytes_up": 9}
    assert len(rows(tmp_path / "metrics.csv")) == 2


def test_a_full_disk(tmp_path):
    """Neither hangs nor loses what was there."""
    code = """
import resource, sys
from fedjax_core.reporting.reporter import Reporter
reporter = Reporter(sys.argv[1], 10**6, progress=False)
reporter.log({"round": 1, "train/loss": 1.0})
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
try:
    for round in range(2, 10**6):
        reporter.log({"round": round, "train/loss": 1.0})
except OSError as error:
    sys.stdout.write(str(error))
"""
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"[Errno 27] cannot write {tmp_path}/metrics.jsonl: File too large"
    rounds = [r["round"] for r in read_jsonl(tmp_path / "metrics.jsonl")]
    assert rounds == list(range(1, len(rounds) + 1))
    assert len(rounds) > 5


ACCURACY = [0.1, 0.5, 0.9, 0.7, 0.8]
RECORDS = [
    {"round": 2 * i, "test/global/accuracy": a, "train/loss": 10.0 * i, "seconds": 4.0, "cohort": 5, "train/examples": 100}
    for i, a in enumerate(ACCURACY, 1)
]


def test_summary_by_hand():
    records = [dict(r) for r in RECORDS]
    records[0] |= {"seconds": 14.0, "compile_seconds": 10.0}
    summary = summarize_records(records, targets=(0.5, 0.75, 0.95), last_k=3)
    assert summary["rounds"] == 10
    assert summary["metrics"]["test/global/accuracy"] == {
        "first": 0.1,
        "last": 0.8,
        "last_round": 10,
        "best": 0.9,
        "best_round": 6,
        "best_is": "best over rounds, selected on test data",
        "evaluations": 5,
        "mean_last_k": pytest.approx((0.9 + 0.7 + 0.8) / 3),
        "k": 3,
        "rounds_to": {"0.5": 4, "0.75": 6, "0.95": None},
    }
    assert summary["metrics"]["train/loss"] == {
        "first": 10.0,
        "last": 50.0,
        "last_round": 10,
        "evaluations": 5,
        "mean_last_k": 40.0,
        "k": 3,
    }
    assert summary["metrics"].keys() == {"test/global/accuracy", "train/loss"}
    assert summary["speed"] == {
        "seconds": 30.0,
        "compile_seconds": 10.0,
        "rounds_per_second": 10 / 20,
        "clients_per_second": 25 / 20,
        "examples_per_second": 500 / 20,
    }


def test_the_selected_round_is_that_of_the_lowest_loss():
    name = "validation/global/loss"
    records = [{"round": n, name: loss, "test/global/accuracy": 0.1 * n} for n, loss in ((1, 2.0), (2, 1.0), (3, 3.0))]
    summary = summarize_records(records, select=name)
    assert summary["selected"] == {"by": name, "round": 2, "value": 1.0}
    assert summary["metrics"]["test/global/accuracy"]["selected"] == 0.2


def test_summary_of_little():
    assert summarize_records([]) == {"rounds": 0, "metrics": {}, "speed": {}}
    untimed_first = [{"round": 1}, {"round": 3, "seconds": 4.0}]
    assert summarize_records(untimed_first)["speed"] == {"seconds": 4.0, "rounds_per_second": 0.5}
    entry = summarize_records([{"round": 1, "train/accuracy": 0.5}])["metrics"]["train/accuracy"]
    assert entry["best_is"] == "best over rounds"  # not test data
    assert entry["k"] == 1
    ties = summarize_records([{"round": n, "test/x/accuracy/mean": 0.5} for n in (1, 2)])["metrics"]["test/x/accuracy/mean"]
    assert ties["best_round"] == 1
    (undefined,) = summarize_records([{"round": n, "test/x/r2": r2} for n, r2 in ((1, np.nan), (2, -1.0))])["metrics"].values()
    assert (undefined["best"], undefined["best_round"]) == (-1.0, 2)
    (infinite,) = summarize_records([{"round": n, "train/loss": loss} for n, loss in ((1, math.inf), (2, 1.0))])["metrics"].values()
    assert math.isnan(infinite["mean_last_k"])
    assert format_summary(summarize_records([])) == "speed    0 rounds"
    few = summarize_records([{"round": 1, "train/loss": 2.0}, {"round": 2, "train/loss": 1.0, "test/global/accuracy": 0.5}])
    assert format_summary(few).splitlines()[:3] == [
        "                        last   best*  round  mean of last 2",
        "train/loss                 1                            1.5",
        "test/global/accuracy  50.0 %  50.0 %      2      50.0 % (1)",
    ]


def test_the_closing_table():
    summary = summarize_records(RECORDS, targets=(0.75, 0.95), last_k=3)
    summary["facts"] = {"bytes_down": 1_250_000, "bytes_up": 999, "compile_seconds": 75, "peak_memory_bytes": 2.5e9}
    assert format_summary(summary).splitlines() == [
        "                        last   best*  round  mean of last 3  to 75 %  to 95 %",
        "test/global/accuracy  80.0 %  90.0 %      6          80.0 %        6    never",
        "train/loss                50                             40",
        "* best over rounds, selected on test data: not a result to report",
        "mean of last 3: over the last 3 rounds that have the score",
        "to 75 %: the first round with at least 75 %, of those that have the score",
        "speed    10 rounds in 20 s, 0.5 rounds/s, 1.25 clients/s, 25 examples/s, and 1 min 15 s of compiling beside",
        "traffic  1.25 MB down, 999 bytes up, per client and round",
        "memory   2.5 GB at most",
    ]


def test_simulated_time_stands_beside_rounds():
    clock = [{"simulated_seconds": 30.0, "simulated_seconds_total": 30.0 * r["round"], "sampled": 4} for r in RECORDS]
    summary = summarize_records([r | c for r, c in zip(RECORDS, clock, strict=True)], targets=(0.75, 0.95), last_k=3)
    assert summary["metrics"].keys() == {"test/global/accuracy", "train/loss"}
    assert summary["metrics"]["test/global/accuracy"]["seconds_to"] == {"0.75": 180.0, "0.95": None}
    assert summary["speed"]["simulated_seconds"] == 300.0
    lines = format_summary(summary).splitlines()
    assert lines[:2] == [
        "                        last   best*  round  mean of last 3        to 75 %  to 95 %",
        "test/global/accuracy  80.0 %  90.0 %      6          80.0 %  6, 3 min 00 s    never",
    ]
    assert (
        "to 75 %: the first round with at least 75 %, of those that have the score, and the simulated time until its end" in lines
    )
    assert "time     5 min 00 s simulated, 30 s a round" in lines


def test_rounds_over_seconds_are_the_rate_beside_them():
    """Compiling is told beside: 4 rounds in 2 of the 12 seconds."""
    records = [{"round": n, "seconds": 3.0, "compile_seconds": 2.5, "train/loss": 1.0} for n in (1, 2, 3, 4)]
    (line,) = [line for line in format_summary(summarize_records(records)).splitlines() if line.startswith("speed")]
    assert line == "speed    4 rounds in 2 s, 2 rounds/s, and 10 s of compiling beside"


def test_scores_of_ones_own_stand_in_the_closing_table():
    """One number of each: of the server's model, and the mean over clients. Engine scores that it leaves out stay out."""
    own = {"test/global/top5": 0.75, "test/global/own/top5/mean": 0.5, "test/global/own/top5/lowest": 0.25}
    ours = {"test/global/own/mean_squared_error/mean": 2.0, "test/global/perplexity": 9.0, "server/left_out": 0.0}
    lines = format_summary(summarize_records([{"round": 1, "test/global/accuracy": 0.5, **own, **ours}])).splitlines()
    shown = {line.split()[0]: line.split()[1] for line in lines if line.startswith(("test/", "server/"))}
    assert shown == {
        "test/global/accuracy": "50.0",
        "test/global/top5": "0.75",
        "test/global/own/top5/mean": "0.5",
        "test/global/perplexity": "9",
    }


def test_facts_reach_the_summary_on_the_disk(tmp_path):
    with Reporter(tmp_path, 1, progress=False) as reporter:
        reporter.log(record(1))
        reporter.note(bytes_down=np.int64(8), plan={"chunk": 4})
    assert read_json(tmp_path / "summary.json")["facts"] == {"bytes_down": 8, "plan": {"chunk": 4}}


def test_the_best_round_of_an_r2_is_known_and_no_round_to_an_accuracy():
    found = summarize_records([{"round": r, "test/global/r2": value} for r, value in ((1, 0.25), (2, 0.5), (3, -1.0))], (0.5,))
    entry = found["metrics"]["test/global/r2"]
    assert (entry["best"], entry["best_round"], "rounds_to" in entry) == (0.5, 2, False)
    assert re.search(r"test/global/r2 +-1 +0.5 +2 ", format_summary(found))


class _Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("stream", [None, _Gone()], ids=["none", "broken pipe"])
def test_what_is_said_to_nobody_ends_nothing(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    say("3 runs to do")
    assert fail("no such table", 1) == 1
