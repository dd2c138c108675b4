"""FedCM: every local step goes mostly in the direction that all clients took in the last round.

In plain words: Each client mixes the mean direction of the last round into every local gradient, a
momentum that the server keeps and all clients share.
Sent to clients: model, mean direction.

Xu, Wang, Wang, Yao. FedCM: Federated Learning with Client-level Momentum. 2021.
https://arxiv.org/abs/2106.10874

  paper      here               meaning
  x_t        server.net         server model
  Delta_t    server.direction   mean direction of the last round, as a gradient; 0 before the first
  alpha      alpha              share of a client's own gradient in its steps
  eta_g      server_lr          server learning rate; the paper's is eta_l K times this one
  eta_l K    moved              how far a constant gradient of 1 moves a number

Unseen clients use the server's model.

Departures: a client's direction is its change over eta_l K, which is measured as in FedNova, so
that clients may take unequal numbers of steps, with momentum or annealed rates. Weight decay of the
optimizer is in the change, so it enters the direction and is applied again: at rest it is 1 / alpha
times as strong, as in released code. It is in the measure too, which falls short of eta_l K by a
share of about eta_l * weight_decay * (K - 1) / 2. `decay` adds decay * y to the gradient before it
is mixed, which counts once. A round without participants keeps the direction. Batch statistics are
averaged.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, Positive, PositiveFraction, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model.
      direction: like net.params, the mean direction of the last round.
    """

    net: Net
    direction: PyTree


def fedcm(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    alpha: PositiveFraction = 0.1,
    server_lr: Positive = 1.0,
    decay: NonNegative = 0.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
) -> Algorithm:
    """Builds FedCM.

    Args:
      task: network and population.
      optimizer: local optimizer, linear in its gradients such as sgd.
      alpha: share of the own gradient; 1 is uniform FedAvg.
      server_lr: server learning rate of the mean change.
      decay: weight decay inside of the own gradient.
      epochs: local epochs.
      batch: B.

    Returns:
      The algorithm.

    Raises:
      ValueError: an argument is out of range, or the optimizer is not linear.
    """
    check_arguments(fedcm, alpha=alpha, server_lr=server_lr, decay=decay)
    local_training.require_linear(optimizer, "FedCM")
    model = task.model
    loss = local_training.supervised_loss(task)
    mean = aggregators.mean(aggregators.weight_uniformly)

    def server_init(key):
        net = model.init(key)
        return Server(net, optax.tree.zeros_like(net.params))

    def client_update(sent, client, data, key):
        mix = optax.stateless(lambda g, _: jax.tree.map(lambda g, d: alpha * g + (1 - alpha) * d, g, sent.direction))
        chain = optax.chain(optax.add_decayed_weights(decay), mix, local_training.measure_steps(optimizer(task.round_num)))
        net, (*_, measured), sums = local_training.fit(loss, chain, epochs=epochs, batch=batch)(sent.net, data, key)
        delta = optax.tree.sub(net, sent.net)
        worth = jnp.where(measured.moved > 0, measured.moved, 1)
        direction = jax.tree.map(lambda d: -1 / worth.astype(d.dtype) * d, delta.params)
        local = sent._replace(net=net), client
        return ClientOutput(client, (delta, direction), sums, local=local, wire=(sent, (delta, measured.moved)))

    def server_update(server, collected, cohort, key):
        delta, direction = collected
        direction = optax.tree.where(jnp.any(cohort.examples > 0), direction, server.direction)
        params = optax.tree.add_scale(server.net.params, server_lr, delta.params)
        return Server(Net(params, optax.tree.add(server.net.stats, delta.stats)), direction), {}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(mean, mean),
        predict={"global": lambda sent, client, x: model.apply(sent.net, x)[0]},
        targets=tuple(TARGETS),
    )
