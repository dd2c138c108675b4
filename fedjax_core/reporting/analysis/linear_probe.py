"""A part of each client's model trained again on what stays as it is: linear probe and linear match."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_core.algorithm import Array, Net, PyTree
from fedjax_core.engine.simulator import Simulation, State, View
from fedjax_core.reporting.analysis.client_models import longest, model_of, need_classes, output, outputs, rows_at_once, take
from fedjax_core.task import Model
from fedjax_core.training import losses

STEPS = 100  # of L-BFGS, for a convex problem


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
    need_classes(simulation, "match" if matching else "probe")
    model = model_of(simulation, state, model)
    data, batch = simulation.spec.data, rows_at_once(simulation)
    most = longest(data.train_index)
    found = np.full(data.clients, np.nan)
    for i in range(data.clients):
        train, test = data.train_index[i], data.test_index[i]
        if not len(train) or not len(test):
            continue
        view = simulation.view(state, i)
        made = outputs(view, model, take(data.train.x, train), batch, most)
        f = output(made, key)
        scale = f.mean(0), np.maximum(f.std(0), 1e-6)
        if matching:
            frozen = view.task.frozen, _head(view, model, f, output(made, "logits"))
            logits, out, head = _matched(view.task.network), f.shape[1], frozen
        else:
            logits, out, head = _linear, data.classes, ()
        theta = {"kernel": jnp.zeros((f.shape[1], out)), "bias": jnp.zeros(out)}
        fill = most - len(train)
        rows = np.pad(f, ((0, fill), (0, 0))), np.pad(data.train.y[train], (0, fill)), np.arange(most) < len(train)
        theta = _optimum(logits, theta, (scale, head), *rows, penalty)
        f = output(outputs(view, model, take(data.test.x, test), batch, longest(data.test_index)), key)
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
