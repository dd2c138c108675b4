"""FedHe: clients of any architecture exchange the mean logits of each class.

In plain words: Clients share no weights. Each sends the mean output of its network for each of its
classes, and learns to imitate the mean over all clients.
Sent to clients: mean logits of each class.

Chan, Ngai. FedHe: Heterogeneous Models and Communication-Efficient Federated Learning. MSN 2021.
https://arxiv.org/abs/2110.09910

  here             meaning
  server.logits    mean logits of each true class over the clients that sent it, [K, K]
  server.known     classes that any client ever sent, [K]
  w_i              client i's model, never sent
  alpha            weight of the distillation term

The client's loss is CE + alpha * MSE(logits(x), server.logits[y]) over the examples of known
classes; in the first round there are none. It sends the logits produced during training, averaged
per true class.

Unseen clients are not supported, since networks are never sent.

Departures: the synchronous form. A class's row is the uniform mean over the round's senders, and a
row without sender is kept. The authors' code is asynchronous, with a running mean over uploads.
"""

from typing import NamedTuple

import jax.numpy as jnp

from fedjax_core.algorithm import Algorithm, Array, ClientOutput
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments
from fedjax_core.task import Task, require_class_logits
from fedjax_core.training import aggregators, local_training, losses


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      logits: [K, K] mean logits per class.
      known: [K] mask of classes that were ever sent.
    """

    logits: Array
    known: Array


def fedhe(
    task: Task, *, optimizer: local_training.Optimizer, alpha: NonNegative = 0.5, epochs: AtLeastZero = 1, batch: AtLeastOne = 64
) -> Algorithm:
    """Builds FedHe.

    Args:
      task: network and population; groups may differ in architecture.
      alpha: weight of the distillation term; 0 is local training.
      epochs: local epochs.
      batch: B.

    Returns:
      The algorithm; a client keeps its model and sends K * (K + 1) numbers.
    """
    check_arguments(fedhe, alpha=alpha)
    require_class_logits(task, "fedhe")
    model, classes = task.model, task.classes

    def client_update(sent, w_i, data, key):
        def loss(net, batch, key):
            outputs, stats = model.apply(net, batch.x, key, train=True, mask=batch.mask)
            logits = outputs["logits"]
            ce = local_training.label_loss(task)(logits, batch.y, batch.mask)
            taught = batch.mask & sent.known[batch.y]
            value = ce + alpha * losses.squared_error(logits, sent.logits[batch.y], taught)
            produced = local_training.class_sums(logits, batch.y, batch.mask, classes)
            return value, local_training.Aux(stats, (local_training.loss_metrics(ce, logits, batch), produced))

        trained = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)(w_i, data, key)
        sums, by_class = trained.sums
        return ClientOutput(trained.net, local_training.divide_class_sums(*by_class), sums)

    def server_update(server, collected, cohort, key):
        mean, holders = collected
        sent = holders > 0
        return Server(jnp.where(sent[:, None], mean, server.logits), server.known | sent), {}

    return Algorithm(
        server_init=lambda key: Server(jnp.zeros((classes, classes)), jnp.zeros(classes, bool)),
        client_update=client_update,
        server_update=server_update,
        collect=aggregators.class_mean(),
        predict={"personal": lambda sent, w_i, x: model.apply(w_i, x)[0]},
        client_init=lambda key, server, client_id: model.init(key),
        init_unseen="FedHe's networks are never sent, so an unseen client would have to train one alone",
    )
