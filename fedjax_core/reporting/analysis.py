"""What trained models are like, as numbers; plots.py draws them. All of it works on a `Simulation` and one of its states.

Where a function takes `model`, that is a predictor of the method ("global", "personal"); None: the personal one if there is one.
Clients are looked at one after another, outside of rounds.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_core.algorithm import Array, Net, PyTree
from fedjax_core.engine.simulation import Simulation, State, View
from fedjax_core.learning import losses, metrics
from fedjax_core.storage.export import trained_network
from fedjax_core.task import Model

STEPS = 100  # of L-BFGS, for a convex problem


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


class Landscape(NamedTuple):
    """Loss and accuracy [n, n] over `steps` [n] along two directions from a model, in units of the directions (its filters' norms).

    `loss[i, j]` stands at `steps[j]` along the first direction and `steps[i]` along the second.
    """

    steps: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray


def model_of(simulation: Simulation, state: State, model: str | None = None) -> str:
    """The name of a predictor that the method has: `model` itself, or what None stands for.

    Raises:
      ValueError: the method has no such predictor.
    """
    return _chosen(simulation.view(state, 0), model)


def _chosen(view: View, model: str | None) -> str:
    names = list(view.holds)
    if model is None:
        return "personal" if "personal" in names else names[0]
    if model not in names:
        raise ValueError(f"model {model!r} is not one that the method has: {', '.join(names)}")
    return model


def outputs(view: View, model: str, x: PyTree, batch: int = 256) -> dict[str, np.ndarray]:
    """What a client's model makes of examples: {"logits": [n, K], "features": [n, D], ...}."""
    n = len(jax.tree.leaves(x)[0])
    b = min(batch, n)
    parts = []
    for start in range(0, n, b):
        rows = np.minimum(np.arange(start, start + b), n - 1)  # one shape, one program
        found = view.predict(model, view.holds[model], jax.tree.map(lambda a, rows=rows: np.asarray(a)[rows], x))
        parts.append(jax.device_get({name: a for name, a in found.items() if isinstance(a, jax.Array)}))
    return {name: np.concatenate([part[name] for part in parts])[:n] for name in parts[0]}


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
    model = model_of(simulation, state, model)
    data = simulation.data
    x, y = data.test
    own = scope == "own"
    correct, total = np.zeros((2, data.clients, data.classes), np.int64)
    for i in range(data.clients):
        rows = data.test_index[i] if own else np.arange(len(y))
        if len(rows):
            made = outputs(simulation.view(state, i), model, _take(x, rows), simulation.evaluation.batch)
            logits = _output(made, "logits")
            total[i] = np.bincount(y[rows], minlength=data.classes)
            correct[i] = np.bincount(y[rows][logits.argmax(-1) == y[rows]], minlength=data.classes)
    return correct, total


def client_accuracies(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
    """[N] from what `class_accuracies` gives; NaN for a client without test examples."""
    n = total.sum(1)
    return np.where(n > 0, correct.sum(1) / np.maximum(n, 1), np.nan)


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
      ValueError: the models' features have different lengths, or there is no such output.
    """
    model = model_of(simulation, state, model)
    found, data = [], simulation.data
    (x, y), index = (data.test, data.test_index) if part == "test" else (data.train, data.train_index)
    for i in range(data.clients) if clients is None else clients:
        rows = _spaced(index[i], most)
        if len(rows):
            made = outputs(simulation.view(state, i), model, _take(x, rows), simulation.evaluation.batch)
            found.append(Points(_output(made, key), y[rows], np.full(len(rows), i)))
    widths = {points.features.shape[1] for points in found}
    if len(widths) != 1:
        raise ValueError(f"features of lengths {sorted(widths)} cannot be drawn together; choose clients of one architecture")
    return Points(*map(np.concatenate, zip(*found, strict=True)))


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
    rows, (x, y) = _spaced(simulation.data.test_index[client], most), simulation.data.test
    if not len(rows):
        raise ValueError(f"client {client} has no test examples")
    made = outputs(view, model, _take(x, rows), simulation.evaluation.batch)
    found = {name: weights for name, weights in made.items() if name.split("_")[-1] == "attention"}
    return found or {"attention": _output(made, "attention")}, y[rows]


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
    model = _chosen(view, model)
    rows = simulation.data.train_index[view.client]
    x, y = simulation.data.train
    made = _output(outputs(view, model, _take(x, rows), simulation.evaluation.batch), key)
    classes = np.unique(y[rows])
    c = np.stack([made[y[rows] == j].mean(0) for j in classes])
    return c / (1 + np.exp(-c)) if silu else c, classes


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


def probe(
    simulation: Simulation, state: State, model: str | None = None, key: str = "features", penalty: float = 1.0
) -> np.ndarray:
    """Linear probe: each client trains a new linear head on its frozen features, and is scored on its own test rows.

    The head is the optimum of cross-entropy, summed over the client's training rows, plus penalty / 2 times its squared norm; the
    features are standardised by those rows.

    Returns:
      [N] accuracies; NaN for a client without training or test rows.
    """
    return _refit(simulation, state, model, key, penalty, matching=False)


def match(
    simulation: Simulation, state: State, model: str | None = None, key: str = "features", penalty: float = 1.0
) -> np.ndarray:
    """Linear match: each client trains a linear layer between its frozen features f and its frozen head.

    The layer is f -> f + D z + d, with z the standardised features; D starts at 0 and is penalised, otherwise as `probe`.

    Returns:
      [N] accuracies; NaN for a client without training or test rows.

    Raises:
      ValueError: among the nets that a client holds there is none whose head makes the features the logits.
    """
    return _refit(simulation, state, model, key, penalty, matching=True)


def _refit(simulation: Simulation, state: State, model: str | None, key: str, penalty: float, matching: bool) -> np.ndarray:
    model = model_of(simulation, state, model)
    data, batch = simulation.data, simulation.evaluation.batch
    most = max(map(len, data.train_index))
    found = np.full(data.clients, np.nan)
    for i in range(data.clients):
        train, test = data.train_index[i], data.test_index[i]
        if not len(train) or not len(test):
            continue
        view = simulation.view(state, i)
        made = outputs(view, model, _take(data.train.x, train), batch)
        f = _output(made, key)
        scale = f.mean(0), np.maximum(f.std(0), 1e-6)
        if matching:
            frozen = view.task.frozen, _head(view, model, f, _output(made, "logits"))
            logits, out, head = _matched(view.task.network), f.shape[1], frozen
        else:
            logits, out, head = _linear, data.classes, ()
        theta = {"kernel": jnp.zeros((f.shape[1], out)), "bias": jnp.zeros(out)}
        fill = most - len(train)
        rows = np.pad(f, ((0, fill), (0, 0))), np.pad(data.train.y[train], (0, fill)), np.arange(most) < len(train)
        theta = _optimum(logits, theta, (scale, head), *rows, penalty)
        f = _output(outputs(view, model, _take(data.test.x, test), batch), key)
        found[i] = np.mean(np.argmax(logits(theta, (scale, head), f), -1) == data.test.y[test])
    return found


def _linear(theta: PyTree, frozen: PyTree, f: Any) -> Array:
    (mean, std), _ = frozen
    return (f - mean[None]) / std[None] @ theta["kernel"] + theta["bias"][None]


@functools.cache
def _matched(network: Callable[[PyTree], Model]) -> Callable:
    """One function per network, so that clients of one architecture share a program; its `frozen` is (scale, (network's, head))."""

    def logits(theta, frozen, f):
        own, head = frozen[1]
        return network(own).head(Net({"head": head}), f + _linear(theta, frozen, f))

    return logits


@functools.partial(jax.jit, static_argnums=0)
def _optimum(logits: Callable, theta: PyTree, frozen: PyTree, f: Array, y: Array, mask: Array, penalty: Array | float) -> PyTree:
    """The minimiser of a convex loss over `theta`, by L-BFGS."""

    def loss(theta):
        rows = losses.cross_entropy_rows(logits(theta, frozen, f), y)
        return (jnp.sum(jnp.where(mask, rows, 0)) + penalty / 2 * jnp.sum(theta["kernel"] ** 2)) / jnp.sum(mask)

    optimizer = optax.lbfgs()
    at = optax.value_and_grad_from_state(loss)

    def step(_, carry):
        theta, state = carry
        value, gradient = at(theta, state=state)
        updates, state = optimizer.update(gradient, state, theta, value=value, grad=gradient, value_fn=loss)
        moved = optax.apply_updates(theta, updates)
        better = loss(moved) < value  # at the optimum the line search may find nothing, or what is not finite
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), moved, theta), state

    return jax.lax.fori_loop(0, STEPS, step, (theta, optimizer.init(theta)))[0]


def _nets(tree: PyTree) -> list[Net]:
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Net)) if isinstance(leaf, Net)]


