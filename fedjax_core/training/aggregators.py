"""Aggregation: how uplinks are reduced over clients, and how the server applies the result.

Weights that are known before training (numbers of examples, uniform) allow a running sum inside the
client loop, with memory independent of the cohort's size; weights that depend on the uplinks need
the stack of them. Server momentum, FedAdam and the like are optax transformations of the mean
delta.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from fedjax_core.algorithm import Array, Cohort, PyTree, Reduce
from fedjax_core.option_types import Fraction, check_arguments
from fedjax_core.training import losses

TINY = float(jnp.finfo(jnp.float32).tiny)

stack = Reduce()


def weight_by_examples(client: Cohort) -> Array:
    """Returns n_i, the number of training examples."""
    return client.examples.astype(jnp.float32)


def weight_uniformly(client: Cohort) -> Array:
    """Returns 1 for a client that took part, else 0."""
    return (client.examples > 0).astype(jnp.float32)


WEIGHT_FNS = {"samples": weight_by_examples, "uniform": weight_uniformly}


def make_weight_fn(name: str) -> Callable[[Cohort], Array]:
    """Returns the weights called "samples" or "uniform"; raises ValueError for another name."""
    if name not in WEIGHT_FNS:
        raise ValueError(f"weights={name!r} is not one of {', '.join(map(repr, WEIGHT_FNS))}")
    return WEIGHT_FNS[name]


def mean(weight_fn: Callable[[Cohort], Array] = weight_by_examples) -> Reduce:
    """Returns the weighted mean over the cohort, as a running sum; zero if no client took part.

    The part must be a difference (payload "delta"), such as net - sent: attacks, rules, compression and
    noise work on it as one. For something else take `mean()._replace(payload="")`, which they refuse.

    `weight_fn`: one client's Cohort entry -> a scalar weight, 0 for absent clients.
    """

    def map_part(part, client):
        w = weight_fn(client)
        return jax.tree.map(lambda x: (w * x).astype(x.dtype), part), w

    def finalize(total):
        return jax.tree.map(lambda s: (s / jnp.maximum(total[1], TINY)).astype(s.dtype), total[0])

    return Reduce(map_part, "add", finalize, "delta", weight_fn)


def mean_by_shape(
    shapes: Sequence[PyTree], shape_index: Sequence[int], weight_fn: Callable[[Cohort], Array] = weight_by_examples
) -> Reduce:
    """Returns means over the clients whose parts have equal shapes, where architectures differ.

    For uplinks that are tuples of trees, the i-th of which has shapes `shapes[shape_index[i]]`; `shapes`
    has those of all groups. `finalize` gives (mean, weight) for each of `shapes`; both zero where
    no client came.
    """

    def map_part(part, client):
        w = weight_fn(client)
        total = [(optax.tree.zeros_like(shape), jnp.zeros_like(w)) for shape in shapes]
        for slot, tree in zip(shape_index, part, strict=True):
            total[slot] = jax.tree.map(lambda x: (w * x).astype(x.dtype), tree), w
        return tuple(total)

    def finalize(total):
        return tuple((jax.tree.map(lambda x, w=w: (x / jnp.maximum(w, TINY)).astype(x.dtype), form), w) for form, w in total)

    return Reduce(map_part, "add", finalize)


def mean_by_index(
    number: int,
    weight_fn: Callable[[Cohort], Array] = weight_by_examples,
    split: Callable[[PyTree, Cohort], tuple[PyTree, Array]] = lambda part, client: part,
) -> Reduce:
    """Returns means over the clients of each index, such as a cluster, as running sums.

    Args:
      number: of indices.
      weight_fn: as in `mean`.
      split: (part, Cohort entry) -> (tree, index []); by default the part is that pair.

    Returns:
      A Reduce whose `finalize` gives (means [number, ...], weights [number], numbers of clients
      [number]); means are zero where no client came.
    """

    def map_part(part, client):
        tree, index = split(part, client)
        w = weight_fn(client) * jax.nn.one_hot(index, number)
        return jax.tree.map(lambda d: jnp.tensordot(w.astype(d.dtype), d, 0), tree), w, (w > 0).astype(jnp.float32)

    def finalize(total):
        trees, w, members = total
        share = lambda d: d / jnp.maximum(w, TINY).astype(d.dtype).reshape(-1, *(1,) * (d.ndim - 1))
        return jax.tree.map(share, trees), w, members

    return Reduce(map_part, "add", finalize)


def class_mean(weights: str = "uniform") -> Reduce:
    """Returns the mean of each class over clients, of uplinks (values [K, ...], counts [K]).

    With "samples" clients have the weights of their counts of the class, else 1. `finalize` gives
    (mean [K, ...], weight [K]), both zero for a class that no client has. Raises ValueError for
    other weights.
    """
    make_weight_fn(weights)  # raises for another name

    def map_part(part, client):
        del client
        values, counts = part
        held = counts > 0
        w = (counts if weights == "samples" else held).astype(values.dtype)
        return jnp.where(_like(held, values), _like(w, values) * values, 0), w

    def finalize(total):
        values, weight = total
        return values / _like(jnp.maximum(weight, 1), values), weight

    return Reduce(map_part, "add", finalize, "class means")


def weighted_logits(beta: ArrayLike) -> Reduce:
    """Returns FedHPL's global logits for each kind of receiver (Eq. 8), as a running sum.

        logits_rc = sum_j beta_rj n_jc mean_jc / (1 + sum_j beta_rj m_jc)

    For uplinks (mean [K, K] the mean logits of each class, n [K] how many they are of), m being n;
    or (mean, n, m) with m [K].

    Args:
      beta: [R, N], the weight of client j for receivers of kind r.

    Returns:
      A Reduce whose `finalize` gives (logits [R, K, K], counts [K] sum_j n_jc); zero for a class that
      no client sent.
    """
    table = jnp.asarray(beta, jnp.float32)

    def map_part(part, client):
        mean, n, *m = part
        w = table[:, client.ids]
        total = jnp.where(n[:, None] > 0, n[:, None] * mean, 0)
        return w[:, None, None] * total[None], w[:, None] * (m[0] if m else n)[None], n

    return Reduce(map_part, "add", lambda total: (total[0] / (1 + total[1])[..., None], total[2]))


def _like(per_class: Array, values: Array) -> Array:
    return per_class.reshape(per_class.shape + (1,) * (values.ndim - per_class.ndim))


def weighted_mean(stacked: PyTree, w: Array) -> PyTree:
    """Returns the weighted mean over the leading client axis; zero where all weights are.

    Args:
      stacked: leaves [C, ...], or [C, K, ...] where `w` has classes.
      w: [C], or [C, K] for a weight per client and class; entries of weight 0 may be anything, NaN
        too.
    """
    total = jnp.maximum(jnp.sum(w, 0), TINY)

    def mean_leaf(x):
        wx = jnp.where(_like(w > 0, x), _like(w, x).astype(x.dtype) * x, 0)
        return jnp.sum(wx, 0) / total.reshape(total.shape + (1,) * (x.ndim - 1 - total.ndim)).astype(x.dtype)

    return jax.tree.map(mean_leaf, stacked)


def mix_clients(stacked: PyTree, w: Array) -> PyTree:
    """Returns linear combinations [R, ...] of the clients [C, ...]: sum_j w_rj x_j, for w [R, C].

    A client whose column of `w` is zero may be anything, NaN too.
    """
    is_used = jnp.any(w != 0, 0)

    def mix_leaf(x):
        x = jnp.where(_like(is_used, x), x, 0)
        return jnp.tensordot(w.astype(x.dtype), x, 1, precision=jax.lax.Precision.HIGHEST)

    return jax.tree.map(mix_leaf, stacked)


def scatter_clients(store: PyTree, cohort: Cohort, rows: PyTree) -> PyTree:
    """Writes the rows [C, ...] of the clients that took part into a server's per-client arrays [N, ...]."""
    ids = lambda kept: jnp.where(cohort.examples > 0, cohort.ids, len(kept))
    return jax.tree.map(lambda kept, new: kept.at[ids(kept)].set(new, mode="drop"), store, rows)


