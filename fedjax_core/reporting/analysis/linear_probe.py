"""Linear probe and linear match: a linear layer per client, trained on frozen features."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_core.algorithm import Array, Net, PyTree, select_examples
from fedjax_core.engine.simulator import ClientView, Simulator, State
from fedjax_core.reporting.analysis.client_models import (
    choose_scored_model,
    compute_outputs,
    eval_batch_size,
    get_output,
    max_examples,
    require_classes,
    require_one_class,
)
from fedjax_core.task import Model
from fedjax_core.training import losses

STEPS = 100  # of L-BFGS, for a convex problem
PENALTY = 1.0  # of the squared norm of the layer


def score_probe(simulation: Simulator, state: State, model: str | None = None, key: str = "features") -> np.ndarray:
    """Scores a new linear head on each client's frozen features (linear probe): accuracies [N].

    The head minimises cross-entropy summed over the client's training examples plus `PENALTY` / 2
    times its squared norm; these examples also standardise the features. NaN for a client without
    training or test examples.
    """
    return _refit(simulation, state, model, key, matching=False)


def score_match(simulation: Simulator, state: State, model: str | None = None, key: str = "features") -> np.ndarray:
    """Scores a linear layer between each client's frozen features f and its head (linear match).

    The layer is f -> f + D z + d, with standardised features z; D starts at 0 and is penalised.
    Otherwise as `score_probe`.

    Raises:
      ValueError: no net of a client has a head that maps the features to the logits.
    """
    return _refit(simulation, state, model, key, matching=True)


def _refit(simulation: Simulator, state: State, model: str | None, key: str, matching: bool) -> np.ndarray:
    what = "match" if matching else "probe"
    require_classes(simulation, what)
    model = choose_scored_model(simulation, state, model)
    data, batch = simulation.spec.data, eval_batch_size(simulation)
    most = max_examples(data.train_index)
    accuracies = np.full(data.clients, np.nan)
    for i in range(data.clients):
        train, test = data.train_index[i], data.test_index[i]
        if not len(train) or not len(test):
            continue
        view = simulation.client_view(state, i)
        predicted = compute_outputs(view, model, select_examples(data.train.x, train), batch, most)
        require_one_class(predicted, what)
        f = get_output(predicted, key)
        scale = f.mean(0), np.maximum(f.std(0), 1e-6)
        if matching:
            frozen = view.task.frozen, _find_head(view, model, f, get_output(predicted, "logits"))
            logits, out, head = _match_logits(view.task.network), f.shape[1], frozen
        else:
            logits, out, head = _linear_logits, data.classes, ()
        theta = {"kernel": jnp.zeros((f.shape[1], out)), "bias": jnp.zeros(out)}
        fill = most - len(train)
        rows = np.pad(f, ((0, fill), (0, 0))), np.pad(data.train.y[train], (0, fill)), np.arange(most) < len(train)
        theta = _minimize(logits, theta, (scale, head), *rows, PENALTY)
        f = get_output(compute_outputs(view, model, select_examples(data.test.x, test), batch, max_examples(data.test_index)), key)
        accuracies[i] = np.mean(np.argmax(logits(theta, (scale, head), f), -1) == data.test.y[test])
    return accuracies


def _linear_logits(theta: PyTree, frozen: PyTree, f: Any) -> Array:
    (mean, std), _ = frozen
    return (f - mean[None]) / std[None] @ theta["kernel"] + theta["bias"][None]


@functools.cache
def _match_logits(network: Callable[[PyTree], Model]) -> Callable:
    """Returns one function per network; `frozen` is (scale, (network's, head))."""

    def logits(theta, frozen, f):
        own, head = frozen[1]
        return network(own).head(Net({"head": head}), f + _linear_logits(theta, frozen, f))

    return logits


@functools.partial(jax.jit, static_argnums=0)
def _minimize(logits: Callable, theta: PyTree, frozen: PyTree, f: Array, y: Array, mask: Array, penalty: Array | float) -> PyTree:
    """Minimises a convex loss over `theta` by L-BFGS."""

    def loss(theta):
        rows = losses.cross_entropy_per_example(logits(theta, frozen, f), y)
        return (jnp.sum(jnp.where(mask, rows, 0)) + penalty / 2 * jnp.sum(theta["kernel"] ** 2)) / jnp.sum(mask)

    optimizer = optax.lbfgs()
    at = optax.value_and_grad_from_state(loss)

    def step(_, carry):
        theta, state = carry
        value, gradient = at(theta, state=state)
        updates, state = optimizer.update(gradient, state, theta, value=value, grad=gradient, value_fn=loss)
        moved = optax.apply_updates(theta, updates)
        better = loss(moved) < value  # at the optimum the line search may fail
        return optax.tree.where(better, moved, theta), state

    return jax.lax.fori_loop(0, STEPS, step, (theta, optimizer.init(theta)))[0]


def _find_head(view: ClientView, model: str, f: np.ndarray, logits: np.ndarray) -> PyTree:
    """Returns the head that maps a client's features to its logits."""
    width, heads = f.shape[1], []

    def collect(x):
        heads.append(x.get("head") if isinstance(x, dict) else getattr(x, "head", None))
        return False

    jax.tree.leaves(view.holds[model], is_leaf=collect)  # any entry or field of this name
    for head in heads:
        if any(a.ndim == 2 and a.shape[0] == width for a in jax.tree.leaves(head)):
            predicted = view.task.model.head(Net({"head": head}), jnp.asarray(f))
            if predicted.shape == logits.shape and np.allclose(predicted, logits, rtol=1e-3, atol=1e-3):
                return head
    raise ValueError(f"none of the nets that client {view.client} holds has a head that maps these features to its logits")
