"""FedSKC: class-wise structural knowledge guides local training, aggregation, and the step between rounds.

In plain words: Clients send mean logits of their classes beside the model. This knowledge guides
local training by contrast, gives less weight to clients whose knowledge differs from the common
one, and smooths the server's step over rounds.
Sent to clients: model, class knowledge.

Wang, Li, Chen, Yan, Wang, Shi, Chen, Shen. FedSKC: Federated Learning with Non-IID Data via
Structural Knowledge Collaboration. ICWS 2025.

  paper         here               meaning
  w_g           server.net         global model
  l_i           logits             what knowledge is computed from
  c_k^j         c, held            client k's knowledge of class j, [K, D], and mask of its classes, [K]
  c~^j          server.knowledge   the cohort's knowledge of class j; server.known: mask of classes
  M             neighbours         nearest clients that a client's knowledge is averaged with (Eq. 1)
  U, tau        lcl.scale, .tau    normalization and temperature of the contrast (Eq. 2, 3)
  d_k, e_k      gda                discrepancy, and the resulting weights (Eq. 4): `aggregators.discrepancy_weights`
  sigma, beta   gpr                variances of c~, and the review by them (Eq. 5): `aggregators.period_review`

The client's loss is CE + LCL, and it sends its delta and its knowledge. The paper can be read in
several ways; `variant` presets the options:

  option              "default"     "printed"   "released"   meaning
  lcl.scale           batch         epoch       none         examples that U_j averages over; "epoch": all,
                                                             before each epoch
  lcl.twice           False         .           True         the positive term is twice in the denominator
  lcl.own             False         .           True         the positive of an unknown class is the
                                                             example's own logits
  lcl.ramp            0             .           100          rounds over which LCL's weight rises to 1
  knowledge.silu      True          .           False        c <- c * sigmoid(c)
  knowledge.source    final         .           training     logits of the final model in evaluation mode, or
                                                             those of the last local epoch
  knowledge.keep      True          .           False        a class that no client of a round has keeps its
                                                             knowledge
  gda.on              True          .           False        else weights by examples or uniform (`weights`)
  gda.size            fraction      count       .            size in the sigmoid: N_k / N, or N_k
  gda.distance        mean          sum         .            d_k: mean or sum over the classes of client k
  gda.form            sigmoid       .           .            `aggregators.discrepancy_weights`
  gpr.form            interpolate   printed     printed      `aggregators.period_review`
  gpr.beta            0.95          .           0.99
  gpr.ddof            0             .           1            of the variances
  gpr.over            both          .           own          classes of their sums: known in both rounds, or
                                                             in each
  gpr.entries         params        .           all          whether batch statistics are reviewed as well

Why d_k is a mean by default: the paper wants less weight for unusual knowledge and more for more
data. A sum grows with a client's number of classes, and a_k d_k with its square, while 2 b_k is at
most 2: clients with few classes then get most of the weight, whatever their size. "relu" balances
both independently of the logits' scale.

Unseen clients use the server's model.

Departures: a class without examples at a client has no knowledge (masks instead of zeros), so means
are over the clients that have it. In the first round, when nothing is known, the loss is CE. U has
no gradient. CE is a mean over the batch like LCL (Algorithm 1 prints a sum). "released" leaves the
released code's data preparation to the config (learning rate 0.1, crops, flips, equal client
sizes). Its ramp counts rounds from 1; knowledge starts empty, where that code reads uninitialized
memory.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core import registry
from fedjax_core.algorithm import Algorithm, Array, ClientOutput, Cohort, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Fraction, Positive, check_arguments
from fedjax_core.task import Task, feature_size, require_class_logits
from fedjax_core.training import aggregators, local_training, losses

_SCALE_STREAM = 0x65706F63  # separates the draws for U from those of training
MIN_SCALE = 1e-6  # minimum of U; below it logits count as equal to the knowledge


class Lcl(NamedTuple):
    """Options of the local contrastive learning; see the module's docstring."""

    on: bool = True
    tau: Positive = 0.08
    scale: Literal["batch", "epoch", "none"] = "batch"
    twice: bool = False
    own: bool = False
    ramp: AtLeastZero = 0


