"""HierFAVG: edge servers average their clients' models, and the cloud those of the edges from time to time.

In plain words: Each client belongs to an edge server near it. An edge averages the models of its
clients in every round, as FedAvg does. The cloud averages the models of all edges less often, since
the way to it is long.
Sent to clients: model of their edge.

Liu, Zhang, Song, Letaief. Client-Edge-Cloud Hierarchical Federated Learning. ICC 2020.
https://arxiv.org/abs/1905.06641

  paper     here           meaning
  L         edges          number of edges
            edge_of        [N] edge of each client: i mod L, or what a file says (`assignment`)
  kappa_1   epochs         local work between two edge aggregations, here in epochs
  kappa_2   cloud_period   rounds (edge aggregations) between two of the cloud
  w^l       server.edges   [L, ...] models of the edges
  w         server.cloud   model of the cloud

An edge takes the mean of the round's clients, the cloud that of the edges, weighted by the examples
(weights="samples") of all clients that an edge averaged since the cloud's last mean: with
cloud_period=1, or one edge, this is FedAvg. The predictor "global" is the cloud's model, which
stays between its aggregations. The metrics "client_edge_bytes" and "edge_cloud_bytes" are what all
links of a kind carry in a round, in both directions; a client's traffic is that with its edge.

Unseen clients use the cloud's model.

Departures: the cloud weights edges by the examples of clients that took part, the paper by all that
it has; they are equal where all take part. The authors' code also draws clients by their numbers of
examples, and so counts these twice. A round's simulated time is that of its clients.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, Array, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training, metrics
from fedjax_core.training.mixing_matrices import read_numbers


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      edges: [L, ...] Net of each edge.
      cloud: its Net.
      weights: [L] of the clients that each edge averaged since the cloud's last mean.
    """

    edges: Net
    cloud: Net
    weights: Array


class Sent(NamedTuple):
    """The broadcast to a client.

    Attributes:
      edge: model of the client's edge.
      cloud: the cloud's, for scores; not sent to clients.
    """

    edge: Net
    cloud: Net


def hierfavg(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    edges: AtLeastOne = 4,
    assignment: str | None = None,
    cloud_period: AtLeastOne = 2,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds HierFAVG (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer, whose state starts anew every round.
      edges: L, at most the number of clients; 1 is FedAvg.
      assignment: a file with the edge of each client that trains, integers from 0 to L - 1, one a
        line or with commas, or .npy; None: i mod L.
      cloud_period: kappa_2; 1 is FedAvg.
      epochs: kappa_1.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm.

    Raises:
      ValueError: an argument is out of range, or the file does not fit the clients and edges.
    """
    check_arguments(hierfavg, edges=edges, assignment=assignment, cloud_period=cloud_period)
    if edges > task.population:
        raise ValueError(f"edges={edges} must be at most the number of clients, {task.population}")
    edge_of = jnp.asarray(assign_edges(task.population, edges, assignment))
    model = task.model
    train = local_training.fit(local_training.supervised_loss(task), optimizer(task.round_num), epochs=epochs, batch=batch)

    def server_init(key):
        net = model.init(key)
        return Server(aggregators.repeat_row(net, edges), net, jnp.zeros(edges))

    def client_update(sent, client, data, key):
        trained = train(sent.edge, data, key)
        delta = optax.tree.sub(trained.net, sent.edge)
        local = Sent(trained.net, trained.net), client
        return ClientOutput(client, delta, trained.sums, local=local, wire=(sent.edge, delta))

    def server_update(server, collected, cohort, key):
        deltas, w, members = collected
        server = Server(optax.tree.add(server.edges, deltas), server.cloud, server.weights + w)

        def aggregate_in_cloud():
            apart = jax.tree.map(lambda of_edge, of_cloud: of_edge - of_cloud[None], server.edges, server.cloud)
            cloud = optax.tree.add(server.cloud, aggregators.weighted_mean(apart, server.weights))
            same = aggregators.repeat_row(cloud, edges)
            return Server(same, cloud, jnp.zeros(edges)), jnp.sum(server.weights > 0, dtype=jnp.float32) + edges

        is_due = (task.round_num + 1) % cloud_period == 0
        server, transfers = jax.lax.cond(is_due, aggregate_in_cloud, lambda: (server, jnp.float32(0)))
        once, bytes_of_model = jnp.ones(()), metrics.nbytes(deltas) / edges
        between = {"client_edge_bytes": 2 * jnp.sum(members), "edge_cloud_bytes": transfers}
        return server, {name: (number * bytes_of_model, once) for name, number in between.items()}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=aggregators.mean_by_index(
            edges, aggregators.make_weight_fn(weights), lambda delta, client: (delta, edge_of[client.ids])
        ),
        predict={"global": lambda sent, client, x: model.apply(sent.cloud, x)[0]},
        broadcast=lambda server, i: Sent(aggregators.take_row(server.edges, edge_of[i]), server.cloud),
        targets=tuple(TARGETS),
    )


def assign_edges(clients: int, edges: int, file: str | None) -> np.ndarray:
    """Returns the edge [N] int32 of each client.

    Raises:
      ValueError: the file is not one of N integers in [0, L), or an edge has no client.
    """
    if file is None:
        return np.arange(clients, dtype=np.int32) % edges
    numbers = read_numbers(file, "assignment").reshape(-1)
    if len(numbers) != clients:
        raise ValueError(f"assignment={file!r} has {len(numbers)} numbers, and there are {clients} clients")
    if wrong := sorted(set(numbers.tolist()) - set(range(edges))):
        raise ValueError(f"assignment={file!r} has {wrong[0]:g}, and edges={edges} are the integers from 0 to {edges - 1}")
    if empty := sorted(set(range(edges)) - set(numbers.tolist())):
        raise ValueError(f"assignment={file!r} gives edge {empty[0]} no client")
    return numbers.astype(np.int32)
