"""FlexLoRA: the server averages products of adapters and factors the mean for each rank.

In plain words: FedIT whose clients have adapters as large as their devices allow. The server
averages what the adapters do to the network, not their entries. A singular value decomposition
makes of the mean the best adapter of each size.
Sent to clients: part of the adapter.

Bai, Chen, Qian, Yao, Li. Federated Fine-tuning of Large Language Models under Heterogeneous Tasks
and Client Resources. NeurIPS 2024. https://arxiv.org/abs/2402.11505

  paper             here                   meaning (`adapters.py` has x A B for the paper's B A x)
  r_i               config.clients.rank    rank of client i; the network's is the largest
  B_i A_i           factors                with zeros but for r_i columns and rows
  n_i / n           weights="samples"      client i's share of the cohort's examples
  M = U Sigma V^T   compress_products      the mean of the products, for each kernel

The server keeps the best adapter of the network's rank, ordered by singular values; its first r_i
columns and rows are the best one of rank r_i, which client i gets (`client_ranks.py`). Other
entries that are trained, such as the classifier, are averaged as deltas.

Unseen clients use the server's model.

Departures: all clients have the scale alpha / r of the network's rank, not alpha / r_i, so it
cancels in M. What the largest rank does not hold of M is lost, also for later rounds.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import adapters, aggregators, local_training
from fedjax_core.training.param_partition import drop_entry
from methods.fedavg import fedavg


class Uplink(NamedTuple):
    """The uplink of a client.

    Attributes:
      factors: the client's adapter.
      rest: delta of all else.
    """

    factors: PyTree
    rest: Net


def flexlora(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 2,
    batch: AtLeastOne = 32,
    weights: str = "samples",
) -> Algorithm:
    """Builds FlexLoRA.

    Args:
      task: network with an adapter, and population.
      optimizer: local optimizer, whose state starts anew every round.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps nothing and sends its adapter and the delta of all else.

    Raises:
      ValueError: an argument is out of range, or the network has no adapter, or a bottleneck.
    """
    adapters.check_has_adapter(task, "flexlora", is_linear=True)
    weight_fn, entry = aggregators.make_weight_fn(weights), adapters.ENTRY
    train = local_training.fit(local_training.supervised_loss(task), optimizer(task.round_num), epochs=epochs, batch=batch)

    def split(net: Net) -> tuple[PyTree, Net]:
        """Returns the adapter, below its entry's name, and all else."""
        return {entry: net.params[entry]}, drop_entry(net, entry)

    def client_update(sent, client, data, key):
        trained = train(sent, data, key)
        (_, before), (factors, after) = split(sent), split(trained.net)
        return ClientOutput(client, Uplink(factors, optax.tree.sub(after, before)), trained.sums, local=(trained.net, client))

    def server_update(server, uplinks, cohort, key):
        w = weight_fn(cohort)
        total = jnp.sum(w)
        factors, rest = split(server.net)
        nearest = adapters.compress_products(uplinks.factors, w / jnp.maximum(total, aggregators.TINY))
        factors = optax.tree.where(total > 0, nearest, factors)
        rest: Any = optax.apply_updates(rest, uplinks.rest)
        return server._replace(net=rest._replace(params=rest.params | factors)), {}

    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    collect: Any = Uplink(aggregators.stack, aggregators.mean(weight_fn))  # pyright: ignore[reportArgumentType]
    return base._replace(client_update=client_update, server_update=server_update, collect=collect)
