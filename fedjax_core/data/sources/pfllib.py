"""Data sets that PFLlib or HtFLlib has written: a file of examples for each client."""

import contextlib
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.data.sources import file_checks
from fedjax_core.data.sources.dataset import Dataset, from_arrays

# What a pickle of NumPy arrays names. None of these runs code.
_ALLOWED = {
    ("_codecs", "encode"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
}


def pfllib(path: str, data_dir: Path) -> Dataset:
    """Reads a folder of PFLlib or HtFLlib, such as `dataset/MNIST`: train/0.npz, test/0.npz and so on.

    Every client keeps its own training and test examples (`data.partition="natural"`). Images are
    floats and stay as they were normalised there: use `normalise="unit"`.

    Args:
      path: the folder, in `data_dir` or anywhere else.
      data_dir: the folder of data sets.

    Raises:
      FileNotFoundError: there is no such folder, or a client's file is missing.
      ValueError: a file has something else than images and classes, or a pickle that names more
        than arrays.
    """
    how = "give the folder that PFLlib's generate_*.py has written"
    folder = file_checks.find_file("pfllib", data_dir, (), how, data_dir / path, Path(path).expanduser())
    clients = sorted(int(file.stem) for file in (folder / "train").glob("*.npz") if file.stem.isdecimal())
    if clients != list(range(len(clients))) or not clients:
        raise FileNotFoundError(f"{folder / 'train'}: has the clients {clients}, must have 0.npz, 1.npz and so on; {how}.")
    _check_number(folder, len(clients))
    arrays: dict[str, Any] = {}
    for part in ("train", "test"):
        pairs = [_read_client(folder / part / f"{i}.npz") for i in clients]
        arrays[f"{part}_x"], arrays[f"{part}_y"] = (np.concatenate(leaves) for leaves in zip(*pairs, strict=True))
        arrays[f"{part}_clients"] = np.repeat(np.arange(len(clients)), [len(y) for _, y in pairs])
    return from_arrays(**arrays, name=folder.name)


def _check_number(folder: Path, number: int) -> None:
    """Raises ValueError where config.json or test/ has another number of clients: some are left from an earlier partition."""
    numbers = {"test/": sum(file.stem.isdecimal() for file in (folder / "test").glob("*.npz"))}
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        numbers["config.json"] = int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["num_clients"])
    for file, other in numbers.items():
        if other > number or (file == "config.json" and other != number):
            what = f"train/ has {number} clients, {file} {other}"
            raise ValueError(f"{folder}: {what}; empty the folder and write one partition.")


def _read_client(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns x [n, H, W, C] or [n, D], and y [n], of a client's file."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: is missing; each client needs a file in train/ and in test/.")
    try:
        with zipfile.ZipFile(file) as archive, archive.open("data.npy") as member:
            held = _read_object(io.BytesIO(member.read()))
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise ValueError(f"{file}: cannot be read as PFLlib's dictionary of arrays: {error}.") from None
    if not isinstance(held, dict) or not {"x", "y"} <= held.keys():
        raise ValueError(f"{file}: must hold a dictionary with x and y.")
    x, y = held["x"], np.asarray(held["y"])
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "fiu" or x.ndim not in (2, 4):
        raise ValueError(f"{file}: x must be an array of images [n, C, H, W] or features [n, D]; texts are not read.")
    return (np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else x), y


def _read_object(file: io.BytesIO) -> Any:
    """Returns the single object in a .npy file."""
    shape, _, dtype = file_checks.HEADER_READERS[np.lib.format.read_magic(file)](file)
    if dtype != np.dtype(object) or shape != ():
        raise ValueError(f"an array {shape} {dtype}, not one object")
    held = _ArrayUnpickler(file).load()
    return held.item() if isinstance(held, np.ndarray) and held.shape == () else held


class _ArrayUnpickler(pickle.Unpickler):
    """Loads arrays, containers and numbers; anything else in a pickle is refused before it is called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"its pickle names {module}.{name}, which is not part of an array")
        return super().find_class(module, name)
