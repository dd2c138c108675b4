"""FedRolex: HeteroFL whose parts roll, so that narrow clients train all of the network in turn.

In plain words: As HeteroFL, but in each round the part of the weak clients begins one channel later,
and so every weight is trained by many clients.
Sent to clients: their part of the model.

Alam, Liu, Yan, Zhang. FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
Extraction. NeurIPS 2022. https://arxiv.org/abs/2212.01548

  paper       here                    meaning
  theta       server                  the wide network
  j           round_num               step of the window, one channel in each round
  S_n,i^(j)   `width_windows.py`      channels j, ..., j + k - 1 of each layer, modulo its n

All else is HeteroFL's.

Unseen clients use the round's part of the server's model.

Departures: HeteroFL's. The released code moves the window down, and weights biases and the head by
how often they were updated before; both are the paper's here. Random windows (federated
dropout), with which the paper compares, are not here.
"""

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.heterofl import heterofl


def fedrolex(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    scaler: bool = True,
    masked: bool = True,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "uniform",
) -> Algorithm:
    """Builds FedRolex.

    Args:
      task: network and population; groups may differ in width.
      optimizer: local optimizer, whose state starts anew every round.
      scaler: whether outputs of hidden layers are divided by their ratios.
      masked: whether absent classes are masked; needs classes.
      epochs: local epochs.
      batch: B.
      weights: of the clients that hold an entry, "uniform" or "samples".

    Returns:
      The algorithm; with one width and masked=False it is FedAvg.

    Raises:
      ValueError: as `heterofl`.
    """
    return heterofl(
        task, optimizer=optimizer, window="rolling", scaler=scaler, masked=masked, epochs=epochs, batch=batch, weights=weights
    )
