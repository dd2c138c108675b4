"""What a run takes and what it returns."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_core.engine.simulator import State
from fedjax_core.privacy import ExampleLedger, PrivacyLedger
from fedjax_core.reporting.summary import Series


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a run trains, what it reports and what it keeps.

    Attributes:
      seed: of initialisation, sampling and training.
      eval_every: rounds between evaluations.
      targets: accuracies; the summary has the first round that reached each.
      last_k: the summary's means are over this many last evaluations.
      select: the validation score that selects the best round; None: no round is selected.
      patience: the run ends after this many evaluations without a better one; None: it does not.
      until: the run ends when it reaches a score, "test/global/accuracy >= 0.97"; None: it does not.
      checkpoint_seconds: the least time between checkpoints; the end of a run always has one.
      run_facts: more entries of run.json, such as convolution forms; they must be equal on resume.
      is_plan_chosen: whether the user set the simulator's plan, which then replaces the directory's.
      profile: writes a jax.profiler trace of one round into `profile/`: the second one, because the first one compiles.
      progress, console: see `reporter.Reporter`.
      privacy: what rounds cost; every record and the summary then have epsilon.
      draws: whether it draws its figures at the end.
      header: returns the first lines that the run says; None: none.
      fresh: deletes the run that the directory holds. Without it, that happens where the directory has no checkpoint, and its
        config, data or settings differ.
      names_code: whether the config names code that is not installed; the directory is then signed (`storage/signature.py`).
    """

    seed: int
    rounds: int
    eval_every: int
    targets: tuple[float, ...] = ()
    last_k: int = 10
    select: str | None = None
    patience: int | None = None
    until: str | None = None
    checkpoint_seconds: float = 30.0
    keep_checkpoints: int = 3
    run_facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_plan_chosen: bool = False
    profile: bool = False
    callbacks: Sequence[Any] = ()
    progress: bool | None = None
    console: Callable[[str], None] | None = None
    privacy: PrivacyLedger | ExampleLedger | None = None
    draws: bool = True
    header: Callable[[], Sequence[str]] | None = None
    fresh: bool = False
    names_code: bool = False

    def __post_init__(self):
        """Raises ValueError for a number below 1."""
        for field, value in {
            "rounds": self.rounds,
            "evaluation.every": self.eval_every,
            "evaluation.last_k": self.last_k,
            "checkpoint.keep": self.keep_checkpoints,
        }.items():
            if value < 1:
                raise ValueError(f"{field}={value} must be at least 1")


class Finished(NamedTuple):
    """What a run returns.

    Attributes:
      summary: of all records (`reporting.summary.summarize_records`), also in summary.json.
      history: each score over the rounds: `axes.plot(*history["test/global/accuracy"])`.
      stopped: whether a signal came during the last rounds; the caller must then start no other run.
      ended_by: the callback that ended the run before its last round, and why; "" if none did. The
        same call resumes the run.
      selected: the best round by a validation score, which `experiment.load` restores; None without a selection.
    """

    state: State
    summary: dict[str, Any]
    plots: list
    history: dict[str, Series]
    stopped: bool
    ended_by: str = ""
    selected: int | None = None

    def __repr__(self) -> str:
        scores = {name: series for name, series in self.history.items() if name.startswith("test/") and len(series[0])}
        shown = [f"{name} {values[-1]:.4g} in round {rounds[-1]}" for name, (rounds, values) in [*scores.items()][:2]]
        return f"Finished({', '.join([*shown, f'{len(self.history)} series in .history'])})"


class Interrupted(KeyboardInterrupt):
    """A signal asked the run to stop, and the run left a checkpoint."""
