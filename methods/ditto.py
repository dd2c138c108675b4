"""Ditto: FedAvg, and a personal model per client that is pulled towards the server's.

In plain words: Two models per client: one takes part in FedAvg, the other is trained on the
client's data alone, drawn towards the first one.
Sent to clients: model.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML
2021. https://arxiv.org/abs/2012.04221

  paper    here             meaning
  w        server.net       server model, as in FedAvg
  v_k      v_k              client k's personal model, never sent
  lambda   lam              pull of v_k towards the received w
  s        personal_epochs  local passes of the personal model

Unseen clients start a personal model from the received w, after local training of it.

Departures: the two models pass over the data separately, in the same order. This equals the paper's
alternation, since w is constant in the pull. The mean is weighted by examples unless
weights="uniform". Batch statistics of v_k are its own.
"""

from collections.abc import Callable

import jax
import optax

from fedjax_core.algorithm import Algorithm, Array, ClientData, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import local_training
from fedjax_core.training.metrics import Pair
from methods.fedavg import fedavg

_FRESH = 0x6672  # key of personal models with their own initial draws


def own_init_key(key: Array, client_id: Array) -> Array:
    """Returns the key of a client's own initial personal model; `key` is that of the common one."""
    return jax.random.fold_in(jax.random.fold_in(key, _FRESH), client_id)


def with_personal_model(
    task: Task,
    base: Algorithm,
    train: Callable[[Net, Net, ClientData, Array], tuple[Net, dict[str, Pair]]],
    *,
    begin: int = 0,
    fresh: bool = False,
) -> Algorithm:
    """Adds a personal model, which is never sent, to a method without client states.

    Args:
      base: the method of the server's model, such as FedAvg.
      train: (w as received, v_k, data, key) -> (v_k, metrics beyond the base's).
      begin: first round, from 0, in which personal models train.
      fresh: whether each client draws its own initial personal model; else all start from the
        common one.

    Returns:
      The algorithm with the additional predictor "personal"; `train` is assumed to read classes.
    """
    model = task.model

    def client_update(w, v_k, data, key):
        out = base.client_update(w, (), data, key)
        assert out.local is not None
        new = lambda: train(w, v_k, data, key)
        if begin:
            kept = lambda: (v_k, optax.tree.zeros_like(jax.eval_shape(new)[1]))
            v_k, more = jax.lax.cond(task.round_num >= begin, new, kept)
        else:
            v_k, more = new()
        return ClientOutput(v_k, out.uplink, out.metrics | more, local=(out.local[0], v_k))

    def client_init(key, server, client_id):
        return model.init(own_init_key(key, client_id) if fresh else key)

    return base._replace(
        client_update=client_update,
        predict=base.predict | {"personal": lambda w, v_k, x: model.apply(v_k, x)[0]},
        client_init=client_init,
        init_unseen=lambda w, v_k: w,
        targets=("classes",),
    )


def ditto(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    lam: NonNegative = 1.0,
    epochs: AtLeastZero = 1,
    personal_epochs: AtLeastZero | None = None,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds Ditto (Algorithm 1).

    Args:
      optimizer: local optimizer of both models, whose state starts anew every round.
      lam: lambda; 0 makes the personal models Local's.
      epochs: local epochs of the server's model.
      personal_epochs: of the personal model; None: `epochs`.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its personal model.
    """
    check_arguments(ditto, lam=lam, epochs=epochs, personal_epochs=personal_epochs)
    v_epochs = epochs if personal_epochs is None else personal_epochs
    loss = local_training.supervised_loss(task)

    def train(w, v_k, data, key):
        chain = optax.chain(local_training.add_proximal_term(lam, w.params), optimizer(task.round_num))
        return local_training.fit(loss, chain, epochs=v_epochs, batch=batch)(v_k, data, key).net, {}

    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    return with_personal_model(task, base, train)._replace(targets=base.targets)
