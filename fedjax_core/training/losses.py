"""Pure losses: arrays in, one scalar out. Rows outside `mask` [B] count for nothing and may hold anything."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array, PyTree, targets_of
from fedjax_core.option_types import Fraction, NonNegative

TINY = 1e-24  # squared length below which a vector counts as zero
ABSENT = -1e8  # logits below it are of classes that are not there: of other episodes, of options that a question has not
OfLabels = Callable[[Array, Array, Array], Array]  # a network's outputs, y, mask [B] -> the mean over the rows in `mask`


def rounding(*of: PyTree) -> float:
    """How far rounding may take apart what two programs compute of the same numbers, relative to its length: 4 eps + 80 eps32.

    eps is that of the coarsest floating dtype among the leaves of `of` (features as they come, the weights that made them), eps32
    that of float32, in which sums are formed whatever the leaves are. A number that is stored is off by 0.2 eps (root mean square).
    Two programs may store at different places: with k stores on the way they end sqrt(2 k) 0.2 eps apart, which is 2.3 eps for 32
    blocks with two stores each. A sum of n terms in another order is off by another sqrt(n) 0.2 eps32: of 4096 terms, 32 times on
    the way, 72 eps32. The rule lies just above both, at 1e-5 in float32 and 0.03 in bfloat16. Measured on vision transformers of 6
    blocks, by two programs on a CPU: 5e-7 and 0.014.
    """
    eps = [jnp.finfo(x.dtype).eps for x in jax.tree.leaves(of) if jnp.issubdtype(x.dtype, jnp.floating)]
    single = float(jnp.finfo(jnp.float32).eps)
    return 4 * max(map(float, eps), default=single) + 80 * single


def masked_mean(values: Array, mask: Array) -> Array:
    """Mean of `values` [B] over the rows in `mask` [B]; 0 if there are none, with a zero gradient."""
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(jnp.sum(mask), 1)


def cross_entropy_rows(logits: Array, y: Array) -> Array:
    """-log softmax(logits)[y] for each row: [B, K], [B] -> [B]; or for each token, [B, T, V], [B, T] -> [B, T]."""
    picked = jnp.take_along_axis(logits, y[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked


def counted(y: Array, mask: Array) -> Array:
    """Which targets count: those in `mask` [B]; of sequences [B, T] only the tokens that are not negative, [B, T]."""
    return mask if y.ndim == 1 else mask[:, None] & (y >= 0)


def cross_entropy(logits: Array, y: Array, mask: Array) -> Array:
    """Mean cross-entropy of `logits` [B, K] with class indices `y` [B].

    Of sequences, [B, T, V] with [B, T], the mean over all tokens of the rows in `mask` but those whose target is negative.
    """
    return masked_mean(cross_entropy_rows(logits, jnp.maximum(y, 0)), counted(y, mask))


def sigmoid_cross_entropy(logits: Array, y: Array, mask: Array) -> Array:
    """Mean over the rows in `mask`, and over the K labels, of -log sigmoid(logit) where y [B, K] is 1, and of -log sigmoid(-logit)
    where it is 0."""
    return masked_mean(jnp.mean(sigmoid_cross_entropy_entries(logits, y), axis=-1), mask)


def sigmoid_cross_entropy_entries(logits: Array, y: Array) -> Array:
    """The cross-entropy of each label alone: [B, K], [B, K] 0 or 1 -> [B, K]."""
    return jax.nn.softplus(logits) - jnp.where(y > 0, logits, 0)


def of_targets(outputs: Array, y: Array, mask: Array) -> Array:
    """The loss that fits the targets (`algorithm.TARGETS`): of classes and tokens `cross_entropy`, of several labels
    `sigmoid_cross_entropy`, of numbers `squared_error`."""
    fits = {"labels": sigmoid_cross_entropy, "numbers": squared_error}
    return fits.get(targets_of(y), cross_entropy)(outputs, y, mask)


def smoothed(logits: Array, y: Array, mask: Array, epsilon: Fraction = 0.1) -> Array:
    """Cross-entropy with smoothed labels: 1 - epsilon at the label and epsilon over all classes evenly (Szegedy et al. 2016,
    Section 7), but those whose logit is below `ABSENT`; arguments otherwise as in `cross_entropy`."""
    rows = cross_entropy_rows(logits, jnp.maximum(y, 0))
    there = logits > ABSENT
    mean = jnp.sum(jnp.where(there, logits, 0), -1) / jnp.maximum(jnp.sum(there, -1), 1)
    even = jax.nn.logsumexp(logits, axis=-1) - mean
    return masked_mean((1 - epsilon) * rows + epsilon * even, counted(y, mask))


def focal(logits: Array, y: Array, mask: Array, gamma: NonNegative = 2.0) -> Array:
    """The focal loss (1 - p)^gamma (-log p), p the label's probability (Lin et al. 2017, Eq. 4); gamma 0 is `cross_entropy`."""
    rows = cross_entropy_rows(logits, jnp.maximum(y, 0))
    some = rows > 0  # at 0 a power below 1 has no derivative, and 0 times none is NaN
    factor = jnp.where(some, (-jnp.expm1(-jnp.where(some, rows, 1))) ** gamma, 0.0**gamma)
    return masked_mean(factor * rows, counted(y, mask))


