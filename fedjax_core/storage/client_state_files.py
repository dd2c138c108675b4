"""Parts of checkpoints: files of client states that later checkpoints share, and their compaction.

The folder `parts/` of a checkpoint has files 00000.safetensors, 00001.safetensors ...
(`safetensors_files.py`, with digests). The next checkpoint hard-links the parts that it still needs
(copies, where the file system has no links) and adds its own. So a checkpoint writes only what
changed, is complete by itself, and may be copied, moved or deleted. Damage to a file affects every
checkpoint that shares it. With several processes each writes its own files, 00002-0000.safetensors,
00002-0001.safetensors ...

Compaction (`choose_parts_to_rewrite`) rewrites some live states with each checkpoint, never all at
once. Two rules keep parts few and drop old ones:

  Age: changed bytes pay for the oldest parts. Once a part's live bytes, those that no later part
    has, are paid for, they are rewritten and the part is dropped. When as much has changed as there
    is in all, every earlier part is gone.
  Size: a last part that is not full and smaller than twice the bytes being written is rewritten
    with them, and so on: each part that is not full is at least twice the next. A checkpoint takes
    in at most two full parts' worth of these.

With `full` bytes per part, T bytes of live states and w bytes changed since the last checkpoint:

  written at once: at most 2 w and three parts' worth, however large T is
  written in all: each changed byte once for itself, once for the oldest parts, and both again when
    their part is merged into one at least half as large again: about log2(full / w) times at most
  read on restore: at most 3 T and three parts' worth, from at most 6 T / full + log2(full /
    smallest state) + 3 parts (per group of clients)

This is the circular log of Rosenblum and Ousterhout (The Design and Implementation of a
Log-Structured File System, 1992), whose tail is cleaned, with the binary merging of Bentley and
Saxe (Decomposable Searching Problems I, 1980) at its head.
"""

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from fedjax_core.storage.safetensors_files import read_tensors, write_tensors

PARTS = "parts"
_NAME = re.compile(r"\d{5,}(-\d{4,})?\.safetensors")
Arrays = Mapping[str, np.ndarray]


class DamagedPart(ValueError):
    """A part, whose file has this name, is missing or differs from what was written."""

    def __init__(self, name: str, text: str):
        super().__init__(text)
        self.name = name


def link_parts(
    checkpoint: Path, earlier: Path | None, dropped: Collection[int] = (), names: Iterable[str] | None = None
) -> tuple[list[str], int]:
    """Creates the folder of a checkpoint's parts, with those of an earlier checkpoint (or None).

    Args:
      checkpoint: that is being written.
      earlier: whose parts it goes on from.
      dropped: numbers of the earlier parts to leave out.
      names: of the earlier checkpoint's parts, as it recorded them; None: those in its folder.

    Returns:
      (names of the linked parts, in order; the first free number).

    Raises:
      DamagedPart: a recorded part is missing.
    """
    folder = checkpoint / PARTS
    folder.mkdir()
    available = [] if earlier is None else sorted(_list_parts(earlier) if names is None else names, key=_sort_key)
    linked = [name for name in available if part_number(name) not in dropped]
    for name in linked:
        assert earlier is not None
        source = earlier / PARTS / name
        if not source.is_file():
            raise DamagedPart(name, f"{earlier} lacks {PARTS}/{name}, which the next checkpoint goes on from")
        try:
            os.link(source, folder / name)
        except OSError:  # no hard links here, or too many of this file
            shutil.copyfile(source, folder / name)
    return linked, max((part_number(name) + 1 for name in available), default=0)


def write_parts(checkpoint: Path, parts: Iterable[Arrays], first: int, process: int | None) -> int:
    """Writes a checkpoint's own parts, named arrays, and returns their number.

    Args:
      checkpoint: that is being written.
      parts: one file for each.
      first: number of the first part.
      process: index of this process, if several write parts of different clients; else None.
    """
    count = 0
    for count, arrays in enumerate(parts, 1):
        write_tensors(checkpoint / PARTS / part_name(first + count - 1, process), arrays, {})
    return count


def part_name(number: int, process: int | None) -> str:
    """Returns the file name of a part."""
    return f"{number:05d}{'' if process is None else f'-{process:04d}'}.safetensors"


def part_number(name: str) -> int:
    """Returns the number of a part; files that several processes wrote together have one number."""
    return _sort_key(name)[0]


def _sort_key(name: str) -> tuple[int, int]:
    """Returns (number, process) of a part."""
    number, _, process = name.partition(".")[0].partition("-")
    return int(number), int(process or 0)


def read_parts(
    checkpoint: Path, names: Iterable[str], checked: bool | Callable[[Arrays], Collection[str]] = True
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the arrays of parts in order; `checked` as in `read_tensors`.

    Raises:
      DamagedPart: a part is missing or differs from what was written.
    """
    for name in names:
        file = checkpoint / PARTS / name
        if not file.is_file():
            raise DamagedPart(name, f"{checkpoint} is damaged: it lacks {PARTS}/{name}")
        try:
            arrays = read_tensors(file, checked=checked)[0]
        except ValueError as error:
            raise DamagedPart(name, str(error)) from error
        yield arrays


def has_shared_part(one: Path, other: Path, name: str | None = None) -> bool:
    """Returns whether two checkpoints share a part, or the part `name`, as one file on the disk."""
    return any(_is_same_file(one / PARTS / part, other / PARTS / part) for part in ([name] if name else _list_parts(one)))


def _list_parts(checkpoint: Path) -> list[str]:
    folder = checkpoint / PARTS
    return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else []


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(one.stat(), other.stat())
    except FileNotFoundError:
        return False


def choose_parts_to_rewrite(live: Mapping[int, int], changed: int, paid: int, full: int) -> tuple[list[int], int]:
    """Chooses the parts whose live states the next checkpoint rewrites.

    >>> choose_parts_to_rewrite({0: 100, 1: 40, 2: 10}, changed=8, paid=50, full=1000)  # 10 < 2 * 8, 40 >= 2 * 18
    ([2], 58)
    >>> choose_parts_to_rewrite({0: 100, 1: 40}, changed=8, paid=95, full=1000)  # 0 is paid for; 40 < 2 * 108
    ([0, 1], 0)

    Args:
      live: {part number: bytes that no later part has and that have not changed}; larger numbers
        are later.
      changed: w, changed bytes, which are written anyway.
      paid: bytes of the oldest parts that earlier changes have paid for.
      full: bytes of the largest part.

    Returns:
      (their numbers, ascending; the payment that is left).
    """
    numbers, paid, written = sorted(live), paid + changed, changed
    first = 0
    while first < len(numbers) and live[numbers[first]] <= paid:
        size = live[numbers[first]]
        paid, written, first = paid - size, written + size, first + 1
    merged, last = 0, len(numbers)
    while last > first and live[numbers[last - 1]] < min(full / 2, 2 * written) and merged < full:
        last -= 1
        size = live[numbers[last]]
        merged, written = merged + size, written + size
    return [*numbers[:first], *numbers[last:]], paid if first < last else 0
