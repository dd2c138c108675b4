"""One run between its first and its last round: what the loop (`loop.py`) does with it.

`open_run` opens the directory and restores what it holds. `TrainingRun` has the steps of the loop.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_core import distributed
from fedjax_core.data import federated_data
from fedjax_core.engine import evaluation
from fedjax_core.engine.evaluation_step import ClientScores
from fedjax_core.engine.simulator import Diverged, Simulator, State
from fedjax_core.reporting import client_scores
from fedjax_core.reporting import reporter as report
from fedjax_core.reporting.console import readable_time
from fedjax_core.reporting.summary import collect_history, format_summary
from fedjax_core.run import checkpointing
from fedjax_core.run.callbacks import CallbackFailed, Callbacks, Ended, Started, StateReader
from fedjax_core.run.early_stopping import SELECTED, BestRound, TargetScore
from fedjax_core.run.measurement import measure_time, peak_memory
from fedjax_core.run.settings import Finished, Interrupted, RunSettings
from fedjax_core.run.signals import StopRequest
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import read_json, read_jsonl
from fedjax_core.storage.signature import sign_config
from fedjax_core.storage.workdir import BEGUN_HERE, CHECKPOINTS, CONFIG, METRICS, WorkDir

PROFILE = "profile"
DISPATCH_SECONDS = 2.0  # the longest that Ctrl-C waits for rounds
FAILED_ELSEWHERE = "a callback failed in process 0"  # which calls them
PROGRESS_SECONDS = 5.0  # of an evaluation, before it reports its progress


class _EvaluationStopped(Exception):
    """A signal came in a long evaluation."""


@dataclasses.dataclass(eq=False, repr=False)
class TrainingRun:
    """A run that trains: the steps of the loop.

    Attributes:
      state: after the last round.
      done: rounds done.
      checkpoints, best, target, reporter, callbacks, stop: what the steps write to and ask.
    """

    simulator: Simulator
    workdir: WorkDir
    settings: RunSettings
    state: State
    done: int
    checkpoints: Checkpoints
    best: BestRound
    target: TargetScore
    reporter: report.Reporter
    callbacks: Callbacks
    stop: StopRequest

    def __post_init__(self):
        self._saved_round, self._saved_at = self.done, time.monotonic()
        self._profiled_round = min(self.done + 1, self.settings.rounds - 1) if self.settings.profile else None
        self._max_rounds = 1  # of a dispatch; one at first, because its time is unknown
        self._is_new_best = self._is_ended_by_callback = self._is_stopped = False
        self._unscored: dict[str, Any] | None = None
        self._simulated_seconds = 0.0  # of all rounds done

    # The steps of the loop, in its order.

    def round_boundaries(self) -> Iterator[int]:
        """Yields the rounds after which the rounds pause, until the run is over."""
        while not self.is_over:
            yield self.next_stop()

    @property
    def is_over(self) -> bool:
        """Whether the last round is done, or early stopping or a callback ended the run before it."""
        return self.done >= self.settings.rounds or bool(self.early_stop_reason) or self._is_ended_by_callback

    @property
    def early_stop_reason(self) -> str:
        """Why the run ends before its last round; "" if it does not."""
        return self.target.reason or self.best.exhausted_reason

    def next_stop(self) -> int:
        """Returns the next evaluated round, or an earlier one that the profile or the time asks for."""
        if self.done == self._profiled_round:
            return self.done + 1
        every = self.settings.eval_every
        eval_round = min(self.settings.rounds, (self.done // every + 1) * every)
        return min(eval_round, self.done + self._max_rounds)

    def is_eval_round(self, round_num: int) -> bool:
        """Returns whether a round is evaluated: every `eval_every`-th, and the last."""
        return round_num % self.settings.eval_every == 0 or round_num == self.settings.rounds

    def scores_clients_in(self, round_num: int) -> bool:
        """Returns whether a round scores its clients right after their training (the scope "post_local")."""
        return self.is_eval_round(round_num) and "post_local" in self.simulator.spec.evaluation.scopes

    def train_to(self, stop_round: int) -> list[dict[str, Any]]:
        """Trains to a round. Returns a record of each round."""
        n, scored = stop_round - self.done, self.scores_clients_in(stop_round)
        trace = self.workdir.path / PROFILE if self.workdir.writer and self.done == self._profiled_round else None
        return self.accept_rounds(*measure_time(lambda: self.simulator.run_rounds(self.state, n, scored), trace))

    def accept_rounds(
        self, result: tuple[State, list[dict[str, Any]]], seconds: float, compile_seconds: float
    ) -> list[dict[str, Any]]:
        """Takes the state after some rounds, and completes their records by time and privacy."""
        self.state, records = result
        n, privacy = len(records), self.settings.privacy
        for record in records:
            if "simulated_seconds" in record:
                self._simulated_seconds += record["simulated_seconds"]
                record["simulated_seconds_total"] = self._simulated_seconds
            record |= {"seconds": seconds / n, "compile_seconds": compile_seconds / n}
            record |= {} if privacy is None else {"privacy/epsilon": privacy.epsilon(int(record["round"]))}
        self._max_rounds = _rounds_per_dispatch(max(seconds - compile_seconds, 1e-6) / n)
        return records

    def complete(self, records: list[dict[str, Any]]) -> None:
        """Does what follows these rounds: an evaluation if one is due, their records, a checkpoint if one is due."""
        by_client = self.evaluate(records) if self.is_eval_round(records[-1]["round"]) else None
        self.log(records, by_client)
        self.checkpoint_if_due()

    def evaluate(self, records: list[dict[str, Any]]) -> ClientScores | None:
        """Adds the scores of an evaluation to the last record. Returns the scores of single clients, if there are any.

        Raises:
          Interrupted: a signal came in a long evaluation. The records are logged and the state is saved; the next start of the run
            repeats the evaluation.
        """
        try:
            scores, by_client = self._evaluate_after(records[-1]["round"])
        except _EvaluationStopped:
            self._log_records(records)
            self.callbacks.rounds(records[:-1], False)
            self._save()
            raise self._interrupted_in_evaluation() from None
        records[-1] |= scores
        return by_client

    def log(self, records: list[dict[str, Any]], by_client: ClientScores | None = None) -> None:
        """Writes records to the run's files, and passes them on to callbacks and early stopping."""
        self._log_records(records)
        self._update(records, self.is_eval_round(self.done), by_client)

    def checkpoint_if_due(self) -> None:
        """Writes a checkpoint at the end, before a stop, after the best evaluation so far, and every `checkpoint_seconds`.

        All processes do the same: a signal may come to any of them, all else is up to process 0.

        Raises:
          CallbackFailed: a callback raised.
          Interrupted: a signal came.
        """
        is_due = time.monotonic() - self._saved_at >= self.settings.checkpoint_seconds
        has_failed, is_asked = self.callbacks.failed is not None, bool(self.callbacks.stop_reason)
        facts = distributed.allgather([self.stop.is_requested, has_failed, is_asked, is_due, self._max_rounds])
        self._is_stopped = bool(facts[:, 0].any())
        has_failed, self._is_ended_by_callback, is_due = (bool(fact) for fact in facts[0, 1:4])
        self._max_rounds = int(facts[0, 4])
        if self.is_over or self._is_stopped or has_failed or is_due or self._is_new_best:
            self._save()
        if self._is_new_best:  # after the checkpoint, so that a resumed run never begins before its selected round
            self.best.keep(self.state)
        if has_failed:
            self._raise_callback_failed(self.callbacks.failed or CallbackFailed(FAILED_ELSEWHERE))
        if self._is_stopped and self.done < self.settings.rounds:
            raise Interrupted(f"after round {self.done}; the same command resumes from there")

    def finish(self) -> Finished:
        """Writes summary and plots, and ends the callbacks."""
        settings, reporter, callbacks = self.settings, self.reporter, self.callbacks
        early = self.early_stop_reason if self.done < settings.rounds else ""
        ended_by = distributed.broadcast_from_process_0(callbacks.stop_reason) if self.done < settings.rounds and not early else ""
        if early:
            reporter.note(ended=early)
        reporter.note(**{report.ENDED: peak_memory(self.simulator)})  # the mark of a run that ended without an error
        if settings.privacy is not None:
            reporter.note(privacy=settings.privacy.facts() | settings.privacy.spent(self.done))
        summary, drawn, history = reporter.close(), [], {}
        if self.workdir.writer:
            history = collect_history(read_jsonl(self.workdir.path / METRICS))
            reporter.say(format_summary(summary))
            if settings.privacy is not None:
                reporter.say(settings.privacy.describe(self.done))
            if settings.draws:
                from fedjax_core.reporting import plots  # matplotlib must not delay the first round

                drawn = plots.plot_run(self.workdir.path)
                reporter.say(f"plots    {drawn[0].parent}")
        if early:
            reporter.say(f"stopped after round {self.done}: {early}")
        if ended_by:
            reporter.say(f"stopped after round {self.done} by callback {ended_by}; the same command resumes from there")
        callbacks.end(Ended("stopped" if ended_by else "finished", self.done, ended_by, summary))
        if error := _agree_on_failure(callbacks):
            raise CallbackFailed(f"{error} (the run itself is complete)") from error.__cause__
        return Finished(self.state, summary, drawn, history, self._is_stopped, ended_by, self.best.round or None)

    # How a run begins again.

    def resume(self) -> None:
        """Cuts the records to the restored round, and gives the others to early stopping. Does nothing for a new run."""
        self.reporter.resume(self.done)
        records = read_jsonl(self.workdir.path / METRICS) if self.workdir.writer and self.done else []
        self._unscored = distributed.broadcast_from_process_0(self._unscored_record(records))
        simulated = records[-1].get("simulated_seconds_total", 0.0) if records else 0.0
        self._simulated_seconds = distributed.broadcast_from_process_0(simulated)
        self.best.resume(records, self.done)
        self.target.resume(records)
        if distributed.broadcast_from_process_0(self.best.is_missing):
            if self.best.round == self.done:  # killed between its checkpoint and this, or has gone back to this round
                self.best.keep(self.state)
            elif not distributed.broadcast_from_process_0(self.best.round in self.checkpoints.rounds()):
                what = f"round {self.best.round} is the best one so far, and its state is gone"
                self.reporter.say(f"{what}: that of a later round, given up since, had taken its place")

    def _unscored_record(self, records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """Returns the last record, if its round must be evaluated and was not; else None."""
        names = set(evaluation.list_scores(self.simulator.spec))
        if not records or not names or not self.is_eval_round(self.done):
            return None
        return None if names & records[-1].keys() else records[-1]

    def complete_evaluation(self) -> None:
        """Evaluates the last round, if an earlier start was stopped in its evaluation."""
        if self._unscored is None:
            return
        try:
            scores, by_client = self._evaluate_after(self.done)
        except _EvaluationStopped:
            raise self._interrupted_in_evaluation() from None
        self.reporter.add_scores(scores)
        self._update([self._unscored | scores], True, by_client)
        if self._is_new_best:
            self.best.keep(self.state)
        if error := _agree_on_failure(self.callbacks):
            self._raise_callback_failed(error)
        self._is_ended_by_callback = distributed.broadcast_from_process_0(bool(self.callbacks.stop_reason))

    def last_checkpoint(self) -> str:
        """Names the last checkpoint, for an error."""
        return f"the last checkpoint is of round {self._saved_round}" if self._saved_round else "there is no checkpoint yet"

    # What the steps share.

    def _log_records(self, records: list[dict[str, Any]]) -> None:
        self.done = int(records[-1]["round"])
        checkpointing.record_plan(self.simulator, self.workdir)
        self.reporter.log(*records)

    def _update(self, records: Sequence[dict[str, Any]], is_evaluated: bool, by_client: ClientScores | None) -> None:
        """Passes records on to callbacks and early stopping, and writes the scores of single clients."""
        self.callbacks.rounds(records, is_evaluated)
        self._is_new_best = self.best.update(records)
        if is_evaluated:
            self.best.warn_if_undefined(records[-1]["round"])
        self.target.update(records)
        if by_client is not None and self.workdir.writer:
            for name in (client_scores.LAST, client_scores.SELECTED) if self._is_new_best else (client_scores.LAST,):
                client_scores.write_client_scores(
                    self.workdir.path / name, self.done, by_client, self.simulator.spec.data.names_of_all
                )

    def _evaluate_after(self, round_num: int) -> tuple[dict[str, float], ClientScores | None]:
        """Evaluates the state after a round. A long evaluation reports its progress."""
        start, next_report = time.monotonic(), PROGRESS_SECONDS

        def watch(what: str, done: int, total: int) -> None:
            nonlocal next_report
            spent = time.monotonic() - start
            if spent >= next_report:
                progress = f"{done} of {total} {what}, {readable_time(spent)}"
                self.reporter.say(f"evaluation after round {round_num}: {progress}")
                next_report = 2 * spent
            if distributed.any_process(self.stop.is_requested and spent >= DISPATCH_SECONDS):
                raise _EvaluationStopped

        return self.simulator.evaluate(self.state, watch)

    def _save(self) -> None:
        checkpointing.save_checkpoint(self.simulator, self.checkpoints, self.state, self.done, self._saved_round)
        self._saved_round, self._saved_at = self.done, time.monotonic()

    def _interrupted_in_evaluation(self) -> Interrupted:
        return Interrupted(f"in the evaluation after round {self.done}; the same command resumes with it")

    def _raise_callback_failed(self, error: CallbackFailed) -> None:
        raise CallbackFailed(f"{error} ({self.last_checkpoint()})") from error.__cause__


@contextlib.contextmanager
def open_run(
    simulator: Simulator,
    directory: str,
    config: Mapping[str, Any],
    settings: RunSettings,
    stop: StopRequest | None = None,
) -> Iterator[TrainingRun]:
    """Opens a run: its directory, its state from there or new, and its callbacks. An error inside ends the callbacks.

    Args:
      stop: handles the signals of several runs; None: this run handles them.
    """
    best = BestRound(settings.select, settings.patience, Path(directory), simulator)
    target = TargetScore(settings.until, evaluation.list_scores(simulator.spec))
    callbacks = Callbacks(settings.callbacks, writer=jax.process_index() == 0)
    checkpoints = Checkpoints(Path(directory) / CHECKPOINTS, settings.keep_checkpoints, beside=Path(directory) / SELECTED)
    finished = _check_earlier_run(simulator, directory, settings, checkpoints)
    with checkpointing.open_workdir(directory, config, settings.fresh) as workdir:
        reporter = report.Reporter(
            workdir,
            settings.rounds,
            progress=settings.progress,
            targets=settings.targets,
            last_k=settings.last_k,
            select=settings.select,
            console=settings.console,
        )
        checkpointing.check_records(simulator, workdir, settings.run_facts)
        if workdir.restarted:
            reporter.say(f"{directory} is begun anew: what it held of another run is deleted")
        if finished and workdir.resumed:
            reporter.say(f"{directory} has no checkpoint any more: its {finished} rounds are trained again")
        checkpointing.restore_plan(simulator, workdir, settings.is_plan_chosen, reporter)
        workdir.commit_resume()
        if settings.names_code and workdir.writer:
            _sign_config(workdir)
        checkpointing.record_placement(simulator, workdir, reporter)
        with reporter, StopRequest() if stop is None else contextlib.nullcontext(stop) as stop:
            reporter.note(bytes_down=simulator.spec.shapes.down, bytes_up=simulator.spec.shapes.up)
            state, done = _restore_or_init(simulator, directory, settings, checkpoints, reporter)
            run = TrainingRun(simulator, workdir, settings, state, done, checkpoints, best, target, reporter, callbacks, stop)
            del state  # rounds consume it
            if settings.privacy is not None:
                reporter.say(settings.privacy.describe(run.done))
            run.resume()
            try:
                look = StateReader(simulator, lambda: (run.state, run.done))
                with contextlib.suppress(CallbackFailed):  # all processes raise it together
                    callbacks.start(Started(workdir.path, dict(config), settings.rounds, run.done, look))
                if failure := _agree_on_failure(callbacks):
                    raise failure
                run.complete_evaluation()
                yield run
            except BaseException as error:
                if isinstance(error, Diverged):
                    error = Diverged(f"{error} ({run.last_checkpoint()})")
                    error.stopped = stop.is_requested
                status = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
                callbacks.end(Ended(status, run.done, str(error), {}))
                if isinstance(error, Diverged):
                    raise error from None
                raise


def _check_earlier_run(simulator: Simulator, directory: str, settings: RunSettings, checkpoints: Checkpoints) -> int | None:
    """Checks the run in a directory before anything there changes. Returns its rounds if it is over and has no checkpoint.

    Raises:
      ValueError: it has more rounds than this run, or keeps client states elsewhere.
    """
    latest = None if settings.fresh else distributed.broadcast_from_process_0(checkpoints.latest())
    finished = None if latest is not None or settings.fresh else checkpointing.count_finished_rounds(directory)
    finished = distributed.broadcast_from_process_0(finished)
    if max(latest or 0, finished or 0) > settings.rounds:
        raise ValueError(f"rounds={settings.rounds}, but {directory} holds a run of {latest or finished} rounds already")
    if latest is not None:
        checkpointing.check_same_hold(simulator, directory)
    return finished


def _agree_on_failure(callbacks: Callbacks) -> CallbackFailed | None:
    """Returns the error of the first callback that raised in process 0, in the others one without a cause; None if none did."""
    if not distributed.broadcast_from_process_0(callbacks.failed is not None):
        return None
    return callbacks.failed or CallbackFailed(FAILED_ELSEWHERE)


def _sign_config(workdir: WorkDir) -> None:
    """Signs the config as it is written."""
    signature = sign_config(read_json(workdir.path / CONFIG, dict))
    if signature is not None and workdir.get_record(BEGUN_HERE) != {"signature": signature}:
        workdir.record(BEGUN_HERE, {"signature": signature})


def _restore_or_init(
    simulator: Simulator,
    directory: str,
    settings: RunSettings,
    checkpoints: Checkpoints,
    reporter: report.Reporter,
) -> tuple[State, int]:
    """Returns the state of the last checkpoint, or a new one, and the rounds done; says which of the two."""
    latest = distributed.broadcast_from_process_0(checkpoints.latest())
    for line in () if settings.header is None else settings.header():
        reporter.say(line)
    if latest is not None:
        reporter.say(f"resuming {directory} after round {latest}")
        return checkpointing.restore_state(simulator, checkpoints, latest), latest
    reporter.say(federated_data.format_summary(simulator.spec.data))
    if simulator.spec.unseen_skip_reason:
        reporter.say(f"unseen clients are not scored: {simulator.spec.unseen_skip_reason}")
    return simulator.init(settings.seed), 0


def _rounds_per_dispatch(seconds: float) -> int:
    """Returns how many rounds of so many seconds fit `DISPATCH_SECONDS`; at least one."""
    return min(max(int(DISPATCH_SECONDS / seconds), 1), 2**30)
