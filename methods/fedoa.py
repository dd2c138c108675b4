"""FedOA: personal adapters whose features stay near the global adapter's, to generalize to unseen tasks.

In plain words: Adapters of a frozen network are averaged, and each client keeps an adapter of its
own, whose features are held near those of the averaged one. This keeps personal models useful on
data that no client has seen.
Sent to clients: adapter.

Yang, Long, Zhou, Lu, Ye, Jiang. Federated Adapter on Foundation Models: An Out-Of-Distribution
Approach. 2025. https://arxiv.org/abs/2505.01075

  paper        here             meaning
  phi_g        server.net       global adapter, as in FedIT
  phi_e        v_e              client e's personal adapter, never sent
  Phi(phi; x)  features         the network's features, or an intermediate layer by name (of language models
                                "layer1", ...)
  lambda, D    lam, distance    weight and distance of the regularizer: "l2", its square "squared_l2" (whose
                                gradient Eq. 20 prints), or 1 - "cosine", 1 - "pearson"
  alpha_e      weights          of the average
  K            epochs           local passes of either adapter

In a round, phi_e trains by R_e + lambda D(Phi(phi_e; x), sg Phi(phi_g; x)) (Eq. 3), with phi_g as
received; then phi_g trains by R_e alone, as in FedIT. `variant` presets the options of `reading`:

  option       "default"   "printed"   "released"   meaning
  reduction    mean        .           frobenius    of distances over a minibatch: their mean; or one norm
                                                    of all differences in `micro` examples, and the
                                                    mean of those norms
  micro        8           .           .
  begin        0           .           1            first round in which personal adapters train
  fresh        False       .           True         whether each client draws its own initial adapter
  update       epochs      step        epochs       of phi_g: K epochs, or one step by the gradient of all
                                                    local data (line 10), accumulated over
                                                    minibatches
  shared       0           .           0.5          weight of phi_g in the personal predictor

The trained parameters of the network are the adapter (`adapters.adapter_task`, `task.make_partial_task`, or all of
it). `server` averages by FedAdam and the like (methods/fedopt.py).

The paper deploys phi_e. The released evaluation adds half of the update of phi_g and half of that
of phi_e to the base (`shared`; parameters outside of an adapter are averaged); exports and
generated answers use phi_e alone. The release cuts the end of long texts, which loses the answer
and its end mark; here long texts are an error, or cut at the beginning (`long='cut'`).

Unseen clients start a personal adapter from the global one, after local training of it.

Departures: Phi(phi_g; x) is of the plain example in evaluation mode (no dropout or augmentation),
so it is computed once a round. Where both features are equal up to rounding
(`losses.rounding_tolerance`), as at the first step, D and its gradient are zero. K counts passes,
as in the experiments; Algorithm 1 counts steps. In "released", R_e is one mean over the minibatch
(over all tokens of its answers), although D is computed over `micro` examples.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core import registry
from fedjax_core.algorithm import Algorithm, Array, ClientData, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Fraction, NonNegative, check_arguments
from fedjax_core.task import Model, Task
from fedjax_core.training import adapters, local_training, losses
from fedjax_core.training.metrics import Pair, mean_pair
from methods.ditto import with_personal_model
from methods.fedavg import fedavg
from methods.fedopt import fedopt


class Reading(NamedTuple):
    """Options of a variant; see the module's docstring."""

    reduction: Literal["mean", "frobenius"] = "mean"
    micro: AtLeastOne = 8
    begin: AtLeastZero = 0
    fresh: bool = False
    update: Literal["epochs", "step"] = "epochs"
    shared: Fraction = 0.0


VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "printed": {"update": "step"},
    "released": {"reduction": "frobenius", "begin": 1, "fresh": True, "shared": 0.5},
}


def _pearson(e: Array, g: Array, tolerance: float) -> Array:
    def centred(f):
        mean = jnp.broadcast_to(jnp.mean(f, -1, keepdims=True), f.shape)
        varies = losses.euclidean_distances(f, mean, tolerance) > 0  # constant features have no direction
        return jnp.where(varies[..., None], f - mean, 0)

    return _cosine(centred(e), centred(g), tolerance)


def _cosine(e: Array, g: Array, tolerance: float) -> Array:
    del tolerance  # smooth where both are equal
    return 1 - jnp.sum(losses.normalize(e) * losses.normalize(g), -1)


def _squared(e: Array, g: Array, tolerance: float) -> Array:
    del tolerance  # smooth where both are equal
    return jnp.sum((e - g) ** 2, -1)


DISTANCES: dict[str, Callable[[Array, Array, float], Array]] = {
    "l2": losses.euclidean_distances,
    "squared_l2": _squared,
    "cosine": _cosine,
    "pearson": _pearson,
}


def frobenius_distance(e: Array, g: Array, mask: Array, micro: int, tolerance: float) -> Array:
    """Returns the mean, over groups of `micro` examples, of the norm of all differences of `e` and `g` [B, D]."""

    def groups(x):
        return losses.split_into_parts(jnp.where(mask[:, None], x, 0), micro).reshape(-1, micro * x.shape[1])

    return losses.masked_mean(losses.euclidean_distances(groups(e), groups(g), tolerance), jnp.any(groups(mask[:, None]), 1))


def make_feature_fn(model: Model, features: str) -> Callable[..., tuple[Array, dict[str, Array], PyTree]]:
    """Returns (net, x, ...) -> (Phi [B, D'], outputs, stats); ValueError (when traced) for an unknown layer."""

    def feature_fn(net: Net, x: PyTree, *args: Any, **options: Any):
        if features == "features":
            outputs, stats = model.apply(net, x, *args, **options)
            return outputs["features"].astype(jnp.float32), outputs, stats
        outputs, stats = model.apply(net, x, *args, **options, intermediates=True)
        layers = outputs["intermediates"]
        layer = layers[registry.check_choice(f"features of {model.name}", features, ["features", *layers])]
        return layer.astype(jnp.float32).reshape(len(layer), -1), outputs, stats

    return feature_fn


