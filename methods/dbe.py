"""DBE: a personal shift of the features takes the clients' biases out of the shared representation.

In plain words: Each client adds a vector of its own to the features, which holds what is special
about its data, while features on average stay where those of all clients were.
Sent to clients: model, consensus.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan. Eliminating Domain Bias for Federated Learning in
Representation Space. NeurIPS 2023. https://arxiv.org/abs/2311.14975

  paper      here         meaning
  f, g       server.net   feature extractor (body) and classifier (head)
  z_i^p      b_i          client i's personal shift (PRBM), D numbers, never sent; initially 0
  z_bar_i^g  r            running mean of the features of one local training, initially 0
  z_bar^g    consensus    mean of r over clients, of the first round, fixed ever after
  mu         momentum     r <- (1 - mu) r + mu mean_batch f(x)
  kappa      kappa        weight of the regularization of means (MR)

  L = CE(g(f(x) + b_i), y) + kappa mean_d (r - consensus)^2 / 2

The gradient takes the old r as constant. The first round only finds the consensus: clients train
the initial model by CE(g(f(x)), y), and of what they send the server takes r alone. From then on it
takes the delta alone.

Unseen clients start from a shift of 0, after local training.

Departures: with partial participation the consensus is that of the first round's clients; in the
paper all clients take part in it. The D numbers of r travel in every round. They are no difference to
what the server has, so rules, attacks, compression, privacy of clients and asynchronous schedules,
which scale or bound differences, refuse DBE. A batch's mean is that of its examples, and the last
batch of an epoch may be short.
"""

from typing import NamedTuple

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import PER_ROW, Algorithm, Array, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Fraction, NonNegative, check_arguments
from fedjax_core.task import Task, feature_size
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model.
      consensus: [D] mean features.
      is_ready: [] whether a round has found it.
    """

    net: Net
    consensus: Array
    is_ready: Array


class Carried(NamedTuple):
    """What a local training carries beside parameters.

    Attributes:
      stats: the network's batch statistics.
      r: [D] running mean of the features.
    """

    stats: PyTree
    r: Array


def dbe(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    kappa: NonNegative = 50.0,
    momentum: Fraction = 1.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedAvg with DBE (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer of the model and the shift, whose state starts anew every round.
      kappa: weight of the regularization.
      momentum: mu; 1 takes the last batch's mean.
      epochs: local epochs.
      batch: B.
      weights: of models and of the consensus, "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its shift.
    """
    check_arguments(dbe, kappa=kappa, momentum=momentum)
    model, label_loss, d = task.model, local_training.label_loss(task), feature_size(task.model)
    mean = aggregators.mean(aggregators.make_weight_fn(weights))

    def client_update(sent, b_i, data, key):
        on = sent.is_ready.astype(b_i.dtype)

        def loss(net, batch, key):
            w = Net(net.params["shared"], net.stats.stats)
            z, stats = model.features(w, batch.x, key, train=True, mask=batch.mask)
            mean = jnp.sum(jnp.where(batch.mask[:, None], z, 0), 0) / jnp.maximum(jnp.sum(batch.mask), 1)
            r = (1 - momentum) * net.stats.r + momentum * mean
            logits = model.head(w, z + on * net.params["shift"][None])
            ce = label_loss(logits, batch.y, batch.mask)
            value = ce + on * kappa * jnp.mean((r - sent.consensus) ** 2) / 2
            return value, local_training.Aux(Carried(stats, r), local_training.loss_metrics(ce, logits, batch))

        start = Net({"shared": sent.net.params, "shift": b_i}, Carried(sent.net.stats, jnp.zeros(d)))
        train = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)
        (params, (stats, r)), _, sums = train(start, data, key)
        new = Net(params["shared"], stats)
        uplink = optax.tree.sub(new, sent.net), r
        return ClientOutput(params["shift"], uplink, sums, local=(sent._replace(net=new), params["shift"]))

    def server_update(server, collected, cohort, key):
        delta, r = collected
        trained = optax.apply_updates(server.net, delta)
        net = optax.tree.where(server.is_ready, trained, server.net)
        consensus = jnp.where(server.is_ready, server.consensus, r)
        return Server(net, consensus, server.is_ready | jnp.any(cohort.examples > 0)), {}

    def personal(sent, b_i, x):
        z = model.features(sent.net, x)[0] + b_i[None]
        return {"logits": model.head(sent.net, z), "features": z}

    return Algorithm(
        server_init=lambda key: Server(model.init(key), jnp.zeros(d), jnp.zeros((), bool)),
        client_update=client_update,
        server_update=server_update,
        collect=(mean, mean._replace(payload="")),  # r is no difference
        predict={"personal": personal, "global": lambda sent, b_i, x: model.apply(sent.net, x)[0]},
        client_init=lambda key, server, client_id: jnp.zeros(d),
        targets=PER_ROW,
    )
