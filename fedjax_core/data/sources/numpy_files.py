"""Data sets in a .npz file (arrays or encoded images) or a folder of memory-mapped .npy files."""

import itertools
import logging
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_core.data.sources import file_checks
from fedjax_core.data.sources.dataset import Dataset, add_channel_axis, from_arrays
from fedjax_core.data.sources.file_checks import TestFraction, stratified_fraction_mask
from fedjax_core.data.sources.image_folder import decode_images
from fedjax_core.option_types import AtLeastOne

OF_ROWS = ("images", "features", "bytes", "offsets", "labels", "domains", "clients")
SHARED = ("is_test", "class_names", "domain_names", "client_names")
OTHER_NAMES = {  # of Keras' files, and of `from_arrays`; x are images where they are uint8 [n, H, W] or [n, H, W, C]
    **{f"{what}_{part}": f"{part}_{what}" for part in ("train", "test") for what in ("x", "y")},
    **{f"{what.upper()}_{part}": f"{part}_{what}" for part in ("train", "test") for what in ("x", "y")},
}
log = logging.getLogger("fedjax_core")
_OF_ANY_SHAPE = ("images", "features", "_x")
NEEDED_FILES = ("train_features", "train_labels", "test_features", "test_labels")
OPTIONAL_FILES = ("train_domains", "test_domains", "train_clients", "test_clients", "class_names", "domain_names", "client_names")


def npz(
    data_dir: Path,
    path: str,
    channels: Literal[1, 3] = 3,
    size: AtLeastOne | None = None,
    test_fraction: TestFraction | None = None,
) -> Dataset:
    """Reads a .npz file with arrays or encoded images, without pickle.

    Either both parts, `train_` and `test_` in front of each key, or one with `is_test` [n] bool and
    bare keys:
      images                 [n, H, W] or [n, H, W, C], uint8 or floats
      features               instead of images: [n, ...], numbers as `from_arrays` takes them
      bytes, offsets         instead of images: encoded files one after another, file i is
                             bytes[offsets[i]:offsets[i + 1]]
      labels                 [n] or [n, 1] integers
      domains, clients       [n] integers, optional
    and without a prefix, optional: class_names [K], domain_names, client_names. Or the arrays
    x_train, y_train, x_test and y_test, as Keras has them (also train_x ...): x is images if it is
    uint8 [n, H, W], else features; y is labels. train_clients and the like go with these, too. Other
    keys are named in a warning.

    Args:
      path: the file; its ending .npz may be left out.
      channels: 3 or 1, what encoded images are converted to.
      size: resize encoded images to size x size pixels; needed where they differ.
      test_fraction: for a file in one part: our own split, stratified by class, domain and client, in
        place of `is_test`.

    Raises:
      ValueError: it is damaged, lacks a key, or its arrays do not fit together; the message has the
        file and the key.
    """
    where = data_dir / Path(path).expanduser()
    candidates = [where] if where.suffix == ".npz" else [where, where.with_name(where.name + ".npz")]
    where = file_checks.find_file(f"npz:{path}", data_dir, candidates, "put the file there, or give its full path")
    try:
        return _build_dataset(where.stem, _read_columns(where), channels, size, test_fraction)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _build_dataset(
    name: str, columns: dict[str, np.ndarray], channels: int, size: int | None, test_fraction: float | None
) -> Dataset:
    names: dict[str, Any] = {key: _read_names(columns.pop(key)) for key in SHARED[1:] if key in columns}
    if "labels" in columns:
        examples = _read_part(columns, "", channels, size)
        labels = examples["y"]
        if test_fraction is not None:
            strata = [examples[key] for key in ("y", "domains", "clients") if key in examples]
            strata = [column for column in strata if column.dtype.kind in "bui"]  # others are refused below
            is_test = stratified_fraction_mask(strata, test_fraction)
        elif "is_test" in columns:
            is_test = columns["is_test"]
            if len(is_test) != len(labels) or is_test.dtype.kind not in "bui" or not np.isin(is_test, (0, 1)).all():
                what = f"{len(is_test)} values of {is_test.dtype}"
                raise ValueError(f"`is_test` has {what}: must be {len(labels)} times True or False, one for each label.")
        else:
            raise ValueError("has neither `is_test` nor a test part; pass test_fraction, such as 0.2.")
        masks = {"train": is_test == 0, "test": is_test != 0}
        parts = {part: {key: values[mask] for key, values in examples.items()} for part, mask in masks.items()}
    elif test_fraction is not None:
        raise ValueError(f"test_fraction={test_fraction}, but the file has a test part of its own.")
    else:
        parts = {part: _read_part(columns, f"{part}_", channels, size) for part in ("train", "test")}
        if bare := [key for key in OF_ROWS if key in columns]:
            meant = " and ".join(f"{part}_{bare[0]}" for part in parts)
            log.warning(
                "%s: arrays without `labels` of the same rows are not read: %s; name them such as %s", name, ", ".join(bare), meant
            )
    arrays: dict[str, Any] = {f"{part}_{key}": values for part, held in parts.items() for key, values in held.items()}
    return from_arrays(**arrays, **names, name=name)


