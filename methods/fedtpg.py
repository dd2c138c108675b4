"""FedTPG: a shared network makes CLIP's text prompts from the names of a client's own classes.

In plain words: Clients with different classes train one small network, which reads the names of a
client's classes and writes the vectors that stand before each name in CLIP's texts. It also writes
them for classes that no client has trained on.
Sent to clients: prompt generator.

Qiu, Li, Mummadi, Ganesh, Li, Peng, Lin. Federated Text-driven Prompt Generation for Vision-Language
Models. ICLR 2024. https://arxiv.org/abs/2310.06123

  paper      here                    meaning
  theta      net.params["prompts"]   generator: attention of learned queries to the encoded names
  T_i        classes                 names of client i's classes: those of its training examples [K]
  P_i        made by the network     prompts f_theta(T_i), of all of the client's classes
  L_i        loss                    cross-entropy among the client's own classes

It is PromptFL (methods/promptfl.py), with prompts and logits of a client's own classes. With
`clip(generated=False)` it is the paper's FedCoOp: prompts that are learned as they are.

The model "personal" is the server's generator with the names of a client's own classes, "global" with
those of all classes. Unseen clients have both, with the names of their own classes.

Departures: a client's names are those of the classes in its training examples. The names of the
other classes are encoded and masked, so a step costs the texts of all K classes. A test example of
another class counts as wrong, with a loss of about 1e9: choose rounds by accuracy. The generator reads
the texts as CLIP encodes them below, "{}.", where the release leaves the full stop out. Optimizers
begin anew in each local training; the release's live through all rounds, with their annealing. New
classes are scored among those of one client, in the paper among all new classes of a data set.
"""

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, Array, ClientData, ClientOutput
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training
from fedjax_core.training.param_partition import put_entry
from methods.promptfl import promptfl


def fedtpg(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 200,
    weights: str = "uniform",
) -> Algorithm:
    """Builds FedTPG (Algorithm 1).

    Args:
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".

    Returns:
      The algorithm; a client keeps nothing and sends the delta of the generator.

    Raises:
      ValueError: the network trains anything but prompts, or cannot predict among some classes.
    """
    model = task.model
    if not model.takes_classes:
        raise ValueError(f"{model.name} cannot predict among a client's own classes; models=('clip(generated=True)',) can")
    base = promptfl(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    plain = local_training.supervised_loss(task)

    def find_classes(data: ClientData) -> Array:
        """Returns the mask of the client's own classes [K]; of all, if it has no example."""
        own = local_training.class_counts(data, classes=task.classes, batch=batch) > 0
        return own | ~jnp.any(own)

    def client_update(sent, client, data, key):
        classes = find_classes(data)
        loss = lambda net, batch, key: plain(put_entry(net, "classes", classes), batch, key)
        net, _, sums = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)(sent, data, key)
        return ClientOutput(client, optax.tree.sub(net, sent), sums, local=(net, classes))

    return base._replace(
        client_update=client_update,
        predict=base.predict
        | {"personal": lambda sent, classes, x: base.predict["global"](put_entry(sent, "classes", classes), (), x)},
        personalise=lambda sent, client, data, key: (sent, find_classes(data)),
    )
