"""What an analysis is asked for: runs, loaded once, and where its files go."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedjax_core import experiment
from fedjax_core.atomic_files import write_text
from fedjax_core.engine.simulator import Simulation, State
from fedjax_core.reporting import analysis, plots

TRUST = "a run that somebody else began may import the modules and files that its config names"


class Asked(NamedTuple):
    """What the command line asks for.

    Attributes:
      runs: directories of runs.
      out: where the files go.
      scores: for curves: of each run the first that it has; none: its main one, see `figures.curves`.
      model: a predictor; None: see `analysis.model_of`.
      features: which of the model's outputs.
      clients: whose features; None: all.
      rows: examples per client, in the plane and in attention; None: `EMBEDDED`, `ATTENDED`.
      centroids: whether tsne also shows the mean of each client's features of each class.
      scope: of accuracies by class and by client: "own", each client's own test rows, or "all", the whole test set.
      span, points: of the landscape and the plane.
      seed: of the embedding and of the landscape's directions.
      beams: with which a language model writes its answers; 1: greedily.
      labels: what figures and tables call the runs, one for each; for curves also one for each line. None: their directories.
      formats: of figures, such as "png", "pdf", "svg".
      trust: whether code that configs of runs name may be imported, though they were not begun here.
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


class Loaded:
    """Runs as simulations, each loaded once; only the last one that was asked for has its data and frozen arrays on the devices."""

    def __init__(self, trust: bool = False):
        self._trust = trust
        self._runs: dict[Path, tuple[Any, Simulation, State]] = {}
        self._last: Path | None = None
        self._accuracies: dict[tuple, tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, run: Path) -> tuple[Simulation, State]:
        return self.whole(run)[1:]

    def whole(self, run: Path) -> tuple[Any, Simulation, State]:
        """With the config."""
        if self._last not in (None, run):
            self._runs[self._last][1].release()
        if run not in self._runs:
            self._runs[run] = experiment.load(run, trust=self._trust)
        self._last = run
        return self._runs[run]

    def accuracies(self, run: Path, model: str | None, scope: str = "own") -> tuple[np.ndarray, np.ndarray]:
        """`analysis.class_accuracies`, computed once for all analyses that want it."""
        asked = run, model, scope
        if asked not in self._accuracies:
            self._accuracies[asked] = analysis.class_accuracies(*self(run), model, scope)
        return self._accuracies[asked]


def labels(asked: Asked) -> list[str]:
    """What each run is called.

    Raises:
      ValueError: the labels that are asked for are not one for each run.
    """
    if asked.labels is None:
        return plots.labels_of(asked.runs)
    if len(asked.labels) != len(asked.runs) or len(set(asked.labels)) < len(asked.runs):
        given = ", ".join(map(repr, asked.labels))
        raise ValueError(f"--labels has {given} for {len(asked.runs)} runs; give each run one of its own")
    return list(asked.labels)


def named(asked: Asked) -> list[tuple[Path, str]]:
    """Runs, each with the beginning of its files' names: nothing if there is one."""
    names = labels(asked) if len(asked.runs) > 1 else [""]
    return [(run, f"{name.replace('/', '-')}-" if name else "") for run, name in zip(asked.runs, names, strict=True)]


def drawn(asked: Asked, name: str, draw: Callable[..., Figure], *shown: Any, **how: Any) -> list[Path]:
    """Draws a figure into the asked formats.

    Args:
      asked: where, and in which formats.
      name: of the files, without a suffix.
      draw: a function of `plots`; gets `shown`, the path as `path`, and `how`.

    Returns:
      The files.
    """
    files = [asked.out / f"{name}.{kind}" for kind in asked.formats]
    figure = draw(*shown, path=files[0], **how)
    for file in files[1:]:
        plots.write(figure, file)
    return files


def of_features(asked: Asked) -> str:
    """The end of a file's name, where other features than the head's are looked at."""
    return "" if asked.features == "features" else f"_{asked.features}"


def markdown(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    """Writes rows as a Markdown table."""
    cells = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)] if rows else []
    lines = ["| " + " | ".join(text.replace("|", r"\|") for text in row) + " |" for row in cells]
    write_text(path, "\n".join(lines) + "\n")
    return path
