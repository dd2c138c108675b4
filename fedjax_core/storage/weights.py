"""Pre-trained weights in local files: read in the layouts that others publish, and written in them.

    net = backbone("vit_base_patch16_224.safetensors", "vit_b16", jax.eval_shape(model.init, key))
    write("model.safetensors", net, "timm")

  layout         what wrote it                                                       networks       reads  writes
  own            `export.save_model`                                                 all            yes    `export.save_model`
  timm           timm's vit_*, resnet*; torchvision's resnet*; in safetensors        ViT, ResNet    yes    yes
  transformers   ViTModel, ViTForImageClassification, ResNet...; in safetensors      ViT, ResNet    yes    yes
  npz            the first release of ViT, google-research/vision_transformer        ViT            yes    no

The layout is found from the tensors' names. Position embeddings of another grid of patches are interpolated as the layout's own
code does it: timm's bicubic with antialiasing (own too), transformers' bicubic without, npz bilinear with corners on corners.
Norms' epsilon is not in the tensors: `options` has what goes with a file. Nor is the number of heads, but in npz and own: it is the
network's own. Safetensors are mapped, not loaded; pickles are never read.

https://github.com/huggingface/pytorch-image-models, https://github.com/huggingface/transformers,
https://github.com/google-research/vision_transformer
"""

import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import by_name
from fedjax_core.algorithm import Net
from fedjax_core.storage.export import named, read_tensors, write_tensors
from fedjax_core.storage.workdir import explained, plain, write_bytes

LAYOUTS = ("own", "timm", "transformers", "npz")
WRITTEN = ("own", "timm", "transformers")
Arrays = Mapping[str, np.ndarray]
_EPSILON = 1e-6  # ViT's own

_INNER, _OUTER = "encoder.layer.{i}.", "Transformer/encoderblock_{i}/"
# Modules by layout: {i} is a block's number, {p} one of query, key, value; {0} {1} {2} are our numbers, {a} {b} {c} one less.
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
_MARKS = {  # tensors that only this layout has
    "timm": ("patch_embed.proj.weight", "layer1.0.conv1.weight"),
    "transformers": ("embeddings.patch_embeddings.projection.weight", "embedder.embedder.convolution.weight"),
    "npz": ("embedding/kernel",),
}
_PARTS = ("query", "key", "value")
_NEWER: dict[str, Any] = {  # transformers since version 5 names some modules otherwise while they are in memory
    r"^(vit|resnet)\.": "",
    r"^layers\.(\d+)\.attention\.([qkv])_proj": lambda m: f"encoder.layer.{m[1]}.attention.attention.{_PARTS['qkv'.index(m[2])]}",
    r"^layers\.(\d+)\.attention\.o_proj": r"encoder.layer.\1.attention.output.dense",
    r"^layers\.(\d+)\.mlp\.fc1": r"encoder.layer.\1.intermediate.dense",
    r"^layers\.(\d+)\.mlp\.fc2": r"encoder.layer.\1.output.dense",
    r"^layers\.": "encoder.layer.",
}
# What is behind or beside the features: counters, a pooler, a token for masked training, the classifier's hidden layer.
_BESIDE = re.compile(r".*num_batches_tracked|pooler\..*|embeddings\.mask_token|pre_logits[./].*")
_HEADS = {"own": ("params.head.",), "timm": ("head.", "fc."), "transformers": ("classifier.",), "npz": ("head/",)}


class Place(NamedTuple):
    """Where a tensor of a file belongs.

    Attributes:
      leaf: which of our leaves, by its dotted name.
      at: which part of it, an index.
      shape: in the file.
      order: of the file's axes, so that what comes out only needs a reshape.
    """

    leaf: str
    at: tuple
    shape: tuple[int, ...]
    order: tuple[int, ...]


