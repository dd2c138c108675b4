"""FedRCL: FedAvg with a contrastive loss at several depths that keeps features of a class from collapsing.

In plain words: A contrastive loss on several layers keeps examples of one class together, with a
penalty where they lie too close, so that features of small local sets do not collapse.
Sent to clients: model.

Seo, Kim, Kim, Han. Relaxed Contrastive Learning for Federated Learning. CVPR 2024.
https://arxiv.org/abs/2401.04928

  paper     here       meaning
  f_l       features   a level's output before its ReLU, averaged over the image;  s: cosines of a batch [B, B]
  L_SCL     pull       supervised contrastive loss
  L_div     push       penalty on the least similar pair of a class, if it is above the threshold
  tau       tau        temperature
  lambda    lam        threshold
  beta      beta       weight of the penalty; `contrast` is that of the contrastive loss

Example i has a, the smallest s_ij within its class (itself included), and b, the two largest s_ij
with other classes: pull_i = log(e^(a/tau) + sum e^(b/tau)) - a/tau. With r the smallest s_ij with
another example of its class, push_i = log(1 + e^((r - 1)/tau)), where r is -1 if it is below lam or
undefined. The loss is CE + contrast * mean pull + beta * mean push, with means over levels and
examples.

Levels are the stem and all stages of a ResNet, that is, every hidden layer named `..._pre`; for a
model without any, its features.

Unseen clients use the server's model.

Departures: as in the authors' code, the hardest pairs are used (one of the class, two of others),
where the paper sums over all. That code also clips gradients at norm 10, here an option of the
optimizer (config.optimizer.clip): the paper variant and FedSKC's tables set it, the tables `digits`
and `fair` do not. Equal cosines share a gradient that the code gives to one of them. Padding is in
no pair.
"""

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Algorithm, Array
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, Positive, check_arguments
from fedjax_core.task import Model, Task
from fedjax_core.training import local_training, losses
from methods.fedavg import fedavg

NEGATIVES = 2


def contrastive_terms(features: Array, y: Array, mask: Array, tau: float, lam: float) -> tuple[Array, Array]:
    """Returns the means of pull and push over a batch.

    Args:
      features: [B, D] of one level.
      y: [B].
      mask: [B]; other examples are in no pair.
      tau: temperature.
      lam: threshold.

    Returns:
      Two scalars.
    """
    u = losses.normalize(features)
    s = u @ u.T
    itself = jnp.eye(len(y), dtype=bool)
    pair = mask[:, None] & mask[None]
    alike = pair & (y[:, None] == y[None])
    a = jnp.min(jnp.where(alike | itself, s, jnp.inf), 1)
    b = jax.lax.top_k(jnp.where(pair & ~alike, s, -jnp.inf), min(NEGATIVES, len(y)))[0]
    pull = jax.nn.logsumexp(jnp.concatenate([a[:, None], b], 1) / tau, 1) - a / tau
    r = jnp.min(jnp.where(alike & ~itself, s, jnp.inf), 1)
    push = jax.nn.softplus((jnp.where((r >= lam) & jnp.isfinite(r), r, -1) - 1) / tau)
    return losses.masked_mean(pull, mask), losses.masked_mean(push, mask)


def relaxed_contrastive_loss(
    model: Model, *, tau: float, lam: float, contrast: float, beta: float, label_loss: losses.LabelLoss = losses.cross_entropy
) -> local_training.LossFn:
    """Returns the client's loss."""

    def loss(net, batch, key):
        outputs, stats = model.apply(net, batch.x, key, train=True, mask=batch.mask, intermediates=True)
        hidden = [x for name, x in outputs["intermediates"].items() if name.endswith("_pre")] or [outputs["features"]]
        levels = [jnp.mean(x.astype(jnp.float32).reshape(len(x), -1, x.shape[-1]), 1) for x in hidden]
        pulls, pushes = zip(*(contrastive_terms(x, batch.y, batch.mask, tau, lam) for x in levels), strict=True)
        ce = label_loss(outputs["logits"], batch.y, batch.mask)
        value = ce + (contrast * sum(pulls) + beta * sum(pushes)) / len(levels)
        return value, local_training.Aux(stats, local_training.loss_metrics(ce, outputs["logits"], batch))

    return loss


def fedrcl(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    tau: Positive = 0.05,
    lam: float = 0.7,
    contrast: NonNegative = 1.0,
    beta: NonNegative = 1.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "uniform",
) -> Algorithm:
    """Builds FedRCL.

    Args:
      optimizer: local optimizer.
      tau: temperature.
      lam: threshold of the penalty; above 1 there is none.
      contrast: weight of the contrastive loss; it and beta 0 are FedAvg.
      beta: weight of the penalty.
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".

    Returns:
      The algorithm.
    """
    check_arguments(fedrcl, tau=tau, contrast=contrast, beta=beta)
    if not lam >= -1:
        raise ValueError(f"lam={lam} must be at least -1, the smallest cosine")
    loss = relaxed_contrastive_loss(
        task.model, tau=tau, lam=lam, contrast=contrast, beta=beta, label_loss=local_training.label_loss(task)
    )
    return fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights, loss=loss)
