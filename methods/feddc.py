"""FedDC: FedDyn's spring to a client's own point, with SCAFFOLD's control variates.

In plain words: Each client remembers how far its local trainings have drifted from the models that it
was sent. A spring pulls its weights to the server's model less that drift, and the server adds the
mean drift of all clients to the mean model. Each client also subtracts the direction in which its own
data pull, less the mean direction of all, from every local step.
Sent to clients: model, mean direction.

Gao, Fu, Li, Chen, Xu, Xu. FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and
Correction. CVPR 2022. https://arxiv.org/abs/2203.11751

  paper        here              meaning
  w            server.net        server model;  theta_i: the one that client i trains
  h_i          client.drift      local drift;  server.drift: the mean over all clients
  g_i          client.pull       direction of client i's last training, as a gradient
  g            server.pull       mean of g_i over all clients
  alpha        alpha             strength of the spring
  eta K        moved             how far a constant gradient of 1 moves a number;  K: local steps

A client minimizes L_i + alpha / 2 R_i + G_i, with R_i = ||theta_i - (w - h_i)||^2 and
G_i = <theta_i, g - g_i>. Unseen clients use the server's model.

**It may diverge** as FedDyn does, which it is without G_i (FedDyn's state is -alpha h_i), and a run
says so before it starts: a small alpha is a long memory with large steps, and good values are from
1 / (eta K) to 1 / eta (`methods/feddyn.py`).

Departures: as in the authors' code, states begin at 0, means are uniform, the server adds the mean
drift of all clients and not of the round's, g_i and g are gradients ((w - theta_i) / (eta K), hence
the sign in G_i), and a client's new g_i lacks the correction that it trained with, as in SCAFFOLD's
option II. That code divides alpha and g by a client's share of the examples, 1 where all have as many,
which is left out here; and it takes the first round's eta and one K for all clients and rounds. Here
eta K is measured as in FedNova, so that clients may take unequal numbers of steps, with momentum or
falling rates; with weight decay the measure falls a little short (`methods/fedcm.py`). Weight decay
and clipping are in g_i, as there; config.optimizer.clip bounds the whole direction. That code also
logs scores of the mean of the round's models: score="active_mean". Batch statistics are averaged. A
round without participants changes nothing.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Positive, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model w.
      drift: like net.params, the mean of all clients' drifts.
      pull: g, like net.params.
    """

    net: Net
    drift: PyTree
    pull: PyTree


class Client(NamedTuple):
    """The state of a client. `drift`: h_i; `pull`: g_i; both like the params."""

    drift: PyTree
    pull: PyTree


def feddc(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    alpha: Positive = 0.1,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    score: Annotated[str, one_of("server", "active_mean")] = "server",
) -> Algorithm:
    """Builds FedDC (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer, linear in its gradients such as sgd, which sees those of the whole objective.
      alpha: strength of the spring; the authors' script for CIFAR-10 has 0.01.
      epochs: local epochs.
      batch: B.
      score: the model that is scored: "server", w, or "active_mean", w less the mean drift, which is
        the mean of the models of the last round.

    Returns:
      The algorithm; a client keeps its drift and its direction.

    Raises:
      ValueError: an argument is out of range, or the optimizer is not linear.
    """
    check_arguments(feddc, alpha=alpha, score=score)
    local_training.require_linear(optimizer, "FedDC")
    model = task.model
    loss = local_training.supervised_loss(task)
    mean = aggregators.mean(aggregators.weight_uniformly)

    def server_init(key):
        net = model.init(key)
        return Server(net, *optax.tree.zeros_like((net.params, net.params)))

    def client_update(sent, client, data, key):
        spring = local_training.add_proximal_term(alpha, optax.tree.sub(sent.net.params, client.drift))  # R_i
        difference = optax.tree.sub(sent.pull, client.pull)
        correct = optax.stateless(lambda grads, _: optax.tree.add(grads, difference))  # G_i
        chain = optax.chain(spring, correct, local_training.measure_steps(optimizer(task.round_num)))
        net, (*_, measured), sums = local_training.fit(loss, chain, epochs=epochs, batch=batch)(sent.net, data, key)
        delta = optax.tree.sub(net, sent.net)
        is_moved, worth = measured.moved > 0, jnp.where(measured.moved > 0, measured.moved, 1)  # eta K
        turn = jax.tree.map(lambda g, d: jnp.where(is_moved, -g - d / worth.astype(d.dtype), 0), sent.pull, delta.params)
        client = Client(optax.tree.add(client.drift, delta.params), optax.tree.add(client.pull, turn))
        local = Server(net, optax.tree.zeros_like(sent.drift), sent.pull), client
        return ClientOutput(client, (delta, turn), sums, local=local, wire=((sent.net, sent.pull), (delta, measured.moved)))

    def server_update(server, collected, cohort, key):
        delta, turn = collected
        share = jnp.sum(cohort.examples > 0) / task.population
        drift = optax.apply_updates(server.drift, optax.tree.scale(share, delta.params))
        moved = optax.tree.add(optax.tree.add(server.net.params, delta.params), drift)  # mean theta_i + mean h_i
        params = optax.tree.where(share > 0, moved, server.net.params)
        net = Net(params, optax.tree.add(server.net.stats, delta.stats))
        correction = optax.tree.norm(drift) / jnp.maximum(optax.tree.norm(params), aggregators.TINY)
        metrics = {"correction": (correction, jnp.ones_like(correction))}
        return Server(net, drift, optax.apply_updates(server.pull, optax.tree.scale(share, turn))), metrics

    def scored(sent):
        return sent.net if score == "server" else sent.net._replace(params=optax.tree.sub(sent.net.params, sent.drift))

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(mean, mean),
        predict={"global": lambda sent, client, x: model.apply(scored(sent), x)[0]},
        client_init=lambda key, server, client_id: Client(*optax.tree.zeros_like((server.net.params, server.net.params))),
        targets=tuple(TARGETS),
    )
