"""FedExP: the server steps further where the clients' changes disagree.

In plain words: FedAvg whose server multiplies the mean change. Where clients pull in different
directions their mean is short beside each of them, and the server takes a longer step.
Sent to clients: model.

Jhunjhunwala, Wang, Joshi. FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023.
https://arxiv.org/abs/2301.09604

  paper       here             meaning
  w           server.net       server model
  Delta_i     delta            client i's change, w_i - w
  Delta       collected[0]     their mean
  eta_g       eta_g            the round's server learning rate, at least 1
  epsilon     eps              bounds it where the mean change is small
  M           C                participants

The scored model is the mean of the server's last two: with long steps the model oscillates.

Unseen clients use the scored model.

Departures: epsilon is constant, as printed. The released code lets it fall with the square of the
local rate, and multiplies it by M: eps = M times its value. It also weights clients by their
examples, in both means, which is weights="samples". Norms are of the weights; batch statistics are
averaged as they are. The paper also puts this server behind clients of SCAFFOLD and FedProx; here
clients are FedAvg's.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model.
      previous: the one of the round before.
    """

    net: Net
    previous: Net


def fedexp(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    eps: NonNegative = 1e-3,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "uniform",
    score: Annotated[str, one_of("last_two", "last")] = "last_two",
) -> Algorithm:
    """Builds FedExP (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer.
      eps: epsilon; a large one is FedAvg.
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".
      score: the model that is scored, the mean of the "last_two" or the "last".

    Returns:
      The algorithm.
    """
    check_arguments(fedexp, eps=eps, score=score)
    model = task.model
    train = local_training.fit(local_training.supervised_loss(task), optimizer(task.round_num), epochs=epochs, batch=batch)
    mean = aggregators.mean(aggregators.make_weight_fn(weights))

    def server_init(key):
        net = model.init(key)
        return Server(net, net)

    def client_update(sent, client, data, key):
        net, _, sums = train(sent.net, data, key)
        delta = optax.tree.sub(net, sent.net)
        uplink = delta, optax.tree.norm(delta.params, squared=True)
        return ClientOutput(client, uplink, sums, local=(Server(net, net), client), wire=(sent.net, uplink))

    def server_update(server, collected, cohort, key):
        delta, squares = collected
        length = optax.tree.norm(delta.params, squared=True) + eps
        eta_g = jnp.maximum(1, squares / (2 * jnp.maximum(length, aggregators.TINY)))
        params = jax.tree.map(lambda w, d: w + eta_g.astype(w.dtype) * d, server.net.params, delta.params)
        net = Net(params, optax.tree.add(server.net.stats, delta.stats))
        is_any = jnp.any(cohort.examples > 0)  # a round without clients leaves the last two models
        previous = optax.tree.where(is_any, server.net, server.previous)
        return Server(net, previous), {"eta_g": (eta_g, jnp.ones_like(eta_g))}

    def scored(sent):
        return sent.net if score == "last" else jax.tree.map(lambda new, old: (new + old) / 2, sent.net, sent.previous)

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(mean, mean._replace(payload="number")),  # ||Delta_i||^2
        predict={"global": lambda sent, client, x: model.apply(scored(sent), x)[0]},
        targets=tuple(TARGETS),
    )
