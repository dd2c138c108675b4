"""Layouts of published weights of ViTs and ResNets: which tensor of a file is which of our leaves.

`pretrained_weights.py` lists the layouts, and reads and writes the files. Position embeddings for
another grid of patches are interpolated as each layout's own code does.
"""

import math
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_core.algorithm import Net
from fedjax_core.storage.export_model import named_arrays

LAYOUTS = ("own", "timm", "transformers", "npz")

_INNER, _OUTER = "encoder.layer.{i}.", "Transformer/encoderblock_{i}/"
# Modules by layout: {i} is the number of a block, {p} query, key or value; {0} {1} {2} are our numbers, {a} {b} {c} one less.
_VIT = {
    "patches": ("patch_embed.proj", "embeddings.patch_embeddings.projection", "embedding"),
    "blocks.norm1": ("blocks.{i}.norm1", _INNER + "layernorm_before", _OUTER + "LayerNorm_0"),
    "blocks.qkv": (
        "blocks.{i}.attn.qkv",
        _INNER + "attention.attention.{p}",
        _OUTER + "MultiHeadDotProductAttention_1/{p}",
    ),
    "blocks.out": (
        "blocks.{i}.attn.proj",
        _INNER + "attention.output.dense",
        _OUTER + "MultiHeadDotProductAttention_1/out",
    ),
    "blocks.norm2": ("blocks.{i}.norm2", _INNER + "layernorm_after", _OUTER + "LayerNorm_2"),
    "blocks.mlp1": (
        "blocks.{i}.mlp.fc1",
        _INNER + "intermediate.dense",
        _OUTER + "MlpBlock_3/Dense_0",
    ),
    "blocks.mlp2": ("blocks.{i}.mlp.fc2", _INNER + "output.dense", _OUTER + "MlpBlock_3/Dense_1"),
    "norm": ("norm", "layernorm", "Transformer/encoder_norm"),
    "head": ("head", "classifier", "head"),
}
_TOKENS = {
    "params.cls": ("cls_token", "embeddings.cls_token", "cls"),
    "params.positions": ("pos_embed", "embeddings.position_embeddings", "Transformer/posembed_input/pos_embedding"),
}
_RESNET = {
    "stem": ("conv1", "embedder.embedder.convolution"),
    "stem_norm": ("bn1", "embedder.embedder.normalization"),
    "stage{}_block{}.conv{}": ("layer{0}.{b}.conv{2}", "encoder.stages.{a}.layers.{b}.layer.{c}.convolution"),
    "stage{}_block{}.norm{}": ("layer{0}.{b}.bn{2}", "encoder.stages.{a}.layers.{b}.layer.{c}.normalization"),
    "stage{}_block{}.shortcut": ("layer{0}.{b}.downsample.0", "encoder.stages.{a}.layers.{b}.shortcut.convolution"),
    "stage{}_block{}.shortcut_norm": ("layer{0}.{b}.downsample.1", "encoder.stages.{a}.layers.{b}.shortcut.normalization"),
    "head": ("fc", "classifier.1"),
}
_TORCH = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
MARKS = {  # tensors that only this layout has
    "timm": ("patch_embed.proj.weight", "layer1.0.conv1.weight"),
    "transformers": ("embeddings.patch_embeddings.projection.weight", "embedder.embedder.convolution.weight"),
    "npz": ("embedding/kernel",),
}
_PARTS = ("query", "key", "value")
_NEWER: dict[str, Any] = {  # names of modules in memory since version 5 of transformers
    r"^(vit|resnet)\.": "",
    r"^layers\.(\d+)\.attention\.([qkv])_proj": lambda m: f"encoder.layer.{m[1]}.attention.attention.{_PARTS['qkv'.index(m[2])]}",
    r"^layers\.(\d+)\.attention\.o_proj": r"encoder.layer.\1.attention.output.dense",
    r"^layers\.(\d+)\.mlp\.fc1": r"encoder.layer.\1.intermediate.dense",
    r"^layers\.(\d+)\.mlp\.fc2": r"encoder.layer.\1.output.dense",
    r"^layers\.": "encoder.layer.",
}
# Prefixes of a classifier's tensors.
HEADS = {"own": ("params.head.",), "timm": ("head.", "fc."), "transformers": ("classifier.",), "npz": ("head/",)}


