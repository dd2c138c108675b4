"""Robust rules: one vector out of a cohort's, of which some may be an attacker's.

    config.aggregation.rule = "trimmed_mean(attackers=0.2)"
    config.aggregation.rule = "mixing(attackers=0.2) | krum(attackers=0.2)"        nearest-neighbour mixing before a rule

A rule sees each client's deltas as one vector [D], so that SCAFFOLD's two parts have one verdict; class means it sees class by
class, of those clients that hold the class. `attackers` is the fraction of the clients present that may attack: f of n, rounded
down. Every rule counts each client once, whatever the method's weights; only "mean" and "norm_bound" weigh as the method does, and
these stream: the others need the cohort's vectors together, C * D numbers.

A rule from outside is a function in a module or file of its own, `path/to/file.py:name(option=...)`, or an entry point of the group
`fedjax_core.rules`: it takes options and returns (rows [C, D], there [C]) -> vector [D], in JAX; rows that are not there are zeros.
Returning rows [C, D] makes it one to be put before another. It may also return a `Link` of kind "rule".

  n, f   clients that are there, and of them attackers at most
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from fedjax_core import option_types, registry
from fedjax_core.algorithm import Array
from fedjax_core.option_types import AtLeastOne, Positive
from fedjax_core.uplink.distances import nearest, squared
from fedjax_core.uplink.flatten import checked, length, mean_of
from fedjax_core.uplink.ordering import columns
from fedjax_core.uplink.sharded_aggregation import lengths
from fedjax_core.uplink.transform import Link, Reduction

Rule = Callable[[Array, Array], Array]
Attackers = Annotated[float, option_types.Limit("a fraction in [0, 0.5)", lambda v: 0 <= v < 0.5)]


def counts(there: Array, attackers: float) -> tuple[Array, Array]:
    """(n, f)."""
    n = jnp.sum(there)
    return n, jnp.floor(attackers * n + 1e-4).astype(n.dtype)  # 0.3 of 10 are 3, in float32 too


def _sorted(rows: Array, there: Array) -> Array:
    """Each coordinate's values in order, those that are not there last."""
    return columns(jnp.where(there[:, None], rows, jnp.inf))


def mean() -> Link:
    """The method's own weighted mean; with it, as with every rule, a client that sends something not finite is left out."""
    return Link("rule", "mean")


def median() -> Rule:
    """Median of each coordinate: Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning. ICML 2018, Def. 1."""

    def rule(rows, there):
        return _median_of_sorted(_sorted(rows, there), jnp.sum(there))

    return rule


