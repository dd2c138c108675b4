"""FedALA: each client starts a round from a mixture of its old model and the server's, learned per weight.

In plain words: FedAvg, but a client does not forget its last model when it gets the server's: for
each weight of the last layers it learns how much of the new one to take.
Sent to clients: model.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: Adaptive Local Aggregation for Personalized Federated
Learning. AAAI 2023. https://arxiv.org/abs/2212.01197

  paper          here            meaning
  Theta^(t-1)    server.net      server model
  Theta_i^(t-1)  client.local    client i's last trained model, never sent
  W_i^p          client.mix      weights in [0, 1] of the server's change, one per parameter of
                                 `top`; initially 1
  p              top             highest layers, which are mixed; the others are the server's
  s %            fraction        of the client's examples, a random window, that W_i is learned on
  eta            mix_lr          learning rate of W_i

  Theta_hat_i = Theta_i + (Theta - Theta_i) * W_i                             (A)
  W_i <- clip(W_i - eta grad_Theta_hat L * (Theta - Theta_i), 0, 1)           (B)

W_i is learned with everything else fixed: at first for epochs until the deviation of the last ten
losses is below `threshold`, later for one epoch a round. A client is scored with Theta_hat_i of the
newest server model. In its first round it starts from the server's model.

Unseen clients train the server's model locally, then mix the result with it, as all clients do.

Departures: the losses that end the first phase are means over an epoch, those of the authors' code
of its last minibatch, and `first_limit` bounds that phase. Minibatches are shuffled. The code names
layers by a number of tensors, 2 for the classifier. The window is a run of the rows in stored order:
where a client's rows are sorted by class, it may lack a class, and fraction=1 takes all rows.
`threshold` is the code's 0.1; the paper has 0.01. The clients of a round mix; in the code all clients
do in every round.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, Array, ClientData, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, PositiveFraction, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import local_training
from fedjax_core.training.param_partition import check_entries
from methods.fedavg import fedavg

_MIX, _WINDOW = 0x616C61, 0x77  # keys of the mixture
_RECORDED = 10  # losses of which the deviation is taken


class Client(NamedTuple):
    """The state of a client.

    Attributes:
      local: the last trained model.
      mix: W_i, of the leaves of `top`.
      rounds: [] float32, how many rounds the client took part in.
    """

    local: Net
    mix: PyTree
    rounds: Array


def fedala(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    top: Sequence[str] = ("head",),
    mix_lr: NonNegative = 1.0,
    fraction: PositiveFraction = 0.8,
    threshold: NonNegative = 0.1,
    first_limit: AtLeastOne = 30,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedALA (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer, whose state starts anew every round.
      top: entries of the network's parameters that are mixed; () is FedAvg.
      mix_lr: eta; 0 is FedAvg, up to rounding.
      fraction: s / 100.
      threshold: deviation of losses that ends the first phase.
      first_limit: largest number of epochs of that phase.
      epochs: local epochs.
      batch: B, also for learning W_i.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its model and W_i.
    """
    check_arguments(fedala, mix_lr=mix_lr, fraction=fraction, threshold=threshold, first_limit=first_limit)
    model, supervised = task.model, local_training.supervised_loss(task)
    train = local_training.fit(supervised, optimizer(task.round_num), epochs=epochs, batch=batch)

    def split(net):
        check_entries(net, top, "top")
        return local_training.split_params(net.params, local_training.entries_filter(*top) if top else None)

    def aggregate(w, client, data, key):
        """Returns (Theta_hat_i, W_i), the server's model and W_i as it is for a client that never trained."""
        if not top:
            return w, client.mix
        (own, _), (new, lower) = split(client.local), split(w)

        def mixed(mix):
            theta = jax.tree.map(lambda own, new, a: own + (new - own) * a, own, new, mix)  # (A)
            return Net(local_training.join_params(theta, lower), w.stats)

        def loss(net, batch, key):
            value, aux = supervised(mixed(net.params), batch, key)
            return value, aux._replace(stats=())

        step = optax.chain(optax.sgd(mix_lr), _keep_in_unit_interval())  # (B)
        learn = local_training.fit(loss, step, epochs=1, batch=batch)
        window = draw_window(data, fraction, jax.random.fold_in(key, _WINDOW))
        limit = jnp.where(client.rounds == 0, 0, jnp.where(client.rounds == 1, first_limit, 1))

        def is_learning(carry):
            _, losses, n = carry
            return (n < limit) & ~((n > _RECORDED) & (jnp.std(losses) < threshold))

        def epoch(carry):
            mix, losses, n = carry
            learned = learn(Net(mix), window, jax.random.fold_in(key, n))
            total, examples = learned.sums["loss"]
            return learned.net.params, jnp.roll(losses, 1).at[0].set(total / jnp.maximum(examples, 1)), n + 1

        mix, _, _ = jax.lax.while_loop(is_learning, epoch, (client.mix, jnp.zeros(_RECORDED), jnp.int32(0)))
        return optax.tree.where(client.rounds > 0, mixed(mix), w), mix

    def client_update(w, client, data, key):
        theta_hat, mix = aggregate(w, client, data, jax.random.fold_in(key, _MIX))
        trained = train(theta_hat, data, key)
        client = Client(trained.net, mix, client.rounds + 1)
        return ClientOutput(client, optax.tree.sub(trained.net, w), trained.sums, local=(trained.net, client))

    def personalise(w, client, data, key):
        theta_hat, mix = aggregate(w, client, data, key)
        return w, Client(theta_hat, mix, client.rounds)

    def client_init(key, server, client_id):
        local = model.init(key)
        return Client(local, optax.tree.ones_like(split(local)[0] if top else {}), jnp.zeros(()))

    def personal(w, client, x):
        return model.apply(optax.tree.where(client.rounds > 0, client.local, w), x)[0]

    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    return base._replace(
        client_update=client_update,
        predict=base.predict | {"personal": personal},
        client_init=client_init,
        personalise=personalise,
    )


def draw_window(data: ClientData, fraction: float, key: Array) -> ClientData:
    """Returns a random window of a client's examples in stored order: floor(fraction n), at least one."""
    size = jnp.maximum(jnp.floor(fraction * data.size).astype(data.size.dtype), 1)
    start = jax.random.randint(key, (), 0, jnp.maximum(data.size - size, 0) + 1)
    return data._replace(index=jnp.roll(data.index, -start), size=jnp.minimum(size, data.size))


def _keep_in_unit_interval() -> optax.GradientTransformation:
    """Cuts steps off where a parameter would leave [0, 1]."""
    clipped = lambda u, a: jnp.clip(a + u, 0, 1) - a
    return optax.stateless(lambda updates, params: jax.tree.map(clipped, updates, params))
