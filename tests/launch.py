"""Starts command lines from a process with all imports done, in milliseconds.

`Launcher` holds one process that imports the project and, before jax creates a device, forks a
child for every start. The child runs `python -m methods.main` like the interpreter, with its own
streams, environment and limits.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests import quick

ROOT = Path(__file__).parents[1]
PATIENCE = 300.0  # seconds until a test gives up on a process


class Ended(NamedTuple):
    """Exit status (negative: the signal), standard output, standard error."""

    status: int
    out: str
    err: str


class Process:
    """A running command line."""

    def __init__(self, launcher: "Launcher", pid: int, out: Path, err: Path):
        self.pid = pid
        self._launcher, self._out, self._err = launcher, out, err
        self._status: int | None = None

    def poll(self) -> int | None:
        """Returns the exit status; None while it runs."""
        if self._status is None:
            self._status = self._launcher.ask(poll=self.pid)
        return self._status

    def until(self, condition, what: str) -> bool:
        """Waits for a condition; returns False if the process ends first."""
        start = time.monotonic()
        while not condition():
            if self.poll() is not None:
                return False
            assert time.monotonic() - start < PATIENCE, f"waited {PATIENCE} s for {what}; it said: {self.err}"
            time.sleep(0.002)
        return True

    def send(self, number: int) -> None:
        """Sends a signal if it still runs; an ended child keeps its id until it is polled."""
        if self._status is None:
            os.kill(self.pid, number)

    def wait(self) -> Ended:
        start = time.monotonic()
        while self.poll() is None:
            if time.monotonic() - start > PATIENCE:
                self.send(signal.SIGKILL)
                raise AssertionError(f"still runs after {PATIENCE} s; it said: {self.err}")
            time.sleep(0.005)
        assert self._status is not None
        return Ended(self._status, self._out.read_text(), self.err)

    @property
    def err(self) -> str:
        return self._err.read_text()


class Launcher:
    """A context manager that starts command lines and kills all of them at its end."""

    def __init__(self, directory: Path):
        """Starts the parent process; `directory` is for streams."""
        self._directory, self._count = directory, 0
        environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
        environment |= {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"} | quick.cache_variables()
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.launch"], cwd=ROOT, env=environment, text=True, stdin=-1, stdout=-1
        )

    def ask(self, **request: Any) -> Any:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        print(json.dumps(request), file=self._parent.stdin, flush=True)
        return json.loads(self._parent.stdout.readline())

    def start(
        self,
        *flags: str,
        environment: dict[str, str] | None = None,
        largest_file: int | None = None,
        powerless: bool = False,
        module: str = "methods.main",
    ) -> Process:
        """Starts the command line.

        Args:
          *flags: flags of the command; without --compilation_cache, all programs are cached,
            including those too small for users' runs.
          environment: variables to set.
          largest_file: maximum bytes per file; larger writes fail as on a full disk.
          powerless: whether permissions also apply to the superuser.
          module: module of the command line.
        """
        self._count += 1
        out, err = self._directory / f"out{self._count}", self._directory / f"err{self._count}"
        if not any(flag.startswith("--compilation_cache") for flag in flags):
            flags = (*flags, "--compilation_cache=")
        out.touch()
        err.touch()
        limits = {"largest_file": largest_file, "powerless": powerless, "module": module}
        pid = self.ask(start=flags, out=str(out), err=str(err), environment=environment or {}, **limits)
        return Process(self, pid, out, err)

    def run(self, *flags: str, **options: Any) -> Ended:
        """Starts the command line and waits for its end."""
        return self.start(*flags, **options).wait()

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, *_: object) -> None:
        self._parent.communicate(timeout=60)


def _child(request: dict[str, Any]) -> None:
    """Becomes the command line. Never returns."""
    import runpy

    streams = [os.open(os.devnull, os.O_RDONLY)]
    streams += [os.open(request[name], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644) for name in ("out", "err")]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(request["environment"])
    os.environ["XLA_FLAGS"] = quick.flags(os.environ)
    if request["largest_file"] is not None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"], resource.RLIM_INFINITY))
    if request["powerless"] and os.geteuid() == 0:
        _give_up_capabilities()
    sys.argv = [request["module"].replace(".", "/") + ".py", *request["start"]]
    status: Any = 1
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = 0 if end.code is None else end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
    _finish(status if isinstance(status, int) else 1)


def _give_up_capabilities() -> None:
    """Drops all capabilities of the superuser (Linux)."""
    import ctypes

    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def _finish(status: int) -> None:
    """Ends as the interpreter does, with exit handlers and flushed streams.

    Leftovers of the parent process are skipped.
    """
    import atexit
    import threading

    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


EARLY = (  # modules that a run imports, at its start or later
    *("fedjax_core.commands.run", "fedjax_core.commands.tables", "fedjax_core.experiment"),
    *("ml_collections.config_flags", "matplotlib.backends.backend_agg", "orbax.checkpoint"),
    *("fedjax_core.reporting.plots", "fedjax_core.commands.tables.difference_figure"),
    *("tensorboardX.proto.event_pb2", "tensorboardX.record_writer", "tensorboardX.summary"),
)


def _serve() -> None:
    import importlib

    for name in EARLY:
        importlib.import_module(name)
    requests, answers = sys.stdin, sys.stdout
    running = set()
    for line in requests:
        request = json.loads(line)
        if "poll" in request:
            pid, ended = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(ended) if pid else None
            running.discard(pid)
        else:
            answer = os.fork()
            if answer == 0:
                _child(request)
            running.add(answer)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    _serve()
