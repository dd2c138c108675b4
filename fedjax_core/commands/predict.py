"""Classifies images with a saved model, and writes a table: file, class, probability.

  fedjax-core predict model.safetensors photos/ --out=predictions.csv
  fedjax-core predict model.safetensors images.npy

Images are read from a folder (and the folders in it), converted to the model's colours and resized
to its size; or from an array [n, H, W, C] in a .npy or .npz file, which must have the model's size.
Images of 16 bits are scaled by their depth. `fedjax_core.commands.export` saves models.
"""

import io
import logging
import math
import os
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_core import experiment, registry
from fedjax_core.algorithm import PyTree
from fedjax_core.atomic_files import reword_os_errors, write_csv
from fedjax_core.commands.main import run_and_exit
from fedjax_core.data.input_range import MAX_SCALE_RATIO, MIN_SAMPLE, sample_channels
from fedjax_core.data.sources.file_checks import load_array
from fedjax_core.data.sources.image_folder import IMAGE_ENDINGS, convert, to_bytes
from fedjax_core.data.sources.numpy_files import read_member
from fedjax_core.reporting import console
from fedjax_core.storage import export_model, export_predictor
from fedjax_core.storage.pretrained_weights import check_scaling, check_weights
from fedjax_core.storage.safetensors_files import read_tensors

COLUMNS = ("file", "class", "probability")
log = logging.getLogger("fedjax_core")
Source = tuple[list[str], Callable[[int, int], np.ndarray]]  # n names, and (start, stop) -> examples [stop - start, ...]


def predict(
    path: str | os.PathLike,
    examples: str | os.PathLike,
    *,
    array: str | None = None,
    batch: int = 256,
    trust: bool = False,
) -> list[dict[str, Any]]:
    """Returns the most probable class of each example.

    Args:
      examples: a folder of images, one image, or a .npy or .npz file.
      array: its name in the .npz file; None: the only one, or "x".
      trust: whether modules and files that the model names, a method or a network of somebody
        else's, may be imported.

    Returns:
      Rows with the keys `COLUMNS`: the file (of an array "NAME[row]"), its class's name, and that
      class's probability.

    Raises:
      ValueError: the model's file is damaged, or its numbers cannot be computed with; there is
        nothing to classify; or it is not what the model was trained on.
      OSError: something cannot be read.
    """
    if batch < 1:
        raise ValueError(f"batch={batch} must be at least 1")
    model, arrays, description = _load_model(os.path.expanduser(path), trust)
    examples = Path(examples).expanduser()
    if array is not None and (examples.is_dir() or examples.suffix.lower() != ".npz"):
        raise ValueError(f"array={array!r} names one of the arrays in a .npz file, and {examples} is none; leave it out")
    names, read = _open_examples(examples, description, array)
    size = min(batch, len(names))
    apply = jax.jit(lambda arrays, x: jax.nn.softmax(model(arrays, x)["logits"]))
    table = []
    for start in range(0, len(names), size):
        x = read(start, min(start + size, len(names)))
        rows = np.asarray(apply(arrays, np.pad(x, [(0, size - len(x)), *[(0, 0)] * (x.ndim - 1)])))
        for name, row in zip(names[start : start + size], rows, strict=False):
            if not np.isfinite(row).all():
                raise ValueError(f"{path} gives {name} no finite probabilities: its weights are too large to compute with")
            best = int(np.argmax(row))
            table.append({"file": name, "class": description["class_names"][best], "probability": round(float(row[best]), 6)})
    return table


def _load_model(path: str | os.PathLike, trust: bool) -> tuple[Callable[[PyTree, PyTree], dict[str, Any]], PyTree, dict[str, Any]]:
    """Returns ((arrays, x) -> outputs, the arrays, the description) of a saved model, one network or a
    method's predictor."""
    arrays, metadata = read_tensors(path)
    description = export_model.read_description(metadata, path)
    check_weights(arrays, path)
    find_method, find_model = experiment.method_builder, experiment.model_builder
    if not trust:
        find_method, find_model = _installed(find_method), _installed(find_model)
    with registry.record_lookups() as lookups:
        if description.get("holds") == export_predictor.HOLDS:
            apply, tree, description = export_predictor.load_predictor(path, find_method, find_model)
        else:
            model, tree, description = export_model.load_model(path, find_model)
            apply = lambda net, x: model.apply(net, x)[0]
    if changed := experiment.list_changed(description, experiment.list_code_digests(lookups)):
        log.warning("%s was exported with another version of %s; today's code is used", path, ", ".join(changed))
    check_scaling(description, path)
    return apply, tree, description


def _installed(find: Callable[[str], Callable[..., Any]]) -> Callable[[str], Callable[..., Any]]:
    """Returns `find` for installed names only: a file must not choose what code is imported."""

    def find_installed(name: str) -> Callable[..., Any]:
        if ":" in name:
            raise ValueError(f"the model is of {name}, code from outside; --trust (in Python trust=True) lets this file import it")
        return find(name)

    return find_installed


