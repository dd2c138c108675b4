"""A small causal transformer that predicts the next token at each position, as in federated benchmarks.

Vaswani et al. Attention is all you need. NeurIPS 2017. https://arxiv.org/abs/1706.03762

  published as                                            options
  StackOverflow (Wang et al. 2021, arXiv 2107.06917)      causal(width=96, layers=3, heads=8, hidden=1536)

As there, embeddings are scaled by sqrt(width), positions are sinusoidal, and layers have ReLU and
normalize after their shortcuts. Departure: the head has a kernel of its own, not the embedding's,
for methods that keep a head with their clients.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedjax_core.nn.kernels.attention import attend, split_heads
from fedjax_core.nn.layers import dropout
from fedjax_core.option_types import AtLeastOne, BelowOne, Width
from fedjax_core.task import check_tokens

Array = jax.Array


class Layer(nnx.Module):
    """Causal attention and a hidden layer, each followed by a shortcut and a norm."""

    def __init__(self, width: int, number: int, hidden: int, *, dtype: jax.typing.DTypeLike | None, rngs: nnx.Rngs):
        self.number = number
        self.qkv, self.out = nnx.Linear(width, 3 * width, dtype=dtype, rngs=rngs), nnx.Linear(width, width, dtype=dtype, rngs=rngs)
        self.mlp1, self.mlp2 = nnx.Linear(width, hidden, dtype=dtype, rngs=rngs), nnx.Linear(hidden, width, dtype=dtype, rngs=rngs)
        self.norm1, self.norm2 = (nnx.LayerNorm(width, dtype=dtype, rngs=rngs) for _ in range(2))

    def __call__(self, x: Array, rate: float, keys: list[Array | None], train: bool) -> Array:
        """Maps [B, T, D] to [B, T, D]."""
        b, t, _ = x.shape
        q, k, v = (split_heads(part, self.number) for part in jnp.split(self.qkv(x), 3, -1))
        earlier = jnp.broadcast_to(np.tri(t, dtype=bool)[None], (b, t, t))
        seen = attend(q, k, v, earlier)
        x = self.norm1(x + dropout(self.out(seen.reshape(x.shape)), rate, keys[0], train))
        return self.norm2(x + dropout(self.mlp2(jax.nn.relu(self.mlp1(x))), rate, keys[1], train))


class Causal(nnx.Module):
    """Embedding of token ids [T], layers, a linear head at each position."""

    # Three kernels side by side are sharded by inputs, since a shard of their outputs is no shard of each.
    model_axes: ClassVar = {
        "embedding": -1,
        "qkv/kernel": -2,
        "out/kernel": -2,
        "mlp1/kernel": -1,
        "mlp2/kernel": -2,
        "head/kernel": -1,
    }

    def __init__(
        self,
        classes: int,
        input_shape: tuple[int, ...],
        *,
        width: Width = 96,
        layers: AtLeastOne = 3,
        heads: AtLeastOne = 8,
        hidden: Width = 1536,
        dropout: BelowOne = 0.0,
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs,
    ):
        """Initializes the network.

        Args:
          classes: V, the number of tokens.
          width: of a token, the features' number D.
          layers: number of layers.
          heads: number of attention heads, a divisor of the width.
          hidden: width of a layer's hidden layer.
          dropout: rate before each shortcut.

        Raises:
          ValueError: the heads do not divide the width, or it is odd.
        """
        del input_shape
        if width % heads or width % 2:
            raise ValueError(f"heads={heads} of a causal transformer must divide its width={width}, which must be even")
        self.dtype, self.rate, self.layers = dtype or jnp.float32, dropout, layers
        self.embedding = nnx.Param(jax.random.uniform(rngs.params(), (classes, width), minval=-0.05, maxval=0.05))
        for i in range(layers):
            setattr(self, f"layer{i + 1}", Layer(width, heads, hidden, dtype=dtype, rngs=rngs))
        self.head = nnx.Linear(width, classes, dtype=dtype, rngs=rngs)

    def body(self, x: Array, *, key: Array | None, train: bool, batch: bool, mask: Array | None) -> tuple[Array, dict[str, Array]]:
        """Returns features [B, T, D] and the layers by name, of ids x [B, T]."""
        del batch, mask
        check_tokens(x, len(self.embedding[...]), "causal")
        table, seen = jnp.asarray(self.embedding[...]), {}
        x = (table[x] * table.shape[1] ** 0.5 + sinusoidal_positions(x.shape[1], table.shape[1])[None]).astype(self.dtype)
        keys = [None] * 2 * self.layers if key is None else jax.random.split(key, 2 * self.layers)
        for i in range(self.layers):
            x = seen[f"layer{i + 1}"] = getattr(self, f"layer{i + 1}")(x, self.rate, [keys[2 * i], keys[2 * i + 1]], train)
        return x, seen


def sinusoidal_positions(length: int, width: int) -> np.ndarray:
    """Returns [T, D] interleaved sines and cosines of positions (Section 3.5)."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2)[None] / width)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, width).astype(np.float32)
