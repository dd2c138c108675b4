"""Software and hardware of a run, for environment.json."""

import contextlib
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from fedjax_core import __version__


def describe_environment() -> dict[str, Any]:
    """Returns versions, devices, commit, command line and time, without the names of user and
    machine.
    """
    versions = {}
    for package in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    kinds = [device.device_kind for device in jax.devices()]
    return {
        "python": platform.python_version(),
        "versions": versions,
        "platform": f"{platform.system()} {platform.machine()}",
        "backend": jax.default_backend(),
        "devices": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "processes": jax.process_count(),
        "cpus": os.cpu_count(),
        "commit": _commit() or {"version": __version__},
        "command": [_without_home(argument) for argument in sys.argv],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _without_home(argument: str) -> str:
    home = os.path.expanduser("~").rstrip(os.sep)
    return argument.replace(home + os.sep, "~" + os.sep) if home else argument


def _commit() -> dict[str, Any] | None:
    """Returns the project's commit and whether its files differ; None for an installed copy or
    without git.
    """
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # an installed copy may be inside another repository
        return {"hash": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None
