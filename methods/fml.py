"""FML: every client has a personal model and a copy of the server's, the meme, which teach each other.

In plain words: Two models per client learn from its labels and from each other's answers. One stays
with the client; the other, the meme, is sent and averaged.
Sent to clients: model.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu. Federated Mutual Learning. 2020.
https://arxiv.org/abs/2006.16765

  paper          here          meaning
  global model   server.net    average of the memes, as in FedAvg
  meme model     w_k           client k's copy of it, sent after training
  local model    v_k           client k's personal model, never sent
  alpha          alpha         L_local = alpha CE + (1 - alpha) KL(softmax of w_k || softmax of v_k)
  beta           beta          L_meme = beta CE + (1 - beta) KL(softmax of v_k || softmax of w_k)

Both models step on the same minibatches, each by its own loss, in which the other's answers are
constants. With alpha = beta = 1 they are Local's and FedAvg's. Personal models may be of several
architectures; the memes then have the first of them.

Unseen clients start a personal model from the received meme, after local training of both; one of
another architecture starts it from the initial draw.

Departures: the optimizers of both models start anew every round; in the authors' code momentum of
the personal one goes on. Personal models of one architecture start from one draw, that of the meme,
so that with alpha = beta neither teaches the other in the first round; with fresh=True each starts
from its own, as in the authors' code. The mean is uniform, as in that code.
"""

import dataclasses

import jax
import optax

from fedjax_core.algorithm import Algorithm, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Fraction, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import local_training, losses
from methods.ditto import own_init_key
from methods.fedavg import fedavg


def fml(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    alpha: Fraction = 0.5,
    beta: Fraction = 0.5,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "uniform",
    fresh: bool = False,
) -> Algorithm:
    """Builds FML (Algorithm 1).

    Args:
      task: network and population; groups may differ in architecture.
      optimizer: local optimizer of both models, whose states start anew every round.
      alpha: weight of the labels in the personal model's loss; 1: it learns alone.
      beta: of the labels in the meme's; 1: the server's model is FedAvg's.
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".
      fresh: whether each client draws its own initial personal model.

    Returns:
      The algorithm; a client keeps its personal model and sends the meme's delta.

    Raises:
      ValueError: several architectures are frozen in part, an argument is out of range, or the
        optimizer is sharpness-aware.
    """
    check_arguments(fml, alpha=alpha, beta=beta)
    local_training.require_plain(optimizer, "FML", "whose steps train two models by one gradient")
    first, own = task.peers[0], task.peers[task.group]
    if len(task.peers) > 1 and task.frozen != ():
        raise ValueError("fml: several architectures need weights=None, train='all' and no adapter")
    of_memes = task if task.group == 0 else dataclasses.replace(task, network=lambda frozen: first.model)
    model, meme, label_loss = task.model, of_memes.model, local_training.label_loss(task)

    def loss(net, batch, key):
        """Returns L_local + L_meme, of which neither has a gradient for the other's model."""
        nets = {name: Net(net.params[name], net.stats[name]) for name in ("v", "w")}
        of_v, v_stats = model.apply(nets["v"], batch.x, key, train=True, mask=batch.mask)
        of_w, w_stats = meme.apply(nets["w"], batch.x, key, train=True, mask=batch.mask)
        ce_v, _ = local_training.loss_and_metrics(of_v, batch, label_loss)
        ce_w, sums = local_training.loss_and_metrics(of_w, batch, label_loss)
        l_local = alpha * ce_v + (1 - alpha) * losses.distillation(of_v["logits"], of_w["logits"], batch.mask)
        l_meme = beta * ce_w + (1 - beta) * losses.distillation(of_w["logits"], of_v["logits"], batch.mask)
        return l_local + l_meme, local_training.Aux({"v": v_stats, "w": w_stats}, sums)

    each = optax.partition(dict.fromkeys(("v", "w"), optimizer(task.round_num)), {"v": "v", "w": "w"})
    train = local_training.fit(loss, each, epochs=epochs, batch=batch)

    def client_update(w, v_k, data, key):
        if jax.tree.structure(w.stats) != jax.tree.structure(first.shapes.stats):
            raise ValueError(
                "fml: with several architectures statistics='local' cannot be; set statistics to 'average' or 'freeze'"
            )
        both = Net({"v": v_k.params, "w": w.params}, {"v": v_k.stats, "w": w.stats})
        (params, stats), _, sums = train(both, data, key)
        v_k, w_k = (Net(params[name], stats[name]) for name in ("v", "w"))
        return ClientOutput(v_k, optax.tree.sub(w_k, w), sums, local=(w_k, v_k))

    base = fedavg(of_memes, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    return base._replace(
        client_update=client_update,
        predict=base.predict | {"personal": lambda w, v_k, x: model.apply(v_k, x)[0]},
        client_init=lambda key, server, client_id: model.init(own_init_key(key, client_id) if fresh else key),
        init_unseen=lambda w, v_k: w if own.shapes == first.shapes else v_k,
        targets=("classes",),
    )
