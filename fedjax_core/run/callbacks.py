"""Callbacks: objects that a run tells what happens, and that may ask it to stop.

A callback has any of these methods, and is called in process 0 only:

    start(started: Started)                   before the first round of this start
    round(record) -> None | bool | str        after each round, with its flat record (names in `reporter.py`)
    evaluation(record) -> None | bool | str   after `round`, where the record has scores of an evaluation
    end(ended: Ended)                         at the end, however it comes

True, or a text that says why, asks the run to stop: it does so after the rounds that were computed together (at most two seconds'
worth), leaves a checkpoint, and the same command goes on from there. A callback reads the state by `started.look`: a client's
models, scores by client. It changes no number: each is given copies of its own.

    class Patience:
        def __init__(self, rounds: int = 10):
            self.rounds, self.best, self.at = rounds, 0.0, 0

        def evaluation(self, record):
            if record["test/global/accuracy"] > self.best:
                self.best, self.at = record["test/global/accuracy"], record["round"]
            return record["round"] - self.at >= self.rounds and f"no better accuracy in {self.rounds} rounds"

Given as `run(..., callbacks=[Patience(20)])`, or in a config as `callbacks = ("my_package.stopping:Patience(rounds=20)",)`; loggers
are in `fedjax_core/reporting/loggers.py`.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_core import code_fingerprint, registry
from fedjax_core.reporting import loggers
from fedjax_core.run.state_reader import Look

METHODS = ("start", "round", "evaluation", "end")


class Started(NamedTuple):
    """What a callback is told at the start.

    Attributes:
      directory: of the run.
      config: as plain values.
      rounds: how many the run has in all.
      done: how many of them were done before this start.
      look: what the run's state is at any time between rounds, to read only (`state_reader.py`): a client's models, scores by
        client.
    """

    directory: Path
    config: Mapping[str, Any]
    rounds: int
    done: int
    look: Look | None = None


class Ended(NamedTuple):
    """What a callback is told at the end.

    Attributes:
      status: "finished"; "stopped", after a signal or by a callback: to be gone on with; or "failed".
      done: rounds that were done.
      why: what stopped it, or the error; "" if it is finished.
      summary: as in summary.json; empty unless it is finished or a callback stopped it.
    """

    status: str
    done: int
    why: str
    summary: Mapping[str, Any]


def find(spec: str) -> registry.Found:
    """What makes a callback, by its spec.

    Raises:
      ValueError, TypeError: there is none of that name, or an option is not what it may be.
    """
    return registry.find("callback", spec, loggers.CALLBACKS, field="callbacks")


class CallbackFailed(RuntimeError):
    """A callback raised; the run has left a checkpoint."""


class Callbacks:
    """All callbacks of one run.

    Attributes:
      asked: who asked to stop, and why; "" while nobody has.
      failed: which of them raised, and what; None while none has.
    """

    def __init__(self, callbacks: Sequence[Any], writer: bool = True):
        """Finds those that are given by name.

        Args:
          callbacks: objects, or specs of such: "wandb(project='x')", "package.module:name(option=...)"; or what `find` found.
          writer: whether this process calls them.

        Raises:
          TypeError: one of them has none of the methods, or an option that there is not.
          ValueError: there is none of that name, or it cannot be made.
        """
        found = [find(given) if isinstance(given, str) else given for given in callbacks]
        callbacks = [given() if isinstance(given, registry.Found) else given for given in found]
        for place, callback in enumerate(callbacks):
            if not any(callable(getattr(callback, name, None)) for name in METHODS) or isinstance(callback, type):
                raise TypeError(
                    f"callbacks[{place}]={callback!r:.80} is no object with one of the methods {', '.join(METHODS)}; "
                    "see fedjax_core/run/callbacks.py"
                )
        self._callbacks = tuple(callbacks) if writer else ()
        self.asked, self.failed = "", None

    def _tell(self, callback: Any, method: str, argument: Any) -> None:
        function, name = getattr(callback, method, None), named(callback)
        if function is None:
            return
        try:
            answer = function(copy.deepcopy(argument))  # what it changes there is nobody else's
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # somebody else's code: whatever it raises, sys.exit() too, the run ends with its name
            said = f"{type(error).__name__}: {error}"
            where = code_fingerprint.raised_in(error)
            place = f" (in {where})" if where and where not in said else ""
            self.failed = CallbackFailed(f"callback {name} failed in {method}(): {said}{place}")
            self.failed.__cause__ = error
            return
        if method not in ("round", "evaluation") or answer is None or answer is False:
            return
        if isinstance(answer, str) or answer is True:
            self.asked = self.asked or (name if answer is True else f"{name}: {answer}")
        else:
            text = f"callback {name}: {method}() gave {answer!r:.80}; it may give None, True, or a text that says why to stop"
            self.failed = CallbackFailed(text)

    def start(self, started: Started) -> None:
        """Raises CallbackFailed if one of them raised: nothing has been computed yet."""
        for callback in self._callbacks:
            self._tell(callback, "start", started)
            if self.failed is not None:
                raise self.failed

    def rounds(self, records: Sequence[Mapping[str, Any]], evaluated: bool) -> None:
        """After the rounds of `records`, the last of which was evaluated or not; see `asked` and `failed`."""
        told = [("round", record) for record in records] + [("evaluation", record) for record in records[-1:] if evaluated]
        for method, record in told:
            for callback in self._callbacks:
                if self.failed is None:
                    self._tell(callback, method, record)

    def end(self, ended: Ended) -> None:
        """Tells all of them, even if one has raised; what they raise now is in `failed`."""
        for callback in self._callbacks:
            self._tell(callback, "end", ended)


def named(callback: Any) -> str:
    """What messages call it."""
    return type(callback).__name__
