"""FedFomo: each client mixes other clients' models into its own, those that do better on its validation data.

In plain words: Every client downloads a few other clients' models, tests them on data that it keeps
for this, and moves towards those that are better than its own.
Sent to clients: models of other clients.

Zhang, Sapra, Fidler, Yeung, Alvarez. Personalized Federated Learning with First Order Model
Optimization. ICLR 2021. https://arxiv.org/abs/2012.08565

  paper        here                 meaning
  theta_i      theta                client i's model
  theta_n      received             [M, ...] the last models of M other clients
  L_i          losses               mean loss, in evaluation mode, on the client's validation
                                    examples: floor(validation n_i) of its training examples, a
                                    random choice that is the same in all rounds and for all seeds
  w_n          w                    max(0, (L_i(theta_i) - L_i(theta_n)) / |theta_n - theta_i|),
                                    over their sum
  P            server.preference    [N, N] sums of these ratios before the maximum, as sent
  epsilon      epsilon              probability of another model than the M best of P_i; falls by
                                    epsilon_decay a round

  theta_i <- theta_i + sum_n w_n (theta_n - theta_i), then local training

Unseen clients are not supported: the server chooses models only for clients that send theirs.

Departures: with partial participation the server offers every client's last model. While fewer
others than M have sent one, a client gets its own in their place, which weighs nothing. Batch
statistics are mixed as parameters are, and count in no norm. The authors' code measures
L1 distances (norm="l1"), compares with the model before the client's last local training and goes
back to it where no model is better, has its own trained model among the others, and adds to P the
ratios over the absolute value of their sum.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, Array, ClientData, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, BelowOne, Fraction, NonNegative, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training

_SPLIT = 0x666F6D6F  # key of the choice of validation examples


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      models: [N, ...] Net, each client's last.
      known: [N] mask of clients that have sent one.
      preference: [N, N], P.
      chosen: [N, M] int32, whose models each client gets next; its own id in place of none.
    """

    models: Net
    known: Array
    preference: Array
    chosen: Array


def fedfomo(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    models: AtLeastZero = 5,
    validation: BelowOne = 0.2,
    epsilon: Fraction = 0.3,
    epsilon_decay: NonNegative = 0.05,
    norm: Annotated[str, one_of("l2", "l1")] = "l2",
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
) -> Algorithm:
    """Builds FedFomo (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer, whose state starts anew every round.
      models: M, or all others if there are fewer; 0 is Local on fewer examples, in another order.
      validation: fraction of a client's training examples that choose and do not train; a client without any,
        as with 0, chooses none and is Local.
      epsilon: exploration of round 0.
      epsilon_decay: what it loses each round.
      norm: of the distance of two models, "l2" or "l1".
      epochs: local epochs.
      batch: B.

    Returns:
      The algorithm; a client keeps its model, the server one per client.
    """
    check_arguments(fedfomo, models=models, validation=validation, epsilon=epsilon, epsilon_decay=epsilon_decay, norm=norm)
    model, clients, number = task.model, task.population, min(models, task.population - 1)
    sum_loss, supervised = local_training.evaluation_loss(task), local_training.supervised_loss(task)
    train = local_training.fit(supervised, optimizer(task.round_num), epochs=epochs, batch=batch)

    def server_init(key):
        each = aggregators.repeat_row(model.init(key), clients)
        own = jnp.broadcast_to(jnp.arange(clients, dtype=jnp.int32)[:, None], (clients, number))
        return Server(each, jnp.zeros(clients, bool), jnp.zeros((clients, clients)), own)

    def client_update(received, theta, data, key):
        rows, check = split_rows(data, validation)

        losses = lambda batch: (sum_loss(theta, batch), jax.lax.map(lambda net: sum_loss(net, batch), received))
        own, others = local_training.sum_over_batches(losses, check, batch=batch)
        own, others = (total / jnp.maximum(examples, 1) for total, examples in (own, others))
        apart = jax.tree.map(lambda n, i: n - i[None], received.params, theta.params)
        distance = jax.vmap(lambda p: optax.tree.norm(p, ord=1 if norm == "l1" else 2))(apart)
        ratios = jnp.where(distance > 0, (own - others) / jnp.maximum(distance, aggregators.TINY), 0)
        w = jnp.maximum(ratios, 0)
        w = w / jnp.maximum(jnp.sum(w), aggregators.TINY)
        mix = lambda n, i: i + jnp.tensordot(w.astype(i.dtype), n - i[None], 1)
        trained = train(jax.tree.map(mix, received, theta), rows, key)
        return ClientOutput(trained.net, (trained.net, ratios), trained.sums)

    def server_update(server, collected, cohort, key):
        theta, ratios = collected
        ids = jnp.minimum(cohort.ids, clients - 1)
        rated = jnp.einsum("cm,cmn->cn", ratios, jax.nn.one_hot(server.chosen[ids], clients))
        new = theta, jnp.ones(len(ids), bool), server.preference[ids] + rated
        each, known, preference = aggregators.scatter_clients(server[:3], cohort, new)
        explore = jnp.maximum(epsilon - epsilon_decay * task.round_num, 0)
        return Server(each, known, preference, choose_models(preference, known, number, explore, key)), {}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(aggregators.stack, aggregators.stack),
        predict={"personal": lambda received, theta, x: model.apply(theta, x)[0]},
        client_init=lambda key, server, client_id: model.init(key),
        broadcast=lambda server, i: aggregators.take_row(server.models, server.chosen[i]),
        init_unseen="FedFomo chooses models only for clients that send theirs, and none for an unseen client",
        targets=tuple(TARGETS),
    )


def split_rows(data: ClientData, validation: float) -> tuple[ClientData, ClientData]:
    """Returns a client's examples for training, and floor(validation n) others for validation.

    The stored order may be that of the classes, so it is shuffled first, by a key that never changes.
    """
    slots = jnp.arange(len(data.index))
    index = data.index[local_training.shuffle_slots(jax.random.key(_SPLIT), slots, data.size)]
    held_out = jnp.floor(validation * data.size).astype(data.size.dtype)
    size = data.size - held_out
    return data._replace(index=index, size=size), data._replace(index=jnp.roll(index, -size), size=held_out)


def choose_models(preference: Array, known: Array, number: int, epsilon: Array, key: Array) -> Array:
    """Returns whose models each client gets, [N, M] int32; the client's own id where there are no others.

    These are the `number` preferred ones among those known, ties in random order; each is replaced
    with probability epsilon by a random one of the rest.
    """
    ties, order, coins = (jax.random.uniform(k, preference.shape) for k in jax.random.split(key, 3))

    def choose(i, likes, ties, order, coins):
        is_other = known & (jnp.arange(len(known)) != i)
        best = jnp.lexsort((ties, -likes, ~is_other))[:number]
        rest = is_other & ~jnp.zeros_like(known).at[best].set(True)
        random = jnp.lexsort((order, ~rest))[:number]
        explores = (coins[:number] < epsilon) & (jnp.arange(number) < jnp.sum(rest))
        picked = jnp.where(explores, random, best)
        return jnp.where(is_other[picked], picked, i).astype(jnp.int32)

    return jax.vmap(choose)(jnp.arange(len(known)), preference, ties, order, coins)