def _head(view: View, model: str, f: np.ndarray, logits: np.ndarray) -> PyTree:
    """Parameters of the head that makes a client's features its logits."""
    width, heads = f.shape[1], []

    def look(x):
        heads.append(x.get("head") if isinstance(x, dict) else getattr(x, "head", None))
        return False

    jax.tree.leaves(view.holds[model], is_leaf=look)  # wherever an entry or a field has this name
    for head in heads:
        if any(a.ndim == 2 and a.shape[0] == width for a in jax.tree.leaves(head)):
            made = view.task.model.head(Net({"head": head}), jnp.asarray(f))
            if made.shape == logits.shape and np.allclose(made, logits, rtol=1e-3, atol=1e-3):
                return head
    raise ValueError(f"none of the nets that client {view.client} holds has a head that makes these features its logits")


def landscape(
    simulation: Simulation,
    state: State,
    model: str | None = None,
    client: int = 0,
    *,
    span: float = 1.0,
    points: int = 21,
    rows: int = 1000,
    seed: int = 0,
    directions: tuple[PyTree, PyTree] | None = None,
) -> Landscape:
    """Loss on test data in a plane through a client's model.

    The directions are normal draws, each filter (a kernel's slice along its last axis) scaled to the norm of the model's; biases
    and normalisation stay where they are (Li, Xu, Taylor, Studer, Goldstein. Visualizing the Loss Landscape of Neural Nets. 2018).

    Args:
      simulation: of the run.
      state: to look at.
      model: a predictor; all nets that it predicts with are moved.
      client: whose.
      span: the plane goes from -span to span.
      points: along each direction; odd, so that the model itself is one of them.
      rows: of the test set, evenly spaced.
      seed: of the directions.
      directions: in place of the drawn ones, two trees like `_nets` parameters: a list of params, one per net.

    Raises:
      ValueError: the method's model has no net.
    """
    model = model_of(simulation, state, model)
    view = simulation.view(state, client)
    is_net = lambda x: isinstance(x, Net)
    centre = [net.params for net in _nets(view.holds[model])]
    if not centre:
        raise ValueError(f"model {model!r} predicts with no net of its own, so there is nothing to move")
    if directions is None:
        first, second = jax.random.split(jax.random.key(seed))
        directions = _direction(first, centre), _direction(second, centre)
    x, y = simulation.data.test
    chosen = np.unique(np.linspace(0, len(y) - 1, min(rows, len(y))).round().astype(int))
    batch = min(simulation.evaluation.batch, len(chosen))
    index = np.pad(chosen, (0, -len(chosen) % batch)).reshape(-1, batch)
    mask = np.arange(index.size).reshape(index.shape) < len(chosen)
    batches = jax.tree.map(lambda a: np.asarray(a)[index], (x, y)), mask

    @jax.jit
    def at(held, holds, directions, place, batches):
        moved = iter(
            jax.tree.map(lambda w, a, b: w + place[0] * a + place[1] * b, [net.params for net in _nets(holds)], *directions)
        )
        there = jax.tree.map(lambda leaf: leaf._replace(params=next(moved)) if is_net(leaf) else leaf, holds, is_leaf=is_net)

        def score(entry):
            (x, y), mask = entry
            made = view.predict(model, there, x, held)
            logits, y = _output(made, "logits").astype(jnp.float32), ({"targets": y} | made)["targets"]
            rows = losses.cross_entropy_rows(logits, jnp.maximum(y, 0))
            return metrics.mean_of(rows, losses.counted(y, mask)), metrics.accuracy(logits, y, mask)

        return jax.tree.map(jnp.sum, jax.lax.map(score, batches))

    steps = np.linspace(-span, span, points)
    loss, accuracy = np.zeros((2, points, points))
    for i, down in enumerate(steps):
        for j, across in enumerate(steps):
            of_loss, of_accuracy = at(simulation.held, view.holds[model], directions, np.array([across, down], np.float32), batches)
            loss[i, j], accuracy[i, j] = of_loss[0] / of_loss[1], of_accuracy[0] / of_accuracy[1]
    return Landscape(steps, loss, accuracy)


