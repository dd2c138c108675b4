"""The command line: files of a run, and the message for each mistake."""

import contextlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from fedjax_core import experiment
from fedjax_core.storage.json_files import read_json, read_jsonl
from tests.launch import Ended

SMOKE = "--config=configs/fedavg.py:smoke"
NOISE = re.compile(r"Traceback|^[IWEF]\d{4} |^\d{4}-\d\d-\d\d |WARNING|\bjax\._src\b", re.MULTILINE)


@pytest.fixture(scope="module")
def finished(launcher, tmp_path_factory) -> tuple[Path, Ended]:
    """Returns (directory, output) of a complete smoke run, which tests read and copy."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    return directory, launcher.run(SMOKE, f"--workdir={directory}")


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    return shutil.copytree(finished[0], tmp_path / "run")


def content(directory: Path) -> dict[str, bytes]:
    """Returns all files below a directory, except the lock, which each owner rewrites."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file() and p.name != ".lock"}


def error_of(ended: Ended, status: int) -> str:
    """Returns the line of the error; before round 1, nothing else may be printed."""
    lines = ended.err.splitlines()
    assert ended.status == status, ended
    assert [line.startswith("error: ") for line in lines].count(True) == 1, ended.err
    assert lines[-1].startswith("error: "), ended.err
    assert not NOISE.search(ended.err), ended.err
    assert ended.out == ""
    return lines[-1].removeprefix("error: ")


def only_error_of(ended: Ended, status: int) -> str:
    error = error_of(ended, status)
    assert len(ended.err.splitlines()) == 1, ended.err
    return error


# ------------------------------------------------------------------------------------------------ what a run leaves


def test_a_run_leaves_everything_behind(finished):
    directory, ended = finished
    assert ended.status == 0, ended.err
    assert not NOISE.search(ended.err), ended.err
    names = set(content(directory))
    wanted = "metrics.jsonl metrics.csv config.json environment.json run.json summary.json accuracy.png accuracy.csv partition.png"
    assert set(wanted.split()) <= names
    assert any(re.match(r"tensorboard.events\.out\.tfevents", name) for name in names)
    assert any(name.startswith(os.path.join("checkpoints", "00000005")) for name in names)
    for name in names:
        assert (directory / name).stat().st_size > 0 or name.endswith("commit_success.txt"), name
    rounds = [record["round"] for record in read_jsonl(directory / "metrics.jsonl")]
    assert rounds == [1, 2, 3, 4, 5]
    assert read_json(directory / "config.json")["method"] == {"name": "fedavg", "epochs": 5, "batch": 32, "weights": "samples"}
    assert read_json(directory / "environment.json")["command"][1] == SMOKE
    assert {"plan", "partition"} <= set(read_json(directory / "run.json"))
    assert read_json(directory / "summary.json")["metrics"]["test/global/accuracy"]["last"] > 0.8


def test_a_run_ends_with_a_table_and_says_where_the_plots_are(finished):
    directory, ended = finished
    lines = ended.err.splitlines()
    table = next(i for i, line in enumerate(lines) if "mean of last" in line)
    assert lines[table + 1 :][0].split()[1].replace(".", "").isdigit()
    assert any(line.startswith("test/global/accuracy") for line in lines[table:])
    assert any(re.match(r"speed +5 rounds", line) for line in lines[table:])
    assert lines[-1].split() == ["plots", str(directory)]


def test_help_lists_the_methods(launcher):
    ended = launcher.run("--help")
    assert ended.status == 0
    assert ended.err == ""
    for name, line in experiment.method_summaries().items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", ended.out, re.MULTILINE), name
    for flag in ("--config", "--workdir", "--coordinator"):
        assert flag in ended.out


