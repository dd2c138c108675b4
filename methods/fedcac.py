"""FedCAC: parameters that are critical to a client are averaged among similar clients, all others globally.

In plain words: Parameters to which a client's loss is sensitive are averaged with those of similar
clients only, all others with everybody's.
Sent to clients: the client's own mixture.

Wu, Liu, Niu, Zhu, Tang. Bold but Cautious: Unlocking the Potential of Personalized Federated
Learning through Cautiously Aggressive Collaboration. ICCV 2023. https://arxiv.org/abs/2309.11103

  paper        here            meaning
  w            shared          mean of all models, the server's
  w_i          sent, v         client i's model; before and after local training
  S_i          sensitivity     |(v - v_0) v|, elementwise
  M_i, tau     mask, tau       [N, ...] critical parameters: the fraction tau of each tensor with the
                               largest sensitivity; sent as bits
  O_ij         overlap         1 - |M_i - M_j|_1 / (2 |M_i|_1)
  beta         beta            round after which no client is similar enough
  w_i^c        custom          [N, ...] uniform mean over C_i: client i and all j with
                               O_ij >= O_avg + t / beta (O_max - O_avg)

Client i receives M_i w_i^c + (1 - M_i) w. After round beta critical parameters are its own alone,
unless all overlaps are equal, as between two clients.

Unseen clients are not supported: each client's model depends on the critical parameters that it
sends.

Departures: with partial participation, everything is computed over the cohort. Absent clients keep
their masks and custom models, with the newest shared parameters. Batch statistics stay with their
client, as in the authors' code. A tensor without any sensitivity, such as one that never moved, has
no critical parameter; in that code all of its parameters are critical.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, Array, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Fraction, Positive, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      shared: the mean model's parameters.
      custom: [N, ...], each client's mean over similar clients.
      mask: [N, bytes], each client's critical parameters as bits, per tensor; initially none.
    """

    shared: PyTree
    custom: PyTree
    mask: PyTree


def fedcac(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    tau: Fraction = 0.5,
    beta: Positive = 100,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedCAC (Algorithm 1).

    Args:
      tau: fraction of critical parameters; 0 is FedAvg with local batch statistics.
      beta: rounds until collaboration on critical parameters ends.
      epochs: local epochs.
      batch: B.
      weights: of `shared`, "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its batch statistics, the server a model and a mask per client.
    """
    check_arguments(fedcac, tau=tau, beta=beta)
    model, weight_fn = task.model, jax.vmap(aggregators.make_weight_fn(weights))
    train = local_training.fit(local_training.supervised_loss(task), optimizer(task.round_num), epochs=epochs, batch=batch)

    def server_init(key):
        params = model.init(key).params
        custom = jax.tree.map(lambda p: jnp.zeros((task.population, *p.shape)), params)
        mask = jax.tree.map(lambda p: jnp.zeros((task.population, -(-p.size // 8)), jnp.uint8), params)
        return Server(params, custom, mask)

    def broadcast(server, i):
        mixed = lambda w, custom, mask: jnp.where(unpack_bits(mask[i], w.size).reshape(w.shape), custom[i], w)
        return jax.tree.map(mixed, *server)

    def client_update(sent, stats, data, key):
        (v, stats), _, sums = train(Net(sent, stats), data, key)
        mask = jax.tree.map(lambda new, old: jnp.packbits(select_critical(jnp.abs((new - old) * new), tau).ravel()), v, sent)
        return ClientOutput(stats, (v, mask), sums, local=(v, stats))

    def server_update(server, collected, cohort, key):
        v, mask = collected
        active = cohort.examples > 0
        moved = jax.tree.map(lambda v, w: v - w[None], v, server.shared)
        shared = optax.apply_updates(server.shared, aggregators.weighted_mean(moved, weight_fn(cohort)))
        similar = select_collaborators(compute_overlaps(mask, server.shared, active), active, (task.round_num + 1) / beta)
        w = similar / jnp.maximum(jnp.sum(similar, 1, keepdims=True), 1)
        rows = aggregators.scatter_clients((server.custom, server.mask), cohort, (aggregators.mix_clients(v, w), mask))
        metrics = {"collaborators": (jnp.sum(similar, dtype=jnp.float32), jnp.sum(active, dtype=jnp.float32))}
        return Server(shared, *rows), metrics

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(aggregators.stack, aggregators.stack),
        predict={"personal": lambda sent, stats, x: model.apply(Net(sent, stats), x)[0]},
        client_init=lambda key, server, client_id: model.init(key).stats,
        broadcast=broadcast,
        init_unseen="FedCAC makes models only for clients that send theirs, and none for an unseen client",
        targets=tuple(TARGETS),
    )


def select_critical(sensitivity: Array, tau: float) -> Array:
    """Returns the mask of a tensor's critical parameters: the floor(tau size) largest, with ties.

    If fewer than that exceed 1e-10, those above 1e-20 are critical.
    """
    count = math.floor(tau * sensitivity.size)
    if not count:
        return jnp.zeros(sensitivity.shape, bool)
    threshold = jnp.sort(sensitivity.ravel())[sensitivity.size - count]
    least = jnp.min(jnp.where(sensitivity > 1e-20, sensitivity, jnp.inf))
    return sensitivity >= jnp.where(threshold <= 1e-10, least, threshold)


def compute_overlaps(mask: PyTree, params: PyTree, active: Array) -> Array:
    """Returns O_ij [C, C] of packed masks [C, bytes]; 0 in the row of a client without critical parameters."""

    def both(packed, tensor):
        m = jnp.where(active[:, None], unpack_bits(packed, tensor.size), False).astype(jnp.float32)
        return m @ m.T

    shared = sum(jax.tree.leaves(jax.tree.map(both, mask, params)), np.float32(0))  # |M_i and M_j|; on the diagonal |M_i|
    size = jnp.diag(shared)
    overlap = 1 - (size[:, None] + size[None] - 2 * shared) / jnp.maximum(2 * size[:, None], 1)
    return jnp.where(size[:, None] > 0, overlap, 0)


def select_collaborators(overlap: Array, active: Array, progress: Array | float) -> Array:
    """Returns C_i as a 0-1 matrix [C, C], zero for absent clients; `progress` is t / beta."""
    own = jnp.diag(active)
    others = aggregators.other_pairs(active)
    largest = jnp.max(jnp.where(others, overlap, -jnp.inf), initial=-jnp.inf)
    average = jnp.minimum(jnp.sum(jnp.where(others, overlap, 0)) / jnp.maximum(jnp.sum(others), 1), largest)
    threshold = average + progress * (largest - average)
    return (own | (others & (overlap >= threshold))).astype(jnp.float32)


def unpack_bits(packed: Array, size: int) -> Array:
    """Inverts `jnp.packbits`: [..., bytes] -> [..., size] bool."""
    return jnp.unpackbits(packed, axis=-1, count=size).astype(bool)
