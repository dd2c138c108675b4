"""Differential privacy of clients: the uplink of a client is clipped, and noise covers it.

Central: the server is trusted. It clips what each client sends, adds noise once to the sum, and
divides by a fixed number of clients, never by how many came. Noise that is correlated over rounds
is in `dp_matrix_mechanism.py`. Local: nobody is trusted, and each client adds noise to what it
sends.

The clip bounds all deltas of a client as one vector, such as SCAFFOLD's model and control variate
together. A vector that is not finite counts as zeros. Running statistics may not be part of an
uplink: noise makes a running variance negative.

The server's noise is behind all other transforms (`KIND_ORDER`), so that the uplinks of attackers
and compressed messages are clipped too. Its draws come from the server's stream of keys, which no
client sees.

  clip S, noise z     the noise on the sum of a `real` cohort has deviation z * S
  cohort, real        expected number of clients that return from a simulated cohort, and from a
                      cohort of the deployment that epsilon is about
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array
from fedjax_core.option_types import OpenFraction, Positive
from fedjax_core.privacy.distributed_noise import INTEGER_SUMS
from fedjax_core.privacy.matrix_factorization import STRATEGIES
from fedjax_core.training.private_gradient import CLIP_MARGIN
from fedjax_core.uplink.layout import flatten, has_statistics, unflatten
from fedjax_core.uplink.transform import ClientContext, TransformOutput, UplinkTransform, UplinkValue, VectorReduce

GIVEN = ("clip", "noise", "cohort", "real", "participation", "parameters")  # arguments beside the options of a spec


def clip_vector(vector: Array, clip: Array | float, order: int = 2) -> tuple[Array, Array]:
    """Scales a float32 vector [D] to a norm of at most `clip`.

    Args:
      vector: one that is not finite becomes zeros.
      order: 2, or 1 for the sum of magnitudes.

    Returns:
      The scaled vector, and [] whether it was longer or not finite.
    """
    is_finite = jnp.all(jnp.isfinite(vector))
    vector = jnp.where(is_finite, vector, 0)
    largest = jnp.max(jnp.abs(vector), initial=0)
    # Prevents squares from overflowing or vanishing.
    scale = jnp.where(largest > 1e12, 1e-25, jnp.where(largest < 1e-12, 1e25, 1.0))
    scaled = vector * scale
    norm = jnp.sqrt(jnp.sum(scaled * scaled)) if order == 2 else jnp.sum(jnp.abs(scaled))
    is_longer = norm > CLIP_MARGIN * clip * scale
    clipped = scaled * (CLIP_MARGIN * clip / jnp.maximum(norm, 1e-30))
    return jnp.where(is_longer, clipped, vector), is_longer | ~is_finite


def gaussian(clip: Positive, noise: Positive, cohort: float, real: float) -> UplinkTransform:
    """Central, with a fixed clip.

    McMahan, Ramage, Talwar, Zhang. Learning Differentially Private Recurrent Language Models. ICLR
    2018. With `real` above `cohort` it is the noise of a larger cohort, scaled to the simulated
    one.
    """

    def finalize(combined, memory, key):
        total, num_clipped, num_clients = combined
        deviation = noise * clip * (cohort / real)
        total = total + deviation * jax.random.normal(key, total.shape, total.dtype)
        metrics = {
            "privacy/clipped": (num_clipped, num_clients),
            "privacy/deviation": (jnp.float32(deviation / cohort), jnp.float32(1)),
        }
        return total / cohort, memory, metrics

    return make_central("gaussian", VectorReduce(map_clipped(clip), "add", finalize), cohort)


def adaptive(
    clip: Positive,
    noise: Positive,
    cohort: float,
    real: float,
    *,
    quantile: OpenFraction = 0.5,
    rate: Positive = 0.2,
    deviation: Positive | None = None,
) -> UplinkTransform:
    """Central, with a clip that follows a quantile of the clients' norms.

    Andrew, Thakkar, McMahan, Ramaswamy. Differentially Private Learning with Adaptive Clipping.
    NeurIPS 2021, Algorithm 1. `clip` is the first one. Each client also sends whether its norm is
    within the clip; that sum has noise of its own, and both together are as private as one Gaussian
    mechanism with multiplier z (Theorem 1): 1 / z^2 = 1 / z_delta^2 + 1 / (2 sigma_b)^2.

    Args:
      clip, noise, cohort, real: see the module; `noise` is z.
      quantile: gamma, the fraction of clients whose deltas should be within the clip.
      rate: eta_C.
      deviation: sigma_b, of the noise on the sum of indicators in the real cohort; None: a
        twentieth of the cohort, at least z.

    Raises:
      ValueError: the deviation is at most half of z.
    """
    bit_deviation = max(real / 20, noise) if deviation is None else deviation
    if 2 * bit_deviation <= noise:
        raise ValueError(f"privacy.mechanism: deviation={bit_deviation:g} must be above half of the noise multiplier {noise:g}")
    delta_multiplier = (noise**-2 - (2 * bit_deviation) ** -2) ** -0.5
    share = cohort / real

    def map_adaptive(vector, weight, context):
        clipped, is_longer = clip_vector(vector, context.memory)
        is_present = (weight > 0).astype(jnp.float32)
        return is_present * clipped, is_present * (0.5 - is_longer), is_present * is_longer, is_present

    def finalize(combined, clip_norm, key):
        total, bits, num_clipped, num_clients = combined
        delta_key, bit_key = jax.random.split(key)
        delta_deviation = delta_multiplier * clip_norm * share
        total = total + delta_deviation * jax.random.normal(delta_key, total.shape, total.dtype)
        within = (bits + bit_deviation * share * jax.random.normal(bit_key)) / cohort + 0.5
        new_clip_norm = clip_norm * jnp.exp(-rate * (within - quantile))
        metrics = {
            "privacy/clipped": (num_clipped, num_clients),
            "privacy/deviation": (delta_deviation / cohort, jnp.float32(1)),
            "privacy/clip": (clip_norm, jnp.float32(1)),
        }
        return total / cohort, new_clip_norm, metrics

    mechanism = make_central("adaptive", VectorReduce(map_adaptive, "add", finalize), cohort)
    return mechanism._replace(init_memory=lambda shapes: jnp.float32(clip))


def local_gaussian(clip: Positive, noise: Positive, cohort: float, real: float) -> UplinkTransform:
    """Local: each client clips its delta to the Euclidean norm `clip`, and adds Gaussian noise of
    deviation `noise` * `clip`."""
    return _make_local("local_gaussian", clip, noise, jax.random.normal, 2)


def local_laplace(clip: Positive, noise: Positive, cohort: float, real: float) -> UplinkTransform:
    """Local: each client clips its delta to the sum of magnitudes `clip`, and adds Laplace noise of
    scale `noise` * `clip`."""
    return _make_local("local_laplace", clip, noise, jax.random.laplace, 1)


def map_clipped(clip: float) -> Callable[[Array, Array, Any], Any]:
    """Returns a `VectorReduce.map`: (clipped vector, whether it was longer, 1)."""

    def map_client(vector: Array, weight: Array, context: ClientContext) -> tuple[Array, Array, Array]:
        del context
        clipped, is_longer = clip_vector(vector, clip)
        is_present = (weight > 0).astype(jnp.float32)
        return is_present * clipped, is_present * is_longer, is_present

    return map_client


def make_central(name: str, reduce: VectorReduce, cohort: float) -> UplinkTransform:
    """Returns the transform of a mechanism whose noise is the server's."""
    return UplinkTransform(
        "privacy",
        name,
        reduce=reduce,
        check=_check_bounded("privacy", name),
        requires_uniform_weights=True,
        reported_cohort_size=max(1, round(cohort)),
    )


