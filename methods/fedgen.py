"""FedGen: the server learns a generator of features from the clients' heads, which then teaches the clients.

In plain words: The server trains a generator of features that the clients' heads classify well.
Clients train on generated features beside their own data.
Sent to clients: body (official), head, generator, label counts.

Zhu, Hong, Zhou. Data-Free Knowledge Distillation for Heterogeneous Federated Learning. ICML 2021.
https://arxiv.org/abs/2105.10056

  paper              here           meaning
  G_w(y, eps)        generator      features of label y: [eps, onehot(y)], linear, batch norm, ReLU, linear
  p^(y)              labels         distribution of the labels drawn for it, [K]
  theta_k = [f; p]   body, head     client k's network; the head gets the generated features
  alpha, beta        alpha, beta    weights of generated examples and of distillation; times decay^round

  client:   CE(x, y) + alpha CE(h(G(y')), y') + beta KL(softmax h(G(y)) || softmax h(f(x))),
            with y' drawn anew in every step
  server:   min over G of teacher + diversity * exp(-mean |eps_a - eps_b|^2 |z_a - z_b|_1),
            with distances as means over entries

  variant      "mixed", for any bodies (the HtFLlib library)   "official", for one architecture
  shared       head; bodies stay with the clients              the whole network
  teacher      CE of the heads' mean logits, by examples       sum over heads of w_ki CE, w by a label's
                                                               examples (E count + 1)
  labels       as often as in the cohort                       uniform over those of the cohort
  alpha, beta  1, 0                                            10, 10, decay 0.98
  generator    100 steps of Adam 0.005                         50 of Adam 0.0003, decay 0.98, weight decay
                                                               0.01; diversity 1
  in a client  batch norm by the generated batch               by running statistics (as for beta in both)

Every number is an argument that overrides the variant's. In the first round no labels are known,
and nothing is generated.

Unseen clients use the server's model; with mixed networks they are not supported, since bodies are
never sent.

Departures: the generator's Adam continues from round to round (the library starts it anew). The
library knows all clients' labels from the start, and never stores the trained generator:
generator_frozen=True reproduces that. "official" has the numbers for MNIST, with the library's sizes
of the generator (theirs: noise 32, hidden 256), and labels of the cohort (theirs: of all clients).
The latent term of the authors' code and its student term, of weight 0, are left out, as is the stop
after 20 local steps. The arrays of w and CE broadcast there, so that a head's w is its mean over the
drawn labels. A client's step generates as many examples as it has real ones, B, and weights
their mean by alpha; the authors' generates generator_batch, 32, and weights it by alpha 32 / B.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core import registry
from fedjax_core.algorithm import Algorithm, Array, ClientOutput, Net, PyTree
from fedjax_core.nn.projection_head import apply_linear, init_linear
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments
from fedjax_core.task import Task, require_common_feature_size
from fedjax_core.training import aggregators, local_training, losses
from fedjax_core.training.param_partition import drop_entry, put_entry

_STREAM = 0x67656E  # key of the generator's initialization and of its noise at clients
MOMENTUM, EPSILON = 0.1, 1e-5  # of its batch normalization


class Recipe(NamedTuple):
    """Options of a variant; see the module's table."""

    alpha: NonNegative = 1.0
    beta: NonNegative = 0.0
    decay: NonNegative = 1.0
    diversity: NonNegative = 0.0
    generator_lr: NonNegative = 0.005
    generator_steps: AtLeastZero = 100
    generator_decay: NonNegative = 1.0
    weight_decay: NonNegative = 0.0


VARIANTS = {"mixed": Recipe(), "official": Recipe(10.0, 10.0, 0.98, 1.0, 3e-4, 50, 0.98, 0.01)}


