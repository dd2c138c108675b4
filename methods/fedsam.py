"""FedSAM, FedASAM, MoFedSAM: clients look for flat minima, by gradients taken a step uphill.

In plain words: FedAvg whose clients take each gradient not at their weights but a short step uphill
of them, so that they end where the loss is low all around. MoFedSAM mixes the mean direction of the
last round into each step, as FedCM does.
Sent to clients: model; with MoFedSAM also the mean direction.

Qu, Li, Duan, Liu, Tang, Lu. Generalized Federated Learning via Sharpness Aware Minimization. ICML
2022 (FedSAM, MoFedSAM). https://arxiv.org/abs/2206.02618
Caldarola, Caputo, Ciccone. Improving Generalization in Federated Learning by Seeking Flat Minima.
ECCV 2022 (FedSAM, FedASAM). https://arxiv.org/abs/2203.11834

  paper     here         meaning
  rho       rho          length of the step uphill
  eta       eta          FedASAM: added to the weights' sizes, which scale the step; None: FedSAM
  beta      beta         MoFedSAM: share of a client's own gradient in its steps; 1: FedSAM
  delta     direction    MoFedSAM: mean direction of the last round

Any method has the same steps by config.optimizer.sharpness; these are those of FedAvg and FedCM.

Unseen clients use the server's model.

Departures: batch statistics are those of the first of the two passes; released code updates them in
both. The averages over rounds (SWA) that Caldarola et al. add are left out. Sizes of FedASAM scale
all weights but biases; the released code scales what is called a weight, which is the same for the
networks here.
"""

from typing import Annotated

import optax

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, PositiveFraction, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.fedcm import fedcm


def fedsam(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    rho: NonNegative = 0.05,
    eta: NonNegative | None = None,
    beta: PositiveFraction = 1.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: Annotated[str, one_of("samples", "uniform")] = "samples",
) -> Algorithm:
    """Builds FedSAM, FedASAM or MoFedSAM.

    Args:
      task: network and population.
      optimizer: local optimizer.
      rho: length of the step uphill; 0 is FedAvg, or FedCM. For CIFAR-10 Caldarola et al. have 0.1, with
        FedASAM 0.7.
      eta: for FedASAM; 0.2 there.
      beta: below 1 for MoFedSAM.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform"; MoFedSAM's are uniform.

    Returns:
      The algorithm.
    """
    check_arguments(fedsam, rho=rho, eta=eta, beta=beta, weights=weights)
    local_training.require_plain(optimizer, "FedSAM")

    def sharp(round_num):
        return optax.chain(local_training.sharpness_aware(rho, eta), optimizer(round_num))

    if beta < 1:
        return fedcm(task, optimizer=sharp, alpha=beta, epochs=epochs, batch=batch)
    return fedavg(task, optimizer=sharp, epochs=epochs, batch=batch, weights=weights)
