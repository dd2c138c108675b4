"""Pre-trained weights in local files: read in the layouts that others publish, and written in them.

    net = backbone("vit_base_patch16_224.safetensors", "vit_b16", jax.eval_shape(model.init, key))
    write("model.safetensors", net, "timm")

  layout         what wrote it                                                       networks       reads  writes own
  `export_model.save_model`                                                 all            yes    `export_model.save_model` timm
  timm's vit_*, resnet*; torchvision's resnet*; in safetensors        ViT, ResNet    yes    yes transformers   ViTModel,
  ViTForImageClassification, ResNet...; in safetensors      ViT, ResNet    yes    yes npz            the first release of ViT,
  google-research/vision_transformer        ViT            yes    no

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import Net
from fedjax_core.atomic_files import explained, open_regular, write_bytes
from fedjax_core.nn import image_size
from fedjax_core.storage import position_embeddings, weight_layouts
from fedjax_core.storage.export_model import named_arrays
from fedjax_core.storage.json_files import check, plain, read_json
from fedjax_core.storage.safetensors_files import read_tensors, write_tensors
from fedjax_core.storage.weight_checks import check_scaling, check_weights

Arrays = Mapping[str, np.ndarray]
WRITTEN = ("own", "timm", "transformers")  # layouts
_EPSILON = 1e-6  # ViT's own

# What is behind or beside the features: counters, a pooler, a token for masked training, the classifier's hidden layer.
_BESIDE = re.compile(r".*num_batches_tracked|pooler\..*|embeddings\.mask_token|pre_logits[./].*")


def read_weights(path: str | os.PathLike, *, checked: bool = True) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors by name and the metadata (none in a .npz), of a safetensors or a .npz file.

    Args:
      path: the file.
      checked: as in `read_tensors`.

    Raises:
      ValueError: it is neither, or is damaged.
      OSError: it cannot be read.
    """
    if not _is_npz(path):
        return read_tensors(path, checked=checked)
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:  # numpy would leave a bad one open
            arrays = {name: archive[name] for name in archive.files}
        if not all(isinstance(a, np.ndarray) for a in arrays.values()):  # other files in the archive come as bytes
            raise ValueError
    except (ValueError, EOFError, OSError, OverflowError, MemoryError, zipfile.BadZipFile, zlib.error):
        raise ValueError(f"{path} is no .npz file of plain arrays, or is damaged; pickles (.bin, .pth) are not read") from None
    # numpy does not know bfloat16, and stores it as two bytes of anything
    return {name: a.view(jnp.bfloat16) if a.dtype == np.dtype("V2") else a for name, a in arrays.items()}, {}


def options(path: str | os.PathLike) -> dict[str, Any]:
    """Options of the network that go with a file.

    Of a ViT in transformers' layout the norms' epsilon: what the file says if we wrote it, else the `config.json` beside it, or if
    there is none 1e-12, transformers' default. All others go with the networks' own defaults.

    Raises:
      ValueError: its layout is unknown.
      OSError: it cannot be read.
    """
    if _is_npz(path):
        return {}
    arrays, metadata = read_weights(path, checked=False)
    vit, _ = weight_layouts.MARKS["transformers"]
    if weight_layouts.detect_layout(arrays, path) != "transformers" or not any(name.endswith(vit) for name in arrays):
        return {}
    if spec := _parse_description(metadata, path).get("model"):
        return {"epsilon": registry.parse(spec)[1].get("epsilon", _EPSILON)}
    beside = Path(path).parent / "config.json"
    found = read_json(beside, {"layer_norm_eps?": float}) if beside.is_file() else {}
    return {"epsilon": float(found.get("layer_norm_eps", 1e-12))}


