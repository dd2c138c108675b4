"""Images of published lists, decoded: in memory, or, where they are too many for it, in files beside the list, made once."""

import contextlib
import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.data import memory
from fedjax_core.data.sources.images import decode

SHARE = 0.5  # of this machine's memory, that the images of all parts may take together
_BLOCK = 2**26  # bytes that are decoded at once for a file
log = logging.getLogger("fedjax_core")


def images(parts: Mapping[str, Sequence[Path]], size: int, folder: Path) -> dict[str, np.ndarray]:
    """[rows, size, size, 3] uint8 of each part: arrays, or memory-mapped files of the folder, by the list of their images.

    Args:
      parts: the files of each part's images.
      size: images become size x size.
      folder: where decoded images are kept; their files are made again if they are removed.

    Raises:
      FileNotFoundError: an image is not there.
      ValueError: an image cannot be read, or a file of decoded images is another one.
      OSError: such a file cannot be written; one line.
    """
    needed = sum(map(len, parts.values())) * size * size * 3
    if needed <= SHARE * memory.there():
        return {part: _decoded(files, size) for part, files in parts.items()}
    return {part: _kept(files, size, folder) for part, files in parts.items()}


def _decoded(files: Sequence[Path], size: int) -> np.ndarray:
    def blobs() -> Iterator[bytes]:
        for file in files:
            if not file.is_file():
                raise FileNotFoundError(f"{file} is not there, and the list names it; get the images again.")
            yield file.read_bytes()

    return decode(lambda i: str(files[i]), blobs(), len(files), 3, size)


def _kept(files: Sequence[Path], size: int, folder: Path) -> np.ndarray:
    listed = "\n".join(os.path.relpath(file, folder) for file in files)
    place = folder / f"decoded-{size}-{hashlib.sha256(listed.encode()).hexdigest()[:16]}.npy"
    shape = (len(files), size, size, 3)
    with _alone(place):
        if not place.is_file():
            _write(place, files, size, shape)
    try:
        found: Any = np.load(place, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{place}: is no file of decoded images ({error}); remove it, and it is made again.") from error
    if found.shape != shape or found.dtype != np.uint8:
        raise ValueError(f"{place}: has {found.shape} {found.dtype}, not {shape} uint8; remove it, and it is made again.")
    return found


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """One process at a time, where the file system has locks; else several do the same work."""
    with contextlib.ExitStack() as stack:
        if not place.is_file() and sys.platform != "win32":
            import fcntl

            with contextlib.suppress(OSError):
                lock = stack.enter_context(open(place.with_name(f".{place.name}.lock"), "a"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(place: Path, files: Sequence[Path], size: int, shape: tuple[int, ...]) -> None:
    """The file, whole or not at all; block by block, so that a full disk is an error and no crash."""
    row = size * size * 3
    log.warning("decoding %d images into %s, once (%s)", len(files), place, memory.said(len(files) * row))
    each, writing = max(1, _BLOCK // row), None
    try:
        handle, name = tempfile.mkstemp(".npy", ".writing-", place.parent)
        writing = Path(name)
        with open(handle, "wb") as file:
            np.lib.format.write_array_header_2_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            for begin in range(0, len(files), each):
                file.write(_decoded(files[begin : begin + each], size).data)
            file.flush()
            os.fsync(file.fileno())
        writing.chmod(0o644)
        writing.replace(place)
    except FileNotFoundError:
        raise
    except OSError as error:
        what = f"cannot keep {len(files)} decoded images, which this machine's memory does not hold, in {place}"
        raise OSError(error.errno, f"{what}: {error.strerror}; give a smaller size, or room there") from error
    finally:
        if writing is not None:
            writing.unlink(missing_ok=True)
