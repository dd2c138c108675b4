"""FedProx: FedAvg whose clients are held near the model that they were sent.

In plain words: FedAvg with a spring: the further a client's model moves from the one that it was sent, the harder it is pulled
back. The coefficient mu is the spring's strength.
Sent to clients: model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020.
https://arxiv.org/abs/1812.06127

  paper     here              meaning
  w^t       server.net        server model
  mu        mu                weight of the proximal term
  h_k       F_k, proximal     client k's objective: its cross-entropy plus mu/2 ||w - w^t||^2

A newcomer gets the server's model as it is.

Departures: every client does all its local epochs (the paper also studies inexact ones). Clients are drawn uniformly and weighed by
their examples; the paper draws them by their examples and averages uniformly. Batch statistics have no proximal term, and the loss
that is reported is the cross-entropy.
"""

import optax

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedavg import fedavg


def fedprox(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    mu: float = 0.01,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedProx (Algorithm 2).

    Args:
      task: network and population.
      optimizer: local optimiser; the proximal term is in the gradients that it sees.
      mu: weight of the proximal term; 0 is FedAvg.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm.

    Raises:
      ValueError: mu is negative, or another argument out of range.
    """
    if not mu >= 0:
        raise ValueError(f"mu={mu} must not be negative")

    def near(round):  # noqa: A002
        return optax.chain(local_training.proximal(mu), optimizer(round))  # the gradient of h_k, (2)

    return fedavg(task, optimizer=near, epochs=epochs, batch=batch, weights=weights)