class Knowledge(NamedTuple):
    """Options of the structural knowledge."""

    of: Literal["logits", "features"] = "logits"
    neighbours: AtLeastZero = 1
    silu: bool = True
    source: Literal["final", "training"] = "final"
    keep: bool = True


class Gda(NamedTuple):
    """Options of the global discrepancy aggregation."""

    on: bool = True
    size: aggregators.DiscrepancySize = "fraction"
    distance: aggregators.DiscrepancyDistance = "mean"
    form: aggregators.DiscrepancyForm = "sigmoid"


class Gpr(NamedTuple):
    """Options of the global period review."""

    on: bool = True
    form: aggregators.ReviewForm = "interpolate"
    beta: Fraction = 0.95
    ddof: Literal[0, 1] = 0
    over: aggregators.ReviewSum = "both"
    entries: Literal["params", "all"] = "params"


VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "default": {},
    "printed": {"lcl": {"scale": "epoch"}, "gda": {"size": "count", "distance": "sum"}, "gpr": {"form": "printed"}},
    "released": {
        "lcl": {"scale": "none", "twice": True, "own": True, "ramp": 100},
        "knowledge": {"silu": False, "source": "training", "keep": False},
        "gda": {"on": False},
        "gpr": {"form": "printed", "beta": 0.99, "ddof": 1, "over": "own", "entries": "all"},
    },
}


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      net: the global model.
      knowledge: [K, D] of each class.
      known: [K] bool, which classes have any.
      review: the state of the period review.
    """

    net: Net
    knowledge: Array
    known: Array
    review: PyTree


class Sent(NamedTuple):
    """The broadcast."""

    net: Net
    knowledge: Array
    known: Array


def contrastive_loss(
    logits: Array,
    y: Array,
    mask: Array,
    knowledge: Array,
    known: Array,
    scale: Array,
    tau: float,
    *,
    twice: bool = False,
    own: bool = False,
) -> Array:
    """Returns LCL of a batch (Eq. 2, 3), where examples without a positive count as 0.

    Args:
      logits: [B, D].
      y: [B] classes.
      mask: [B].
      knowledge: [K, D]; unknown classes may be anything.
      known: [K].
      scale: [K], U.
      tau: temperature.
      twice: whether the positive term is twice in the denominator.
      own: whether the positive of an unknown class is the example's own logits, which are then also
        in the denominator.
    """
    knowledge = jnp.where(known[:, None], knowledge, 0)
    s = losses.cosine_similarities(logits, knowledge) / scale[None] / tau  # Eq. 2
    s = jnp.where(known[None], s, -jnp.inf)
    is_known = known[y]
    positive = jnp.where(is_known, jnp.take_along_axis(jnp.where(known[None], s, 0), y[:, None], 1)[:, 0], 0)
    if own:
        fixed = jax.lax.stop_gradient(logits)
        positive = jnp.where(is_known, positive, jnp.sum(losses.normalize(logits) * losses.normalize(fixed), 1) / tau)
    has_positive = jnp.ones_like(is_known) if own else is_known
    terms = s
    if twice or own:  # the denominator has every example's positive
        extra = positive if twice else jnp.where(is_known, -jnp.inf, positive)
        terms = jnp.concatenate([s, extra[:, None]], 1)
    terms = jnp.where(has_positive[:, None], terms, 0)  # avoids rows of -inf only
    return losses.masked_mean(jnp.where(has_positive, jax.nn.logsumexp(terms, 1) - positive, 0), mask)  # Eq. 3


def sum_distances(logits: Array, knowledge: Array, mask: Array) -> Array:
    """Sums |l_i - c~^j| over the examples in `mask` [B] for each class: [B, D], [K, D] -> [K]."""
    apart = losses.safe_norms(logits[:, None] - knowledge[None])
    return jnp.sum(jnp.where(mask[:, None], apart, 0), 0)


def summarize_weights(weights: Array, cohort: Cohort) -> dict[str, tuple[Array, Array]]:
    """Returns metrics of one round's aggregation weights, as (value, 1); (0, 0) where undefined.

    Args:
      weights: [C] weights of the cohort up to a common factor, 0 for absent clients.
      cohort: who took part.

    Returns:
      `weight_min` and `weight_max`: smallest and largest share of a client that took part, where
      all shares sum to 1; `weight_size_correlation`: Pearson's correlation of the shares with the
      numbers of training examples, undefined where either is the same for all.
    """
    active = cohort.examples > 0
    count = jnp.sum(active)
    shares = weights / jnp.maximum(jnp.sum(weights), aggregators.TINY)

    def center(values):
        return jnp.where(active, values - jnp.sum(jnp.where(active, values, 0)) / jnp.maximum(count, 1), 0)

    w, n = center(shares), center(cohort.examples.astype(shares.dtype))
    spread = jnp.sqrt(jnp.sum(w**2) * jnp.sum(n**2))
    # Shares that are equal up to rounding are correlated with nothing.
    varies = (jnp.sqrt(jnp.sum(w**2)) > 1e-6) & (spread > 0)
    correlation = jnp.where(varies, jnp.sum(w * n) / jnp.where(varies, spread, 1), 0)
    is_any = jnp.any(active).astype(shares.dtype)
    return {
        "weight_min": (jnp.where(is_any > 0, jnp.min(jnp.where(active, shares, jnp.inf)), 0), is_any),
        "weight_max": (jnp.max(jnp.where(active, shares, 0)), is_any),
        "weight_size_correlation": (correlation, varies.astype(shares.dtype)),
    }


class _Epoch(NamedTuple):
    """Inputs of an epoch's losses. `scale`: [K], U of the whole local set; `last`: [] bool."""

    scale: Array
    last: Array


