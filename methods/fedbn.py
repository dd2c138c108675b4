"""FedBN: normalization layers stay with their client, everything else is averaged.

In plain words: Everything is averaged except normalization layers, which adapt each client's model
to the brightness or style of its own data.
Sent to clients: all but normalization layers.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization. ICLR 2021. https://arxiv.org/abs/2102.07623

  paper           here                meaning
  w_0^(l)         w_b of FedPer       layers that are not batch normalization, the server's
  w_k^(l), BN     w_p of FedPer       client k's scale, bias, running mean and variance
  1 / K           weights="uniform"

Batch normalization is recognized by its statistics, also in shortcuts. Without any, the method is
FedAvg.

Unseen clients start their own normalization from the common initialization, after local training.

Departures: the mean is weighted by examples unless weights="uniform". `config.statistics` "average"
and "local" are the same here.
"""

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training, param_partition
from methods.fedper import fedper


def fedbn(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    others: bool = False,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedBN (Algorithm 1).

    Args:
      others: whether normalization without statistics (group, layer) stays with a client too.
      epochs: E.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its normalization layers.
    """
    own = param_partition.personal_normalization(others)
    return fedper(task, optimizer=optimizer, personal=own, epochs=epochs, batch=batch, weights=weights)
