"""Losses as pure functions of arrays. Examples outside of `mask` [B] do not count and may be anything."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array, PyTree, targets_of
from fedjax_core.option_types import Fraction, NonNegative

TINY = 1e-24  # squared length below which a vector counts as zero
ABSENT_BELOW = -1e8  # logits below this are of absent classes: of other episodes, of options that a question lacks
LabelLoss = Callable[[Array, Array, Array], Array]  # outputs, y, mask [B] -> mean over the examples in `mask`


def rounding_tolerance(*trees: PyTree) -> float:
    """Returns the relative difference that rounding may make between two programs: 4 eps + 80 eps32.

    eps is that of the coarsest floating dtype among the leaves of `trees` (features, the weights
    that made them); eps32 is that of float32, in which sums are formed. A stored number is off by
    0.2 eps (root mean square). Two programs that store at k places each end sqrt(2 k) 0.2 eps
    apart, which is 2.3 eps for 32 blocks with two stores each. A sum of n terms in another order is
    off by another sqrt(n) 0.2 eps32, which is 72 eps32 for 4096 terms in each of 32 blocks. The
    tolerance is just above both: 1e-5 in float32 and 0.03 in bfloat16. Vision transformers of 6
    blocks differed by 5e-7 and 0.014 on a CPU.
    """
    eps = [jnp.finfo(x.dtype).eps for x in jax.tree.leaves(trees) if jnp.issubdtype(x.dtype, jnp.floating)]
    single = float(jnp.finfo(jnp.float32).eps)
    return 4 * max(map(float, eps), default=single) + 80 * single


def masked_mean(values: Array, mask: Array) -> Array:
    """Returns the mean of `values` [B] over `mask` [B]; 0, with a zero gradient, if the mask is empty."""
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(jnp.sum(mask), 1)


def split_into_parts(x: Array, size: int) -> Array:
    """Returns the rows of `x` [B, ...] in parts of `size`, [parts, size, ...]; the last is filled with zeros."""
    return jnp.pad(x, ((0, -len(x) % size), *[(0, 0)] * (x.ndim - 1))).reshape(-1, size, *x.shape[1:])


def check_number(value: Array, rule: str) -> Array:
    """Returns `value`, a float32[] or other real number.

    Raises:
      TypeError: it is anything else, of which a gradient would be that of its sum; it begins with `rule`.
    """
    if getattr(value, "shape", None) == () and jnp.issubdtype(value.dtype, jnp.floating):
        return value
    returned = f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
    raise TypeError(f"{rule}, a float32[], it returned {returned}")


def check_classes(logits: Array, y: Array) -> None:
    """Raises ValueError unless `logits` have one more axis than the classes `y`."""
    if logits.ndim != y.ndim + 1:
        raise ValueError(
            f"logits {list(logits.shape)} must have one axis more than classes {list(y.shape)}, that of the outputs by class; "
            "with a network that writes texts, take a method that reads no classes, such as fedavg, fedprox or scaffold"
        )


def cross_entropy_per_example(logits: Array, y: Array) -> Array:
    """Returns -log softmax(logits)[y]: [B, K], [B] -> [B], or for tokens [B, T, V], [B, T] -> [B, T]."""
    check_classes(logits, y)
    picked = jnp.take_along_axis(logits, y[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked


def target_mask(y: Array, mask: Array) -> Array:
    """Returns the mask of targets that count: `mask` [B]; for sequences [B, T], tokens that are not negative."""
    return mask if y.ndim == 1 else mask[:, None] & (y >= 0)


def cross_entropy(logits: Array, y: Array, mask: Array) -> Array:
    """Returns the mean cross-entropy of `logits` [B, K] with class indices `y` [B].

    For sequences, [B, T, V] with [B, T], the mean is over all tokens whose target is not negative.
    """
    return masked_mean(cross_entropy_per_example(logits, jnp.maximum(y, 0)), target_mask(y, mask))


def sigmoid_cross_entropy(logits: Array, y: Array, mask: Array) -> Array:
    """Returns the mean over examples and labels of -log sigmoid(logit) where y [B, K] is 1, else -log sigmoid(-logit)."""
    return masked_mean(jnp.mean(sigmoid_cross_entropy_per_label(logits, y), axis=-1), mask)


def sigmoid_cross_entropy_per_label(logits: Array, y: Array) -> Array:
    """Returns the cross-entropy of each label: [B, K], [B, K] 0 or 1 -> [B, K]."""
    return jax.nn.softplus(logits) - jnp.where(y > 0, logits, 0)


def target_loss(outputs: Array, y: Array, mask: Array) -> Array:
    """Returns the default loss of targets: cross-entropy, or the squared error of numbers."""
    fits = {"labels": sigmoid_cross_entropy, "numbers": squared_error}
    return fits.get(targets_of(y), cross_entropy)(outputs, y, mask)


def smoothed_cross_entropy(logits: Array, y: Array, mask: Array, epsilon: Fraction = 0.1) -> Array:
    """Returns the cross-entropy with smoothed labels (Szegedy et al. 2016, Section 7).

    The label has 1 - epsilon, and epsilon is spread evenly over all classes whose logit is not
    below `ABSENT_BELOW`.
    """
    hard = cross_entropy_per_example(logits, jnp.maximum(y, 0))
    is_present = logits > ABSENT_BELOW
    mean = jnp.sum(jnp.where(is_present, logits, 0), -1) / jnp.maximum(jnp.sum(is_present, -1), 1)
    uniform = jax.nn.logsumexp(logits, axis=-1) - mean
    return masked_mean((1 - epsilon) * hard + epsilon * uniform, target_mask(y, mask))


def focal_loss(logits: Array, y: Array, mask: Array, gamma: NonNegative = 2.0) -> Array:
    """Returns the focal loss (1 - p)^gamma (-log p) of the label's probability p (Lin et al. 2017, Eq. 4).

    With gamma 0 it is `cross_entropy`.
    """
    ce = cross_entropy_per_example(logits, jnp.maximum(y, 0))
    is_positive = ce > 0  # at 0 a power below 1 has no derivative, and 0 times it is NaN
    factor = jnp.where(is_positive, (-jnp.expm1(-jnp.where(is_positive, ce, 1))) ** gamma, 0.0**gamma)
    return masked_mean(factor * ce, target_mask(y, mask))


def squared_error(logits: Array, y: Array, mask: Array) -> Array:
    """Returns the mean squared difference of outputs `logits` and `y` [B, D]."""
    return masked_mean(jnp.mean((logits - y) ** 2, axis=-1), mask)


def absolute_error(logits: Array, y: Array, mask: Array) -> Array:
    """Returns the mean absolute difference of outputs `logits` and `y` [B, D].

    Entries that are equal up to `rounding_tolerance`, relative to their example's scale, count as
    0, since their gradient would be the sign of a rounding error.
    """
    difference = logits - y
    scale = jnp.sqrt(jnp.mean(y * y, -1, keepdims=True))
    sign = jnp.where(jnp.abs(difference) > rounding_tolerance(logits, y) * scale, jnp.sign(difference), 0)
    return masked_mean(jnp.mean(difference * jax.lax.stop_gradient(sign), axis=-1), mask)


def safe_norms(x: Array) -> Array:
    """Returns Euclidean norms, [..., D] -> [...]; of zeros nearly zero, with a zero gradient."""
    return jnp.sqrt(jnp.maximum(jnp.sum(x * x, -1), TINY))


def euclidean_distances(a: Array, b: Array, tolerance: float) -> Array:
    """Returns Euclidean distances [..., D] -> [...]; 0, without a gradient, up to `tolerance` |b|.

    For arrays of two programs it is `rounding_tolerance`: the gradient of a distance has norm 1
    however small it is, so that of a rounding error would be its direction.
    """
    square = jnp.sum((a - b) ** 2, -1)
    far = square > jnp.maximum(tolerance**2 * jnp.sum(b * b, -1), TINY)
    return jnp.where(far, jnp.sqrt(jnp.where(far, square, 1)), 0)


def squared_distances(a: Array, b: Array) -> Array:
    """Returns the squared Euclidean distances [B, K] between the rows of `a` [B, D] and of `b` [K, D]."""
    return jnp.sum((a[:, None] - b[None]) ** 2, -1)


def normalize(x: Array) -> Array:
    """Scales `x` [..., D] to norm 1 along the last axis; zeros stay zeros, with a zero gradient."""
    return jnp.where(jnp.sum(x * x, -1, keepdims=True) > TINY, x / safe_norms(x)[..., None], 0)


def cosine_similarities(a: Array, b: Array) -> Array:
    """Returns the cosines [B, K] between the rows of `a` [B, D] and of `b` [K, D]; 0 for rows of zeros."""
    return normalize(a) @ normalize(b).T


def distillation_per_example(logits: Array, teacher: Array, temperature: float = 1.0) -> Array:
    """Returns KL(softmax(teacher / temperature) || softmax(logits / temperature)): [B, K], [B, K] -> [B].

    The teacher gets no gradient, and there is no factor temperature^2.
    """
    p = jax.nn.log_softmax(jax.lax.stop_gradient(teacher) / temperature)
    return jnp.sum(jnp.exp(p) * (p - jax.nn.log_softmax(logits / temperature)), -1)


def distillation(logits: Array, teacher: Array, mask: Array, temperature: float = 1.0) -> Array:
    """Returns the mean of `distillation_per_example` over the examples in `mask`."""
    return masked_mean(distillation_per_example(logits, teacher, temperature), mask)