def fedskc(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    epochs: AtLeastOne = 10,
    batch: AtLeastOne = 64,
    variant: str = "default",
    weights: str = "samples",
    lcl: Mapping[str, Any] | None = None,
    knowledge: Mapping[str, Any] | None = None,
    gda: Mapping[str, Any] | None = None,
    gpr: Mapping[str, Any] | None = None,
) -> Algorithm:
    """Builds FedSKC (Algorithm 1).

    Args:
      epochs: E.
      batch: B.
      variant: "default", "printed" or "released".
      weights: of the aggregation without GDA: "samples" or "uniform".
      lcl: options of the local contrast that differ from the variant's; None in place of a value
        leaves the variant's.
      knowledge: likewise of the structural knowledge.
      gda: likewise of the global discrepancy aggregation.
      gpr: likewise of the global period review.

    Returns:
      The algorithm; a client sends its delta and K * (D + 1) numbers, and keeps nothing.
    """
    preset = VARIANTS[registry.check_choice("variant", variant, VARIANTS)]
    lcl_options = registry.replace_options("lcl", Lcl(), preset.get("lcl"), lcl)
    knowledge_options = registry.replace_options("knowledge", Knowledge(), preset.get("knowledge"), knowledge)
    gda_options = registry.replace_options("gda", Gda(), preset.get("gda"), gda)
    gpr_options = registry.replace_options("gpr", Gpr(), preset.get("gpr"), gpr)
    check_arguments(fedskc, epochs=epochs)
    weight_fn = aggregators.make_weight_fn(weights)  # both are checked also where unused
    by_discrepancy = aggregators.discrepancy_weights(size=gda_options.size, distance=gda_options.distance, form=gda_options.form)
    model, classes = task.model, task.classes
    if knowledge_options.of == "logits":
        require_class_logits(task, "fedskc")
    strength = jnp.minimum(1.0, (task.round_num + 1) / lcl_options.ramp) if lcl_options.ramp else 1.0
    review = optax.identity()
    if gpr_options.on:
        review = aggregators.period_review(classes, gpr_options.beta, gpr_options.form, gpr_options.ddof, gpr_options.over)
        if gpr_options.entries == "params":
            review = optax.masked(review, Net(params=True, stats=False))
    aggregator = aggregators.make_aggregator(
        aggregators.stack if gda_options.on else aggregators.mean(weight_fn),
        (lambda cohort, *, weights, **_: weights) if gda_options.on else None,
        review,
    )

    def server_init(key):
        net = model.init(key)
        numbers = classes if knowledge_options.of == "logits" else feature_size(model)
        return Server(net, jnp.zeros((classes, numbers)), jnp.zeros(classes, bool), aggregator.init(net))

    def outputs(net, batch, **mode):
        return model.apply(net, batch.x, mask=batch.mask, **mode)

    def client_update(sent, client, data, key):
        def loss(net, batch, key, epoch):
            out, stats = outputs(net, batch, key=key, train=True)
            ce = local_training.label_loss(task)(out["logits"], batch.y, batch.mask)
            rows = jnp.sum(batch.mask, dtype=ce.dtype)
            l, value, contrast = out[knowledge_options.of], ce, jnp.zeros(())
            if lcl_options.on:
                u = epoch.scale
                if lcl_options.scale == "batch":
                    u = sum_distances(jax.lax.stop_gradient(l), sent.knowledge, batch.mask) / jnp.maximum(rows, 1)
                u = jnp.maximum(u, MIN_SCALE)
                form = {"twice": lcl_options.twice, "own": lcl_options.own}
                contrast = contrastive_loss(l, batch.y, batch.mask, sent.knowledge, sent.known, u, lcl_options.tau, **form)
                value = ce + strength * contrast
            sums = local_training.loss_metrics(ce, out["logits"], batch) | {"lcl": (contrast * rows, rows)}
            class_logits = ()
            if knowledge_options.source == "training":
                class_logits = local_training.class_sums(l, batch.y, batch.mask & epoch.last, classes)
            return value, local_training.Aux(stats, (sums, class_logits))

        def epoch_inputs(net, data, e):
            scale = jnp.ones(classes)
            if lcl_options.on and lcl_options.scale == "epoch":
                drawn = jax.random.fold_in(jax.random.fold_in(key, _SCALE_STREAM), e)

                def batch_distances(batch):
                    out, _ = outputs(net, batch, key=drawn, train=True)
                    return sum_distances(out[knowledge_options.of], sent.knowledge, batch.mask)

                scale = local_training.sum_over_batches(batch_distances, data, batch=batch) / jnp.maximum(data.size, 1)
            return _Epoch(scale, jnp.asarray(e == local_training.num_epochs(data, epochs, batch) - 1))

        w_k, _, (sums, class_logits) = local_training.fit(
            loss, optimizer(task.round_num), epochs=epochs, batch=batch, epoch_inputs=epoch_inputs
        )(sent.net, data, key)
        if knowledge_options.source == "training":
            c, count = class_logits[0] / jnp.maximum(class_logits[1], 1)[:, None], class_logits[1]
        else:
            c, count = local_training.class_means(
                lambda b: outputs(w_k, b)[0][knowledge_options.of], data, classes=classes, batch=batch
            )
        c = c * jax.nn.sigmoid(c) if knowledge_options.silu else c
        return ClientOutput(client, (optax.tree.sub(w_k, sent.net), (c, count > 0)), sums, local=(sent._replace(net=w_k), client))

    def server_update(server, collected, cohort, key):
        delta, (c, held) = collected
        active = cohort.examples > 0
        held = held & active[:, None]
        merged, known = aggregators.merge_neighbours(c, held, knowledge_options.neighbours)  # Eq. 1
        after = jnp.where(known[:, None], merged, server.knowledge if knowledge_options.keep else 0)
        known = known | server.known if knowledge_options.keep else known
        e = by_discrepancy(cohort, values=c, held=held, merged=merged) if gda_options.on else None  # Eq. 4
        net, state = aggregator.update(  # Eq. 5
            server.net, delta, cohort, server.review, weights=e, knowledge=after, known=known
        )
        new = Server(net, after, known, state)
        new = optax.tree.where(jnp.any(active), new, server)
        metrics = {"known": (jnp.sum(new.known, dtype=jnp.float32), jnp.float32(classes))}
        if e is not None:
            metrics |= summarize_weights(e, cohort)
        return new, metrics

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(aggregator.collect, aggregators.stack),
        predict={"global": lambda sent, client, x: model.apply(sent.net, x)[0]},
        broadcast=lambda server, client_id: Sent(server.net, server.knowledge, server.known),
    )
