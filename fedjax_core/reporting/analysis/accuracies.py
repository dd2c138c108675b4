"""Accuracies by client and by class."""

import numpy as np

from fedjax_core.engine.simulator import Simulation, State
from fedjax_core.reporting.analysis.client_models import longest, model_of, need_classes, output, outputs, rows_at_once, take


def class_accuracies(
    simulation: Simulation, state: State, model: str | None = None, scope: str = "own"
) -> tuple[np.ndarray, np.ndarray]:
    """Correct predictions and test examples by client and class.

    Args:
      simulation: of the run.
      state: to look at.
      model: a predictor.
      scope: "own", each client's own test rows, or "all", the whole test set.

    Returns:
      Two arrays [N, K] of counts; their sums over classes give the accuracies per client, over clients those per class.
    """
    need_classes(simulation, "the analysis of accuracies by class")
    model = model_of(simulation, state, model)
    data, batch = simulation.spec.data, rows_at_once(simulation)
    x, y = data.test
    everything = np.arange(len(y))
    most = longest(data.test_index) if scope == "own" and model != "global" else len(y)
    correct, total = np.zeros((2, data.clients, data.classes), np.int64)

    def right(client: int, rows: np.ndarray) -> np.ndarray:
        made = outputs(simulation.view(state, client), model, take(x, rows), batch, most)
        return output(made, "logits").argmax(-1) == y[rows]

    whole = right(0, everything) if model == "global" and len(y) else None  # one model for all: it answers each row once
    for i in range(data.clients):
        rows = data.test_index[i] if scope == "own" else everything
        if len(rows):
            total[i] = np.bincount(y[rows], minlength=data.classes)
            correct[i] = np.bincount(y[rows][right(i, rows) if whole is None else whole[rows]], minlength=data.classes)
    return correct, total


def client_accuracies(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
    """[N] from what `class_accuracies` gives; NaN for a client without test examples."""
    n = total.sum(1)
    return np.where(n > 0, correct.sum(1) / np.maximum(n, 1), np.nan)