def _make_local(name: str, clip: float, noise: float, draw: Callable, order: int) -> UplinkTransform:
    def send(value: UplinkValue, context: ClientContext, client_state: Any) -> TransformOutput:
        vector, is_longer = clip_vector(flatten(value.deltas), clip, order)
        vector = vector + noise * clip * draw(context.key, vector.shape, vector.dtype)
        value = value._replace(deltas=unflatten(vector, value.deltas))
        return TransformOutput(value, client_state, {"privacy/clipped": (is_longer.astype(jnp.float32), jnp.float32(1))})

    kind = "local privacy"
    return UplinkTransform(kind, name, send=send, check=_check_bounded(kind, name), requires_uniform_weights=True)


def _check_bounded(kind: str, name: str) -> Callable[[str, UplinkValue], None]:
    """Returns a check against class means, which have no bound, and running statistics."""

    def check(method: str, shapes: UplinkValue) -> None:
        if has_statistics(shapes.deltas):
            raise ValueError(
                f"{kind} {name!r} adds noise to all that clients of {method} send, which makes running "
                "variances negative: set statistics='local', which sends none, or use a network without "
                "them, such as norm='group'"
            )
        if shapes.class_means:
            what = "class means beside its delta" if shapes.deltas else "class means"
            raise ValueError(
                f"{kind} {name!r} clips deltas; {method} sends {what}, whose counts reveal the client's "
                "numbers of examples per class and have no bound"
            )

    return check


MECHANISMS: dict[str, Callable[..., Any]] = {
    "gaussian": gaussian,
    "adaptive": adaptive,
    "local_gaussian": local_gaussian,
    "local_laplace": local_laplace,
    **STRATEGIES,  # `dp_matrix_mechanism.py` makes their transforms
    **INTEGER_SUMS,  # `secure_sum.py` makes theirs
}
