"""FedAMP: a cloud model per client, mixed of all models by their similarity, to which the client is pulled.

In plain words: The server keeps a model for each client: a mixture in which clients with similar
models count more. Each client is drawn towards its own mixture.
Sent to clients: the client's own cloud model.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. Personalized Cross-Silo Federated Learning on Non-IID Data.
AAAI 2021. https://arxiv.org/abs/2007.03797

  paper             here       meaning
  w_i               w_i        client i's model, which it keeps and continues from
  u_i               server     [N, ...] cloud models, each sent to its client
  A(x), sigma       sigma      attention 1 - exp(-x / sigma) of squared distances
  alpha_k           alpha      step of the server: weight of the other clients
  lambda / alpha_k  rho        pull of the client towards u_i

  distance:   xi_ij = alpha exp(-|w_i - w_j|^2 / sigma) / sigma
  cosine:     xi_ij = (1 - own_weight) exp(sigma cos(w_i, w_j)) / sum_h exp(sigma cos(w_i, w_h))  (HeurFedAMP)
  xi_ii = 1 - sum_j xi_ij

alpha and sigma must fit the scale of the distances: sigma at least |w_i - w_j|^2 after the first
rounds, and alpha at most sigma / (N - 1), so that xi_ii is never negative. The metric "own_weight"
is its mean over the cohort.

Unseen clients are not supported: the server mixes a cloud model only for clients that send theirs.

Departures: in the paper all clients take part; here u_i is mixed of the round's models, and absent
clients keep theirs. In round 1 u_i is the common initialization. Batch statistics belong to w_i and
are never sent.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, Array, ClientOutput, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Fraction, NonNegative, Positive, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


def fedamp(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    alpha: NonNegative = 1.0,
    sigma: Positive = 10.0,
    rho: NonNegative = 1.0,
    attention: Literal["distance", "cosine"] = "distance",
    own_weight: Fraction = 0.1,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
) -> Algorithm:
    """Builds FedAMP (Algorithm 1) or HeurFedAMP.

    Args:
      optimizer: local optimizer, whose state starts anew every round; it sees the gradient with the
        pull.
      alpha: weight of the other clients, for "distance".
      sigma: scale of the attention.
      rho: the client minimises its loss + rho / 2 |w - u_i|^2; 0 is local training.
      attention: "distance" or "cosine".
      own_weight: xi_ii of "cosine".
      epochs: local epochs.
      batch: B.

    Returns:
      The algorithm; a client keeps its model, the server a model per client.
    """
    check_arguments(fedamp, alpha=alpha, sigma=sigma, rho=rho, attention=attention, own_weight=own_weight)
    model = task.model
    loss = local_training.supervised_loss(task)

    def server_init(key):
        return aggregators.repeat_row(model.init(key).params, task.population)

    def client_update(u_i, w_i, data, key):
        chain = optax.chain(local_training.add_proximal_term(rho, u_i), optimizer(task.round_num))
        trained = local_training.fit(loss, chain, epochs=epochs, batch=batch)(w_i, data, key)
        return ClientOutput(trained.net, trained.net.params, trained.sums)

    def server_update(clouds, w, cohort, key):
        active = cohort.examples > 0
        others = aggregators.other_pairs(active)
        if attention == "distance":
            xi = jnp.where(others, alpha * jnp.exp(-squared_distances(w) / sigma) / sigma, 0)
        else:
            cosines = cosine_similarities(w)
            nearest = jnp.max(cosines, 1, keepdims=True, where=others, initial=-1.0)
            near = jnp.where(others, jnp.exp(sigma * (cosines - nearest)), 0)
            xi = (1 - own_weight) * near / jnp.maximum(jnp.sum(near, 1, keepdims=True), aggregators.TINY)
        own = jnp.where(active, 1 - jnp.sum(xi, 1), 0)
        metrics = {"own_weight": (jnp.sum(own), jnp.sum(active, dtype=own.dtype))}
        return aggregators.scatter_clients(clouds, cohort, aggregators.mix_clients(w, xi + jnp.diag(own))), metrics

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=aggregators.stack,
        predict={"personal": lambda u_i, w_i, x: model.apply(w_i, x)[0]},
        client_init=lambda key, clouds, client_id: model.init(key),
        broadcast=lambda clouds, client_id: aggregators.take_row(clouds, client_id),
        init_unseen="FedAMP has cloud models only for clients that send theirs, and none for an unseen client",
        targets=tuple(TARGETS),
    )


def squared_distances(stacked: PyTree) -> Array:
    """Returns |w_i - w_j|^2 [C, C] of stacked parameters [C, ...]."""
    return _from_each(stacked, lambda all_, one: (all_ - one) ** 2)


def cosine_similarities(stacked: PyTree) -> Array:
    """Returns cos(w_i, w_j) [C, C] of stacked parameters [C, ...]."""
    dot = _from_each(stacked, lambda all_, one: all_ * one)
    norm = jnp.sqrt(jnp.maximum(jnp.diag(dot), aggregators.TINY))
    return dot / (norm[:, None] * norm[None])


def _from_each(stacked: PyTree, term: Callable[[Array, Array], Array]) -> Array:
    """Returns the sum [C, C] over all parameters of term(w_j, w_i)."""

    def row(w_i):
        sums = jax.tree.map(lambda all_, one: jnp.sum(term(all_, one[None]), tuple(range(1, all_.ndim))), stacked, w_i)
        return jax.tree.reduce(jnp.add, sums)

    return jax.lax.map(row, stacked)
