"""Parts of a checkpoint: files that are written once, and belong to all later checkpoints that go on from them.

A checkpoint's folder `parts/` has files 00000.safetensors, 00001.safetensors ... (`tensors.py`, with digests). The checkpoint that
goes on from it has the same files, by hard links where the file system has such, and its own after them: it writes what changed, is
whole by itself, and may be copied, moved or deleted like any other.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from fedjax_core.storage.tensors import read_tensors, write_tensors

PARTS = "parts"
Arrays = Mapping[str, np.ndarray]


def write(place: Path, parts: Iterable[Arrays], after: Path | None) -> list[str]:
    """Writes the parts of a checkpoint behind those of an earlier one.

    Args:
      place: of the checkpoint that is being written.
      parts: named arrays, a file for each.
      after: the earlier checkpoint; None: there are no parts before these.

    Returns:
      The names of all its files, in their order.

    Raises:
      OSError: they cannot be written.
    """
    folder = place / PARTS
    folder.mkdir()
    names = [] if after is None else sorted(path.name for path in (after / PARTS).iterdir())
    for name in names:
        assert after is not None
        try:
            os.link(after / PARTS / name, folder / name)
        except OSError:  # a file system without hard links, or too many of this file
            shutil.copyfile(after / PARTS / name, folder / name)
    for arrays in parts:
        names.append(f"{len(names):05d}.safetensors")
        write_tensors(folder / names[-1], arrays, {})
    return names


def read(place: Path, names: Iterable[str]) -> Iterator[dict[str, np.ndarray]]:
    """The parts of a checkpoint, in their order, compared with their digests.

    Raises:
      ValueError: one is damaged, or is not there.
      OSError: one cannot be read.
    """
    for name in names:
        if not (place / PARTS / name).is_file():
            raise ValueError(f"{place} is damaged: it lacks {PARTS}/{name}")
        yield read_tensors(place / PARTS / name)[0]
