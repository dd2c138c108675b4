"""Membership inference against the global model of a run.

Yeom, Giacomelli, Fredrikson, Jha. Privacy Risk in Machine Learning. CSF 2018: the loss.
Carlini, Chien, Nasr, Song, Terzis, Tramer. Membership Inference Attacks From First Principles. S&P
2022: the likelihood ratio (offline), and true positives at few false ones.

Members are the clients' training examples, others the test set. A difference between the two sets
beside membership, such as a later year of collection, counts as success of the attack.
"""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Examples, select_examples
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine.simulator import Simulator, State
from fedjax_core.training import losses

RATES = (0.001, 0.01)  # of false positives
BATCH = 500  # examples at once
RESAMPLES, ENDS = 1000, (0.025, 0.975)  # of the bootstrap


class MembershipScores(NamedTuple):
    """How well scores tell members from others.

    Attributes:
      members, others: numbers of examples.
      area: under the ROC curve.
      true_positives: by rate of false positives, (estimate, lower end, upper end) of the interval.
    """

    members: int
    others: int
    area: float
    true_positives: dict[float, tuple[float, float, float]]


def infer_membership(members: np.ndarray, others: np.ndarray, *, seed: int = 0) -> MembershipScores:
    """Returns the success of an attack by thresholds of scores, with intervals of a bootstrap over examples.

    Args:
      members, others: scores, higher for examples that are taken for members.

    Raises:
      ValueError: there are none, or a score is NaN.
    """
    check_scores("members", members)
    check_scores("others", others)
    rng = np.random.default_rng(seed)
    resampled = [_true_positives(*(rng.choice(scores, len(scores)) for scores in (members, others))) for _ in range(RESAMPLES)]
    low, high = np.quantile(resampled, ENDS, axis=0)
    rows = zip(RATES, _true_positives(members, others), low, high, strict=True)
    true_positives = {rate: (float(estimate), float(start), float(end)) for rate, estimate, start, end in rows}
    order = np.sort(others)
    below = (np.searchsorted(order, members, "left") + np.searchsorted(order, members, "right")) / 2  # ties count half
    return MembershipScores(len(members), len(others), float(below.mean() / len(others)), true_positives)


def check_scores(what: str, scores: np.ndarray) -> None:
    """Raises ValueError unless there are scores, and none is NaN: an attack by them would seem to fail."""
    if not len(scores):
        raise ValueError(f"audit: there are no {what}")
    if number := np.isnan(scores).sum():
        raise ValueError(f"audit: {number} of the {len(scores)} scores of {what} are NaN, as those of a model that has diverged")


def _true_positives(members: np.ndarray, others: np.ndarray) -> list[float]:
    """Returns by rate the fraction of members above the threshold that at most so many others exceed.

    The same of `jax_privacy.auditing` is of the concave hull of the curve, and higher.
    """
    order = np.sort(others)[::-1]
    thresholds = [order[min(int(rate * len(order)), len(order) - 1)] for rate in RATES]
    return [float(np.mean(members > threshold)) for threshold in thresholds]


def score_by_loss(simulator: Simulator, state: State, examples: Examples) -> np.ndarray:
    """Returns minus the loss [R] of each example under the global model."""
    return -_map_outputs(simulator, state, examples, _example_loss)


def compute_confidences(simulator: Simulator, state: State, examples: Examples) -> np.ndarray:
    """Returns log(p / (1 - p)) [R] of the probability p of each example's class; nearly normal."""
    return _map_outputs(simulator, state, examples, _logit_confidence)


def score_by_shadows(target: np.ndarray, shadows: np.ndarray, was_trained_on: np.ndarray) -> np.ndarray:
    """Returns the offline likelihood ratio [R]: how unlikely a confidence is for models without the example.

    Args:
      target: [R] confidences of the audited model.
      shadows: [S, R] those of the shadow models.
      was_trained_on: [S, R] whether a shadow model was trained on the example.

    Raises:
      ValueError: an example is outside of fewer than two shadow models.
    """
    is_out = ~was_trained_on
    number = is_out.sum(0)
    if number.min() < 2:
        raise ValueError("audit: an example was outside of fewer than two shadow models; take more of them")
    mean = np.where(is_out, shadows, 0).sum(0) / number
    squares = np.where(is_out, (shadows - mean) ** 2, 0)
    variance = squares.sum() / (number - 1).sum()  # of all examples together: few shadow models know each poorly
    return (target - mean) / np.sqrt(variance + 1e-12)