class LeafSlice(NamedTuple):
    """The slice of a leaf that a tensor of a file is.

    Attributes:
      leaf: dotted name of our leaf.
      at: index of the slice.
      shape: of the tensor in the file.
      order: of the file's axes, after which a reshape gives the slice.
    """

    leaf: str
    at: tuple
    shape: tuple[int, ...]
    order: tuple[int, ...]


def detect_layout(names: Iterable[str], path: str | os.PathLike) -> str:
    """Returns the layout of a file, one of `LAYOUTS`, from the names of its tensors."""
    names = list(names)
    if any(name.startswith("params.") for name in names):
        return "own"
    for layout, marks in MARKS.items():
        prefixes = ("", "vit.", "resnet.") if layout == "transformers" else ("",)
        if any(prefix + mark in names for prefix in prefixes for mark in marks):
            return layout
    raise ValueError(f"{path} has none of the layouts {', '.join(LAYOUTS)}; its first tensors are {', '.join(sorted(names)[:3])}")


def map_tensors(like: Net, layout: str, where: str) -> dict[str, LeafSlice]:
    """Maps the tensors of a file of a layout to slices of a network's leaves, in its order.

    Raises:
      ValueError: the layout has no tensor for a leaf.
    """
    tensors = {}
    for leaf, value in named_arrays(like).items():
        if layout == "own":
            tensors[leaf] = LeafSlice(leaf, (), value.shape, tuple(range(value.ndim)))
            continue
        if leaf.startswith("params.prompts"):
            continue
        parts = _map_vit_leaf(leaf, value.shape, layout) if "blocks" in like.params else _map_resnet_leaf(leaf, value.shape, layout)
        if not parts:
            raise ValueError(f"{where} has no place for {leaf}; such files hold ViTs, or ResNets with batch normalisation")
        tensors |= parts
    return tensors


def map_written_tensors(net: Net, layout: str) -> dict[str, LeafSlice]:
    """Maps the tensors of a file to be written, which must hold all leaves of a network."""
    where = f"a file of layout {layout}"
    if prompts := [leaf for leaf in named_arrays(net) if leaf.startswith("params.prompts")]:
        raise ValueError(f"{where} has no place for {prompts[0]}; layout own has")
    return map_tensors(net, layout, where)


def _map_vit_leaf(leaf: str, shape: tuple[int, ...], layout: str) -> dict[str, LeafSlice]:
    column = LAYOUTS.index(layout) - 1
    if leaf in _TOKENS:
        full = (1,) * (3 - len(shape)) + shape
        return {_TOKENS[leaf][column]: LeafSlice(leaf, (), full, (0, 1, 2))}
    module, last = leaf.removeprefix("params.").rsplit(".", 1)
    if module not in _VIT:
        return {}
    separator, tensors = "/" if layout == "npz" else ".", {}
    split = module == "blocks.qkv" and layout != "timm"
    for i in range(shape[0]) if module.startswith("blocks.") else (None,):
        for p, part in enumerate(_PARTS) if split else ((None, ""),):
            axes = () if p is None else (p,) if last == "bias" else (slice(None), p)
            at = axes if i is None else (i, *axes)
            own = np.broadcast_to(0, shape)[at].shape
            key = _VIT[module][column].format(i=i, p=part) + separator + (last if layout == "npz" else _TORCH[last])
            if layout == "npz":
                tensors[key] = LeafSlice(leaf, at, own, tuple(range(len(own))))
            else:
                tensors[key] = _torch_slice(leaf, at, own, 2 if module == "blocks.out" else 3 if module == "patches" else 1)
    return tensors


def _map_resnet_leaf(leaf: str, shape: tuple[int, ...], layout: str) -> dict[str, LeafSlice]:
    module, last = leaf.partition(".")[2].rsplit(".", 1)
    names = _RESNET.get(re.sub(r"\d+", "{}", module))
    if names is None or layout == "npz" or (layout == "transformers" and module == "stem" and shape[0] != 7):
        return {}
    numbers = [int(n) for n in re.findall(r"\d+", module)]
    less = {letter: n - 1 for letter, n in zip("abc", numbers, strict=False)}
    key = names[LAYOUTS.index(layout) - 1].format(*numbers, **less)
    return {f"{key}.{_TORCH[last]}": _torch_slice(leaf, (), shape, 1 if module == "head" else 3)}


