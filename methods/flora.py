"""FLoRA: the clients' adapters are stacked and merged into the network, and start anew in every round.

In plain words: In each round every client trains a new adapter. The mean of the adapters' products
is added to the frozen network, exactly, whatever their ranks.
Sent to clients: sum of the merged adapters.

Wang, Shen, He, Sun, Wang, Lyu, Li. FLoRA: Federated Fine-Tuning Large Language Models with
Heterogeneous Low-Rank Adaptations. NeurIPS 2024. https://arxiv.org/abs/2409.05976

  paper        here                    meaning (`adapters.py` has x A B for the paper's B A x)
  A_k, B_k     "a", "b"                adapter that client k trains from its own new draw of A, B = 0
  p_k          weights="samples"       client k's share of the cohort's examples
  A, B         `sum_products`          stacks of p_k A_k and of B_k, whose product is sum_k p_k A_k B_k
  W            task.frozen             never changes here: W + s net.params["correction"] is the paper's

Entries that are trained beside the adapter, such as the classifier, go on as in FedAvg.

Unseen clients use the server's model, whose adapter has B = 0.

Departures: clients get the sum of what was merged so far, dense, [in, out] for each kernel, since
they may have missed rounds; with all clients in every round the paper's get the round's stack alone,
sum_k r_k (in + out) numbers. All clients have the scale of the network's rank.
"""

from typing import Any

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import adapters, aggregators, local_training
from fedjax_core.training.client_ranks import truncate_to_client
from fedjax_core.training.param_partition import drop_entry, put_entry
from methods.fedavg import fedavg


def flora(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 32,
    weights: str = "samples",
) -> Algorithm:
    """Builds FLoRA (Algorithm 1).

    Args:
      task: network with LoRA, and population.
      optimizer: local optimizer, whose state starts anew every round.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps nothing and sends its adapter.

    Raises:
      ValueError: an argument is out of range, or the network has no adapter, or a bottleneck.
    """
    adapters.check_has_adapter(task, "flora", is_linear=True)
    base = adapters.start_correction(fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights))
    weight_fn, loss = aggregators.make_weight_fn(weights), local_training.supervised_loss(task)
    trainable = adapters.is_not_correction
    train = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch, trainable=trainable)

    def drop_adapter(net: Net) -> Net:
        return drop_entry(net, adapters.ENTRY)

    def client_update(sent, client, data, key):
        fresh = truncate_to_client({adapters.ENTRY: task.model.init(key).params[adapters.ENTRY]}, data)
        trained = train(sent._replace(params=sent.params | fresh), data, key)
        rest = [drop_entry(drop_adapter(net), adapters.CORRECTION) for net in (trained.net, sent)]
        uplink = {adapters.ENTRY: trained.net.params[adapters.ENTRY]}, optax.tree.sub(*rest)
        return ClientOutput(client, uplink, trained.sums, local=(trained.net, client), wire=(drop_adapter(sent), uplink))

    def server_update(server, collected, cohort, key):
        stacked, delta = collected
        w = weight_fn(cohort)
        merged = adapters.sum_products(stacked[adapters.ENTRY], w / jnp.maximum(jnp.sum(w), aggregators.TINY))
        step = put_entry(delta, adapters.CORRECTION, merged)
        rest: Any = optax.apply_updates(drop_adapter(server.net), step)
        return server._replace(net=rest._replace(params=server.net.params | rest.params)), {}

    return base._replace(client_update=client_update, server_update=server_update, collect=(aggregators.stack, base.collect))
