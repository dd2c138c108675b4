"""Numbers of few bits, packed into bytes."""

import jax.numpy as jnp

from fedjax_core.algorithm import Array


def packed(codes: Array, bits: int) -> Array:
    """Codes [n] in [0, 2 ** bits) as uint8 [ceil(n * bits / 8)], the lowest bit first.

    Example:
      >>> packed(jnp.array([1, 2, 3, 0, 3]), 2).tolist()
      [57, 3]
    """
    split = (codes.astype(jnp.uint32)[:, None] >> jnp.arange(bits, dtype=jnp.uint32)[None]) & 1
    return jnp.packbits(split.astype(jnp.uint8).reshape(-1), bitorder="little")


def unpacked(words: Array, bits: int, number: int) -> Array:
    """The inverse: uint32 [number].

    Example:
      >>> unpacked(packed(jnp.array([1, 2, 3, 0, 3]), 2), 2, 5).tolist()
      [1, 2, 3, 0, 3]
    """
    split = jnp.unpackbits(words, count=number * bits, bitorder="little").reshape(number, bits).astype(jnp.uint32)
    return jnp.sum(split << jnp.arange(bits, dtype=jnp.uint32)[None], 1, dtype=jnp.uint32)
