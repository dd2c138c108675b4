"""FedPFT and FedPFT+Con: personal prompts transform a client's features for the shared classifier.

In plain words: A shared classifier does not fit every client's features. Each client keeps prompts
with which a shared attention layer transforms its features to fit. Prompt-driven Feature
Transformation, by Wu et al.; other methods have the same short name.
Sent to clients: model, transformation.

Wu, Niu, Liu, Shi, Zhu, Tang. Tackling Feature-Classifier Mismatch in Federated Learning via
Prompt-Driven Feature Transformation. 2024, https://arxiv.org/abs/2407.16139, and its later version
with FedPFT+Con as an option (ICLR). Equations have the later version's numbers, the settings of the
ablation those of arXiv.

  paper          here                     meaning
  phi            "extractor"              feature extractor, shared
  h_kappa        "head"                   classifier, shared
  tau            "transform"              feature transformation: one self-attention layer, shared
  p_kappa        "prompts"                n_kappa prompts for classification, personal
  p_rho          "contrast_prompts"       n_rho prompts for the contrast, personal
  h_rho          "projection"             linear head of the contrast, shared
  R_f, R_a       transform_epochs,        local epochs of the two phases
                 model_epochs
  f, f'          outputs "extractor",     features before and after the transformation, [B, D]
                 "features"
  L_Con          contrast                 MoCo's loss: queue, momentum copies of phi and h_rho (Eq. 7)

The phases and what they train; two losses in one step reach their own leaves only (stop-gradients):

                        phase 1, R_f epochs                      phase 2, R_a epochs
  FedPFT                CE -> tau, p_kappa           (Eq. 4)     CE -> phi, tau, h_kappa            (Eq. 5)
  FedPFT+Con            CE -> tau, p_kappa           (Eq. 8)     CE -> phi, tau, h_kappa            (Eq. 9)
                        L_Con -> phi, tau, h_rho                 L_Con -> p_rho, tau
  alternate=False       one phase of R_f + R_a epochs, both losses -> all their leaves

Settings of the ablation: II alternate=False; III the default; IV contrast.prompts=0; V contrast; VI
alternate=False, prompts=0 and contrast.prompts=0; VII alternate=False and contrast.prompts=0; VIII
alternate=False (I is FedAvg). Two stages: VIII with contrast.first rounds of L_Con alone, then CE
alone.

Unseen clients start prompts of their own, after local training.

Departures, and what the papers leave open: tau has 4 D^2 weights and no bias, as in their parameter
counts, one head, and a residual path, f' = f + attention, as usual in transformers. The papers' Eq.
2 and counts fit both; without the residual (residual=False) their Table 8 is not reached by far
(configs/results/fedpft.md). Only tau's first output is computed, since no other is used. tau is
initialized as in PyTorch. Prompts start at N(0, prompt_scale^2), drawn by each client, as PyTorch's
randn: without the residual path and at 0.02, much shorter than the features, the attention soon
settles on f alone and prompts stop learning. Eq. 3 prints a second logarithm. CE sees images
without augmentation. In phase 1 of FedPFT phi is frozen and in evaluation mode, so its features are
computed once (statistics="train" is the other reading). Momentum copies, their batch statistics and
the queue stay with the client between rounds; keys use the current tau (or a copy, with
contrast.momentum_transform). Padding of a short batch never enters the queue.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core import registry
from fedjax_core.algorithm import Algorithm, Array, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Fraction, Positive, check_arguments
from fedjax_core.task import Task, feature_size
from fedjax_core.training import aggregators, local_training, losses
from fedjax_core.training.augment import pipeline
from fedjax_core.training.param_partition import drop_entry

MOCO = "resized_crop(scale=(0.2, 1.0)) | greyscale(probability=0.2) | colour_jitter | flip"
_PHASE_2, _PROMPTS, _QUEUE, _VIEWS = 2, 0x70, 0x71, 0x76  # streams of keys


class Shared(NamedTuple):
    """The averaged parameters: the server's state, and as deltas the uplink.

    Attributes:
      net: extractor and classifier, with batch statistics; the classifier is None in uplinks if it
        is personal.
      transform: tau, {"query", "key", "value", "output"}: [D, D] each.
      projection: h_rho, {"kernel": [D, P], "bias": [P]}; () without a contrast.
    """

    net: Net
    transform: PyTree
    projection: PyTree


class Moco(NamedTuple):
    """Client state of the contrast.

    Attributes:
      prompts: p_rho, [n_rho, D]; () while they are trained among the parameters.
      extractor: the momentum copy of phi.
      projection: that of h_rho.
      transform: that of tau; () if the keys use tau itself.
      queue: [L, P] keys of unit length.
      place: [] where the next one goes.
    """

    prompts: PyTree
    extractor: Net
    projection: PyTree
    transform: PyTree
    queue: Array
    place: Array


class Personal(NamedTuple):
    """Client state.

    Attributes:
      prompts: p_kappa, [n_kappa, D].
      contrast: Moco, or () without a contrast.
      head: the classifier, if it is personal, else ().
    """

    prompts: Array
    contrast: PyTree
    head: PyTree


class Contrast(NamedTuple):
    """Options of L_Con.

    Attributes:
      on: whether there is one.
      prompts: n_rho.
      queue: L, keys that a client keeps.
      size: P, of the projection.
      momentum: of the copies.
      temperature: of the loss.
      augment: the two views, see `pipeline.py`; "": the examples as they are.
      momentum_transform: whether the keys use a momentum copy of tau.
      first: number of rounds of L_Con alone, before CE alone; 0: both losses in all rounds.
        Weight decay of the optimizer, if any, also shrinks the parameters of the loss that is off.
    """

    on: bool = False
    prompts: AtLeastZero = 20
    queue: AtLeastOne = 4096
    size: AtLeastOne = 128
    momentum: Fraction = 0.999
    temperature: Positive = 0.07
    augment: str = MOCO
    momentum_transform: bool = False
    first: AtLeastZero = 0


def attend(tau: PyTree, f: Array, prompts: Array, heads: int = 1, residual: bool = True) -> tuple[Array, Array]:
    """Returns f' of [f', p'] = tau([f, p]) (Eq. 2), and its attention weights on [f, p].

    Args:
      tau: four [D, D] matrices.
      f: [B, D].
      prompts: [n, D], the same for all rows; n may be 0.
      heads: of the attention; they divide D.
      residual: whether f is added to the result, as in layers of transformers.

    Returns:
      [B, D] and, the mean over heads, [B, 1 + n].
    """
    b, d = f.shape
    part = lambda x: x.reshape(len(x), heads, d // heads)
    query, key, value = (part(f @ tau[name]) for name in ("query", "key", "value"))
    p_key, p_value = (part(prompts @ tau[name]) for name in ("key", "value"))
    self_score = jnp.sum(query * key, -1, keepdims=True)  # [B, heads, 1]
    scores = jnp.concatenate([self_score, jnp.einsum("bhe,nhe->bhn", query, p_key)], -1) / (d // heads) ** 0.5
    weights = jax.nn.softmax(scores, -1)
    mixed = weights[..., :1] * value + jnp.einsum("bhn,nhe->bhe", weights[..., 1:], p_value)
    out = mixed.reshape(b, d) @ tau["output"]
    return (f + out if residual else out), jnp.mean(weights, 1)


def init_transform(key: Array, d: int) -> PyTree:
    """Initializes tau like PyTorch: the three input matrices Glorot-uniform together, the output uniform."""
    input_key, output_key = jax.random.split(key)
    inputs = jax.random.uniform(input_key, (d, 3 * d), minval=-1) * (6 / (4 * d)) ** 0.5
    query, key, value = jnp.split(inputs, 3, 1)
    return {"query": query, "key": key, "value": value, "output": jax.random.uniform(output_key, (d, d), minval=-1) / d**0.5}


def info_nce(query: Array, key: Array, queue: Array, mask: Array, temperature: float) -> Array:
    """Returns MoCo's loss of unit queries [B, P] and keys [B, P] against a queue [L, P], as a mean over `mask`."""
    positive = jnp.sum(query * key, 1, keepdims=True)
    logits = jnp.concatenate([positive, query @ queue.T], 1) / temperature
    return losses.cross_entropy(logits, jnp.zeros(len(query), jnp.int32), mask)


