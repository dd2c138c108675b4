"""Reads and writes pre-trained weights in the layouts that others publish.

    net = read_backbone("vit_base_patch16_224.safetensors", "vit_b16", jax.eval_shape(model.init, key))
    write_weights("model.safetensors", net, "timm")

  layout         written by                                                   networks       written here
  own            `export_model.save_model`                                    all            by `save_model`
  timm           timm's vit_*, resnet*; torchvision's resnet*; safetensors    ViT, ResNet    yes
  transformers   ViTModel, ViTForImageClassification, ResNet...; safetensors  ViT, ResNet    yes
  npz            google-research/vision_transformer, first release            ViT            no

The layout is detected from the tensors' names. Position embeddings for another grid of patches are
interpolated as the layout's own code does: bicubic with antialiasing for timm and own, bicubic
without for transformers, bilinear with aligned corners for npz. The epsilon of norms is not in the
tensors; `read_options` returns it. Only npz and own have the number of heads; for transformers that
of a `config.json` beside the file is compared, for timm it is the network's. Safetensors are
memory-mapped; pickles are never read.

https://github.com/huggingface/pytorch-image-models, https://github.com/huggingface/transformers,
https://github.com/google-research/vision_transformer
"""

import json
import os
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import Net
from fedjax_core.atomic_files import open_regular, reword_os_errors, write_bytes
from fedjax_core.nn import image_size
from fedjax_core.storage import weight_layouts
from fedjax_core.storage.export_model import named_arrays, read_description
from fedjax_core.storage.json_files import check_schema, read_json, to_json_values
from fedjax_core.storage.safetensors_files import read_tensors, write_tensors

Arrays = Mapping[str, np.ndarray]
WRITTEN = ("own", "timm", "transformers")  # layouts that can be written
_EPSILON = 1e-6  # ViT's own
_VARIANCES = ("var", "running_var")  # last parts of names
_LARGEST = float(np.sqrt(np.finfo(np.float32).max))  # float32 holds its square, as in norms and optimizers

# Tensors without use here: counters, a pooler, a token for masked training, the classifier's hidden layer.
_UNUSED = re.compile(r".*num_batches_tracked|pooler\..*|embeddings\.mask_token|pre_logits[./].*")


def read_weights(path: str | os.PathLike, *, checked: bool = True) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads tensors and metadata (none in .npz) of a file; `checked` as `read_tensors`.

    Raises:
      ValueError: the file is of another format or damaged.
    """
    if not _is_npz(path):
        return read_tensors(path, checked=checked)
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:  # numpy leaves a damaged file open
            arrays = {name: archive[name] for name in archive.files}
        if not all(isinstance(a, np.ndarray) for a in arrays.values()):  # other members are bytes
            raise ValueError
    except (ValueError, EOFError, OSError, OverflowError, MemoryError, zipfile.BadZipFile, zlib.error):
        raise ValueError(f"{path} is not a .npz file of plain arrays, or is damaged; pickles (.bin, .pth) are not read") from None
    # numpy stores bfloat16 as two untyped bytes
    return {name: a.view(jnp.bfloat16) if a.dtype == np.dtype("V2") else a for name, a in arrays.items()}, {}


def read_options(path: str | os.PathLike) -> dict[str, Any]:
    """Returns options of the network that a file needs.

    For a ViT in transformers' layout that is the epsilon of norms: from the description if we wrote
    the file, else from the `config.json` beside it, else transformers' default 1e-12. Other files
    need the networks' defaults.
    """
    if _is_npz(path):
        return {}
    arrays, metadata = read_weights(path, checked=False)
    vit, _ = weight_layouts.MARKS["transformers"]
    if weight_layouts.detect_layout(arrays, path) != "transformers" or not any(name.endswith(vit) for name in arrays):
        return {}
    if spec := _parse_description(metadata, path).get("model"):
        return {"epsilon": registry.parse_spec(spec)[1].get("epsilon", _EPSILON)}
    file = Path(path).parent / "config.json"
    config = read_json(file, {"layer_norm_eps?": float}) if file.is_file() else {}
    return {"epsilon": float(config.get("layer_norm_eps", 1e-12))}


def read_scaling(path: str | os.PathLike) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Returns mean and deviation by channel of inputs, from a file that we wrote; else None.

    The mean includes the offset that is subtracted from inputs.
    """
    description = _read_description(path)
    if not {"mean", "std"} <= description.keys():
        return None
    check_scaling(description, path)
    mean, std = (np.atleast_1d(np.asarray(description[field], np.float64)) for field in ("mean", "std"))
    mean = mean if description.get("offset") is None else mean + np.asarray(description["offset"], np.float64)
    return tuple(mean.tolist()), tuple(std.tolist())


