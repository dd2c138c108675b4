"""Robust rules: reduce the vectors of a cohort, some of which attackers may have sent, to one.

    config.aggregation.rule = "trimmed_mean(attackers=0.2)"
    config.aggregation.rule = "mixing(attackers=0.2) | krum(attackers=0.2)"  # mixing first

A rule sees all deltas of a client as one vector [D], so that both parts of SCAFFOLD's uplink are
selected together. Class means are reduced class by class, over the clients that have the class.
`attackers` is the largest fraction of the present clients that may attack: f of n, rounded down.
All rules count each client once, but "mean" and "norm_bound", which use the method's weights and
stream. The others need the vectors of the cohort together, C * D numbers.

A user's rule is a function in a module or file, `path/to/file.py:name(option=...)`, or an entry
point of the group `fedjax_core.rules`. It takes options and returns (vectors [C, D], mask [C]) ->
vector [D], in JAX; masked vectors are zeros. One that returns vectors [C, D] can be put before
another rule. It may also return an `UplinkTransform` of kind "rule".

  n, f   number of present clients, and of possible attackers among them
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from fedjax_core import option_types, registry
from fedjax_core.algorithm import Array
from fedjax_core.option_types import AtLeastOne, Positive
from fedjax_core.task import count_parameters
from fedjax_core.training import aggregators
from fedjax_core.uplink.layout import check_shape, masked_mean
from fedjax_core.uplink.sharded_aggregation import row_norms, sum_over_devices
from fedjax_core.uplink.transform import UplinkTransform, VectorReduce

Rule = Callable[[Array, Array], Array]
Attackers = Annotated[float, option_types.Limit("a fraction in [0, 0.5)", lambda v: 0 <= v < 0.5)]


def count_attackers(mask: Array, attackers: float) -> tuple[Array, Array]:
    """Returns n and f, less than half of n."""
    n = jnp.sum(mask)
    f = jnp.floor(attackers * n + 1e-4).astype(n.dtype)  # 0.3 of 10 is 3, also in float32
    return n, jnp.minimum(f, jnp.maximum(n - 1, 0) // 2)  # as float32, 0.5 - 1e-9 is 0.5


# Coordinate-wise rules.


def mean() -> UplinkTransform:
    """The method's own weighted mean."""
    return UplinkTransform("rule", "mean")


def median() -> Rule:
    """Coordinate-wise median.

    Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning. ICML 2018.
    """

    def rule(vectors, mask):
        return _median_of_sorted(_sort_present(vectors, mask), jnp.sum(mask))

    return rule


