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
  d_k, e_k      gda                discrepancy, and the resulting weights (Eq. 4): `discrepancy_weights`
  sigma, beta   gpr                variances of c~, and the review by them (Eq. 5): `period_review`

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
  gda.form            sigmoid       .           .            `discrepancy_weights`
  gpr.form            interpolate   printed     printed      `period_review`
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
from jax.typing import ArrayLike

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
    size: Literal["fraction", "count"] = "fraction"
    distance: Literal["mean", "sum"] = "mean"
    form: Literal["sigmoid", "relu"] = "sigmoid"


class Gpr(NamedTuple):
    """Options of the global period review."""

    on: bool = True
    form: Literal["interpolate", "printed"] = "interpolate"
    beta: Fraction = 0.95
    ddof: Literal[0, 1] = 0
    over: Literal["both", "own"] = "both"
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


def merge_neighbours(values: Array, held: Array, neighbours: int = 1) -> tuple[Array, Array]:
    """Merges class knowledge: each client's with its nearest, then over clients (Eq. 1).

    Args:
      values: [C, K, D], one vector per client and class.
      held: [C, K], mask of the vectors; the others may be anything.
      neighbours: M, the number of nearest other vectors of a class, or fewer if there are fewer.

    Returns:
      (merged [K, D], mask of classes [K]); zero for a class without any vector.
    """
    values = jnp.where(held[..., None], values, 0)

    def of_class(c, holds):  # [C, D], [C]
        apart = losses.squared_distances(c, c)
        others = holds[None] & ~jnp.eye(len(c), dtype=bool)
        near, who = jax.lax.top_k(jnp.where(others, -apart, -jnp.inf), min(neighbours, len(c) - 1))
        is_near = (near > -jnp.inf).astype(c.dtype)  # [C, M], as A(k, i) = 1
        merged = (c + jnp.einsum("cm,cmd->cd", is_near, c[who])) / (1 + jnp.sum(is_near, 1))[:, None]
        return jnp.sum(jnp.where(holds[:, None], merged, 0), 0) / jnp.maximum(jnp.sum(holds), 1)

    return jax.vmap(of_class, 1)(values, held), jnp.any(held, 0)


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


def discrepancy_weights(cohort: Cohort, values: Array, held: Array, merged: Array, options: Gda) -> Array:
    """Returns the weights [C] of the global discrepancy aggregation (Eq. 4), up to a common factor.

    Clients with more examples, and with knowledge closer to the merged one, have more weight:

        "sum":      d_k = sum_j |c_k^j - c^j|   over the classes that k holds, as printed
        "mean":     d_k = the mean of these, so that it does not grow with the number of classes
        a_k = d_k / sum d,   b_k = N_k / sum N
        "sigmoid":  e_k ~ sigmoid(size_k - a_k d_k + b_k), as printed
        "relu":     e_k ~ max(b_k - a_k / 2 + 0.1, 0), which has no scale: the form of FedDisco (Ye et al., ICML 2023)

    size_k is N_k as printed ("count"), for which the sigmoid is 1 for all but tiny clients, or b_k
    ("fraction"). Knowledge that equals the merged one up to rounding has distance 0. If all d_k are
    0, all a_k are 0. With "relu" some weight is positive, since they sum to at least 1 - 1/2 + 0.1 C.

    Args:
      cohort: who took part.
      values: [C, K, D] the clients' knowledge.
      held: [C, K], mask of its classes.
      merged: [K, D] the merged knowledge.
      options: size, distance and form.
    """
    active = cohort.examples > 0
    n = cohort.examples.astype(values.dtype)
    distances = jnp.where(held, losses.euclidean_distances(values, merged[None], losses.rounding_tolerance(values)), 0)
    d = jnp.where(active, jnp.sum(distances, 1), 0)
    d = d / jnp.maximum(jnp.sum(held, 1), 1) if options.distance == "mean" else d
    a = d / jnp.maximum(jnp.sum(d), aggregators.TINY)
    b = n / jnp.maximum(jnp.sum(n), 1)
    if options.form == "relu":
        return jnp.where(active, jnp.maximum(b - a / 2 + 0.1, 0), 0)
    e = jax.nn.log_sigmoid((n if options.size == "count" else b) - a * d + b)
    return jnp.where(active, jnp.exp(e - jnp.max(jnp.where(active, e, -jnp.inf))), 0)


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


class PeriodReview(NamedTuple):
    """State of `period_review`: [K] variances of the last round's class knowledge, and the classes that had any."""

    variance: Array
    known: Array


def period_review(classes: int, options: Gpr) -> optax.GradientTransformationExtraArgs:
    """Returns the global period review (Eq. 5) of the mean delta w - w_prev, from the second round on.

        ratio = (sum_j s2_j - sum_j s2_j of the round before) / sum_j s2_j of the round before
        "interpolate":   w <- w + (1 - beta) ratio (w_prev - w)
        "printed":       w <- beta w + (1 - beta) ratio (w_prev - w)

    w_prev is the model at the start of the round, so no second model is stored. As printed, the
    weights shrink by beta in every round in which the variances agree. The update also takes this
    round's merged knowledge [K, D] and known [K].
    """
    beta = options.beta

    def init(params: PyTree) -> PeriodReview:
        del params
        return PeriodReview(jnp.zeros(classes), jnp.zeros(classes, bool))

    def update(updates, state, params=None, **context):
        knowledge, known = context["knowledge"], context["known"]
        variance = jnp.where(known, jnp.var(knowledge, -1, ddof=options.ddof), 0)
        if options.over == "both":
            both = known & state.known
            before = jnp.sum(jnp.where(both, state.variance, 0))
            change = jnp.sum(jnp.where(both, variance - state.variance, 0))
        else:
            before = jnp.sum(state.variance)
            change = jnp.sum(variance) - before
        pull = (1 - beta) * jnp.where(before > 0, change / jnp.maximum(before, aggregators.TINY), 0)
        if options.form == "printed":  # beta w + pull (w_prev - w) - w_prev = (beta - pull) delta - (1 - beta) w_prev
            reviewed = jax.tree.map(lambda u, w: (beta - pull).astype(u.dtype) * u - (1 - beta) * w, updates, params)
        else:
            reviewed = jax.tree.map(lambda u: (1 - pull).astype(u.dtype) * u, updates)
        has_earlier = jnp.any(state.known)  # not in the first round
        return optax.tree.where(has_earlier, reviewed, updates), PeriodReview(variance, known)

    return optax.GradientTransformationExtraArgs(init, update)


