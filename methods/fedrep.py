"""FedRep: a shared representation; clients first train their heads on it, then it under their heads.

In plain words: As FedPer, in turns: a client first fits its own head to the body that it was sent,
then trains the body with the head fixed.
Sent to clients: body.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting Shared Representations for Personalized Federated
Learning. ICML 2021. https://arxiv.org/abs/2102.07078

  paper     here              meaning
  phi       w_b of FedPer     representation, the server's
  h_i       w_p of FedPer     head of client i, never sent
  tau       head_epochs       local epochs of the head (the paper counts steps), with phi frozen
  1         body_epochs       local epochs of phi, with h_i frozen; one step in the paper, an epoch or more
                              in its experiments
  1 / (rn)  weights="uniform"

Unseen clients start a head of their own, after local training, and fine-tune if finetune_epochs >
0.

Departures: the mean is weighted by examples unless weights="uniform", as in the authors' code. Batch
statistics, of which it has none, move in both phases. That code has one optimizer for both phases,
whose momentum may move what is frozen; here each phase has its own. It trains heads again before the
last evaluation, for max(10, head_epochs) epochs: finetune_epochs does so before every evaluation.
"""

from collections.abc import Sequence

import jax
import optax

from fedjax_core.algorithm import TARGETS, Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedper import fedper

HEAD = 0x68656164  # the head's draws; those of the body are a client's own, as in FedBABU


def fedrep(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    personal: Sequence[str] = ("head",),
    head_epochs: AtLeastZero = 10,
    body_epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
    finetune_epochs: AtLeastZero = 0,
) -> Algorithm:
    """Builds FedRep (Algorithm 1).

    Args:
      optimizer: local optimizer, whose state starts anew in every phase; it sees no frozen leaf,
        and decays none.
      personal: entries of the network's parameters that are the head.
      head_epochs: E_h, first.
      body_epochs: E_b, second.
      batch: B.
      weights: "samples" or "uniform".
      finetune_epochs: epochs over the head before a client's model is scored.

    Returns:
      The algorithm; a client keeps its head.
    """
    check_arguments(fedrep, head_epochs=head_epochs, body_epochs=body_epochs, finetune_epochs=finetune_epochs)
    if finetune_epochs and not personal:
        raise ValueError(f"personal=() and finetune_epochs={finetune_epochs}: there is no head to fine-tune; set finetune_epochs=0")
    is_head, loss = local_training.entries_filter(*personal), local_training.supervised_loss(task)

    def phase(epochs, trainable):
        return local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch, trainable=trainable)

    head, body = phase(head_epochs, is_head), phase(body_epochs, lambda path: not is_head(path))

    def train(net, data, key):
        if not personal:
            return body(net, data, key)
        first = head(net, data, jax.random.fold_in(key, HEAD))
        second = body(first.net, data, key)
        return second._replace(sums=optax.tree.add(first.sums, second.sums))

    finetune = local_training.finetune(loss, optimizer(task.round_num), epochs=finetune_epochs, batch=batch, trainable=is_head)
    algorithm = fedper(task, optimizer=optimizer, personal=personal, weights=weights, train=train, finetune=finetune)
    return algorithm._replace(targets=tuple(TARGETS))
