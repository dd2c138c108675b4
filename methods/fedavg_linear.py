"""FedAvg+Linear: a personal linear map between the shared body and the shared classifier.

In plain words: FedAvg with a linear map between features and classifier that stays with each
client: a simple answer to the mismatch that FedPFT addresses.
Sent to clients: model.

Wu et al. Tackling Feature-Classifier Mismatch in Federated Learning via Prompt-Driven Feature
Transformation. 2024 (appendix on matching during training). https://arxiv.org/abs/2407.16139

  paper         here              meaning
  phi, h        w_b of FedPer     body and classifier, the server's
  linear layer  w_p of FedPer     A_i [D, D] and a bias [D] of client i, never sent: logits h(A_i phi(x))

All are trained together by cross-entropy. The analysis "match" of `fedjax-core analyse` trains the
map on a finished FedAvg instead.

Unseen clients start a map from the identity, after local training.

Departures: the paper does not say how the layer is initialized and trained: here as identity and
zero, together with everything else, at the same learning rate.
"""

import dataclasses

import jax.numpy as jnp

from fedjax_core.algorithm import PER_ROW, Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Model, Task, feature_size
from fedjax_core.training import local_training
from fedjax_core.training.param_partition import drop_entry, put_entry
from methods.fedper import fedper

LAYER = "linear"


def fedavg_linear(
    task: Task, *, optimizer: local_training.Optimizer, epochs: AtLeastZero = 1, batch: AtLeastOne = 64, weights: str = "samples"
) -> Algorithm:
    """Builds FedAvg+Linear.

    Args:
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its D * D + D numbers.
    """
    linear_task = dataclasses.replace(task, network=lambda frozen: add_linear_map(task.network(frozen)))
    algorithm = fedper(linear_task, optimizer=optimizer, personal=(LAYER,), epochs=epochs, batch=batch, weights=weights)
    return algorithm._replace(targets=PER_ROW)


def add_linear_map(model: Model) -> Model:
    """Adds a linear map, initially the identity, between features and head; `features` are its outputs."""

    def init(key):
        net, d = model.init(key), feature_size(model)
        return put_entry(net, LAYER, {"kernel": jnp.eye(d), "bias": jnp.zeros(d)})

    def features(net, x, key=None, train=False, mask=None):
        z, stats = model.features(drop_entry(net, LAYER), x, key, train=train, mask=mask)
        return z @ net.params[LAYER]["kernel"] + net.params[LAYER]["bias"][None], stats

    def head(net, z):
        return model.head(drop_entry(net, LAYER), z)

    def apply(net, x, key=None, train=False, mask=None):
        z, stats = features(net, x, key, train, mask)
        return {"logits": head(net, z), "features": z}, stats

    return model._replace(init=init, apply=apply, features=features, head=head, name=f"{model.name}+linear", unaugmented=None)
