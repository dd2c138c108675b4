"""Terms of a minibatch's features that join the loss of any method (`config.regularizers`)."""

from collections.abc import Callable, Sequence
from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array
from fedjax_core.option_types import NonNegative, one_of
from fedjax_core.task import Model
from fedjax_core.training import losses

Regularizer = Callable[[Array, Array], Array]  # features [B, D], mask [B] -> a term of the loss


@jax.custom_vjp
def add_to_loss(x: Array, term: Array) -> Array:
    """Returns `x`. The gradient of any loss of `x` is then also that of `term`, with factor 1."""
    del term
    return x


add_to_loss.defvjp(lambda x, term: (x, term), lambda term, cotangent: (cotangent, jnp.ones_like(term)))


def with_regularizers(model: Model, regularizers: Sequence[Regularizer]) -> Model:
    """Returns the network, whose passes in training add the terms to the loss of their outputs.

    A pass whose outputs get no gradient, such as a teacher's, adds nothing. Losses that methods
    report are without the terms.
    """

    def attach(x, features, mask):
        if features.ndim != 2:
            raise ValueError(f"regularizers need features [B, D], those of {model.name} are {list(features.shape)}")
        mask = jnp.ones(len(features), bool) if mask is None else mask
        return add_to_loss(x, sum(_compute_term(term, features.astype(jnp.float32), mask) for term in regularizers))

    def apply(net, x, key=None, train=False, mask=None, **options):
        outputs, stats = model.apply(net, x, key, train=train, mask=mask, **options)
        if train:
            outputs = outputs | {"logits": attach(outputs["logits"], outputs["features"], mask)}
        return outputs, stats

    def features(net, x, key=None, train=False, mask=None):
        z, stats = model.features(net, x, key, train=train, mask=mask)
        return attach(z, z, mask) if train else z, stats

    inner = model.unaugmented
    unaugmented = None if inner is None else (with_regularizers(inner[0], regularizers), inner[1])
    return model._replace(apply=apply, features=features, unaugmented=unaugmented)


def _compute_term(regularizer: Regularizer, features: Array, mask: Array) -> Array:
    """Returns the term, which must be one number: of several, the gradient would be that of their sum."""
    name = getattr(getattr(regularizer, "func", regularizer), "__name__", type(regularizer).__name__)
    return losses.check_number(regularizer(features, mask), f"regularizer {name!r} must return a term of the loss")


def correlations(features: Array, mask: Array) -> Array:
    """Returns the correlation matrix [D, D] of `features` [B, D] over `mask` [B]; 0 if constant."""
    number = jnp.sum(mask)
    mean = jnp.sum(jnp.where(mask[:, None], features, 0), 0) / jnp.maximum(number, 1)
    centred = jnp.where(mask[:, None], features - mean[None], 0)
    variance = jnp.sum(centred**2, 0) / jnp.maximum(number - 1, 1)
    z = centred / jnp.sqrt(variance + 1e-8)[None]
    return z.T @ z / jnp.maximum(number - 1, 1)


def decorrelation(
    features: Array,
    mask: Array,
    coefficient: NonNegative = 0.1,
    scale: Annotated[str, one_of("released", "paper")] = "released",
) -> Array:
    """Returns FedDecorr's term, against features that collapse into few directions.

    Shi, Liang, Zhang, Tan, Bai. Towards Understanding and Mitigating Dimensional Collapse in
    Heterogeneous Federated Learning. ICLR 2023. https://arxiv.org/abs/2210.00226

    With R the correlations of a minibatch's D features, standardized by the variance over B - 1:

        "paper"      coefficient / D^2 * sum of all R_ij^2
        "released"   coefficient (B - 1)^2 / B * mean of R_ij^2 over i != j, as in the authors' code

    Published coefficients are for the latter, which is about B times as large: keep B fixed.

    Args:
      features: [B, D].
      mask: [B].
      coefficient: weight of the term.
      scale: "released" or "paper".
    """
    number, d = jnp.sum(mask).astype(jnp.float32), features.shape[1]
    square = correlations(features, mask) ** 2
    if scale == "paper":
        return coefficient * jnp.sum(square) / d**2
    off_diagonal = jnp.sum(square) - jnp.trace(square)
    return coefficient * (number - 1) ** 2 / jnp.maximum(number, 1) * off_diagonal / max(1, d * (d - 1))


REGULARIZERS = {"decorrelation": decorrelation}