def compute_features(model: Model, net: Net, data: ClientData, batch: int, features: str = "features") -> Array:
    """Returns Phi(net; x) [M, D'] of one client's examples, in evaluation mode; padding may be anything."""
    feature_fn = make_feature_fn(model, features)
    return local_training.map_examples(lambda b: feature_fn(net, b.x, mask=b.mask)[0], data, batch=batch)


def feature_distance(f: Array, g: Array, data: ClientData) -> Pair:
    """Returns the mean Euclidean distance of one client's features by two networks (Figure 2)."""
    return mean_pair(losses.safe_norms(f - g), jnp.arange(len(f)) < data.size)


def fedoa(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    lam: NonNegative = 0.5,
    distance: str = "l2",
    features: str = "features",
    epochs: AtLeastZero = 2,
    personal_epochs: AtLeastZero | None = None,
    batch: AtLeastOne = 32,
    weights: str = "uniform",
    server: str | None = None,
    server_lr: float | None = None,
    measure: bool = False,
    variant: str = "default",
    reading: Mapping[str, Any] | None = None,
) -> Algorithm:
    """Builds FedOA (Algorithm 1).

    Args:
      task: network and population; what its `Net` has is the adapter.
      optimizer: local optimizer of both adapters, whose state starts anew every round.
      lam: lambda; 0 makes the personal adapters Local's.
      distance: D: "l2", "squared_l2", "cosine" or "pearson".
      features: "features", or the name of an intermediate layer.
      epochs: K.
      personal_epochs: those of the personal adapter; None: as many.
      batch: B.
      weights: alpha_e: "uniform" or "samples".
      server: None: FedAvg; or one of `fedopt.SERVERS`.
      server_lr: of that.
      measure: whether the distance of both features after training is computed too, metric
        "feature_distance".
      variant: "default", "printed" or "released".
      reading: options that differ from the variant's; None in place of a value leaves the
        variant's.

    Returns:
      The algorithm; a client keeps its personal adapter and sends the delta of the global one.
    """
    options = registry.replace_options("reading", Reading(), VARIANTS[registry.check_choice("variant", variant, VARIANTS)], reading)
    check_arguments(fedoa, lam=lam, epochs=epochs, personal_epochs=personal_epochs)
    personal_epochs = epochs if personal_epochs is None else personal_epochs
    registry.check_choice("distance", distance, DISTANCES)
    if server is None and server_lr is not None:
        raise ValueError(f"server_lr={server_lr} is a rate of method.server, which is None; set it too, such as server='adam'")
    if options.reduction == "frobenius" and distance != "l2":
        raise ValueError(f"distance={distance!r} has no reading.reduction='frobenius'; distance='l2' has")
    model = task.model
    phi = make_feature_fn(model, features)

    def penalty(e, g, mask, tolerance):
        if options.reduction == "frobenius":
            return frobenius_distance(e, g, mask, options.micro, tolerance)
        return losses.masked_mean(DISTANCES[distance](e, g, tolerance), mask)

    def loss(net, batch, key):
        e, outputs, stats = phi(net, batch.x, key, train=True, mask=batch.mask)
        risk, sums = local_training.loss_and_metrics(outputs, batch, local_training.label_loss(task))
        d = penalty(e, batch.extra, batch.mask, losses.rounding_tolerance(task.frozen, net, outputs))
        rows = jnp.sum(batch.mask, dtype=d.dtype)
        return risk + lam * d, local_training.Aux(stats, {"personal_loss": sums["loss"], "distance": (d * rows, rows)})  # Eq. 3

    def train(w, v_e, data, key):
        g = compute_features(model, w, data, batch, features)  # Phi(phi_g; x), constant in this phase
        trained = local_training.fit(loss, optimizer(task.round_num), epochs=personal_epochs, batch=batch)(v_e, data, key, g)
        if not measure:
            return trained.net, trained.sums
        e = compute_features(model, trained.net, data, batch, features)
        return trained.net, trained.sums | {"feature_distance": feature_distance(e, g, data)}

    step = local_training.full_batch_step(local_training.supervised_loss(task), optimizer(task.round_num), batch=batch)

    def update_by_one_step(w, client, data, key):
        w_e, _, sums = step(w, data, key)
        return ClientOutput(client, optax.tree.sub(w_e, w), sums, local=(w_e, client))

    settings: dict[str, Any] = {"optimizer": optimizer, "weights": weights, "epochs": epochs, "batch": batch}
    base = fedavg(task, **settings) if server is None else fedopt(task, server=server, server_lr=server_lr, **settings)
    base = base._replace(client_update=update_by_one_step) if options.update == "step" else base
    algorithm = with_personal_model(task, base, train, begin=options.begin, fresh=options.fresh)
    if not options.shared:
        return algorithm
    personal = lambda w, v_e, x: model.apply(mix_nets(w, v_e, options.shared), x)[0]
    return algorithm._replace(predict=algorithm.predict | {"personal": personal})


def mix_nets(w: Net, v_e: Net, share: float) -> Net:
    """Mixes adapters by `share` of the global update and 1 - `share` of the personal one; averages other entries."""
    mean = lambda one, other: jax.tree.map(lambda a, b: share * a + (1 - share) * b, one, other)
    params = {
        name: adapters.mix_adapters(entry, v_e.params[name], share) if name == adapters.ENTRY else mean(entry, v_e.params[name])
        for name, entry in w.params.items()
    }
    return Net(params, mean(w.stats, v_e.stats))