def merge_neighbours(values: Array, held: Array, neighbours: int = 1) -> tuple[Array, Array]:
    """Merges class knowledge: each client's with its nearest, then over clients (FedSKC, Eq. 1).

    Args:
      values: [C, K, D], one vector per client and class.
      held: [C, K], mask of the vectors; the others may be anything.
      neighbours: M, the number of nearest other vectors of a class, or fewer if there are fewer.

    Returns:
      (merged [K, D], mask of classes [K]); zero for a class without any vector.

    Raises:
      ValueError: neighbours is negative.
    """
    if neighbours < 0:
        raise ValueError(f"neighbours={neighbours} must be at least 0")
    values = jnp.where(held[..., None], values, 0)

    def of_class(c, holds):  # [C, D], [C]
        apart = jnp.sum((c[:, None] - c[None]) ** 2, -1)
        others = holds[None] & ~jnp.eye(len(c), dtype=bool)
        near, who = jax.lax.top_k(jnp.where(others, -apart, -jnp.inf), min(neighbours, len(c) - 1))
        is_near = (near > -jnp.inf).astype(c.dtype)  # [C, M], as A(k, i) = 1
        merged = (c + jnp.einsum("cm,cmd->cd", is_near, c[who])) / (1 + jnp.sum(is_near, 1))[:, None]
        return jnp.sum(jnp.where(holds[:, None], merged, 0), 0) / jnp.maximum(jnp.sum(holds), 1)

    return jax.vmap(of_class, 1)(values, held), jnp.any(held, 0)


