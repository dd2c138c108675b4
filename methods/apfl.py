"""APFL: FedAvg, and a personal model per client that is mixed with it in proportions that are learned.

In plain words: Each client has a model of its own beside the server's and predicts with a mixture
of both. It may learn how much of each is best.
Sent to clients: model.

Deng, Kamani, Mahdavi. Adaptive Personalized Federated Learning. 2020.
https://arxiv.org/abs/2003.13461

  paper      here            meaning
  w          server.net      server model, as in FedAvg; w_i after local steps of client i
  v_i        client.v        client i's own model, never sent
  alpha_i    client.alpha    weight of v_i in the mixture
  v_bar_i    mixed(...)      alpha_i v_i + (1 - alpha_i) w_i, the personal model
  eta        optimizer       of w_i and v_i, each with a state of its own; alpha_lr of alpha_i

Each step reads one minibatch:

  w_i <- w_i - eta grad f(w_i)
  v_i <- v_i - eta alpha_i grad f(v_bar_i)
  alpha_i <- alpha_i - eta <v_i - w_i, grad f(v_bar_i)>, in [0, 1], in the first step of a round

Unseen clients start v_i from the received w, after local training of it.

Departures: all v_i start from the common initialization. The right-hand sides read one point, as
printed; the authors' code (MLOPTPSU/FedTorch) steps w_i first, weights gradients by alpha and 1 -
alpha again in the step of alpha, and adds 0.02 alpha to it. It mixes outputs of the two networks,
mix="outputs", and averages clients uniformly, weights="uniform". Batch statistics of the personal
model are its own.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, Array, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Fraction, NonNegative, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedavg import fedavg


class Client(NamedTuple):
    """The state of a client.

    Attributes:
      v: the client's own model, with the batch statistics of the personal one.
      alpha: [] its weight.
    """

    v: Net
    alpha: Array


def apfl(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    alpha: Fraction = 0.5,
    alpha_lr: NonNegative = 0.0,
    mix: Annotated[str, one_of("weights", "outputs")] = "weights",
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds APFL (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer of both models, whose states start anew every round.
      alpha: weight of the personal model, at first; with alpha_lr=0, 0 predicts with the server's
        model and 1 with Local's.
      alpha_lr: learning rate of alpha; 0 keeps it.
      mix: what is mixed, the models' "weights" or their "outputs".
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its model and alpha. The metric "alpha" is the cohort's mean.

    Raises:
      ValueError: an argument is out of range, or the optimizer is sharpness-aware.
    """
    check_arguments(apfl, alpha=alpha, alpha_lr=alpha_lr, mix=mix)
    local_training.require_plain(optimizer, "APFL", "whose steps train two models and alpha by one gradient")
    model, label_loss, local = task.model, local_training.label_loss(task), optimizer(task.round_num)

    def mixed(w, v, alpha, x, key=None, train=False, mask=None):
        """Returns (outputs, batch statistics) of the personal model."""
        if mix == "weights":
            v_bar = jax.tree.map(lambda v, w: (alpha * v + (1 - alpha) * w).astype(v.dtype), v.params, w.params)
            return model.apply(Net(v_bar, v.stats), x, key, train=train, mask=mask)
        (of_v, stats), (of_w, _) = (model.apply(net, x, key, train=train, mask=mask) for net in (v, w))
        return of_v | {"logits": alpha * of_v["logits"] + (1 - alpha) * of_w["logits"]}, stats

    def loss(net, batch, key):
        """Returns f(w_i) + f(v_bar_i), of which the second has no gradient for w_i."""
        w, v = (Net(net.params[name], net.stats[name]) for name in ("w", "v"))
        outputs, w_stats = model.apply(w, batch.x, key, train=True, mask=batch.mask)
        f_w, sums = local_training.loss_and_metrics(outputs, batch, label_loss)
        outputs, v_stats = mixed(jax.lax.stop_gradient(w), v, net.params["alpha"], batch.x, key, True, batch.mask)
        f_v, _ = local_training.loss_and_metrics(outputs, batch, label_loss)
        return f_w + f_v, local_training.Aux({"w": w_stats, "v": v_stats}, sums)

    steps = optax.partition({"w": local, "v": local, "alpha": first_step(alpha_lr)}, {name: name for name in ("w", "v", "alpha")})

    def client_update(w, client, data, key):
        both = Net({"w": w.params, "v": client.v.params, "alpha": client.alpha}, {"w": w.stats, "v": client.v.stats})
        (params, stats), _, sums = local_training.fit(loss, steps, epochs=epochs, batch=batch)(both, data, key)
        w_i, client = Net(params["w"], stats["w"]), Client(Net(params["v"], stats["v"]), params["alpha"])
        metrics = sums | {"alpha": (client.alpha, jnp.ones(()))}
        return ClientOutput(client, optax.tree.sub(w_i, w), metrics, local=(w_i, client))

    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    return base._replace(
        client_update=client_update,
        predict=base.predict | {"personal": lambda w, client, x: mixed(w, client.v, client.alpha, x)[0]},
        client_init=lambda key, server, client_id: Client(model.init(key), jnp.float32(alpha)),
        init_unseen=lambda w, client: client._replace(v=w),
    )


def first_step(lr: float) -> optax.GradientTransformation:
    """Returns gradient descent within [0, 1] that takes its first step alone; state: whether it did."""

    def update(updates, state, params=None):
        step = lambda g, a: jnp.where(state, 0, jnp.clip(a - lr * g, 0, 1) - a)
        return jax.tree.map(step, updates, params), jnp.ones((), bool)

    return optax.GradientTransformation(lambda params: jnp.zeros((), bool), update)
