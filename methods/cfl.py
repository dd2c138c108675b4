"""CFL: FedAvg that splits clients into clusters when their updates disagree at a stationary point.

In plain words: All clients begin in one cluster. When a cluster's mean update vanishes while those
of its clients do not, they want different models: the cluster is split by the directions of their
updates, and each part goes on alone.
Sent to clients: the model of the client's cluster.

Sattler, Mueller, Samek. Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints. IEEE TNNLS 2020. https://arxiv.org/abs/1910.01991

  paper        here             meaning
  theta_c      server.models    [N, ...] model of each client's cluster, equal within a cluster
  c            server.labels    [N] cluster of each client, named by its client of the lowest id
  Delta_i      server.updates   [N, ...] each client's last change of its model's parameters
  alpha_ij     similarity       cosine of Delta_i and Delta_j
  eps_1        mean_norm        a cluster c is split if |mean_c Delta_i| < eps_1
  eps_2        client_norm      and max_c |Delta_i| > eps_2
  c_1, c_2     bipartition      of the smallest max alpha_ij between them

A split cluster has more than two clients, and comes after `first_split` rounds.

linkage="single" is the bipartition of the paper: it cuts the weakest link of the most similar
chain. "complete", in the authors' notebook, merges the two groups whose most different members are
most alike, until two groups are left.

Unseen clients are not supported: a cluster is found by the updates that a client sends.

Departures: with partial participation an absent client counts with its last update, and one that
never sent any goes with the part that has the lowest id. The optimizer starts anew every round; in
the authors' notebook momentum lasts. Batch statistics are averaged with the model, and count in no
norm.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, Array, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training
from methods.fedamp import cosine_similarities


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      models: [N, ...] Net of each client's cluster.
      updates: [N, ...] each client's last change of parameters; zeros before the first.
      labels: [N] int32, each client's cluster.
    """

    models: Net
    updates: PyTree
    labels: Array


def cfl(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    mean_norm: NonNegative = 0.4,
    client_norm: NonNegative = 1.6,
    first_split: AtLeastZero = 20,
    linkage: Annotated[str, one_of("single", "complete")] = "single",
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
) -> Algorithm:
    """Builds CFL.

    Args:
      task: network and population.
      optimizer: local optimizer, whose state starts anew every round.
      mean_norm: eps_1; 0 is FedAvg with uniform weights.
      client_norm: eps_2.
      first_split: rounds before the first split.
      linkage: of the bipartition, "single" or "complete".
      epochs: local epochs.
      batch: B.

    Returns:
      The algorithm; the server keeps a model and an update per client. Metrics: "clusters", their
      number; "mean_norm", the mean of |mean_c Delta_i| over clusters; "client_norm", the largest
      |Delta_i|. The last two help to choose eps_1 and eps_2.
    """
    check_arguments(cfl, mean_norm=mean_norm, client_norm=client_norm, first_split=first_split, linkage=linkage)
    model, clients = task.model, task.population
    train = local_training.fit(local_training.supervised_loss(task), optimizer(task.round_num), epochs=epochs, batch=batch)

    def server_init(key):
        models = aggregators.repeat_row(model.init(key), clients)
        return Server(models, optax.tree.zeros_like(models.params), jnp.zeros(clients, jnp.int32))

    def client_update(theta, client, data, key):
        trained = train(theta, data, key)
        return ClientOutput(client, optax.tree.sub(trained.net, theta), trained.sums, local=(trained.net, client))

    def split_clusters(updates, labels):
        """Returns (new labels, norms [N] of the old clusters' mean updates, the largest norm)."""
        norms = jax.vmap(optax.tree.norm)(updates)

        def split(c, carry):
            new, mean_norms = carry
            members = labels == c
            sent = members & (norms > 0)
            mean = aggregators.weighted_mean(updates, sent.astype(norms.dtype))
            mean_norms = mean_norms.at[c].set(optax.tree.norm(mean))
            is_stationary = (mean_norms[c] < mean_norm) & (jnp.max(jnp.where(sent, norms, 0)) > client_norm)
            is_due = is_stationary & (jnp.sum(sent) > 2) & (task.round_num >= first_split)

            def halve():
                part = bipartition(cosine_similarities(updates), sent, linkage)
                second = sent & (part != part[jnp.argmax(sent)])
                rest = members & ~second
                return jnp.where(second, jnp.argmax(second), jnp.where(rest, jnp.argmax(rest), new)).astype(new.dtype)

            return jax.lax.cond(is_due, halve, lambda: new), mean_norms

        return *jax.lax.fori_loop(0, clients, split, (labels, jnp.zeros(clients))), jnp.max(norms)

    def server_update(server, deltas, cohort, key):
        active = cohort.examples > 0
        updates = aggregators.scatter_clients(server.updates, cohort, deltas.params)
        labels, mean_norms, largest = split_clusters(updates, server.labels)
        own = jnp.take(labels, cohort.ids, mode="clip")
        w = ((labels[:, None] == own[None]) & active[None]).astype(jnp.float32)
        mean = aggregators.mix_clients(deltas, w / jnp.maximum(jnp.sum(w, 1, keepdims=True), 1))
        count = lambda labels: jnp.sum(labels == jnp.arange(clients), dtype=jnp.float32)
        metrics = {"clusters": (count(labels), jnp.ones(())), "client_norm": (largest, jnp.ones(()))}
        metrics |= {"mean_norm": (jnp.sum(mean_norms), count(server.labels))}
        return Server(optax.tree.add(server.models, mean), updates, labels), metrics

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=aggregators.stack,
        predict={"personal": lambda theta, client, x: model.apply(theta, x)[0]},
        broadcast=lambda server, client_id: aggregators.take_row(server.models, client_id),
        init_unseen="CFL finds the cluster of a client by the updates that it sends, and none for an unseen client",
        targets=tuple(TARGETS),
    )


def bipartition(similarity: Array, members: Array, linkage: str) -> Array:
    """Returns the group [N] of each member, one of two ids; at least two members.

    Args:
      similarity: [N, N], symmetric.
      members: [N] mask; other entries are in groups of their own.
      linkage: "single": groups merge by their most similar members; "complete": by their least
        similar ones.
    """
    n = len(members)
    both = aggregators.other_pairs(members)
    join = jnp.maximum if linkage == "single" else jnp.minimum

    def merge(_, carry):
        group, near = carry
        a, b = jnp.unravel_index(jnp.argmax(near), near.shape)
        row = jnp.where(jnp.isneginf(near[a]) | jnp.isneginf(near[b]), -jnp.inf, join(near[a], near[b]))
        near = near.at[a].set(row).at[:, a].set(row).at[b].set(-jnp.inf).at[:, b].set(-jnp.inf)
        return jnp.where(group == b, a, group), near

    start = jnp.arange(n), jnp.where(both, similarity, -jnp.inf)
    return jax.lax.fori_loop(0, jnp.sum(members) - 2, merge, start)[0]
