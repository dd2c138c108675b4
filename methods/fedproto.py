"""FedProto: clients of any body exchange the mean features of each class, and pull their features to them.

In plain words: Clients share no weights. Each sends the mean feature of each of its classes, and is
drawn towards the means of all. Networks may differ, as long as their features have one length.
Sent to clients: class prototypes.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. FedProto: Federated Prototype Learning across Heterogeneous
Clients. AAAI 2022. https://arxiv.org/abs/2105.00243

  paper        here                 meaning
  C^(j)        server.means         prototype of class j: mean feature over the clients that have it, [K, D]
               server.known         classes that any client ever had, [K]
  C_i^(j)      mean_features(...)   client i's mean feature of class j
  w_i          w_i                  client i's model, never sent
  lambda       lam                  weight of the regularizer

The client's loss is CE + lam * mean_b |z_b - C^(y_b)|^2 / D, where examples of unknown classes
count as 0. Models may differ in all but D. The predictor "personal" uses the client's classifier,
"nearest" the closest prototype, as in the paper.

Unseen clients are not supported, since networks are never sent.

Departures: a class that no client of the cohort has keeps its prototype. A client's means are
computed after training, in evaluation mode, over all its examples; features="training" takes the
features of the last local epoch, as the authors' code does, which saves a pass. That code also
averages uniformly (weights="uniform"), and predicts by the nearest prototype among the client's own
classes only.
"""

from typing import Annotated, NamedTuple

import jax.numpy as jnp

from fedjax_core.algorithm import Algorithm, Array, ClientData, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments, one_of
from fedjax_core.task import Model, Task, feature_size, require_common_feature_size
from fedjax_core.training import aggregators, local_training, losses

FAR = -1e9  # the logit of a class without a prototype


class Prototypes(NamedTuple):
    """The prototypes of all classes.

    Attributes:
      means: [K, D] mean feature of each class.
      known: [K] mask of classes that were ever sent.
    """

    means: Array
    known: Array


def init_prototypes(task: Task) -> Prototypes:
    """Returns the state before the first round."""
    return Prototypes(jnp.zeros((task.classes, feature_size(task.model))), jnp.zeros(task.classes, bool))


def update_prototypes(prototypes: Prototypes, mean: Array, weight: Array) -> Prototypes:
    """Updates prototypes to the cohort's `mean` [K, D] where `weight` [K] is positive."""
    seen = weight > 0
    return Prototypes(jnp.where(seen[:, None], mean, prototypes.means), prototypes.known | seen)


def prototype_loss(
    model: Model,
    prototypes: Prototypes,
    lam: float,
    label_loss: losses.LabelLoss = losses.cross_entropy,
    classes: int | None = None,
) -> local_training.LossFn:
    """Returns the client's loss: cross-entropy, and the squared distance of features to their prototype.

    With `classes`, its sums are (metrics, sums [K, D] and counts [K] of features by class over the
    last epoch, which `epoch_inputs` marks).
    """

    def loss(net, batch, key, is_last=None):
        outputs, stats = model.apply(net, batch.x, key, train=True, mask=batch.mask)
        ce = label_loss(outputs["logits"], batch.y, batch.mask)
        apart = jnp.mean((outputs["features"] - prototypes.means[batch.y]) ** 2, -1)
        value = ce + lam * losses.masked_mean(jnp.where(prototypes.known[batch.y], apart, 0), batch.mask)
        sums = local_training.loss_metrics(ce, outputs["logits"], batch)
        if classes is not None:
            sums = sums, local_training.class_sums(outputs["features"], batch.y, batch.mask & is_last, classes)
        return value, local_training.Aux(stats, sums)

    return loss


def mean_features(model: Model, net: Net, data: ClientData, *, classes: int, batch: int) -> tuple[Array, Array]:
    """Returns a client's mean feature of each class [K, D], in evaluation mode, and its counts [K]."""
    return local_training.class_means(lambda b: model.features(net, b.x, mask=b.mask)[0], data, classes=classes, batch=batch)


def fedproto(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    lam: NonNegative = 1.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
    features: Annotated[str, one_of("trained", "training")] = "trained",
) -> Algorithm:
    """Builds FedProto (Algorithm 1).

    Args:
      task: network and population; groups may differ in architecture, but not in the number of
        features.
      lam: weight of the regularizer; 0 is local training.
      epochs: local epochs.
      batch: B.
      weights: of a class's means: "samples", by the clients' numbers of examples, or "uniform".
      features: what prototypes average: "trained", features of the trained network, in one more
        pass; or "training", those of the last local epoch, as in the authors' code.

    Returns:
      The algorithm; a client keeps its model and sends K * (D + 1) numbers.

    Raises:
      ValueError: lam is negative, another argument out of range, the numbers of features differ, or
        there is no epoch to take the features of.
    """
    check_arguments(fedproto, lam=lam, features=features)
    if features == "training" and epochs < 1:
        raise ValueError(f"epochs={epochs} must be at least 1 with features='training', which are of the last epoch")
    require_common_feature_size(task, "fedproto")
    model = task.model

    def client_update(sent, w_i, data, key):
        if features == "trained":
            loss = prototype_loss(model, sent, lam, local_training.label_loss(task))
            trained = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)(w_i, data, key)
            uplink = mean_features(model, trained.net, data, classes=task.classes, batch=batch)
            return ClientOutput(trained.net, uplink, trained.sums)
        loss = prototype_loss(model, sent, lam, local_training.label_loss(task), task.classes)
        is_last = lambda net, data, e: jnp.equal(e, local_training.num_epochs(data, epochs, batch) - 1)
        train = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch, epoch_inputs=is_last)
        trained = train(w_i, data, key)
        sums, by_class = trained.sums
        return ClientOutput(trained.net, local_training.divide_class_sums(*by_class), sums)

    def nearest(sent, w_i, x):
        z = model.features(w_i, x)[0]
        return {"logits": jnp.where(sent.known[None], -losses.squared_distances(z, sent.means), FAR), "features": z}

    return Algorithm(
        server_init=lambda key: init_prototypes(task),
        client_update=client_update,
        server_update=lambda server, collected, cohort, key: (update_prototypes(server, *collected), {}),
        collect=aggregators.class_mean(weights),
        predict={"personal": lambda sent, w_i, x: model.apply(w_i, x)[0], "nearest": nearest},
        client_init=lambda key, server, client_id: model.init(key),
        init_unseen="FedProto's networks are never sent, so an unseen client would have to train one alone",
    )
