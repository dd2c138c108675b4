"""A recurrent network that predicts the next token at each position.

Hochreiter, Schmidhuber. Long short-term memory. Neural Computation 9(8), 1997. The gates are
ordered input, forget, cell, output, and the forget gate's bias starts at 1 (Jozefowicz, Zaremba,
Sutskever 2015).

  published as                          options
  Shakespeare (McMahan et al. 2017)     lstm(embedding=8, width=256, layers=2)
  StackOverflow (Reddi et al. 2021)     lstm(embedding=96, width=670, project=96)
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_core.nn.layers import dropout
from fedjax_core.option_types import AtLeastOne, BelowOne, Width
from fedjax_core.task import check_tokens

Array = jax.Array


class Recurrence(nnx.Module):
    """One layer, [B, T, inputs] -> [B, T, width], from a zero state."""

    def __init__(self, inputs: int, width: int, *, rngs: nnx.Rngs):
        draw = nnx.initializers.glorot_uniform()
        self.kernel = nnx.Param(draw(rngs.params(), (inputs, 4 * width), jnp.float32))
        self.recurrent = nnx.Param(nnx.initializers.orthogonal()(rngs.params(), (width, 4 * width), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(4 * width).at[width : 2 * width].set(1.0))

    def __call__(self, x: Array) -> Array:
        kernel, recurrent, bias = (leaf[...].astype(x.dtype) for leaf in (self.kernel, self.recurrent, self.bias))
        fed = x @ kernel + bias[None, None]  # for all positions at once; only the other product is sequential

        def step(carry: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
            h, c = carry
            i, f, g, o = jnp.split(now + h @ recurrent, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((len(x), recurrent.shape[0]), x.dtype)
        return jnp.swapaxes(jax.lax.scan(step, (zero, zero), jnp.swapaxes(fed, 0, 1))[1], 0, 1)


class LSTM(nnx.Module):
    """Embedding of token ids [T], recurrent layers, a linear head at each position."""

    model_axes: ClassVar = {
        "embedding": -1,
        "head/kernel": -1,
    }  # recurrences are not sharded, since devices would communicate at each token

    def __init__(
        self,
        classes: int,
        input_shape: tuple[int, ...],
        *,
        embedding: Width = 96,
        width: Width = 256,
        layers: AtLeastOne = 1,
        project: Width | None = None,
        dropout: BelowOne = 0.0,
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs,
    ):
        """Initializes the network.

        Args:
          classes: V, the number of tokens.
          embedding: width of a token's embedding.
          width: of each layer.
          layers: number of layers.
          project: width of a linear map before the head; None: no such map. D is this, or `width`.
          dropout: rate after each layer.
        """
        del input_shape
        self.dtype, self.rate, self.layers = dtype or jnp.float32, dropout, layers
        self.embedding = nnx.Param(0.05 * jax.random.normal(rngs.params(), (classes, embedding)))
        for i in range(layers):
            setattr(self, f"layer{i + 1}", Recurrence(width if i else embedding, width, rngs=rngs))
        if project is not None:
            self.project = nnx.Linear(width, project, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(width if project is None else project, classes, dtype=dtype, rngs=rngs)

    def body(self, x: Array, *, key: Array | None, train: bool, batch: bool, mask: Array | None) -> tuple[Array, dict[str, Array]]:
        """Returns features [B, T, D] and the layers by name, of ids x [B, T]."""
        del batch, mask
        check_tokens(x, len(self.embedding[...]), "lstm")
        x, seen = jnp.asarray(self.embedding[...])[x].astype(self.dtype), {}
        keys = [None] * self.layers if key is None else jax.random.split(key, self.layers)
        for i in range(self.layers):
            x = seen[f"layer{i + 1}"] = getattr(self, f"layer{i + 1}")(x)
            x = dropout(x, self.rate, keys[i], train)
        return (self.project(x) if hasattr(self, "project") else x), seen
