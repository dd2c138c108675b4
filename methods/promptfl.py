"""PromptFL: clients learn the context of CLIP's text prompts together, with both encoders frozen.

In plain words: FedAvg of a few learned vectors, which stand before the name of each class in the
texts that a frozen CLIP compares with an image.
Sent to clients: prompts.

Guo, Guo, Wang, Xu. PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of
Models - Federated Learning in Age of Foundation Model. 2022. https://arxiv.org/abs/2208.11625

  paper             here                            meaning
  v_1 .. v_M        net.params["prompts"]           context of all classes [M, D]
  g, f              task.frozen                     encoders of texts and images
  p(y = k | x)      softmax of the network's logits exp(scale) cos(f(x), g(v_1 .. v_M, name k))

It is FedAvg (methods/fedavg.py) of what the network trains (`language/clip_task.py`).

Unseen clients use the server's prompts.

Departures: optimizer and annealing begin anew in each local training, without warm-up. The release
has one of each for all clients and rounds, and its average includes the models of earlier rounds.
The average is uniform; weights="samples" is the paper's.
"""

import jax

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedavg import fedavg


def promptfl(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 5,
    batch: AtLeastOne = 32,
    weights: str = "uniform",
) -> Algorithm:
    """Builds PromptFL.

    Args:
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".

    Returns:
      The algorithm; a client keeps nothing and sends the delta of the prompts.

    Raises:
      ValueError: the network trains anything but prompts.
    """
    trained = jax.eval_shape(task.model.init, jax.random.key(0)).params
    if set(trained) != {"prompts"}:
        listed = ", ".join(trained)
        raise ValueError(f"{task.model.name} trains {listed}; it must train prompts alone, as models=('clip(prompts=16)',) does")
    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    return base._replace(targets=("classes",))
