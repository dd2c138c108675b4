"""Centralized: training on the union of all clients' data, the upper bound for federated methods.

In plain words: One network is trained on everybody's data together. Federation is expected to stay
below this.
Sent to clients: nothing.

The union is sorted canonically first, so the result does not depend on the partition. It is FedAvg
with one client: E local epochs per round, T * E in all. The optimizer's state starts anew every
round, which plain SGD does not notice.

Unseen clients use the server's model. The engine sees one client, who has all clients' own test
examples: of its scores "own", "weighted" is the mean over clients weighted by test examples, as other
methods have it, and so are the rest, such as "mean" and "lowest", because one client has no spread.
There is no participation gap.

Departures: none; there is no paper.
"""

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedavg import fedavg


def centralized(task: Task, *, optimizer: local_training.Optimizer, epochs: AtLeastZero = 1, batch: AtLeastOne = 64) -> Algorithm:
    """Builds centralized training.

    Args:
      task: network.
      optimizer: its state starts anew every round.
      epochs: passes over the union per round.
      batch: B.

    Returns:
      The algorithm, which asks the engine to pool the data.
    """
    return fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch)._replace(pooled=True)
