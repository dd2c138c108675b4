"""Optimizers of local training: optax chains by round, and transformations that methods put before them."""

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.option_types import BelowOne, NonNegative, Positive, check_arguments, one_of

log = logging.getLogger("fedjax_core")
# round -> optimizer of one local training, whose state starts anew
Optimizer = Callable[[Array | int], optax.GradientTransformation]


def warn_of_step_schedule(state: PyTree) -> None:
    """Warns if an optimizer's initial state counts the steps of a schedule."""
    is_schedule = lambda part: isinstance(part, optax.ScaleByScheduleState)
    if any(map(is_schedule, jax.tree.leaves(state, is_leaf=is_schedule))):
        _warn_of_restarts()


@functools.cache  # once
def _warn_of_restarts() -> None:
    log.warning(
        "the optimizer has a schedule of optax, which counts local steps: it begins anew in each client's training of each "
        "round; for one over rounds return a function of the round that gives the optimizer"
    )


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


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Ascent:
    """Where local training takes its gradients; a state without arrays of an optimizer's link.

    Attributes:
      rho: length of the step up, of normalized gradients; their factor, of others.
      eta: ASAM's offset of the weights' sizes; None: SAM.
      share: of the gradient at the top in the result; the rest is that at the weights.
      normalized: whether the step up has length rho.
    """

    rho: float
    eta: float | None = None
    share: float = 1.0
    normalized: bool = True

    def find_top(self, params: PyTree, grads: PyTree) -> PyTree:
        """Returns params + epsilon, a step up along `grads`; of zeros, params."""
        if self.eta is None:
            sizes = jax.tree.map(lambda w: jnp.ones((), w.dtype), params)
        else:  # T_w of ASAM: of biases 1
            is_bias = lambda path: jax.tree_util.keystr(path[-1:], simple=True) == "bias"
            size = lambda path, w, eta=self.eta: jnp.ones((), w.dtype) if is_bias(path) else jnp.abs(w) + eta
            sizes = jax.tree_util.tree_map_with_path(size, params)
        scaled = jax.tree.map(jnp.multiply, sizes, grads)  # T g
        length = optax.tree.norm(scaled) + 1e-12 if self.normalized else 1
        return jax.tree.map(lambda w, t, g: w + jnp.asarray(self.rho / length, w.dtype) * t * g, params, sizes, scaled)


def sharpness_aware(
    rho: NonNegative, eta: float | None = None, share: float = 1.0, normalized: bool = True
) -> optax.GradientTransformation:
    """Returns a link of sharpness-aware steps, wherever it is in a chain.

    It passes updates on unchanged. `fit` reads its state, `Ascent`, and gives the chain gradients that
    are taken at the top of a step up, on the same minibatch; so all links get these.
    """
    ascent: Any = Ascent(rho, eta, share, normalized)
    return optax.GradientTransformation(lambda params: ascent, lambda updates, state, params=None: (updates, state))


def find_ascent(state: PyTree) -> Ascent | None:
    """Returns the `Ascent` in an optimizer's state; None: it has none."""
    is_ascent = lambda node: isinstance(node, Ascent)
    return next(filter(is_ascent, jax.tree.leaves(state, is_leaf=is_ascent)), None)


def require_plain(optimizer: Optimizer, method: str, why: str = "which takes such steps by its rho") -> None:
    """Raises ValueError for an optimizer with sharpness-aware steps, which the method cannot take."""
    if (found := find_ascent(optimizer(0).init(jnp.zeros(())))) is not None:
        raise ValueError(f"optimizer.sharpness must be None with {method}, {why}; it is {found}")


def sharpen(gradient: Callable[[PyTree], PyTree], params: PyTree, grads: PyTree, state: PyTree) -> PyTree:
    """Returns the gradients that an optimizer in `state` wants: `grads` at `params`, or those of `sharpness_aware`.

    Args:
      gradient: params -> gradients of the same minibatch.
      params: the weights.
      grads: gradients at the weights.
      state: the optimizer's.
    """
    ascent = find_ascent(state)
    if ascent is None or ascent.rho == 0:
        return grads
    top = gradient(ascent.find_top(params, grads))
    return top if ascent.share == 1 else jax.tree.map(lambda g, t: (1 - ascent.share) * g + ascent.share * t, grads, top)


def sam(rho: NonNegative = 0.05) -> optax.GradientTransformation:
    """Builds sharpness-aware steps (Foret et al. 2021): gradients at w + rho g / ||g||.

    Args:
      rho: length of the step up; one norm of all weights.
    """
    check_arguments(sam, rho=rho)
    return sharpness_aware(rho)


def asam(rho: NonNegative = 0.5, eta: NonNegative = 0.01) -> optax.GradientTransformation:
    """Builds adaptive sharpness-aware steps (Kwon et al. 2021): gradients at w + rho T^2 g / ||T g||, T = |w| + eta.

    Args:
      rho: length of the step up, in units of the weights' sizes.
      eta: added to the sizes. Biases have T = 1.
    """
    check_arguments(asam, rho=rho, eta=eta)
    return sharpness_aware(rho, eta)


SHARPNESS = {"sam": sam, "asam": asam}
PROBE = 1e-4  # the constant gradient, which clipping leaves as it is


class MeasuredSteps(NamedTuple):
    """State of `measure_steps`.

    Attributes:
      optimizer: state of the optimizer.
      probe: its state for the one number that is trained beside the network.
      moved: [] how far that number came, in units of PROBE.
      unit: [] how far it came in the first step that moved it.
      steps: [] number of steps.
    """

    optimizer: PyTree
    probe: PyTree
    moved: Array
    unit: Array
    steps: Array


