"""FedAvg: the server's model is the average of the models that clients train from it.

In plain words: Every client trains the server's model on its own data and sends the difference. The
server adds the mean difference, weighted by the number of examples or uniformly.
Sent to clients: model.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017. https://arxiv.org/abs/1602.05629

  paper     here                meaning
  w         server.net          server model
  n_k / n   weights="samples"   client k's share of the cohort's examples
  E, B      epochs, batch       local epochs; minibatch size

Unseen clients use the server's model.

Departures: the server adds the cohort's mean delta, w + sum_k n_k/n (w_k - w). This is equal in
exact arithmetic, keeps frozen leaves exact, and an empty cohort changes nothing. weights="uniform"
weights all clients alike, as several releases do.
"""

from typing import NamedTuple

import optax

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model.
      review: state of the aggregator's review; empty for plain FedAvg.
    """

    net: Net
    review: PyTree


def fedavg(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
    loss: local_training.LossFn | None = None,
    review: optax.GradientTransformation | None = None,
) -> Algorithm:
    """Builds FedAvg (Algorithm 1), or a variant with another loss or server step.

    Args:
      epochs: E.
      batch: B.
      weights: "samples" or "uniform".
      loss: local loss, assumed to read classes; None: the default of the targets, cross-entropy for
        classes.
      review: optax transformation of the mean delta, such as `optax.trace(0.9)`.

    Returns:
      The algorithm.
    """
    model = task.model
    targets = tuple(TARGETS) if loss is None else ("classes",)
    loss = local_training.supervised_loss(task) if loss is None else loss
    train = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)
    aggregator = aggregators.make_aggregator(
        aggregators.mean(aggregators.make_weight_fn(weights)), review=optax.identity() if review is None else review
    )

    def server_init(key):
        net = model.init(key)
        return Server(net, aggregator.init(net))

    def client_update(sent, client, data, key):
        w_k, _, sums = train(sent, data, key)
        return ClientOutput(client, optax.tree.sub(w_k, sent), sums, local=(w_k, client))

    def server_update(server, collected, cohort, key):
        return Server(*aggregator.update(server.net, collected, cohort, server.review)), {}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=aggregator.collect,
        predict={"global": lambda sent, client, x: model.apply(sent, x)[0]},
        broadcast=lambda server, client_id: server.net,
        targets=targets,
    )
