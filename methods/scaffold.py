"""SCAFFOLD: control variates cancel the drift of the clients.

In plain words: Clients with different data pull the model in different directions. Each client
remembers the direction of its own pull and subtracts it, less the mean direction of all, from every
local step.
Sent to clients: model, server control variate.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020. https://arxiv.org/abs/1910.06378

  paper     here             meaning
  x         server.net       server model
  c, c_i    server.c, c_i    control variates of the server and of client i
  y_i       y                local model;  K: local steps, without padding
  eta_g     server_lr        server learning rate;  eta_l: the optimizer's

Unseen clients use the server's model.

Departures: option II of Algorithm 1, written as the mean gradient of the loss over the local steps.
With plain SGD the two are equal. With other optimizers (x - y) / (K eta_l) would include the
momentum's factor (10 at 0.9), weight decay's term, and clipping. Weight decay is left out on
purpose: its gradient is the same function of the weights at every client, so it causes no drift,
and it acts on y beside the correction. At a decay of 0.1 a control variate differs from option II's
by 0.1 times the mean local weights. The paper has no batch normalization; its statistics are
averaged, without control variates.
"""

from typing import NamedTuple

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Positive, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model x.
      c: the server's control variate, like net.params.
    """

    net: Net
    c: PyTree


def scaffold(
    task: Task, *, optimizer: local_training.Optimizer, server_lr: Positive = 1.0, epochs: AtLeastZero = 1, batch: AtLeastOne = 64
) -> Algorithm:
    """Builds SCAFFOLD (Algorithm 1, option II).

    Args:
      task: network and population; N is `task.population`.
      optimizer: local optimizer, which sees the corrected gradients.
      server_lr: eta_g.
      epochs: local epochs.
      batch: B.

    Returns:
      The algorithm; a client keeps its control variate.
    """
    check_arguments(scaffold, server_lr=server_lr)
    model = task.model
    loss = local_training.supervised_loss(task)
    mean = aggregators.mean(aggregators.weight_uniformly)

    def server_init(key):
        net = model.init(key)
        return Server(net, optax.tree.zeros_like(net.params))

    def client_update(sent, c_i, data, key):
        drift = optax.tree.sub(sent.c, c_i)
        correct = optax.stateless(lambda g, _: optax.tree.add(g, drift))  # g_i(y) - c_i + c
        chain = optax.chain(local_training.track_mean_gradient(), correct, optimizer(task.round_num))
        y, (seen, *_), sums = local_training.fit(loss, chain, epochs=epochs, batch=batch)(sent.net, data, key)
        uplink = optax.tree.sub(y, sent.net), optax.tree.sub(seen.mean, c_i)  # (delta y_i, delta c_i)
        return ClientOutput(seen.mean, uplink, sums, local=(sent._replace(net=y), seen.mean))  # c_i+ = mean gradient

    def server_update(server, collected, cohort, key):
        dy, dc = collected
        share = jnp.sum(cohort.examples > 0) / task.population  # |S| / N
        params = optax.tree.add_scale(server.net.params, server_lr, dy.params)
        net = Net(params, optax.tree.add(server.net.stats, dy.stats))
        return Server(net, optax.apply_updates(server.c, optax.tree.scale(share, dc))), {}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(mean, mean),
        predict={"global": lambda sent, c_i, x: model.apply(sent.net, x)[0]},
        client_init=lambda key, server, client_id: optax.tree.zeros_like(server.net.params),
        targets=tuple(TARGETS),
    )
