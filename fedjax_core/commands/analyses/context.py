"""The context of an analysis: its runs, each loaded once, its options, and where its files go."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_core import experiment
from fedjax_core.atomic_files import write_text
from fedjax_core.engine.simulator import Simulator, State
from fedjax_core.reporting import analysis
from fedjax_core.reporting.terminal import markdown_row

TRUST = "a run that somebody else began may import the modules and files that its config names"


class AnalysisContext(NamedTuple):
    """Runs and options of analyses, as the command line has them.

    Attributes:
      scores: of curves: the first that a run has is taken; none: its main one, see `figures.draw_curves`.
      model: a predictor; None: see `analysis.choose_scored_model`.
      features: which of the model's outputs.
      rows: examples per client, in the plane and in attention; None: `EMBEDDED`, `ATTENDED`.
      centroids: whether tsne also shows the mean of each client's features of each class.
      scope: of accuracies by class and by client: "own", each client's own test rows, or "all", the whole test set.
      span, points: of the landscape, the plane and the drift.
      beams: with which a language model writes its answers; 1: greedily.
      labels: what figures and tables call the runs, one for each; for curves also one for each line. None: their directories.
      axis: of curves: "rounds", or "seconds" of simulated time.
      trust: whether code that configs name may be imported, for runs that were not begun here.
    """

    runs: Sequence[Path]
    out: Path
    scores: Sequence[str] = ()
    model: str | None = None
    features: str = "features"
    clients: Sequence[int] | None = None
    rows: int | None = None
    centroids: bool = False
    scope: str = "own"
    span: float = 1.0
    points: int = 21
    seed: int = 0
    beams: int = 1
    labels: Sequence[str] | None = None
    formats: Sequence[str] = ("png",)
    trust: bool = False
    axis: str = "rounds"

    @property
    def first_client(self) -> int:
        """The client of an analysis that shows one."""
        return self.clients[0] if self.clients else 0


class RunLoader:
    """A loader of runs as simulations, each once. Only the last one has its data and frozen arrays on devices."""

    def __init__(self, trust: bool = False):
        self._trust = trust
        self._runs: dict[Path, tuple[Any, Simulator, State]] = {}
        self._last: Path | None = None
        self._accuracies: dict[tuple, tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, run: Path) -> tuple[Simulator, State]:
        return self.load_with_config(run)[1:]

    def load_with_config(self, run: Path) -> tuple[Any, Simulator, State]:
        """Returns the run's config, simulation and state."""
        if self._last not in (None, run):
            self._runs[self._last][1].release()
        if run not in self._runs:
            self._runs[run] = experiment.load(run, trust=self._trust)
        self._last = run
        return self._runs[run]

    def accuracies(self, run: Path, model: str | None, scope: str = "own") -> tuple[np.ndarray, np.ndarray]:
        """Returns `analysis.compute_class_accuracies`, computed once for all analyses."""
        key = run, model, scope
        if key not in self._accuracies:
            self._accuracies[key] = analysis.compute_class_accuracies(*self(run), model, scope)
        return self._accuracies[key]


def run_labels(context: AnalysisContext) -> list[str]:
    """Returns the label of each run."""
    if context.labels is None:
        from fedjax_core.reporting import plots  # loads matplotlib

        return plots.labels_of(context.runs)
    if len(context.labels) != len(context.runs) or len(set(context.labels)) < len(context.runs):
        given = ", ".join(map(repr, context.labels))
        raise ValueError(f"--labels has {given} for {len(context.runs)} runs; give each run one of its own")
    return list(context.labels)


def runs_with_prefixes(context: AnalysisContext) -> list[tuple[Path, str]]:
    """Returns each run with the prefix of its files' names; "" for a single run."""
    names = run_labels(context) if len(context.runs) > 1 else [""]
    prefixes = [f"{name.replace('/', '-')}-" if name else "" for name in names]
    if repeated := sorted({prefix for prefix in prefixes if prefixes.count(prefix) > 1}):
        same = ", ".join(repr(name) for name, prefix in zip(names, prefixes, strict=True) if prefix == repeated[0])
        raise ValueError(f"--labels: files of {same} would all begin with {repeated[0]!r}; give each run a label of its own")
    return list(zip(context.runs, prefixes, strict=True))


def features_suffix(context: AnalysisContext) -> str:
    """Returns the suffix of a file's name for other features than the head's."""
    return "" if context.features == "features" else f"_{context.features}"


def write_markdown(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    """Writes rows as a Markdown table."""
    cells = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)] if rows else []
    write_text(path, "\n".join(markdown_row(*row) for row in cells) + "\n")
    return path
