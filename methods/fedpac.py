"""FedPAC: features are aligned to common class means, and each client gets its own mixture of all heads.

In plain words: The body is averaged as in FedRep, and features are drawn to the mean of their class
over all clients. The server combines heads for each client, of clients whose data look alike.
Sent to clients: body, class prototypes, the client's own combined head.

Xu, Tong, Huang. Personalized Federated Learning with Feature Alignment and Classifier
Collaboration. ICLR 2023. https://arxiv.org/abs/2306.11867

  paper       here          meaning
  theta       server.body   feature extractor, the server's
  phi_i       server.heads  [N, ...] each client's combined head
  c           prototypes    mean feature of each class over clients, after training
  lambda      lam           weight of the alignment
  H_i, V_i    h_i, v_i      [K, D] P_i(y) E[z | y], and the variance of their estimate
  alpha_i     alpha         shares of the clients' heads in client i's

A client trains its head, then the body under it by CE + lambda mean_b |z_b - c_(y_b)|^2 / D. A
class without a prototype takes the client's own mean before training; in the first round there is
no alignment. With features z of the received body, mean mu_k and share pi_k of class k:

  H_i[k] = pi_k mu_k,   V_i = (mean |z|^2 - sum_k pi_k^2 |mu_k|^2) / n_i
  alpha_i = argmin over the simplex of sum_jl a_j a_l <H_i - H_j, H_i - H_l> + sum_j a_j^2 V_j

Shares below 1e-3 are dropped and the others scaled to sum to 1.

Unseen clients are not supported: the server combines heads only for clients that send theirs.

Departures: accelerated projected gradients solve for alpha, until no share moves (of 100 clients to
about 0.005). The authors' code rounds eigenvalues below 0.01 off where the matrix is not positive
semidefinite, which it is here. Absent clients keep their combined heads. Heads train at `head_rate`
times the rate of the body, 10 in that code.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, Array, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, Positive, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training, param_partition
from methods.fedproto import Prototypes, init_prototypes, mean_features, prototype_loss, update_prototypes
from methods.fedrep import HEAD

LEAST_SHARE = 1e-3
SOLVER_STEPS, TOLERANCE = 5_000, 1e-7  # at most; the largest change of a share in the last step
_is_head = param_partition.personal_entries("head")


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      body: the network without its head.
      heads: [N, ...] each client's, a network without its body.
      prototypes: of all classes.
    """

    body: Net
    heads: Net
    prototypes: Prototypes


class Sent(NamedTuple):
    """The broadcast to a client.

    Attributes:
      body: the network without its head.
      head: the client's combined head.
      prototypes: of all classes.
    """

    body: Net
    head: Net
    prototypes: Prototypes


