"""How many clients a device can train at once: found by compiling, with bisection."""

from collections.abc import Callable
from typing import NamedTuple


class Largest(NamedTuple):
    """What was found.

    Attributes:
      chunk: the largest that was seen to fit; 0 if none was.
      below: the smallest that was seen not to fit; None if none was.
      tried: how often a program was compiled.
    """

    chunk: int
    below: int | None
    tried: int

    @property
    def exact(self) -> bool:
        """Whether nothing between the two is left to be tried."""
        return self.below is None or self.below == self.chunk + 1


def largest(fits: Callable[[int], bool | None], known: dict[int, bool | None], most: int, tries: int) -> Largest:
    """Bisects, while far apart on a scale of ratios; what cannot be compiled ends the search.

    >>> largest(lambda chunk: chunk <= 11, {32: False}, 32, 8)
    Largest(chunk=11, below=12, tried=6)

    Args:
      fits: chunk -> whether its round fits; None: it is not known.
      known: of some chunks already.
      most: what would be all of a device's clients at once.
      tries: the most programs to compile.
    """
    tried = 0
    while True:
        low = max((chunk for chunk, does in known.items() if does), default=0)
        high = min((chunk for chunk, does in known.items() if does is False), default=None)
        if low == most or (high is not None and high <= low + 1) or tried == tries or None in known.values():
            return Largest(low, high, tried)
        chunk = most
        if high is not None:
            between = (low + high) // 2 if high <= 4 * low else round((low * high) ** 0.5)
            chunk = 1 if not low else max(low + 1, min(high - 1, between))
        known = known | {chunk: fits(chunk)}
        tried += 1
