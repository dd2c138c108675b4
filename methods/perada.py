"""PerAda: personal adapters are pulled to an averaged one, into which the server may distil all clients'.

In plain words: Personal adapters are held near the averaged adapter. The server may also distil
what the clients' adapters know together into one, on unlabeled data.
Sent to clients: adapter.

Xie, Huang, Chu, Xu, Xiao, Li, Anandkumar. PerAda: Parameter-Efficient Federated Learning
Personalization with Generalization Guarantees. CVPR 2024. https://arxiv.org/abs/2302.06637

  paper     here          meaning
  w         server.net    server's adapter (whatever a network trains), as in FedAvg
  v_i       v_i           client i's personal adapter, never sent
  lambda    lam           of lam |v_i - w|^2 in the personal loss, w as received; no 1/2, as in the authors' code
  T, tau    distil        after averaging, w is taught by the clients' mean logits on unlabeled examples
                          (`task.public`)

Without distillation it is Ditto with lambda = 2 lam. `variant`: "default", the paper; "released",
FedOA's code for it, whose regularizer has no gradient: personal adapters train alone from the
second round on, each from its own draw.

Unseen clients start a personal adapter from the averaged one, after local training of it.

Departures: distillation has a fixed number of epochs, since the server has no labeled set for early
stopping. The teacher is computed at the server from every client's trained w_i, so that only deltas
are sent. With ranks by client (`config.clients.rank`) it is of the server's adapter with the clients'
padded changes, not of what the clients had. It sees examples without augmentation
(config.augment), the taught adapter with it; in the authors' code both see the same.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core import registry
from fedjax_core.algorithm import PER_ROW, Algorithm, ClientData, Examples
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, Positive, check_arguments
from fedjax_core.task import Task, require_class_logits
from fedjax_core.training import aggregators, local_training
from methods.ditto import with_personal_model
from methods.fedavg import fedavg
from methods.fedoa import compute_features, feature_distance


class Distillation(NamedTuple):
    """Settings of the distillation at the server.

    Attributes:
      on: whether to distil.
      rounds: number of first rounds with distillation.
      epochs: passes over the public examples.
      batch: of them.
      lr: of Adam, which falls to 0 like a cosine within a round.
      temperature: tau.
    """

    on: bool = False
    rounds: AtLeastZero = 30
    epochs: AtLeastZero = 20
    batch: AtLeastOne = 2048
    lr: Positive = 1e-3
    temperature: Positive = 1.0


VARIANTS: dict[str, dict[str, Any]] = {"default": {}, "released": {"begin": 1, "fresh": True}}


def perada(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    lam: NonNegative = 0.5,
    epochs: AtLeastZero = 2,
    batch: AtLeastOne = 32,
    weights: str = "uniform",
    measure: bool = False,
    variant: str = "default",
    distil: Mapping[str, Any] | None = None,
) -> Algorithm:
    """Builds PerAda (Algorithm 1).

    Args:
      task: network and population; what its `Net` has is the adapter; with distillation also the
        public examples.
      optimizer: local optimizer of both adapters, whose state starts anew every round.
      lam: lambda; 0 makes the personal adapters Local's. 0.5 is FedOA's; the authors have 1 for CIFAR-10
        and 0.1 for Office-Home.
      epochs: local epochs of either adapter.
      batch: B.
      weights: "uniform" or "samples".
      measure: whether the mean distance of both adapters' features after training is computed,
        metric "feature_distance".
      variant: "default" or "released".
      distil: options of the distillation that differ from `Distillation`'s, such as {"on": True};
        None in place of a value leaves it.

    Returns:
      The algorithm; a client keeps its personal adapter and sends the delta of the server's.

    Raises:
      ValueError: an argument is out of range, there are no public examples to distil on, logits
        are of episodes, or (when built into a round) the server has no batch statistics to distil with.
    """
    reading = VARIANTS[registry.check_choice("variant", variant, VARIANTS)]
    kd = registry.replace_options("distil", Distillation(), distil)
    check_arguments(perada, lam=lam)
    if kd.on and not jax.tree.leaves(task.public):
        raise ValueError("distil.on=True needs public examples, task.public is empty; name a set in config.public")
    if kd.on:
        require_class_logits(task, "perada with distil.on=True")
    model, pull = task.model, 0.0 if variant == "released" else 2 * lam
    loss = local_training.supervised_loss(task)

    def train(w, v_i, data, key):
        chain = optax.chain(local_training.add_proximal_term(pull, w.params), optimizer(task.round_num))
        trained = local_training.fit(loss, chain, epochs=epochs, batch=batch)(v_i, data, key)
        phi = lambda net: compute_features(model, net, data, batch)
        return trained.net, {"feature_distance": feature_distance(phi(trained.net), phi(w), data)} if measure else {}

    def server_update(server, deltas, cohort, key):
        if jax.tree.leaves(jax.eval_shape(model.init, key).stats) and not jax.tree.leaves(server.net.stats):
            raise ValueError(
                "distil.on=True: with statistics='local' the server has no batch statistics, and can teach no network; "
                "set statistics to 'average' or 'freeze'"
            )
        active = cohort.examples > 0
        deltas = jax.tree.map(lambda d: jnp.where(aggregators.append_axes(active, d), d, 0), deltas)
        w = optax.apply_updates(server.net, aggregators.weighted_mean(deltas, aggregators.make_weight_fn(weights)(cohort)))
        rows = jnp.arange(len(jax.tree.leaves(task.public)[0]), dtype=jnp.int32)
        examples = ClientData(Examples(task.public[0], rows), rows, jnp.int32(len(rows)))

        def mean_logits(batch):
            def add(total, entry):
                delta, is_active = entry
                logits = model.apply(optax.apply_updates(server.net, delta), batch.x, mask=batch.mask)[0]["logits"]
                return total + jnp.where(is_active, logits, 0), None

            like = jax.eval_shape(lambda: model.apply(server.net, batch.x)[0]["logits"])
            total, _ = jax.lax.scan(add, jnp.zeros(like.shape, like.dtype), (deltas, active))
            return total / jnp.maximum(jnp.sum(active), 1)

        def distil_teacher():
            teacher = local_training.map_examples(mean_logits, examples, batch=kd.batch)
            taught = examples._replace(arrays=Examples(task.public[0], teacher))
            adam = local_training.adam(kd.lr, anneal="cosine")(task.round_num)
            student = local_training.fit(
                local_training.distillation_loss(model, kd.temperature), adam, epochs=kd.epochs, batch=kd.batch
            )(w, taught, key)
            return student.net, student.sums

        zero = jnp.zeros((), jnp.float32)
        is_due = (task.round_num < kd.rounds) & jnp.any(active)
        net, kl = jax.lax.cond(is_due, distil_teacher, lambda: (w, (zero, zero)))
        return server._replace(net=net), {"distillation": kl}

    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    if kd.on:
        base = base._replace(server_update=server_update, collect=aggregators.stack)
    return with_personal_model(task, base, train, **reading)._replace(targets=("classes",) if kd.on else PER_ROW)