def _median_of_sorted(ordered: Array, n: Array) -> Array:
    """Returns each column's median, [D], of its first n values, which are in ascending order."""
    low, high = ordered[jnp.maximum(n - 1, 0) // 2], ordered[n // 2]
    return jnp.where(n > 0, low / 2 + high / 2, 0)


def trimmed_mean(attackers: Attackers = 0.2) -> Rule:
    """Mean of each coordinate without its f largest and f smallest values: Yin et al., ICML 2018, Definition 2."""

    def rule(rows, there):
        n, f = counts(there, attackers)
        rank = jnp.arange(len(rows))
        return mean_of(_sorted(rows, there), (rank >= f) & (rank < n - f))

    return rule


def krum(attackers: Attackers = 0.2) -> Rule:
    """The one vector that is closest to its n - f - 2 nearest others, by the sum of squared distances.

    Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries. NeurIPS 2017."""

    def rule(rows, there):
        scores = krum_scores(squared(rows, there), there, counts(there, attackers)[1])
        return jnp.where(jnp.any(there), rows[jnp.argmin(scores)], 0)

    return rule


def multi_krum(attackers: Attackers = 0.2) -> Rule:
    """Mean of the n - f vectors with the lowest scores of Krum: Blanchard et al., NeurIPS 2017."""

    def rule(rows, there):
        n, f = counts(there, attackers)
        scores = krum_scores(squared(rows, there), there, f)
        return mean_of(rows, there & (_rank(scores) < n - f))

    return rule


def krum_scores(apart: Array, there: Array, f: Array) -> Array:
    """[C] sums over the n - f - 2 nearest others, at least one, of squared distances [C, C]; infinite where nobody is, and there
    alone, so that nobody is never chosen before somebody whose distances overflow."""
    n = jnp.sum(there)
    others = jnp.sort(jnp.where(jnp.eye(len(apart), dtype=bool), jnp.inf, apart), 1)
    near = jnp.arange(len(apart))[None] < jnp.maximum(n - f - 2, 1)
    scores = jnp.sum(jnp.where(near & (n > 1), others, 0), 1)
    return jnp.where(there, jnp.minimum(scores, jnp.finfo(scores.dtype).max), jnp.inf)


def _rank(scores: Array) -> Array:
    """[C] the place of each in ascending order."""
    return jnp.argsort(jnp.argsort(scores, stable=True), stable=True)


def bulyan(attackers: Attackers = 0.2) -> Rule:
    """Of n - 2f vectors, chosen by Krum one after another, each coordinate's mean of the n - 4f values closest to their median.

    El Mhamdi, Guerraoui, Rouault. The Hidden Vulnerability of Distributed Learning in Byzantium. ICML 2018. Its guarantee needs
    n >= 4f + 3; f is taken as (n - 3) / 4 where it is more."""

    def rule(rows, there):
        n, f = counts(there, attackers)
        f = jnp.minimum(f, jnp.maximum(n - 3, 0) // 4)
        apart, take = squared(rows, there), n - 2 * f

        def choose(i, chosen):
            left = there & ~chosen
            among = jnp.where(left[:, None] & left[None], apart, jnp.inf)
            best = jnp.argmin(krum_scores(among, left, f))
            return chosen.at[best].set(chosen[best] | (i < take))

        chosen = jax.lax.fori_loop(0, len(rows), choose, jnp.zeros(len(rows), bool))
        return _nearest_mean(rows, chosen, take - 2 * f)

    return rule


def _nearest_mean(rows: Array, there: Array, number: Array) -> Array:
    """Returns each coordinate's mean of the `number` values closest to its median, [D].

    Of values that are equally far on either side, where not all of them count, the mean of two
    choices: as many as can be from below, and as many as can be from above.
    """
    ordered, n, rank = _sorted(rows, there), jnp.sum(there), jnp.arange(len(rows))[:, None]
    middle = _median_of_sorted(ordered, n)[None]
    # The closest values stand side by side, so that the radius is that of the best of all windows.
    last = jnp.take(ordered, rank[:, 0] + number - 1, 0, mode="fill", fill_value=jnp.inf)
    farthest = jnp.maximum(middle - ordered, last - middle)
    radius = jnp.min(jnp.where(rank + number <= n, farthest, jnp.inf), 0, keepdims=True)
    inside = jnp.abs(ordered - middle) < radius
    below = (middle - ordered == radius) & (rank < n)
    above = (ordered - middle == radius) & (ordered > middle) & (rank < n)
    free = number - jnp.sum(inside, 0, keepdims=True)
    at_below = jnp.sum(below, 0, keepdims=True)
    at_above = jnp.sum(above, 0, keepdims=True)
    from_below = (jnp.minimum(free, at_below) + jnp.maximum(free - at_above, 0)) / 2
    weight_below = from_below / jnp.maximum(at_below, 1)
    weight_above = (free - from_below) / jnp.maximum(at_above, 1)
    weights = jnp.where(inside, 1, jnp.where(below, weight_below, weight_above * above))
    return jnp.sum(jnp.where(weights > 0, weights * ordered, 0), 0) / jnp.maximum(number, 1)


def geometric_median(iterations: AtLeastOne = 8, smoothing: Positive = 1e-6) -> Rule:
    """The point with the least sum of distances, by smoothed Weiszfeld steps from the median of each coordinate.

    Pillutla, Kakade, Harchaoui. Robust Aggregation for Federated Learning. IEEE TSP 2022, Algorithm 2. `smoothing` is the least
    distance nu."""

    def rule(rows, there):
        def step(_, z):
            w = jnp.where(there, 1 / jnp.maximum(lengths(rows - z[None]), smoothing), 0)
            total = jnp.matmul(w, rows, precision=jax.lax.Precision.HIGHEST)
            return total / jnp.maximum(jnp.sum(w), jnp.finfo(rows.dtype).tiny)

        return jax.lax.fori_loop(0, iterations, step, median()(rows, there))

    return rule


def centred_clipping(radius: Positive = 1.0, iterations: AtLeastOne = 1) -> Link:
    """A centre, plus the mean of the differences to it, each clipped to length `radius`.

    Karimireddy, He, Jaggi. Learning from History for Byzantine Robust Optimization. ICML 2021, Algorithm 2. The centre is what the
    round before has given, zero at first; of class means it is the median of each coordinate. A round without
    anybody gives zeros, and leaves the centre as it was."""

    def combine(joined, memory, key):
        del key
        rows, there = joined[0], joined[1] > 0

        def step(_, v):
            away = rows - v[None]
            shrink = jnp.minimum(1, radius / jnp.maximum(lengths(away), 1e-30))
            return v + mean_of(away * shrink[:, None], there)

        begin = median()(rows, there) if isinstance(memory, tuple) else memory
        centre = jax.lax.fori_loop(0, iterations, step, begin)
        return jnp.where(jnp.any(there), centre, 0), memory if isinstance(memory, tuple) else centre, {}

    reduction = Reduction(_together, "stack", combine, divides=True)
    return Link("rule", "centred_clipping", reduction=reduction, memory=lambda like: jnp.zeros(length(like.deltas)))


def norm_bound(bound: Positive = 1.0) -> Link:
    """The method's weighted mean of vectors scaled down to length `bound`, streamed; the record says how many were.

    Sun, Kairouz, Suresh, McMahan. Can You Really Backdoor Federated Learning? 2019."""

    def lift(row, weight, sender):
        del sender
        size = jnp.linalg.norm(row)
        held = row * jnp.minimum(1, bound / jnp.maximum(size, 1e-30))
        there = (weight > 0).astype(jnp.float32)
        return weight * held, weight, there * (size > bound), there

    def combine(joined, memory, key):
        del key
        total, weight, clipped, number = joined
        return total / jnp.maximum(weight, jnp.finfo(total.dtype).tiny), memory, {"norm_bound/clipped": (clipped, number)}

    def check(method, like):
        if like.classes:
            raise ValueError(f"rule 'norm_bound' shortens deltas; {method} sends class means, whose lengths mean something")

    return Link("rule", "norm_bound", reduction=Reduction(lift, "add", combine), check=check)


def mixing(attackers: Attackers = 0.2) -> Rule:
    """Stands before a rule: each vector becomes the mean of its n - f nearest, itself among them.

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan. Fixing by Mixing. AISTATS 2023."""

    def before(rows, there):
        n, f = counts(there, attackers)
        w = nearest(squared(rows, there), there, n - f)
        mixed = jnp.matmul(w, rows, precision=jax.lax.Precision.HIGHEST) / jnp.maximum(jnp.sum(w, 1), 1)[:, None]
        return jnp.where(there[:, None], mixed, 0)

    return before


def _together(row, weight, sender):
    del sender
    return row, weight


RULES: dict[str, Callable[..., Any]] = {
    "mean": mean,
    "median": median,
    "trimmed_mean": trimmed_mean,
    "krum": krum,
    "multi_krum": multi_krum,
    "bulyan": bulyan,
    "geometric_median": geometric_median,
    "centred_clipping": centred_clipping,
    "norm_bound": norm_bound,
    "mixing": mixing,
}
BEFORE = ("mixing",)  # those built in that give rows, for another rule


def found(text: str) -> list[registry.Found]:
    """A rule, and before it what stands there; see `parse`."""
    return [registry.find("rule", part.strip(), RULES, field="aggregation.rule") for part in text.split("|")]


def parse(text: str) -> Link:
    """A rule by name, with what stands before it.

    Args:
      text: "rule(option=literal, ...)" or "mixing(...) | rule(...)", names and options those of the functions in `RULES`.

    Raises:
      ValueError, TypeError: an unknown name, option or value; "mixing" stands last, or before a rule that streams.

    Example:
      >>> rule = parse("median")
      >>> rule.kind, rule.name
      ('rule', 'median')
    """
    *before, last = found(text)
    if last.name in BEFORE:
        raise ValueError(
            f"aggregation.rule={option_types.short(text)}: {last.name} gives every client's vector; put a rule behind it, '| krum'"
        )
    made = last()
    own = f"rule {last.name!r}"
    reduction = None if isinstance(made, Link) else of_rows(made, own, last.origin == registry.BUILT_IN)
    link = made if isinstance(made, Link) else Link("rule", last.name, reduction=reduction)
    mixers = [one() for one in before]
    if not mixers:
        return link
    if any(isinstance(one, Link) for one in mixers):
        name = next(one.name for one, made in zip(before, mixers, strict=True) if isinstance(made, Link))
        raise ValueError(
            f"aggregation.rule={option_types.short(text)}: {name} cannot stand before another rule; {', '.join(BEFORE)} can"
        )
    if link.reduction is None or link.reduction.join != "stack":
        raise ValueError(f"aggregation.rule={option_types.short(text)}: {last.name} streams, so that nothing can stand before it")
    changes = [(f"rule {one.name!r}, which stands before another,", made) for one, made in zip(before, mixers, strict=True)]
    return link._replace(reduction=after(changes, link.reduction, all(one.origin == registry.BUILT_IN for one in before)))


def of_rows(rule: Rule, who: str, divides: bool = False) -> Reduction:
    """The reduction by a function of all rows; `who` for messages, `divides` as in `Reduction`."""

    def combine(joined, memory, key):
        del key
        rows, weights = joined
        return checked(rule(rows, weights > 0), rows.shape[1:], who), memory, {}

    return Reduction(_together, "stack", combine, divides)


def after(before: Sequence[tuple[str, Rule]], reduction: Reduction, divides: bool = False) -> Reduction:
    """A reduction by the rows that others have changed, pairs (who, for messages, rule); `divides` where these may have parts of
    the coordinates."""

    def combine(joined, memory, key):
        rows, weights = joined
        for who, change in before:
            rows = checked(change(rows, weights > 0), rows.shape, who)
        return reduction.combine((rows, weights), memory, key)

    return reduction._replace(combine=combine, divides=divides and reduction.divides)