def _open_examples(path: Path, description: dict[str, Any], array: str | None) -> Source:
    shape, floats = tuple(description["input_shape"]), description.get("input_dtype", "uint8") != "uint8"
    if path.exists() and not path.is_dir():
        _check_regular(path)
    if path.suffix.lower() in (".npy", ".npz") and not path.is_dir():
        x = _read_array(path, shape, floats, array, description)
        return [f"{path.name}[{row}]" for row in range(len(x))], lambda start, stop: x[start:stop]
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    if floats or len(shape) != 3 or shape[2] not in (1, 3):
        what = f"{'float' if floats else 'uint8'} examples of shape {list(shape)}"
        raise ValueError(f"the model was trained on {what}, not on files of images or tables; give such an array (.npy or .npz)")
    files = _list_images(path)
    names = [file.relative_to(path if path.is_dir() else path.parent).as_posix() for file in files]
    return names, lambda start, stop: np.stack([_read_image(file, shape) for file in files[start:stop]])


def _list_images(path: Path) -> list[Path]:
    """Returns the image files below a folder, sorted; of an image file itself."""
    if not path.is_dir():
        return [path]
    with reword_os_errors("read", path):
        files = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in IMAGE_ENDINGS]
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    if not files:
        raise ValueError(f"{path}: no images; looked for files ending in {', '.join(IMAGE_ENDINGS)}")
    for file in files:
        _check_regular(file)
    return files


def _check_regular(file: Path) -> None:
    if not file.is_file():  # reading a pipe would wait for ever
        raise ValueError(f"{file}: is no regular file (a folder, a pipe, or a link to nothing); take it out")


def _read_image(file: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an image, resized to `shape`: [H, W, C] uint8."""
    from PIL import Image

    height, width, channels = shape
    with reword_os_errors("read", file):
        data = file.read_bytes()
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise ValueError(f"{file} is not an image that can be read") from None
    image = convert(to_bytes(image, str(file)), channels, str(file))
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(shape)


def _read_array(path: Path, shape: tuple[int, ...], floats: bool, name: str | None, description: Mapping[str, Any]) -> np.ndarray:
    """Returns the examples in a file, checked: uint8, or float32 minus the offset of the
    description."""
    try:
        with reword_os_errors("read", path), open(path, "rb") as file:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                    name = name or (next(iter(members)) if len(members) == 1 else "x")
                    x = read_member(archive, members[registry.check_choice("array", name, members)], repr(name))
            else:
                file.seek(0)
                x = load_array(file, os.fstat(file.fileno()).st_size, "it")
    except (ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be used: {error}") from None
    if len(shape) == 3 and shape[2] == 1 and x.shape[1:] == shape[:2]:
        x = x[..., None]
    if x.shape[1:] != shape or not len(x):
        raise ValueError(f"{path} has shape {list(x.shape)}; the model takes [n, {', '.join(map(str, shape))}] with n at least 1")
    if np.issubdtype(x.dtype, np.floating):
        low, high = float(x.min()), float(x.max())
        if not (math.isfinite(low) and math.isfinite(high)) or not (floats or 0 <= low <= high <= 1):
            wanted = "finite" if floats else "in [0, 1], or uint8 in 0 ... 255"
            raise ValueError(f"{path} has floats from {low:g} to {high:g}; the model takes them {wanted}")
    elif floats and np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8:
        x = x.astype(np.float64)
    elif x.dtype != np.uint8 or floats:
        wanted = "floats, or integers of more than 8 bits" if floats else "uint8, or floats in [0, 1]"
        raise ValueError(f"{path} is of {x.dtype}; the model takes {wanted}")
    if x.dtype == np.uint8:
        return x
    offset = description.get("offset")
    x = (x if offset is None else x.astype(np.float64) - np.asarray(offset)).astype(np.float32)
    _warn_of_scale(path, x, description)
    return x


def _warn_of_scale(path: Path, x: np.ndarray, description: Mapping[str, Any]) -> None:
    """Warns of inputs whose deviation is much larger than that of the training set; of images also if it is much smaller."""
    sample = sample_channels(x)
    if len(sample) < MIN_SAMPLE:
        return
    ratio = float(np.median(sample.std(0) / np.asarray(description["std"])))
    if ratio > MAX_SCALE_RATIO or (x.ndim == 4 and 0 < ratio < 1 / MAX_SCALE_RATIO):
        log.warning(
            "%s is in [%.4g, %.4g], whose deviation is %.3g times that of what the model was trained on: must be on one scale, "
            "such as pixels in [0, 1]",
            *(path, sample.min(), sample.max(), ratio),
        )


def _parser() -> console.Parser:
    parser = console.Parser("predict", __doc__)
    parser.add_argument("model", help="a saved model")
    parser.add_argument("examples", help="a folder of images, one image, or a .npy or .npz file")
    parser.add_argument("--out", default="predictions.csv", help="the table; by default predictions.csv")
    parser.add_argument("--array", help="its name in the .npz file; by default the only one, or x")
    parser.add_argument("--batch", type=int, default=256, help="examples at once")
    parser.add_argument("--trust", action="store_true", help="the model may import a method or network of yours that it names")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Parses, predicts. Returns 0; 1 for an error, reported in one line; 2 for a wrong command
    line; 130 if interrupted."""
    console.send_warnings_to_stderr()
    try:
        given = _parser().parse_args(arguments)
    except ValueError as error:
        return console.fail(error, 2)

    def write_predictions() -> None:
        experiment.cache_compiled_programs(experiment.COMPILATION_CACHE)
        out = os.path.expanduser(given.out)
        with reword_os_errors("write", out):
            os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
        table = predict(given.model, given.examples, array=given.array, batch=given.batch, trust=given.trust)
        write_csv(out, table, COLUMNS)
        console.say(f"{given.out}: {len(table)} predictions")

    return console.run_command(write_predictions)


if __name__ == "__main__":
    run_and_exit("fedjax_core.commands.predict", sys.argv[1:])