def measure_steps(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer, which also trains one number with a constant gradient.

    How far that number moves is how much a gradient counts in the change of the weights: the learning
    rate times FedNova's effective number of steps.
    """
    stepped = optax.with_extra_args_support(optimizer)

    def init(params):
        zero = jnp.zeros(())
        return MeasuredSteps(stepped.init(params), stepped.init(zero), zero, zero, zero)

    def update(updates, state, params=None, **extra_args):
        updates, inner = stepped.update(updates, state.optimizer, params, **extra_args)
        gradient, position = jnp.float32(PROBE), -PROBE * state.moved
        step, probe = stepped.update(gradient, state.probe, position, **extra_args)
        moved = state.moved - jnp.asarray(step) / PROBE
        unit = jnp.where(state.unit == 0, moved, state.unit)
        return updates, MeasuredSteps(inner, probe, moved, unit, state.steps + 1)

    return optax.GradientTransformationExtraArgs(init, update)


def require_linear(optimizer: Optimizer, method: str) -> None:
    """Raises ValueError for an optimizer whose steps are not proportional to the gradient, such as Adam.

    The first step must double with the gradient, and the second be as long beside the first for a large gradient, which may
    be clipped, as for a small one. Steps of rate 0, as a warm-up has them, are passed over: the first that moves is looked for
    in rounds 0, 1 and 10.
    """
    with jax.ensure_compile_time_eval():
        zero = jnp.zeros(())

        def take(gradient: float, round_num: int) -> tuple[float, float]:
            """Returns the first step that moves and the next; zeros if none of five does."""
            stepped = optax.with_extra_args_support(optimizer(round_num))
            state, steps = stepped.init(zero), []
            for _ in range(6):
                step, state = stepped.update(jnp.float32(gradient), state, zero, progress=0.0, rate=1.0)
                steps.append(float(jnp.asarray(step)))
            first = next((i for i in range(5) if steps[i]), 0)
            return steps[first], steps[first + 1]

        round_num = next((i for i in (0, 1, 10) if any(take(PROBE, i))), 0)
        small, twice, large = (take(gradient, round_num) for gradient in (PROBE, 2 * PROBE, 1.0))
        pairs = (twice[0], 2 * small[0]), (large[0] * small[1], large[1] * small[0])
        if not all(abs(a - b) <= 1e-3 * abs(a) for a, b in pairs):
            raise ValueError(f"{method} needs an optimizer whose steps are proportional to its gradients: sgd, not adam")


ANNEALS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + jnp.cos(jnp.pi * progress)) / 2,
}


def scale_by_anneal(form: str) -> optax.GradientTransformationExtraArgs:
    """Scales updates by a factor that falls from 1 to 0 within one `fit`, "linear" or "cosine"."""
    return _scale_by(ANNEALS[form], "progress")


def scale_by_client_rate() -> optax.GradientTransformationExtraArgs:
    """Scales updates by the client's factor of the learning rate, which `fit` gives as `rate`."""
    return _scale_by(lambda rate: rate, "rate")


def _scale_by(factor: Callable[[Array], Array], name: str) -> optax.GradientTransformationExtraArgs:
    """Scales updates by a factor of what `fit` gives the optimizer under a name."""

    def update(updates, state, params=None, **extra_args):
        del params
        scale = factor(jnp.asarray(extra_args[name], jnp.float32))
        return jax.tree.map(lambda u: u * scale.astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _check_options(anneal: str | None, **positive: float | None) -> None:
    for name, value in positive.items():
        if value is not None and not value > 0:
            raise ValueError(f"optimizer.{name}={value} must be positive")
    if anneal is not None and anneal not in ANNEALS:
        raise ValueError(f"optimizer.anneal={anneal!r} is not one of {', '.join(map(repr, ANNEALS))}")


def _chain(
    core: optax.GradientTransformation,
    round_num: Array | int,
    *,
    lr: float,
    decay: float,
    weight_decay: float,
    clip: float | None,
    anneal: str | None,
) -> optax.GradientTransformation:
    before = [] if clip is None else [optax.clip_by_global_norm(clip)]
    if weight_decay:
        before.append(optax.add_decayed_weights(weight_decay))
    rate = lr if decay == 1 else lr * jnp.asarray(decay, jnp.float32) ** round_num
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
      decay: the learning rate of round r = 0, 1, ... is lr * decay ** r.
      anneal: form of the decay to 0 within each local training; None: constant.

    Raises:
      ValueError: lr, clip or decay is not positive, the form of annealing is unknown, or nesterov
        is set without momentum.
    """
    if nesterov and not momentum:
        raise ValueError("optimizer.nesterov=True needs optimizer.momentum, which is 0")
    _check_options(anneal, lr=lr, decay=decay, clip=clip)
    core = optax.trace(momentum, nesterov) if momentum else optax.identity()
    return functools.partial(_chain, core, lr=lr, decay=decay, weight_decay=weight_decay, clip=clip, anneal=anneal)


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
    _check_options(anneal, lr=lr, decay=decay, eps=eps, clip=clip)
    core = optax.chain(optax.scale_by_adam(b1, b2, eps), optax.add_decayed_weights(weight_decay))
    return functools.partial(_chain, core, lr=lr, decay=decay, weight_decay=0.0, clip=clip, anneal=anneal)
