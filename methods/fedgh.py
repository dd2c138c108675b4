"""FedGH: bodies of any architecture under one head, which the server trains on the clients' mean features.

In plain words: Networks differ in all but their head. The server trains one head on the mean
features of the clients' classes and sends it to all.
Sent to clients: head.

Yi, Wang, Liu, Shi, Yu. FedGH: Heterogeneous Federated Learning with Generalized Global Header.
ACM MM 2023. https://arxiv.org/abs/2303.13137

  paper          here                 meaning
  F_k(phi_k)     w_i                  client's body, never sent, and the head that it last trained
  H(theta)       server               global head
  R_k^s          mean_features(...)   client k's mean feature of class s, [K, D]
  eta_theta      server_lr

A client trains its body with the received head, then sends its mean features; its trained head is
not sent. The server takes a step of the head for each mean. The predictor "personal" is the
client's body under the newest head, "own_head" under the head that it trained.

Unseen clients are not supported, since bodies are never sent.

Departures: a client's mean is over all of its examples of a class; the authors' code averages the
means of minibatches, which gives more weight to examples in minibatches with few of the class. The
means are shuffled; server_batch and server_epochs generalize the paper's one step each. In the
authors' code the server's optimizer has other parameters and the head never moves; here it does.
`projection` adds a linear layer between body and head, so that models may also differ in D.
"""

import optax

from fedjax_core.algorithm import Algorithm, ClientOutput, Net
from fedjax_core.nn.projection_head import with_projection
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments
from fedjax_core.task import Task, require_common_feature_size
from fedjax_core.training import aggregators, local_training, losses
from fedjax_core.training.param_partition import put_entry
from methods.fedproto import mean_features


def fedgh(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    projection: AtLeastOne | None = None,
    server_lr: NonNegative = 0.01,
    server_epochs: AtLeastZero = 1,
    server_batch: AtLeastOne = 1,
) -> Algorithm:
    """Builds FedGH (Algorithm 1).

    Args:
      task: network and population; groups may differ in architecture, but not in the number of
        features unless they are projected.
      epochs: local epochs.
      batch: B.
      projection: D, to which every client maps its features by a linear layer of its own; None: no
        such layer.
      server_lr: of the head, by plain SGD; 0: it stays as it was initialised.
      server_epochs: passes over the means that came in.
      server_batch: its minibatches.

    Returns:
      The algorithm; a client keeps its model and sends K * (D + 1) numbers.

    Raises:
      ValueError: the numbers of features differ, or an argument is out of range.
    """
    check_arguments(fedgh, projection=projection, server_lr=server_lr)
    if projection is None:
        require_common_feature_size(task, "fedgh")
    classes = task.classes
    model = task.model if projection is None else with_projection(task.model, classes, projection, hidden=False)
    train = local_training.fit(
        local_training.model_loss(model, local_training.label_loss(task)), optimizer(task.round_num), epochs=epochs, batch=batch
    )

    def client_update(head, w_i, data, key):
        trained = train(put_entry(w_i, "head", head), data, key)
        uplink = mean_features(model, trained.net, data, classes=classes, batch=batch)
        return ClientOutput(trained.net, uplink, trained.sums, local=(trained.net.params["head"], trained.net))

    def loss(net, batch, key):
        logits = model.head(net, batch.x)
        value = losses.cross_entropy(logits, batch.y, batch.mask)
        return value, local_training.Aux(net.stats, local_training.loss_metrics(value, logits, batch))

    def server_update(head, collected, cohort, key):
        train_head = local_training.fit(loss, optax.sgd(server_lr), epochs=server_epochs, batch=server_batch)
        trained_head = train_head(Net({"head": head}), local_training.uplinks_as_examples(cohort, *collected), key)
        return trained_head.net.params["head"], trained_head.sums

    return Algorithm(
        server_init=lambda key: model.init(key).params["head"],
        client_update=client_update,
        server_update=server_update,
        collect=aggregators.stack,
        predict={
            "personal": lambda head, w_i, x: model.apply(put_entry(w_i, "head", head), x)[0],
            "own_head": lambda head, w_i, x: model.apply(w_i, x)[0],
        },
        client_init=lambda key, server, client_id: model.init(key),
        init_unseen="FedGH's bodies are never sent, so an unseen client would have to train one alone",
    )
