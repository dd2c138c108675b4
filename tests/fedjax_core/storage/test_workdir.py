"""The run directory against what happens to directories: crashes, second processes, other configs, full and forbidden disks."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import fedjax_core
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import DirectoryInUse, WorkDir, describe_environment

ROOT = Path(__file__).parents[3]
CONFIG = {"rounds": 20, "method": {"name": "fedavg", "lr": 0.1}, "seed": 0}


def start(code: str, *arguments: object) -> subprocess.Popen:
    """Runs Python code in a process of its own, from the project's root."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdin=-1, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(code: str, *arguments: object) -> str:
    process = start(code, *arguments)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def names(path: Path) -> set[str]:
    return set(os.listdir(path))


def test_a_new_run_has_its_config_and_environment(tmp_path):
    path = tmp_path / "runs" / "first"
    with WorkDir.open(path, CONFIG) as run:
        assert not run.resumed
        assert run.writer
    assert names(path) == {"config.json", "environment.json", ".lock"}
    assert read_json(path / "config.json") == CONFIG
    environment = read_json(path / "environment.json")
    assert environment["versions"].keys() == {"jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"}
    assert environment["backend"] == "cpu"
    assert sum(environment["devices"].values()) >= 1
    assert "version" in environment["commit"] or len(environment["commit"]["hash"]) == 40  # without git the version alone
    assert os.uname().nodename not in json.dumps(environment)


def test_config_is_for_human_eyes(tmp_path):
    WorkDir.open(tmp_path, {"z": [1, 2], "a": {"c": "é", "b": ()}, "table": np.eye(2, dtype=int)}).close()
    expected = """\
    {
      "a": {
        "b": [],
        "c": "é"
      },
      "table": [
        [1, 0],
        [0, 1]
      ],
      "z": [1, 2]
    }
    """
    assert (tmp_path / "config.json").read_text() == textwrap.dedent(expected)


def test_the_same_config_resumes_and_the_environment_keeps_its_history(tmp_path):
    with WorkDir.open(tmp_path, CONFIG | {"widths": (8, 16)}) as run:
        run.record("plan", {"chunk": 4, "devices": 1})
        run.record("partition", {"hash": "ab", "label_table": np.array([[3, 0], [1, 2]])})
    with WorkDir.open(tmp_path, CONFIG | {"widths": [8, 16]}) as run:
        assert run.resumed
        assert run.get_record("plan") == {"chunk": 4, "devices": 1}
        assert run.get_record("partition") == {"hash": "ab", "label_table": [[3, 0], [1, 2]]}
        assert run.get_record("nothing") is None
        run.record("plan", {"chunk": 2, "devices": 1})
        assert run.get_record("plan") == {"chunk": 2, "devices": 1}
        assert "resumed" not in read_json(tmp_path / "environment.json"), "the run may still be refused"
        for _ in range(2):
            run.commit_resume()
    environment = read_json(tmp_path / "environment.json")
    assert [set(resumption) for resumption in environment["resumed"]] == [{"time"}]


def test_every_difference_of_the_config_is_told(tmp_path):
    WorkDir.open(tmp_path, CONFIG).close()
    asked = {"rounds": 30, "method": {"name": "fedprox", "lr": 0.1, "mu": 1.0}}
    with pytest.raises(ValueError, match="holds a run with another config") as error:
        WorkDir.open(tmp_path, asked)
    message = str(error.value)
    assert "\n" not in message
    assert "rounds: 20 in the directory, 30 now" in message
    assert 'method.name: "fedavg" in the directory, "fedprox" now' in message
    assert "method.mu: absent in the directory, 1.0 now" in message
    assert "seed: 0 in the directory, absent now" in message
    assert "method.lr" not in message
    assert read_json(tmp_path / "config.json") == CONFIG
    WorkDir.open(tmp_path, CONFIG).close()  # the refused one let go of the lock


def test_fields_that_may_differ(tmp_path):
    WorkDir.open(tmp_path, CONFIG | {"report": {"every": 1}}).close()
    asked = CONFIG | {"rounds": 30, "report": {"every": 2, "bar": True}}
    with pytest.raises(ValueError, match=r"\(rounds: 20 in the directory, 30 now\)"):
        WorkDir.open(tmp_path, asked, may_differ=("report", "round"))
    with WorkDir.open(tmp_path, asked, may_differ=("report", "rounds")) as run:
        assert run.resumed
        assert read_json(tmp_path / "config.json")["rounds"] == 20, "the run may still be refused"
        run.commit_resume()
    assert read_json(tmp_path / "config.json") == asked


