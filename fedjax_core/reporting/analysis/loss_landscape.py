"""The test loss over planes of parameters."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, Examples, Net, PyTree, find_nets, is_net, select_examples
from fedjax_core.engine.simulator import Simulator, State
from fedjax_core.reporting.analysis.client_models import (
    choose_model,
    choose_scored_model,
    eval_batch_size,
    find_network,
    get_output,
    require_classes,
)
from fedjax_core.reporting.evenly_spaced import space_evenly
from fedjax_core.training import losses, metrics
from fedjax_core.training.adapters import STACKED


class Landscape(NamedTuple):
    """Loss and accuracy [n, n] in a plane, over `steps` [n] in units of the filters' norms.

    `loss[i, j]` is at `steps[j]` along the first direction and `steps[i]` along the second.
    """

    steps: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray


def compute_landscape(
    simulation: Simulator,
    state: State,
    model: str | None = None,
    client: int = 0,
    *,
    span: float = 1.0,
    points: int = 21,
    rows: int = 1000,
    seed: int = 0,
    directions: tuple[PyTree, PyTree] | None = None,
    examples: Examples | None = None,
) -> Landscape:
    """Computes the loss on test data in a plane through a client's model.

    The directions are normal draws, each filter (a kernel's slice along its last axis) scaled to
    the norm of the model's; biases and normalisation are fixed (Li, Xu, Taylor, Studer, Goldstein.
    Visualizing the Loss Landscape of Neural Nets. 2018).

    Args:
      span: the plane extends from -span to span.
      points: along each direction; odd, so that the model itself is one of them.
      rows: of the examples, evenly spaced.
      directions: two lists of params, one per net of `find_nets`; None: drawn.
      examples: others than the test set.

    Raises:
      ValueError: the method's model has no net.
    """
    model = choose_scored_model(simulation, state, model)
    require_classes(simulation, "the landscape")
    view = simulation.client_view(state, client)
    centre = [net.params for net in find_nets(view.holds[model])]
    if not centre:
        raise ValueError(f"model {model!r} predicts with no net of its own, so there is nothing to move")
    if directions is None:
        first, second = jax.random.split(jax.random.key(seed))
        directions = _direction(first, centre), _direction(second, centre)
    x, y = simulation.spec.data.test if examples is None else examples
    chosen = space_evenly(len(y), rows)
    batch = min(eval_batch_size(simulation), len(chosen))
    index = np.pad(chosen, (0, -len(chosen) % batch)).reshape(-1, batch)
    mask = np.arange(index.size).reshape(index.shape) < len(chosen)
    batches = jax.tree.map(lambda a: np.asarray(a)[index], (x, y)), mask

    @jax.jit
    def at(held, holds, directions, place, batches):
        moved = iter(
            jax.tree.map(lambda w, a, b: w + place[0] * a + place[1] * b, [net.params for net in find_nets(holds)], *directions)
        )
        moved_holds = jax.tree.map(lambda leaf: leaf._replace(params=next(moved)) if is_net(leaf) else leaf, holds, is_leaf=is_net)

        def score(entry):
            (x, y), mask = entry
            predicted = view.predict(model, moved_holds, x, held)
            logits, y = get_output(predicted, "logits").astype(jnp.float32), ({"targets": y} | predicted)["targets"]
            rows = losses.cross_entropy_per_example(logits, jnp.maximum(y, 0))
            return metrics.mean_pair(rows, losses.target_mask(y, mask)), metrics.accuracy(logits, y, mask)

        return jax.tree.map(jnp.sum, jax.lax.map(score, batches))

    steps = np.linspace(-span, span, points)
    loss, accuracy = np.zeros((2, points, points))
    for i, down in enumerate(steps):
        for j, across in enumerate(steps):
            of_loss, of_accuracy = at(
                simulation.compiled.device_arrays, view.holds[model], directions, np.array([across, down], np.float32), batches
            )
            loss[i, j], accuracy[i, j] = of_loss[0] / of_loss[1], of_accuracy[0] / of_accuracy[1]
    return Landscape(steps, loss, accuracy)


class Plane(NamedTuple):
    """A plane through a model, and the positions of others in it.

    Attributes:
      directions: two, of length 1: params like the model's.
      places: [n, 2] projections of the others.
      share: [2] fractions of their summed squared distances along each direction.
    """

    directions: tuple[PyTree, PyTree]
    places: np.ndarray
    share: np.ndarray


def find_plane(centre: Net, others: Sequence[Net]) -> Plane:
    """Fits the plane through `centre` nearest to the others, by principal components.

    Raises:
      ValueError: architectures differ, or there are not two directions.
    """
    like = jax.tree.map(jnp.shape, centre.params)
    for net in others:
        if jax.tree.map(jnp.shape, net.params) != like:
            raise ValueError("models of one plane must have the same parameters; choose runs of one architecture and adapter")
    leaves, structure = jax.tree.flatten(centre.params)
    flat = lambda params: np.concatenate([np.ravel(leaf).astype(np.float32) for leaf in jax.device_get(jax.tree.leaves(params))])
    origin = flat(centre.params)
    apart = np.stack([flat(net.params) - origin for net in others])
    values, vectors = np.linalg.eigh(np.einsum("ip,jp->ij", apart, apart).astype(np.float64))
    values, vectors = values[::-1], vectors[:, ::-1]
    if len(values) < 2 or values[1] <= 1e-6 * max(values[0], np.finfo(np.float64).tiny):
        raise ValueError("a plane needs two models beside the central one, which differ from it in two directions")
    both = (vectors[:, :2].T @ apart) / np.sqrt(values[:2, None])  # [2, P]
    bounds = np.cumsum([leaf.size for leaf in leaves])[:-1]
    first, second = (
        structure.unflatten([part.reshape(leaf.shape) for part, leaf in zip(np.split(d, bounds), leaves, strict=True)])
        for d in both
    )
    return Plane((first, second), vectors[:, :2] * np.sqrt(values[:2]), values[:2] / values.sum())


def compute_surroundings(
    simulation: Simulator,
    state: State,
    others: Sequence[Net],
    *,
    span: float = 1.0,
    points: int = 21,
    rows: int = 1000,
    examples: Examples | None = None,
) -> tuple[Landscape, Plane]:
    """Computes the test loss in the plane of the global model and others (FedOA, Figure 3).

    Args:
      others: models with the same parameters, such as clients'.
      span: the surface extends 1.25 span times as far as the farthest of them.
      points, rows, examples: as in `compute_landscape`.

    Returns:
      (surface, plane); the surface's `steps` are distances of parameters.

    Raises:
      ValueError: the method has no global model, or as `find_plane`.
    """
    view = simulation.client_view(state, 0)
    centre = find_network(simulation, view, choose_model(view, "global"))
    fitted = find_plane(centre, others)
    nets, zero = find_nets(view.holds["global"]), lambda net: jax.tree.map(np.zeros_like, net.params)
    if not any(net is centre for net in nets):
        raise ValueError("the global model is put together of several nets, so there is not one to move")
    moved = tuple([d if net is centre else zero(net) for net in nets] for d in fitted.directions)
    reach = 1.25 * span * float(np.abs(fitted.places).max())
    where: Any = {"span": reach, "points": points, "rows": rows, "directions": moved, "examples": examples}
    return compute_landscape(simulation, state, "global", **where), fitted


def compute_drift(
    simulation: Simulator, state: State, clients: Sequence[int], *, span: float, points: int
) -> tuple[dict[str, Landscape], Plane]:
    """Computes losses around the global model and clients' models after local training (FedSKC, Figure 1b).

    Args:
      clients: at least two, which train in the coming round.
      span, points: as in `compute_surroundings`.

    Returns:
      (surfaces, plane): the loss on each client's training examples, "client 3", and on test data,
      "global", all in one plane, which has the clients' models as places. With batch normalisation
      all points have the running statistics of the global model.

    Raises:
      ValueError: a client has no training examples; or as `compute_surroundings`.
    """
    data = simulation.spec.data
    for i in clients:
        if not len(data.train_index[i]):
            raise ValueError(f"client {i} has no training examples, so it has no loss to draw; --clients takes others")
    choose_scored_model(simulation, state, "global")
    local = [find_network(simulation, simulation.client_view(state, i, trained=True), "global") for i in clients]
    own = {f"client {i}": Examples(*select_examples(tuple(data.train), data.train_index[i])) for i in clients}
    around = {
        name: compute_surroundings(simulation, state, local, span=span, points=points, examples=examples)
        for name, examples in (own | {"global": data.test}).items()
    }
    return {name: surface for name, (surface, _) in around.items()}, around["global"][1]


def _direction(key: Array, params: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten_with_path(params)

    def draw(key, path, w):
        names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        stack = int(names[0] in STACKED)  # the blocks of a transformer are one leaf, with their number first
        if w.ndim - stack < 2 or names[-1] in ("scale", "bias"):
            return jnp.zeros_like(w)
        d = jax.random.normal(key, w.shape, w.dtype)
        axes = tuple(range(stack, w.ndim - 1))
        return d * jnp.sqrt(jnp.sum(w**2, axes, keepdims=True) / jnp.sum(d**2, axes, keepdims=True))

    keys = jax.random.split(key, len(leaves))
    return structure.unflatten([draw(k, path, w) for k, (path, w) in zip(keys, leaves, strict=True)])
