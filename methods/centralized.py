"""Centralized: ordinary training on the union of all clients' data; the upper bound that federated methods are held against.

In plain words: One network is trained on everybody's data together. Federation is expected to stay below this.
Sent to clients: nothing.

The union is put in a canonical order first, so the result does not depend on how the data are partitioned. It is FedAvg with one
client: E local epochs per round, T * E in all, the optimiser made anew every round (which plain SGD does not notice).

A newcomer gets the server's model as it is.

Departures: none; there is no paper.
"""

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedavg import fedavg


def centralized(task: Task, *, optimizer: local_training.Optimizer, epochs: AtLeastZero = 1, batch: AtLeastOne = 64) -> Algorithm:
    """Builds centralised training.

    Args:
      task: network.
      optimizer: its state is made anew every round.
      epochs: passes over the union per round.
      batch: B.

    Returns:
      The algorithm, which asks the engine to pool the data.
    """
    return fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch)._replace(pooled=True)
