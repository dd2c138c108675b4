"""FedPer: the base layers are shared and averaged, the personalization layers stay with their client.

In plain words: The network has two parts. The first is averaged over clients, the last layers stay
with each client.
Sent to clients: shared layers.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers. 2019.
https://arxiv.org/abs/1912.00818

  paper     here                meaning
  W_B       w_b                 base layers, the server's
  W_Pj      w_p                 personalization layers of client j, never sent
  K_P       personal            entries of the network that are personal, by default the classifier
  n_j / n   weights="samples"

Unseen clients start their own personalization layers from the common initialization, after local
training.

Departures: all clients' personalization layers start from the common initialization, as in public
implementations; in the paper each client draws its own. personal=() is FedAvg, and all entries make
it local training.
"""

from collections.abc import Callable, Sequence

import optax

from fedjax_core.algorithm import TARGETS, Algorithm, Array, ClientData, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training, param_partition

Train = Callable[[Net, ClientData, Array], local_training.FitResult]


def fedper(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    personal: Sequence[str] | param_partition.Selection = ("head",),
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
    train: Train | None = None,
    finetune: Train | None = None,
) -> Algorithm:
    """Builds FedPer (Algorithms 1 and 2), or a variant with other personal leaves or local training.

    Args:
      personal: entries of the network's parameters that stay with a client, or a selection of
        leaves.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".
      train: local training of the whole network, assumed to read classes; None: all leaves
        together, by the default loss.
      finetune: training before evaluation, whose result is dropped, as `train`; None: none.

    Returns:
      The algorithm; a client keeps its personal leaves and sends the delta of the others.

    Raises:
      ValueError: an argument is out of range; (when traced) the network has no such entry.
    """
    model = task.model
    is_personal = personal if callable(personal) else param_partition.personal_entries(*personal)
    plain = train is None and finetune is None
    if train is None:
        train = local_training.fit(local_training.supervised_loss(task), optimizer(task.round_num), epochs=epochs, batch=batch)

    def client_update(w_b, w_p, data, key):
        net = local_training.join_params(w_p, w_b)
        trained = train(net, data, key)
        (old_b, _), (new_b, new_p) = (param_partition.split_net(each, is_personal) for each in (net, trained.net))
        return ClientOutput(new_p, optax.tree.sub(new_b, old_b), trained.sums, local=(new_b, new_p))

    def personalise(w_b, w_p, data, key):
        assert finetune is not None
        return param_partition.split_net(finetune(local_training.join_params(w_p, w_b), data, key).net, is_personal)

    return Algorithm(
        server_init=lambda key: param_partition.split_net(model.init(key), is_personal)[0],
        client_update=client_update,
        server_update=lambda w_b, delta, cohort, key: (optax.apply_updates(w_b, delta), {}),
        collect=aggregators.mean(aggregators.make_weight_fn(weights)),
        predict={"personal": lambda w_b, w_p, x: model.apply(local_training.join_params(w_p, w_b), x)[0]},
        client_init=lambda key, server, client_id: param_partition.split_net(model.init(key), is_personal)[1],
        personalise=None if finetune is None else personalise,
        targets=tuple(TARGETS) if plain else ("classes",),
    )
