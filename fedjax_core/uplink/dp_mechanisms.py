"""Differential privacy at user level: what one client sends is clipped, and noise covers it.

Central: the server is trusted. It clips what each client sends, adds up, adds noise to the sum once, and divides by a fixed number
of clients, never by how many came; noise that is correlated over rounds is in `dp_matrix_mechanism.py`. Local: nobody is trusted,
each client adds the noise to what it sends itself.

One client's part is all that it sends as one vector: the whole delta, and SCAFFOLD's control variate beside the model's. Clipped
together, they need no bounds of their own. A vector that is not finite counts as zeros, so that it moves the sum by less than the
clip. Running statistics may not be part of it: with noise a running variance becomes negative.

Where the server's noise stands: behind everything else (`ORDER`), so attackers and compressed messages are clipped like others.
The draws of the server's noise come from the server's stream of keys, which no client sees.

  clip S, noise z     deviation of the sum's noise: z * S, for the `real` number of clients in a cohort
  cohort, real        clients that are expected to come back from a simulated cohort, and from that of the deployment whose
                      epsilon is told
"""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from fedjax_core import option_types
from fedjax_core.algorithm import Array
from fedjax_core.option_types import Positive
from fedjax_core.privacy.matrix_factorization import STRATEGIES
from fedjax_core.uplink.flatten import of_vector, vector
from fedjax_core.uplink.statistics import has_statistics
from fedjax_core.uplink.transform import Carried, Link, Passed, Reduction

GIVEN = ("clip", "noise", "cohort", "real", "participation")  # what mechanisms take beside the options in their specs
Quantile = Annotated[float, option_types.Limit("in (0, 1)", lambda v: 0 < v < 1)]
SAFETY = 1 - 1e-5  # the length of a clipped vector is found in float32; rounding must not carry it above the clip


def clipped(row: Array, clip: Array | float, order: int = 2) -> tuple[Array, Array]:
    """(the vector [D] scaled to a norm of at most `clip`, [] whether it was longer); zeros for one that is not finite.

    Args:
      row: float32.
      clip: the largest norm.
      order: 2, or 1 for the sum of magnitudes.
    """
    fits = jnp.all(jnp.isfinite(row))
    row = jnp.where(fits, row, 0)
    largest = jnp.max(jnp.abs(row), initial=0)
    scale = jnp.where(largest > 1e12, 1e-25, jnp.where(largest < 1e-12, 1e25, 1.0))  # so that no square overflows or vanishes
    shape = row * scale
    size = jnp.sqrt(jnp.sum(shape * shape)) if order == 2 else jnp.sum(jnp.abs(shape))
    long = size > SAFETY * clip * scale
    scaled = shape * (SAFETY * clip / jnp.maximum(size, 1e-30))
    return jnp.where(long, scaled, row), long | ~fits


def gaussian(clip: Positive, noise: Positive, cohort: float, real: float) -> Link:
    """Central, with a fixed clip: McMahan, Ramage, Talwar, Zhang. Learning Differentially Private Recurrent Language Models. ICLR
    2018; with `real` above `cohort` the noise of a larger cohort, scaled to the simulated one."""

    def combine(joined, memory, key):
        total, long, number = joined
        deviation = noise * clip * (cohort / real)
        total = total + deviation * jax.random.normal(key, total.shape, total.dtype)
        one = jnp.float32(1)
        said = {"privacy/clipped": (long, number), "privacy/deviation": (jnp.float32(deviation / cohort), one)}
        return total / cohort, memory, said

    return central("gaussian", Reduction(lifted(clip), "add", combine), cohort)


