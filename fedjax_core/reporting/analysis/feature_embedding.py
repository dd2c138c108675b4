"""Features of examples of several clients, their centroids and embeddings, and attention weights."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_core.algorithm import select_examples
from fedjax_core.engine.simulator import ClientView, Simulator, State
from fedjax_core.reporting.analysis.client_models import (
    choose_model,
    choose_scored_model,
    compute_outputs,
    eval_batch_size,
    get_output,
    max_examples,
    require_classes,
)
from fedjax_core.reporting.evenly_spaced import space_evenly


class Points(NamedTuple):
    """Features of examples of several clients.

    Attributes:
      features: [n, D].
      classes: [n] labels.
      clients: [n] ids of the clients whose model computed them.
    """

    features: np.ndarray
    classes: np.ndarray
    clients: np.ndarray


def compute_features(
    simulation: Simulator,
    state: State,
    model: str | None = None,
    key: str = "features",
    part: str = "test",
    clients: Sequence[int] | None = None,
    most: int = 50,
) -> Points:
    """Computes features of clients' own examples with their models.

    Args:
      key: which of the model's outputs.
      part: "test" or "train" examples.
      clients: ids; None: all.
      most: number of examples per client, evenly spaced.

    Raises:
      ValueError: no client has such examples, the features have different lengths, or there is no
        such output.
    """
    require_classes(simulation, "the plane of features")
    model = choose_scored_model(simulation, state, model)
    parts, data = [], simulation.spec.data
    (x, y), index = (data.test, data.test_index) if part == "test" else (data.train, data.train_index)
    for i in range(data.clients) if clients is None else clients:
        rows = index[i][space_evenly(len(index[i]), most)]
        if len(rows):
            largest = min(most, max_examples(index))
            predicted = compute_outputs(
                simulation.client_view(state, i), model, select_examples(x, rows), eval_batch_size(simulation), largest
            )
            parts.append(Points(get_output(predicted, key), y[rows], np.full(len(rows), i)))
    if not parts:
        whose = "no client" if clients is None else f"none of clients {', '.join(map(str, clients))}"
        raise ValueError(f"{whose} has {part} examples of its own, so there are no features to show; choose other clients or data")
    widths = {points.features.shape[1] for points in parts}
    if len(widths) != 1:
        raise ValueError(f"features of lengths {sorted(widths)} cannot be drawn together; choose clients of one architecture")
    return Points(*map(np.concatenate, zip(*parts, strict=True)))


def with_centroids(points: Points) -> Points:
    """Appends the mean of the points of each client and class."""
    pairs, inverse = np.unique(np.stack([points.clients, points.classes], 1), axis=0, return_inverse=True)
    means = np.stack([points.features[inverse.reshape(-1) == i].mean(0) for i in range(len(pairs))])
    added = (means, pairs[:, 1], pairs[:, 0])
    return Points(*(np.concatenate([old, new]) for old, new in zip(points, added, strict=True)))


def embed_by_tsne(points: np.ndarray, seed: int = 0) -> np.ndarray:
    """Embeds points [n, D] in the plane by t-SNE; few points lower the perplexity."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, max(1.0, (len(points) - 1) / 3))
    with threadpool_limits(1):  # threads that wait for each other take thirty times as long on a busy machine
        return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(np.asarray(points, np.float32))


def compute_attention(
    simulation: Simulator, state: State, model: str | None = None, client: int = 0, most: int = 20
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Computes the attention weights of a client's model to an example's feature and to its prompts.

    Args:
      model: a predictor with outputs named "attention" or "..._attention", such as FedPFT's.
      most: number of the client's test examples, evenly spaced.

    Returns:
      ({output's name: [n, 1 + prompts]}, [n] labels); rows sum to 1.

    Raises:
      ValueError: the model has no attention output, or the client has no test examples.
    """
    model, view = choose_scored_model(simulation, state, model), simulation.client_view(state, client)
    own, (x, y) = simulation.spec.data.test_index[client], simulation.spec.data.test
    rows = own[space_evenly(len(own), most)]
    if not len(rows):
        raise ValueError(f"client {client} has no test examples")
    predicted = compute_outputs(view, model, select_examples(x, rows), eval_batch_size(simulation))
    weights = {name: value for name, value in predicted.items() if name.split("_")[-1] == "attention"}
    return weights or {"attention": get_output(predicted, "attention")}, y[rows]


def collect_class_knowledge(simulation: Simulator, view: ClientView, model: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Computes a client's structural knowledge (FedSKC): its class means c, as c * sigmoid(c).

    Returns:
      (knowledge [k, D], classes [k]) of the k classes that the client trains on.

    Raises:
      ValueError: the client has no training examples.
    """
    model = choose_model(view, model)
    rows = simulation.spec.data.train_index[view.client]
    if not len(rows):
        raise ValueError(f"client {view.client} has no training examples, so it knows no class; --clients takes others")
    x, y = simulation.spec.data.train
    values = get_output(compute_outputs(view, model, select_examples(x, rows), eval_batch_size(simulation)), "logits")
    classes = np.unique(y[rows])
    c = np.stack([values[y[rows] == j].mean(0) for j in classes])
    return c / (1 + np.exp(-c)), classes
