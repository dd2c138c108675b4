"""What environment.json tells, and what not."""

import os
import sys

import fedjax_core
from fedjax_core.storage.environment import describe_environment


def test_the_home_directory_is_not_recorded(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main", f"--workdir={os.path.expanduser('~')}/runs/x"])
    assert describe_environment()["command"] == ["main", "--workdir=~/runs/x"]


def test_without_git_the_version_stands_for_the_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe_environment()["commit"] == {"version": fedjax_core.__version__}
