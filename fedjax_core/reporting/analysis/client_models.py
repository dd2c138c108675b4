"""A client's models: their names, their outputs on examples, and accuracies by client and class."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_core.algorithm import TARGETS, Net, PyTree, select_examples
from fedjax_core.engine.simulator import ClientView, Simulator, State
from fedjax_core.storage.export_model import find_trained_network

BATCH = 256  # default batch size


def choose_scored_model(simulation: Simulator, state: State, model: str | None = None) -> str:
    """Returns the name of a predictor, None: the default; raises ValueError for an unknown one."""
    return choose_model(simulation.client_view(state, 0), model)


def choose_model(view: ClientView, model: str | None) -> str:
    """Returns the name of a predictor of a client, as `choose_scored_model`."""
    names = list(view.holds)
    if model is None:
        return "personal" if "personal" in names else names[0]
    if model not in names:
        raise ValueError(f"model {model!r} is not one that the method has: {', '.join(names)}")
    return model


def eval_batch_size(simulation: Simulator) -> int:
    """Returns the batch size of analyses: `evaluation.batch`, or `BATCH` if it is None."""
    return simulation.spec.evaluation.batch or BATCH


def compute_outputs(view: ClientView, model: str, x: PyTree, batch: int = BATCH, most: int | None = None) -> dict[str, np.ndarray]:
    """Computes the outputs of a client's model on examples: {"logits": [n, K], ...}.

    Args:
      x: leaves [n, ...].
      most: largest n of several calls, which then share one compiled program; None: n.
    """
    n = len(jax.tree.leaves(x)[0])
    b = min(batch, n if most is None else max(most, 1))
    parts = []
    for start in range(0, n, b):
        rows = np.minimum(np.arange(start, start + b), n - 1)  # one shape, one program
        predicted = view.predict(model, view.holds[model], select_examples(x, rows))
        parts.append(jax.device_get({name: a for name, a in predicted.items() if isinstance(a, jax.Array)}))
    return {name: np.concatenate([part[name] for part in parts])[:n] for name in parts[0]}


def find_network(simulation: Simulator, view: ClientView, model: str) -> Net:
    """Returns the network behind a client's model, which its outputs on a few test examples show."""
    return find_trained_network(view, model, jax.tree.map(lambda a: np.asarray(a[:8]), simulation.spec.data.test.x))


def max_examples(index: Sequence[np.ndarray]) -> int:
    """Returns the number of examples of the largest client."""
    return max(map(len, index), default=0)


def get_output(outputs: Mapping[str, Any], key: str) -> Any:
    """Returns an output of a model; raises ValueError if there is none of this name."""
    if key not in outputs:
        raise ValueError(f"the model has no output {key!r}; it has {', '.join(outputs)}")
    return outputs[key]


def require_classes(simulation: Simulator, what: str) -> None:
    """Raises ValueError if an analysis needs one class per example and the data have other targets."""
    if (kind := simulation.spec.targets) != "classes":
        raise ValueError(f"{what} needs classes, the data have {kind}: {TARGETS[kind]}")


def require_one_class(outputs: Mapping[str, Any], what: str) -> None:
    """Raises ValueError if a model predicts the tokens of texts, which it reads from the examples."""
    if "targets" in outputs:
        raise ValueError(f"{what} needs one class per example, and this model writes texts; the analysis 'rouge' has its answers")


def compute_class_accuracies(
    simulation: Simulator, state: State, model: str | None = None, scope: str = "own"
) -> tuple[np.ndarray, np.ndarray]:
    """Counts correct predictions and test examples by client and class.

    Args:
      scope: "own": each client's test examples; "all": the whole test set.

    Returns:
      (correct, total), each [N, K].
    """
    what = "the analysis of accuracies by class"
    require_classes(simulation, what)
    model = choose_scored_model(simulation, state, model)
    data, batch = simulation.spec.data, eval_batch_size(simulation)
    x, y = data.test
    everything = np.arange(len(y))
    most = max_examples(data.test_index) if scope == "own" and model != "global" else len(y)
    correct, total = np.zeros((2, data.clients, data.classes), np.int64)

    def is_correct(client: int, rows: np.ndarray) -> np.ndarray:
        predicted = compute_outputs(simulation.client_view(state, client), model, select_examples(x, rows), batch, most)
        require_one_class(predicted, what)
        return get_output(predicted, "logits").argmax(-1) == y[rows]

    shared = is_correct(0, everything) if model == "global" and len(y) else None  # one model for all clients
    for i in range(data.clients):
        rows = data.test_index[i] if scope == "own" else everything
        if len(rows):
            total[i] = np.bincount(y[rows], minlength=data.classes)
            mask = is_correct(i, rows) if shared is None else shared[rows]
            correct[i] = np.bincount(y[rows][mask], minlength=data.classes)
    return correct, total


def compute_client_accuracies(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Returns accuracies [N] from counts of `compute_class_accuracies`; NaN without test examples."""
    n = total.sum(1)
    return np.where(n > 0, correct.sum(1) / np.maximum(n, 1), np.nan)


def count_cohort_labels(simulation: Simulator, state: State) -> np.ndarray:
    """Counts the training examples of each class that the cohort of each past round holds, [rounds, K].

    Raises:
      ValueError: the sampler is adaptive, so that a cohort follows from the state of its round.
    """
    require_classes(simulation, "the analysis of cohorts by class")
    data = simulation.spec.data
    table = [data.label_table[cohort].sum(0) for cohort in simulation.past_cohorts(state)]
    return np.array(table).reshape(-1, data.classes)
