"""LG-FedAvg: each client learns its own representation, the layers above it are shared and averaged.

In plain words: FedPer turned upside down: the first layers stay with each client, the last ones are
averaged.
Sent to clients: shared layers.

Liang, Liu, Liu, Auerbach, Salakhutdinov, Morency. Think Locally, Act Globally: Federated Learning
with Local and Global Representations. 2020. https://arxiv.org/abs/2001.01523

  paper       here               meaning
  l_m         w_p of FedPer      local representation of client m, never sent
  g           w_b of FedPer      global layers, the server's
  |S_t|       weights="uniform"  mean over the clients of the round

A client trains both parts together. Every client predicts with the newest global layers.

Unseen clients start a representation from the common initialization, after local training. The
paper averages the predictions of all clients' models for them.

Departures: training starts from the common initialization; the authors' script also starts from a
model of FedAvg (`config.weights` does). That script keeps each client's best model by test
accuracy, which nothing does here. Batch statistics of local layers stay with their client.
"""

from collections.abc import Sequence

from fedjax_core.algorithm import Algorithm, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training, param_partition
from methods.fedper import fedper


def lg_fedavg(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    shared: Sequence[str] = ("head",),
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "uniform",
) -> Algorithm:
    """Builds LG-FedAvg (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer, whose state starts anew every round.
      shared: entries of the network's parameters that are averaged; all others stay with a client.
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".

    Returns:
      The algorithm; a client keeps its representation and sends the delta of the shared layers.

    Raises:
      ValueError: an argument is out of range; (when traced) the network has no such entry.
    """

    def is_personal(net: Net) -> Net:
        param_partition.check_entries(net, shared, "shared")
        return param_partition.all_but(param_partition.personal_entries(*shared))(net)

    return fedper(task, optimizer=optimizer, personal=is_personal, epochs=epochs, batch=batch, weights=weights)