class Generator(NamedTuple):
    """The arrays of the generator.

    Attributes:
      params: trained.
      stats: [H] running mean and variance of its batch normalization.
    """

    params: PyTree
    stats: PyTree


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      body: a Net without head; `()` where bodies are private.
      head: averaged.
      generator: G.
      moments: its optimizer's.
      labels: [K] how often each label is drawn; all zero before the first round.
    """

    body: PyTree
    head: PyTree
    generator: Generator
    moments: PyTree
    labels: Array


class Sent(NamedTuple):
    """The broadcast."""

    body: PyTree
    head: PyTree
    generator: Generator
    labels: Array


def init_generator(key: Array, classes: int, noise: int, hidden: int, features: int) -> Generator:
    """Initializes G: (noise + K + 1) hidden + 2 hidden + (hidden + 1) D numbers."""
    first, out = jax.random.split(key)
    params = {"hidden": init_linear(first, noise + classes, hidden), "out": init_linear(out, hidden, features)}
    params |= {"scale": jnp.ones(hidden), "bias": jnp.zeros(hidden)}
    return Generator(params, {"mean": jnp.zeros(hidden), "var": jnp.ones(hidden)})


def generate(generator: Generator, noise: Array, y: Array, classes: int, train: bool) -> tuple[Array, PyTree]:
    """Generates features [B, D] of labels [B] from noise [B, n]; returns also the updated statistics."""
    params, stats = generator
    bias = params["hidden"]["bias"]
    h = jnp.concatenate([noise, jax.nn.one_hot(y, classes)], 1) @ params["hidden"]["kernel"]
    mean, var = stats["mean"] - bias, stats["var"]
    if train:  # the bias cancels in normalization; left out, its gradient is exactly zero
        mean, var = jnp.mean(h, 0), jnp.var(h, 0)
        unbiased = var * len(h) / max(len(h) - 1, 1)
        move = lambda old, new: old + MOMENTUM * (jax.lax.stop_gradient(new) - old)
        stats = {"mean": move(stats["mean"], mean + bias), "var": move(stats["var"], unbiased)}
    slope = params["scale"] * jax.lax.rsqrt(var + EPSILON)
    return apply_linear(params["out"], jax.nn.relu((h - mean[None]) * slope[None] + params["bias"][None])), stats


def sample_features(
    generator: Generator, labels: Array, key: Array, shape: tuple[int, int], train: bool
) -> tuple[Array, Array, Array, PyTree]:
    """Samples labels [B] and noise [B, n] of this shape; returns them with features and the updated statistics."""
    drawn, noises = jax.random.split(key)
    y = jax.random.categorical(drawn, jnp.log(labels), shape=shape[:1])
    eps = jax.random.uniform(noises, shape)
    return y, eps, *generate(generator, eps, y, len(labels), train)


def split_head(net: Net) -> tuple[Net, PyTree]:
    """Splits a network into (body, head); `put_entry` is the inverse."""
    return drop_entry(net, "head"), net.params["head"]


def diversity_loss(noise: Array, z: Array) -> Array:
    """Returns the diversity term of noise [B, n] and features [B, D], in (0, 1]; small for diverse features."""
    noises = jnp.mean((noise[:, None] - noise[None]) ** 2, -1)
    return jnp.exp(-jnp.mean(noises * jnp.mean(jnp.abs(z[:, None] - z[None]), -1)))


def fedgen(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    variant: str = "mixed",
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    noise: AtLeastOne = 512,
    hidden: AtLeastOne = 512,
    generator_batch: AtLeastOne = 32,
    generator_frozen: bool = False,
    alpha: float | None = None,
    beta: float | None = None,
    decay: float | None = None,
    diversity: float | None = None,
    generator_lr: float | None = None,
    generator_steps: int | None = None,
    generator_decay: float | None = None,
    weight_decay: float | None = None,
) -> Algorithm:
    """Builds FedGen (Algorithm 1).

    Args:
      task: network and population; in variant "mixed" groups may differ in architecture, but not in
        the number of features.
      variant: "mixed" or "official".
      epochs: local epochs.
      batch: B; a client's step generates as many.
      noise: entries of eps, uniform in [0, 1).
      hidden: width of the generator.
      generator_batch: of its training.
      generator_frozen: True: it is never trained.
      alpha: 0: no generated examples. None, here and below: the variant's.
      beta: 0: no distillation.
      decay: of alpha and beta, by round.
      diversity: weight of the diversity term.
      generator_lr: of Adam.
      generator_steps: by round.
      generator_decay: of generator_lr, by round.
      weight_decay: of the generator, added to its gradient.

    Returns:
      The algorithm. "mixed": a client keeps its body, and sends its head's delta and K numbers;
      else it keeps nothing and sends the network's.

    Raises:
      ValueError: an unknown variant, an argument out of range, epochs by client, or the numbers of features
        differ.
    """
    given = {"alpha": alpha, "beta": beta, "decay": decay, "diversity": diversity, "weight_decay": weight_decay}
    given |= {"generator_lr": generator_lr, "generator_steps": generator_steps, "generator_decay": generator_decay}
    recipe = registry.replace_options("fedgen", VARIANTS[registry.check_choice("variant", variant, VARIANTS)], given)
    check_arguments(fedgen, noise=noise, hidden=hidden, generator_batch=generator_batch, batch=batch)
    if isinstance(epochs, local_training.EpochsByClient):
        raise ValueError("fedgen: its server assumes one number of epochs, so clients cannot have their own, nor stop early")
    model, classes, mixed = task.model, task.classes, variant == "mixed"
    d = require_common_feature_size(task, "fedgen")
    decayed_weight = jnp.float32(recipe.decay) ** task.round_num
    rate = recipe.generator_lr * jnp.float32(recipe.generator_decay) ** task.round_num
    weight_decayed = optax.add_decayed_weights(recipe.weight_decay)
    adam = optax.chain(weight_decayed, optax.scale_by_adam(), optax.scale_by_learning_rate(rate))

    def apply_head(head, z):
        return model.head(Net({"head": head}), z)

    def server_init(key):
        body, head = split_head(model.init(key))
        generator = init_generator(jax.random.fold_in(key, _STREAM), classes, noise, hidden, d)
        return Server(() if mixed else body, head, generator, adam.init(generator.params), jnp.zeros(classes))

    def client_update(sent, own_body, data, key):
        body = own_body if mixed else sent.body
        strength = jnp.where(jnp.any(sent.labels > 0), decayed_weight, 0)

        def loss(net, minibatch, key):
            outputs, stats = model.apply(net, minibatch.x, key, train=True, mask=minibatch.mask)
            value = ce = local_training.label_loss(task)(outputs["logits"], minibatch.y, minibatch.mask)
            first, second = jax.random.split(jax.random.fold_in(key, _STREAM))
            if recipe.alpha:
                y, _, z, _ = sample_features(sent.generator, sent.labels, first, (batch, noise), mixed)
                value += strength * recipe.alpha * losses.cross_entropy(model.head(net, z), y, jnp.ones(batch, bool))
            if recipe.beta:
                eps = jax.random.uniform(second, (batch, noise))[: len(minibatch.y)]
                z, _ = generate(sent.generator, eps, minibatch.y, classes, False)
                value += strength * recipe.beta * losses.distillation(outputs["logits"], model.head(net, z), minibatch.mask)
            return value, local_training.Aux(stats, local_training.loss_metrics(ce, outputs["logits"], minibatch))

        train = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)
        trained = train(put_entry(body, "head", sent.head), data, key)
        new_body, new_head = split_head(trained.net)
        counts = local_training.class_counts(data, classes=classes, batch=batch)
        delta = () if mixed else optax.tree.sub(new_body, body)
        uplink = delta, optax.tree.sub(new_head, sent.head), counts
        state, sent_body = (new_body, ()) if mixed else ((), new_body)
        return ClientOutput(state, uplink, trained.sums, local=(sent._replace(body=sent_body, head=new_head), state))

    def server_update(server, collected, cohort, key):
        body_delta, deltas, counts = collected
        active = cohort.examples > 0
        share = aggregators.weight_by_examples(cohort) / jnp.maximum(jnp.sum(cohort.examples), 1)
        counts = jnp.where(active[:, None], counts, 0)
        client_head = lambda here, delta: jax.tree.map(lambda h, dh: h + jnp.where(here, dh, 0), server.head, delta)
        heads = jax.vmap(client_head)(active, deltas)
        total = jnp.sum(counts, 0)
        labels = jnp.where(jnp.any(active), total if mixed else (total > 0).astype(total.dtype), server.labels)
        label_counts = jnp.where(active[:, None], 1 + epochs * counts, 0)
        w = label_counts / jnp.maximum(jnp.sum(label_counts, 0, keepdims=True), 1)  # [C, K]

        def loss(params, stats, key):
            y, eps, z, stats = sample_features(Generator(params, stats), labels, key, (generator_batch, noise), True)
            logits = jax.vmap(apply_head, (0, None))(heads, z)  # [C, B, K]
            if mixed:
                logits = jnp.einsum("c,cbk->bk", share, logits)
                teacher = losses.cross_entropy(logits, y, jnp.ones(len(y), bool))
            else:
                rows = jax.vmap(losses.cross_entropy_per_example, (0, None))(logits, y)
                teacher = jnp.mean(jnp.sum(w[:, y] * rows, 0))
            value = teacher + recipe.diversity * diversity_loss(eps, z) if recipe.diversity else teacher
            return value, stats

        def step(i, carry):
            (params, stats), moments, loss_sum = carry
            (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params, stats, jax.random.fold_in(key, i))
            updates, moments = adam.update(grads, moments, params)
            return Generator(optax.apply_updates(params, updates), stats), moments, loss_sum + value

        steps = jnp.where(jnp.any(active), 0 if generator_frozen else recipe.generator_steps, 0)
        trained_generator, moments, loss_sum = jax.lax.fori_loop(0, steps, step, (server.generator, server.moments, jnp.zeros(())))
        body = optax.tree.add(server.body, body_delta)
        head = optax.tree.add(server.head, aggregators.weighted_mean(deltas, aggregators.weight_by_examples(cohort)))
        return Server(body, head, trained_generator, moments, labels), {"generator_loss": (loss_sum, steps.astype(loss_sum.dtype))}

    def personal(sent, own_body, x):
        return model.apply(put_entry(own_body if mixed else sent.body, "head", sent.head), x)[0]

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(aggregators.mean(), aggregators.stack, aggregators.stack),
        predict={"personal" if mixed else "global": personal},
        client_init=lambda key, server, client_id: split_head(model.init(key))[0] if mixed else (),
        broadcast=lambda server, client_id: Sent(server.body, server.head, server.generator, server.labels),
        init_unseen="FedGen's bodies of mixed networks are never sent, so an unseen client would have to train one alone"
        if mixed
        else None,
    )
