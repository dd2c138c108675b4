"""FedBABU: only the body is trained and shared, under a fixed random head; clients fine-tune for evaluation.

In plain words: The head is random and never trained during federation, so all clients learn one
body for one fixed classifier. Before evaluation, each client fine-tunes.
Sent to clients: body.

Oh, Kim, Yun. FedBABU: Towards Enhanced Representation for Federated Image Classification. ICLR
2022. https://arxiv.org/abs/2106.06042

  paper       here                 meaning
  theta_ext   w_b of FedPer        body (extractor), the server's
  theta_cls   w_p of FedPer        head as initialized, the same for all clients; never trained or sent
  tau         local steps          `epochs` of them
  tau_f       finetune_epochs      fine-tuning epochs before evaluation; the result is dropped
  alpha_f     finetune_rate        learning rate of fine-tuning, relative to the local one

Unseen clients fine-tune the body under the initial head, as all clients do.

Departures: the mean is weighted by examples unless weights="uniform". finetune_epochs=0 evaluates
the model before fine-tuning.
"""

from fedjax_core.algorithm import TARGETS, Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedper import fedper


def fedbabu(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
    finetune_epochs: AtLeastZero = 5,
    finetune_rate: float = 0.01,
    finetune_part: str = "all",
) -> Algorithm:
    """Builds FedBABU (Algorithm 1).

    Args:
      optimizer: local optimizer, whose state starts anew every round; it never sees the head.
      epochs: local epochs over the body.
      batch: B.
      weights: "samples" or "uniform".
      finetune_epochs: tau_f.
      finetune_rate: what the optimizer's steps are multiplied by in fine-tuning (0.01: 1e-3 beside
        the authors' 0.1).
      finetune_part: "all", "head" or "body".

    Returns:
      The algorithm; a client sends the delta of its body.
    """
    loss, local = local_training.supervised_loss(task), optimizer(task.round_num)
    train = local_training.fit(loss, local, epochs=epochs, batch=batch, trainable=local_training.part_filter("body"))
    part = local_training.part_filter(finetune_part)
    finetune = local_training.finetune(loss, local, epochs=finetune_epochs, batch=batch, rate=finetune_rate, trainable=part)
    algorithm = fedper(task, optimizer=optimizer, weights=weights, train=train, finetune=finetune)
    return algorithm._replace(targets=tuple(TARGETS))