def _read_names(names: np.ndarray) -> list[str]:
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist()]


def _read_part(columns: dict[str, np.ndarray], prefix: str, channels: int, size: int | None) -> dict[str, np.ndarray]:
    """Returns "x" and "y" of one part, and "domains" and "clients" if it has them."""
    held = {key: columns[prefix + key] for key in OF_ROWS if prefix + key in columns}
    if "labels" not in held:
        raise ValueError(f"has no `{prefix}labels`, but: {', '.join(columns)}.")
    if not np.issubdtype(held["labels"].dtype, np.integer):
        wanted = "must be classes, integers, such as np.unique(labels, return_inverse=True) makes of all texts together"
        others = "other targets need csv, parquet or a source of your own with from_arrays(..., targets=)"
        raise ValueError(f"`{prefix}labels` has type {held['labels'].dtype}: {wanted}; {others}.")
    count = len(held["labels"])
    for key, values in held.items():
        if key not in ("bytes", "offsets") and len(values) != count:
            raise ValueError(f"`{prefix}{key}` has {len(values)} examples for {count} `{prefix}labels`: must be equally many.")
    others = {key: held[key] for key in ("domains", "clients") if key in held}
    return {"x": _read_inputs(held, prefix, channels, size), "y": held["labels"], **others}


def _read_inputs(held: dict[str, np.ndarray], prefix: str, channels: int, size: int | None) -> np.ndarray:
    array = next((key for key in ("images", "features") if key in held), None)
    if array is not None:
        if size is not None:
            raise ValueError(f"size={size}: only encoded images are resized, `{prefix}{array}` is an array.")
        return add_channel_axis(held[array]) if array == "images" else held[array]
    if "bytes" not in held or "offsets" not in held:
        raise ValueError(f"has neither `{prefix}images` nor `{prefix}features` nor `{prefix}bytes` with `{prefix}offsets`.")
    blob, offsets, count = held["bytes"].tobytes(), held["offsets"], len(held["labels"])
    whole = len(offsets) == count + 1 and np.issubdtype(offsets.dtype, np.integer)
    if not whole or offsets[0] != 0 or offsets[-1] != len(blob) or np.any(offsets[1:] < offsets[:-1]):
        raise ValueError(
            f"`{prefix}offsets` must be {count + 1} increasing numbers from 0 to {len(blob)}, one more than there are labels."
        )
    blobs = (blob[a:b] for a, b in itertools.pairwise(offsets.tolist()))
    return decode_images(lambda i: f"image {i} of `{prefix}bytes`", blobs, count, channels, size)


