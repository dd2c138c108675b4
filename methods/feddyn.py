"""FedDyn: each client's loss is bent so that all clients agree at the optimum of their mean loss.

In plain words: Each client remembers in which direction its data pull, and subtracts that pull from
every local step, while a spring holds it near the model that it was sent. The server remembers the
mean pull of all clients and moves the mean model on along it.
Sent to clients: model.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic
Regularization. ICLR 2021. https://arxiv.org/abs/2111.04263

  paper        here               meaning
  theta        server.net         server model;  theta_k: the one that client k trains
  h            server.h           mean over all m clients of their g_k
  g_k          g                  gradient of client k's loss where it last stopped
  alpha        alpha              strength of the regulariser
  m            task.population    number of all clients
  |P_t|        number             of the round's clients

Unseen clients use the server's model.

**It may diverge**, and a run says so before it starts. With constant gradients, K local steps of
rate eta and a share P of the clients in a round, the mean of the states is a momentum of coefficient
1 - P (1 - (1 - eta alpha)^K), and the server's step is 1 / alpha. A small alpha is therefore not
near FedAvg, but a long memory with large steps; a falling rate makes the memory longer; and local
steps are stable only for eta (alpha + L) < 2, L being the loss's curvature. Good values are from
1 / (eta K) to 1 / eta. With others, score="active_mean" scores the mean of the round's models, which
the server's step does not reach. A round's metric "correction" is ||h / alpha|| / ||theta||: if it
grows from round to round, the run diverges. docs/pages/feddyn.md has measurements.

Departures: as in the authors' code, states begin at 0 and means are uniform. That code scores the
mean of the round's models or of all clients' last ones, never theta: score="active_mean" is the
former. It also divides alpha by a client's share of the examples, and clips the gradient before it
adds alpha theta, so that clipped steps shrink the weights; here alpha is one number, and
config.optimizer.clip bounds the whole direction, which stays 0 where it was 0. Batch statistics are
averaged. A round without participants changes nothing.
"""

from typing import Annotated, NamedTuple

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Positive, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model theta.
      h: the server's state, like net.params.
    """

    net: Net
    h: PyTree


def feddyn(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    alpha: Positive = 0.1,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    score: Annotated[str, one_of("server", "active_mean")] = "server",
) -> Algorithm:
    """Builds FedDyn (Algorithm 1).

    Args:
      task: network and population; m is `task.population`.
      optimizer: local optimizer, which sees the gradient of the bent loss.
      alpha: strength of the regulariser; the authors' script for CIFAR-10 has 0.01.
      epochs: local epochs.
      batch: B.
      score: the model that is scored: "server", theta, or "active_mean", theta + h / alpha, the mean
        of the models of the last round.

    Returns:
      The algorithm; a client keeps its g_k.
    """
    check_arguments(feddyn, alpha=alpha, score=score)
    model = task.model
    loss = local_training.supervised_loss(task)

    def server_init(key):
        net = model.init(key)
        return Server(net, optax.tree.zeros_like(net.params))

    def client_update(sent, g, data, key):
        linear = optax.stateless(lambda grads, _: optax.tree.sub(grads, g))  # of -<g_k, theta>
        bent = optax.chain(local_training.add_proximal_term(alpha), linear, optimizer(task.round_num))
        net, _, sums = local_training.fit(loss, bent, epochs=epochs, batch=batch)(sent.net, data, key)  # (1)
        delta = optax.tree.sub(net, sent.net)
        g = optax.tree.add_scale(g, -alpha, delta.params)  # g_k - alpha (theta_k - theta)
        return ClientOutput(g, delta, sums, local=(Server(net, optax.tree.zeros_like(g)), g), wire=(sent.net, delta))

    def server_update(server, delta, cohort, key):
        number = jnp.sum(cohort.examples > 0)
        h = optax.tree.add_scale(server.h, -alpha * number / task.population, delta.params)
        moved = optax.tree.add_scale(optax.tree.add(server.net.params, delta.params), -1 / alpha, h)
        params = optax.tree.where(number > 0, moved, server.net.params)
        correction = optax.tree.norm(h) / alpha / jnp.maximum(optax.tree.norm(params), aggregators.TINY)
        server = Server(Net(params, optax.tree.add(server.net.stats, delta.stats)), h)
        return server, {"correction": (correction, jnp.ones_like(correction))}

    def scored(sent):
        return sent.net if score == "server" else sent.net._replace(params=optax.tree.add_scale(sent.net.params, 1 / alpha, sent.h))

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=aggregators.mean(aggregators.weight_uniformly),
        predict={"global": lambda sent, g, x: model.apply(scored(sent), x)[0]},
        client_init=lambda key, server, client_id: optax.tree.zeros_like(server.net.params),
        targets=tuple(TARGETS),
    )