def enqueue(queue: Array, place: Array, keys: Array, mask: Array) -> tuple[Array, Array]:
    """Returns the queue [L, P] with its oldest keys replaced by those in `mask` [B], and the next index."""
    at = (place + jnp.cumsum(mask) - 1) % len(queue)
    queue = queue.at[jnp.where(mask, at, len(queue))].set(keys, mode="drop")
    return queue, (place + jnp.sum(mask)) % len(queue)


def project(h_rho: PyTree, f: Array) -> Array:
    """Returns the projections [B, P], of unit length, of features [B, D]."""
    return losses.normalize(f @ h_rho["kernel"] + h_rho["bias"][None])


def fedpft(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    prompts: AtLeastZero = 10,
    prompt_scale: Positive = 1.0,
    transform_epochs: AtLeastZero = 4,
    model_epochs: AtLeastZero = 1,
    batch: AtLeastOne = 100,
    transform_rate: Positive = 0.5,
    alternate: bool = True,
    classifier: Literal["shared", "personal"] = "shared",
    statistics: Literal["evaluate", "train"] = "evaluate",
    heads: AtLeastOne = 1,
    residual: bool = True,
    weights: str = "samples",
    contrast: Mapping[str, Any] | None = None,
) -> Algorithm:
    """Builds FedPFT (Algorithm 1), with `contrast` {"on": True} FedPFT+Con.

    Args:
      optimizer: local optimizer, whose state starts anew in each phase.
      prompts: n_kappa; 0: none.
      prompt_scale: standard deviation of the numbers in p_kappa and p_rho at first.
      transform_epochs: R_f.
      model_epochs: R_a.
      batch: B.
      transform_rate: learning rate of tau, as a multiple of the optimizer's: 0.05 / 0.1, with the
        contrast 0.01 / 0.1.
      alternate: whether there are two phases.
      classifier: "shared" or "personal".
      statistics: batch normalization of phi in phase 1 without a contrast: "evaluate" or "train".
      heads: of the attention.
      residual: whether f is added to f'.
      weights: "samples" or "uniform".
      contrast: options of L_Con that differ from `Contrast`'s; None in place of a value leaves it.

    Returns:
      The algorithm; a client keeps its prompts, and with the contrast its momentum copies and
      queue.
    """
    con = registry.replace_options("contrast", Contrast(), contrast)
    if con.augment:
        pipeline.parse(con.augment)  # checked also without a contrast
    check_arguments(fedpft, classifier=classifier, statistics=statistics, transform_rate=transform_rate, heads=heads)
    check_arguments(fedpft, prompts=prompts, prompt_scale=prompt_scale)
    check_arguments(fedpft, transform_epochs=transform_epochs, model_epochs=model_epochs)
    if con.on and con.queue < batch:
        raise ValueError(f"contrast.queue={con.queue} must be at least batch={batch}")
    model, own_head = task.model, classifier == "personal"
    d = feature_size(model)
    if d % heads:
        raise ValueError(f"heads={heads} must divide the {d} features of the network")
    views = pipeline.with_augmentation(model, con.augment) if con.on and con.augment else model
    mean = aggregators.mean(aggregators.make_weight_fn(weights))

    is_tau = lambda params: {name: name == "transform" for name in params}
    scaled_optimizer = optax.chain(optimizer(task.round_num), optax.masked(optax.scale(transform_rate), is_tau))

    def sent_part(shared):
        """Returns `shared` without a personal classifier, which is not sent."""
        return shared._replace(net=Net(shared.net.params | {"head": None}, shared.net.stats)) if own_head else shared

    def join_net(sent, client):
        """Joins all parts into one network for `fit`, with the untrained parts as statistics."""
        head = client.head if own_head else sent.net.params["head"]
        params = {
            "extractor": drop_entry(sent.net, "head").params,
            "head": head,
            "transform": sent.transform,
            "prompts": client.prompts,
        }
        stats = {"extractor": sent.net.stats}
        if con.on:
            params |= {"projection": sent.projection, "contrast_prompts": client.contrast.prompts}
            stats["moco"] = client.contrast._replace(prompts=())
        return Net(params, stats)

    def split_net(net, sent, client):
        """Inverts `join_net`: returns (Shared, Personal)."""
        p, state = net.params, client
        head = sent.net.params["head"] if own_head else p["head"]
        if con.on:
            state = state._replace(contrast=net.stats["moco"]._replace(prompts=p["contrast_prompts"]))
        state = state._replace(prompts=p["prompts"], head=p["head"] if own_head else ())
        return Shared(Net(p["extractor"] | {"head": head}, net.stats["extractor"]), p["transform"], p.get("projection", ())), state

    def classify(p, f):
        return model.head(Net({"head": p["head"]}), attend(p["transform"], f, p["prompts"], heads, residual)[0])

    def ce(p, stats, batch, key):
        f, stats = model.features(Net(p["extractor"], stats), batch.x, key, train=True, mask=batch.mask)
        logits = classify(p, f)
        return local_training.label_loss(task)(logits, batch.y, batch.mask), logits, stats

    def l_con(p, stats, moco, batch, key):
        query_rng, key_rng = jax.random.split(jax.random.fold_in(key, _VIEWS))
        f, stats = views.features(Net(p["extractor"], stats), batch.x, query_rng, train=True, mask=batch.mask)
        query = project(p["projection"], attend(p["transform"], f, p["contrast_prompts"], heads, residual)[0])
        follow = lambda old, new: jax.tree.map(lambda o, n: con.momentum * o + (1 - con.momentum) * n, old, new)
        now = jax.lax.stop_gradient(p)
        copy, h_rho = follow(moco.extractor.params, now["extractor"]), follow(moco.projection, now["projection"])
        tau = follow(moco.transform, now["transform"]) if con.momentum_transform else now["transform"]
        f, copy_stats = views.features(Net(copy, moco.extractor.stats), batch.x, key_rng, train=True, mask=batch.mask)
        momentum_key = project(h_rho, attend(tau, f, now["contrast_prompts"], heads, residual)[0])
        value = info_nce(query, momentum_key, moco.queue, batch.mask, con.temperature)
        queue, place = enqueue(moco.queue, moco.place, momentum_key, batch.mask)
        return value, stats, Moco((), Net(copy, copy_stats), h_rho, tau if con.momentum_transform else (), queue, place)

    def loss(ce_leaves, con_leaves):
        """Returns CE + L_Con, each with gradients to its own leaves only."""
        ce_weight, con_weight = 1.0, 1.0
        if con.first:  # rounds of L_Con alone, then CE alone
            con_weight = jnp.asarray(task.round_num < con.first, jnp.float32)
            ce_weight = 1 - con_weight

        def loss_and_aux(net, batch, key):
            def only(leaves):
                return {name: p if name in leaves else jax.lax.stop_gradient(p) for name, p in net.params.items()}

            value, logits, stats = ce(only(ce_leaves), net.stats["extractor"], batch, key)
            sums, carried = local_training.loss_metrics(value, logits, batch), {"extractor": stats}
            value = ce_weight * value
            if con.on:
                con_value, stats, moco = l_con(only(con_leaves), stats, net.stats["moco"], batch, key)
                value = value + con_weight * con_value
                rows = jnp.sum(batch.mask, dtype=value.dtype)
                sums["contrast"] = (con_value * rows, rows)
                carried = {"extractor": stats, "moco": moco}
            return value, local_training.Aux(carried, sums)

        return loss_and_aux

    def phase(ce_leaves, con_leaves, epochs):
        leaves = {*ce_leaves, *(con_leaves if con.on else ())}
        return local_training.fit(
            loss(ce_leaves, con_leaves),
            scaled_optimizer,
            epochs=epochs,
            batch=batch,
            trainable=lambda path: path[0].key in leaves,
        )

    def train_transform(net, data, key):
        """Runs phase 1 of FedPFT on features of the frozen extractor, computed once (Eq. 4)."""
        frozen = Net(net.params["extractor"], net.stats["extractor"])
        features = local_training.map_examples(lambda b: model.features(frozen, b.x, mask=b.mask)[0], data, batch=batch)

        def transform_loss(net, batch, key):
            logits = classify(net.params, batch.extra)
            value = local_training.label_loss(task)(logits, batch.y, batch.mask)
            return value, local_training.Aux(net.stats, local_training.loss_metrics(value, logits, batch))

        chosen = local_training.entries_filter("transform", "prompts")
        fit = local_training.fit(transform_loss, scaled_optimizer, epochs=transform_epochs, batch=batch, trainable=chosen)
        return fit(net, data, key, features)

    def train(net, data, key):
        model_leaves = ("extractor", "transform", "head")
        if not alternate:
            everything = (*model_leaves, "prompts"), ("extractor", "transform", "projection", "contrast_prompts")
            return phase(*everything, transform_epochs + model_epochs)(net, data, key)
        aligned = local_training.FitResult(net, (), None)
        if transform_epochs and not con.on and statistics == "evaluate":
            aligned = train_transform(net, data, key)
        elif transform_epochs:
            first = phase(("transform", "prompts"), ("extractor", "transform", "projection"), transform_epochs)  # Eq. 4, 8
            aligned = first(net, data, key)
        if transform_epochs and not model_epochs:
            return aligned
        second = phase(model_leaves, ("contrast_prompts", "transform"), model_epochs)  # Eq. 5, 9
        trained = second(aligned.net, data, jax.random.fold_in(key, _PHASE_2))
        return trained if aligned.sums is None else trained._replace(sums=optax.tree.add(aligned.sums, trained.sums))

    def client_update(sent, client, data, key):
        trained = train(join_net(sent, client), data, key)
        shared, client = split_net(trained.net, sent, client)
        received = sent_part(sent)
        delta = optax.tree.sub(sent_part(shared), received)
        return ClientOutput(client, delta, trained.sums, local=(shared, client), wire=(received, delta))

    def server_init(key):
        net, (transform_rng, projection_rng) = model.init(key), jax.random.split(jax.random.fold_in(key, 1))
        projection = ()
        if con.on:
            kernel_rng, bias_rng = jax.random.split(projection_rng)
            draw = lambda rng, shape: jax.random.uniform(rng, shape, minval=-1) / d**0.5
            projection = {"kernel": draw(kernel_rng, (d, con.size)), "bias": draw(bias_rng, (con.size,))}
        return Shared(net, init_transform(transform_rng, d), projection)

    def client_init(key, server, client_id):
        client_key = jax.random.fold_in(jax.random.fold_in(key, _PROMPTS), client_id)
        p_kappa, p_rho = (
            prompt_scale * jax.random.normal(jax.random.fold_in(client_key, i), (n, d))
            for i, n in enumerate((prompts, con.prompts))
        )
        moco = ()
        if con.on:
            queue = losses.normalize(jax.random.normal(jax.random.fold_in(client_key, _QUEUE), (con.queue, con.size)))
            copy = drop_entry(server.net, "head")
            tau = server.transform if con.momentum_transform else ()
            moco = Moco(p_rho, copy, server.projection, tau, queue, jnp.zeros((), jnp.int32))
        return Personal(p_kappa, moco, server.net.params["head"] if own_head else ())

    def server_update(server, delta, cohort, key):
        moved = optax.tree.add(sent_part(server), delta)
        head = server.net.params["head"] if own_head else moved.net.params["head"]
        return moved._replace(net=Net(moved.net.params | {"head": head}, moved.net.stats)), {}

    def personal(sent, client, x):
        net = join_net(sent, client)
        f, _ = model.features(Net(net.params["extractor"], net.stats["extractor"]), x)
        f_k, attention = attend(sent.transform, f, client.prompts, heads, residual)
        logits = model.head(Net({"head": net.params["head"]}), f_k)
        out = {"logits": logits, "features": f_k, "extractor": f, "attention": attention}
        if con.on:
            out["contrast"], out["contrast_attention"] = attend(sent.transform, f, client.contrast.prompts, heads, residual)
        return out

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=mean,
        predict={"personal": personal},
        client_init=client_init,
    )
