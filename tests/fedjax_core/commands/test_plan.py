"""The command that plans: signals, wrong lines, and the devices that are here."""

import json
import os
import signal
import subprocess
import warnings

import pytest

from fedjax_core.commands import plan
from fedjax_core.commands.plans import capacity_plan, plan_report
from tests.fedjax_core.commands.plans.made import ABOUT


def test_a_termination_ends_the_process_that_compiles_too(monkeypatch, capsys, tmp_path):
    before = signal.signal(signal.SIGTERM, lambda *_: None)

    def run(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)  # an exception ends what `subprocess.run` has started
        raise AssertionError("it went on")

    monkeypatch.setattr(subprocess, "run", run)
    try:
        assert planning(["fedavg:smoke", "--topology=here", "--kept="]) == 130
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this platform has no SIGHUP")
def test_under_nohup_a_plan_outlives_its_terminal(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    asked = []

    def compiled(*arguments, **options):
        asked.append(arguments)
        os.kill(os.getpid(), signal.SIGHUP)
        return {"about": ABOUT, "programs": {}}

    monkeypatch.setattr(capacity_plan, "make_plan", compiled)
    monkeypatch.setattr(capacity_plan, "plan_fits", lambda plan: True)
    monkeypatch.setattr(plan_report, "render_plan", lambda plan: "planned")
    try:
        assert planning(["fedavg:smoke", "--topology=here", "--kept="]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert asked


def planning(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # ml_collections loads files the old way
        return plan.main(arguments)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ([], 2, "give --config"),
        (["fedavg:smoke", "--topology=v5e"], 2, "CHIP:SIZE"),
        (["fedavg:smoke", "--programs=rounds"], 2, "'rounds'"),
        (["fedavg:smoke", "--shape=3,x"], 2, "integers separated by commas"),
        (["fedavg:smoke", "--config.lrr=1"], 2, "no field"),
        (
            ["fedavg:smoke", "--clients=30", "--config.data.clients=20"],
            2,
            "--clients=30 is the same as --config.data.clients; give",
        ),
        (["fedavg:smoke", "--config.method.lrr=1"], 1, "no option 'lrr'"),
        (["fedavg:smoke", "--config.models=('mlpp',)"], 1, "mlp"),
    ],
)
def test_a_wrong_command_line_is_one_line(capsys, arguments, status, says):
    assert planning(arguments) == status
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_the_command_plans_for_the_devices_that_are_here(capsys, tmp_path):
    """The one test that compiles in another process."""
    file = tmp_path / "plan.json"
    line = ["fedavg:smoke", "--config.models=('mlp(widths=(4,))',)", "--config.plan.devices=2", "--programs=round", "--search=0"]
    assert planning([*line, f"--json={file}", f"--kept={tmp_path}"]) == 0
    (one,) = json.loads(file.read_text())["targets"]
    assert one["about"]["devices"] == 2
    assert {found["kind"] for found in one["programs"]["round"]["collectives"]} >= {"all-reduce"}
    assert one["round"]["seconds"] is None  # no peak is published of a CPU
    assert "no peak is known" in capsys.readouterr().out
