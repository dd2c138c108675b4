"""Which parameters are trained, found while a training is traced, so that no method has to say it."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax

from fedjax_core.algorithm import Array, PyTree


class Watch:
    """Counts parameters as trainings tell them.

    A parameter that a training takes is one with that which an earlier one returned (phases of one network), or began from
    (branches, and functions traced twice); one that comes from elsewhere is another, such as a second copy of the network.

    Attributes:
      numbers: how many numbers are trained.
    """

    def __init__(self) -> None:
        self.numbers = 0
        self._known: dict[int, Array] = {}  # by identity; the arrays are kept, so that no other gets their place in memory

    def add(self, before: PyTree, after: PyTree, trains: bool) -> None:
        """Takes the leaves that one training began with and returned; `trains` is False for one of no steps."""
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            known = id(old) in self._known
            self.numbers += old.size if trains and not known else 0
            if trains or known:
                self._known |= {id(old): old, id(new): new}


_WATCH: contextvars.ContextVar[Watch | None] = contextvars.ContextVar("watch", default=None)


@contextlib.contextmanager
def watched() -> Iterator[Watch]:
    """A `Watch` of the trainings that are traced inside the block, in this thread."""
    watch = Watch()
    token = _WATCH.set(watch)
    try:
        yield watch
    finally:
        _WATCH.reset(token)


def tell(before: PyTree, after: PyTree, trains: bool = True) -> None:
    """What `local_training.fit` and `local_training.full_step` call; nothing happens where nobody watches."""
    watch = _WATCH.get()
    if watch is not None:
        watch.add(before, after, trains)
