"""FedAvg-FT: FedAvg whose model every client fine-tunes on its own data before evaluation.

In plain words: FedAvg. Before it is evaluated, each client fine-tunes the server's model on its own
training data.
Sent to clients: model.

The baseline for personalization after training, which is FedAvg's (methods/fedavg.py).

Unseen clients fine-tune the server's model on their own examples, as all clients do.

Departures: none; there is no single paper. finetune_epochs=0 evaluates FedAvg's model on every
client.
"""

import jax

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedavg import fedavg


def fedavg_ft(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
    finetune_epochs: AtLeastZero = 5,
    finetune_rate: float = 1.0,
    finetune_part: str = "all",
) -> Algorithm:
    """Builds FedAvg with fine-tuning before scores.

    Args:
      optimizer: local optimizer, whose state starts anew every round, and for every fine-tuning.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".
      finetune_epochs: epochs of fine-tuning.
      finetune_rate: what the optimizer's steps are multiplied by in fine-tuning.
      finetune_part: "all", "head" or "body".

    Returns:
      The algorithm; nothing is kept by a client.

    Raises:
      ValueError: an argument is out of range, or the network has no head to part it by.
    """
    params = None if finetune_part == "all" else jax.eval_shape(task.model.init, jax.random.key(0)).params
    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    finetune = local_training.finetune(
        local_training.supervised_loss(task),
        optimizer(task.round_num),
        epochs=finetune_epochs,
        batch=batch,
        rate=finetune_rate,
        trainable=local_training.part_filter(finetune_part, params),
    )

    def personalise(w, client, data, key):
        assert finetune is not None
        return finetune(w, data, key).net, client

    return base._replace(
        predict=base.predict | {"personal": base.predict["global"]},
        personalise=None if finetune is None else personalise,
    )
