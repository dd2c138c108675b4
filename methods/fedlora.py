"""FedLoRA, as compared in the FedOA paper: FedIT whose adapter every client tunes further before evaluation.

In plain words: FedIT. Before it is evaluated, each client trains the averaged adapter further on
its own data.
Sent to clients: adapter.

Yi, Yu, Wang, Liu, Li. pFedLoRA: Model-Heterogeneous Personalized Federated Learning with LoRA
Tuning. 2023. https://arxiv.org/abs/2310.13283 Yang et al. Federated Adapter on Foundation Models:
An Out-Of-Distribution Approach. 2025, appendix C.2. https://arxiv.org/abs/2505.01075

It is FedAvg with fine-tuning (methods/fedavg_ft.py) of what a network trains, here an adapter
(`adapters.adapter_task`).

Unseen clients tune the averaged adapter further on their own examples, as all clients do.

Departures: the papers do not say how long clients tune: here 2 epochs, as in a round. It is not the
first paper's method, where networks of several architectures share a small adapter.
"""

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedavg_ft import fedavg_ft


def fedlora(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 2,
    finetune_epochs: AtLeastZero = 2,
    batch: AtLeastOne = 32,
    weights: str = "uniform",
) -> Algorithm:
    """Builds FedLoRA.

    Args:
      optimizer: local optimizer, whose state starts anew every round, and for the further tuning.
      epochs: local epochs.
      finetune_epochs: epochs of the further tuning; 0: FedIT's model is scored on every client's
        rows.
      batch: B.
      weights: "uniform" or "samples".

    Returns:
      The algorithm; a client keeps nothing and sends the delta of the adapter.
    """
    return fedavg_ft(
        task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights, finetune_epochs=finetune_epochs, finetune_rate=1.0
    )
