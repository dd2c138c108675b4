"""Optimizers of local training: optax chains by round, and transformations that methods put before them."""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.option_types import BelowOne, NonNegative, Positive, one_of

# round -> optimizer of one local training, whose state starts anew
Optimizer = Callable[[Array | int], optax.GradientTransformation]


class MeanGradientState(NamedTuple):
    """State of `track_mean_gradient`. `mean`: like the params; `steps`: [] number of gradients."""

    mean: PyTree
    steps: Array


def track_mean_gradient() -> optax.GradientTransformation:
    """Passes gradients on unchanged and tracks their mean, which SCAFFOLD sends."""

    def init(params):
        return MeanGradientState(optax.tree.zeros_like(params), jnp.zeros((), jnp.int32))

    def update(updates, state, params=None):
        del params
        steps = state.steps + 1
        mean = jax.tree.map(lambda m, g: m + (g - m) / steps.astype(m.dtype), state.mean, updates)
        return updates, MeanGradientState(mean, steps)

    return optax.GradientTransformation(init, update)


class ProximalState(NamedTuple):
    """State of `add_proximal_term`. `centre`: w_0, like the params."""

    centre: PyTree


def add_proximal_term(mu: float, centre: PyTree = None) -> optax.GradientTransformation:
    """Adds the gradient of mu / 2 ||w - w_0||^2 to gradients; w_0 is `centre`, by default the initial parameters."""

    def init(params):
        return ProximalState(params if centre is None else centre)

    def update(updates, state, params=None):
        return jax.tree.map(lambda g, w, w_0: g + mu * (w - w_0), updates, params, state.centre), state

    return optax.GradientTransformation(init, update)


ANNEALS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + jnp.cos(jnp.pi * progress)) / 2,
}


def scale_by_anneal(form: str) -> optax.GradientTransformationExtraArgs:
    """Scales updates by a factor that falls from 1 to 0 within one `fit`, "linear" or "cosine"."""
    if form not in ANNEALS:
        raise ValueError(f"optimizer.anneal={form!r} is not one of {', '.join(map(repr, ANNEALS))}")

    def update(updates, state, params=None, **extra_args):
        del params
        rate = ANNEALS[form](jnp.asarray(extra_args["progress"], jnp.float32))
        return jax.tree.map(lambda u: u * rate.astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"optimizer.{name}={value} must be positive")


def _chain(lr, decay, round, core, weight_decay, clip, anneal):  # noqa: A002
    before = [] if clip is None else [optax.clip_by_global_norm(clip)]
    if weight_decay:
        before.append(optax.add_decayed_weights(weight_decay))
    rate = lr if decay == 1 else lr * jnp.asarray(decay, jnp.float32) ** round
    return optax.chain(*before, core, optax.scale_by_learning_rate(rate), *([] if anneal is None else [scale_by_anneal(anneal)]))


def sgd(
    lr: Positive,
    *,
    momentum: BelowOne = 0.0,
    nesterov: bool = False,
    weight_decay: NonNegative = 0.0,
    clip: Positive | None = None,
    decay: Positive = 1.0,
    anneal: Annotated[str, one_of("linear", "cosine")] | None = None,
) -> Optimizer:
    """Builds stochastic gradient descent, with PyTorch's momentum and (coupled) weight decay.

    Args:
      lr: learning rate of round 0.
      momentum: decay of the velocity, which starts at 0 in every round.
      nesterov: whether the momentum is Nesterov's.
      weight_decay: added to the gradient as weight_decay * w, before momentum.
      clip: largest global norm of the raw gradient; None: no clipping.
      decay: the learning rate of round r is lr * decay ** r.
      anneal: form of the decay to 0 within each local training; None: constant.

    Raises:
      ValueError: lr, clip or decay is not positive, the form of annealing is unknown, or nesterov
        is set without momentum.
    """
    if nesterov and not momentum:
        raise ValueError("optimizer.nesterov=True needs optimizer.momentum, which is 0")
    _require_positive(lr=lr, decay=decay, **({} if clip is None else {"clip": clip}))
    if anneal is not None:
        scale_by_anneal(anneal)
    core = optax.trace(momentum, nesterov) if momentum else optax.identity()
    return lambda round: _chain(lr, decay, round, core, weight_decay, clip, anneal)  # noqa: A006


def adam(
    lr: Positive,
    *,
    b1: BelowOne = 0.9,
    b2: BelowOne = 0.999,
    eps: Positive = 1e-8,
    weight_decay: NonNegative = 0.0,
    clip: Positive | None = None,
    decay: Positive = 1.0,
    anneal: Annotated[str, one_of("linear", "cosine")] | None = None,
) -> Optimizer:
    """Builds Adam, with decoupled weight decay (AdamW). Other arguments as in `sgd`.

    Args:
      b1: decay of the mean gradient.
      b2: decay of the mean squared gradient.
      eps: added to its root.
      weight_decay: the weights shrink by this times the learning rate.
    """
    _require_positive(lr=lr, decay=decay, eps=eps, **({} if clip is None else {"clip": clip}))
    if anneal is not None:
        scale_by_anneal(anneal)

    core = optax.chain(optax.scale_by_adam(b1, b2, eps), optax.add_decayed_weights(weight_decay))
    return lambda round: _chain(lr, decay, round, core, 0.0, clip, anneal)  # noqa: A006
