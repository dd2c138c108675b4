"""HeteroFL: clients of different widths train parts of one network.

In plain words: The server has a wide network. A weak client gets a narrower one, the first channels
of each layer, and trains, sends and computes less. The server averages each weight over the clients
that have it.
Sent to clients: their part of the model.

Diao, Ding, Tarokh. HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients. ICLR 2021. https://arxiv.org/abs/2010.01264

  paper    here                    meaning
  W_g      server                  the wide network, the widest of `config.models`
  W_l^p    sent.net                its part for clients of width p (`width_windows.py`)
  r        layer's own / widest    ratio of channels
  scaler   scaler                  in training, outputs of hidden layers are divided by r
  masked   masked                  logits of classes that a client lacks are 0 in its loss; its rows
                                   of the head for these do not count in the mean

Widths are networks of a config: models=("mlp(widths=(64,))", "mlp(widths=(32,))"), which clients take
in turn; one that is named twice has twice as many clients. Clients of one width run one program of
that width, so that its time, memory and bytes fall with it; simulated seconds of training do not.
An entry becomes the mean over the clients that hold it, and stays if none does. The predictor
"global" is the wide network, "personal" the client's part, with its scaler.

A layer's step moves its output by 1 / r^2 of what it would without the scaler, and only group
normalization takes that back (with it the scaler changes nothing): without, clip gradients at norm
1, as the authors do.

Unseen clients take widths in turn too, and use their part of the server's model.

Departures: static batch normalization is not there; networks with batch statistics are refused. A
client keeps its width (split="fix"). The scaler divides the outputs of layers with a kernel by
their own ratios, after rounding, and also in the predictor "personal": without batch normalization
the part is another function without it.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import TARGETS, Algorithm, ClientOutput, Net, PyTree, Reduce
from fedjax_core.option_types import AtLeastOne, AtLeastZero, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training
from fedjax_core.training.width_windows import find_widest, find_windows, put_windows, take_windows


class Sent(NamedTuple):
    """The broadcast to a client.

    Attributes:
      net: the client's part.
      whole: the wide network, for scores; not sent.
    """

    net: Net
    whole: Net


def heterofl(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    window: Annotated[str, one_of("static", "rolling")] = "static",
    scaler: bool = True,
    masked: bool = True,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "uniform",
) -> Algorithm:
    """Builds HeteroFL, or FedRolex.

    Args:
      task: network and population; groups may differ in width.
      optimizer: local optimizer, whose state starts anew every round.
      window: "static", the first channels; "rolling", those from the round's number on (FedRolex).
      scaler: whether outputs of hidden layers are divided by their ratios.
      masked: whether absent classes are masked; needs classes.
      epochs: local epochs.
      batch: B.
      weights: of the clients that hold an entry, "uniform" or "samples".

    Returns:
      The algorithm; with one width and masked=False it is FedAvg.

    Raises:
      ValueError: a network is no part of the widest one, has batch statistics, is frozen in part, or
        does not declare `flattened`.
    """
    check_arguments(heterofl, window=window, scaler=scaler, masked=masked)
    name = "heterofl" if window == "static" else "fedrolex"
    widest, model, label_loss = find_widest(task, name), task.model, local_training.label_loss(task)
    windows = [find_windows(widest, peers, name) for peers in task.peers]
    own, weight_fn = windows[task.group], aggregators.make_weight_fn(weights)
    ratios = find_ratios(widest.shapes.params, task.peers[task.group].shapes.params)
    start = task.round_num if window == "rolling" else 0

    def scale(net: Net) -> Net:
        """Returns the network whose hidden layers' outputs are divided by their ratios."""
        divide = lambda p, r: p if r == 1 or not scaler else p / r
        return net._replace(params=jax.tree.map(divide, net.params, ratios))

    def client_update(sent, client, data, key):
        present = jnp.ones(task.classes, bool)
        if masked:
            present = local_training.class_counts(data, classes=task.classes, batch=batch) > 0

        def loss(net, batch, key):
            outputs, stats = model.apply(scale(net), batch.x, key, train=True, mask=batch.mask)
            logits = outputs["logits"]
            value = label_loss(jnp.where(present[None], logits, 0) if masked else logits, batch.y, batch.mask)
            plain = label_loss(logits, batch.y, batch.mask) if masked else value
            return value, local_training.Aux(stats, local_training.loss_metrics(plain, logits, batch))

        loss = loss if masked or scaler else local_training.supervised_loss(task)
        net, _, sums = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)(sent.net, data, key)
        delta = optax.tree.sub(net, sent.net).params
        wire = sent.net, (delta, present) if masked else delta
        return ClientOutput(client, (delta, present), sums, local=(Sent(net, sent.whole), client), wire=wire)

    def mask_head(params: PyTree, present: jax.Array) -> PyTree:
        """Returns parameters whose head is 0 for absent classes, its last axis."""
        if not masked:
            return params
        return params | {"head": jax.tree.map(lambda p: p * jnp.broadcast_to(present, p.shape), params["head"])}

    def map_part(part, client):
        delta, present = part
        w, group = weight_fn(client), jax.nn.one_hot(task.group, len(windows))
        weighted = aggregators.multiply_by_weight(mask_head(delta, present), w)
        return put_windows(own, weighted, start), w * group, w * group[:, None] * present[None]

    def finalize(total):
        deltas, w, by_class = total
        held = optax.tree.zeros_like(deltas)
        for g, of_group in enumerate(windows):
            ones = jax.tree.map(lambda s, g=g: jnp.full(s.shape, w[g], s.dtype), task.peers[g].shapes.params)
            if masked:
                head = jax.tree.map(lambda p, g=g: jnp.broadcast_to(by_class[g], p.shape).astype(p.dtype), ones["head"])
                ones = ones | {"head": head}
            held = optax.tree.add(held, put_windows(of_group, ones, start))
        return jax.tree.map(lambda d, h: (d / jnp.maximum(h, aggregators.TINY)).astype(d.dtype), deltas, held)

    def server_update(server, delta, cohort, key):
        return server._replace(params=optax.apply_updates(server.params, delta)), {}

    return Algorithm(
        widest.model.init,
        client_update,
        server_update,
        collect=Reduce(map_part, "add", finalize),
        predict={
            "global": lambda sent, client, x: widest.model.apply(sent.whole, x)[0],
            "personal": lambda sent, client, x: model.apply(scale(sent.net), x)[0],
        },
        broadcast=lambda server, client_id: Sent(server._replace(params=take_windows(own, server.params, start)), server),
        targets=("classes",) if masked else tuple(TARGETS),
    )


def find_ratios(whole: PyTree, part: PyTree) -> PyTree:
    """Returns the ratio of the output channels for each array of a layer with a kernel, but the head.

    Args:
      whole: shapes of the wide network's parameters, dicts of dicts.
      part: of the narrow one's.
    """
    if not isinstance(whole, dict):
        return 1.0
    if "kernel" in whole:
        return dict.fromkeys(whole, part["kernel"].shape[-1] / whole["kernel"].shape[-1])
    of_head = jax.tree.map(lambda _: 1.0, whole.get("head", {}))
    return {name: of_head if name == "head" else find_ratios(entry, part[name]) for name, entry in whole.items()}
