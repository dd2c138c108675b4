"""Pure losses: arrays in, one scalar out. Rows outside `mask` [B] count for nothing and may hold anything."""

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array

TINY = 1e-24  # squared length below which a vector counts as zero


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


def squared_error(values: Array, targets: Array, mask: Array) -> Array:
    """Mean squared difference of `values` and `targets` [B, D], over all entries of the rows in `mask`."""
    return masked_mean(jnp.mean((values - targets) ** 2, axis=-1), mask)


def absolute_error(values: Array, targets: Array, mask: Array) -> Array:
    """Mean absolute difference of `values` and `targets` [B, D], over the rows in `mask`; no gradient where they agree."""
    apart = values - targets
    return masked_mean(jnp.mean(apart * jax.lax.stop_gradient(jnp.sign(apart)), axis=-1), mask)  # jax takes abs'(0) for 1


def lengths(x: Array) -> Array:
    """Euclidean lengths along the last axis, [..., D] -> [...]; of zeros it is (nearly) zero, with a zero gradient."""
    return jnp.sqrt(jnp.maximum(jnp.sum(x * x, -1), TINY))


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
