"""Local: every client trains alone, from a common initialization; nothing is sent.

In plain words: Every client trains alone. A method for personal models should be better than this.
Sent to clients: nothing.

The baseline of personalized methods. After T rounds of E epochs, client i's model has trained for T
* E epochs on its own data, with the optimizer's state anew every round.

Unseen clients are not supported, since nothing is shared.

Departures: none; there is no paper.
"""

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Task
from fedjax_core.training import local_training


def local(task: Task, *, optimizer: local_training.Optimizer, epochs: AtLeastZero = 1, batch: AtLeastOne = 64) -> Algorithm:
    """Builds local training.

    Args:
      task: network and population; groups may differ in architecture.
      epochs: local epochs per round.
      batch: B.

    Returns:
      The algorithm; the server's state is empty, a client's is its model.
    """
    model = task.model
    train = local_training.fit(local_training.supervised_loss(task), optimizer(task.round_num), epochs=epochs, batch=batch)

    def client_update(sent, w_i, data, key):
        trained = train(w_i, data, key)
        return ClientOutput(trained.net, (), trained.sums)

    return Algorithm(
        server_init=lambda key: (),
        client_update=client_update,
        server_update=lambda server, collected, cohort, key: (server, {}),
        collect=(),
        predict={"personal": lambda sent, w_i, x: model.apply(w_i, x)[0]},
        client_init=lambda key, server, client_id: model.init(key),
        broadcast=lambda server, client_id: (),
        init_unseen="Local shares nothing that an unseen client could begin from",
        targets=tuple(TARGETS),
    )
