"""AFL: trains for the worst mixture of the clients' data, not for their mean.

In plain words: The server keeps a weight for each client, and raises it by the client's loss. So
clients that the model serves badly count more and more, until no mixture of clients has a much
higher loss than another.
Sent to clients: model.

Mohri, Sivek, Suresh. Agnostic Federated Learning. ICML 2019. https://arxiv.org/abs/1902.00146

  paper        here              meaning
  w            server.net        server model
  lambda       server.weights    mixture of the clients, in the simplex
  L_k          risk              client k's loss of w, over all its training examples
  gamma_w      optimizer         step of the descent in w
  gamma_l      ascent_lr         step of the ascent in lambda
  w_A          server.average    mean of the iterates

Unseen clients use the model that is scored.

Departures: clients take local epochs, where the paper takes one stochastic gradient of each; one
epoch of one batch is that. All clients take part in the paper. Here those of a round share its step
by their weights, and lambda_k rises by L_k less the mean of L over the round's clients: an absent
client counts as one with that mean. With all clients this is the paper's step, since the projection
ignores a number added to all. L_k is in evaluation mode. Weights begin uniform. Batch statistics are
averaged uniformly.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, Array, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: w.
      average: mean of w over the rounds.
      weights: lambda [N].
      rounds: [] of which `average` is the mean.
    """

    net: Net
    average: Net
    weights: Array
    rounds: Array


class Sent(NamedTuple):
    """The broadcast to a client.

    Attributes:
      net: w.
      weight: [] the client's, which the server multiplies its delta by.
      scored: the model that is scored.
    """

    net: Net
    weight: Array
    scored: Net


def afl(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    ascent_lr: NonNegative = 0.1,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    score: Annotated[str, one_of("average", "last")] = "average",
) -> Algorithm:
    """Builds AFL (Figure 3, Stochastic-AFL).

    Args:
      task: network and population.
      optimizer: local optimizer.
      ascent_lr: step of the clients' weights; 0 is FedAvg with uniform weights.
      epochs: local epochs.
      batch: B.
      score: the model that is scored, the "average" of all rounds' or the "last".

    Returns:
      The algorithm.
    """
    check_arguments(afl, ascent_lr=ascent_lr, score=score)
    model, mean_loss = task.model, local_training.mean_loss(task, batch)
    fit = local_training.fit(local_training.supervised_loss(task), optimizer(task.round_num), epochs=epochs, batch=batch)
    mean = aggregators.mean(aggregators.weight_uniformly)

    def server_init(key):
        net = model.init(key)
        return Server(net, net, jnp.full(task.population, 1 / task.population), jnp.zeros((), jnp.int32))

    def client_update(sent, client, data, key):
        risk = mean_loss(sent.net, data)
        net, _, sums = fit(sent.net, data, key)
        delta = optax.tree.sub(net, sent.net)
        uplink = delta._replace(params=optax.tree.scale(sent.weight, delta.params)), sent.weight, risk
        local = sent._replace(net=net, scored=net), client
        return ClientOutput(client, uplink, sums, local=local, wire=(sent.net, (delta, risk)))

    def server_update(server, collected, cohort, key):
        step, weight, risks = collected
        step = step._replace(params=optax.tree.scale(1 / jnp.maximum(weight, aggregators.TINY), step.params))
        net: Any = optax.apply_updates(server.net, step)  # sum lambda_k delta_k
        active = cohort.examples > 0
        typical = jnp.sum(jnp.where(active, risks, 0)) / jnp.maximum(jnp.sum(active), 1)
        raised = server.weights.at[cohort.ids].add(ascent_lr * jnp.where(active, risks - typical, 0), mode="drop")
        weights = optax.projections.projection_simplex(raised)
        rounds = server.rounds + jnp.any(active)  # one without clients does not count
        move = lambda a, new: jnp.where(jnp.any(active), a + (new - a) / jnp.maximum(rounds, 1), a)
        average = jax.tree.map(move, server.average, net)
        return Server(net, average, weights, rounds), {"largest_weight": (jnp.max(weights), jnp.float32(1))}

    def broadcast(server, client_id):
        return Sent(server.net, server.weights[client_id], server.average if score == "average" else server.net)

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(mean, mean, aggregators.stack),
        predict={"global": lambda sent, client, x: model.apply(sent.scored, x)[0]},
        broadcast=broadcast,
        targets=tuple(TARGETS),
    )
