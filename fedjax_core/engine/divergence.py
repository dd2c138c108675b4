"""What is not finite, or out of all proportion: seen inside the round, told on the host.

Each client's part of the round gives a few numbers: whether its metrics, its uplink and its new state are finite, and the largest
magnitude in each part of its uplink. Both come from one reduction over what the client has just computed, which costs little beside
one training step, and nothing that is trained depends on them. Integers are never looked at, and an element of a state that was not
finite before the round may stay so: a method may keep an infinity on purpose.
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
SAMPLED_TARGETS = 100_000  # rows whose targets tell that scale
log = logging.getLogger("fedjax_core")


class Diverged(FloatingPointError):
    """Something that a round left behind was not finite.

    Attributes:
      stopped: whether a signal asked the run to stop meanwhile; whoever starts another run must stop.
    """

    stopped = False


class Seen(NamedTuple):
    """Leaves [] in the client loop, [C] behind it.

    Attributes:
      faults: a sum of `METRICS`, `UPLINK`, `STATE`: what is not finite; 0 for a client that is absent.
      sizes: [parts] the largest magnitude in each part of the uplink.
    """

    faults: Array
    sizes: Array


def of_client(out: ClientOutput, parts: Sequence[PyTree], before: PyTree, there: Array) -> Seen:
    """What one client's round left behind; `parts` of its uplink, its state `before`, and whether it is `there`."""
    sizes = jnp.stack([jnp.zeros(()), *(_magnitude(part) for part in parts)])[1:]
    faults = (
        METRICS * ~is_finite(out.metrics) + UPLINK * ~jnp.all(jnp.isfinite(sizes)) + STATE * became_nonfinite(out.state, before)
    )
    return jax.tree.map(lambda x: jnp.where(there, x, 0), Seen(jnp.asarray(faults, jnp.int32), sizes))


def _magnitude(tree: PyTree) -> Array:
    """[] the largest one; not finite if any element is not."""
    found = [jnp.max(jnp.abs(x), initial=0).astype(jnp.float32) for x in floating_leaves(tree)]
    return jnp.max(jnp.stack([jnp.zeros(()), *found]))


def advice_for(y: np.ndarray | None) -> str:
    """Returns what may help a run that diverged: of numbers that lie far from 0, or far apart, to scale them.

    Args:
      y: the targets of the training rows; None: unknown.
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


def raise_if_all_left_out(left_out: int, present: int, round: int, y: np.ndarray | None = None) -> None:  # noqa: A002
    """Raises Diverged if nobody counts of those who took part in a round.

    Args:
      left_out: clients whose loss, uplink or state was not finite, and that were left out for it.
      present: clients that took part, these among them.
      round: from 1.
      y: the targets of the training rows.
    """
    if left_out >= present > 0:
        who = f"all {present} clients" if present > 1 else "the one client"
        raise Diverged(
            f"round {round}: {who} of the cohort sent or kept something that is not finite, so nobody is left whose uplink "
            f"counts; {advice_for(y)}"
        )


def refuse(ids: np.ndarray, seen: Seen, server: bool, round: int, y: np.ndarray | None = None) -> None:  # noqa: A002
    """Raises Diverged if anything of a round was not finite, and says what is known of it.

    Args:
      ids: [C] of the cohort's clients; -1 for those that are absent.
      seen: of them.
      server: whether the server's state has turned.
      round: from 1.
      y: the targets of the training rows.
    """
    faults = np.asarray(seen.faults)
    if faults.any():
        what = [name for bit, name in NAMES.items() if (faults & bit).any()]
        bad, there = np.sort(ids[faults > 0]), int((ids >= 0).sum())
        advice = advice_for(y)
        if len(bad) == 1:
            who, hint = f"of client {bad[0]}", advice
        else:
            some = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
            who, hint = f"of {len(bad)} of {there} clients ({some})", advice
        if len(bad) == there > 1:
            who, hint = (
                f"of all {there} clients of the cohort",
                f"the cause may be what they share, the data or the model sent; {advice}",
            )
        is_, the = "is" if len(what) == 1 else "are", " and the ".join([", the ".join(what[:-1]), what[-1]] if what[1:] else what)
        raise Diverged(f"round {round}: the {the} {who} {is_} not finite; {hint}")
    if server:
        raise Diverged(
            f"round {round}: the server's new state is not finite, though all that clients sent is; lower the learning rate of the "
            "server"
        )


def scores(
    found: Mapping[str, Mapping[str, tuple]],
    ids: np.ndarray,
    where: str,
    round: int,  # noqa: A002
    y: np.ndarray | None = None,
) -> None:
    """Raises Diverged if a loss of the clients `ids` is not finite. `found`: by model, by metric, (sums, weights); `y`: the targets
    of the training rows."""
    for model, pairs in found.items():
        bad = ids[~np.isfinite(np.asarray(pairs["loss"][0])) & (ids >= 0)] if "loss" in pairs else ids[:0]
        if len(bad):
            some = f"client {bad[0]}" + (f" and of {len(bad) - 1} more" if len(bad) > 1 else "")
            raise Diverged(f"round {round}: the loss of the {model} model of {some} on {where} is not finite; {advice_for(y)}")


def warn_of_nan(found: Mapping[str, float], own: Collection[str], round: int) -> None:  # noqa: A002
    """Warns in process 0 of scores that are not finite.

    Args:
      found: the values of an evaluation, by the names in records.
      own: scores that a config asks for, of which no loss tells that a model diverged.
      round: from 1.
    """
    bad = [name for name, value in found.items() if not math.isfinite(value) and not set(own).isdisjoint(name.split("/"))]
    if bad and jax.process_index() == 0:
        log.warning("round %d: score%s %s %s not finite", round, "s" * (len(bad) > 1), ", ".join(bad), "are" if bad[1:] else "is")


def outliers(ids: np.ndarray, seen: Seen) -> dict[int, float]:
    """Clients that sent something more than `OUTLIER` times as large as the cohort's median, and how many times."""
    sizes = np.asarray(seen.sizes, np.float64)[ids >= 0]
    if len(sizes) < 3:
        return {}
    median = np.median(sizes, 0)
    ratios = np.max(sizes / np.where(median > 0, median, np.inf), 1, initial=0)
    return {int(i): float(ratio) for i, ratio in zip(ids[ids >= 0], ratios, strict=True) if ratio > OUTLIER}


def warn(found: Mapping[int, float], round: int, known: set[int]) -> None:  # noqa: A002
    """Says once of each client that it is an outlier, in process 0; `known`: those of whom it was said."""
    for client, ratio in found.items():
        if client not in known and jax.process_index() == 0:
            text = "round %d: what client %d sent is %.3g times as large as the cohort's median; look at its data, or clip"
            log.warning(text, round, client, ratio)
        known.add(client)
