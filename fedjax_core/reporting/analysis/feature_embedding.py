"""Features of examples as points: of several clients, with their centroids, in the plane; and what they attend to."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_core.engine.simulator import Simulation, State, View
from fedjax_core.reporting.analysis.client_models import (
    chosen,
    longest,
    model_of,
    need_classes,
    output,
    outputs,
    rows_at_once,
    spaced,
    take,
)


class Points(NamedTuple):
    """Features of examples of several clients.

    Attributes:
      features: [n, D].
      classes: [n] labels.
      clients: [n] whose model made them.
    """

    features: np.ndarray
    classes: np.ndarray
    clients: np.ndarray


def features(
    simulation: Simulation,
    state: State,
    model: str | None = None,
    key: str = "features",
    part: str = "test",
    clients: Sequence[int] | None = None,
    most: int = 50,
) -> Points:
    """Features that clients' models make of their own examples.

    Args:
      simulation: of the run.
      state: to look at.
      model: a predictor.
      key: which of its outputs.
      part: "test" or "train": which of a client's rows.
      clients: whose; None: all.
      most: rows of each client, evenly spaced over its own.

    Raises:
      ValueError: none of the clients has such rows, the models' features have different lengths, or there is no such output.
    """
    need_classes(simulation, "the plane of features")
    model = model_of(simulation, state, model)
    found, data = [], simulation.spec.data
    (x, y), index = (data.test, data.test_index) if part == "test" else (data.train, data.train_index)
    for i in range(data.clients) if clients is None else clients:
        rows = spaced(index[i], most)
        if len(rows):
            made = outputs(simulation.view(state, i), model, take(x, rows), rows_at_once(simulation), min(most, longest(index)))
            found.append(Points(output(made, key), y[rows], np.full(len(rows), i)))
    if not found:
        whose = "no client" if clients is None else f"none of clients {', '.join(map(str, clients))}"
        raise ValueError(f"{whose} has {part} examples of its own, so there are no features to show; choose other clients or data")
    widths = {points.features.shape[1] for points in found}
    if len(widths) != 1:
        raise ValueError(f"features of lengths {sorted(widths)} cannot be drawn together; choose clients of one architecture")
    return Points(*map(np.concatenate, zip(*found, strict=True)))


def with_centroids(points: Points) -> Points:
    """The points, and after them the mean of each client's of each class that it has."""
    pairs, of = np.unique(np.stack([points.clients, points.classes], 1), axis=0, return_inverse=True)
    means = np.stack([points.features[of.reshape(-1) == i].mean(0) for i in range(len(pairs))])
    added = (means, pairs[:, 1], pairs[:, 0])
    return Points(*(np.concatenate([old, new]) for old, new in zip(points, added, strict=True)))


def tsne(points: np.ndarray, seed: int = 0, perplexity: float = 30.0) -> np.ndarray:
    """[n, D] -> [n, 2] by t-SNE from a start by principal components; the perplexity is lowered where there are few points."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    lowered = min(perplexity, max(1.0, (len(points) - 1) / 3))
    with threadpool_limits(1):  # on a busy machine threads that wait for each other take thirty times as long
        return TSNE(perplexity=lowered, init="pca", random_state=seed).fit_transform(np.asarray(points, np.float32))


def attention(
    simulation: Simulation, state: State, model: str | None = None, client: int = 0, most: int = 20
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Weights with which a client's model attends to the feature of an example and to its prompts.

    Args:
      simulation: of the run.
      state: to look at.
      model: a predictor with outputs named "attention" or "..._attention", such as FedPFT's.
      client: whose model and test examples.
      most: examples, evenly spaced over its own.

    Returns:
      ({output's name: [n, 1 + prompts]}, [n] labels); rows add up to 1.

    Raises:
      ValueError: the model attends to nothing, or the client has no test examples.
    """
    model, view = model_of(simulation, state, model), simulation.view(state, client)
    rows, (x, y) = spaced(simulation.spec.data.test_index[client], most), simulation.spec.data.test
    if not len(rows):
        raise ValueError(f"client {client} has no test examples")
    made = outputs(view, model, take(x, rows), rows_at_once(simulation))
    found = {name: weights for name, weights in made.items() if name.split("_")[-1] == "attention"}
    return found or {"attention": output(made, "attention")}, y[rows]


def class_knowledge(
    simulation: Simulation, view: View, model: str | None = None, key: str = "logits", silu: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """A client's local structural knowledge, as FedSKC defines it: class means of its training rows, c * sigmoid(c).

    Args:
      simulation: of the run.
      view: of the client, with the model that it trained.
      model: a predictor; None: the personal one if there is one.
      key: which of the model's outputs.
      silu: whether c * sigmoid(c) is taken.

    Returns:
      ([k, D], [k]): of the k classes that the client has, and which they are.
    """
    model = chosen(view, model)
    rows = simulation.spec.data.train_index[view.client]
    x, y = simulation.spec.data.train
    made = output(outputs(view, model, take(x, rows), rows_at_once(simulation)), key)
    classes = np.unique(y[rows])
    c = np.stack([made[y[rows] == j].mean(0) for j in classes])
    return c / (1 + np.exp(-c)) if silu else c, classes
