"""Vision transformers with visual prompts: ViT-S/B/L of public checkpoints, and smaller ones.

Dosovitskiy et al. An image is worth 16x16 words. ICLR 2021. https://arxiv.org/abs/2010.11929
Jia, Tang, Chen, Cardie, Belongie, Hariharan, Lim. Visual prompt tuning. ECCV 2022.
https://arxiv.org/abs/2203.12119

Blocks are pre-norm, with the exact GELU; the features are the final [cls] after the last norm.
Weights of all blocks are stacked on a leading axis [depth] and scanned over, to compile in the
time of one block. A kernel of a block is only used as `x @ kernel`, as in `transformer.py`.

Prompts follow [cls], after positions have been added: shallow ones [n, width] pass through the
network, deep ones [depth, n, width] replace the previous block's. They are the entry "prompts" of
`params`, drawn last, so that all other weights do not depend on them.
"""

import itertools
import math
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from fedjax_core.nn.kernels.attention import attend, gelu
from fedjax_core.option_types import Limit, Positive, Width

Array = jax.Array
Hidden = Annotated[float, Limit("in (0, 2**10]", lambda v: 0 < v <= 2**10)]
Prompts = Annotated[int, Limit("in [0, 2**20]", lambda v: 0 <= v <= 2**20)]


class Leaves(nnx.Module):
    """Parameters by name."""

    kernel: nnx.Param
    scale: nnx.Param
    bias: nnx.Param

    def __init__(self, **arrays: Array):
        for name, array in arrays.items():
            setattr(self, name, nnx.Param(array))


class Blocks(nnx.Module):
    """Weights of all blocks, leaves [depth, ...]; `block` applies one."""

    def __init__(self, depth: int, width: int, heads: int, hidden: int, rngs: nnx.Rngs):
        each, one, zero = width // heads, jnp.ones, jnp.zeros
        qkv, out, mlp1, mlp2 = _draw(rngs, depth, (width, 3, heads, each), (heads, each, width), (width, hidden), (hidden, width))
        self.norm1 = Leaves(scale=one((depth, width)), bias=zero((depth, width)))
        self.qkv = Leaves(kernel=qkv, bias=zero((depth, 3, heads, each)))
        self.out = Leaves(kernel=out, bias=zero((depth, width)))
        self.norm2 = Leaves(scale=one((depth, width)), bias=zero((depth, width)))
        self.mlp1 = Leaves(kernel=mlp1, bias=zero((depth, hidden)))
        self.mlp2 = Leaves(kernel=mlp2, bias=zero((depth, width)))


