"""FedNova: each client's change is divided by how many steps it is worth before the mean is taken.

In plain words: A client with more data takes more local steps and moves further, so that the mean
of the changes favours it twice. FedNova divides each change by the client's effective number of
steps, takes the mean, and then moves on as far as a mean client would.
Sent to clients: model.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization. NeurIPS 2020. https://arxiv.org/abs/2007.07481

  paper       here            meaning
  x           server.net      server model
  p_i         weights         client i's share of the cohort's examples
  tau_i       steps           local steps of client i
  |a_i|_1     moved / unit    its effective steps: how often a gradient counts in its change
  d_i         -direction      its change over its effective steps, times the learning rate
  tau_eff     tau_eff         effective steps of the server: the mean of |a_i|_1, or of tau_i
  mu          mu              weight of a proximal term

Effective steps are measured (`local_training.measure_steps`): beside its network each client trains
one number by the same optimizer with a gradient that is always the same, and how far it moves is
|a_i|_1 learning rates. For SGD that is tau; with momentum rho (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho);
with a proximal term (1 - (1 - eta mu)^tau) / (eta mu). Weight decay counts like mu; the authors' code ignores it.

Unseen clients use the server's model.

Departures: the paper's runs have all clients in each round; here weights are of the participants.
The released code takes tau_eff="mean_steps" with a proximal term, else "mean_a". With both momentum
and a proximal term it mixes the two formulas; a measured number does not. The server's velocity
keeps each round's step with the learning rate of that round, where the paper's is multiplied by the
present one: the two differ where the rate falls over rounds. Batch statistics are averaged as they
are.
"""

from typing import Annotated

import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, BelowOne, NonNegative, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training
from methods.fedavg import Server


def fednova(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    mu: NonNegative = 0.0,
    tau_eff: Annotated[str, one_of("mean_a", "mean_steps")] = "mean_a",
    server_momentum: BelowOne = 0.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedNova.

    Args:
      task: network and population.
      optimizer: local optimizer, linear in its gradients.
      mu: weight of a proximal term; 0: none.
      tau_eff: the server's effective steps, "mean_a" or "mean_steps", in which a step counts as long as
        the optimizer's first that moves: with Nesterov's momentum 1 + momentum times the rate.
      server_momentum: decay of the server's velocity.
      epochs: local epochs.
      batch: B.
      weights: p_i, "samples" or "uniform".

    Returns:
      The algorithm.

    Raises:
      ValueError: an argument is out of range, or the optimizer is not linear.
    """
    check_arguments(fednova, mu=mu, tau_eff=tau_eff, server_momentum=server_momentum)
    local_training.require_linear(optimizer, "FedNova")
    model = task.model
    chain = local_training.measure_steps(optax.chain(local_training.add_proximal_term(mu), optimizer(task.round_num)))
    train = local_training.fit(local_training.supervised_loss(task), chain, epochs=epochs, batch=batch)
    mean = aggregators.mean(aggregators.make_weight_fn(weights))
    momentum = optax.trace(server_momentum) if server_momentum else optax.identity()
    aggregator = aggregators.make_aggregator(review=optax.masked(momentum, Net(True, False)))  # params, not stats

    def server_init(key):
        net = model.init(key)
        return Server(net, aggregator.init(net))

    def client_update(sent, client, data, key):
        net, measured, sums = train(sent, data, key)
        delta = optax.tree.sub(net, sent)
        moved = jnp.where(measured.moved > 0, measured.moved, 1)
        direction = delta._replace(params=optax.tree.scale(1 / moved, delta.params))  # -d_i
        steps = measured.moved if tau_eff == "mean_a" else measured.unit * measured.steps
        return ClientOutput(client, (direction, steps), sums, local=(net, client))

    def server_update(server, collected, cohort, key):
        direction, steps = collected
        delta = direction._replace(params=optax.tree.scale(steps, direction.params))  # -tau_eff sum p_i d_i
        return Server(*aggregator.update(server.net, delta, cohort, server.review)), {}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(mean, mean._replace(payload="number")),  # tau_i
        predict={"global": lambda sent, client, x: model.apply(sent, x)[0]},
        broadcast=lambda server, client_id: server.net,
        targets=tuple(TARGETS),
    )
