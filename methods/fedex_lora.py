"""FedEx-LoRA: adapters are averaged, and what the mean of products differs by is added to the frozen kernels.

In plain words: An adapter is a product of two matrices. The product of their means is not the mean
of the clients' products; the server adds the difference to the frozen network, so that the mean is
exact.
Sent to clients: adapter, sum of the differences.

Singhal, Ponkshe, Vepakomma. FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning
of Foundation Models. ACL 2025. https://arxiv.org/abs/2410.09432

  paper     here                    meaning (`adapters.py` has x A B for the paper's B A x)
  A_i, B_i  "a", "b"                adapter that client i has trained
  W_0       task.frozen             never changes here: W_0 + s net.params["correction"] is the paper's
  W_res     residual                mean(A_i B_i) - mean(A_i) mean(B_i), of rank r (m - 1) at most

The residual is computed as mean((A_i - A)(B_i - B)), with the means A and B, which is equal and
rounds less. The server needs all adapters of a round at once. Clients of equal A_i make it FedIT.

Unseen clients use the server's model.

Departures: clients get the sum of all residuals so far, dense, [in, out] for each kernel, since they
may have missed rounds; with all clients in every round the paper's get the last one alone, as
factors of r (m - 1) (in + out) numbers. The residual has the weights of the mean, weights="samples"
too. With ranks by client (`config.clients.rank`) the mean is exact for the server's adapter with the
clients' padded changes, not for what the clients had.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, ClientOutput
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import adapters, aggregators, local_training
from fedjax_core.training.param_partition import drop_entry, put_entry
from methods.fedavg import fedavg


def fedex_lora(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 2,
    batch: AtLeastOne = 32,
    weights: str = "uniform",
) -> Algorithm:
    """Builds FedEx-LoRA.

    Args:
      task: network with LoRA, and population.
      optimizer: local optimizer, whose state starts anew every round.
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".

    Returns:
      The algorithm; a client keeps nothing and sends the delta of the adapter.

    Raises:
      ValueError: an argument is out of range, or the network has no adapter, or a bottleneck.
    """
    adapters.check_has_adapter(task, "fedex_lora", is_linear=True)
    base = adapters.start_correction(fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights))
    weight_fn, loss = aggregators.make_weight_fn(weights), local_training.supervised_loss(task)
    trainable = adapters.is_not_correction
    train = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch, trainable=trainable)

    def client_update(sent, client, data, key):
        trained = train(sent, data, key)
        before, after = (drop_entry(net, adapters.CORRECTION) for net in (sent, trained.net))
        return ClientOutput(client, optax.tree.sub(after, before), trained.sums, local=(trained.net, client))

    def server_update(server, deltas, cohort, key):
        w = weight_fn(cohort)
        mean = aggregators.weighted_mean(deltas, w)
        apart = jax.tree.map(lambda d, m: d - m[None], *(tree.params[adapters.ENTRY] for tree in (deltas, mean)))
        residual = adapters.sum_products(apart, w / jnp.maximum(jnp.sum(w), aggregators.TINY))
        step = put_entry(mean, adapters.CORRECTION, residual)
        return server._replace(net=optax.apply_updates(server.net, step)), {}

    return base._replace(client_update=client_update, server_update=server_update, collect=aggregators.stack)
