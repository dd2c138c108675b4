"""What environment.json tells, and what not."""

import os
import sys

from fedjax_core.storage.environment import environment


def test_the_home_directory_is_not_recorded(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main", f"--workdir={os.path.expanduser('~')}/runs/x"])
    assert environment()["command"] == ["main", "--workdir=~/runs/x"]
