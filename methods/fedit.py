"""FedIT: the adapter of a frozen foundation model is tuned to instructions at the clients, and averaged.

In plain words: FedAvg of low-rank adapters over a frozen language model.
Sent to clients: adapter.

Zhang, Vahidian, Kuo, Li, Zhang, Yu, Wang, Chen. Towards Building the Federated GPT: Federated Instruction Tuning. 2023.
https://arxiv.org/abs/2305.05644

It is FedAvg of what a network trains (methods/fedavg.py), here an adapter: `adapters.adapted`, with the loss on the answers'
tokens.

A newcomer gets the server's model as it is.

Departures: the average is uniform, as FedOA's comparison has it; weights="samples" is FedIT's own code. A's and B's of LoRA are
averaged each for themselves.
"""

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedavg import fedavg


def fedit(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 2,
    batch: AtLeastOne = 32,
    weights: str = "uniform",
) -> Algorithm:
    """Builds FedIT.

    Args:
      task: network and population.
      optimizer: local optimiser, its state made anew every round.
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".

    Returns:
      The algorithm; a client keeps nothing and sends the delta of the adapter.

    Raises:
      ValueError: an argument is out of range.
    """
    return fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
