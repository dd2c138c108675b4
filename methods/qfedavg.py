"""q-FedAvg: clients with a higher loss count more, so that all are served more evenly.

In plain words: FedAvg whose mean gives each client a weight that grows with its loss of the
server's model, by a power q. The server's step shrinks as far as the weights bend the loss.
Sent to clients: model.

Li, Sanjabi, Beirami, Smith. Fair Resource Allocation in Federated Learning. ICLR 2020.
https://arxiv.org/abs/1905.10497

  paper       here        meaning
  w           server.net  server model
  q           q           how much a high loss counts; 0 is FedAvg with uniform weights
  F_k         risk        client k's loss of w, over all its training examples
  L           1 / rate    inverse of the local learning rate
  dw_k        change      (w - w_k) / rate;  here with the other sign
  Delta_k     uplink[0]   F_k^q dw_k
  h_k         uplink[1]   q F_k^(q-1) ||dw_k||^2 + L F_k^q

Unseen clients use the server's model.

Departures: the rate is measured, as how far a constant gradient of 1 moves a number in the
optimizer's first step; with momentum dw_k is no longer a sum of gradients. Clients are drawn
uniformly and not weighted; the paper draws them by their examples. F_k is in evaluation mode, plus
1e-10 as in the released code. A round whose every F_k^q is 0 in float32 ends the run: the server
would stand still. q-FedSGD is not here. Norms are of the weights; batch statistics are averaged
uniformly.
"""

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


def qfedavg(
    task: Task, *, optimizer: local_training.Optimizer, q: NonNegative = 1.0, epochs: AtLeastZero = 1, batch: AtLeastOne = 64
) -> Algorithm:
    """Builds q-FedAvg (Algorithm 2).

    Args:
      task: network and population.
      optimizer: local optimizer, linear in its gradients such as sgd.
      q: power of the losses.
      epochs: local epochs.
      batch: B.

    Returns:
      The algorithm.

    Raises:
      ValueError: q is negative, or the optimizer is not linear.
    """
    check_arguments(qfedavg, q=q)
    local_training.require_linear(optimizer, "q-FedAvg")
    model, mean_loss = task.model, local_training.mean_loss(task, batch)
    loss, chain = local_training.supervised_loss(task), local_training.measure_steps(optimizer(task.round_num))
    mean = aggregators.mean(aggregators.weight_uniformly)

    def client_update(sent, client, data, key):
        risk = mean_loss(sent, data) + 1e-10  # F_k(w)
        net, measured, sums = local_training.fit(loss, chain, epochs=epochs, batch=batch)(sent, data, key)
        rate = jnp.where(measured.unit > 0, measured.unit, 1)
        delta = optax.tree.sub(net, sent)
        change = optax.tree.scale(1 / rate, delta.params)  # -dw_k
        square = optax.tree.norm(change, squared=True)
        h = q * risk ** (q - 1) * square + risk**q / rate
        uplink = delta._replace(params=optax.tree.scale(risk**q, change)), h
        return ClientOutput(client, uplink, sums, local=(net, client))

    def server_update(server, collected, cohort, key):
        step, h = collected
        is_lost = (h < aggregators.TINY) & jnp.any(cohort.examples > 0)  # all F_k^q are 0 in float32
        scale = jnp.where(is_lost, jnp.nan, 1 / jnp.maximum(h, aggregators.TINY))
        params = optax.tree.scale(scale, step.params)  # -sum Delta_k / sum h_k
        return optax.apply_updates(server, step._replace(params=params)), {}

    return Algorithm(
        model.init,
        client_update,
        server_update,
        collect=(mean, mean._replace(payload="number")),  # h_k
        predict={"global": lambda sent, client, x: model.apply(sent, x)[0]},
        targets=tuple(TARGETS),
    )