def squared_error(logits: Array, y: Array, mask: Array) -> Array:
    """Mean squared difference of `logits`, a network's numbers, and `y` [B, D], over all entries of the rows in `mask`."""
    return masked_mean(jnp.mean((logits - y) ** 2, axis=-1), mask)


def absolute_error(logits: Array, y: Array, mask: Array) -> Array:
    """Mean absolute difference of `logits`, a network's numbers, and `y` [B, D], over the rows in `mask`.

    Entries that are equal up to `rounding`, relative to their row, count as 0: their gradient would be the sign of the rounding.
    """
    apart = logits - y
    size = jnp.sqrt(jnp.mean(y * y, -1, keepdims=True))
    sign = jnp.where(jnp.abs(apart) > rounding(logits, y) * size, jnp.sign(apart), 0)
    return masked_mean(jnp.mean(apart * jax.lax.stop_gradient(sign), axis=-1), mask)


def lengths(x: Array) -> Array:
    """Euclidean lengths along the last axis, [..., D] -> [...]; of zeros it is (nearly) zero, with a zero gradient."""
    return jnp.sqrt(jnp.maximum(jnp.sum(x * x, -1), TINY))


def distances(a: Array, b: Array, tolerance: float) -> Array:
    """Euclidean distances of `a` and `b` along the last axis, [..., D] -> [...]; 0, with a zero gradient, up to `tolerance` |b|.

    For what two programs computed the tolerance is `rounding`. The gradient of a distance has length 1 however small that is: where
    both are the same but for rounding it would be the rounding's direction.
    """
    square = jnp.sum((a - b) ** 2, -1)
    far = square > jnp.maximum(tolerance**2 * jnp.sum(b * b, -1), TINY)
    return jnp.where(far, jnp.sqrt(jnp.where(far, square, 1)), 0)


def unit(x: Array) -> Array:
    """`x` [..., D] scaled to length 1 along the last axis; zeros stay zeros, with a zero gradient."""
    return jnp.where(jnp.sum(x * x, -1, keepdims=True) > TINY, x / lengths(x)[..., None], 0)


def cosines(a: Array, b: Array) -> Array:
    """Cosine between each row of `a` [B, D] and each row of `b` [K, D]: [B, K]; 0 for rows of zeros."""
    return unit(a) @ unit(b).T


def distillation_rows(logits: Array, teacher: Array, temperature: float = 1.0) -> Array:
    """KL(softmax(teacher / temperature) || softmax(logits / temperature)) for each row: [B, K], [B, K] -> [B]; no gradient to the
    teacher, and no factor temperature^2."""
    p = jax.nn.log_softmax(jax.lax.stop_gradient(teacher) / temperature)
    return jnp.sum(jnp.exp(p) * (p - jax.nn.log_softmax(logits / temperature)), -1)


def distillation(logits: Array, teacher: Array, mask: Array, temperature: float = 1.0) -> Array:
    """Mean of `distillation_rows` over the rows in `mask`."""
    return masked_mean(distillation_rows(logits, teacher, temperature), mask)
