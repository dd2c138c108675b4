"""Many short columns in order, such as each coordinate's values over a cohort.

XLA's sort on a CPU asks a comparator for each pair. A network of minima and maxima needs none: of a hundred clients it is some
eight times as fast, and compiles faster. Values are the same.

  Batcher. Sorting Networks and Their Applications. AFIPS 1968 (bitonic, with each merge's second half turned round)
"""

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array

MOST = 512  # rows: a network has log2(n)^2 / 2 stages, each compiled
BLOCK = 256  # columns at a time, which lie in a core's cache


def columns(x: Array) -> Array:
    """Each column of [C, D] in ascending order. Of a column with a NaN all may be NaN."""
    if not (1 < len(x) <= MOST and x.size):
        return jnp.sort(x, 0)
    return jax.lax.platform_dependent(x, cpu=_by_network, default=lambda x: jnp.sort(x, 0))


def _by_network(x: Array) -> Array:
    c, d = x.shape
    wide = min(BLOCK, d)
    n, blocks = 1 << (c - 1).bit_length(), -(-d // wide)
    x = jnp.pad(x, ((0, n - c), (0, blocks * wide - d)), constant_values=jnp.inf).reshape(n, blocks, wide)
    of_block = lambda i: _network(jax.lax.dynamic_index_in_dim(x, i, 1, keepdims=False))[:c]
    return jax.lax.map(of_block, jnp.arange(blocks)).swapaxes(0, 1).reshape(c, -1)[:, :d]


def _network(x: Array) -> Array:
    """[n, B], n a power of two."""
    n = len(x)
    for size in (2**i for i in range(1, n.bit_length())):
        pairs = x.reshape(n // size, 2, size // 2, -1)
        low, high = pairs[:, 0], pairs[:, 1, ::-1]
        x = jnp.concatenate([jnp.minimum(low, high), jnp.maximum(low, high)[:, ::-1]], 1).reshape(n, -1)
        for apart in (2**i for i in range(size.bit_length() - 3, -1, -1)):
            pairs = x.reshape(n // (2 * apart), 2, apart, -1)
            low, high = pairs[:, 0], pairs[:, 1]
            x = jnp.stack([jnp.minimum(low, high), jnp.maximum(low, high)], 1).reshape(n, -1)
    return x
