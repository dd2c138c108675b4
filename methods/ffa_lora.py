"""FFA-LoRA: half of each adapter is frozen, so that the mean of adapters is the mean of their updates.

In plain words: An adapter is a product of two matrices. The first one is drawn once and never
trained; clients train and send the second one alone, which halves the messages. The mean is exact,
which it is not if both are averaged.
Sent to clients: half of the adapter.

Sun, Li, Li, Ding. Improving LoRA in Privacy-preserving Federated Learning. ICLR 2024.
https://arxiv.org/abs/2403.12313

  paper    here            meaning (`adapters.py` has x A B for the paper's B A x)
  A_0      "a"             frozen, one draw for all clients, from the seed; never sent
  B_i      "b"             trained by client i; zero at first
  mean B   server.net      W_0 + s A_0 mean(B_i) is the mean of the clients' kernels

It is FedIT (methods/fedit.py) without A. Entries that are trained beside the adapter, such as the
classifier, are trained, sent and averaged too.

Unseen clients use the server's model.

Departures: the paper's clients have equally many examples; here the mean is uniform unless
weights="samples". With ranks by client (`config.clients.rank`) the mean is exact for the server's
adapter with the clients' padded changes, not for what the clients had.
"""

import optax

from fedjax_core.algorithm import Algorithm, ClientOutput
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import adapters, local_training
from fedjax_core.training.param_partition import join_params, split_net
from methods.fedavg import fedavg


def ffa_lora(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 2,
    batch: AtLeastOne = 32,
    weights: str = "uniform",
) -> Algorithm:
    """Builds FFA-LoRA.

    Args:
      task: network with an adapter, and population.
      optimizer: local optimizer, whose state starts anew every round; it never sees A.
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".

    Returns:
      The algorithm; a client keeps nothing and sends the delta of all that is trained but A.

    Raises:
      ValueError: an argument is out of range, or the network has no adapter.
    """
    adapters.check_has_adapter(task, "ffa_lora")
    is_trained = lambda path: not adapters.is_a(path)
    loss = local_training.supervised_loss(task)
    train = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch, trainable=is_trained)

    def client_update(sent, client, data, key):
        trained = train(sent, data, key)
        before, after = (split_net(net, adapters.select_a)[0] for net in (sent, trained.net))
        delta = optax.tree.sub(after, before)
        return ClientOutput(client, delta, trained.sums, local=(trained.net, client), wire=(before, delta))

    def server_update(server, delta, cohort, key):
        rest, a = split_net(server.net, adapters.select_a)
        return server._replace(net=join_params(optax.apply_updates(rest, delta), a)), {}

    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    return base._replace(client_update=client_update, server_update=server_update)