def read_input_limit(path: str | os.PathLike) -> float | None:
    """Returns the deviations at which a file of ours clips normalised inputs; None: nowhere."""
    limit = _read_description(path).get("limit")
    return None if limit is None else float(limit)


def _read_description(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the description in a file that we wrote; of other files {}."""
    return {} if _is_npz(path) else _parse_description(read_weights(path, checked=False)[1], path)


def read_backbone(
    path: str | os.PathLike,
    name: str,
    like: Net,
    *,
    image: tuple[int, int] | None = None,
    class_names: Sequence[str] | None = None,
) -> Net:
    """Reads the weights of a file for a network.

    Args:
      path: the file.
      name: of the network, for errors.
      like: arrays of the network, or their shapes.
      image: height and width of the network's images, for interpolation; None: square.
      class_names: of the first outputs, for a classifier; None: any.

    Returns:
      Host arrays: statistics and params, without "head" if the file's has another shape, a hidden
        layer, or by its description other classes, and without "prompts" if the file has none.

    Raises:
      ValueError: the layout is unknown, or a tensor is missing, unknown, of another shape, or has
        invalid numbers.
    """
    arrays, metadata = read_weights(path)
    layout = weight_layouts.detect_layout(arrays, path)
    if layout == "transformers":
        _check_transformers_config(Path(path).parent / "config.json", like, name)
        arrays = {weight_layouts.published_name(key): array for key, array in arrays.items()}
    where = f"{path} ({layout})"
    wanted = weight_layouts.map_tensors(like, layout, where)
    wanted = {key: tensor for key, tensor in wanted.items() if key in arrays or not tensor.leaf.startswith("params.prompts")}
    heads = {key for key, tensor in wanted.items() if tensor.leaf.startswith("params.head.")}
    has_hidden_layer = any(key.startswith("pre_logits") for key in arrays)
    if (
        has_hidden_layer
        or _has_other_classes(metadata, path, class_names)
        or not all(key in arrays and arrays[key].shape == wanted[key].shape for key in heads)
    ):
        wanted = {key: tensor for key, tensor in wanted.items() if key not in heads}
    _check_tensors(arrays, wanted, where, name, weight_layouts.HEADS[layout])
    check_weights({key: arrays[key] for key in wanted}, where)

    shapes, seen = named_arrays(like), _trained_image_size(_parse_description(metadata, path))
    leaves = {tensor.leaf: np.empty(shapes[tensor.leaf].shape, shapes[tensor.leaf].dtype) for tensor in wanted.values()}
    for key, tensor in wanted.items():
        array = np.asarray(arrays[key])
        if tensor.leaf == "params.positions":
            array = weight_layouts.fit_positions(array, tensor.shape, like, layout, image, seen, where)
        target = leaves[tensor.leaf]
        target[tensor.at] = array.transpose(tensor.order).reshape(target[tensor.at].shape)
    whole = jax.tree.unflatten(jax.tree.structure(like), [leaves.get(leaf) for leaf in shapes])
    return whole._replace(params={entry: tree for entry, tree in whole.params.items() if jax.tree.leaves(tree)})


def write_weights(path: str | os.PathLike, net: Net, layout: str, description: Mapping[str, Any] | None = None) -> None:
    """Writes the weights of a ViT or ResNet in another program's layout, atomically.

    Args:
      path: the file.
      net: its arrays.
      layout: "timm" or "transformers".
      description: JSON values for the file's metadata.
    """
    registry.check_choice("layout", layout, WRITTEN[1:])
    leaves, arrays = named_arrays(net), {}
    for key, tensor in weight_layouts.map_written_tensors(net, layout).items():
        part = np.asarray(leaves[tensor.leaf])[tensor.at]
        permuted = part.reshape([tensor.shape[axis] for axis in tensor.order])
        arrays[weight_layouts.published_prefix(key, net, layout) + key] = permuted.transpose(np.argsort(tensor.order))
    for key in [key for key in arrays if key.endswith("running_mean")]:
        arrays[key.replace("running_mean", "num_batches_tracked")] = np.zeros((), np.int64)
    metadata = {"format": "pt"}  # transformers requires it
    if description is not None:
        metadata["description"] = json.dumps(to_json_values(description), allow_nan=False)
    write_tensors(path, arrays, metadata)


def check_config(path: str | os.PathLike) -> None:
    """Raises ValueError for a `config.json` that is not transformers', such as a run's."""
    if Path(path).exists() and "model_type" not in read_json(path, dict):
        raise ValueError(f"{path} is where transformers looks for a model's configuration; choose another folder")


def write_config(path: str | os.PathLike, net: Net, description: Mapping[str, Any]) -> None:
    """Writes the `config.json` with which transformers loads a ViT or ResNet from its folder.

    `description` is that of `export_model.save_model`. A `config.json` of something else stays.
    """
    weight_layouts.map_written_tensors(net, "transformers")
    check_config(path)
    options = registry.parse_spec(description["model"])[1]
    leaves = named_arrays(net)
    shape = lambda leaf: leaves[f"params.{leaf}"].shape
    labels = {str(i): label for i, label in enumerate(description["class_names"])}
    config: dict[str, Any] = {"id2label": labels, "label2id": {label: int(i) for i, label in labels.items()}}
    if "blocks" in net.params:
        depth, width, _, heads, _ = shape("blocks.qkv.kernel")
        size = options.get("resize") or description["input_shape"][:2]
        config |= {
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
        depths = [sum(stage == other for other, _ in blocks) for stage in sorted({stage for stage, _ in blocks})]
        last = max(int(layer[4:]) for layer in net.params["stage1_block1"] if layer.startswith("conv"))
        config |= {
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
    write_bytes(path, json.dumps(config, indent=2).encode())


def _check_transformers_config(file: Path, like: Net, name: str) -> None:
    """Raises ValueError for a `config.json` of another network whose tensors have the same names and shapes."""
    wanted = {"hidden_act": "relu", "downsample_in_bottleneck": False, "downsample_in_first_stage": False}
    if "blocks" in like.params:
        wanted = {"hidden_act": "gelu", "num_attention_heads": like.params["blocks"]["qkv"]["kernel"].shape[-2]}
    config = read_json(file, dict) if file.is_file() else {}
    if config.get("model_type") not in ("vit", "resnet"):
        return
    for field, value in wanted.items():
        if config.get(field, value) != value:
            raise ValueError(f"{file}: {field}={config[field]!r}, {name} has {value!r}")


def _check_tensors(
    arrays: Arrays, wanted: Mapping[str, weight_layouts.LeafSlice], where: str, name: str, heads: tuple[str, ...]
) -> None:
    """Raises ValueError for the first tensor that is missing, unknown, or of another shape or type."""
    for key, tensor in wanted.items():
        if key not in arrays:
            raise ValueError(f"{where} has no {key}, which {name} needs, of shape {list(tensor.shape)}")
        shape, number = arrays[key].shape, tensor.shape[-2:-1]
        if tensor.leaf == "params.positions" and len(shape) == len(tensor.shape) and shape[-2] > 1:
            number = shape[-2:-1]  # any number, interpolated later
        if shape != tensor.shape[:-2] + number + tensor.shape[-1:]:
            raise ValueError(f"{where}: {key} is {list(shape)}, {name} needs {list(tensor.shape)}")
        if not jnp.issubdtype(arrays[key].dtype, jnp.floating):
            raise ValueError(f"{where}: {key} is of {arrays[key].dtype}, {name} needs floating-point numbers")
    unused = [key for key in sorted(arrays) if key not in wanted and not _UNUSED.fullmatch(key) and not key.startswith(heads)]
    if unused:
        more = f" (nor have {len(unused) - 1} others)" if len(unused) > 1 else ""
        raise ValueError(f"{where}: {unused[0]} has no place in {name}{more}")


def _trained_image_size(description: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns height and width of a described network's images after its own resizing, or ()."""
    try:
        return image_size(description.get("input_shape", ()), **registry.parse_spec(description.get("model", "none"))[1]) or ()
    except (TypeError, ValueError):
        return ()


def _is_npz(path: str | os.PathLike) -> bool:
    """Returns whether a file is a zip archive, as a .npz is."""
    with reword_os_errors("read", path), open_regular(path) as file:
        return file.read(2) == b"PK"


def _has_other_classes(metadata: Mapping[str, str], path: str | os.PathLike, class_names: Sequence[str] | None) -> bool:
    """Returns whether a file says that its head is for other classes than these."""
    named = _parse_description(metadata, path).get("class_names")
    return class_names is not None and named is not None and [str(c) for c in named[: len(class_names)]] != list(class_names)


def _parse_description(metadata: Mapping[str, str], path: str | os.PathLike) -> dict[str, Any]:
    """Returns the description of a file that we wrote; {} for other files."""
    try:
        description = read_description(metadata, path)
    except ValueError:
        return {}
    numbers = (float, [float], type(None))
    schema = {"model?": str, "input_shape?": [int], "mean?": numbers, "std?": numbers}
    schema |= {"offset?": ([float], type(None)), "limit?": (float, type(None))}
    check_schema(description, schema, f"the description of {path}")
    return description


def check_weights(arrays: Mapping[str, np.ndarray], where: str | os.PathLike) -> None:
    """Raises ValueError for arrays that a network cannot compute with in float32.

    A value or its square is not finite, or a variance is negative.
    """
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            continue
        with np.errstate(over="ignore"):
            values = np.asarray(array, np.float32)
        if not np.isfinite(values).all():
            raise ValueError(f"{where}: {name} is not finite; a network needs finite weights (as float32)")
        if not values.size:
            continue
        if name.rpartition(".")[2] in _VARIANCES:
            if values.min() < 0:
                raise ValueError(f"{where}: {name} has {values.min():g}; a variance must be at least 0")
        elif np.abs(values).max() > _LARGEST:
            largest = values.flat[np.argmax(np.abs(values))]
            raise ValueError(f"{where}: {name} has {largest:g}; a weight must lie between -{_LARGEST:.2g} and {_LARGEST:.2g}")


def check_scaling(description: Mapping[str, Any], where: str | os.PathLike) -> None:
    """Raises ValueError for an input normalisation that is not finite or has no positive std.

    It has "mean" and "std", and maybe "offset" and "limit"; all are float32 but the offset.
    """
    tiny = np.finfo(np.float32).tiny
    for field in ("mean", "std", "offset", "limit"):
        if description.get(field) is None:
            continue
        type_, is_positive = np.float64 if field == "offset" else np.float32, field in ("std", "limit")
        with np.errstate(over="ignore", under="ignore"):
            values = np.asarray(description[field], np.float64).astype(type_)
        if not np.isfinite(values).all() or (is_positive and not (values >= tiny).all()):
            wanted = "finite and positive" if is_positive else "finite"
            message = f"{field}={description[field]} must be {wanted}: inputs are normalised by it"
            raise ValueError(f"{where}: {message} (as {type_.__name__})")