def test_a_directory_is_begun_anew_below_its_links(tmp_path):
    """Checkpoints may be on another disk, by a link; what is no run's stays."""
    (tmp_path / "far" / "00000001").mkdir(parents=True)
    (tmp_path / "far" / "00000001" / "leaves.json").touch()
    (tmp_path / "lines").write_text("{}")
    WorkDir.open(tmp_path / "run", CONFIG).close()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "far")
    (tmp_path / "run" / "metrics.jsonl").symlink_to(tmp_path / "lines")
    os.mkfifo(tmp_path / "run" / "metrics.csv")
    (tmp_path / "run" / "tensorboard" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "audit").mkdir()  # of the old run's models
    (tmp_path / "run" / "mine").mkdir()
    with WorkDir.open(tmp_path / "run", CONFIG | {"rounds": 7}, should_restart=lambda: True) as run:
        assert (run.resumed, run.restarted) == (False, True)
    assert names(tmp_path / "run") == {
        *(".lock", "config.json", "environment.json", "mine", "checkpoints", "metrics.jsonl", "metrics.csv")
    }
    assert (tmp_path / "run" / "checkpoints").is_symlink()
    assert (tmp_path / "run" / "metrics.jsonl").is_symlink()
    assert not (tmp_path / "lines").exists()
    assert not list((tmp_path / "far").iterdir())
    assert read_json(tmp_path / "run" / "config.json")["rounds"] == 7


@pytest.mark.parametrize("files", [["thesis.tex"], ["config.json"], ["environment.json"], ["config.json", ".lock"]])
def test_a_foreign_directory_is_left_alone(tmp_path, files):
    for file in files:
        (tmp_path / file).write_text("{}")
    with pytest.raises(ValueError, match=f"{tmp_path} is not empty and holds no run"):
        WorkDir.open(tmp_path, CONFIG)
    assert names(tmp_path) == set(files)


def test_a_run_killed_before_its_config_starts_anew(tmp_path):
    for file in (".lock", "environment.json", ".writing-1-2-config.json"):
        (tmp_path / file).write_text("{")
    with WorkDir.open(tmp_path, CONFIG) as run:
        assert not run.resumed
    assert names(tmp_path) == {".lock", "environment.json", "config.json"}


def test_paths_that_cannot_be_a_directory(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(OSError, match=f"cannot make the run directory {file}: it is a file"):
        WorkDir.open(file, CONFIG)
    with pytest.raises(OSError, match=f"cannot make the run directory {file}/below: "):
        WorkDir.open(file / "below", CONFIG)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    with pytest.raises(OSError, match=f"cannot make the run directory {link}: it is a link to {tmp_path}/gone, which is not there"):
        WorkDir.open(link, CONFIG)


def test_a_config_that_json_cannot_hold(tmp_path):
    with pytest.raises(TypeError, match=r"method\.loss is a function"):
        WorkDir.open(tmp_path / "run", {"method": {"loss": test_paths_that_cannot_be_a_directory}})
    assert not names(tmp_path)


def test_a_broken_config_is_told(tmp_path):
    WorkDir.open(tmp_path, CONFIG).close()
    (tmp_path / "config.json").write_text('{"rounds": ')
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        WorkDir.open(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", "[1]", r"config\.json is a list, expected an object"),
        ("config.json", '{"a":' * 90 + "1" + "}" * 90, r"holds a run with another config"),
        ("config.json", "[" * 100_000, r"config\.json is nested more than 100 levels deep"),
        ("environment.json", "3", r"environment\.json is an int \(3\), expected an object"),
        ("environment.json", '{"resumed": 3}', r"resumed of .*environment\.json is an int \(3\), expected"),
        ("run.json", "[]", r"run\.json is a list, expected an object"),
        ("run.json", '{"partition": 3}', r"partition of .*run\.json is an int \(3\), expected an object"),
        ("run.json", '{"partition": {}}', r"partition of .*run\.json has no hash, expected a string"),
        (
            "run.json",
            '{"plan": {"chunk": "4", "devices": 1}}',
            r"plan\.chunk of .*run\.json is a string \('4'\), expected",
        ),
    ],
)
def test_json_of_another_shape_is_told(tmp_path, file, content, said):
    WorkDir.open(tmp_path, CONFIG).close()
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=said) as error, WorkDir.open(tmp_path, CONFIG) as run:
        run.get_record("plan")
    assert "\n" not in str(error.value)


def test_forbidden_directories(tmp_path):
    """Root may write anywhere, so the checks run as nobody."""
    code = """
    import os, sys, tempfile
    from fedjax_core.storage.workdir import describe_environment
    from fedjax_core.storage.workdir import WorkDir
    describe_environment()
    base = tempfile.mkdtemp()
    os.chmod(base, 0o755)
    if os.geteuid() == 0:
        for name in ("read_only", "secret"):
            os.mkdir(f"{base}/{name}")
            os.chown(f"{base}/{name}", 65534, 65534)
        os.setuid(65534)
    else:
        os.mkdir(f"{base}/read_only"), os.mkdir(f"{base}/secret")
    os.chmod(f"{base}/read_only", 0o500)
    os.chmod(f"{base}/secret", 0)
    os.chmod(base, 0o555) if os.geteuid() != 65534 else None
    for name in ("read_only", "secret", "new"):
        try:
            WorkDir.open(f"{base}/{name}", {})
        except OSError as error:
            sys.stdout.write(f"{type(error).__name__} {error}\\n".replace(base, "BASE"))
    """
    lines = run(code).splitlines()
    assert lines == [
        "PermissionError [Errno 13] cannot run in BASE/read_only: Permission denied",
        "PermissionError [Errno 13] cannot read BASE/secret: Permission denied",
        "PermissionError [Errno 13] cannot make the run directory BASE/new: Permission denied",
    ]