class Plane(NamedTuple):
    """A plane through a model, and others seen from it.

    Attributes:
      directions: two, of length 1: params like the model's.
      places: [n, 2] where the others stand, projected onto it.
      share: [2] of the sum of their squared distances, what lies along each direction.
    """

    directions: tuple[PyTree, PyTree]
    places: np.ndarray
    share: np.ndarray


def plane(centre: Net, others: Sequence[Net]) -> Plane:
    """The plane through `centre` that the others are nearest to: principal components of their params minus its own.

    Raises:
      ValueError: an other has another form, or there are not two directions.
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


def surroundings(
    simulation: Simulation, state: State, others: Sequence[Net], *, span: float = 1.0, points: int = 21, rows: int = 1000
) -> tuple[Landscape, Plane]:
    """Loss on test data in the plane through the global model and near others, such as clients' (FedOA, Figure 3).

    Args:
      simulation: of the run that has the global model.
      state: of it.
      others: models with the same parameters.
      span: the surface goes 1.25 times as far as the farthest of them, times this.
      points, rows: as in `landscape`.

    Returns:
      (surface, plane); the surface's `steps` are distances of parameters.

    Raises:
      ValueError: the method has no global model, or as `plane`.
    """
    view = simulation.view(state, 0)
    x = _take(simulation.data.test.x, np.arange(min(8, len(simulation.data.test.y))))
    centre = trained_network(view, _chosen(view, "global"), x)
    found = plane(centre, others)
    nets, zero = _nets(view.holds["global"]), lambda net: jax.tree.map(np.zeros_like, net.params)
    if not any(net is centre for net in nets):
        raise ValueError("the global model is put together of several nets, so there is not one to move")
    moved = tuple([d if net is centre else zero(net) for net in nets] for d in found.directions)
    reach = 1.25 * span * float(np.abs(found.places).max())
    where: Any = {"span": reach, "points": points, "rows": rows, "directions": moved}
    return landscape(simulation, state, "global", **where), found


def _direction(key: Array, params: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(params)

    def draw(key, w):
        if w.ndim < 2:
            return jnp.zeros_like(w)
        d = jax.random.normal(key, w.shape, w.dtype)
        axes = tuple(range(w.ndim - 1))
        return d * jnp.sqrt(jnp.sum(w**2, axes, keepdims=True) / jnp.sum(d**2, axes, keepdims=True))

    return structure.unflatten([draw(k, w) for k, w in zip(jax.random.split(key, len(leaves)), leaves, strict=True)])


def communication(simulation: Simulation) -> list[dict[str, Any]]:
    """What one client receives and sends in a round, array by array, from shapes alone.

    Returns:
      Rows with "group" (an architecture), "way" ("down", "up"), "part" (a network's "body" and "head", else the path's first name),
      "layer" (the path's beginning), "array" (the whole path), "shape", "dtype", "numbers", "bytes".
    """
    rows = []
    for group, shape in zip(simulation.groups, simulation.shapes.groups, strict=True):
        for way, tree in (("down", shape.sent), ("up", shape.out.uplink)):
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
                rows.append(
                    {
                        "group": group.name,
                        "way": way,
                        "part": _part(names),
                        "layer": "/".join(names[:-1][:3] or names),
                        "array": "/".join(names),
                        "shape": "x".join(map(str, leaf.shape)) or "1",
                        "dtype": str(leaf.dtype),
                        "numbers": int(np.prod(leaf.shape, dtype=np.int64)),
                        "bytes": metrics.nbytes(leaf),
                    }
                )
    return rows


def sizes(simulation: Simulation) -> list[dict[str, Any]]:
    """What one client's network has and its messages hold, in numbers, from shapes alone.

    Returns:
      A row per architecture with "group", "clients" (how many), "whole", "body" and "trained" (parameters of the network, those
      without prompts and head, and those that are trained; batch statistics are not counted), "down" and "up" (of a round).
    """
    rows = []
    for group, shape in zip(simulation.groups, simulation.shapes.groups, strict=True):
        model = group.task.model
        trained, whole = jax.eval_shape(lambda key, model=model: (net := model.init(key), model.whole(net)), jax.random.key(0))
        body = {name: entry for name, entry in whole.params.items() if name not in ("prompts", "head")}
        parts = {"whole": whole.params, "body": body, "trained": trained.params, "down": shape.sent, "up": shape.out.uplink}
        numbers = {what: sum(leaf.size for leaf in jax.tree.leaves(tree)) for what, tree in parts.items()}
        rows.append({"group": group.name, "clients": len(group.clients), **numbers})
    return rows


def _part(names: Sequence[str]) -> str:
    """Of "net/params/conv1/kernel" "net/body", of "net/params/head/bias" "net/head", of "transform/key" "transform"."""
    at = next((i for i, name in enumerate(names[:-1]) if name in Net._fields), None)
    return names[0] if at is None else "/".join([*names[:at], "head" if names[at + 1] == "head" else "body"])


def _spaced(rows: np.ndarray, most: int) -> np.ndarray:
    """At most so many of some rows, evenly spaced."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int))]


def _take(x: PyTree, rows: np.ndarray) -> PyTree:
    return jax.tree.map(lambda a: np.asarray(a)[rows], x)


def _output(made: Mapping[str, Any], key: str) -> Any:
    if key not in made:
        raise ValueError(f"the model has no output {key!r}; it has {', '.join(made)}")
    return made[key]