def train_shadows(
    build: Callable[[FederatedData], Simulator], data: FederatedData, rounds: int, number: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Trains pairs of shadow models: one on a random half of every client's examples, one on the rest.

    So half of the models are without any example, those that several clients hold included.

    Args:
      build: makes the simulation of the audited config for other data.
      number: S, even.

    Returns:
      ([S, R] confidences of the clients' examples and then of the test set, [S, R] whether a model does
      not count as one without the example).
    """
    members, values, trained_on = np.concatenate(list(data.train_index)), [], []
    for shadow in range(number):
        pair, is_rest = divmod(shadow, 2)
        is_in = draw_half(data.train_index, len(data.train.y), np.random.default_rng([seed, pair])) ^ bool(is_rest)
        simulator = build(dataclasses.replace(data, train_index=tuple(index[is_in[index]] for index in data.train_index)))
        state, _ = simulator.run_rounds(simulator.init((seed + 1 + shadow) % 2**32), rounds)
        both = (compute_confidences(simulator, state, part) for part in (select_examples(data.train, members), data.test))
        values.append(np.concatenate(list(both)))
        # A test example counts for one model of each pair, so that its score varies as much as a member's.
        coin = np.random.default_rng([seed, pair, 1]).random(len(data.test.y)) < 0.5
        trained_on.append(np.concatenate([is_in[members], coin ^ bool(is_rest)]))
        simulator.close()
    return np.stack(values), np.stack(trained_on)


def draw_half(lists: Sequence[np.ndarray], examples: int, rng: np.random.Generator) -> np.ndarray:
    """Returns whether [examples] each is in a random half of every client's list.

    An example is drawn with the first client that holds it; further clients fill their half with the rest of theirs.
    """
    is_in, is_drawn = np.zeros((2, examples), bool)
    for index in lists:
        left, missing = rng.permutation(index), -(-len(index) // 2) - is_in[index].sum()
        left = left[~is_drawn[left]]
        is_in[left[: max(0, missing)]] = True
        is_drawn[index] = True
    return is_in


def import_auditing() -> Any:
    """Imports jax-privacy's audits."""
    try:
        return importlib.import_module("jax_privacy.auditing")
    except ImportError:
        raise ValueError("audit needs jax-privacy: pip install 'fedjax-core[privacy]', or jax-privacy") from None


def _example_loss(logits: jax.Array, y: jax.Array) -> jax.Array:
    one = jnp.ones(1, bool)
    return jax.vmap(lambda logits, y: losses.target_loss(logits[None], y[None], one))(logits, y)


def _logit_confidence(logits: jax.Array, y: jax.Array) -> jax.Array:
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    own = jnp.take_along_axis(log_p, y[:, None], 1)[:, 0]
    is_own = jax.nn.one_hot(y, logits.shape[1], dtype=bool)
    return own - jax.nn.logsumexp(jnp.where(is_own, -jnp.inf, log_p), 1)


def _map_outputs(simulator: Simulator, state: State, examples: Examples, score: Callable) -> np.ndarray:
    """Returns `score(logits, y)` of all examples, in batches."""
    view = simulator.client_view(state, 0)
    if "global" not in view.holds:
        raise ValueError("audit: the method has no global model to attack; its clients' own models never leave them")
    holds, compiled = view.holds["global"], jax.jit(score)
    results = []
    for start in range(0, len(examples.y), BATCH):
        part = jax.tree.map(lambda x, start=start: jnp.asarray(x[start : start + BATCH]), examples)
        outputs = view.predict("global", holds, part.x)
        results.append(np.asarray(compiled(outputs["logits"], outputs.get("targets", part.y))))
    return np.concatenate(results)
