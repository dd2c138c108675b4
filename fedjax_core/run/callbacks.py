"""Callbacks: objects that a run informs of its progress, and that may ask it to stop.

A callback has any of these methods, which are called in process 0 only:

    start(started: Started)                   before the first round of this start
    round(record) -> None | bool | str        after each round, with its flat record (`reporter.py`)
    evaluation(record) -> None | bool | str   after `round`, if the round was evaluated
    end(ended: Ended)                         at the end, also after an error

True, or a string that gives the reason, asks the run to stop. It stops after the rounds of the
current dispatch (at most two seconds) and leaves a checkpoint; the same command resumes it. A
callback reads the state by `started.look`: a client's models, scores by client. It changes no
number, because it gets copies.

    class Patience:
        def __init__(self, rounds: int = 10):
            self.rounds, self.best, self.best_round = rounds, 0.0, 0

        def evaluation(self, record):
            if record["test/global/accuracy"] > self.best:
                self.best, self.best_round = record["test/global/accuracy"], record["round"]
            if record["round"] - self.best_round >= self.rounds:
                return f"no better accuracy in {self.rounds} rounds"

Pass one as `experiment.execute(..., callbacks=[Patience(20)])`, or name it in a config:
`callbacks = ("my_package.stopping:Patience(rounds=20)",)`. Loggers are in
`fedjax_core/reporting/loggers.py`.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_core import code_fingerprint, registry
from fedjax_core.engine.client_view import ClientView
from fedjax_core.engine.simulator import Simulator, State
from fedjax_core.reporting import loggers

METHODS = ("start", "round", "evaluation", "end")


class StateReader:
    """The read-only state of a run between rounds.

    A callback has it from `Started.look`, and may use it in `start`, `round` and `evaluation`. It
    shows the newest state: if several rounds were computed together, that after the last of them.
    """

    def __init__(self, simulator: Simulator, newest: Callable[[], tuple[State, int]]):
        """Stores where to read.

        Args:
          newest: () -> (state, rounds done).
        """
        self._simulator, self._newest = simulator, newest

    def __deepcopy__(self, memo: dict[int, Any]) -> "StateReader":
        """Returns itself. It only reads, and a copy would copy the simulation."""
        return self

    @property
    def done(self) -> int:
        """Rounds done."""
        return self._newest()[1]

    @property
    def clients(self) -> int:
        """Number of clients N, without unseen ones."""
        return self._simulator.spec.population

    def view(self, client: int) -> ClientView:
        """Returns the state and models of one client: `view.predict(name, view.holds[name],
        x)`.

        Raises:
          ValueError: there is no such client, or the run has several processes.
        """
        self._check_alone()
        view = self._simulator.client_view(self._newest()[0], client)
        task = dataclasses.replace(view.task, frozen=_read_only(view.task.frozen), public=_read_only(view.task.public))
        return view._replace(task=task, holds={name: _read_only(model) for name, model in view.holds.items()})

    def scored_clients(self) -> np.ndarray:
        """Returns the ids of the clients that are scored, sorted: all, or
        `config.evaluation.clients` of them.
        """
        return self._simulator.spec.scored_clients()

    def client_scores(self) -> dict[str, dict[str, dict[str, np.ndarray]]]:
        """Returns scores by client, {scope: {model: {score: [E]}}}, in the order of
        `scored_clients`.

        Scopes are "own" and "all" of `config.evaluation.scopes`, and "validation" if clients have
        such examples. A client without examples of a scope has NaN. A call takes as long as an
        evaluation.
        """
        self._check_alone()
        sums = self._simulator.client_scores(self._newest()[0])
        return {
            scope: {model: {score: _mean(*pair) for score, pair in pairs.items()} for model, pairs in models.items()}
            for scope, models in sums.items()
        }

    def _check_alone(self) -> None:
        """Raises ValueError in a run of several processes, which would all have to call."""
        if jax.process_count() > 1:
            raise ValueError(
                f"the state of a run on {jax.process_count()} processes cannot be read by a callback, which is called "
                "in one of them; experiment.load reads its checkpoints"
            )


def _mean(total: Any, weight: Any) -> np.ndarray:
    """Returns sums [E] divided by weights [E]; NaN where the weight is zero."""
    weight = np.asarray(weight, np.float64)
    mean = np.full(weight.shape, np.nan)
    np.divide(np.asarray(total, np.float64), weight, out=mean, where=weight > 0)
    return mean


def _read_only(tree: Any) -> Any:
    """Returns read-only views of the arrays of a tree."""

    def lock(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            leaf = leaf.view()
            leaf.flags.writeable = False
        return leaf

    return jax.tree.map(lock, tree)


class Started(NamedTuple):
    """What a callback gets at the start.

    Attributes:
      directory: the run's.
      config: all settings, as in config.json.
      rounds: of the whole run.
      done: rounds done before this start.
      look: reads the run's state at any time between rounds: a client's models,
        scores by client.
    """

    directory: Path
    config: Mapping[str, Any]
    rounds: int
    done: int
    look: StateReader | None = None


class Ended(NamedTuple):
    """What a callback gets at the end.

    Attributes:
      status: "finished"; "stopped", by a signal or a callback, to be resumed; or "failed".
      done: rounds done.
      why: what stopped the run, or the error; "" if it is finished.
      summary: as in summary.json; empty unless the run is finished or a callback stopped it.
    """

    status: str
    done: int
    why: str
    summary: Mapping[str, Any]


def find_callback(spec: str) -> registry.ResolvedSpec:
    """Returns the constructor of a callback, by its spec.

    Raises:
      ValueError, TypeError: the name or an option does not exist, or a value is not allowed.
    """
    return registry.resolve_spec("callback", spec, loggers.CALLBACKS, field="callbacks")


class CallbackFailed(RuntimeError):
    """A callback raised; the run has left a checkpoint."""


class Callbacks:
    """All callbacks of one run.

    Attributes:
      stop_reason: which callback stopped the run, and why; "" while none has.
      failed: the error of the first callback that raised; None while none has.
    """

    def __init__(self, callbacks: Sequence[Any], writer: bool = True):
        """Makes those that are specs.

        Args:
          callbacks: objects, specs ("wandb(project='x')", "package.module:name(option=...)"), or
            what `find_callback` returns.
          writer: whether this process calls them.

        Raises:
          TypeError: one of them has none of the methods, or gets an unknown option.
          ValueError: a name is unknown, or a callback's constructor fails.
        """
        resolved = [find_callback(given) if isinstance(given, str) else given for given in callbacks]
        instances = [given() if isinstance(given, registry.ResolvedSpec) else given for given in resolved]
        for index, callback in enumerate(instances):
            has_method = any(callable(getattr(callback, name, None)) for name in METHODS)
            if not has_method or isinstance(callback, type):
                raise TypeError(
                    f"callbacks[{index}]={callback!r:.80} is no object with one of the methods "
                    f"{', '.join(METHODS)}; see fedjax_core/run/callbacks.py"
                )
        self._callbacks = tuple(instances) if writer else ()
        self._has_ended = False
        self.stop_reason, self.failed = "", None

    def _call(self, callback: Any, method: str, argument: Any) -> None:
        function, name = getattr(callback, method, None), type(callback).__name__
        if function is None:
            return
        try:
            answer = function(copy.deepcopy(argument))  # a callback may change what it gets
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # user code may raise anything, as by sys.exit()
            message = f"{type(error).__name__}: {error}"
            line = code_fingerprint.describe_origin(error)
            place = f" (in {line})" if line and line not in message else ""
            self.failed = CallbackFailed(f"callback {name} failed in {method}(): {message}{place}")
            self.failed.__cause__ = error
            return
        answer = bool(answer) if isinstance(answer, np.bool_) else answer  # of a comparison of NumPy's numbers
        if method not in ("round", "evaluation") or answer is None or answer is False:
            return
        if isinstance(answer, str) or answer is True:
            self.stop_reason = self.stop_reason or (name if answer is True else f"{name}: {answer}")
        else:
            self.failed = CallbackFailed(
                f"callback {name}: {method}() returned {answer!r:.80}; allowed are None, True, or a string that says why to stop"
            )

    def start(self, started: Started) -> None:
        """Calls `start`.

        Raises:
          CallbackFailed: a callback raised; no round has begun.
        """
        for callback in self._callbacks:
            self._call(callback, "start", started)
            if self.failed is not None:
                raise self.failed

    def rounds(self, records: Sequence[Mapping[str, Any]], evaluated: bool) -> None:
        """Calls `round` with each record, and `evaluation` with the last one if it was evaluated.

        Sets `stop_reason` and `failed`.
        """
        calls = [("round", record) for record in records]
        calls += [("evaluation", record) for record in records[-1:] if evaluated]
        for method, record in calls:
            for callback in self._callbacks:
                if self.failed is None:
                    self._call(callback, method, record)

    def end(self, ended: Ended) -> None:
        """Calls `end` of all callbacks, also if one raises, which sets `failed`. A second call does
        nothing."""
        if self._has_ended:
            return
        self._has_ended = True
        for callback in self._callbacks:
            self._call(callback, "end", ended)
