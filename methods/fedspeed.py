"""FedSpeed: FedDyn's bent losses, with gradients that are taken a step uphill.

In plain words: Each client is held near the model that it was sent by a spring, and corrects the
spring by what it pulled before. Its gradients are mixed with those a short step uphill, so that it
ends in a flat place.
Sent to clients: model.

Sun, Shen, Huang, Ding, Tao. FedSpeed: Larger Local Interval, Less Communication Round, and Higher
Generalization Accuracy. ICLR 2023. https://arxiv.org/abs/2302.10429

  paper       here        meaning
  x           server.net  server model
  g^_i        g           client i's prox-correction
  lambda      1 / alpha   softness of the spring;  alpha: its strength
  rho         rho         the step uphill
  alpha       share       share of the gradient uphill in the step

Unseen clients use the server's model.

Departures: none from the paper where dual_mean="active" and normalized=False: the server takes the
mean of y_K - lambda g^_i over the round's clients, and the step uphill is rho times the gradient.
The default step uphill, normalized=True with share=1, has length rho and is the released code's. As in
that code, which its own issues call FedDyn's server, dual_mean="all" takes the mean of y_K over the
round's, and of -lambda g^_i over all clients. That code clips the gradient before it adds the spring
and weight decay; here config.optimizer.clip bounds the whole direction. Advice on alpha is FedDyn's
(`methods/feddyn.py`). Batch statistics are averaged.
"""

from typing import Annotated

import optax

from fedjax_core.algorithm import Algorithm
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Fraction, NonNegative, Positive, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.feddyn import feddyn


def fedspeed(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    alpha: Positive = 0.1,
    rho: NonNegative = 0.1,
    share: Fraction = 1.0,
    normalized: bool = True,
    dual_mean: Annotated[str, one_of("active", "all")] = "active",
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
) -> Algorithm:
    """Builds FedSpeed (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer, which sees the gradient of the bent loss.
      alpha: strength of the spring, 1 / lambda.
      rho: the step uphill; 0: none.
      share: of the gradient uphill; the rest is that at the weights.
      normalized: whether the step has length rho.
      dual_mean: clients whose corrections the server adds, those of the round ("active") or "all".
      epochs: local epochs.
      batch: B.

    Returns:
      The algorithm; a client keeps its prox-correction.
    """
    check_arguments(fedspeed, alpha=alpha, rho=rho, share=share, dual_mean=dual_mean)
    local_training.require_plain(optimizer, "FedSpeed")

    def sharp(round_num):
        return optax.chain(local_training.sharpness_aware(rho, share=share, normalized=normalized), optimizer(round_num))

    base = feddyn(task, optimizer=sharp, alpha=alpha, epochs=epochs, batch=batch)
    if dual_mean == "all":
        return base

    def client_update(sent, g, data, key):
        output = base.client_update(sent, g, data, key)
        params = optax.tree.add_scale(output.uplink.params, -1 / alpha, output.state)  # y_K - x - lambda g^_i
        uplink = output.uplink._replace(params=params)
        return output._replace(uplink=uplink, wire=(sent.net, uplink))

    def server_update(server, delta, cohort, key):
        return server._replace(net=optax.tree.add(server.net, delta)), {}

    return base._replace(client_update=client_update, server_update=server_update)
