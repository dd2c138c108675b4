"""FedProx: FedAvg whose clients are held near the model that they receive.

In plain words: FedAvg with a spring: the further a client's model moves from the one that it was
sent, the harder it is pulled back. The coefficient mu is the spring's strength.
Sent to clients: model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys
2020. https://arxiv.org/abs/1812.06127

  paper     here              meaning
  w^t       server.net        server model
  mu        mu                weight of the proximal term
  h_k       proximal          client k's objective: cross-entropy F_k plus mu/2 ||w - w^t||^2

Unseen clients use the server's model.

Departures: all clients do the same local epochs, and the paper's inexact solutions are those of
`config.clients.epochs` or `devices.late="partial"`. Clients are sampled uniformly and weighted by
their examples; the paper samples them by their examples and averages uniformly. Batch statistics
have no proximal term, and the reported loss is the cross-entropy.
"""

import optax

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedavg import fedavg


def fedprox(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    mu: NonNegative = 0.01,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedProx (Algorithm 2).

    Args:
      optimizer: local optimizer; the proximal term is in the gradients that it sees.
      mu: weight of the proximal term; 0 is FedAvg.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm.
    """
    check_arguments(fedprox, mu=mu)

    def proximal(round_num):
        return optax.chain(local_training.add_proximal_term(mu), optimizer(round_num))  # the gradient of h_k, (2)

    return fedavg(task, optimizer=proximal, epochs=epochs, batch=batch, weights=weights)