class _Epoch(NamedTuple):
    """Inputs of an epoch's losses. `scale`: [K], U of the whole local set; `last`: [] bool."""

    scale: Array
    last: Array


def client_loss(task: Task, sent: Sent, lcl: Lcl, knowledge: Knowledge, strength: ArrayLike) -> local_training.LossFn:
    """Returns (net, batch, key, epoch) -> (CE + LCL, Aux of metrics and knowledge); `strength` is the weight of LCL."""

    def loss(net: Net, batch: local_training.Batch, key: Array, epoch: _Epoch) -> tuple[Array, local_training.Aux]:
        out, stats = task.model.apply(net, batch.x, key, train=True, mask=batch.mask)
        ce = local_training.label_loss(task)(out["logits"], batch.y, batch.mask)
        rows = jnp.sum(batch.mask, dtype=ce.dtype)
        l, value, contrast = out[knowledge.of], ce, jnp.zeros(())
        if lcl.on:
            u = epoch.scale
            if lcl.scale == "batch":
                u = sum_distances(jax.lax.stop_gradient(l), sent.knowledge, batch.mask) / jnp.maximum(rows, 1)
            u = jnp.maximum(u, MIN_SCALE)
            contrast = contrastive_loss(
                l, batch.y, batch.mask, sent.knowledge, sent.known, u, lcl.tau, twice=lcl.twice, own=lcl.own
            )
            value = ce + strength * contrast
        sums = local_training.loss_metrics(ce, out["logits"], batch) | {"lcl": (contrast * rows, rows)}
        class_logits = ()
        if knowledge.source == "training":
            class_logits = local_training.class_sums(l, batch.y, batch.mask & epoch.last, task.classes)
        return value, local_training.Aux(stats, (sums, class_logits))

    return loss


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
    if gda_options.form == "relu" and gda_options.size == "count":
        raise ValueError("size='count' needs form='sigmoid'; with form='relu' the size is b_k")
    model, classes = task.model, task.classes
    if knowledge_options.of == "logits":
        require_class_logits(task, "fedskc")
    strength = jnp.minimum(1.0, (task.round_num + 1) / lcl_options.ramp) if lcl_options.ramp else 1.0
    review = optax.identity()
    if gpr_options.on:
        review = period_review(classes, gpr_options)
        if gpr_options.entries == "params":
            review = optax.masked(review, Net(params=True, stats=False))
    aggregator = aggregators.make_aggregator(aggregators.stack if gda_options.on else aggregators.mean(weight_fn), review)

    def server_init(key):
        net = model.init(key)
        numbers = classes if knowledge_options.of == "logits" else feature_size(model)
        return Server(net, jnp.zeros((classes, numbers)), jnp.zeros(classes, bool), aggregator.init(net))

    def outputs(net, batch, **mode):
        return model.apply(net, batch.x, mask=batch.mask, **mode)

    def client_update(sent, client, data, key):
        loss = client_loss(task, sent, lcl_options, knowledge_options, strength)

        def epoch_inputs(net, data, e):
            scale = jnp.ones(classes)
            if lcl_options.on and lcl_options.scale == "epoch":
                drawn = jax.random.fold_in(jax.random.fold_in(key, _SCALE_STREAM), e)

                def batch_distances(batch):
                    out, _ = outputs(net, batch, key=drawn, train=True)
                    return sum_distances(out[knowledge_options.of], sent.knowledge, batch.mask)

                scale = local_training.sum_over_batches(batch_distances, data, batch=batch) / jnp.maximum(data.size, 1)
            return _Epoch(scale, jnp.asarray(e == local_training.num_epochs(data, epochs, batch) - 1))

        train = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch, epoch_inputs=epoch_inputs)
        w_k, _, (sums, class_logits) = train(sent.net, data, key)
        if knowledge_options.source == "training":
            c, count = local_training.divide_class_sums(*class_logits)
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
        merged, known = merge_neighbours(c, held, knowledge_options.neighbours)  # Eq. 1
        after = jnp.where(known[:, None], merged, server.knowledge if knowledge_options.keep else 0)
        known = known | server.known if knowledge_options.keep else known
        weight_metrics = {}
        if gda_options.on:
            e = discrepancy_weights(cohort, c, held, merged, gda_options)  # Eq. 4
            delta, weight_metrics = aggregators.weighted_mean(delta, e), summarize_weights(e, cohort)
        net, state = aggregator.update(server.net, delta, cohort, server.review, knowledge=after, known=known)  # Eq. 5
        new = Server(net, after, known, state)
        new = optax.tree.where(jnp.any(active), new, server)
        return new, {"known": (jnp.sum(new.known, dtype=jnp.float32), jnp.float32(classes))} | weight_metrics

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(aggregator.collect, aggregators.stack),
        predict={"global": lambda sent, client, x: model.apply(sent.net, x)[0]},
        broadcast=lambda server, client_id: Sent(server.net, server.knowledge, server.known),
    )
