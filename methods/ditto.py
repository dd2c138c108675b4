"""Ditto: FedAvg, and beside it a personal model that is pulled towards the server's.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021.
https://arxiv.org/abs/2012.04221

  paper    here             meaning
  w        server.net       server model, FedAvg's
  v_k      v_k              client k's personal model, which never travels
  lambda   lam              pull of v_k towards the w that it received
  s        personal_epochs  local passes of the personal model

Departures: both models go over the data separately, in the same order: the same as the paper's alternation, since w is constant in
the pull. The mean is weighed by samples unless asked otherwise. Batch statistics of v_k are its own.
"""

import optax

from fedjax_core import training
from fedjax_core.algorithm import Algorithm, ClientOutput
from fedjax_core.task import Task
from methods.fedavg import fedavg


def ditto(
    task: Task,
    *,
    optimizer: training.Optimizer,
    lam: float = 1.0,
    epochs: int = 1,
    personal_epochs: int | None = None,
    batch: int = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds Ditto (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimiser of both models, its state made anew every round.
      lam: lambda; 0 makes the personal models Local's.
      epochs: local epochs of the server's model.
      personal_epochs: those of the personal model; None: as many.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its personal model.

    Raises:
      ValueError: lam is negative, or another argument is out of range.
    """
    own = epochs if personal_epochs is None else personal_epochs
    if not (lam >= 0 and own >= 0):
        raise ValueError(f"lam={lam}, personal_epochs={own} must not be negative")
    model = task.model
    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)

    def client_update(w, v_k, data, key):
        out = base.client_update(w, (), data, key)
        chain = optax.chain(training.proximal(lam, w.params), optimizer(task.round))
        v_k, _, _ = training.fit(training.cross_entropy(model), chain, epochs=own, batch=batch)(v_k, data, key)
        assert out.local is not None
        return ClientOutput(v_k, out.uplink, out.metrics, local=(out.local[0], v_k))

    return base._replace(
        client_update=client_update,
        predict=base.predict | {"personal": lambda w, v_k, x: model.apply(v_k, x)[0]},
        client_init=lambda key, server, client_id: model.init(key),
    )
