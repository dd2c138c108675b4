"""Distributed differential privacy: the arithmetic that secure aggregation imposes on a sum.

Each client clips its delta, rotates it, rounds it to integers, adds its share of the noise, and
sends it modulo 2^b. The server gets the sum modulo 2^b and nothing else, and inverts. `IntegerSum`
(`privacy/distributed_noise.py`) has the papers, the granularity and the accounting.

The rotation, a Walsh-Hadamard transform with random signs that all clients share, spreads a large
coordinate over all, so that fewer bits are enough. Rounding is unbiased, and drawn again while the
rounded vector is longer than its bound. A sum that leaves [-2^(b-1), 2^(b-1)) wraps around.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array
from fedjax_core.privacy.distributed_noise import IntegerSum
from fedjax_core.training.private_gradient import CLIP_MARGIN
from fedjax_core.uplink.dp_mechanisms import clip_vector, make_central
from fedjax_core.uplink.transform import ClientContext, TransformOutput, UplinkTransform, UplinkValue, VectorReduce

MOST_POISSON = 2e4  # mean from which on the float32 draws of Poisson noise are not exact enough
_ROTATION_SEED = 0x726F74


def rotate(vector: Array, signs: Array) -> Array:
    """Returns the orthogonal transform of a vector [d], d a power of two."""
    size, x = len(vector), vector * signs
    for level in range(size.bit_length() - 1):
        pairs = x.reshape(-1, 2, 1 << level)
        x = jnp.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1).reshape(-1)
    return x / math.sqrt(size)


def rotate_back(vector: Array, signs: Array) -> Array:
    """Inverts `rotate`."""
    return rotate(vector, jnp.ones_like(signs)) * signs


def round_within(vector: Array, bound: float, key: Array) -> Array:
    """Rounds a vector to integers, up or down without bias, to a norm of at most `bound` (float32)."""
    floor = jnp.floor(vector)

    def draw(key):
        return floor + (jax.random.uniform(key, vector.shape) < vector - floor)

    def is_long(carry):
        return jnp.sum(carry[1] ** 2) > (CLIP_MARGIN * bound) ** 2

    def redraw(carry):
        key = jax.random.fold_in(carry[0], 0)
        return key, draw(key)

    return jax.lax.while_loop(is_long, redraw, (key, draw(key)))[1]


def draw_skellam(key: Array, size: int, variance: float) -> Array:
    """Draws the difference of two Poisson variables, int32 [size]."""
    up, down = jax.random.poisson(key, variance / 2, (2, size))
    return up - down


def draw_discrete_gaussian(key: Array, size: int, variance: float) -> Array:
    """Draws integers k with probability proportional to exp(-k^2 / (2 variance)), int32 [size].

    Canonne, Kamath, Steinke. The Discrete Gaussian for Differential Privacy. NeurIPS 2020,
    Algorithm 3: discrete Laplace draws, each accepted with a probability.
    """
    t = math.floor(math.sqrt(variance)) + 1

    def draw(carry):
        key, values, is_done = carry
        key, sign_key, size_key, accept_key = jax.random.split(key, 4)
        # geometric: P(m) = (1 - 1/e^(1/t)) e^(-m/t)
        m = jnp.floor(-t * jnp.log1p(-jax.random.uniform(size_key, (size,))))
        negative = jax.random.bernoulli(sign_key, shape=(size,))
        accept = jnp.exp(-((m - variance / t) ** 2) / (2 * variance)) > jax.random.uniform(accept_key, (size,))
        accept &= ~(negative & (m == 0))  # 0 has one sign
        new = jnp.where(negative, -m, m).astype(jnp.int32)
        return key, jnp.where(is_done, values, jnp.where(accept, new, values)), is_done | accept

    start = key, jnp.zeros(size, jnp.int32), jnp.zeros(size, bool)
    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), draw, start)[1]


def find_most_bits(arithmetic: IntegerSum) -> int:
    """Returns the most bits, at most those given, whose Poisson variables are small enough for float32."""
    bits = arithmetic.bits  # the fewest that the clients' sum allows have a mean of at most 2
    while arithmetic._replace(bits=bits).variance / arithmetic.clients / 2 > MOST_POISSON:
        bits -= 1
    return bits


def make_mechanism(arithmetic: IntegerSum) -> UplinkTransform:
    """Returns the transform of a mechanism for cohorts of `arithmetic.clients`.

    Raises:
      ValueError: the modulus is too small; Poisson noise is too large for float32.
    """
    size, clients, step, clip = arithmetic.size, arithmetic.clients, arithmetic.step, arithmetic.clip
    share, bits, bound = arithmetic.variance / clients, arithmetic.bits, arithmetic.l2
    if arithmetic.noise == "skellam" and share / 2 > MOST_POISSON:
        raise ValueError(
            f"privacy.mechanism='skellam': {clients} clients with bits={bits} draw Poisson variables of mean {share / 2:.3g}, "
            f"too large for draws in float32; take 'skellam(bits={find_most_bits(arithmetic)})', more clients in a round, or "
            "'discrete_gaussian'"
        )
    draw_noise = draw_skellam if arithmetic.noise == "skellam" else draw_discrete_gaussian

    def signs_of(memory: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(_ROTATION_SEED), memory)
        return jax.random.rademacher(key, (size,), jnp.float32)

    def send(value: UplinkValue, context: ClientContext, client_state: Any) -> TransformOutput:
        del context
        return TransformOutput(value, client_state, wire=jnp.zeros(math.ceil(size * bits / 8), jnp.uint8))

    def map_client(vector: Array, weight: Array, context: ClientContext) -> tuple[Array, Array, Array]:
        rounding_key, noise_key = jax.random.split(context.key)
        clipped, is_longer = clip_vector(vector, clip)
        rotated = rotate(jnp.pad(clipped, (0, size - len(vector))), signs_of(context.memory))
        integers = round_within(rotated / step, bound, rounding_key).astype(jnp.int32)
        message = (integers + draw_noise(noise_key, size, share)).astype(jnp.uint32)
        is_present = (weight > 0).astype(jnp.float32)
        return jnp.where(weight > 0, message, 0), is_present * is_longer, is_present

    def finalize(combined: Any, memory: Array, key: Array) -> tuple[Array, Array, dict]:
        del key
        total, num_clipped, num_clients = combined  # modulo 2^32, of which 2^bits is a divisor
        unused = jnp.uint32(32 - bits)
        signed = jax.lax.bitcast_convert_type(total << unused, jnp.int32) >> unused.astype(jnp.int32)
        mean = rotate_back(signed.astype(jnp.float32) * step, signs_of(memory)) / clients
        deviation = jnp.float32(arithmetic.multiplier * clip / clients), jnp.float32(1)
        metrics = {"privacy/clipped": (num_clipped, num_clients), "privacy/deviation": deviation}
        return mean[: arithmetic.parameters], memory + 1, metrics

    mechanism = make_central(arithmetic.noise, VectorReduce(map_client, "add", finalize), clients)
    return mechanism._replace(send=send, init_memory=lambda shapes: jnp.uint32(0))
