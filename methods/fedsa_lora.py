"""FedSA-LoRA: of each adapter, the first matrix is shared and averaged, the second stays with its client.

In plain words: An adapter is a product of two matrices. The first one learns what clients have in
common, and is averaged; the second one learns what is particular, and stays with each client.
Sent to clients: half of the adapter.

Guo, Zeng, Wang, Fan, Wang, Qu. Selective Aggregation for Low-Rank Adaptation in Federated Learning.
ICLR 2025. https://arxiv.org/abs/2410.01463

  paper    here            meaning (`adapters.py` has x A B for the paper's B A x)
  A        w_b of FedPer   "a" of all kernels, the server's
  B_i      w_p of FedPer   "b", of client i, zero at first; never sent

It is FedPer (methods/fedper.py) of an adapter: a client trains both matrices together. Entries that
are trained beside the adapter, such as the classifier, stay with their client, as in the authors'
settings for GLUE.

Unseen clients start B at zero, so from the base model, and train it; of this training they keep B
and the classifier, beside the server's A.

Departures: the mean is uniform unless weights="samples". Clients train for epochs, the authors' for
10 minibatches of 128 (`config.clients.steps`).
"""

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import adapters, local_training
from fedjax_core.training.param_partition import all_but
from methods.fedper import fedper


def fedsa_lora(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 2,
    batch: AtLeastOne = 32,
    weights: str = "uniform",
) -> Algorithm:
    """Builds FedSA-LoRA.

    Args:
      task: network with an adapter, and population.
      optimizer: local optimizer, whose state starts anew every round.
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".

    Returns:
      The algorithm; a client keeps all that is trained but A, and sends the delta of A.

    Raises:
      ValueError: an argument is out of range, or the network has no adapter.
    """
    adapters.check_has_adapter(task, "fedsa_lora")
    return fedper(task, optimizer=optimizer, personal=all_but(adapters.select_a), epochs=epochs, batch=batch, weights=weights)