def adaptive(
    clip: Positive,
    noise: Positive,
    cohort: float,
    real: float,
    *,
    quantile: Quantile = 0.5,
    rate: Positive = 0.2,
    deviation: Positive | None = None,
) -> Link:
    """Central, with a clip that follows a quantile of the clients' norms.

    Andrew, Thakkar, McMahan, Ramaswamy. Differentially Private Learning with Adaptive Clipping. NeurIPS 2021, Algorithm 1. `clip`
    is the first one. Each client also sends whether its norm is within the clip; that sum has noise of its own, and both together
    are as private as one Gaussian mechanism with multiplier z (Theorem 1): 1 / z^2 = 1 / z_delta^2 + 1 / (2 sigma_b)^2.

    Args:
      clip, noise, cohort, real: see the module; `noise` is z.
      quantile: gamma, the fraction of clients whose deltas are to be within the clip.
      rate: eta_C.
      deviation: sigma_b, of the noise on the sum of indicators in the real cohort; None: a twentieth of the cohort, at least z.

    Raises:
      ValueError: the deviation is not above half of z.
    """
    of_bits = max(real / 20, noise) if deviation is None else deviation
    if 2 * of_bits <= noise:
        raise ValueError(f"privacy.mechanism: deviation={of_bits:g} must be above half of the noise multiplier {noise:g}")
    of_delta = (noise**-2 - (2 * of_bits) ** -2) ** -0.5
    share = cohort / real

    def lift(row, weight, sender):
        bound = sender.memory
        part, long = clipped(row, bound)
        there = (weight > 0).astype(jnp.float32)
        return there * part, there * (0.5 - long), there * long, there

    def combine(joined, bound, key):
        total, bits, long, number = joined
        k_delta, k_bits = jax.random.split(key)
        spread = of_delta * bound * share
        total = total + spread * jax.random.normal(k_delta, total.shape, total.dtype)
        within = (bits + of_bits * share * jax.random.normal(k_bits)) / cohort + 0.5
        following = bound * jnp.exp(-rate * (within - quantile))
        said = {"clipped": (long, number), "deviation": (spread / cohort, jnp.float32(1)), "clip": (bound, jnp.float32(1))}
        return total / cohort, following, {f"privacy/{name}": pair for name, pair in said.items()}

    made = central("adaptive", Reduction(lift, "add", combine), cohort)
    return made._replace(memory=lambda like: jnp.float32(clip))


def local_gaussian(clip: Positive, noise: Positive, cohort: float, real: float) -> Link:
    """Local: each client clips its delta to the Euclidean norm `clip` and adds Gaussian noise of deviation `noise` * `clip`."""
    return _local("local_gaussian", clip, noise, jax.random.normal, 2)


def local_laplace(clip: Positive, noise: Positive, cohort: float, real: float) -> Link:
    """Local: each client clips its delta to the sum of magnitudes `clip` and adds Laplace noise of scale `noise` * `clip`."""
    return _local("local_laplace", clip, noise, jax.random.laplace, 1)


def lifted(clip: float) -> Callable[[Array, Array, Any], Any]:
    """One client's contribution: its clipped vector, whether it was longer, and that it came."""

    def lift(row: Array, weight: Array, sender: Any) -> tuple[Array, Array, Array]:
        del sender
        part, long = clipped(row, clip)
        there = (weight > 0).astype(jnp.float32)
        return there * part, there * long, there

    return lift


def central(name: str, reduction: Reduction, cohort: float) -> Link:
    """The link of a mechanism whose noise is the server's."""
    return Link("privacy", name, reduction=reduction, check=_bounded("privacy", name), alike=True, counted=max(1, round(cohort)))


def _local(name: str, clip: float, noise: float, draw: Callable, order: int) -> Link:
    def send(value: Carried, sender, kept):
        row, long = clipped(vector(value.deltas), clip, order)
        row = row + noise * clip * draw(sender.key, row.shape, row.dtype)
        there = (sender.examples > 0).astype(jnp.float32)
        return Passed(value._replace(deltas=of_vector(row, value.deltas)), kept, {"privacy/clipped": (there * long, there)})

    return Link("local privacy", name, send=send, check=_bounded("local privacy", name), alike=True)


def _bounded(kind: str, name: str) -> Callable[[str, Carried], None]:
    """Refuses what is sent beside the delta, and has no bound; and running statistics, which noise makes senseless."""

    def check(method: str, like: Carried) -> None:
        if has_statistics(like.deltas):
            raise ValueError(
                f"{kind} {name!r} adds noise to all that {method}'s clients send, and with noise a running variance becomes "
                "negative: set statistics='local', which sends none, or take a network without them, such as norm='group'"
            )
        if like.classes:
            what = "class means" if not like.deltas else "class means beside its delta"
            raise ValueError(
                f"{kind} {name!r} clips deltas; {method} sends {what}, whose counts tell how many examples of each class a client "
                "has, and which nothing bounds"
            )

    return check


MECHANISMS: dict[str, Callable[..., Any]] = {
    "gaussian": gaussian,
    "adaptive": adaptive,
    "local_gaussian": local_gaussian,
    "local_laplace": local_laplace,
    **STRATEGIES,  # whose links `dp_matrix_mechanism.py` makes
}
