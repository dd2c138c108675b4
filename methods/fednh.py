"""FedNH: the classifier is one prototype per class, fixed while clients train and moved by the server.

In plain words: The classifier is not trained. Its rows are fixed directions, one for each class,
spread evenly over the sphere, which the server moves slowly towards the clients' mean features.
Sent to clients: model, class prototypes.

Dai, Chen, Li, Heinecke, Sun, Xu. Tackling Data Heterogeneity in Federated Learning with Class
Prototypes. AAAI 2023. https://arxiv.org/abs/2212.02758

  paper       here                   meaning
  theta       server.net             body, and "scale", the factor of cosines; clients train both
  W           server.prototypes      [K, D] unit prototypes; clients do not train them
  r_theta     z / |z|                normalized feature
  mu_k^(c)    means                  client k's normalized mean of the normalized features of class c
  rho         rho                    momentum of the prototypes

Unseen clients use the server's model.

Departures: the authors' code clips gradients at norm 10 in all runs; here that is an option of the
optimizer (config.optimizer.clip), which the paper variant and FedSKC's tables set, and the tables
`digits` and `fair` do not. The prototypes' mean is weighted by the clients' counts and models are
averaged uniformly, as in that code; its other weightings, off by default, are left out. Prototypes
start as an orthonormal system; with more classes than features, as normalized rows of a matrix with
orthonormal columns. rho = 1 is FedUH.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, Array, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Fraction, Positive, check_arguments
from fedjax_core.task import Task, feature_size
from fedjax_core.training import aggregators, local_training, losses
from fedjax_core.training.param_partition import drop_entry, put_entry

_STREAM = 0x6E68  # of the initial prototypes


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model's body, and its scale.
      prototypes: [K, D], of length 1.
    """

    net: Net
    prototypes: Array


def fednh(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    rho: Fraction = 0.9,
    scale: Positive = 20.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "uniform",
) -> Algorithm:
    """Builds FedNH (Algorithm 1).

    Args:
      task: network, whose head is dropped, and population.
      optimizer: local optimizer.
      rho: how much of a prototype stays; 1: they never change.
      scale: where the scale starts; the authors take 20 for ResNet-18 and 1 for a small CNN.
      epochs: local epochs.
      batch: B.
      weights: of the models: "uniform" or "samples".

    Returns:
      The algorithm; a client sends K * (D + 1) numbers beside its delta.
    """
    check_arguments(fednh, rho=rho, scale=scale)
    model, classes = task.model, task.classes

    def apply(net, prototypes, x, key=None, train=False, mask=None):
        z, stats = model.features(drop_entry(net, "scale"), x, key, train, mask)
        z = losses.normalize(z)
        return {"logits": net.params["scale"] * (z @ prototypes.T), "features": z}, stats

    def server_init(key):
        net = drop_entry(model.init(key), "head")
        spread = jax.nn.initializers.orthogonal()(jax.random.fold_in(key, _STREAM), (classes, feature_size(model)))
        return Server(put_entry(net, "scale", jnp.asarray(scale, jnp.float32)), losses.normalize(spread))

    def client_update(sent, client, data, key):
        def loss(net, batch, key):
            outputs, stats = apply(net, sent.prototypes, batch.x, key, train=True, mask=batch.mask)
            value, sums = local_training.loss_and_metrics(outputs, batch, local_training.label_loss(task))
            return value, local_training.Aux(stats, sums)

        trained = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)(sent.net, data, key)

        def features(rows):
            return apply(trained.net, sent.prototypes, rows.x, mask=rows.mask)[0]["features"]

        means, counts = local_training.class_means(features, data, classes=classes, batch=batch)
        uplink = optax.tree.sub(trained.net, sent.net), (losses.normalize(means), counts)
        return ClientOutput(client, uplink, trained.sums, local=(sent._replace(net=trained.net), client))

    def server_update(server, collected, cohort, key):
        delta, (means, counts) = collected
        updated = losses.normalize(rho * server.prototypes + (1 - rho) * losses.normalize(means))
        prototypes = jnp.where(counts[:, None] > 0, updated, server.prototypes)
        return Server(optax.tree.add(server.net, delta), prototypes), {}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(aggregators.mean(aggregators.make_weight_fn(weights)), aggregators.class_mean("samples")),
        predict={"global": lambda sent, client, x: apply(sent.net, sent.prototypes, x)[0]},
    )