class ViT(nnx.Module):
    """Patch embedding with [cls] and positions, blocks, a norm, a linear head on the final [cls]."""

    # Kernels [..., width, 3, heads, each] are sharded by inputs, [..., heads, each, width] by heads.
    model_axes: ClassVar = {
        "patches/kernel": -1,
        "qkv/kernel": -4,
        "out/kernel": -3,
        "mlp1/kernel": -1,
        "mlp2/kernel": -2,
        "head/kernel": -1,
    }

    def __init__(
        self,
        classes: int,
        input_shape: tuple[int, int, int],
        *,
        patch: Width = 16,
        width: Width = 384,
        depth: Width = 12,
        heads: Width = 6,
        mlp: Hidden = 4,
        prompts: Prompts = 0,
        deep: bool = True,
        epsilon: Positive = 1e-6,
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs,
    ):
        """Initializes the network.

        Weights are N(0, 0.02^2), biases zero, prompts uniform within sqrt(6 / (3 patch^2 + width))
        as in VPT's code.

        Args:
          patch: height and width of a patch, a divisor of H and W.
          width: of a token, the features' number D.
          depth: number of blocks.
          heads: number of attention heads, a divisor of the width.
          mlp: width of a block's hidden layer, as a multiple of `width`.
          prompts: n, in the first block or in each; 0: none.
          deep: whether each block has prompts of its own.
          epsilon: of the norms: 1e-6 as in the first release and timm; files of transformers have
            1e-12.

        Raises:
          ValueError: a size is out of range, or does not divide.
        """
        for name, size in {"patch": patch, "width": width, "depth": depth, "heads": heads}.items():
            if size < 1:
                raise ValueError(f"{name}={size} of a vit must be at least 1")
        if prompts < 0:
            raise ValueError(f"prompts={prompts} of a vit must be 0 (none) or more")
        if int(width * mlp) < 1:
            raise ValueError(f"mlp={mlp} of a vit leaves no hidden layer at width={width}")
        if width % heads:
            raise ValueError(f"heads={heads} of a vit do not divide its width={width}")
        rows, columns, channels = input_shape
        if rows % patch or columns % patch:
            raise ValueError(f"patch={patch} of a vit does not divide images of {rows} x {columns}")
        self.patch, self.deep, self.epsilon = patch, deep, epsilon
        places = 1 + (rows // patch) * (columns // patch)
        kernel, cls, positions = _draw(rngs, 1, (patch, patch, channels, width), (width,), (places, width))
        self.patches = Leaves(kernel=kernel[0], bias=jnp.zeros(width))
        self.cls, self.positions = nnx.Param(cls[0]), nnx.Param(positions[0])
        self.blocks = Blocks(depth, width, heads, int(width * mlp), rngs)
        self.norm = Leaves(scale=jnp.ones(width), bias=jnp.zeros(width))
        self.head = nnx.Linear(width, classes, dtype=dtype, rngs=rngs)
        if prompts:
            bound = (6 / (3 * patch**2 + width)) ** 0.5
            shape = (depth, prompts, width) if deep else (prompts, width)
            self.prompts = nnx.Param(jax.random.uniform(rngs.params(), shape, minval=-bound, maxval=bound))

    def body(self, x: Array, *, key: Array | None, train: bool, batch: bool, mask: Array | None) -> tuple[Array, dict[str, Array]]:
        """Returns features [B, D] and the tokens [B, T, D] by name, of x [B, H, W, C].

        Names are "embedding" (before prompts), "block1", ... (with prompts), "final" (normalized;
        without deep prompts).
        """
        del key, train, batch, mask
        tokens = x = self._embed(x)
        own = self.prompts[...].astype(x.dtype) if hasattr(self, "prompts") else None
        if own is not None and not self.deep:
            x, own = _insert(x, own), None

        def step(x: Array, given: tuple[dict, Array | None]) -> tuple[Array, Array]:
            weights, own = given
            y = block(weights, x if own is None else _insert(x, own), self.epsilon)
            return (y if own is None else jnp.concatenate([y[:, :1], y[:, 1 + len(own) :]], 1)), y

        stacked = nnx.to_pure_dict(nnx.state(self.blocks, nnx.Param))
        x, states = lax.scan(step, x, (stacked, own))
        final = _norm(x, self.norm.scale[...], self.norm.bias[...], self.epsilon)
        seen = {f"block{i + 1}": states[i] for i in range(len(states))}
        return final[:, 0], {"embedding": tokens, **seen, "final": final}

    def _embed(self, x: Array) -> Array:
        """Embeds [B, H, W, C] as [cls] and patches with positions, [B, T, D]."""
        b, h, w, c = x.shape
        tiles = x.reshape(b, h // self.patch, self.patch, w // self.patch, self.patch, c)
        embedded = jnp.einsum("bhiwjc,ijcd->bhwd", tiles, self.patches.kernel[...].astype(x.dtype))
        embedded = embedded.reshape(b, -1, embedded.shape[-1]) + self.patches.bias[...].astype(x.dtype)[None, None]
        cls = jnp.broadcast_to(self.cls[...].astype(x.dtype), (b, 1, embedded.shape[-1]))
        return jnp.concatenate([cls, embedded], 1) + self.positions[...].astype(x.dtype)[None]


def block(weights: dict[str, dict[str, Array]], x: Array, epsilon: float) -> Array:
    """Applies a block to x [B, T, D]: attention and a two-layer perceptron, each after a norm.

    `weights` are those of `Blocks` without the leading axis.
    """
    w = jax.tree.map(lambda leaf: leaf.astype(x.dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, weights)
    y = _norm(x, **weights["norm1"], epsilon=epsilon)
    qkv = _times(y, w["qkv"]["kernel"]).reshape(*x.shape[:2], *w["qkv"]["bias"].shape) + w["qkv"]["bias"][None, None]
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    x = x + _times(attend(q, k, v), w["out"]["kernel"]) + w["out"]["bias"][None, None]
    y = _norm(x, **weights["norm2"], epsilon=epsilon)
    y = gelu(y @ w["mlp1"]["kernel"] + w["mlp1"]["bias"][None, None])
    return x + y @ w["mlp2"]["kernel"] + w["mlp2"]["bias"][None, None]


def _times(x: Array, kernel: Array) -> Array:
    """Returns x [..., I] @ kernel, flattened to [I, O]; or @ a kernel with an adapter (`adapters.py`)."""
    return x @ (kernel.reshape(x.shape[-1], -1) if isinstance(kernel, jax.Array | np.ndarray) else kernel)


def _norm(x: Array, scale: Array, bias: Array, epsilon: float) -> Array:
    """Normalizes tokens [B, T, D], in float32."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, -1, keepdims=True)
    slope = lax.rsqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + epsilon)
    return (centred * slope * scale[None, None] + bias[None, None]).astype(x.dtype)


def _insert(x: Array, prompts: Array) -> Array:
    """Inserts prompts [n, D] after the first of the tokens [B, T, D]."""
    own = jnp.broadcast_to(prompts[None], (len(x), *prompts.shape))
    return jnp.concatenate([x[:, :1], own, x[:, 1:]], 1)


def _draw(rngs: nnx.Rngs, number: int, *shapes: tuple[int, ...]) -> list[Array]:
    """Draws N(0, 0.02^2) arrays [number, *shape], in one draw to compile fast."""
    sizes = [math.prod(shape) for shape in shapes]
    drawn = 0.02 * jax.random.normal(rngs.params(), (number, sum(sizes)))
    parts = jnp.split(drawn, list(itertools.accumulate(sizes))[:-1], 1)
    return [part.reshape(number, *shape) for part, shape in zip(parts, shapes, strict=True)]