def scaling(path: str | os.PathLike) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and deviation by channel that inputs are normalised by, as a file that we wrote says; None for other files.

    The mean is of inputs as they are: with the offset that the file's network is given inputs without.

    Raises:
      ValueError: they are not finite, or a deviation is not positive.
    """
    found = _read_description(path)
    if not {"mean", "std"} <= found.keys():
        return None
    check_scaling(found, path)
    mean, std = (np.atleast_1d(np.asarray(found[field], np.float64)) for field in ("mean", "std"))
    mean = mean if found.get("offset") is None else mean + np.asarray(found["offset"], np.float64)
    return tuple(mean.tolist()), tuple(std.tolist())


def input_limit(path: str | os.PathLike) -> float | None:
    """Returns the deviations at which a file that we wrote cuts normalised inputs; None: nowhere."""
    limit = _read_description(path).get("limit")
    return None if limit is None else float(limit)


def _read_description(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the description in a file that we wrote; of other files {}."""
    return {} if _is_npz(path) else _parse_description(read_weights(path, checked=False)[1], path)


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
      ValueError: the layout is unknown; a tensor is missing, has another shape, or has no place in the network, or numbers that
        cannot be computed with.
      OSError: the file cannot be read.
    """
    arrays, metadata = read_weights(path)
    layout = weight_layouts.detect_layout(arrays, path)
    if layout == "transformers":
        arrays = {weight_layouts.published_name(key): array for key, array in arrays.items()}
    where = f"{path} ({layout})"
    wanted = weight_layouts.map_tensors(like, layout, where)
    wanted = {key: place for key, place in wanted.items() if key in arrays or not place.leaf.startswith("params.prompts")}
    heads = {key for key, place in wanted.items() if place.leaf.startswith("params.head.")}
    hidden = any(key.startswith("pre_logits") for key in arrays)
    if hidden or not all(key in arrays and arrays[key].shape == wanted[key].shape for key in heads):
        wanted = {key: place for key, place in wanted.items() if key not in heads}
    _check_tensors(arrays, wanted, where, name, weight_layouts.HEADS[layout])
    check_weights({key: arrays[key] for key in wanted}, where)

    shapes, seen = named_arrays(like), _trained_image_size(_parse_description(metadata, path))
    found = {place.leaf: np.empty(shapes[place.leaf].shape, shapes[place.leaf].dtype) for place in wanted.values()}
    for key, place in wanted.items():
        array = np.asarray(arrays[key])
        if place.leaf == "params.positions" and (array.shape != place.shape or _has_other_grid(like, place, image, seen)):
            array = position_embeddings.fit_positions(array.astype(np.float32), place.shape, like, layout, image, seen, where)
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
    registry.choose("layout", layout, WRITTEN[1:])
    leaves, arrays = named_arrays(net), {}
    for key, place in weight_layouts.map_written_tensors(net, layout).items():
        part = np.asarray(leaves[place.leaf])[place.at]
        mixed = part.reshape([place.shape[axis] for axis in place.order])
        arrays[weight_layouts.published_prefix(key, net, layout) + key] = mixed.transpose(np.argsort(place.order))
    for key in [key for key in arrays if key.endswith("running_mean")]:
        arrays[key.replace("running_mean", "num_batches_tracked")] = np.zeros((), np.int64)
    metadata = {"format": "pt"}  # transformers reads no file without it
    if description is not None:
        metadata["description"] = json.dumps(plain(description), allow_nan=False)
    write_tensors(path, arrays, metadata)


def check_config(path: str | os.PathLike) -> None:
    """Raises ValueError for a `config.json` that is none of transformers', such as a run's."""
    if Path(path).exists() and "model_type" not in read_json(path, dict):
        raise ValueError(f"{path} lies where transformers looks for a model's configuration; choose another folder")


def write_config(path: str | os.PathLike, net: Net, description: Mapping[str, Any]) -> None:
    """Writes the `config.json` with which transformers loads the folder of a network of its layout.

    Args:
      path: the file.
      net: a ViT's or a ResNet's arrays.
      description: as `export_model.save_model` takes it.

    Raises:
      ValueError: the network has leaves that have no place in this layout, or there is a `config.json` that is none of
        transformers', such as a run's.
      OSError: it cannot be written.
    """
    weight_layouts.map_written_tensors(net, "transformers")
    check_config(path)
    options = registry.parse(description["model"])[1]
    leaves = named_arrays(net)
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


def _check_tensors(
    arrays: Arrays, wanted: Mapping[str, weight_layouts.LeafSlice], where: str, name: str, heads: tuple[str, ...]
) -> None:
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


def _trained_image_size(description: Mapping[str, Any]) -> tuple[int, ...]:
    """Height and width of the images that a described network sees, which it may resize; () if that is not told."""
    try:
        return image_size(description.get("input_shape", ()), **registry.parse(description.get("model", "none"))[1]) or ()
    except (TypeError, ValueError):
        return ()


def _has_other_grid(like: Net, place: weight_layouts.LeafSlice, image: tuple[int, int] | None, seen: tuple[int, ...]) -> bool:
    """Whether a file's positions are of another grid than the network's, of as many patches."""
    if image is None or "patches" not in like.params:
        return False
    patch, number = like.params["patches"]["kernel"].shape[0], place.shape[-2] - 1
    grid, old = ((size[0] // patch, size[1] // patch) if size else (0, 0) for size in (image, seen))
    side = math.isqrt(number)
    old = old if math.prod(old) == number else (side, side)  # as in `position_embeddings.fitted`
    return old != grid and math.prod(old) == math.prod(grid) == number


def _is_npz(path: str | os.PathLike) -> bool:
    """Whether a file is an archive, as a .npz is."""
    with explained("read", path), open_regular(path) as file:
        return file.read(2) == b"PK"


def _parse_description(metadata: Mapping[str, str], path: str | os.PathLike) -> dict[str, Any]:
    """What we wrote of the network into the file; empty for a file of others.

    Raises:
      ValueError: a field of it is of another form.
    """
    try:
        found = json.loads(metadata.get("description", "{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    numbers = (float, [float], type(None))
    form = {"model?": str, "input_shape?": [int], "mean?": numbers, "std?": numbers}
    form |= {"offset?": ([float], type(None)), "limit?": (float, type(None))}
    check(found, form, f"the description of {path}")
    return found
