"""FedIT: clients tune the adapter of a frozen foundation model on instructions, and adapters are averaged.

In plain words: FedAvg of low-rank adapters over a frozen language model.
Sent to clients: adapter.

Zhang, Vahidian, Kuo, Li, Zhang, Yu, Wang, Chen. Towards Building the Federated GPT: Federated
Instruction Tuning. 2023. https://arxiv.org/abs/2305.05644

It is FedAvg (methods/fedavg.py) of what a network trains, here an adapter (`adapters.adapter_task`),
with the loss on the answers' tokens. With ranks by client (`config.clients.rank`) deltas are padded
with zeros.

Unseen clients use the server's model.

Departures: the average is uniform, as in FedOA's comparison; weights="samples" is FedIT's own code.
LoRA's A and B are averaged separately.
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
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".

    Returns:
      The algorithm; a client keeps nothing and sends the delta of the adapter.
    """
    return fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
