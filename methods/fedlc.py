"""FedLC, FedRS, logit adjustment: local losses that allow for the classes that a client has.

In plain words: A client with few classes learns above all that the others are rare. Here its logits
are shifted or scaled by how many examples of each class it has, in training alone, so that its loss
does not push the classes down that it lacks.
Sent to clients: model.

Zhang, Li, Li, Xu, Wu, Ding, Wu. Federated Learning with Label Distribution Skew via Logits
Calibration. ICML 2022 (FedLC). https://arxiv.org/abs/2209.00189
Li, Zhan. FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data.
KDD 2021. https://doi.org/10.1145/3447548.3467254
Menon, Jayasumana, Rawat, Jain, Veit, Kumar. Long-Tail Learning via Logit Adjustment. ICLR 2021.
https://arxiv.org/abs/2007.07314

  paper     here       meaning
  n_c       counts     the client's examples of class c;  n: of all classes
  f_c       logits     the logit of class c
  tau       tau        strength of FedLC and of logit adjustment
  alpha     alpha      FedRS: what logits of absent classes are multiplied by

  variant              the loss is that of
  "fedlc"              f_c - tau n_c^(-1/4)
  "logit_adjustment"   f_c + tau log(n_c / n)
  "fedrs"              f_c of classes that the client has, alpha f_c of the others
  "fedrs_released"     (alpha + (1 - alpha) n_c / max n) f_c

With the first two an absent class has probability 0 and no gradient. Scores are of the logits.

Unseen clients use the server's model.

Departures: FedLC's printed loss leaves the true class out of its denominator. Its gradient by the
true logit is then -1 everywhere, so that it has no minimum and training collapses; as in all ports
that were read the sum is over all classes. The authors' repository of FedRS has the last variant,
with a head without bias. The reported loss is that of the logits alone.
"""

from typing import Annotated

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, Array, ClientOutput
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Fraction, NonNegative, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import local_training, losses
from methods.fedavg import fedavg

VARIANTS = ("fedlc", "logit_adjustment", "fedrs", "fedrs_released")


def scale_and_shift(counts: Array, variant: str, tau: float, alpha: float) -> tuple[Array, Array]:
    """Returns factors and shifts of the logits, each [K], for a client's `counts` [K]."""
    is_present, n_c = counts > 0, jnp.maximum(counts, 1)
    if variant == "fedrs":
        return jnp.where(is_present, 1, alpha), jnp.zeros_like(counts)
    if variant == "fedrs_released":
        return alpha + (1 - alpha) * counts / jnp.max(n_c), jnp.zeros_like(counts)
    shift = -(n_c**-0.25) if variant == "fedlc" else jnp.log(n_c / jnp.sum(n_c * is_present))
    absent = 2 * losses.ABSENT_BELOW if tau else 0.0
    return jnp.ones_like(counts), jnp.where(is_present, tau * shift, absent)


def fedlc(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    variant: Annotated[str, one_of(*VARIANTS)] = "fedlc",
    tau: NonNegative = 1.0,
    alpha: Fraction = 0.5,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedLC, FedRS, or FedAvg with logit adjustment.

    Args:
      task: network and population.
      optimizer: local optimizer.
      variant: see the module's table.
      tau: of "fedlc" and "logit_adjustment"; 0 is FedAvg.
      alpha: of "fedrs" and "fedrs_released"; 1 is FedAvg.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm.
    """
    check_arguments(fedlc, variant=variant, tau=tau, alpha=alpha)
    model, label_loss = task.model, local_training.label_loss(task)
    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)

    def client_update(sent, client, data, key):
        counts = local_training.class_counts(data, classes=task.classes, batch=batch)
        scale, shift = scale_and_shift(counts, variant, tau, alpha)

        def loss(net, batch, key):
            outputs, stats = model.apply(net, batch.x, key, train=True, mask=batch.mask)
            logits = outputs["logits"]
            losses.check_classes(logits, batch.y)
            value = label_loss(scale[None] * logits + shift[None], batch.y, batch.mask)
            plain = label_loss(logits, batch.y, batch.mask)
            return value, local_training.Aux(stats, local_training.loss_metrics(plain, logits, batch))

        net, _, sums = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)(sent, data, key)
        return ClientOutput(client, optax.tree.sub(net, sent), sums, local=(net, client))

    return base._replace(client_update=client_update, targets=("classes",))
