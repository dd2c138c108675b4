"""Detects NaN, Inf and outliers inside the round, and reports them on the host.

Each client's part of the round returns whether its metrics, its uplink and its new state are finite, and the largest
magnitude in each part of its uplink. Both come from one reduction over what the client has just computed, which costs
little beside one training step; nothing that is trained depends on them. Integers are not checked. An element of a
state that was not finite before the round may stay so: a method may keep an infinity on purpose.
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, ClientOutput, PyTree, targets_of
from fedjax_core.finite_checks import became_nonfinite, floating_leaves, is_finite

METRICS, UPLINK, STATE = 1, 2, 4
NAMES = {METRICS: "training loss", UPLINK: "uplink", STATE: "state"}
OUTLIER = 1000.0  # times the cohort's median
ADVICE = "try a lower learning rate, or clip gradients"
LARGEST_SCALE = 10.0  # of numbers to predict, beyond which squared errors need other learning rates than ours
SAMPLED_TARGETS = 100_000  # targets from which that scale is estimated
log = logging.getLogger("fedjax_core")


class Diverged(FloatingPointError):
    """Something that a round left behind was not finite.

    Attributes:
      stopped: whether a signal asked the run to stop; the caller must then start no other run.
    """

    stopped = False


class ClientChecks(NamedTuple):
    """What is checked of a client; leaves [] in the client loop, [C] after it.

    Attributes:
      faults: a sum of `METRICS`, `UPLINK`, `STATE`: what is not finite; 0 for an absent client.
      sizes: [parts] the largest magnitude in each part of the uplink.
    """

    faults: Array
    sizes: Array


def check_client(out: ClientOutput, parts: Sequence[PyTree], before: PyTree, is_active: Array) -> ClientChecks:
    """Checks one client's output.

    Args:
      parts: of its uplink.
      is_active: [] whether the client takes part.
    """
    sizes = jnp.stack([jnp.zeros(()), *(_magnitude(part) for part in parts)])[1:]  # of an uplink without parts []
    faults = (
        METRICS * ~is_finite(out.metrics) + UPLINK * ~jnp.all(jnp.isfinite(sizes)) + STATE * became_nonfinite(out.state, before)
    )
    checks = ClientChecks(jnp.asarray(faults, jnp.int32), sizes)
    return jax.tree.map(lambda x: jnp.where(is_active, x, 0), checks)


def _magnitude(tree: PyTree) -> Array:
    """Returns [] the largest magnitude; not finite if any element is not."""
    maxima = [jnp.max(jnp.abs(x), initial=0).astype(jnp.float32) for x in floating_leaves(tree)]
    return jnp.max(jnp.stack([jnp.zeros(()), *maxima]))


def advice_for(y: np.ndarray | None) -> str:
    """Returns advice for a run that diverged; for numeric targets of a large scale, to normalise them.

    Args:
      y: the training targets; None: unknown.
    """
    if y is None or targets_of(y) != "numbers":
        return ADVICE
    columns = np.asarray(y[:SAMPLED_TARGETS], np.float64).reshape(min(len(y), SAMPLED_TARGETS), -1)
    means, deviations = columns.mean(0), columns.std(0)
    worst = int(np.argmax(np.maximum(np.abs(means), deviations)))
    mean, deviation = means[worst], deviations[worst]
    if max(abs(mean), deviation) <= LARGEST_SCALE:
        return ADVICE
    which = f"number {worst} of the targets has" if len(means) > 1 else "the targets have"
    divisor = deviation if deviation > 0 else 1.0
    return (
        f"{which} mean {mean:.4g} and deviation {deviation:.4g}: train on "
        f"(y - {mean:.4g}) / {divisor:.4g}, and undo it in what is predicted"
    )


def raise_if_all_left_out(left_out: int, present: int, round_num: int, y: np.ndarray | None) -> None:
    """Raises Diverged if all clients that took part in a round were left out.

    Args:
      left_out: clients that were left out because their loss, uplink or state was not finite.
      present: clients that took part, these included.
    """
    if left_out >= present > 0:
        who = f"all {present} clients" if present > 1 else "the one client"
        raise Diverged(
            f"round {round_num}: {who} of the cohort sent or kept something that is not finite, so nobody is left whose uplink "
            f"counts; {advice_for(y)}"
        )


def raise_if_diverged(
    ids: np.ndarray, checks: ClientChecks, server_diverged: bool, round_num: int, y: np.ndarray | None = None
) -> None:
    """Raises Diverged if anything of a round was not finite; the message says what, and of which clients.

    Args:
      ids: [C] of the cohort's clients; -1 for absent ones.
    """
    faults = np.asarray(checks.faults)
    if faults.any():
        names = [name for bit, name in NAMES.items() if (faults & bit).any()]
        bad, present = np.sort(ids[faults > 0]), int((ids >= 0).sum())
        hint = advice_for(y)
        if len(bad) == present > 1:
            who = f"all {present} clients of the cohort"
            hint = f"the cause may be what they share, the data or the model sent; {hint}"
        elif len(bad) == 1:
            who = f"client {bad[0]}"
        else:
            some = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
            who = f"{len(bad)} of {present} clients ({some})"
        what = " and the ".join([", the ".join(names[:-1]), names[-1]] if names[1:] else names)
        verb = "is" if len(names) == 1 else "are"
        raise Diverged(f"round {round_num}: the {what} of {who} {verb} not finite; {hint}")
    if server_diverged:
        raise Diverged(
            f"round {round_num}: the server's new state is not finite, though all that clients sent is; lower the "
            "learning rate of the server (of q-FedAvg, q, if every loss to this power is 0 in float32)"
        )


def raise_if_scores_diverged(
    scores: Mapping[str, Mapping[str, tuple]],
    ids: np.ndarray,
    where: str,
    round_num: int,
    y: np.ndarray | None,
) -> None:
    """Raises Diverged if a client's loss is not finite.

    Args:
      scores: by model, by metric, (sums [E], weights [E]).
      ids: [E] of the clients; negative ones are not checked.
      where: the examples that were scored, for the message.
    """
    for model, pairs in scores.items():
        bad = ids[~np.isfinite(np.asarray(pairs["loss"][0])) & (ids >= 0)] if "loss" in pairs else ids[:0]
        if len(bad):
            some = f"client {bad[0]}" + (f" and of {len(bad) - 1} more" if len(bad) > 1 else "")
            raise Diverged(f"round {round_num}: the loss of the {model} model of {some} on {where} is not finite; {advice_for(y)}")


def warn_of_nan(metrics: Mapping[str, float], own: Collection[str], round_num: int) -> None:
    """Warns in process 0 of the config's own scores that are not finite."""
    is_own = lambda name: not set(own).isdisjoint(name.split("/"))
    bad = [name for name, value in metrics.items() if not math.isfinite(value) and is_own(name)]
    if bad and jax.process_index() == 0:
        what, verb = ("scores", "are") if len(bad) > 1 else ("score", "is")
        log.warning("round %d: %s %s %s not finite", round_num, what, ", ".join(bad), verb)


def find_outliers(ids: np.ndarray, checks: ClientChecks) -> dict[int, float]:
    """Returns clients with an uplink more than `OUTLIER` times as large as the cohort's median, and that ratio."""
    sizes = np.asarray(checks.sizes, np.float64)[ids >= 0]
    if len(sizes) < 3:
        return {}
    median = np.median(sizes, 0)
    ratios = np.max(sizes / np.where(median > 0, median, np.inf), 1, initial=0)
    return {int(i): float(ratio) for i, ratio in zip(ids[ids >= 0], ratios, strict=True) if ratio > OUTLIER}


def warn_of_outliers(outliers: Mapping[int, float], round_num: int, known: set[int]) -> None:
    """Warns once of each outlier, in process 0; `known`: clients that were warned of, extended in place."""
    for client, ratio in outliers.items():
        if client not in known and jax.process_index() == 0:
            text = "round %d: what client %d sent is %.3g times as large as the cohort's median; look at its data, or clip"
            log.warning(text, round_num, client, ratio)
        known.add(client)
