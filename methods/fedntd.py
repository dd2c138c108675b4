"""FedNTD: a client's model keeps the received model's opinion of the classes that are not true.

In plain words: FedAvg whose clients also imitate the model that they were sent, but only in how it
divides probability among the wrong classes of an example. So they learn their own classes and do
not forget the others.
Sent to clients: model.

Lee, Jeong, Shin, Bae, Yun. Preservation of the Global Knowledge by Not-True Distillation in
Federated Learning. NeurIPS 2022. https://arxiv.org/abs/2106.03097

  paper        here             meaning
  q_g~, q_l~   others           probabilities of the wrong classes, by the received and the local model
  tau          tau              temperature
  beta         beta             weight of the distillation;  the paper's loss is CE + beta KL(q_g~ || q_l~)

Unseen clients use the server's model.

Departures: as in the authors' code the distillation is multiplied by tau^2. The received model is
in evaluation mode, and sees images without augmentation. The reported loss is the cross-entropy.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, Array, ClientOutput
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, Positive, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import local_training, losses
from methods.fedavg import fedavg


def not_true_distillation(logits: Array, teacher: Array, y: Array, mask: Array, tau: float) -> Array:
    """Returns tau^2 times the mean divergence of the wrong classes' probabilities."""
    is_true = jax.nn.one_hot(y, logits.shape[-1], dtype=bool)
    others, others_of_teacher = (jnp.where(is_true, losses.ABSENT_BELOW * tau, o) for o in (logits, teacher))
    return tau**2 * losses.distillation(others, others_of_teacher, mask, tau)


def fedntd(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    beta: NonNegative = 1.0,
    tau: Positive = 1.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedNTD.

    Args:
      task: network and population.
      optimizer: local optimizer.
      beta: weight of the distillation; 0 is FedAvg.
      tau: its temperature.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm.
    """
    check_arguments(fedntd, beta=beta, tau=tau)
    model = task.model
    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)

    def client_update(sent, client, data, key):
        def loss(net, batch, key):
            outputs, stats = model.apply(net, batch.x, key, train=True, mask=batch.mask)
            logits, teacher = outputs["logits"], model.apply(sent, batch.x, mask=batch.mask)[0]["logits"]
            ce = local_training.label_loss(task)(logits, batch.y, batch.mask)
            value = ce + beta * not_true_distillation(logits, teacher, batch.y, batch.mask, tau)
            return value, local_training.Aux(stats, local_training.loss_metrics(ce, logits, batch))

        net, _, sums = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)(sent, data, key)
        return ClientOutput(client, optax.tree.sub(net, sent), sums, local=(net, client))

    return base._replace(client_update=client_update, targets=("classes",))
