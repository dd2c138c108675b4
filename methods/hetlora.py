"""HetLoRA: adapters of different ranks are padded with zeros and weighted by their size.

In plain words: FedIT whose clients have adapters as large as their devices allow. The server
averages them entry by entry, with zeros in place of what a small adapter lacks, and the more an
adapter changes the network, the more it weighs.
Sent to clients: part of the adapter.

Cho, Liu, Xu, Fahrezi, Joshi. Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation
Models. EMNLP 2024. https://arxiv.org/abs/2401.06432

  paper            here                   meaning (`adapters.py` has x A B for the paper's B A x)
  r_k              config.clients.rank    rank of client k; the network's is r_max
  A_k, B_k         uplink.net             with zeros but for r_k columns and rows
  |B_k A_k|_F      uplink.norm            over all kernels; the weight of client k, over their sum
  gamma, lambda    gamma, lam             part of the rank that pruning keeps; weight of the penalty

Truncation is that of `client_ranks.py`: a client gets the first r_k columns and rows. With
prune=True clients learn their ranks. The loss has a penalty lambda |A[:, gamma r:]| |B[gamma r:]|
for each kernel, and a client whose sum of these products is lower after training than before keeps
gamma r from then on.

Unseen clients use the server's model.

Departures: the paper does not say how the norms of several kernels are joined; here as one vector.
Other entries that are trained, such as the classifier, have the same weights. All clients have the
scale alpha / r_max. Bytes are those of the ranks before pruning. Pruning is off by default. The
weight of its penalty is ours; gamma is the paper's.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, Array, ClientOutput, Net, PyTree, Reduce
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, PositiveFraction, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import adapters, aggregators, local_training
from methods.fedavg import fedavg

GAMMA, LAM = 0.99, 0.01  # defaults; other numbers are refused without pruning


class Uplink(NamedTuple):
    """The uplink of a client.

    Attributes:
      net: the client's network.
      norm: [] of the products of its adapter; the server computes it, so it is not sent.
    """

    net: Net
    norm: Array


def hetlora(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    weights: Annotated[str, one_of("norms", "uniform", "samples")] = "norms",
    prune: bool = False,
    gamma: PositiveFraction = GAMMA,
    lam: NonNegative = LAM,
    epochs: AtLeastZero = 2,
    batch: AtLeastOne = 32,
) -> Algorithm:
    """Builds HetLoRA.

    Args:
      task: network with an adapter, and population.
      optimizer: local optimizer, whose state starts anew every round.
      weights: "norms" of the clients' updates; "uniform" or "samples": zero-padding alone.
      prune: whether clients reduce their ranks.
      gamma: part of the rank that a client keeps when it prunes; used with prune=True.
      lam: weight of the penalty on the rest; used with prune=True.
      epochs: local epochs.
      batch: B.

    Returns:
      The algorithm; a client sends its network, and keeps its rank if it prunes.

    Raises:
      ValueError: an argument is out of range or unused, or the network has no adapter, or a bottleneck.
    """
    check_arguments(hetlora, weights=weights, prune=prune, gamma=gamma, lam=lam)
    if not prune and (gamma, lam) != (GAMMA, LAM):
        raise ValueError(f"gamma={gamma} and lam={lam} are of pruning; set prune=True")
    adapters.check_has_adapter(task, "hetlora", is_linear=True)
    loss = local_training.supervised_loss(task)
    (r_max,) = adapters.find_ranks(jax.eval_shape(task.model.init, jax.random.key(0)))

    def train(loss_fn, net: Net, data, key) -> local_training.FitResult:
        return local_training.fit(loss_fn, optimizer(task.round_num), epochs=epochs, batch=batch)(net, data, key)

    def penalize(kept: Array):
        """Returns the loss with the penalty on what is beyond the columns and rows `kept`."""

        def penalized(net, batch, key):
            value, aux = loss(net, batch, key)
            return value + lam * _tail_products(net.params[adapters.ENTRY], kept), aux

        return penalized

    def make_output(client, sent: Net, net: Net, sums) -> ClientOutput:
        uplink = Uplink(net, adapters.product_norm(net.params[adapters.ENTRY]))
        return ClientOutput(client, uplink, sums, local=(net, client), wire=(sent, net))

    def client_update(sent, client, data, key):
        if not prune:
            net, _, sums = train(loss, sent, data, key)
            return make_output(client, sent, net, sums)
        own = data.settings.rank if data.settings is not None and data.settings.rank is not None else r_max
        rank = jnp.minimum(client, own)
        kept = jnp.maximum(jnp.floor(gamma * rank).astype(rank.dtype), 1)
        sent = adapters.truncate_adapters(sent, rank)
        net, _, sums = train(penalize(kept), sent, data, key)
        before, after = (_tail_products(w.params[adapters.ENTRY], kept) for w in (sent, net))
        client = jnp.where(after < before, kept, rank)
        sums = sums | {"rank": (client.astype(jnp.float32), jnp.ones(()))}
        return make_output(client, sent, adapters.truncate_adapters(net, client), sums)

    def map_part(part: Uplink, client):
        w = aggregators.weight_uniformly(client) * part.norm if weights == "norms" else aggregators.WEIGHT_FNS[weights](client)
        return aggregators.multiply_by_weight(part.net, w), w

    def server_update(server, collected, cohort, key):
        total, w = collected
        return server._replace(net=optax.tree.where(w > 0, aggregators.divide_by_weight(total, w), server.net)), {}

    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch)
    return base._replace(
        client_update=client_update,
        server_update=server_update,
        collect=Reduce(map_part, "add"),
        client_init=(lambda key, server, client_id: jnp.int32(r_max)) if prune else base.client_init,
    )


def _tail_products(adapter: PyTree, kept: Array) -> Array:
    """Returns the sum over kernels of |A[:, kept:]| |B[kept:]|; its gradient at zeros is zero."""

    def norm(x: Array, axis: int) -> Array:
        places = jnp.arange(x.shape[axis])
        is_tail = (places if axis == -1 else places[:, None]) >= kept
        square = jnp.sum(jnp.where(is_tail, x, 0) ** 2, (-2, -1))
        return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)

    pairs = adapters.list_factors(adapter)
    return sum((jnp.sum(norm(own["a"], -1) * norm(own["b"], -2)) for own in pairs), jnp.zeros(()))