def _median_of_sorted(ordered: Array, n: Array) -> Array:
    """Returns the median [D] of each column's first n values, which are in ascending order."""
    low, high = ordered[jnp.maximum(n - 1, 0) // 2], ordered[n // 2]
    return jnp.where(n > 0, low / 2 + high / 2, 0)


def trimmed_mean(attackers: Attackers = 0.2) -> Rule:
    """Coordinate-wise mean without the f largest and f smallest values: Yin et al., Def. 2."""

    def rule(vectors, mask):
        n, f = count_attackers(mask, attackers)
        rank = jnp.arange(len(vectors))
        return masked_mean(_sort_present(vectors, mask), (rank >= f) & (rank < n - f))

    return rule


def _sort_present(vectors: Array, mask: Array) -> Array:
    """Returns each coordinate's values in ascending order, with those of absent clients last."""
    return sort_columns(jnp.where(mask[:, None], vectors, jnp.inf))


MAX_NETWORK_ROWS = 512  # a network has log2(n)^2 / 2 stages, all of them compiled
BLOCK = 256  # columns at a time, which fit a core's cache


def sort_columns(x: Array) -> Array:
    """Sorts each column of [C, D] in ascending order; a column with a NaN may become all NaN.

    On a CPU XLA's sort calls a comparator for each pair. A network of minima and maxima needs none:
    for a hundred clients it is about eight times as fast, and compiles faster. The values are the
    same.

    Batcher. Sorting Networks and Their Applications. AFIPS 1968 (bitonic, with the second half of
    each merge reversed).
    """
    if not (1 < len(x) <= MAX_NETWORK_ROWS and x.size):
        return jnp.sort(x, 0)
    return jax.lax.platform_dependent(x, cpu=_sort_by_network, default=lambda x: jnp.sort(x, 0))


def _sort_by_network(x: Array) -> Array:
    c, d = x.shape
    width = min(BLOCK, d)
    n, blocks = 1 << (c - 1).bit_length(), -(-d // width)
    padding = (0, n - c), (0, blocks * width - d)
    x = jnp.pad(x, padding, constant_values=jnp.inf).reshape(n, blocks, width)

    def sort_block(i: Array) -> Array:
        return _sorting_network(jax.lax.dynamic_index_in_dim(x, i, 1, keepdims=False))[:c]

    return jax.lax.map(sort_block, jnp.arange(blocks)).swapaxes(0, 1).reshape(c, -1)[:, :d]


def _sorting_network(x: Array) -> Array:
    """Sorts the columns of [n, B], where n is a power of two."""
    n = len(x)
    for size in (2**i for i in range(1, n.bit_length())):
        pairs = x.reshape(n // size, 2, size // 2, -1)
        low, high = pairs[:, 0], pairs[:, 1, ::-1]
        merged = [jnp.minimum(low, high), jnp.maximum(low, high)[:, ::-1]]
        x = jnp.concatenate(merged, 1).reshape(n, -1)
        for distance in (2**i for i in range(size.bit_length() - 3, -1, -1)):
            pairs = x.reshape(n // (2 * distance), 2, distance, -1)
            low, high = pairs[:, 0], pairs[:, 1]
            x = jnp.stack([jnp.minimum(low, high), jnp.maximum(low, high)], 1).reshape(n, -1)
    return x


# Rules by distances between vectors.


def krum(attackers: Attackers = 0.2) -> Rule:
    """The vector that is closest to its n - f - 2 nearest others, by the sum of squared distances.

    Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries. NeurIPS 2017. Its
    guarantee needs n >= 2f + 3.
    """

    def rule(vectors, mask):
        scores = krum_scores(squared_distances(vectors, mask), mask, count_attackers(mask, attackers)[1])
        return jnp.where(jnp.any(mask), vectors[jnp.argmin(scores)], 0)

    return rule


def multi_krum(attackers: Attackers = 0.2) -> Rule:
    """Mean of the n - f vectors with the lowest scores of Krum: Blanchard et al., NeurIPS 2017."""

    def rule(vectors, mask):
        n, f = count_attackers(mask, attackers)
        scores = krum_scores(squared_distances(vectors, mask), mask, f)
        rank = jnp.argsort(jnp.argsort(scores, stable=True), stable=True)
        return masked_mean(vectors, mask & (rank < n - f))

    return rule


def squared_distances(vectors: Array, mask: Array) -> Array:
    """Returns the squared distances [C, C] of vectors [C, D].

    They are infinite from and to absent clients, and where they overflow. They are computed by one
    matrix product of the vectors less that of median norm, which is an honest client's if most are:
    so no attacker's norm decides how the distances of others are rounded.
    """
    norms = jnp.where(mask, row_norms(vectors), jnp.inf)
    center = jnp.argsort(norms)[jnp.maximum(jnp.sum(mask) - 1, 0) // 2]
    centered = vectors - vectors[center][None]
    gram = sum_over_devices(jnp.matmul(centered, centered.T, precision=jax.lax.Precision.HIGHEST))
    gram = (gram + gram.T) / 2  # symmetric to the last bit
    norms = jnp.diagonal(gram)
    distances = jnp.maximum(norms[:, None] + norms[None] - 2 * gram, 0)
    distances = jnp.where(jnp.eye(len(vectors), dtype=bool), 0, distances)
    is_valid = mask[:, None] & mask[None] & jnp.isfinite(distances)
    return jnp.where(is_valid, distances, jnp.inf)


def krum_scores(distances: Array, mask: Array, f: Array) -> Array:
    """Returns sums [C] of squared distances to the n - f - 2 nearest others, at least one.

    Scores of absent clients, and only they, are infinite: an absent client is never chosen before
    one whose distances overflow.
    """
    n = jnp.sum(mask)
    others = jnp.sort(jnp.where(jnp.eye(len(distances), dtype=bool), jnp.inf, distances), 1)
    is_near = jnp.arange(len(distances))[None] < jnp.maximum(n - f - 2, 1)
    scores = jnp.sum(jnp.where(is_near, others, 0), 1)
    return jnp.where(mask, jnp.minimum(scores, jnp.finfo(scores.dtype).max), jnp.inf)


def bulyan(attackers: Attackers = 0.2) -> Rule:
    """Mean of values closest to the median, of n - 2f vectors selected by repeated Krum.

    El Mhamdi, Guerraoui, Rouault. The Hidden Vulnerability of Distributed Learning in Byzantium.
    ICML 2018. Its guarantee needs n >= 4f + 3; f is at most (n - 3) / 4 here.
    """

    def rule(vectors, mask):
        n, f = count_attackers(mask, attackers)
        f = jnp.minimum(f, count_withstood(n, PER_ATTACKER[bulyan]))
        distances, num_selected = squared_distances(vectors, mask), n - 2 * f

        def select_next(i, selected):
            left = mask & ~selected
            among = jnp.where(left[:, None] & left[None], distances, jnp.inf)
            best = jnp.argmin(krum_scores(among, left, f))
            return selected.at[best].set(selected[best] | (i < num_selected))

        selected = jax.lax.fori_loop(0, len(vectors), select_next, jnp.zeros(len(vectors), bool))
        return _nearest_mean(vectors, selected, num_selected - 2 * f)

    return rule


PER_ATTACKER = {krum: 2, multi_krum: 2, bulyan: 4}  # m, where f attackers need m f + 3 clients


def count_withstood(n: Array | int, per_attacker: int) -> Array:
    """Returns the most attackers f for which n >= per_attacker * f + 3."""
    return jnp.maximum(n - 3, 0) // per_attacker


def _nearest_mean(vectors: Array, mask: Array, number: Array) -> Array:
    """Returns each coordinate's mean of the `number` values closest to its median, [D].

    Of values that are equally far on either side, where not all of them count, it is the mean of
    two choices: as many as possible from below, and as many as possible from above.
    """
    ordered, n, rank = _sort_present(vectors, mask), jnp.sum(mask), jnp.arange(len(vectors))[:, None]
    middle = _median_of_sorted(ordered, n)[None]
    # The closest values are adjacent, so that the radius is that of the best of all windows.
    last = jnp.take(ordered, rank[:, 0] + number - 1, 0, mode="fill", fill_value=jnp.inf)
    farthest = jnp.maximum(middle - ordered, last - middle)
    radius = jnp.min(jnp.where(rank + number <= n, farthest, jnp.inf), 0, keepdims=True)
    inside = jnp.abs(ordered - middle) < radius
    below = (middle - ordered == radius) & (rank < n)
    above = (ordered - middle == radius) & (ordered > middle) & (rank < n)
    free = number - jnp.sum(inside, 0, keepdims=True)
    num_below = jnp.sum(below, 0, keepdims=True)
    num_above = jnp.sum(above, 0, keepdims=True)
    from_below = (jnp.minimum(free, num_below) + jnp.maximum(free - num_above, 0)) / 2
    weight_below = from_below / jnp.maximum(num_below, 1)
    weight_above = (free - from_below) / jnp.maximum(num_above, 1)
    weights = jnp.where(inside, 1, jnp.where(below, weight_below, weight_above * above))
    return jnp.sum(jnp.where(weights > 0, weights * ordered, 0), 0) / jnp.maximum(number, 1)


def mixing(attackers: Attackers = 0.2) -> Rule:
    """Precedes a rule: replaces each vector by the mean of its n - f nearest and itself.

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan. Fixing by Mixing. AISTATS 2023.
    """

    def rule(vectors, mask):
        n, f = count_attackers(mask, attackers)
        weights = _nearest_mask(squared_distances(vectors, mask), mask, n - f)
        totals = jnp.matmul(weights, vectors, precision=jax.lax.Precision.HIGHEST)
        return totals / jnp.maximum(jnp.sum(weights, 1), 1)[:, None]

    return rule


def _nearest_mask(distances: Array, mask: Array, number: Array) -> Array:
    """Returns a float mask [C, C] of the `number` vectors nearest to each, with itself at distance 0."""
    rank = jnp.argsort(jnp.argsort(distances, 1, stable=True), 1, stable=True)
    return ((rank < number) & mask[:, None] & mask[None]).astype(jnp.float32)


# Rules by norms of vectors.


def geometric_median(iterations: AtLeastOne = 8, smoothing: Positive = 1e-6) -> Rule:
    """The point with the least sum of distances, by smoothed Weiszfeld steps.

    Pillutla, Kakade, Harchaoui. Robust Aggregation for Federated Learning. IEEE TSP 2022, Algorithm
    2. `smoothing` is the smallest distance nu.
    """

    def rule(vectors, mask):
        def step(_, z):
            norms = row_norms(vectors - z[None])
            weights = jnp.where(mask, 1 / jnp.maximum(norms, smoothing), 0)
            total = jnp.matmul(weights, vectors, precision=jax.lax.Precision.HIGHEST)
            return aggregators.divide_by_weight(total, jnp.sum(weights))

        return jax.lax.fori_loop(0, iterations, step, median()(vectors, mask))

    return rule


def centred_clipping(radius: Positive = 1.0, iterations: AtLeastOne = 1) -> UplinkTransform:
    """A center plus the mean of the differences to it, each clipped to norm `radius`.

    Karimireddy, He, Jaggi. Learning from History for Byzantine Robust Optimization. ICML 2021,
    Algorithm 2. The center is the result of the round before, zero at first; for class means it is
    the coordinate-wise median. A round without clients gives zeros, and keeps the center.
    """

    def finalize(combined, memory, key):
        del key
        vectors, mask = combined[0], combined[1] > 0
        has_memory = not isinstance(memory, tuple)

        def step(_, v):
            differences = vectors - v[None]
            shrink = jnp.minimum(1, radius / jnp.maximum(row_norms(differences), 1e-30))
            return v + masked_mean(differences * shrink[:, None], mask)

        start = memory if has_memory else median()(vectors, mask)
        center = jax.lax.fori_loop(0, iterations, step, start)
        return jnp.where(jnp.any(mask), center, 0), center if has_memory else memory, {}

    reduce = VectorReduce(_keep_vector, "stack", finalize, shardable=True)
    return UplinkTransform(
        "rule", "centred_clipping", reduce=reduce, init_memory=lambda shapes: jnp.zeros(count_parameters(shapes.deltas))
    )


def norm_bound(bound: Positive = 1.0) -> UplinkTransform:
    """The method's weighted mean of vectors scaled to norm `bound` or less, streamed.

    Sun, Kairouz, Suresh, McMahan. Can You Really Backdoor Federated Learning? 2019.
    """

    def map_bounded(vector, weight, context):
        del context
        norm = jnp.linalg.norm(vector)
        bounded = vector * jnp.minimum(1, bound / jnp.maximum(norm, 1e-30))
        is_present = (weight > 0).astype(jnp.float32)
        return weight * bounded, weight, is_present * (norm > bound), is_present

    def finalize(combined, memory, key):
        del key
        total, weight, clipped, number = combined
        return aggregators.divide_by_weight(total, weight), memory, {"norm_bound/clipped": (clipped, number)}

    def check(method, shapes):
        if shapes.class_means:
            raise ValueError(f"rule 'norm_bound' is for deltas; {method} sends class means, whose norms have a meaning")

    return UplinkTransform("rule", "norm_bound", reduce=VectorReduce(map_bounded, "add", finalize), check=check)


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
PRECEDING = ("mixing",)  # built-in rules that return vectors, for another rule


def find_rules(text: str) -> list[registry.ResolvedSpec]:
    """Returns the specifications of a rule and those before it; see `parse_rule`."""
    return [registry.resolve_spec("rule", part.strip(), RULES, field="aggregation.rule") for part in text.split("|")]


def parse_rule(text: str) -> UplinkTransform:
    """Returns a rule by name, with the rules before it.

    Args:
      text: "rule(option=literal, ...)" or "mixing(...) | rule(...)", with the names and options of
        `RULES`.

    Raises:
      ValueError, TypeError: an unknown name, option or value; "mixing" is last, or before a rule
        that streams.

    Example:
      >>> rule = parse_rule("median")
      >>> rule.kind, rule.name
      ('rule', 'median')
    """
    *preceding, last = find_rules(text)
    field = f"aggregation.rule={option_types.shorten(text)}"
    if last.name in PRECEDING:
        raise ValueError(f"{field}: {last.name} returns a vector for every client; add a rule after it, '| krum'")
    transform = last()
    if not isinstance(transform, UplinkTransform):
        is_builtin = last.origin == registry.BUILT_IN
        transform = UplinkTransform("rule", last.name, reduce=_reduce_by(transform, f"rule {last.name!r}", is_builtin))
    if transform.kind != "rule":
        wants = "must return an UplinkTransform of kind 'rule'"
        raise ValueError(f"{field}: {last.name} {wants}, its kind is {transform.kind!r}")
    steps = [(spec.name, spec()) for spec in preceding]
    for name, step in steps:
        if isinstance(step, UplinkTransform):
            raise ValueError(f"{field}: {name} cannot precede another rule; {', '.join(PRECEDING)} can")
    if not steps:
        return transform
    if transform.reduce is None or transform.reduce.combine != "stack":
        raise ValueError(f"{field}: {last.name} streams, so that no rule can precede it")
    are_builtin = all(spec.origin == registry.BUILT_IN for spec in preceding)
    return transform._replace(reduce=_precede(steps, transform.reduce, are_builtin))


def _keep_vector(vector: Array, weight: Array, context: Any) -> tuple[Array, Array]:
    del context
    return vector, weight


def _reduce_by(rule: Rule, source: str, shardable: bool) -> VectorReduce:
    """Returns the reduction by a rule; `source` is the subject of messages."""

    def finalize(combined, memory, key):
        del key
        vectors, weights = combined
        return check_shape(rule(vectors, weights > 0), vectors.shape[1:], source), memory, {}

    return VectorReduce(_keep_vector, "stack", finalize, shardable)


def _precede(steps: Sequence[tuple[str, Rule]], reduce: VectorReduce, shardable: bool) -> VectorReduce:
    """Returns a reduction of vectors that other rules, pairs (name, rule), change first."""

    def finalize(combined, memory, key):
        vectors, weights = combined
        for name, rule in steps:
            source = f"rule {name!r}, which precedes another,"
            vectors = check_shape(rule(vectors, weights > 0), vectors.shape, source)
        return reduce.finalize((vectors, weights), memory, key)

    return reduce._replace(finalize=finalize, shardable=shardable and reduce.shardable)
