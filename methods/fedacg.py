"""FedACG: clients begin where the server's momentum will take the model.

In plain words: The server keeps a momentum of the mean changes of all rounds. It sends the model moved
on along that momentum, so that clients start from where they would end up anyway, and a spring holds
them there.
Sent to clients: model.

Kim, Kim, Han. Communication-Efficient Federated Learning with Accelerated Client Gradient. CVPR 2024.
https://arxiv.org/abs/2201.03172

  paper            here         meaning
  theta            server.net   server model;  theta_i: the one that client i trains
  m                server.m     momentum of the mean changes
  Delta            delta        mean of theta_i - (theta + lambda m)
  theta + lambda m ahead        the model that clients get
  lambda           lam          decay of the momentum, and length of the look ahead
  beta             beta         strength of the spring, beta / 2 ||theta_i - (theta + lambda m)||^2

Without the spring, the models that clients get are those of FedAvgM with Nesterov's momentum
(`fedopt`, server="nesterov", server_lr=1); theta, which is scored, is lambda m behind them. Unseen
clients use theta.

Departures: as in the authors' code, momentum begins at 0 and means are uniform; that code's weight of
the squared distance, 0.001, is beta = 0.002. Its rate also falls in each local epoch, and it looks
ahead with batch statistics too; here these are averaged. A round without participants changes nothing.
"""

from typing import NamedTuple

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, BelowOne, NonNegative, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model theta.
      m: momentum, like net.params.
    """

    net: Net
    m: PyTree


def fedacg(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    lam: BelowOne = 0.85,
    beta: NonNegative = 0.002,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "uniform",
) -> Algorithm:
    """Builds FedACG (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer, which sees the gradient of the spring too.
      lam: lambda; 0 is FedProx.
      beta: strength of the spring; with lam 0 and beta 0 it is FedAvg.
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".

    Returns:
      The algorithm.
    """
    check_arguments(fedacg, lam=lam, beta=beta)
    model = task.model
    loss = local_training.supervised_loss(task)

    def server_init(key):
        net = model.init(key)
        return Server(net, optax.tree.zeros_like(net.params))

    def client_update(sent, client, data, key):
        ahead = sent.net._replace(params=optax.tree.add_scale(sent.net.params, lam, sent.m))  # theta + lambda m
        chain = optax.chain(local_training.add_proximal_term(beta), optimizer(task.round_num))
        net, _, sums = local_training.fit(loss, chain, epochs=epochs, batch=batch)(ahead, data, key)
        delta = optax.tree.sub(net, ahead)
        return ClientOutput(client, delta, sums, local=(sent._replace(net=net), client), wire=(ahead, delta))

    def server_update(server, delta, cohort, key):
        m = optax.tree.add_scale(delta.params, lam, server.m)  # lambda m + Delta
        net = optax.tree.add(server.net, Net(m, delta.stats))  # theta + m
        return optax.tree.where(jnp.any(cohort.examples > 0), Server(net, m), server), {}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=aggregators.mean(aggregators.make_weight_fn(weights)),
        predict={"global": lambda sent, client, x: model.apply(sent.net, x)[0]},
        targets=tuple(TARGETS),
    )