def fedpac(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    lam: NonNegative = 1.0,
    collaborate: bool = True,
    head_epochs: AtLeastZero = 1,
    head_rate: Positive = 1.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedPAC (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer, whose state starts anew in every phase.
      lam: lambda; 0 without collaboration is FedRep.
      collaborate: whether heads are combined; else each client keeps its own.
      head_epochs: local epochs of the head, first.
      head_rate: what the optimizer's steps are multiplied by for the head.
      epochs: local epochs of the body, second.
      batch: B.
      weights: of the bodies, "samples" or "uniform".

    Returns:
      The algorithm; the server keeps a head per client. The metric "own_share" is the mean of
      alpha_ii.
    """
    check_arguments(fedpac, lam=lam, head_epochs=head_epochs, head_rate=head_rate)
    model, classes, head_filter = task.model, task.classes, local_training.entries_filter("head")
    head_steps = optax.chain(optimizer(task.round_num), optax.scale(head_rate))
    train_head = local_training.fit(
        local_training.supervised_loss(task), head_steps, epochs=head_epochs, batch=batch, trainable=head_filter
    )

    def estimate_moments(net, data):
        """Returns (class means [K, D], H_i [K, D], V_i [])."""

        def sums(batch):
            z = model.features(net, batch.x, mask=batch.mask)[0].astype(jnp.float32)
            square = jnp.sum(jnp.where(batch.mask, jnp.sum(z**2, -1), 0))
            return *local_training.class_sums(z, batch.y, batch.mask, classes), square

        total, counts, square = local_training.sum_over_batches(sums, data, batch=batch)
        examples = jnp.maximum(jnp.sum(counts), 1)
        h_i = total / examples
        v_i = (square / examples - jnp.sum(h_i**2)) / examples
        return local_training.divide_class_sums(total, counts)[0], h_i, jnp.maximum(v_i, 0)

    def client_update(sent, client, data, key):
        net = local_training.join_params(sent.head, sent.body)
        means, h_i, v_i = estimate_moments(net, data)
        known = sent.prototypes.known
        targets = Prototypes(jnp.where(known[:, None], sent.prototypes.means, means), jnp.full(classes, jnp.any(known)))
        loss = prototype_loss(model, targets, lam, local_training.label_loss(task))
        train_body = local_training.fit(
            loss, optimizer(task.round_num), epochs=epochs, batch=batch, trainable=lambda path: not head_filter(path)
        )
        first = train_head(net, data, jax.random.fold_in(key, HEAD))
        second = train_body(first.net, data, key)
        body, head = param_partition.split_net(second.net, _is_head)
        after = mean_features(model, second.net, data, classes=classes, batch=batch)
        uplink = optax.tree.sub(body, sent.body), after, head, (h_i, v_i)
        sums = optax.tree.add(first.sums, second.sums)
        return ClientOutput(client, uplink, sums, local=(Sent(body, head, sent.prototypes), client))

    def server_update(server, collected, cohort, key):
        delta, means, heads, (h, v) = collected
        active = cohort.examples > 0
        if collaborate:
            alpha = jax.vmap(lambda h_i: head_weights(h_i, h, v, active))(h)
            alpha = jnp.where(active[:, None], alpha, 0)
        else:
            alpha = jnp.diag(active.astype(jnp.float32))
        combined = aggregators.scatter_clients(server.heads, cohort, aggregators.mix_clients(heads, alpha))
        new = Server(optax.tree.add(server.body, delta), combined, update_prototypes(server.prototypes, *means))
        return new, {"own_share": (jnp.trace(alpha), jnp.sum(active, dtype=jnp.float32))}

    def server_init(key):
        body, head = param_partition.split_net(model.init(key), _is_head)
        heads = aggregators.repeat_row(head, task.population)
        return Server(body, heads, init_prototypes(task))

    def broadcast(server, i):
        return Sent(server.body, aggregators.take_row(server.heads, i), server.prototypes)

    mean = aggregators.mean(aggregators.make_weight_fn(weights))
    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(mean, aggregators.class_mean("samples"), aggregators.stack, aggregators.stack),
        predict={"personal": lambda sent, client, x: model.apply(local_training.join_params(sent.head, sent.body), x)[0]},
        broadcast=broadcast,
        init_unseen="FedPAC combines heads only for clients that send theirs, and none for an unseen client",
    )


def head_weights(h_i: Array, h: Array, v: Array, active: Array) -> Array:
    """Returns alpha_i [C] of a client with H_i [K, D], zero for absent clients.

    Args:
      h_i: the client's.
      h: [C, K, D], all clients'; of absent ones anything.
      v: [C], likewise.
      active: [C] mask.
    """
    apart = jnp.where(active[:, None], (h_i[None] - h).reshape(len(h), -1), 0)
    q = jnp.matmul(apart, apart.T, precision=jax.lax.Precision.HIGHEST) + jnp.diag(jnp.where(active, v, 0))
    q = q / jnp.maximum(jnp.linalg.norm(q), aggregators.TINY)  # its largest eigenvalue is at most 1
    project = lambda a: optax.projections.projection_simplex(jnp.where(active, a, -1e6))

    def step(carry):
        """Takes a step of accelerated projected gradients, which restart where momentum points uphill."""
        a, ahead, t, i, _ = carry
        new = project(ahead - q @ ahead)
        is_uphill = jnp.vdot(ahead - new, new - a) > 0
        next_t = jnp.where(is_uphill, 1.0, (1 + jnp.sqrt(1 + 4 * t**2)) / 2)
        ahead = jnp.where(is_uphill, new, new + (t - 1) / next_t * (new - a))
        return new, ahead, next_t, i + 1, jnp.max(jnp.abs(new - a))

    start = active / jnp.maximum(jnp.sum(active), 1)
    is_moving = lambda carry: (carry[3] < SOLVER_STEPS) & (carry[4] > TOLERANCE)
    a, *_ = jax.lax.while_loop(is_moving, step, (start, start, jnp.float32(1), 0, jnp.float32(1)))
    a = jnp.where(active & (a >= LEAST_SHARE), a, 0)
    return a / jnp.maximum(jnp.sum(a), aggregators.TINY)