# ------------------------------------------------------------------------------------------------ wrong command lines


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        (["--wrong=1"], 2, ["'wrong'"]),
        (["extra"], 2, ["--config", "--workdir", "--help"]),
        (["--config.optimizer.lrr=1"], 2, ["--config.optimizer.lrr", "did you mean lr?"]),
        (["--config.optimiser.lr=1"], 2, ["--config.optimiser.lr", "did you mean optimizer?"]),
        (["--config.rounds=many"], 2, ["--config.rounds='many' must be an int"]),
        (["--config.optimizer.lr=big"], 2, ["--config.optimizer.lr='big' must be a number"]),
        (["--coordinator=localhost:1"], 2, ["--processes", "--process"]),
        (["--coordinator=localhost:1", "--processes=2", "--process=2"], 2, ["--process=2 of --processes=2", "[0, 1]"]),
        (["--coordinator=localhost:1", "--processes=0", "--process=0"], 2, ["--processes=0 must be at least 1"]),
        (["--distributed", "--processes=2"], 2, ["--distributed finds", "leave out --coordinator, --processes"]),
        (["--config.rounds=0"], 1, ["rounds=0", "at least 1"]),
        (["--config.method.bach=1"], 1, ["method 'fedavg' has no option 'bach'", "'batch'?"]),
        (["--config.method.bach=None"], 1, ["method.bach=None: method 'fedavg' has no option 'bach'", "'batch'?"]),
        (["--config.method.name=fedavgg"], 1, ["unknown method 'fedavgg'", "scaffold", "'fedavg'?"]),
        (["--config.models=mlpp"], 1, ["unknown model 'mlpp'", "'mlp'?"]),
        (["--config.data.partition=dirichlett(alpha=1)"], 1, ["unknown partition 'dirichlett'", "'dirichlet'?"]),
        (["--config.data.partition=dirichlet(alpha=-1)"], 1, ["alpha=-1", "must be positive"]),
        (["--config.data.partition=dirichlet(alpa=1)"], 1, ["'alpa'", "'alpha'?"]),
        (["--config.data.source=digit"], 1, ["unknown data set 'digit'", "'digits'?"]),
        (["--config.optimizer.name=sdg"], 1, ["unknown optimizer 'sdg'", "'sgd'?"]),
        (["--config.optimizer.lr=-1"], 1, ["lr=-1", "positive"]),
        (["--config.cohort.size=21"], 1, ["cohort.size=21", "20"]),
        (["--config.cohort.fraction=1.5"], 1, ["cohort.fraction=1.5", "(0, 1]"]),
        (["--config.data.clients=100000"], 1, ["100000 clients", "1437"]),
        (["--config.plan.devices=99"], 1, ["plan.devices=99", "devices"]),
    ],
    ids=lambda value: value[0].removeprefix("--") if isinstance(value, list) and value[0].startswith("--") else "",
)
def test_a_wrong_command_line_gets_one_line(launcher, tmp_path, flags, status, said):
    error = only_error_of(launcher.run(SMOKE, f"--workdir={tmp_path / 'run'}", *flags), status)
    for part in said:
        assert part in error
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "give --config"),
        (["--config=configs/nothing.py"], "there is no config file 'configs/nothing.py'"),
        (["--config=configs/nothing.py:small", "--config.rounds=3"], "there is no config file 'configs/nothing.py'"),
        (["--config", "configs/nothing.py"], "there is no config file 'configs/nothing.py'"),
        (["--config=configs/fedavg.py:huge"], "config variant 'huge' is not one of paper, small, smoke"),
        (["--config=pyproject.toml"], "pyproject.toml"),
    ],
)
def test_a_config_that_is_not_there_gets_one_line(launcher, tmp_path, flags, said):
    assert said in only_error_of(launcher.run(f"--workdir={tmp_path / 'run'}", *flags), 2)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("source", "files"),
    [
        ("mnist", ["train-images-idx3-ubyte.gz", "https://storage.googleapis.com/cvdf-datasets/mnist/"]),
        ("cifar10", ["cifar-10-binary.tar.gz", "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"]),
        ("tfds:cifar10", ["dataset_info.json", "fedjax-core[prepare]"]),
        ("npz:mine.npz", ["mine.npz"]),
    ],
)
def test_a_missing_data_set_says_what_to_put_where(launcher, tmp_path, source, files):
    there = tmp_path / "data"
    flags = [f"--config.data.source={source}", f"--config.data.dir={there}"]
    error = only_error_of(launcher.run(SMOKE, f"--workdir={tmp_path / 'run'}", *flags), 1)
    for part in [*files, str(there)]:
        assert part in error
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------------ directories and disks


def test_another_config_is_refused_with_the_difference(launcher, copy):
    before = content(copy)
    error = only_error_of(launcher.run(SMOKE, f"--workdir={copy}", "--config.optimizer.lr=0.2", "--config.seed=3"), 1)
    assert "optimizer.lr: 0.1 in the directory, 0.2 now" in error
    assert "seed: 0 in the directory, 3 now" in error
    assert content(copy) == before


def test_fewer_rounds_than_there_are_get_refused(launcher, copy):
    before = content(copy)
    error = only_error_of(launcher.run(SMOKE, f"--workdir={copy}", "--config.rounds=3"), 1)
    assert "rounds=3" in error
    assert "5 rounds" in error
    assert content(copy) == before


