"""Which parts of a checkpoint the one after it writes anew: a log of what changed, which never has to be written whole at once.

Each checkpoint adds a part with what changed since the one before, and goes on from that one's parts (`parts.py`). Two rules keep
parts few, and those of a checkpoint from lasting for ever; what they write anew is put into the checkpoint's own part.

  Age. What changes pays for as much of the oldest parts: as soon as a part's live bytes, those that no later part has, are paid
    for, they are written anew, and the part is dropped. When as much has changed as there is, no part of then is left.
  Size. A last part that is not full, and is less than twice what is written anyhow, is written with it, and so on: parts that are
    not full are each at least twice the next. No checkpoint takes in more than two full parts' worth of these.

With `full` bytes a part, T bytes of live rows and w bytes that changed since the last checkpoint:

  written at once    at most 2 w and three parts' worth, however large T is
  written in all     of each byte that changes one for itself, one for the oldest parts, and both again when their part goes into
                     one that is half as large again or larger: about log2(full / w) times at most
  read on restore    at most 3 T and three parts' worth, from at most 6 T / full + log2(full / least row) + 3 parts (of several
                     groups of clients so many each)

This is the circular log of Rosenblum and Ousterhout (The Design and Implementation of a Log-Structured File System, 1992), whose
tail is cleaned, with the binary merging of Bentley and Saxe (Decomposable Searching Problems I, 1980) at its head.
"""

from collections.abc import Mapping


def renewed(live: Mapping[int, int], changed: int, paid: int, full: int) -> tuple[list[int], int]:
    """The parts whose live rows the next checkpoint writes anew.

    Args:
      live: by a part's number, later ones being larger, bytes of rows that no later part has and that have not changed.
      changed: w, bytes of rows that have changed, which are written anyhow.
      paid: bytes of the oldest parts that earlier changes have paid for.
      full: bytes of the largest part.

    Returns:
      (their numbers, ascending; what is left of what was paid).

    Example:
      >>> renewed({0: 100, 1: 40, 2: 10}, changed=8, paid=50, full=1000)  # 10 < 2 * 8, 40 is not below 2 * 18
      ([2], 58)
      >>> renewed({0: 100, 1: 40}, changed=8, paid=95, full=1000)  # 0 is paid for; 40 < 2 * 108
      ([0, 1], 0)
    """
    left, paid, new = sorted(live), paid + changed, changed
    first = 0
    while first < len(left) and live[left[first]] <= paid:
        paid, new, first = paid - live[left[first]], new + live[left[first]], first + 1
    taken, last = 0, len(left)
    while last > first and live[left[last - 1]] < min(full / 2, 2 * new) and taken < full:
        last -= 1
        taken, new = taken + live[left[last]], new + live[left[last]]
    return [*left[:first], *left[last:]], paid if first < last else 0