def _torch_slice(leaf: str, at: tuple, own: tuple[int, ...], inputs: int) -> LeafSlice:
    """Returns the slice of a PyTorch tensor; a kernel has `inputs` input axes, 3 of convolutions."""
    if leaf.endswith(".kernel") and inputs == 3:
        height, width, channels, features = own
        return LeafSlice(leaf, at, (features, channels, height, width), (2, 3, 1, 0))
    if leaf.endswith(".kernel"):
        return LeafSlice(leaf, at, (math.prod(own[inputs:]), math.prod(own[:inputs])), (1, 0))
    return LeafSlice(leaf, at, (math.prod(own),), (0,))


def published_name(key: str) -> str:
    """Returns the name of a transformers tensor in published files, without the model's prefix."""
    for pattern, name in _NEWER.items():
        key = re.sub(pattern, name, key)
    return key


def published_prefix(key: str, net: Net, layout: str) -> str:
    """Returns the prefix of a tensor in a published file: transformers' name of the model, else ""."""
    if layout != "transformers" or key.startswith(HEADS[layout]):
        return ""
    return "vit." if "blocks" in net.params else "resnet."


def interpolate(positions: np.ndarray, grid: tuple[int, int], layout: str, old: tuple[int, int] | None = None) -> np.ndarray:
    """Interpolates position embeddings to another grid of patches; that of [cls] is unchanged.

    Args:
      positions: [1 + old patches, D].
      grid: rows and columns of new patches.
      layout: whose interpolation to follow.
      old: rows and columns of old patches; None: a square.

    Returns:
      [1 + new patches, D].
    """
    rows, columns = old or _square(len(positions) - 1)
    image = positions[1:].reshape(rows, columns, -1).astype(np.float64)
    down, across = _resampling_weights(rows, grid[0], layout), _resampling_weights(columns, grid[1], layout)
    image = np.einsum("ir,jc,rcd->ijd", down, across, image).reshape(-1, positions.shape[1])
    return np.concatenate([positions[:1], image.astype(positions.dtype)])


def _square(number: int) -> tuple[int, int]:
    side = math.isqrt(number)
    return side, side


def _resampling_weights(old: int, new: int, layout: str) -> np.ndarray:
    """Returns the weights [new, old] of old positions along an axis."""
    if layout == "npz":  # linear; first and last positions are fixed
        at = np.arange(new) * ((old - 1) / max(new - 1, 1))
        return np.maximum(1 - np.abs(at[:, None] - np.arange(old)[None]), 0)
    at = (np.arange(new) + 0.5) * (old / new) - 0.5
    if layout == "transformers":  # four neighbours, edges replicated
        first = np.floor(at).astype(int)
        weights = np.zeros((new, old))
        for tap in range(-1, 3):
            np.add.at(weights, (np.arange(new), np.clip(first + tap, 0, old - 1)), _cubic(at - (first + tap), -0.75))
        return weights
    wide = max(old / new, 1.0)  # antialiased: the kernel widens with the step; no padding
    weights = _cubic((np.arange(old)[None] - at[:, None]) / wide, -0.5)
    return weights / weights.sum(1, keepdims=True)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Evaluates Keys' kernel of cubic convolution."""
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def fit_positions(array, shape, like: Net, layout: str, image, seen: Sequence[int], where: str) -> np.ndarray:
    """Returns a file's position embeddings, interpolated if the network has another grid.

    Args:
      array: of the file, [..., 1 + old patches, D].
      shape: of the result, [..., 1 + new patches, D].
      like: arrays of the network.
      layout: of the file.
      image: height and width of the network's images; None: square.
      seen: height and width of the file's images; () if unknown.
      where: begins an error.

    Raises:
      ValueError: a number of patches is not a grid.
    """
    has_shape = array.shape == shape
    if has_shape and (image is None or "patches" not in like.params):
        return array
    patch, number, before = like.params["patches"]["kernel"].shape[0], shape[-2] - 1, array.shape[-2] - 1
    grid = _square(number) if image is None else (image[0] // patch, image[1] // patch)
    old = (seen[0] // patch, seen[1] // patch) if seen else (0, 0)
    old = old if math.prod(old) == before else _square(before)
    if has_shape and (old == grid or not math.prod(old) == math.prod(grid) == number):
        return array
    for what, size, patches in (("its network", old, before), ("the network", grid, number)):
        if math.prod(size) != patches:
            raise ValueError(f"{where}: the {patches} patches of {what} are not a grid of {size[0]} x {size[1]}")
    return interpolate(array.astype(np.float32).reshape(-1, array.shape[-1]), grid, layout, old).reshape(shape)