DiscrepancySize = Literal["fraction", "count"]
DiscrepancyDistance = Literal["mean", "sum"]
DiscrepancyForm = Literal["sigmoid", "relu"]


def discrepancy_weights(
    size: DiscrepancySize = "fraction", distance: DiscrepancyDistance = "mean", form: DiscrepancyForm = "sigmoid"
) -> Callable[..., Array]:
    """Returns the weights of FedSKC's global discrepancy aggregation (Eq. 4).

    Clients with more examples, and with knowledge closer to the merged one, have more weight:

        "sum":      d_k = sum_j |c_k^j - c^j|   over the classes that k holds, as printed
        "mean":     d_k = the mean of these, so that it does not grow with the number of classes
        a_k = d_k / sum d,   b_k = N_k / sum N
        "sigmoid":  e_k ~ sigmoid(size_k - a_k d_k + b_k), as printed
        "relu":     e_k ~ max(b_k - a_k / 2 + 0.1, 0), which has no scale: the form of FedDisco (Ye et al., ICML 2023)

    Knowledge that equals the merged one up to rounding has distance 0. If all d_k are 0, all a_k
    are 0. With "relu" some weight is positive, since they sum to at least 1 - 1/2 + 0.1 C.

    Args:
      size: size_k: "count", N_k as printed, for which the sigmoid is 1 for all but tiny clients; or
        "fraction", b_k. With "relu" always b_k.
      distance: "mean" or "sum".
      form: "sigmoid" or "relu".

    Returns:
      (Cohort, *, values [C, K, D], held [C, K], merged [K, D], ...) -> [C], for
      `make_aggregator(stack, weight_fn=...)`.

    Raises:
      ValueError: another size, distance or form; "relu" with size "count".
    """
    check_arguments(discrepancy_weights, size=size, distance=distance, form=form)
    if form == "relu" and size == "count":
        raise ValueError("size='count' needs form='sigmoid'; with form='relu' the size is b_k")

    def compute_weights(cohort: Cohort, *, values: Array, held: Array, merged: Array, **_: PyTree) -> Array:
        active = cohort.examples > 0
        n = cohort.examples.astype(values.dtype)
        distances = jnp.where(held, losses.euclidean_distances(values, merged[None], losses.rounding_tolerance(values)), 0)
        d = jnp.where(active, jnp.sum(distances, 1), 0)
        d = d / jnp.maximum(jnp.sum(held, 1), 1) if distance == "mean" else d
        a = d / jnp.maximum(jnp.sum(d), TINY)
        b = n / jnp.maximum(jnp.sum(n), 1)
        if form == "relu":
            return jnp.where(active, jnp.maximum(b - a / 2 + 0.1, 0), 0)
        e = jax.nn.log_sigmoid((n if size == "count" else b) - a * d + b)
        return jnp.where(active, jnp.exp(e - jnp.max(jnp.where(active, e, -jnp.inf))), 0)  # up to a common factor

    return compute_weights


class PeriodReview(NamedTuple):
    """State of `period_review`: [K] variances of the last round's class knowledge, and the classes that had any."""

    variance: Array
    known: Array


ReviewForm = Literal["interpolate", "printed"]
ReviewSum = Literal["both", "own"]


