"""FedProto with a global model: FedAvg whose clients pull their features to the prototypes of all.

In plain words: FedProto's pull towards common class means, beside averaged weights. It gives a
global model to compare with other methods.
Sent to clients: model, class prototypes.

Tan et al. FedProto. AAAI 2022; see `methods/fedproto.py` for the symbols. Papers that list FedProto
among methods with one global model (as FedSKC does) do not say how they get one. Here parameters
are averaged as in FedAvg, the clients' loss has FedProto's regularizer, and the model's classifier
predicts.

  here                 meaning
  server.net           global model
  server.prototypes    mean feature of each class, and which are known

Unseen clients use the server's model.

Departures: the whole method; the paper has no global model.
"""

from typing import NamedTuple

import optax

from fedjax_core.algorithm import Algorithm, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training
from methods.fedproto import Prototypes, init_prototypes, mean_features, prototype_loss, update_prototypes


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model.
      prototypes: of all classes.
    """

    net: Net
    prototypes: Prototypes


def fedproto_g(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    lam: NonNegative = 1.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedProto with a global model.

    Args:
      lam: weight of the regularizer; 0 is FedAvg.
      epochs: local epochs.
      batch: B.
      weights: of models and of a class's means: "samples" or "uniform".

    Returns:
      The algorithm.
    """
    check_arguments(fedproto_g, lam=lam)
    model = task.model

    def client_update(sent, client, data, key):
        train = local_training.fit(
            prototype_loss(model, sent.prototypes, lam, local_training.label_loss(task)),
            optimizer(task.round_num),
            epochs=epochs,
            batch=batch,
        )
        w_i, _, sums = train(sent.net, data, key)
        uplink = optax.tree.sub(w_i, sent.net), mean_features(model, w_i, data, classes=task.classes, batch=batch)
        return ClientOutput(client, uplink, sums, local=(sent._replace(net=w_i), client))

    def server_update(server, collected, cohort, key):
        delta, means = collected
        return Server(optax.tree.add(server.net, delta), update_prototypes(server.prototypes, *means)), {}

    return Algorithm(
        server_init=lambda key: Server(model.init(key), init_prototypes(task)),
        client_update=client_update,
        server_update=server_update,
        collect=(aggregators.mean(aggregators.make_weight_fn(weights)), aggregators.class_mean(weights)),
        predict={"global": lambda sent, client, x: model.apply(sent.net, x)[0]},
    )
