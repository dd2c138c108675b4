"""FedSDR, as adapted in the FedOA paper: personal adapters penalized for the global one's shortcut features.

In plain words: A method against shortcuts of single clients, in the form that FedOA's authors give
it for adapters: what only one client's data support is removed from the personal adapter.
Sent to clients: adapter.

Tang, Guo, Zhang, Guo. Learning Personalized Causally Invariant Representations for Heterogeneous
Federated Clients. ICLR 2024. https://openreview.net/forum?id=8FHWkY0SwF Yang et al. Federated
Adapter on Foundation Models: An Out-Of-Distribution Approach. 2025, appendix C.2, and its released
code. https://arxiv.org/abs/2505.01075

  adaptation   here          meaning
  w            server.net    adapter that learns shortcuts together, as in FedIT
  v_i          v_i           client i's personal adapter, never sent
  e, g         e, g          features by v_i, and by w (constant), [B, D]
  lambda       lam           weight of the penalty  1/B sum_b | sum_k e_bk |g_bk - mean_b g_bk| |
  B            micro         the minibatch, or parts of it with so many examples, whose penalties are averaged

`variant`: in "default" personal adapters start from the common initialization in the first round
and B is the minibatch; in "released" they start from their own draws in the second round, after a
first round of FedIT alone, and B is 8 examples of it.

Unseen clients start a personal adapter from the initialization, not from the global one's
shortcuts, after local training of it.

Departures: this is the adaptation, not the first paper's estimator of conditional mutual
information, whose code is not public; its regularizer of the head is left out, since the head is
fixed. Features by w are of the plain example in evaluation mode. In "released", the loss of the
labels is one mean over the minibatch (over all tokens of its answers), whatever B is.
"""

import jax
import jax.numpy as jnp

from fedjax_core import registry
from fedjax_core.algorithm import PER_ROW, Algorithm, Array
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import local_training, losses
from methods.ditto import with_personal_model
from methods.fedavg import fedavg

VARIANTS = {"default": {}, "released": {"begin": 1, "fresh": True}}
MICRO = 8  # of the release


def shortcut_penalty(e: Array, g: Array, mask: Array) -> Array:
    """Returns 1/B sum_b | sum_k e_bk |g_bk - mean_b g_bk| | of features [B, D] over `mask` [B]."""
    g = jnp.where(mask[:, None], g, 0)
    mean = jnp.sum(g, 0) / jnp.maximum(jnp.sum(mask), 1)
    return losses.masked_mean(jnp.abs(jnp.sum(e * jnp.abs(g - mean[None]), -1)), mask)


def shortcut_penalty_by_parts(e: Array, g: Array, mask: Array, micro: int) -> Array:
    """Returns the mean of `shortcut_penalty` over parts of `micro` examples each."""
    e_parts, g_parts, masks = (losses.split_into_parts(x, micro) for x in (e, g, mask))
    return losses.masked_mean(jax.vmap(shortcut_penalty)(e_parts, g_parts, masks), jnp.any(masks, 1))


def fedsdr(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    lam: NonNegative = 0.5,
    epochs: AtLeastZero = 2,
    batch: AtLeastOne = 32,
    weights: str = "uniform",
    variant: str = "default",
    micro: AtLeastOne | None = None,
) -> Algorithm:
    """Builds FedSDR in FedOA's adaptation.

    Args:
      task: network and population; what its `Net` has is the adapter.
      optimizer: local optimizer of both adapters, whose state starts anew every round.
      lam: lambda; 0 makes the personal adapters Local's.
      epochs: local epochs of either adapter.
      batch: of local training.
      weights: "uniform" or "samples".
      variant: "default" or "released".
      micro: B; None: the minibatch, with "released" 8.

    Returns:
      The algorithm; a client keeps its personal adapter.
    """
    reading = VARIANTS[registry.check_choice("variant", variant, VARIANTS)]
    check_arguments(fedsdr, lam=lam, micro=micro)
    micro = MICRO if micro is None and variant == "released" else micro
    model = task.model

    def penalty(e, g, mask):
        return shortcut_penalty(e, g, mask) if micro is None else shortcut_penalty_by_parts(e, g, mask, micro)

    def loss(net, batch, key):
        outputs, stats = model.apply(net, batch.x, key, train=True, mask=batch.mask)
        risk, sums = local_training.loss_and_metrics(outputs, batch, local_training.label_loss(task))
        d = penalty(outputs["features"], batch.extra, batch.mask)
        rows = jnp.sum(batch.mask, dtype=d.dtype)
        return risk + lam * d, local_training.Aux(stats, {"personal_loss": sums["loss"], "penalty": (d * rows, rows)})

    def train(w, v_i, data, key):
        g = local_training.map_examples(lambda b: model.apply(w, b.x, mask=b.mask)[0]["features"], data, batch=batch)
        trained = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)(v_i, data, key, g)
        return trained.net, trained.sums

    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    return with_personal_model(task, base, train, **reading)._replace(init_unseen=None, targets=PER_ROW)