def test_two_processes_never_run_in_one_directory(tmp_path):
    code = """
    import sys
    from fedjax_core.storage.workdir import WorkDir
    run = WorkDir.open(sys.argv[1], {"rounds": 20})
    sys.stdout.write("open\\n"), sys.stdout.flush()
    sys.stdin.read()
    """
    other = start(code, tmp_path)
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    message = rf"cannot run in {tmp_path}: another process runs there \(pid {other.pid}\)"
    with pytest.raises(DirectoryInUse, match=message):
        WorkDir.open(tmp_path, {"rounds": 20})
    other.send_signal(signal.SIGKILL)
    other.communicate()
    with WorkDir.open(tmp_path, {"rounds": 20}) as run:
        assert run.resumed
        with pytest.raises(OSError, match="this process already runs there") as held:
            WorkDir.open(tmp_path, {"rounds": 20})
        assert not isinstance(held.value, DirectoryInUse)  # which a caller may wait for
    WorkDir.open(tmp_path, {"rounds": 20}).close()


def test_the_same_pid_in_another_container_is_another_process(tmp_path):
    code = """
    import pathlib, sys
    from fedjax_core.storage.workdir import WorkDir
    run = WorkDir.open(sys.argv[1], {"rounds": 20})
    pathlib.Path(sys.argv[1], ".lock").write_text(sys.argv[2])
    sys.stdout.write("open\\n"), sys.stdout.flush()
    sys.stdin.read()
    """
    other = start(code, tmp_path, os.getpid())
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    with pytest.raises(DirectoryInUse, match="another process runs there"):
        WorkDir.open(tmp_path, {"rounds": 20})
    other.communicate()


def test_a_process_that_does_not_write_leaves_no_trace(tmp_path):
    path = tmp_path / "run"
    with WorkDir.open(path, CONFIG, writer=False) as follower:
        follower.record("plan", {"chunk": 1})
        assert follower.get_record("plan") is None
    assert not path.exists()
    with WorkDir.open(path, CONFIG) as first, WorkDir.open(path, CONFIG, writer=False) as follower:
        first.record("plan", {"chunk": 3, "devices": 1})
        assert follower.get_record("plan") == {"chunk": 3, "devices": 1}
    with pytest.raises(ValueError, match="seed: 0 in the directory, 1 now"):
        WorkDir.open(path, CONFIG | {"seed": 1}, writer=False)


def test_a_full_disk_leaves_what_was_there(tmp_path):
    """A limit on the size of files stands in for it: like a full disk, it takes a part and refuses the rest."""
    code = """
    import os, resource, sys
    from fedjax_core.storage.json_files import JsonLinesFile
    from fedjax_core.storage.workdir import WorkDir
    base = sys.argv[1]
    run = WorkDir.open(f"{base}/run", {})
    run.record("plan", {"chunk": 1})
    lines = JsonLinesFile(run.path / "metrics.jsonl")
    lines.append({"round": 1})
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, resource.RLIM_INFINITY))
    def attempt(call, *arguments):
        try:
            call(*arguments)
        except OSError as error:
            sys.stdout.write(f"{error}\\n".replace(base, "BASE"))
    attempt(lines.append, {"round": 2, "filling": "x" * 100})
    attempt(run.record, "plan", {"filling": "x" * 100})
    attempt(WorkDir.open, f"{base}/second", {})
    """
    lines = run(code, tmp_path).splitlines()
    assert lines == [
        "[Errno 27] cannot write BASE/run/metrics.jsonl: File too large",
        "[Errno 27] cannot write BASE/run/run.json: File too large",
        "[Errno 27] cannot write BASE/second/environment.json: File too large",
    ]
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"round": 1}\n'
    assert read_json(tmp_path / "run" / "run.json") == {"plan": {"chunk": 1}}
    assert not [name for name in names(tmp_path / "run") if re.match(r"\.writing", name)]
    with WorkDir.open(tmp_path / "second", {}) as second:  # once there is room again
        assert not second.resumed


def test_the_home_directory_is_not_recorded(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main", f"--workdir={os.path.expanduser('~')}/runs/x"])
    assert describe_environment()["command"] == ["main", "--workdir=~/runs/x"]


def test_without_git_the_version_stands_for_the_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe_environment()["commit"] == {"version": fedjax_core.__version__}
