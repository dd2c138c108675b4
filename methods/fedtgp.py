"""FedTGP: FedProto with prototypes that the server trains, with an adaptive margin between classes.

In plain words: FedProto whose prototypes the server trains, so that those of different classes keep
a margin between them.
Sent to clients: class prototypes.

Zhang, Liu, Hua, Cao. FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning for Data and Model Heterogeneity in Federated Learning. AAAI 2024.
https://arxiv.org/abs/2401.03230

  paper         here                      meaning
  P_i^c         collected                 client i's mean feature of class c, after training
  P^c_breve     "embedding"               trainable vector of class c
  F, P^c_hat    generator, prototypes     F maps the vector to the prototype: linear, ReLU, linear, width D
  delta(t)      adaptive_margin(...)      largest distance of a class center to its nearest, at most tau
  tau           margin
  S, lambda     server_epochs, lam

  L_P = -log e^-(|P_i^c - P^c_hat| + delta)
            / (e^-(|P_i^c - P^c_hat| + delta) + sum over c' != c of e^-|P_i^c - P^c'_hat|)

Clients and predictors are FedProto's; models may differ in all but D.

Unseen clients are not supported, since networks are never sent.

Departures: as in the authors' code, a class center is the plain mean over the clients that have the
class, and delta uses nearest centers, where the paper, as we read it, uses the farthest. A client's
means are computed after its training; the code uses the model before it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, Array, Net, PyTree
from fedjax_core.nn.projection_head import apply_linear, init_linear
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, Positive, check_arguments
from fedjax_core.task import Task, require_common_feature_size
from fedjax_core.training import aggregators, local_training, losses
from methods.fedproto import Prototypes, fedproto, init_prototypes

_STREAM = 0x746770  # of the generator's initialization


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      generator: the parameters of F, and the classes' vectors.
      prototypes: outputs of F, known to clients from the second round on.
    """

    generator: PyTree
    prototypes: Prototypes


def init_generator(key: Array, classes: int, features: int) -> PyTree:
    """Initializes F and the vectors of the classes: K D + 2 (D^2 + D) numbers."""
    vectors, hidden, out = jax.random.split(key, 3)
    params = {"hidden": init_linear(hidden, features, features), "out": init_linear(out, features, features)}
    return params | {"embedding": jax.random.normal(vectors, (classes, features))}


def generate_prototypes(params: PyTree) -> Array:
    """Returns all prototypes [K, D]."""
    return apply_linear(params["out"], jax.nn.relu(apply_linear(params["hidden"], params["embedding"])))


def adaptive_margin(centres: Array, held: Array, most: float) -> Array:
    """Returns delta: the largest distance of a class center [K, D] to its nearest other, over classes in `held` [K].

    It is at most `most`, and `most` for fewer than two classes.
    """
    pairs = aggregators.other_pairs(held)
    apart = losses.safe_norms(jnp.where(pairs[..., None], centres[:, None] - centres[None], 0))
    nearest = jnp.min(jnp.where(pairs, apart, jnp.inf), 1)
    widest = jnp.max(jnp.where(jnp.any(pairs, 1), nearest, 0))
    return jnp.where(jnp.any(pairs), jnp.minimum(widest, most), most)


def fedtgp(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    lam: NonNegative = 10.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    margin: NonNegative = 100.0,
    server_lr: Positive = 0.01,
    server_epochs: AtLeastZero = 100,
    server_batch: AtLeastOne = 10,
) -> Algorithm:
    """Builds FedTGP (Algorithm 1).

    Args:
      task: network and population; groups may differ in architecture, but not in the number of
        features.
      lam: weight of the pull to the prototypes; 0 is local training.
      epochs: local epochs.
      batch: B.
      margin: tau, the largest margin; 0 learns by plain distances.
      server_lr: of the generator, by plain SGD.
      server_epochs: S, over the means that came in.
      server_batch: its minibatches.

    Returns:
      The algorithm; a client keeps its model and sends K * (D + 1) numbers.

    Raises:
      ValueError: the numbers of features differ, or an argument is out of range.
    """
    check_arguments(fedtgp, lam=lam, margin=margin, server_lr=server_lr)
    classes, d = task.classes, require_common_feature_size(task, "fedtgp")
    learn = lambda loss: local_training.fit(loss, optax.sgd(server_lr), epochs=server_epochs, batch=server_batch)

    def server_update(server, collected, cohort, key):
        means, counts = collected
        is_sent = (cohort.examples > 0)[:, None] & (counts > 0)
        centres = aggregators.weighted_mean(means, is_sent.astype(means.dtype))
        delta = adaptive_margin(centres, jnp.any(is_sent, 0), margin)

        def loss(net, batch, key):
            apart = losses.safe_norms(batch.x[:, None] - generate_prototypes(net.params)[None])
            logits = -(apart + delta * jax.nn.one_hot(batch.y, classes))
            value = losses.cross_entropy(logits, batch.y, batch.mask)  # L_P
            return value, local_training.Aux(net.stats, local_training.loss_metrics(value, -apart, batch))

        trained, _, metrics = learn(loss)(Net(server.generator), local_training.uplinks_as_examples(cohort, means, counts), key)
        known = server.prototypes.known | jnp.any(is_sent)
        return Server(trained.params, Prototypes(generate_prototypes(trained.params), known)), metrics

    parent = fedproto(task, optimizer=optimizer, lam=lam, epochs=epochs, batch=batch)
    return parent._replace(
        server_init=lambda key: Server(init_generator(jax.random.fold_in(key, _STREAM), classes, d), init_prototypes(task)),
        server_update=server_update,
        collect=aggregators.stack,
        broadcast=lambda server, client_id: server.prototypes,
        init_unseen="FedTGP's networks are never sent, so an unseen client would have to train one alone",
    )