def _read_columns(where: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of the file that have a known key."""
    if not zipfile.is_zipfile(where):
        raise ValueError("is not a .npz archive, or is truncated.")
    columns = {}
    with zipfile.ZipFile(where) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for name, info in members.items():
            key = _known_key(name)
            if key in columns:
                raise ValueError(f"has {key!r} twice, also as {name!r}: give one of them.")
            if key is not None:
                array = read_member(archive, info, f"`{name}`")
                if not key.endswith(_OF_ANY_SHAPE):
                    if array.ndim != 1 and array.shape[1:] != (1,):
                        raise ValueError(f"`{name}` has shape {array.shape}: must have one axis.")
                    array = array.reshape(-1)
                columns[key] = array
    if unread := [name for name in members if _known_key(name) is None]:
        log.warning("%s: arrays with unknown names are not read: %s", where.name, ", ".join(unread))
    for key in [key for key in columns if key.endswith("_x")]:
        values = columns.pop(key)
        images_too = values.dtype == np.uint8 and values.ndim in (3, 4)
        columns[key.removesuffix("x") + ("images" if images_too else "features")] = values
    if not columns:
        known = f"x_train, y_train, x_test, y_test; or, of both parts with train_ and test_ in front, {', '.join(OF_ROWS)}; and"
        raise ValueError(f"has none of the known keys, {known} {', '.join(SHARED)}; it has {', '.join(members) or 'nothing'}.")
    return columns


def _known_key(name: str) -> str | None:
    """Returns the key of an array's name, or None."""
    key = OTHER_NAMES.get(name, name)
    if key in ("train_y", "test_y"):
        return key.removesuffix("y") + "labels"
    is_known = key in ("train_x", "test_x") or key.removeprefix("train_").removeprefix("test_") in OF_ROWS or key in SHARED
    return key if is_known else None


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, what: str) -> np.ndarray:
    """Reads an array of a .npz archive; raises as `file_checks.load_array`."""
    try:
        with archive.open(info) as file:
            array = file_checks.load_array(file, info.file_size, what)
            if file.read(1):
                raise ValueError(f"{what} has bytes behind its array: damaged; get the file again.")
            return array
    except (OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
        raise ValueError(f"{what} cannot be unpacked ({error}); get the file again.") from error


def npy(data_dir: Path, path: str) -> Dataset:
    """Reads a folder with one .npy file per array, without pickle. Features stay in their files.

    It has train_features.npy and test_features.npy, [n, ...] uint8, float32 or int32, as
    `from_arrays` takes them (int32 up to 2**24, beyond which float32 has not every integer);
    train_labels.npy and test_labels.npy, [n] integers; and if there are such `train_domains`,
    `train_clients` and those of the test examples, [n] integers, `class_names` [K],
    `domain_names` and `client_names`. Other files are named in a warning. Neighbouring examples of one client are read at once.

    Args:
      path: the folder.

    Raises:
      ValueError: a file is damaged, or the arrays do not fit together; the message has the folder.
    """
    where = data_dir / Path(path).expanduser()
    folder = file_checks.find_file(f"npy:{path}", data_dir, [], "put the folder there, or give its full path", where)
    for name in NEEDED_FILES:
        if not (folder / f"{name}.npy").is_file():
            raise FileNotFoundError(f"npy:{path}: there is no {folder / name}.npy; a folder needs {', '.join(NEEDED_FILES)}.")
    try:
        files = {name: folder / f"{name}.npy" for name in (*NEEDED_FILES, *OPTIONAL_FILES)}
        arrays: dict[str, Any] = {name: _map_file(file) for name, file in files.items() if file.is_file()}
        if unread := sorted(file.name for file in folder.glob("*.npy") if file.stem not in files):
            log.warning("%s: files with unknown names are not read: %s", folder.name, ", ".join(unread))
        for part in ("train", "test"):
            arrays[f"{part}_x"] = arrays.pop(f"{part}_features")
            arrays[f"{part}_y"] = y = arrays.pop(f"{part}_labels")
            if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
                wanted = "must be classes, [n] integers; other targets need a source of your own with from_arrays(..., targets=)"
                raise ValueError(f"{part}_labels.npy has shape {y.shape} and type {y.dtype}: {wanted}.")
        arrays |= {name: _read_names(array) for name, array in arrays.items() if name.endswith("names")}
        return from_arrays(**arrays, name=folder.name)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def _map_file(file: Path) -> np.ndarray:
    array = file_checks.map_array(file, file.name)
    if file.stem.endswith("features") and array.dtype not in (np.uint8, np.float32, np.int32):
        raise ValueError(f"{file.name} has type {array.dtype}: must be uint8, float32 or int32, to be read in place.")
    return array
