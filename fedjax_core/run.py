"""A run: rounds, scores, checkpoints and records in one directory, from wherever it was left."""

import contextlib
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_core.data import federated
from fedjax_core.engine import parallel
from fedjax_core.engine.simulation import Diverged, Simulation, State
from fedjax_core.reporting import plots, report
from fedjax_core.storage.checkpoint import Checkpoints
from fedjax_core.storage.workdir import CHECKPOINTS, METRICS, WorkDir, read_jsonl

MAY_DIFFER = ("rounds", "plan", "checkpoint", "evaluation.targets", "evaluation.last_k", "profile")  # on resume
PROFILE = "profile"
DISPATCH_SECONDS = 2.0  # how long Ctrl-C may have to wait


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and left a checkpoint."""


class Finished(NamedTuple):
    """What `run` returns.

    Attributes:
      state: after the last round.
      summary: of all records (`report.summarise`), also in summary.json.
      plots: paths of the files drawn.
      history: each score over the rounds, ready to plot: `axes.plot(*history["test/global/accuracy"])`.
      stopped: whether it was asked to stop while it did the last rounds; whoever starts another run must stop.
    """

    state: State
    summary: dict[str, Any]
    plots: list
    history: dict[str, report.Series]
    stopped: bool


def run(
    simulation: Simulation,
    directory: str,
    config: Mapping[str, Any],
    *,
    seed: int,
    rounds: int,
    every: int,
    targets: tuple[float, ...] = (),
    last_k: int = 10,
    checkpoint_seconds: float = 30.0,
    keep: int = 3,
    record: Mapping[str, Any] | None = None,
    chosen_plan: bool = False,
    profile: bool = False,
    progress: bool | None = None,
    console: Callable[[str], None] | None = None,
) -> Finished:
    """Runs a simulation to its last round, resuming what the directory holds.

    Killed at any moment and called again, it ends bit for bit as if it had not been: the plan is written down and taken up again.

    Args:
      simulation: what to run.
      directory: a new one, or one that holds this very run.
      config: everything that defines the run, as plain values; another one is refused there, but for `MAY_DIFFER`.
      seed: of initialisation, sampling and training.
      rounds: T.
      every: rounds between evaluations.
      targets: accuracies whose first round the summary gives.
      last_k: the summary's means are over so many last evaluations.
      checkpoint_seconds: least time between checkpoints; there is always one at the end.
      keep: checkpoints to keep.
      record: more to write into run.json, such as convolution forms; must be the same on resume.
      chosen_plan: the simulation's plan was set by the user, so it is kept even if the directory has another.
      profile: writes a jax.profiler trace of one round into `profile/`: the second of those run, for the first one compiles.
      progress: see `report.Reporter`.
      console: see `report.Reporter`.

    Returns:
      The final state, the summary, the plots and the history.

    Raises:
      ValueError: a setting is out of range; the directory holds something else, or this run on other data.
      OSError: the directory cannot be written.
      Diverged: a client's loss was not finite; earlier checkpoints are intact.
      Interrupted: after SIGINT or SIGTERM, when a checkpoint was written.
    """
    for name, value in {"rounds": rounds, "evaluation.every": every, "evaluation.last_k": last_k, "checkpoint.keep": keep}.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    checkpoints = Checkpoints(Path(directory) / CHECKPOINTS, keep)
    before = checkpoints.latest()
    if before is not None and before > rounds:  # said before anything in the directory changes
        raise ValueError(f"rounds={rounds}, but {directory} holds a run of {before} rounds already")
    with _opened(directory, config) as workdir:
        reporter = report.Reporter(workdir, rounds, progress=progress, targets=targets, last_k=last_k, console=console)
        _same_data(simulation, workdir)
        _take_up_plan(simulation, workdir, chosen_plan, reporter)
        _same_settings(workdir, record or {})
        latest = checkpoints.latest()
        with reporter, _Stop() as stop:
            reporter.note(bytes_down=simulation.shapes.down, bytes_up=simulation.shapes.up)
            if latest is None:
                reporter.say(federated.summary(simulation.data))
                done, state = 0, simulation.init(seed)
            else:
                reporter.say(f"resuming {directory} after round {latest}")
                done, state = latest, restored(simulation, checkpoints, latest)
            reporter.resume(done)
            saved, at = done, time.monotonic()
            pace = 0.0  # seconds a round
            trace_at = min(done + 1, rounds - 1) if profile else -1
            while done < rounds:
                boundary = min(rounds, (done // every + 1) * every)
                n = max(1, min(boundary - done, int(DISPATCH_SECONDS / pace) if pace else 1))
                tracing = done == trace_at
                n = 1 if tracing else n
                evaluates = done + n == boundary
                compiled, start = _Compiling.seconds, time.monotonic()
                scored = evaluates and "post_local" in simulation.evaluation.scopes
                try:
                    with jax.profiler.trace(workdir.path / PROFILE) if tracing else contextlib.nullcontext():
                        state, records = simulation.rounds(state, n, scored)
                except Diverged as error:
                    where = f"the last checkpoint is of round {saved}" if saved else "there is no checkpoint yet"
                    raise Diverged(f"{error} ({where})") from None
                seconds, compiling = time.monotonic() - start, _Compiling.seconds - compiled
                pace = max(seconds - compiling, 1e-6) / n
                done += n
                for entry in records:
                    entry |= {"seconds": seconds / n, "compile_seconds": compiling / n}
                if evaluates:
                    records[-1] |= simulation.evaluate(state)
                _record_plan(simulation, workdir)
                reporter.log(*records)
                stopping = _everywhere(stop.asked)
                if done == rounds or stopping or _everywhere(time.monotonic() - at >= checkpoint_seconds):
                    checkpoints.save(done, simulation.snapshot(state), {"touched": simulation.touched()})
                    saved, at = done, time.monotonic()
                if stopping and done < rounds:
                    raise Interrupted(f"stopped after round {done}; the same command resumes from there")
            reporter.note(peak_memory_bytes=_peak_memory(simulation))
            summary, drawn, history = reporter.close(), [], {}
            if workdir.writer:
                drawn, history = plots.run_plots(workdir.path), report.history(read_jsonl(workdir.path / METRICS))
                reporter.say(report.table(summary))
                reporter.say(f"plots    {drawn[0].parent}")
            return Finished(state, summary, drawn, history, stop.asked)


def _opened(directory: str, config: Mapping[str, Any]) -> WorkDir:
    """The directory, by process 0 first."""
    if jax.process_count() == 1:
        return WorkDir.open(directory, config, may_differ=MAY_DIFFER)
    workdir = WorkDir.open(directory, config, may_differ=MAY_DIFFER) if jax.process_index() == 0 else None
    multihost_utils.sync_global_devices("run directory")
    return workdir or WorkDir.open(directory, config, may_differ=MAY_DIFFER)


def _everywhere(asked: bool) -> bool:
    """Whether process 0 says so: all must save, and stop, after the same round."""
    if jax.process_count() == 1:
        return asked
    return bool(multihost_utils.broadcast_one_to_all(np.int32(asked)))


def _same_data(simulation: Simulation, workdir: WorkDir) -> None:
    data = simulation.data
    before = workdir.recorded("partition")
    if before is None:
        workdir.record(
            "partition",
            {
                "hash": data.partition_hash,
                "class_names": list(data.class_names),
                "label_table": data.label_table.tolist(),
                "test_label_table": data.test_label_table.tolist(),
            },
        )
    elif before["hash"] != data.partition_hash:
        found, wanted = before["hash"][:12], data.partition_hash[:12]
        raise ValueError(f"{workdir.path} holds a run on other data: its partition hash is {found}, this one's {wanted}")


def _same_settings(workdir: WorkDir, record: Mapping[str, Any]) -> None:
    for name, value in record.items():
        before = workdir.recorded(name)
        if before is None:
            workdir.record(name, value)
        elif before != value:
            raise ValueError(f"{workdir.path} holds a run with {name} {before}, this one has {value}")


def _take_up_plan(simulation: Simulation, workdir: WorkDir, chosen: bool, reporter: report.Reporter) -> None:
    before = workdir.recorded("plan")
    if before is None:
        return _record_plan(simulation, workdir)
    plan = parallel.Plan(before["chunk"], before["devices"])
    if plan == simulation.plan:
        return None
    if chosen or plan.devices > jax.device_count():
        why = "as asked" if chosen else f"there are {jax.device_count()} devices"
        reporter.say(f"the client loop's plan was {plan}, it is {simulation.plan} now ({why}); results agree to rounding")
    else:
        simulation.use(plan)
    return None


def _record_plan(simulation: Simulation, workdir: WorkDir) -> None:
    if workdir.recorded("plan") != simulation.plan._asdict():
        workdir.record("plan", simulation.plan._asdict())


def restored(simulation: Simulation, checkpoints: Checkpoints, done: int) -> State:
    """The state of a simulation after the round `done`, from the checkpoint that `run` left."""
    touched = checkpoints.record(done)["touched"]
    saved, _ = checkpoints.restore(done, simulation.like(touched))
    return simulation.restore(saved)


def _peak_memory(simulation: Simulation) -> int:
    """Bytes, of the device if it tells, else of this process."""
    stats = simulation.mesh.local_devices[0].memory_stats() or {}
    scale = 1 if sys.platform == "darwin" else 1024
    return stats.get("peak_bytes_in_use") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


class _Stop:
    """Turns the first SIGINT or SIGTERM into a request; a second one acts at once."""

    def __init__(self):
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _ask(self, number, frame):
        del frame
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_):
        for s, handler in self._before.items():
            signal.signal(s, handler)


class _Compiling:
    """Seconds that this process has spent tracing and compiling."""

    seconds = 0.0

    @classmethod
    def listen(cls, event: str, duration_secs: float, **kwargs: Any) -> None:
        del kwargs
        if event.startswith("/jax/core/compile/"):
            cls.seconds += duration_secs


jax.monitoring.register_event_duration_secs_listener(_Compiling.listen)