def test_a_foreign_directory_is_left_alone(launcher, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    error = only_error_of(launcher.run(SMOKE, f"--workdir={tmp_path}"), 1)
    assert str(tmp_path) in error
    assert "thesis.tex" in error
    assert content(tmp_path) == {"thesis.tex": b"years of work"}


def test_a_work_directory_that_is_a_file_is_left_alone(launcher, tmp_path):
    file = tmp_path / "run"
    file.write_text("mine")
    assert f"{file}: it is a file" in only_error_of(launcher.run(SMOKE, f"--workdir={file}"), 1)
    assert str(file) in only_error_of(launcher.run(SMOKE, f"--workdir={file / 'below'}"), 1)
    assert file.read_text() == "mine"


@contextlib.contextmanager
def forbidden(directory: Path, mode: int):
    before = directory.stat().st_mode
    directory.chmod(mode)
    try:
        yield
    finally:
        directory.chmod(before)


@pytest.mark.skipif(os.name == "nt", reason="permissions here are POSIX's")
@pytest.mark.parametrize("mode", [0o555, 0o000], ids=["read-only", "unreadable"])
def test_a_directory_that_permissions_close_is_left_alone(launcher, copy, mode):
    if os.geteuid() == 0 and sys.platform != "linux":
        pytest.skip("the superuser passes all permissions here")
    before = content(copy)
    with forbidden(copy, mode):
        ended = launcher.run(SMOKE, f"--workdir={copy}", "--config.rounds=7", powerless=True)
    error = only_error_of(ended, 1)
    assert str(copy) in error
    assert "Permission denied" in error
    assert content(copy) == before


@pytest.mark.skipif(os.name == "nt", reason="limits on file sizes are POSIX's")
def test_a_full_disk_during_metrics_leaves_whole_lines_and_the_checkpoint(launcher, copy):
    before = content(copy)
    limit = 2 * max(len(before[name]) for name in ("run.json", "metrics.jsonl", "config.json", "environment.json"))
    error = error_of(launcher.run(SMOKE, f"--workdir={copy}", "--config.rounds=500", largest_file=limit), 1)
    assert "metrics.jsonl: File too large" in error
    after = content(copy)
    assert {name for name in after if "checkpoints" in name} == {name for name in before if "checkpoints" in name}
    assert all(after[name] == data for name, data in before.items() if "checkpoints" in name or name == "run.json")
    assert after["metrics.jsonl"].startswith(before["metrics.jsonl"])
    lines = after["metrics.jsonl"].decode().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, len(lines) + 1))
    assert launcher.run(SMOKE, f"--workdir={copy}", "--config.rounds=7").status == 0


@pytest.mark.skipif(os.name == "nt", reason="limits on file sizes are POSIX's")
def test_a_full_disk_during_a_checkpoint_leaves_the_one_before(launcher, copy):
    before = content(copy)
    limit = max(len(data) for name, data in before.items() if name.endswith(".json")) * 4
    assert any(len(data) > limit for name, data in before.items() if "checkpoints" in name)
    error = error_of(launcher.run(SMOKE, f"--workdir={copy}", "--config.rounds=7", largest_file=limit), 1)
    assert "cannot write the checkpoint of round 7 (earlier ones are intact)" in error
    assert "File too large" in error
    kept = {name: data for name, data in before.items() if "checkpoints" in name}
    after = content(copy)  # TensorStore's threads may write on after they were told of; the next checkpoint sweeps that away
    assert {name: data for name, data in after.items() if "checkpoints" in name and "/.unfinished-" not in name} == kept
    again = launcher.run(SMOKE, f"--workdir={copy}", "--config.rounds=7")
    assert again.status == 0
    assert "after round 5" in again.err
    assert not any("/.unfinished-" in name for name in content(copy))


# ------------------------------------------------------------------------------------------------ while it runs


def test_a_loss_that_is_not_finite_names_round_and_client(launcher, copy):
    """In a new directory, and after a checkpoint, which stays; the decay raises the rate."""
    new = copy.with_name("new")
    error = error_of(launcher.run(SMOKE, f"--workdir={new}", "--config.optimizer.lr=1e9"), 1)
    assert re.search(r"round 1: the training loss .* not finite", error)
    assert "no checkpoint yet" in error
    later = ["--config.optimizer.decay=100.0", f"--workdir={copy.with_name('later')}"]
    flags = [SMOKE, *later, "--config.evaluation.every=1", "--config.checkpoint.seconds=0", "--config.rounds=20"]
    ended = launcher.run(*flags)
    assert (ended.status, ended.err.count("optimizer.decay=100 multiplies the rate each round")) == (1, 1)
    error = ended.err.splitlines()[-1]
    diverged, saved = re.search(r"round (\d+): .* \(the last checkpoint is of round (\d+)\)", error).groups()
    assert int(saved) == int(diverged) - 1 > 0
    assert (copy.with_name("later") / "checkpoints" / f"{int(saved):08d}" / "record.json").exists()
    assert read_jsonl(copy.with_name("later") / "metrics.jsonl")[-1]["round"] == int(saved)


def test_a_second_process_in_the_directory_is_refused(launcher, copy):
    flags = SMOKE, f"--workdir={copy}", "--config.rounds=1000000", "--config.checkpoint.seconds=1e9"
    first = launcher.start(*flags)
    metrics = copy / "metrics.jsonl"
    before = metrics.stat().st_size
    assert first.until(lambda: metrics.stat().st_size > before, "rounds")
    error = only_error_of(launcher.run(*flags), 1)
    assert f"another process runs there (pid {first.pid})" in error
    told = launcher.run(*flags, environment={"SLURM_NTASKS": "2"})  # by srun, without --distributed
    assert only_error_of(told, 1).rstrip().endswith("; SLURM_NTASKS=2: processes of one run need --distributed")
    assert first.poll() is None
    first.send(9)
    assert first.wait().status == -9
    assert launcher.run(SMOKE, f"--workdir={copy}").status == 0  # the dead hold no locks
