"""Parts of a checkpoint: files that are written once, and belong to all later checkpoints that go on from them.

A checkpoint's folder `parts/` has files 00000.safetensors, 00001.safetensors ... (`safetensors_files.py`, with digests). The
checkpoint that goes on from it has the same files, by hard links where the file system has such, without those that it has no use
for, and its own after them: it writes what changed, is whole by itself, and may be copied, moved or deleted like any other.
Damage to a file is damage to all checkpoints that share it.

Where several processes write, each has files of its own, 00002-0000.safetensors, 00002-0001.safetensors ...
"""

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from fedjax_core.storage.safetensors_files import read_tensors, write_tensors

PARTS = "parts"
_CALLED = re.compile(r"\d{5,}(-\d{4,})?\.safetensors")
Arrays = Mapping[str, np.ndarray]


class Damaged(ValueError):
    """A part is not what was written.

    Attributes:
      name: of the part.
    """

    def __init__(self, name: str, text: str):
        super().__init__(text)
        self.name = name


def begin(
    place: Path, after: Path | None, without: Collection[int] = (), names: Iterable[str] | None = None
) -> tuple[list[str], int]:
    """Makes the folder of a checkpoint's parts, with those of an earlier one.

    Args:
      place: of the checkpoint that is being written.
      after: the earlier checkpoint; None: there are no parts before these.
      without: numbers of the earlier checkpoint's parts that this one goes without.
      names: of the earlier checkpoint's parts, as it recorded them; None: those that are there.

    Returns:
      (names of the earlier parts, in their order; the number of the first part behind all that the earlier checkpoint had).

    Raises:
      Damaged: one that was recorded is not there.
      OSError: they cannot be written.
    """
    folder = place / PARTS
    folder.mkdir()
    there = [] if after is None else sorted(_names(after) if names is None else names, key=_of_name)
    names = [name for name in there if number(name) not in without]
    for name in names:
        assert after is not None
        if not (after / PARTS / name).is_file():
            raise Damaged(name, f"{after} lacks {PARTS}/{name}, which the next checkpoint goes on from")
        try:
            os.link(after / PARTS / name, folder / name)
        except OSError:  # a file system without hard links, or too many of this file
            shutil.copyfile(after / PARTS / name, folder / name)
    return names, max((number(name) + 1 for name in there), default=0)


def write(place: Path, parts: Iterable[Arrays], first: int, process: int | None = None) -> int:
    """Writes the parts of a checkpoint behind those of an earlier one.

    Args:
      place: of the checkpoint that is being written.
      parts: named arrays, a file for each.
      first: the number of the first one.
      process: which process this is, where several write parts that belong to different clients; None: there is one.

    Returns:
      How many they were.

    Raises:
      OSError: they cannot be written.
    """
    done = 0
    for done, arrays in enumerate(parts, 1):
        write_tensors(place / PARTS / called(first + done - 1, process), arrays, {})
    return done


def called(number: int, process: int | None) -> str:
    """The name of a part."""
    return f"{number:05d}{'' if process is None else f'-{process:04d}'}.safetensors"


def number(name: str) -> int:
    """Of a part; several processes' files of one number were written together."""
    return _of_name(name)[0]


def _of_name(name: str) -> tuple[int, int]:
    """(number, process) of a part."""
    of, _, process = name.partition(".")[0].partition("-")
    return int(of), int(process or 0)


def read(
    place: Path, names: Iterable[str], checked: bool | Callable[[Arrays], Collection[str]] = True
) -> Iterator[dict[str, np.ndarray]]:
    """The parts of a checkpoint, in their order, compared with their digests; `checked`: as `read_tensors` has it.

    Raises:
      Damaged: one is not what was written, or is not there.
      OSError: one cannot be read.
    """
    for name in names:
        if not (place / PARTS / name).is_file():
            raise Damaged(name, f"{place} is damaged: it lacks {PARTS}/{name}")
        try:
            arrays = read_tensors(place / PARTS / name, checked=checked)[0]
        except ValueError as error:
            raise Damaged(name, str(error)) from error
        yield arrays


def shares(one: Path, other: Path, name: str | None = None) -> bool:
    """Whether two checkpoints have a part in common, or this part: one file, of two names."""
    return any(_same(one / PARTS / part, other / PARTS / part) for part in ([name] if name else _names(one)))


def _names(place: Path) -> list[str]:
    """Of the parts that are there; other files may lie beside them."""
    there = (place / PARTS).iterdir() if (place / PARTS).is_dir() else ()
    return sorted(path.name for path in there if _CALLED.fullmatch(path.name))


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(one.stat(), other.stat())
    except FileNotFoundError:
        return False
