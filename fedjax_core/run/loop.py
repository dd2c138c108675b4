"""The loop of a run: rounds by the dispatch, and between them scores, records, callbacks and checkpoints.

It asks for its rounds, and whoever drives it (`driving.py`) does them: of one run alone, or of several together.
"""

import contextlib
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_core import distributed
from fedjax_core.data import federated_data
from fedjax_core.engine import evaluation
from fedjax_core.engine.evaluation_step import ByClient
from fedjax_core.engine.simulator import Diverged, Simulation, State
from fedjax_core.privacy import Spent
from fedjax_core.reporting import client_scores
from fedjax_core.reporting import reporter as report
from fedjax_core.run import checkpointing as directories
from fedjax_core.run.asked import Asked, Steps
from fedjax_core.run.callbacks import CallbackFailed, Callbacks, Ended, Started
from fedjax_core.run.early_stopping import Goal
from fedjax_core.run.selection import SELECTED, Selection
from fedjax_core.run.signals import Stop
from fedjax_core.run.state_reader import Look
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import read_json, read_jsonl
from fedjax_core.storage.signature import sign_config
from fedjax_core.storage.workdir import BEGUN_HERE, CHECKPOINTS, CONFIG, METRICS, WorkDir

PROFILE = "profile"
DISPATCH_SECONDS = 2.0  # how long Ctrl-C may have to wait
PROGRESS_SECONDS = 5.0  # of an evaluation, before it says how far it is


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop by a signal, and left a checkpoint."""


class _Stopped(Exception):
    """A signal came in an evaluation that takes long."""


class Finished(NamedTuple):
    """What `run` returns.

    Attributes:
      state: after the last round.
      summary: of all records (`report.summarise`), also in summary.json.
      plots: paths of the files drawn.
      history: each score over the rounds, ready to plot: `axes.plot(*history["test/global/accuracy"])`.
      stopped: whether a signal asked it to stop while it did the last rounds; whoever starts another run must stop.
      asked: which callback asked it to stop before the last round, and why; "" if none did. The same call goes on from there.
      selected: the best round by a validation score, whose state `experiment.load` gives; None if nothing was to be selected.
    """

    state: State
    summary: dict[str, Any]
    plots: list
    history: dict[str, report.Series]
    stopped: bool
    asked: str = ""
    selected: int | None = None


def steps(
    simulation: Simulation,
    directory: str,
    config: Mapping[str, Any],
    *,
    seed: int,
    rounds: int,
    every: int,
    targets: tuple[float, ...] = (),
    last_k: int = 10,
    select: str | None = None,
    patience: int | None = None,
    until: str | None = None,
    checkpoint_seconds: float = 30.0,
    keep: int = 3,
    record: Mapping[str, Any] | None = None,
    chosen_plan: bool = False,
    profile: bool = False,
    callbacks: Sequence[Any] = (),
    progress: bool | None = None,
    console: Callable[[str], None] | None = None,
    private: Spent | None = None,
    opening: Callable[[], Sequence[str]] | None = None,
    stop: Stop | None = None,
    fresh: bool = False,
    names_code: bool = False,
) -> Steps:
    """A run to its last round, that takes up what the directory holds.

    Killed at any moment and called again, it ends bit for bit as if it had not been: the plan is written down and taken up again.
    A lane (`vmapped_runs.py`) does so to rounding: others may train beside it then.

    Args:
      simulation: what to run.
      directory: a new one, or one that holds this very run.
      config: everything that defines the run, as plain values; another one is refused there, but for `MAY_DIFFER`.
      seed: of initialisation, sampling and training.
      rounds: T.
      every: rounds between evaluations.
      targets: accuracies whose first round the summary gives.
      last_k: the summary's means are over so many last evaluations.
      select: the score on validation rows by which the best round is chosen (`fedjax_core/run/selection.py`).
      patience: the run ends after so many evaluations without a better one; None: it never does.
      until: the run ends when a score is there, "test/global/accuracy >= 0.97" (`fedjax_core/run/early_stopping.py`); None: it
        never does.
      checkpoint_seconds: least time between checkpoints; there is always one at the end.
      keep: checkpoints to keep.
      record: more to write into run.json, such as convolution forms; must be the same on resume.
      chosen_plan: the simulation's plan was set by the user, so it is kept even if the directory has another.
      profile: writes a jax.profiler trace of one round into `profile/`: the second of those run, for the first one compiles.
      callbacks: objects that are told what happens, and may ask to stop, or specs of such: see `fedjax_core/run/callbacks.py`.
      progress: see `reporter.Reporter`.
      console: see `reporter.Reporter`.
      private: what rounds cost in privacy: epsilon so far stands in every record and in the summary.
      opening: gives the lines that the run says first; None: none.
      stop: whether a signal asks to stop, of who handles them for several runs; None: this run handles them.
      fresh: what the directory holds of a run is deleted, and this one begins there. Without, that happens where there is no
        checkpoint and the config, the data or the settings are others.
      names_code: whether the config names code that is not installed: the directory is signed then (`storage/signature.py`).

    Yields:
      The rounds to be done.

    Returns:
      The final state, the summary, the plots and the history.

    Raises:
      ValueError: a setting is out of range; the directory holds something else, or this run on other data.
      OSError: the directory cannot be written.
      Diverged: something was not finite; earlier checkpoints are intact.
      Interrupted: after SIGINT, SIGTERM or SIGHUP, when a checkpoint was written.
      CallbackFailed: a callback raised; a checkpoint was written, if a round was done.
    """
    for name, value in {"rounds": rounds, "evaluation.every": every, "evaluation.last_k": last_k, "checkpoint.keep": keep}.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    selection = Selection(select, patience, Path(directory), simulation)
    goal = Goal(until, [*evaluation.list_test_scores(simulation.spec), *evaluation.list_validation_scores(simulation.spec)])
    hooks = Callbacks(callbacks, writer=jax.process_index() == 0)
    checkpoints = Checkpoints(Path(directory) / CHECKPOINTS, keep, beside=Path(directory) / SELECTED)
    before = None if fresh else distributed.said(checkpoints.latest())
    if before is not None and before > rounds:  # said before anything in the directory changes
        raise ValueError(f"rounds={rounds}, but {directory} holds a run of {before} rounds already")
    if before is not None:
        directories.same_hold(simulation, directory)
    with directories.opened(directory, config, fresh) as workdir:
        told = {"progress": progress, "targets": targets, "last_k": last_k, "select": select, "console": console}
        reporter = report.Reporter(workdir, rounds, **told)
        directories.take_up_records(simulation, workdir, record or {})
        if workdir.begun_anew:
            reporter.say(f"{directory} is begun anew: what it held of another run is deleted")
        directories.take_up_plan(simulation, workdir, chosen_plan, reporter)
        workdir.take_over()
        if names_code and workdir.writer:
            signature = sign_config(read_json(workdir.path / CONFIG, dict))  # as it is written, with what was filled in
            if signature is not None and workdir.recorded(BEGUN_HERE) != {"signature": signature}:
                workdir.record(BEGUN_HERE, {"signature": signature})
        directories.record_placement(simulation, workdir, reporter)
        with reporter, Stop() if stop is None else contextlib.nullcontext(stop) as asked_for:
            reporter.note(bytes_down=simulation.spec.shapes.down, bytes_up=simulation.spec.shapes.up)
            latest = distributed.said(checkpoints.latest())
            for line in () if opening is None else opening():
                reporter.say(line)
            if latest is None:
                reporter.say(federated_data.summary(simulation.spec.data))
                if simulation.spec.unseen_skip_reason:
                    reporter.say(f"unseen clients are not scored: {simulation.spec.unseen_skip_reason}")
                state = simulation.init(seed)
            else:
                reporter.say(f"resuming {directory} after round {latest}")
                state = directories.restored(simulation, checkpoints, latest)
            going = _Going(simulation, workdir, checkpoints, selection, goal, reporter, hooks, state, latest or 0, private)
            if private is not None:
                reporter.say(private.words(going.done))
            reporter.resume(going.done)
            before_this = read_jsonl(workdir.path / METRICS) if workdir.writer and going.done else []
            going.unscored = distributed.said(going.lacking_scores(before_this, every, rounds))
            selection.take_up(before_this, going.done)
            goal.take_up(before_this)
            if distributed.said(selection.missing):
                if selection.best == going.done:  # it was killed between its checkpoint and this, or has gone back to here
                    selection.keep(state)
                elif not distributed.said(selection.best in checkpoints.rounds()):
                    what = f"round {selection.best} is the best one so far, and its state is gone"
                    reporter.say(f"{what}: that of a later round, given up since, had taken its place")
            look = Look(simulation, lambda: (going.state, going.done))
            try:
                hooks.start(Started(workdir.path, dict(config), rounds, going.done, look))
                stopped = yield from going.on(asked_for, rounds, every, checkpoint_seconds, going.done + 1 if profile else None)
            except BaseException as error:
                if isinstance(error, Diverged):
                    error.stopped = asked_for.asked
                status = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
                hooks.end(Ended(status, going.done, str(error), {}))
                raise
            early = going.why_enough() if going.done < rounds else ""
            asked = distributed.said(hooks.asked) if going.done < rounds and not early else ""
            if early:
                reporter.note(ended=early)
            reporter.note(**{report.ENDED: _peak_memory(simulation)})  # tables know by it that the run ended without an error
            if private is not None:
                reporter.note(privacy=private.facts() | {"epsilon": private.epsilon(going.done)})
            summary, drawn, history = reporter.close(), [], {}
            if workdir.writer:
                from fedjax_core.reporting import plots  # matplotlib is for the end: nobody waits for it before the first round

                drawn, history = plots.run_plots(workdir.path), report.history(read_jsonl(workdir.path / METRICS))
                reporter.say(report.table(summary))
                if private is not None:
                    reporter.say(private.words(going.done))
                reporter.say(f"plots    {drawn[0].parent}")
            if early:
                reporter.say(f"stopped after round {going.done}: {early}")
            if asked:
                reporter.say(f"stopped after round {going.done} by callback {asked}; the same command resumes from there")
            hooks.end(Ended("stopped" if asked else "finished", going.done, asked, summary))
            if hooks.failed is not None:
                raise CallbackFailed(f"{hooks.failed} (the run itself is complete)") from hooks.failed.__cause__
            return Finished(going.state, summary, drawn, history, stopped, asked, selection.best or None)


class _Going:
    """A run on its way.

    Attributes:
      state: after the last round.
      done: rounds done.
      saved: the round of the last checkpoint; 0 if there is none.
      unscored: the record of the last round, if an earlier start was stopped while it was scored; else None.
    """

    def __init__(
        self,
        simulation: Simulation,
        workdir: WorkDir,
        checkpoints: Checkpoints,
        selection: Selection,
        goal: Goal,
        reporter: report.Reporter,
        hooks: Callbacks,
        state: State,
        done: int,
        private: Spent | None = None,
    ):
        self.simulation, self.workdir, self.checkpoints, self.selection = simulation, workdir, checkpoints, selection
        self.goal, self.reporter, self.hooks = goal, reporter, hooks
        self.state, self.done, self.saved, self.private = state, done, done, private
        self.unscored: dict[str, Any] | None = None

    def lacking_scores(self, records: Sequence[dict[str, Any]], every: int, rounds: int) -> dict[str, Any] | None:
        """Returns the last of the records if its round is one to be scored and it has no score, else None."""
        names = {*evaluation.list_test_scores(self.simulation.spec), *evaluation.list_validation_scores(self.simulation.spec)}
        if not records or not names or (self.done % every and self.done < rounds):
            return None
        return None if names & records[-1].keys() else records[-1]

    def why_enough(self) -> str:
        """Why the run is over before its last round; empty if it is not."""
        if self.goal.reached:
            return f"{self.goal.text} in round {self.goal.reached}"
        return self.selection.why if self.selection.exhausted else ""

    def on(self, stop: Stop, rounds: int, every: int, checkpoint_seconds: float, trace_after: int | None) -> Steps:
        """To the last round, or until a callback asks to stop, no better evaluation comes, or the goal is reached.

        Args:
          stop: whether a signal asks so.
          rounds: the last one.
          every: rounds between evaluations.
          checkpoint_seconds: least time between checkpoints.
          trace_after: the round after which one is profiled, if there is one left; None: none is.

        Returns:
          Whether a signal came during the last rounds.
        """
        trace_at = -1 if trace_after is None else min(trace_after, rounds - 1)
        self._stop = stop
        if self.unscored is not None:
            self._score_last_round(self.unscored)
            if distributed.said(bool(self.hooks.asked)):
                return False
        stopping, most, at = False, 1, time.monotonic()  # one round first: nobody knows yet how long it takes
        while self.done < rounds and not self.why_enough():
            boundary = min(rounds, (self.done // every + 1) * every)
            tracing = self.done == trace_at
            n = 1 if tracing else min(boundary - self.done, most)
            evaluated = self.done + n == boundary
            pace, records, by_client = yield from self._rounds(n, evaluated, tracing)
            directories.record_plan(self.simulation, self.workdir)
            self.reporter.log(*records)
            if self.unscored is not None:
                self.hooks.rounds(records[:-1], False)
                directories.save(self.simulation, self.checkpoints, self.state, self.done, self.saved)
                self.saved = self.done
                raise Interrupted(self._stopped_in_evaluation())
            better = self._take(records, evaluated, by_client)
            ends = self.done == rounds or bool(self.why_enough())
            due = time.monotonic() - at >= checkpoint_seconds
            failed, enough = self.hooks.failed is not None, bool(self.hooks.asked)
            fits = min(max(int(DISPATCH_SECONDS / pace), 1), 2**30)
            facts = distributed.seen(
                [stop.asked, failed, enough, due, fits]
            )  # signals come to any process, the rest is up to the first
            stopping = bool(facts[:, 0].any())
            failed, enough, due, most = (int(fact) for fact in facts[0, 1:])
            if ends or stopping or failed or enough or due or better:
                directories.save(self.simulation, self.checkpoints, self.state, self.done, self.saved)
                self.saved, at = self.done, time.monotonic()
            if better:  # after the checkpoint, so that the run never goes on from an earlier round than this
                self.selection.keep(self.state)
            if failed:
                error = self.hooks.failed or CallbackFailed("a callback failed in process 0")
                raise CallbackFailed(f"{error} ({self._left()})") from error.__cause__
            if stopping and self.done < rounds:
                raise Interrupted(f"after round {self.done}; the same command resumes from there")
            if enough:
                break
        return stopping

    def _take(self, records: Sequence[dict[str, Any]], evaluated: bool, by_client: ByClient | None) -> bool:
        """Tells everybody of new records, the last with or without scores; whether it is the best evaluation so far."""
        self.hooks.rounds(records, evaluated)
        better = self.selection.see(records)
        self.goal.see(records)
        if by_client is not None and self.workdir.writer:
            for name in (client_scores.LAST, client_scores.SELECTED) if better else (client_scores.LAST,):
                client_scores.write(self.workdir.path / name, self.done, by_client, self.simulation.spec.data.names_of_all)
        return better

    def _score_last_round(self, record: dict[str, Any]) -> None:
        """Does the evaluation of the last round, in which an earlier start was stopped.

        Raises:
          Diverged, CallbackFailed: as `steps`.
          Interrupted: a signal came again.
        """
        try:
            found, by_client = self._scores(self.done)
        except _Stopped:
            raise Interrupted(self._stopped_in_evaluation()) from None
        except Diverged as error:
            raise Diverged(f"{error} ({self._left()})") from None
        self.unscored = None
        self.reporter.add_scores(found)
        if self._take([record | found], True, by_client):
            self.selection.keep(self.state)
        if distributed.said(self.hooks.failed is not None):
            error = self.hooks.failed or CallbackFailed("a callback failed in process 0")
            raise CallbackFailed(f"{error} ({self._left()})") from error.__cause__

    def _scores(self, number: int) -> tuple[dict[str, float], ByClient | None]:
        """What `Simulation.evaluate` returns after round `number`; an evaluation that takes long says how far it is.

        Raises:
          _Stopped: it takes long, and a signal asks to stop.
        """
        began, due = time.monotonic(), PROGRESS_SECONDS

        def watch(what: str, done: int, of: int) -> None:
            nonlocal due
            spent = time.monotonic() - began
            if spent >= due:
                self.reporter.say(f"evaluation after round {number}: {done} of {of} {what}, {report.readable_time(spent)}")
                due = 2 * spent
            if distributed.anywhere(self._stop.asked and spent >= DISPATCH_SECONDS):
                raise _Stopped

        return self.simulation.evaluate(self.state, watch)

    def _stopped_in_evaluation(self) -> str:
        return f"in the evaluation after round {self.done}; the same command resumes with it"

    def _rounds(self, n: int, evaluated: bool, tracing: bool) -> Steps:
        """n rounds, under the profiler or not, of which the last is scored: (seconds a round without compiling, their records, the
        last one's scores of single clients, `ByClient` or None). Where a signal came while they were made, `unscored` has the last
        record."""
        by_client: ByClient | None = None
        try:
            scored = evaluated and "post_local" in self.simulation.spec.evaluation.scopes
            trace = self.workdir.path / PROFILE if tracing else None
            self.state, records, seconds, compiling = yield Asked(self.simulation, self.state, n, scored, trace)
            for entry in records:
                entry |= {"seconds": seconds / n, "compile_seconds": compiling / n}
                entry |= {} if self.private is None else self.private.so_far(int(entry["round"]))
            if evaluated:
                try:
                    found, by_client = self._scores(self.done + n)
                    records[-1] |= found
                except _Stopped:
                    self.unscored = records[-1]
        except Diverged as error:
            raise Diverged(f"{error} ({self._left()})") from None
        self.done += n
        return max(seconds - compiling, 1e-6) / n, records, by_client

    def _left(self) -> str:
        return f"the last checkpoint is of round {self.saved}" if self.saved else "there is no checkpoint yet"


def _peak_memory(simulation: Simulation) -> int:
    """Bytes, of the device if it tells, else of this process."""
    stats = simulation.spec.mesh.local_devices[0].memory_stats() or {}
    scale = 1 if sys.platform == "darwin" else 1024
    return stats.get("peak_bytes_in_use") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
