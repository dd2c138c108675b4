"""FedCP: for each example a gate divides its features between a personal and a global classifier.

In plain words: Two classifiers on one body, one personal and one of all clients. A small network
says for each example and feature how much of it either of them gets.
Sent to clients: model, gate.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedCP: Separating Feature Information for Personalized
Federated Learning via Conditional Policy. KDD 2023. https://arxiv.org/abs/2307.01217

  paper          here            meaning
  W_fe, W_hd     server.net      feature extractor (body) and global head, frozen in local training
  W_hd_i         head_i          client i's personal head, never sent alone; initially the global
  CPN            server.gate     linear D -> 2D, layer norm, ReLU
  v_i            context         sums over classes of the personal head's kernel, as a round begins
  r_i, s_i       policy          shares of the features z, r_i + s_i = 1
  lambda         lam             weight of the distance of z to the received body's features

  r_i, s_i = softmax over pairs of gate(z * v_i / |v_i|)
  L = CE(head_i(r_i * z) + head(s_i * z), y) + lambda MMD(z, z of the received body)

The MMD has radial kernels exp(-|a - b|^2 / 2h) with h of 10, 15, 20 and 50. A client sends its
body, its gate, and (head_i + head) / 2.

Unseen clients start a personal head from the global one, after local training.

Departures: `gumbel` adds Gumbel noise to the gate in training; the authors' code also does so in
evaluation, and its first context is random. Clients that were not in the last round also get the
newest gate and head, in that code only the newest body. The received body computes features in
evaluation mode, of images without augmentation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import PER_ROW, Algorithm, Array, ClientOutput, Net, PyTree
from fedjax_core.nn.projection_head import apply_linear, init_linear
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments
from fedjax_core.task import Task, feature_size
from fedjax_core.training import aggregators, local_training, losses
from fedjax_core.training.param_partition import drop_entry

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)
_GATE = 0x6370  # stream of the gate's initialization, and of its noise


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model.
      gate: parameters of the conditional policy network.
    """

    net: Net
    gate: PyTree


def fedcp(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    lam: NonNegative = 5.0,
    gumbel: bool = True,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedCP (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer of body, personal head and gate, whose state starts anew every
        round.
      lam: lambda.
      gumbel: whether the policy is drawn in training, by Gumbel noise on the gate's outputs.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its head, {"kernel", "bias"} as the network's own.
    """
    check_arguments(fedcp, lam=lam)
    model, label_loss, d = task.model, local_training.label_loss(task), feature_size(task.model)

    def classify(net, head_i, gate, context, z, key=None):
        """Returns the logits of features [B, D]."""
        r, s = policy(gate, z, context, key)
        return model.head(Net({"head": head_i}), r * z) + model.head(net, s * z)

    def client_update(sent, head_i, data, key):
        context = jnp.sum(head_i["kernel"], 1)

        def loss(net, batch, key):
            params = net.params
            w_i = Net(params["body"] | {"head": sent.net.params["head"]}, net.stats)
            z, stats = model.features(w_i, batch.x, key, train=True, mask=batch.mask)
            noise = jax.random.fold_in(key, _GATE) if gumbel else None
            logits = classify(sent.net, params["head_i"], params["gate"], context, z, noise)
            ce = label_loss(logits, batch.y, batch.mask)
            received, _ = model.features(sent.net, batch.x)
            value = ce + lam * squared_mmd(z, received, batch.mask)
            return value, local_training.Aux(stats, local_training.loss_metrics(ce, logits, batch))

        body = drop_entry(sent.net, "head").params
        start = Net({"body": body, "head_i": head_i, "gate": sent.gate}, sent.net.stats)
        train = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)
        (params, stats), _, sums = train(start, data, key)
        head = jax.tree.map(lambda own, shared: (own + shared) / 2, params["head_i"], sent.net.params["head"])
        new = Server(Net(params["body"] | {"head": head}, stats), params["gate"])
        local = new._replace(net=new.net._replace(params=params["body"] | {"head": sent.net.params["head"]}))
        return ClientOutput(params["head_i"], optax.tree.sub(new, sent), sums, local=(local, params["head_i"]))

    def personal(sent, head_i, x):
        z, _ = model.features(sent.net, x)
        return {"logits": classify(sent.net, head_i, sent.gate, jnp.sum(head_i["kernel"], 1), z), "features": z}

    return Algorithm(
        server_init=lambda key: Server(model.init(key), init_gate(jax.random.fold_in(key, _GATE), d)),
        client_update=client_update,
        server_update=lambda server, delta, cohort, key: (optax.apply_updates(server, delta), {}),
        collect=aggregators.mean(aggregators.make_weight_fn(weights)),
        predict={"personal": personal},
        client_init=lambda key, server, client_id: model.init(key).params["head"],
        init_unseen=lambda sent, head_i: sent.net.params["head"],
        targets=PER_ROW,
    )


def init_gate(key: Array, features: int) -> PyTree:
    """Initializes the conditional policy network: 2 D^2 + 6 D numbers."""
    return {"linear": init_linear(key, features, 2 * features), "scale": jnp.ones(2 * features), "bias": jnp.zeros(2 * features)}


def policy(gate: PyTree, z: Array, context: Array, key: Array | None = None) -> tuple[Array, Array]:
    """Returns the shares of features [B, D] of the personal and of the global head; with a key drawn."""
    direction = context / losses.safe_norms(context)
    a = jax.nn.standardize(apply_linear(gate["linear"], z * direction[None]), epsilon=1e-5)
    a = jax.nn.relu(a * gate["scale"][None] + gate["bias"][None]).reshape(len(z), 2, -1)
    if key is not None:
        a = a + jax.random.gumbel(key, a.shape, a.dtype)
    shares = jax.nn.softmax(a, 1)
    return shares[:, 0], shares[:, 1]


def squared_mmd(a: Array, b: Array, mask: Array) -> Array:
    """Returns the squared maximum mean discrepancy [] of features [B, D] over the examples in `mask`."""
    pairs = (mask[:, None] & mask[None]).astype(a.dtype)

    def kernel(p, q):
        square = losses.squared_distances(p, q)
        return sum(jnp.exp(-square / (2 * h)) for h in BANDWIDTHS)

    return jnp.sum(pairs * (kernel(a, a) + kernel(b, b) - 2 * kernel(a, b))) / jnp.maximum(jnp.sum(pairs), 1)
