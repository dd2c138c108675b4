"""Arrays or encoded images in one .npz file."""

import itertools
import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedjax_core.data.sources import files, images
from fedjax_core.data.sources.dataset import Dataset, from_arrays, grey
from fedjax_core.data.sources.splits import stratified_fraction

NPZ_COLUMNS = ("images", "bytes", "offsets", "labels", "domains", "clients")
NPZ_SHARED = ("is_test", "class_names", "domain_names")


def npz(data_dir: Path, path: str, channels: int = 3, size: int | None = None, test_fraction: float | None = None) -> Dataset:
    """A .npz file with arrays or encoded images; read without pickle.

    Either both parts, `train_` and `test_` in front of each key, or one with `is_test` [rows] bool and bare keys:
      images                 [rows, H, W] or [rows, H, W, C], uint8 or floats
      bytes, offsets         instead of images: encoded files one after another, file i is bytes[offsets[i]:offsets[i + 1]]
      labels                 [rows] integers
      domains, clients       [rows] integers, optional
    and without a prefix, optional: class_names [K], domain_names.

    Args:
      data_dir: where relative paths start.
      path: the file.
      channels: 3 or 1, what encoded images are converted to.
      size: resize encoded images to size x size; needed where they differ.
      test_fraction: for a file in one part: our own split, stratified by class (and domain), in place of `is_test`.
    """
    where = data_dir / Path(path).expanduser()
    candidates = [where] if where.suffix == ".npz" else [where, where.with_name(where.name + ".npz")]
    where = files.find(f"npz:{path}", data_dir, candidates, "put the file there, or give its full path")
    columns = _npz_columns(where)
    names = {key: [str(name) for name in columns.pop(key)] for key in ("class_names", "domain_names") if key in columns}
    parts = {"train": {}, "test": {}}
    if "labels" in columns:
        labels = columns["labels"]
        rows = {key: columns[key] for key in NPZ_COLUMNS if key in columns}
        if test_fraction is not None:
            is_test = stratified_fraction([labels, rows["domains"]] if "domains" in rows else [labels], test_fraction)
        elif "is_test" in columns:
            is_test = columns["is_test"].astype(bool)
        else:
            raise ValueError(f"{where}: has neither `is_test` nor a test part; pass test_fraction, such as 0.2.")
        rows |= {"images": _npz_images(where, rows, "", channels, size)}
        for part, chosen in (("train", ~is_test), ("test", is_test)):
            parts[part] = {key: values[chosen] for key, values in rows.items() if key not in ("bytes", "offsets")}
    elif test_fraction is not None:
        raise ValueError(f"{where}: test_fraction={test_fraction}, but the file has a test part of its own.")
    else:
        for part in parts:
            rows = {key: columns[f"{part}_{key}"] for key in NPZ_COLUMNS if f"{part}_{key}" in columns}
            if "labels" not in rows:
                raise ValueError(f"{where}: has no `{part}_labels` (found: {', '.join(columns)}).")
            parts[part] = rows | {"images": _npz_images(where, rows, f"{part}_", channels, size)}
    train, test = parts["train"], parts["test"]
    return from_arrays(
        train["images"],
        train["labels"],
        test["images"],
        test["labels"],
        names.get("class_names"),
        name=where.stem,
        train_domains=train.get("domains"),
        test_domains=test.get("domains"),
        domain_names=names.get("domain_names", ()),
        train_clients=train.get("clients"),
        test_clients=test.get("clients"),
    )


def _npz_columns(where: Path) -> dict[str, np.ndarray]:
    """The arrays of the file that have a known key."""
    if not zipfile.is_zipfile(where):
        raise ValueError(f"{where}: is not a .npz archive, or is truncated.")
    columns = {}
    with np.load(where, allow_pickle=False) as file:
        for key in file.files:
            if key.removeprefix("train_").removeprefix("test_") in NPZ_COLUMNS or key in NPZ_SHARED:
                try:
                    columns[key] = file[key]
                except ValueError:
                    raise ValueError(f"{where}: `{key}` holds pickled objects, which are never loaded.") from None
                except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                    raise ValueError(f"{where}: `{key}` is damaged ({error}); get the file again.") from error
        if not columns:
            raise ValueError(f"{where}: has none of the known keys; found {', '.join(file.files) or 'nothing'}.")
    return columns


def _npz_images(where: Path, rows: dict[str, np.ndarray], prefix: str, channels: int, size: int | None) -> np.ndarray:
    if "images" in rows:
        if size is not None:
            raise ValueError(f"{where}: size={size}: only encoded images are resized, `{prefix}images` is an array.")
        return grey(rows["images"])
    if "bytes" not in rows or "offsets" not in rows:
        raise ValueError(f"{where}: has neither `{prefix}images` nor `{prefix}bytes` with `{prefix}offsets`.")
    blob, offsets, count = rows["bytes"].tobytes(), rows["offsets"], len(rows["labels"])
    if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != len(blob) or np.any(np.diff(offsets) < 0):
        raise ValueError(
            f"{where}: `{prefix}offsets` must be {count + 1} increasing numbers from 0 to {len(blob)}, one more than there are "
            "labels."
        )
    files = (blob[a:b] for a, b in itertools.pairwise(offsets))
    return images.decode(f"{where} {prefix}bytes", files, count, channels, size)
