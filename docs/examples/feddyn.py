"""FedDyn: a dynamic regulariser aligns the clients' optima with that of the global objective.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic Regularization. ICLR 2021.
https://arxiv.org/abs/2111.04263

  paper        here          meaning
  theta        server.net    server model
  h            server.h      the server's state
  g_k          g             client k's gradient at its last model, its state
  alpha        alpha         weight of the regulariser

Departures: batch statistics are averaged and not regularised. A round without participants changes nothing.
"""

from typing import NamedTuple

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, ClientOutput, Net, PyTree
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    net: Net
    h: PyTree


def feddyn(task: Task, *, optimizer: local_training.Optimizer, alpha: float = 0.01, epochs: int = 1, batch: int = 64) -> Algorithm:
    """Builds FedDyn (Algorithm 1).

    Args:
      task: network and population; m is `task.population`.
      optimizer: local optimiser.
      alpha: weight of the regulariser.
      epochs: local epochs.
      batch: B.

    Raises:
      ValueError: alpha is not positive.
    """
    if not alpha > 0:
        raise ValueError(f"alpha={alpha} must be positive")
    model = task.model
    loss = local_training.supervised_loss(task)

    def server_init(key):
        net = model.init(key)
        return Server(net, optax.tree.zeros_like(net.params))

    def client_update(sent, g, data, key):
        linear = optax.stateless(lambda grads, _: optax.tree.sub(grads, g))  # the gradient of -<g_k, theta>
        chain = optax.chain(local_training.add_proximal_term(alpha), linear, optimizer(task.round_num))
        net, _, sums = local_training.fit(loss, chain, epochs=epochs, batch=batch)(sent, data, key)  # (1)
        delta = optax.tree.sub(net, sent)
        g = optax.tree.add_scale(g, -alpha, delta.params)  # (2)
        return ClientOutput(g, delta, sums, local=(net, g))

    def server_update(server, delta, cohort, key):
        participants = jnp.sum(cohort.examples > 0)
        h = optax.tree.add_scale(server.h, -alpha * participants / task.population, delta.params)
        params = optax.tree.add_scale(optax.tree.add(server.net.params, delta.params), -1 / alpha, h)
        params = optax.tree.where(participants > 0, params, server.net.params)
        return Server(Net(params, optax.tree.add(server.net.stats, delta.stats)), h), {}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=aggregators.mean(aggregators.weight_uniformly),
        predict={"global": lambda sent, g, x: model.apply(sent, x)[0]},
        broadcast=lambda server, client: server.net,  # h stays at the server
        client_init=lambda key, server, client: optax.tree.zeros_like(server.net.params),
    )
