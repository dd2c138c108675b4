"""Decoded images: of published lists, in memory or in files beside them; of prepared sets, cached.

The cache is the folder $FEDJAX_CACHE, by default ~/.cache/fedjax_core/decoded; "" is for none. A
later start need not decode its sets again. Its files may be removed at any time.
"""

import contextlib
import hashlib
import io
import itertools
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.atomic_files import read_bytes, write_blocks
from fedjax_core.data import row_readers
from fedjax_core.data.sources.file_checks import map_array
from fedjax_core.data.sources.image_folder import decode_images

SHARE = 0.5  # of this machine's memory, that the images of all parts may take together
CACHE_VARIABLE = "FEDJAX_CACHE"
CACHED = 2**24  # bytes of a set, below which it is decoded as quickly as read
_BLOCK = 2**26  # bytes that are decoded at once for a file
log = logging.getLogger("fedjax_core")


def load_images(parts: Mapping[str, Sequence[Path]], size: int, folder: Path) -> dict[str, np.ndarray]:
    """Loads each part's images [n, size, size, 3] uint8 from their files.

    If they would take too much memory, they are decoded once into files in the folder, which are
    memory-mapped; those are written again if they are removed.

    Raises:
      FileNotFoundError: an image is missing.
      ValueError: an image cannot be read, or a file of decoded images is another one.
      OSError: such a file cannot be written; one line.
    """
    needed = sum(map(len, parts.values())) * size * size * 3
    if needed <= SHARE * row_readers.machine_memory():
        for files in parts.values():
            _check_present(files)
        return {part: _decode(files, size) for part, files in parts.items()}
    return {part: _map_decoded(files, size, folder) for part, files in parts.items()}


def _decode(files: Sequence[Path], size: int) -> np.ndarray:
    return decode_images(lambda i: str(files[i]), map(read_bytes, files), len(files), 3, size)


def _map_decoded(files: Sequence[Path], size: int, folder: Path) -> np.ndarray:
    path = _name_decoded(files, size, folder)
    shape = (len(files), size, size, 3)
    with _lock(path):
        if not path.is_file():
            _write_decoded(path, files, size, shape)
    try:
        array = map_array(path, str(path))
    except ValueError as error:
        raise ValueError(f"{error} Remove it, and it is written again.") from error
    if array.shape != shape or array.dtype != np.uint8:
        raise ValueError(f"{path}: has {array.shape} {array.dtype}, not {shape} uint8; remove it, and it is written again.")
    return array


def _name_decoded(files: Sequence[Path], size: int, folder: Path) -> Path:
    """Returns the file of decoded images, whose name depends on the images' paths, sizes and times of change.

    Where an image is missing it is the last one that was decoded from these paths, if there is one.
    """
    paths = [os.path.relpath(file, folder) for file in files]
    stem = f"decoded-{size}-{_hash(paths)}"
    try:
        return folder / f"{stem}_{_hash(_versions(files))}.npy"
    except FileNotFoundError:
        return max(folder.glob(f"{stem}_*.npy"), key=lambda file: file.stat().st_mtime_ns, default=folder / f"{stem}.npy")


def _hash(parts: Sequence[Any]) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def _versions(files: Iterable[Path]) -> list[tuple[int, int]]:
    """Returns each file's size and time of change."""
    return [(stat.st_size, stat.st_mtime_ns) for stat in map(os.stat, files)]


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lets one process at a time write a file, where the file system has locks."""
    with contextlib.ExitStack() as stack:
        if not path.is_file() and sys.platform != "win32":
            import fcntl

            with contextlib.suppress(OSError):
                lock = stack.enter_context(open(path.with_name(f".{path.name}.lock"), "a"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_decoded(path: Path, files: Sequence[Path], size: int, shape: tuple[int, ...]) -> None:
    """Writes the file block by block, so that memory holds one."""
    row = size * size * 3
    log.warning("decoding %d images into %s, once (%s)", len(files), path, row_readers.format_bytes(len(files) * row))
    _check_present(files)
    images_per_block = max(1, _BLOCK // row)
    blocks = (_decode(files[begin : begin + images_per_block], size) for begin in range(0, len(files), images_per_block))
    try:
        _write_array(path, shape, np.dtype(np.uint8), blocks)
    except OSError as error:
        what = f"these are {len(files)} decoded images, which this machine's memory does not hold"
        raise OSError(error.errno, f"{error.strerror}; {what}: give a smaller size, or room there") from error


def _check_present(files: Sequence[Path]) -> None:
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing, and the list names it; get the images again.")


def _write_array(path: Path, shape: tuple[int, ...], dtype: np.dtype, blocks: Iterable[np.ndarray]) -> None:
    """Writes a .npy file atomically (`atomic_files.write_blocks`)."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_2_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    write_blocks(path, itertools.chain([header.getvalue()], (np.ascontiguousarray(block).data for block in blocks)))


class DecodedCache:
    """A decoded set in the cache: images [n, H, W, C] uint8 and labels [n].

    Its name depends on the paths, sizes and times of change of the files that it is decoded from,
    and on `settings`, such as the size of its images.
    """

    def __init__(self, files: Sequence[Path], *settings: Any):
        folder = os.environ.get(CACHE_VARIABLE, os.path.join("~", ".cache", "fedjax_core", "decoded"))
        versions = [(str(file.resolve()), *version) for file, version in zip(files, _versions(files), strict=True)]
        name = hashlib.sha256(repr((versions, settings)).encode()).hexdigest()[:24]
        self._folder = Path(folder).expanduser() if folder else None
        self._x, self._y = f"{name}.npy", f"{name}-labels.npy"

    def load(self, choose: Callable[[np.ndarray], np.ndarray | None]) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns images and labels; None if the cache has none, or a damaged file.

        Args:
          choose: labels -> the examples that are wanted, or None for all.
        """
        if self._folder is None or not (self._folder / self._x).is_file():
            return None
        try:
            labels = np.array(map_array(self._folder / self._y, self._y))
            images = map_array(self._folder / self._x, self._x)
            chosen = choose(labels)
            chosen = slice(None) if chosen is None else chosen
            labels, images = labels[chosen], np.array(images[chosen])
        except (OSError, ValueError, IndexError):
            return None
        is_valid = images.ndim == 4 and images.dtype == np.uint8 and labels.shape == images.shape[:1]
        return (images, labels) if is_valid else None

    def store(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Writes a set of at least `CACHED` bytes, if the disk has room for four of it."""
        if self._folder is None or images.nbytes < CACHED:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self._folder).free < 4 * images.nbytes:
                return
            for name, array in ((self._y, labels), (self._x, images)):  # labels first: a set with images has labels
                _write_array(self._folder / name, array.shape, array.dtype, [array])
        except OSError as error:
            log.info("decoded images are not kept in %s: %s", self._folder, error.strerror)
        else:
            log.info("decoded images are kept in %s (%s), for later starts", self._folder, row_readers.format_bytes(images.nbytes))
