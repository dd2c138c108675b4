"""DFedAvg: clients without a server, each of which averages its model with those of its neighbours.

In plain words: There is no server. Every client trains its own model, sends it to its neighbours in
a graph, and goes on from a weighted mean of their models and its own.
Sent to clients: models of its neighbours.

Sun, Li, Wang. Decentralized Federated Averaging. IEEE TPAMI 2022. https://arxiv.org/abs/2104.11375
Lian, Zhang, Zhang, Hsieh, Zhang, Liu. Can Decentralized Algorithms Outperform Centralized
Algorithms? (D-PSGD). NeurIPS 2017. https://arxiv.org/abs/1705.09056

  paper   here            meaning
  x_i     server.models   [N, ...] model of each client
  W       matrices        [P, N, N] weights, of round t W_(t mod P) (`mixing_matrices.py`)
  K       epochs, batch   local steps
  theta   optimizer       momentum, which starts anew every round

  order="train_mix":   x_i <- sum_j W_ij (x_j + delta_j)       (DFedAvgM)
  order="mix_train":   x_i <- sum_j W_ij x_j + delta_i         (D-PSGD, for one step)

delta_i is the change of x_i in client i's local training. The predictor "global" is the mean of all
clients' models, "personal" the client's own. The metric "consensus_distance" is the mean of
|x_i - mean|^2; "links" is the number of pairs (sender, receiver) of the round, and "link_bytes" what
all of them carry. A client's traffic in summary.json is that of the mean number of neighbours.

Unseen clients use the mean of all models.

Departures: clients that do not take part keep their models, and W_ij between them and others is
moved to W_ii, so that rows sum to 1; a matrix that is not symmetric is then not doubly stochastic.
A client without examples never takes part: its initial model stays, and counts in the mean.
Batch statistics are mixed with the model.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, Array, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Seed, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training, metrics
from fedjax_core.training.mixing_matrices import TOPOLOGIES, make_mixing_matrices, mean_degree


class Server(NamedTuple):
    """What the simulation keeps of all clients, in place of a server.

    Attributes:
      models: [N, ...] Net of each client.
      mean: their mean.
    """

    models: Net
    mean: Net


class Sent(NamedTuple):
    """The broadcast to a client.

    Attributes:
      own: the client's model.
      mean: of all clients' models, for scores; never sent.
    """

    own: Net
    mean: Net


def dfedavg(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    topology: Annotated[str, one_of(*TOPOLOGIES)] = "ring",
    degree: AtLeastOne = 4,
    graph_seed: Seed = 0,
    matrix: str | None = None,
    order: Annotated[str, one_of("train_mix", "mix_train")] = "train_mix",
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
) -> Algorithm:
    """Builds DFedAvg or D-PSGD.

    Args:
      task: network and population.
      optimizer: local optimizer, whose state starts anew every round.
      topology: see `mixing_matrices.py`; "full" is FedAvg with uniform weights if all take part.
      degree: of topology="random", neighbours of a client.
      graph_seed: of topology="random".
      matrix: of topology="graph" and "matrix", a file of the clients that train: .npy, or lines of
        numbers with commas.
      order: "train_mix" or "mix_train".
      epochs: local epochs.
      batch: B.

    Returns:
      The algorithm.

    Raises:
      ValueError: an argument is out of range, or does not fit the number of clients.
    """
    check_arguments(dfedavg, topology=topology, degree=degree, graph_seed=graph_seed, matrix=matrix, order=order)
    model, clients = task.model, task.population
    matrices = make_mixing_matrices(topology, clients, degree=degree, seed=graph_seed, file=matrix)
    neighbours = mean_degree(matrices)
    train = local_training.fit(local_training.supervised_loss(task), optimizer(task.round_num), epochs=epochs, batch=batch)

    def server_init(key):
        net = model.init(key)
        return Server(aggregators.repeat_row(net, clients), net)

    def client_update(sent, is_unseen, data, key):
        trained = train(sent.own, data, key)
        delta = optax.tree.sub(trained.net, sent.own)
        sent_by_all = jax.tree.map(lambda p: jnp.zeros(round(neighbours * p.size), p.dtype), delta)
        local = Sent(trained.net, sent.mean), is_unseen
        return ClientOutput(is_unseen, delta, trained.sums, local=local, wire=(sent_by_all, sent_by_all))

    def weights_of(active: Array, ids: Array) -> tuple[Array, Array]:
        """Returns W [C, C] of the clients that take part, and [C, C] whether one receives of another."""
        w = jnp.asarray(matrices)[task.round_num % len(matrices)][ids[:, None], ids[None]]
        w = jnp.where(aggregators.other_pairs(active), w, 0)
        return w + jnp.diag(jnp.where(active, 1 - jnp.sum(w, 1), 0)), w > 0

    def server_update(server, deltas, cohort, key):
        ids = jnp.minimum(cohort.ids, clients - 1)
        w, is_link = weights_of(cohort.examples > 0, ids)
        old = aggregators.take_row(server.models, ids)
        if order == "train_mix":
            new = aggregators.mix_clients(optax.tree.add(old, deltas), w)
        else:
            new = optax.tree.add(aggregators.mix_clients(old, w), deltas)
        models = aggregators.scatter_clients(server.models, cohort, new)
        mean = jax.tree.map(lambda x: jnp.mean(x, 0), models)
        distance = optax.tree.norm(jax.tree.map(lambda x, m: x - m[None], models.params, mean.params), squared=True)
        links, once, bytes_of_model = jnp.sum(is_link, dtype=jnp.float32), jnp.ones(()), metrics.nbytes(deltas) / len(cohort.ids)
        sums = {"consensus_distance": (distance, jnp.float32(clients)), "links": (links, once)}
        return Server(models, mean), sums | {"link_bytes": (links * bytes_of_model, once)}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=aggregators.stack,
        predict={
            "global": lambda sent, is_unseen, x: model.apply(sent.mean, x)[0],
            "personal": lambda sent, is_unseen, x: model.apply(optax.tree.where(is_unseen, sent.mean, sent.own), x)[0],
        },
        client_init=lambda key, server, client_id: jnp.int32(0),
        broadcast=lambda server, client_id: Sent(aggregators.take_row(server.models, client_id), server.mean),
        init_unseen=lambda sent, is_unseen: jnp.int32(1),
        targets=tuple(TARGETS),
    )
