"""FedDF: the server averages the clients' models, and teaches the average what all of them say of unlabelled examples.

In plain words: As in FedAvg. Then the server trains the mean model on public examples, to answer as
the clients' models do on average.
Sent to clients: model.

Lin, Kong, Stich, Jaggi. Ensemble Distillation for Robust Model Fusion in Federated Learning.
NeurIPS 2020. https://arxiv.org/abs/2006.07242

  paper       here                  meaning
  x_t         server.nets           server's model, one for each architecture
  x^_k        w_k                   client k's model after local training
  x_t,0       average               their mean, in which the distillation begins
  d           minibatch             of unlabelled examples, `task.public`
  AVGLOGITS   student_loss          a step on KL(softmax(mean over k of f(x^_k, d)) || softmax(f(x, d)))
  N           server_epochs         steps of it, here passes over the public set
  n_k         weights="samples"     of the mean of models; that of logits is uniform

With several architectures (Algorithm 3) there is one mean for each, over its clients, and the logits
are those of all clients. An architecture of which no client came is taught from where it was. The
predictor is then "personal", the server's model of a client's architecture.

Unseen clients use the server's model, that of their architecture.

Departures: a fixed number of epochs; the authors stop where a labelled validation set says so, and
keep the best model. They clip gradients at norm 5 and average models uniformly. Logits of the
clients' models are computed once for each public example, without augmentation; with config.augment
the student sees augmented ones. Like all networks with a public set, these have outputs for its
classes, which no client's examples have.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, ClientData, ClientOutput, Examples, Net, Reduce
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Positive, check_arguments
from fedjax_core.task import Task, require_class_logits
from fedjax_core.training import aggregators, local_training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      nets: its model of each architecture.
    """

    nets: tuple[Net, ...]


def feddf(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
    server_epochs: AtLeastZero = 20,
    server_batch: AtLeastOne = 128,
    server_lr: Positive = 1e-3,
    temperature: Positive = 1.0,
) -> Algorithm:
    """Builds FedDF (Algorithm 1; with several architectures Algorithm 3).

    Args:
      task: network, population and public examples; groups may differ in architecture.
      optimizer: local optimizer, whose state starts anew every round.
      epochs: local epochs.
      batch: B.
      weights: of models in a mean, "samples" or "uniform".
      server_epochs: passes over the public examples in a round; 0: FedAvg.
      server_batch: of public examples.
      server_lr: of Adam, which falls to 0 like a cosine within a round.
      temperature: of both softmaxes.

    Returns:
      The algorithm; a client keeps nothing and sends its model's delta.

    Raises:
      ValueError: there are no public examples, logits are of episodes, several architectures are
        frozen in part, or an argument is out of range.
    """
    check_arguments(feddf, server_epochs=server_epochs, server_batch=server_batch, server_lr=server_lr, temperature=temperature)
    if not jax.tree.leaves(task.public):
        raise ValueError("task.public=(): feddf needs public examples; name a set by config.public, such as public='svhn'")
    require_class_logits(task, "feddf")
    if len(task.peers) > 1 and task.frozen != ():
        raise ValueError("feddf: several architectures need weights=None, train='all' and no adapter")
    model, x = task.model, task.public[0]
    models = [model if g == task.group else peers.model for g, peers in enumerate(task.peers)]
    train = local_training.fit(local_training.supervised_loss(task), optimizer(task.round_num), epochs=epochs, batch=batch)
    rows = jnp.arange(len(jax.tree.leaves(x)[0]), dtype=jnp.int32)
    public = ClientData(Examples(x, rows), rows, jnp.int32(len(rows)))
    of_models, of_logits = (aggregators.mean(aggregators.make_weight_fn(name)) for name in (weights, "uniform"))

    def client_update(sent, client, data, key):
        w_k, _, sums = train(sent, data, key)
        delta = optax.tree.sub(w_k, sent)
        return ClientOutput(client, (delta, w_k), sums, local=(w_k, client), wire=(sent, delta))

    def map_delta(delta, client):
        """Returns a weighted delta and its weight at the client's architecture, zeros at the others."""
        of_none = [optax.tree.zeros_like((peers.shapes, jnp.zeros(()))) for peers in task.peers]
        return tuple(of_models.map(delta, client) if g == task.group else zeros for g, zeros in enumerate(of_none))

    def map_logits(w_k, client):
        """Computes the logits of the public examples at the server, as soon as a client's model is there."""
        logits = lambda minibatch: model.apply(w_k, minibatch.x, mask=minibatch.mask)[0]["logits"]
        return of_logits.map(local_training.map_examples(logits, public, batch=server_batch), client)

    def distil(model, net, delta, taught, key):
        average: Any = optax.apply_updates(net, delta)  # x_t,0
        student_loss = local_training.distillation_loss(model, temperature)  # AVGLOGITS
        adam = local_training.adam(server_lr, anneal="cosine")(task.round_num)
        return local_training.fit(student_loss, adam, epochs=server_epochs, batch=server_batch)(average, taught, key)

    def server_update(server, collected, cohort, key):
        deltas, logits = collected
        is_due = jnp.any(cohort.examples > 0)
        taught = public._replace(arrays=Examples(x, logits), size=jnp.where(is_due, public.size, 0))
        students = [distil(*one, taught, key) for one in zip(models, server.nets, deltas, strict=True)]
        kl = jax.tree.map(lambda *sums: sum(sums), *(student.sums for student in students))
        return Server(tuple(student.net for student in students)), {"distillation": kl}

    return Algorithm(
        server_init=lambda key: Server(tuple(model.init(key) for model in models)),
        client_update=client_update,
        server_update=server_update,
        collect=(
            Reduce(map_delta, "add", lambda totals: tuple(of_models.finalize(total) for total in totals)),
            Reduce(map_logits, "add", of_logits.finalize),
        ),
        predict={"global" if len(models) == 1 else "personal": lambda sent, client, x: model.apply(sent, x)[0]},
        broadcast=lambda server, client_id: server.nets[task.group],
    )
