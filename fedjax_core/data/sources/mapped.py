"""Arrays in .npy files, of which only what is asked for is read."""

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.data.sources import file_checks
from fedjax_core.data.sources.dataset import Dataset, from_arrays

NEEDED = ("train_features", "train_labels", "test_features", "test_labels")
OPTIONAL = ("train_domains", "test_domains", "train_clients", "test_clients", "class_names", "domain_names")
OTHER = "a folder has no other targets, from_arrays(..., targets=) in a source of your own has"


def npy(data_dir: Path, path: str) -> Dataset:
    """A folder with one .npy file for each array; read without pickle. Features stay in their files.

    It has train_features.npy and test_features.npy, [rows, ...] uint8, float32 or int32, as `from_arrays` takes them (int32 up to
    2**24, beyond which float32 has not every integer); train_labels.npy and test_labels.npy, [rows] integers; and if there are such
    `train_domains`, `train_clients` and those of the test rows, [rows] integers, `class_names` [K] and `domain_names`. Rows of one
    client that lie side by side are read at once.

    Args:
      data_dir: where relative paths start.
      path: the folder.

    Raises:
      FileNotFoundError: there is no such folder, or it lacks a file.
      ValueError: a file is damaged, or the arrays do not fit together; the message has the folder.
    """
    where = data_dir / Path(path).expanduser()
    folder = file_checks.find(f"npy:{path}", data_dir, [], "put the folder there, or give its full path", where)
    for name in NEEDED:
        if not (folder / f"{name}.npy").is_file():
            raise FileNotFoundError(f"npy:{path}: there is no {folder / name}.npy; a folder needs {', '.join(NEEDED)}.")
    try:
        found = {name: _read(folder / f"{name}.npy") for name in (*NEEDED, *OPTIONAL) if (folder / f"{name}.npy").is_file()}
        parts = {f"{part}_{short}": found.pop(f"{part}_{name}") for part in ("train", "test") for short, name in _SHORT.items()}
        for part in ("train", "test"):
            y = parts[f"{part}_y"]
            if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
                raise ValueError(
                    f"{part}_labels.npy has shape {y.shape} and type {y.dtype}: must be classes, [rows] integers; {OTHER}."
                )
        return from_arrays(**parts, name=folder.name, **{name: _names(name, array) for name, array in found.items()})
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


_SHORT = {"x": "features", "y": "labels"}


def _read(file: Path) -> np.ndarray:
    found = file_checks.map_array(file, file.name)
    if file.stem.endswith("features") and found.dtype not in (np.uint8, np.float32, np.int32):
        raise ValueError(f"{file.name} has type {found.dtype}: must be uint8, float32 or int32, to be read as it lies.")
    return found


def _names(name: str, array: np.ndarray) -> Any:
    return [str(entry) for entry in array] if name.endswith("names") else array
