"""MOON: a client's features are pulled to the global model's, and away from its own previous model's.

In plain words: While a client trains, its features are drawn towards those of the server's model
and away from those of its own previous model.
Sent to clients: model.

Li, He, Song. Model-Contrastive Federated Learning. CVPR 2021. https://arxiv.org/abs/2103.16257

  paper              here               meaning
  w^t                server             global model
  w_i^(t-1)          client.previous    client i's last trained model
  R_w(x)             model.features     body and a two-layer projection, which the classifier reads
  z, z_glob, z_prev                     features of the trained, the global and the previous model
  mu, tau            mu, tau            weight and temperature of the contrastive term

Unseen clients use the server's model.

Departures: in a client's first round there is no previous model and no contrastive term (the
authors' code uses a random model if that is after round 1). The two fixed models see images without
`config.augment`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import PER_ROW, Algorithm, Array, ClientOutput, Net
from fedjax_core.nn.projection_head import with_projection
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, Positive, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training, losses


class Client(NamedTuple):
    """The state of a client.

    Attributes:
      previous: the model as the client last trained it.
      trained: [] 1 if the client ever trained, else 0.
    """

    previous: Net
    trained: Array


def contrastive_loss(z: Array, near: Array, far: Array, mask: Array, tau: float) -> Array:
    """Returns the mean of -log(e^(cos(z, near)/tau) / (e^(cos(z, near)/tau) + e^(cos(z, far)/tau)))."""
    z, near, far = losses.normalize(z), losses.normalize(near), losses.normalize(far)
    return losses.masked_mean(jax.nn.softplus(jnp.sum(z * (far - near), -1) / tau), mask)


def moon(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    mu: NonNegative = 5.0,
    tau: Positive = 0.5,
    projection: AtLeastOne = 256,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds MOON (Algorithm 1).

    Args:
      task: network, whose head is replaced, and population.
      optimizer: local optimizer.
      mu: weight of the contrastive term; 0 is FedAvg on the same network. The paper's are 5 for CIFAR-10
        and 1 for CIFAR-100 and Tiny-ImageNet.
      tau: its temperature.
      projection: size of the projected features.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps the model that it last trained.
    """
    check_arguments(moon, mu=mu, tau=tau, projection=projection)
    model = with_projection(task.model, task.classes, projection)
    collect = aggregators.mean(aggregators.make_weight_fn(weights))

    def client_update(sent, client, data, key):
        def loss(net, batch, key):
            outputs, stats = model.apply(net, batch.x, key, train=True, mask=batch.mask)
            ce = local_training.label_loss(task)(outputs["logits"], batch.y, batch.mask)
            near = model.features(sent, batch.x, mask=batch.mask)[0]  # z_glob
            far = model.features(client.previous, batch.x, mask=batch.mask)[0]  # z_prev
            term = contrastive_loss(outputs["features"], near, far, batch.mask, tau)
            value = ce + mu * client.trained * term
            return value, local_training.Aux(stats, local_training.loss_metrics(ce, outputs["logits"], batch))

        trained = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)(sent, data, key)
        state = Client(trained.net, jnp.ones_like(client.trained))
        return ClientOutput(state, optax.tree.sub(trained.net, sent), trained.sums, local=(trained.net, state))

    return Algorithm(
        server_init=model.init,
        client_update=client_update,
        server_update=lambda server, delta, cohort, key: (optax.tree.add(server, delta), {}),
        collect=collect,
        predict={"global": lambda sent, client, x: model.apply(sent, x)[0]},
        client_init=lambda key, server, client_id: Client(model.init(key), jnp.zeros(())),
        targets=PER_ROW,
    )