def read(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors by name and the metadata (none in a .npz), of a safetensors or a .npz file.

    Raises:
      ValueError: it is neither, or is damaged.
      OSError: it cannot be read.
    """
    if not _packed(path):
        return read_tensors(path)
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:  # numpy would leave a bad one open
            arrays = {name: archive[name] for name in archive.files}
        if not all(isinstance(a, np.ndarray) for a in arrays.values()):  # other files in the archive come as bytes
            raise ValueError
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error):
        raise ValueError(f"{path} is no .npz file of plain arrays, or is damaged; pickles (.bin, .pth) are not read") from None
    # numpy does not know bfloat16, and stores it as two bytes of anything
    return {name: a.view(jnp.bfloat16) if a.dtype == np.dtype("V2") else a for name, a in arrays.items()}, {}


def layout_of(names: Iterable[str], path: str | os.PathLike) -> str:
    """Which of `LAYOUTS` a file with these tensors has.

    Raises:
      ValueError: none.
    """
    names = list(names)
    if any(name.startswith("params.") for name in names):
        return "own"
    for layout, marks in _MARKS.items():
        prefixes = ("", "vit.", "resnet.") if layout == "transformers" else ("",)
        if any(prefix + mark in names for prefix in prefixes for mark in marks):
            return layout
    raise ValueError(f"{path} has none of the layouts {', '.join(LAYOUTS)}; its first tensors are {', '.join(sorted(names)[:3])}")


def options(path: str | os.PathLike) -> dict[str, Any]:
    """Options of the network that go with a file.

    Of a ViT in transformers' layout the norms' epsilon: what the file says if we wrote it, else the `config.json` beside it, or if
    there is none 1e-12, transformers' default. All others go with the networks' own defaults.

    Raises:
      ValueError: its layout is unknown.
      OSError: it cannot be read.
    """
    if _packed(path):
        return {}
    arrays, metadata = read(path)
    if layout_of(arrays, path) != "transformers" or not any(name.endswith(_MARKS["transformers"][0]) for name in arrays):
        return {}
    if spec := _description(metadata).get("model"):
        return {"epsilon": by_name.parse(spec)[1].get("epsilon", _EPSILON)}
    beside = Path(path).parent / "config.json"
    found = json.loads(beside.read_text()) if beside.is_file() else {}
    return {"epsilon": float(found.get("layer_norm_eps", 1e-12))}


def scaling(path: str | os.PathLike) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and deviation by channel that inputs are normalised by, as a file that we wrote says; None for other files."""
    found = {} if _packed(path) else _description(read(path)[1])
    if not {"mean", "std"} <= found.keys():
        return None
    mean, std = (tuple(np.atleast_1d(np.asarray(found[field], np.float64)).tolist()) for field in ("mean", "std"))
    return mean, std


def backbone(path: str | os.PathLike, name: str, like: Net, *, image: tuple[int, int] | None = None) -> Net:
    """The weights of a file, for a given network.

    Args:
      path: the file.
      name: of the network, for error messages.
      like: the network's arrays, or their shapes.
      image: height and width of the images that the network sees, to interpolate positions for; None: they are square.

    Returns:
      Arrays of the host: statistics and params, without "head" where the file's has another shape or another layer before it, and
      without "prompts" where the file has none.

    Raises:
      ValueError: the layout is unknown; a tensor is missing, has another shape, or has no place in the network.
      OSError: the file cannot be read.
    """
    arrays, metadata = read(path)
    layout = layout_of(arrays, path)
    if layout == "transformers":
        arrays = {_older(key): array for key, array in arrays.items()}
    where = f"{path} ({layout})"
    wanted = _places(like, layout, where)
    wanted = {key: place for key, place in wanted.items() if key in arrays or not place.leaf.startswith("params.prompts")}
    heads = {key for key, place in wanted.items() if place.leaf.startswith("params.head.")}
    hidden = any(key.startswith("pre_logits") for key in arrays)
    if hidden or not all(key in arrays and arrays[key].shape == wanted[key].shape for key in heads):
        wanted = {key: place for key, place in wanted.items() if key not in heads}
    _fits(arrays, wanted, where, name, _HEADS[layout])

    shapes = named(like)
    found = {place.leaf: np.empty(shapes[place.leaf].shape, shapes[place.leaf].dtype) for place in wanted.values()}
    for key, place in wanted.items():
        array = np.asarray(arrays[key])
        if place.leaf == "params.positions" and array.shape != place.shape:
            array = _positions(array.astype(np.float32), place.shape, like, layout, image, _description(metadata), where)
        target = found[place.leaf]
        target[place.at] = array.transpose(place.order).reshape(target[place.at].shape)
    whole = jax.tree.unflatten(jax.tree.structure(like), [found.get(leaf) for leaf in shapes])
    return whole._replace(params={entry: tree for entry, tree in whole.params.items() if jax.tree.leaves(tree)})


def write(path: str | os.PathLike, net: Net, layout: str, description: Mapping[str, Any] | None = None) -> None:
    """Writes a network's weights as another program lays them out, atomically.

    Args:
      path: the file.
      net: its arrays, a ViT's or a ResNet's.
      layout: "timm" or "transformers".
      description: JSON values, kept in the file's metadata.

    Raises:
      ValueError: another layout, or the network has leaves that have no place in it.
      OSError: the file cannot be written.
    """
    by_name.choose("layout", layout, WRITTEN[1:])
    leaves, arrays = named(net), {}
    for key, place in _written(net, layout).items():
        part = np.asarray(leaves[place.leaf])[place.at]
        mixed = part.reshape([place.shape[axis] for axis in place.order])
        arrays[_prefix(key, net, layout) + key] = mixed.transpose(np.argsort(place.order))
    for key in [key for key in arrays if key.endswith("running_mean")]:
        arrays[key.replace("running_mean", "num_batches_tracked")] = np.zeros((), np.int64)
    metadata = {"format": "pt"}  # transformers reads no file without it
    if description is not None:
        metadata["description"] = json.dumps(plain(description), allow_nan=False)
    write_tensors(path, arrays, metadata)


def write_config(path: str | os.PathLike, net: Net, description: Mapping[str, Any]) -> None:
    """Writes the `config.json` with which transformers loads the folder of a network of its layout.

    Args:
      path: the file.
      net: a ViT's or a ResNet's arrays.
      description: as `export.save_model` takes it.

    Raises:
      ValueError: the network has leaves that have no place in this layout, or there is a `config.json` that is none of
        transformers', such as a run's.
      OSError: it cannot be written.
    """
    path = Path(path)
    _written(net, "transformers")
    if path.exists() and "model_type" not in json.loads(path.read_text()):
        raise ValueError(f"{path} lies where transformers looks for a model's configuration; choose another folder")
    options = by_name.parse(description["model"])[1]
    leaves = named(net)
    shape = lambda leaf: leaves[f"params.{leaf}"].shape
    labels = {str(i): label for i, label in enumerate(description["class_names"])}
    found: dict[str, Any] = {"id2label": labels, "label2id": {label: int(i) for i, label in labels.items()}}
    if "blocks" in net.params:
        depth, width, _, heads, _ = shape("blocks.qkv.kernel")
        size = options.get("resize") or description["input_shape"][:2]
        found |= {
            "architectures": ["ViTForImageClassification"],
            "model_type": "vit",
            "hidden_size": width,
            "num_hidden_layers": depth,
            "num_attention_heads": heads,
            "intermediate_size": shape("blocks.mlp1.kernel")[-1],
            "layer_norm_eps": options.get("epsilon", _EPSILON),
            "image_size": size if isinstance(size, int) else list(size),
            "patch_size": shape("patches.kernel")[0],
            "num_channels": shape("patches.kernel")[2],
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "qkv_bias": True,
        }
    else:
        blocks = sorted({tuple(map(int, re.findall(r"\d+", entry))) for entry in net.params if entry.startswith("stage")})
        depths = [sum(stage == one for one, _ in blocks) for stage in sorted({stage for stage, _ in blocks})]
        last = max(int(layer[4:]) for layer in net.params["stage1_block1"] if layer.startswith("conv"))
        found |= {
            "architectures": ["ResNetForImageClassification"],
            "model_type": "resnet",
            "num_channels": shape("stem.kernel")[2],
            "embedding_size": shape("stem.kernel")[3],
            "hidden_sizes": [shape(f"stage{stage + 1}_block1.conv{last}.kernel")[3] for stage in range(len(depths))],
            "depths": depths,
            "layer_type": "bottleneck" if last == 3 else "basic",
            "hidden_act": "relu",
            "downsample_in_first_stage": False,
        }
    write_bytes(path, json.dumps(found, indent=2).encode())


def interpolated(positions: np.ndarray, grid: tuple[int, int], layout: str, old: tuple[int, int] | None = None) -> np.ndarray:
    """Position embeddings for another grid of patches; that of [cls] stays.

    Args:
      positions: [1 + old patches, D].
      grid: rows and columns of the new patches.
      layout: whose code to follow.
      old: rows and columns of the old ones; None: a square.

    Returns:
      [1 + new patches, D].
    """
    rows, columns = old or _square(len(positions) - 1)
    image = positions[1:].reshape(rows, columns, -1).astype(np.float64)
    down, across = _resampling(rows, grid[0], layout), _resampling(columns, grid[1], layout)
    image = np.einsum("ir,jc,rcd->ijd", down, across, image).reshape(-1, positions.shape[1])
    return np.concatenate([positions[:1], image.astype(positions.dtype)])


def _square(number: int) -> tuple[int, int]:
    side = math.isqrt(number)
    return side, side


def _resampling(old: int, new: int, layout: str) -> np.ndarray:
    """[new, old], the weights of a line's old places in its new ones."""
    if layout == "npz":  # linear; the first and last places stay
        at = np.arange(new) * ((old - 1) / max(new - 1, 1))
        return np.maximum(1 - np.abs(at[:, None] - np.arange(old)[None]), 0)
    at = (np.arange(new) + 0.5) * (old / new) - 0.5
    if layout == "transformers":  # four neighbours; beyond the edge the edge counts
        first = np.floor(at).astype(int)
        weights = np.zeros((new, old))
        for tap in range(-1, 3):
            np.add.at(weights, (np.arange(new), np.clip(first + tap, 0, old - 1)), _cubic(at - (first + tap), -0.75))
        return weights
    wide = max(old / new, 1.0)  # the kernel grows with the step; beyond the edge nothing counts
    weights = _cubic((np.arange(old)[None] - at[:, None]) / wide, -0.5)
    return weights / weights.sum(1, keepdims=True)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel of cubic convolution."""
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _positions(array, shape, like: Net, layout: str, image, description: Mapping[str, Any], where: str) -> np.ndarray:
    """A file's position embeddings for the network's grid, in the file's form."""
    patch, number, before = like.params["patches"]["kernel"].shape[0], shape[-2] - 1, array.shape[-2] - 1
    grid = _square(number) if image is None else (image[0] // patch, image[1] // patch)
    size = description.get("input_shape", ())[:2]
    old = (size[0] // patch, size[1] // patch) if size else (0, 0)
    old = old if math.prod(old) == before else _square(before)
    for what, found, patches in (("its network", old, before), ("the network", grid, number)):
        if math.prod(found) != patches:
            raise ValueError(f"{where}: the {patches} patches of {what} are no grid of {found[0]} x {found[1]}")
    return interpolated(array.reshape(-1, array.shape[-1]), grid, layout, old).reshape(shape)


def _fits(arrays: Arrays, wanted: Mapping[str, Place], where: str, name: str, heads: tuple[str, ...]) -> None:
    """Raises ValueError for the first tensor that is missing, has another shape or is of no use."""
    for key, place in wanted.items():
        if key not in arrays:
            raise ValueError(f"{where} has no {key}, which {name} needs, of shape {list(place.shape)}")
        shape, number = arrays[key].shape, place.shape[-2:-1]
        if place.leaf == "params.positions" and len(shape) == len(place.shape) and shape[-2] > 1:
            number = shape[-2:-1]  # any, interpolated later
        if shape != place.shape[:-2] + number + place.shape[-1:]:
            raise ValueError(f"{where}: {key} is {list(shape)}, {name} needs {list(place.shape)}")
        if not jnp.issubdtype(arrays[key].dtype, jnp.floating):
            raise ValueError(f"{where}: {key} is of {arrays[key].dtype}, {name} needs floating-point numbers")
    unused = [key for key in sorted(arrays) if key not in wanted and not _BESIDE.fullmatch(key) and not key.startswith(heads)]
    if unused:
        more = f" (nor have {len(unused) - 1} others)" if len(unused) > 1 else ""
        raise ValueError(f"{where}: {unused[0]} has no place in {name}{more}")


def _places(like: Net, layout: str, where: str) -> dict[str, Place]:
    """The tensors of a file of some layout that has these arrays, in the network's order.

    Raises:
      ValueError: the layout has no place for one of them.
    """
    found = {}
    for leaf, value in named(like).items():
        if layout == "own":
            found[leaf] = Place(leaf, (), value.shape, tuple(range(value.ndim)))
            continue
        if leaf.startswith("params.prompts"):
            continue
        places = _vit(leaf, value.shape, layout) if "blocks" in like.params else _resnet(leaf, value.shape, layout)
        if not places:
            raise ValueError(f"{where} has no place for {leaf}; such files hold ViTs, or ResNets with batch normalisation")
        found |= places
    return found


def _written(net: Net, layout: str) -> dict[str, Place]:
    """The tensors of a file that is to hold these arrays, all of them."""
    where = f"a file of layout {layout}"
    if prompts := [leaf for leaf in named(net) if leaf.startswith("params.prompts")]:
        raise ValueError(f"{where} has no place for {prompts[0]}; layout own has")
    return _places(net, layout, where)


def _vit(leaf: str, shape: tuple[int, ...], layout: str) -> dict[str, Place]:
    column = LAYOUTS.index(layout) - 1
    if leaf in _TOKENS:
        full = (1,) * (3 - len(shape)) + shape
        return {_TOKENS[leaf][column]: Place(leaf, (), full, (0, 1, 2))}
    module, last = leaf.removeprefix("params.").rsplit(".", 1)
    if module not in _VIT:
        return {}
    slash, found = "/" if layout == "npz" else ".", {}
    split = module == "blocks.qkv" and layout != "timm"
    for i in range(shape[0]) if module.startswith("blocks.") else (None,):
        for p, part in enumerate(_PARTS) if split else ((None, ""),):
            axes = () if p is None else (p,) if last == "bias" else (slice(None), p)
            at = axes if i is None else (i, *axes)
            own = np.broadcast_to(0, shape)[at].shape
            key = _VIT[module][column].format(i=i, p=part) + slash + (last if layout == "npz" else _TORCH[last])
            if layout == "npz":
                found[key] = Place(leaf, at, own, tuple(range(len(own))))
            else:
                found[key] = _torch(leaf, at, own, 2 if module == "blocks.out" else 3 if module == "patches" else 1)
    return found


def _resnet(leaf: str, shape: tuple[int, ...], layout: str) -> dict[str, Place]:
    module, last = leaf.partition(".")[2].rsplit(".", 1)
    names = _RESNET.get(re.sub(r"\d+", "{}", module))
    if names is None or layout == "npz" or (layout == "transformers" and module == "stem" and shape[0] != 7):
        return {}
    numbers = [int(n) for n in re.findall(r"\d+", module)]
    less = {letter: n - 1 for letter, n in zip("abc", numbers, strict=False)}
    key = names[LAYOUTS.index(layout) - 1].format(*numbers, **less)
    return {f"{key}.{_TORCH[last]}": _torch(leaf, (), shape, 1 if module == "head" else 3)}


def _torch(leaf: str, at: tuple, own: tuple[int, ...], inputs: int) -> Place:
    """PyTorch's form of a leaf: outputs first. `inputs`: how many of a kernel's axes are inputs; 3: a convolution's."""
    if leaf.endswith(".kernel") and inputs == 3:
        height, width, channels, features = own
        return Place(leaf, at, (features, channels, height, width), (2, 3, 1, 0))
    if leaf.endswith(".kernel"):
        return Place(leaf, at, (math.prod(own[inputs:]), math.prod(own[:inputs])), (1, 0))
    return Place(leaf, at, (math.prod(own),), (0,))


def _older(key: str) -> str:
    """A tensor of transformers by the name it has in published files, without the model's prefix."""
    for pattern, name in _NEWER.items():
        key = re.sub(pattern, name, key)
    return key


def _prefix(key: str, net: Net, layout: str) -> str:
    if layout != "transformers" or key.startswith(_HEADS[layout]):
        return ""
    return "vit." if "blocks" in net.params else "resnet."


def _packed(path: str | os.PathLike) -> bool:
    """Whether a file is an archive, as a .npz is."""
    with explained("read", path), open(path, "rb") as file:
        return file.read(2) == b"PK"


def _description(metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        found = json.loads(metadata.get("description", "{}"))
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
