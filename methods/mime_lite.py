"""MimeLite: clients step with the state of an optimizer that the server keeps and advances.

In plain words: The server keeps the state of an optimizer, such as its momentum or Adam's moments, and
sends it with the model. Clients take all local steps with that state and do not change it. They send
back the gradient of all their data at the model that they were sent, by which the server advances the
state.
Sent to clients: model, state of the optimizer.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the centralized barrier for
cross-device federated learning. NeurIPS 2021. https://arxiv.org/abs/2008.03606

  paper        here              meaning
  x            server.net        server model;  y_i: the one that client i trains
  s            server.s          statistics of the base optimizer B = (U, V)
  U, V         base              base optimizer: U(g, s) is a step's direction, V(g, s) the new statistics
  beta         b1                of its momentum;  b1, b2, tau: of Adam
  eta          optimizer         learning rate of local steps
  K            epochs            local epochs

  base         U(g, s)                                              V(g, s)
  "sgd"        g                                                    nothing
  "momentum"   (1 - beta) g + beta m                                m = U(g, s)
  "adam"       m / (sqrt(v) + tau), of corrected moments after g    these m, v, and how many g they are of

Unseen clients use the server's model.

Mime itself is not here: its clients first send their gradients at x, and get the mean of them back
before they train, in the same round, by which each step is corrected. A round here has one exchange.

Departures: "momentum" is short in the first rounds, as printed; PyTorch's and Optax's g + beta m is
1 / (1 - beta) times as long. Moments of "adam" include the step's own gradient and are corrected for
their start, as in google/fedjax. config.optimizer acts on U(g, s): with sgd it is the paper's, its
momentum would be a second one, and weight decay is outside of the base optimizer. The paper's mean is
uniform, google/fedjax's is weights="samples". Gradients at x are of the network in training mode, over
minibatches of B: one more pass over a client's data. Batch statistics are averaged. A round without
participants changes nothing.
"""

from typing import Annotated, NamedTuple

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, BelowOne, Positive, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model x.
      s: the base optimizer's statistics.
    """

    net: Net
    s: PyTree


def mime_lite(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    base: Annotated[str, one_of("sgd", "momentum", "adam")] = "momentum",
    b1: BelowOne = 0.9,
    b2: BelowOne = 0.99,
    tau: Positive = 1e-3,
    server_lr: Positive = 1.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "uniform",
) -> Algorithm:
    """Builds MimeLite (Algorithm 1).

    Args:
      task: network and population.
      optimizer: of the directions that the base optimizer gives; sgd is the paper's.
      base: the base optimizer.
      b1: beta of "momentum", decay of Adam's first moment.
      b2: decay of Adam's second moment.
      tau: added to its root.
      server_lr: factor of the mean change; the paper's is 1.
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples", of models and gradients.

    Returns:
      The algorithm.
    """
    check_arguments(mime_lite, base=base, b1=b1, b2=b2, tau=tau, server_lr=server_lr)
    bases = {"sgd": optax.identity(), "momentum": optax.ema(b1, debias=False), "adam": optax.scale_by_adam(b1, b2, tau)}
    base_optimizer = bases[base]
    model, mean = task.model, aggregators.mean(aggregators.make_weight_fn(weights))
    loss = local_training.supervised_loss(task)
    find_gradient = local_training.full_batch_step(loss, local_training.track_mean_gradient(), batch=batch)

    def server_init(key):
        net = model.init(key)
        return Server(net, base_optimizer.init(net.params))

    def client_update(sent, client, data, key):
        fixed = optax.stateless(lambda g, params: base_optimizer.update(g, sent.s, params)[0])  # U(g, s)
        chain = optax.chain(fixed, optimizer(task.round_num))
        y, _, sums = local_training.fit(loss, chain, epochs=epochs, batch=batch)(sent.net, data, key)
        gradient = find_gradient(sent.net, data, key).optimizer_state.mean  # grad f_i(x)
        uplink = optax.tree.sub(y, sent.net), gradient
        return ClientOutput(client, uplink, sums, local=(sent._replace(net=y), client))

    def server_update(server, collected, cohort, key):
        delta, gradient = collected
        s = base_optimizer.update(gradient, server.s, server.net.params)[1]  # V(g, s)
        params = optax.tree.add_scale(server.net.params, server_lr, delta.params)
        new = Server(Net(params, optax.tree.add(server.net.stats, delta.stats)), s)
        return optax.tree.where(jnp.any(cohort.examples > 0), new, server), {}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(mean, mean),
        predict={"global": lambda sent, client, x: model.apply(sent.net, x)[0]},
        targets=tuple(TARGETS),
    )
