"""FedAdagrad, FedAdam, FedYogi, FedAvgM: the mean delta is a gradient for an optimizer at the server.

In plain words: The mean difference of a round is treated as a gradient. The server takes its step
with an optimizer of its own: Adagrad, Adam, Yogi or momentum.
Sent to clients: model.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. Adaptive Federated Optimization.
ICLR 2021. https://arxiv.org/abs/2003.00295 Hsu, Qi, Brown. Measuring the Effects of Non-Identical
Data Distribution for Federated Visual Classification. 2019 (FedAvgM).
https://arxiv.org/abs/1909.06335

  paper      here                 meaning
  x          server.net           server model
  Delta      delta                mean of the clients' deltas
  m, v       Moments              running mean of Delta, and of its square; from 0 and tau^2, no bias correction
  eta        server_lr            server learning rate;  eta_l: the local optimizer's
  b1, b2     b1, b2               decay of m (also FedAvgM's momentum) and of v
  tau        tau                  adaptivity

  server       v                                        step                     server_lr   b1
  "adagrad"    v + Delta^2                              eta m / (sqrt(v) + tau)  0.1         0
  "adam"       b2 v + (1 - b2) Delta^2                  the same                 0.01        0.9
  "yogi"       v - (1 - b2) Delta^2 sign(v - Delta^2)   the same                 0.01        0.9
  "momentum"                                            eta m, m = b1 m + Delta  1           0.9
  "nesterov"                                            eta (b1 m + Delta)       1           0.9

Unseen clients use the server's model.

Departures: the paper tunes eta for every task on a grid from 10^-3 to 10; the last two columns are
the defaults here. FL-Simulator and FL-bench begin v at 0. Means are uniform as in the first paper, also
FedAvgM's, whose "momentum" is that of its formula. "nesterov" is that of its experiments, as Flower's
baseline says (not checked in the paper), which takes it, as FL-bench does. Batch statistics are averaged
and bypass the optimizer.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, Array, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, BelowOne, Fraction, Positive, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedavg import fedavg

MOMENTA = ("momentum", "nesterov")  # FedAvgM
SERVERS = {"adagrad": (0.1, 0.0), "adam": (0.01, 0.9), "yogi": (0.01, 0.9), **dict.fromkeys(MOMENTA, (1.0, 0.9))}  # server_lr, b1


class Moments(NamedTuple):
    """The moments of the server's optimizer.

    Attributes:
      m: like the params, running mean of the deltas.
      v: likewise, of their squares.
    """

    m: PyTree
    v: PyTree


def adaptive_update(second: Callable[[Array, Array], Array], lr: float, b1: float, tau: float) -> optax.GradientTransformation:
    """Returns the transformation of the mean delta in lines 10 to 15 of Algorithm 2; `second`: (v, Delta^2) -> v."""

    def init(params):
        return Moments(optax.tree.zeros_like(params), jax.tree.map(lambda p: jnp.full_like(p, tau**2), params))

    def update(updates, state, params=None):
        del params
        m = jax.tree.map(lambda m, d: b1 * m + (1 - b1) * d, state.m, updates)
        v = jax.tree.map(lambda v, d: second(v, d * d), state.v, updates)
        return jax.tree.map(lambda m, v: lr * m / (jnp.sqrt(v) + tau), m, v), Moments(m, v)

    return optax.GradientTransformation(init, update)


def fedopt(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    server: str = "adam",
    server_lr: Positive | None = None,
    b1: BelowOne | None = None,
    b2: Fraction = 0.99,
    tau: Positive = 1e-3,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "uniform",
) -> Algorithm:
    """Builds FedAdagrad, FedAdam, FedYogi (Algorithm 2) or FedAvgM.

    Args:
      optimizer: local optimizer.
      server: "adagrad", "adam", "yogi", "momentum" or "nesterov".
      server_lr: eta; None: see the module's table.
      b1: decay of the first moment, or of the momentum; None: see the module's table.
      b2: decay of the second moment, of "adam" and "yogi".
      tau: adaptivity, of the first three.
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".

    Returns:
      The algorithm.
    """
    if server not in SERVERS:
        raise ValueError(f"server={server!r} is not one of {', '.join(map(repr, SERVERS))}")
    check_arguments(fedopt, server_lr=server_lr, b1=b1, b2=b2, tau=tau)
    lr = SERVERS[server][0] if server_lr is None else server_lr
    b1 = SERVERS[server][1] if b1 is None else b1
    seconds = {
        "adagrad": lambda v, d2: v + d2,
        "adam": lambda v, d2: b2 * v + (1 - b2) * d2,
        "yogi": lambda v, d2: v - (1 - b2) * d2 * jnp.sign(v - d2),
    }
    momentum = optax.chain(optax.trace(b1, nesterov=server == "nesterov"), optax.scale(lr))
    review = momentum if server in MOMENTA else adaptive_update(seconds[server], lr, b1, tau)
    review = optax.masked(review, Net(True, False))  # params, not stats
    return fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights, review=review)
