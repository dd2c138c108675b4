"""IFCA: k global models; each client trains the one that fits its data best.

In plain words: The server keeps several models. In each round a client picks the one with the
smallest loss on its data and trains it, so that clients with similar data form a cluster.
Sent to clients: all models.

Ghosh, Chung, Yin, Ramchandran. An Efficient Framework for Clustered Federated Learning. NeurIPS
2020. https://arxiv.org/abs/2006.04088

  paper     here          meaning
  k         clusters      number of models
  theta_j   server        [k, ...] models of the clusters
  j_hat     cluster       argmin_j F_i(theta_j) over all of the client's training examples, in
                          evaluation mode; the lowest of equal ones
  tau       local steps   `epochs` of them, by the optimizer

A model becomes the uniform mean over the clients that chose it, and stays if none did (model
averaging). A client is scored with the newest model that fits its training data best.

Unseen clients use the model that fits their training data best.

Departures: each model has its own random initialization, which is not drawn again if all clients
choose one (the authors' code for MNIST does until each has a tenth of them). A client is scored by
the model of its training data, in that code by that of its test data. Gradient averaging is left
out, and the layers that FEMNIST's models share.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput
from fedjax_core.option_types import AtLeastOne, AtLeastZero, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import adapters, aggregators, local_training


def ifca(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    clusters: AtLeastOne = 2,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "uniform",
) -> Algorithm:
    """Builds IFCA (Algorithm 1, model averaging).

    Args:
      task: network and population.
      optimizer: local optimizer, whose state starts anew every round.
      clusters: k; 1 is FedAvg.
      epochs: local epochs.
      batch: B.
      weights: within a cluster, "uniform" or "samples".

    Returns:
      The algorithm; a client keeps the index of its cluster. The metric "largest_cluster" is that
      cluster's share of the cohort.
    """
    check_arguments(ifca, clusters=clusters)
    model, sum_loss = task.model, local_training.evaluation_loss(task)
    given = {*getattr(task.frozen, "params", ()), adapters.ENTRY}  # begin alike in all models
    if clusters > 1 and given.issuperset(jax.eval_shape(model.init, jax.random.key(0)).params):
        raise ValueError(
            f"clusters={clusters} models would begin equal, so that all clients take the first: config.weights or an adapter "
            "leaves nothing to draw; set method.clusters=1, or train a head that the weights lack"
        )
    train = local_training.fit(local_training.supervised_loss(task), optimizer(task.round_num), epochs=epochs, batch=batch)

    def server_init(key):
        keys = [key, *(jax.random.fold_in(key, j) for j in range(1, clusters))]
        return jax.tree.map(lambda *nets: jnp.stack(nets), *map(model.init, keys))

    def choose(models, data):
        """Returns j_hat []."""
        losses = lambda batch: jax.lax.map(lambda net: sum_loss(net, batch), models)
        total, examples = local_training.sum_over_batches(losses, data, batch=batch)
        return jnp.argmin(total / jnp.maximum(examples, 1)).astype(jnp.int32)

    def client_update(models, cluster, data, key):
        cluster = choose(models, data)
        theta = aggregators.take_row(models, cluster)
        trained = train(theta, data, key)
        local = jax.tree.map(lambda theta, new: theta.at[cluster].set(new), models, trained.net)
        return ClientOutput(cluster, (optax.tree.sub(trained.net, theta), cluster), trained.sums, local=(local, cluster))

    def server_update(models, collected, cohort, key):
        deltas, _, members = collected
        return optax.apply_updates(models, deltas), {"largest_cluster": (jnp.max(members), jnp.sum(members))}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=aggregators.mean_by_index(clusters, aggregators.make_weight_fn(weights)),
        predict={"personal": lambda models, j, x: model.apply(aggregators.take_row(models, j), x)[0]},
        client_init=lambda key, server, client_id: jnp.int32(0),
        personalise=lambda models, j, data, key: (models, choose(models, data)),
        targets=tuple(TARGETS),
    )