def period_review(
    classes: int, beta: Fraction = 0.95, form: ReviewForm = "interpolate", ddof: Literal[0, 1] = 0, over: ReviewSum = "both"
) -> optax.GradientTransformationExtraArgs:
    """Returns FedSKC's global period review (Eq. 5) of the mean delta w - w_prev, from the second round on.

        ratio = (sum_j s2_j - sum_j s2_j of the round before) / sum_j s2_j of the round before
        "interpolate":   w <- w + (1 - beta) ratio (w_prev - w)
        "printed":       w <- beta w + (1 - beta) ratio (w_prev - w)

    w_prev is the model at the start of the round, so no second model is stored. As printed, the
    weights shrink by beta in every round in which the variances agree.

    Args:
      form: "interpolate" or "printed".
      ddof: of the variance over the entries of a class's knowledge: 0, or 1 as in the released
        code.
      over: classes of the sums: "both": known in both rounds; "own": known in each, as in the
        released code.

    Returns:
      A transformation whose update also takes this round's merged knowledge [K, D] and known [K].

    Raises:
      ValueError: beta is outside [0, 1]; another form or `over`; ddof is not 0 or 1.
    """
    check_arguments(period_review, beta=beta, form=form, ddof=ddof, over=over)

    def init(params: PyTree) -> PeriodReview:
        del params
        return PeriodReview(jnp.zeros(classes), jnp.zeros(classes, bool))

    def update(updates, state, params=None, **context):
        knowledge, known = context["knowledge"], context["known"]
        variance = jnp.where(known, jnp.var(knowledge, -1, ddof=ddof), 0)
        if over == "both":
            both = known & state.known
            before = jnp.sum(jnp.where(both, state.variance, 0))
            change = jnp.sum(jnp.where(both, variance - state.variance, 0))
        else:
            before = jnp.sum(state.variance)
            change = jnp.sum(variance) - before
        pull = (1 - beta) * jnp.where(before > 0, change / jnp.maximum(before, TINY), 0)
        second = jnp.any(state.known)
        if form == "printed":  # beta w + pull (w_prev - w) - w_prev = (beta - pull) delta - (1 - beta) w_prev
            reviewed = jax.tree.map(lambda u, w: (beta - pull).astype(u.dtype) * u - (1 - beta) * w, updates, params)
        else:
            reviewed = jax.tree.map(lambda u: (1 - pull).astype(u.dtype) * u, updates)
        return optax.tree.where(second, reviewed, updates), PeriodReview(variance, known)

    return optax.GradientTransformationExtraArgs(init, update)


class Aggregator(NamedTuple):
    """How a server aggregates deltas.

    Attributes:
      collect: the Reduce of the delta.
      init: value -> the review's state.
      update: (value, collected delta, Cohort, state, **context) -> (value, state); an empty cohort changes nothing.
    """

    collect: Reduce
    init: Callable[[PyTree], PyTree]
    update: Callable[..., tuple[PyTree, PyTree]]


def make_aggregator(
    collect: Reduce = mean(),  # noqa: B008 - a Reduce is immutable
    weight_fn: Callable[..., Array] | None = None,
    review: optax.GradientTransformation = optax.identity(),  # noqa: B008
) -> Aggregator:
    """Builds an aggregator: `make_aggregator()` is FedAvg's, `make_aggregator(review=optax.trace(0.9))` FedAvgM's.

    Args:
      collect: how the delta is reduced over clients.
      weight_fn: with collect=stack: (Cohort, **context) -> weights [C] that depend on the uplinks.
      review: transformation of the mean *delta* (not a gradient), such as `optax.trace`,
        `scale_by_adam` or `clip`; an optimizer such as `optax.sgd` would flip the sign.
    """
    reviewed = optax.with_extra_args_support(review)

    def update(value, delta, cohort, state, **context):
        if weight_fn is not None:
            delta = weighted_mean(delta, weight_fn(cohort, **context))
        updates, new_state = reviewed.update(delta, state, value, **context)
        new, old = (optax.apply_updates(value, updates), new_state), (value, state)
        # A float sum joins the all-reduce of the mean; `jnp.any` would need one of its own.
        has_participants = jnp.sum(cohort.examples.astype(jnp.float32)) > 0
        return optax.tree.where(has_participants, new, old)

    return Aggregator(collect, reviewed.init, update)
