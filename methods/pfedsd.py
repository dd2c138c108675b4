"""pFedSD: a client's model starts from the server's and is distilled from its own model of the last round.

In plain words: A client's previous personal model teaches its new one, so that what was learnt
about its own data is not lost with each broadcast.
Sent to clients: model.

Jin, Bai, Yao, Dai, Gu, Yu, Sun. Personalized Edge Intelligence via Federated Self-Knowledge
Distillation. IEEE TPDS 2022. https://doi.org/10.1109/TPDS.2022.3225185

  paper        here          meaning
  w            server.net    server model
  v_i          previous      client i's last trained model: its teacher, and its personal model
  lambda       lam           weight of the distillation
  tau          temperature   of teacher and student

The loss is CE + lambda tau^2 KL(softmax(o_v / tau) || softmax(o / tau)), and CE alone in the first
round of a client.

Unseen clients train the server's model locally.

Departures: the teacher predicts in evaluation mode, without augmentation (config.augment), while
the student sees augmented images; in the authors' code both see the same. The mean is weighted by
examples unless weights="uniform". The personal model of a client that never trained is the
server's. lambda = 0.5 and tau = 3 are those of another implementation, Fling; the authors' code has 1
for both.
"""

from typing import NamedTuple

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, Array, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, Positive, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import local_training, losses
from methods.fedavg import fedavg


class Client(NamedTuple):
    """The state of a client.

    Attributes:
      previous: the model v_i.
      rounds: [] float32, how many rounds the client took part in.
    """

    previous: Net
    rounds: Array


def pfedsd(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    lam: NonNegative = 0.5,
    temperature: Positive = 3.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds pFedSD.

    Args:
      lam: lambda; at 0 the server's model is FedAvg's.
      temperature: tau.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its previous model.
    """
    check_arguments(pfedsd, lam=lam, temperature=temperature)
    model = task.model

    def client_update(w, client, data, key):
        weight = jnp.where(client.rounds > 0, lam * temperature**2, 0.0)

        def loss(net, batch, key):
            outputs, stats = model.apply(net, batch.x, key, train=True, mask=batch.mask)
            logits, teacher = outputs["logits"], model.apply(client.previous, batch.x)[0]["logits"]
            ce = local_training.label_loss(task)(logits, batch.y, batch.mask)
            value = ce + weight * losses.distillation(logits, teacher, batch.mask, temperature)
            return value, local_training.Aux(stats, local_training.loss_metrics(ce, logits, batch))

        v_i, _, sums = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)(w, data, key)
        state = Client(v_i, client.rounds + 1)
        return ClientOutput(state, optax.tree.sub(v_i, w), sums, local=(v_i, state))

    def personal(w, client, x):
        net_i = optax.tree.where(client.rounds > 0, client.previous, w)
        return model.apply(net_i, x)[0]

    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    return base._replace(
        client_update=client_update,
        predict=base.predict | {"personal": personal},
        client_init=lambda key, server, client_id: Client(model.init(key), jnp.zeros(())),
        targets=("classes",),
    )
