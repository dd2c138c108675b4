"""Work of coming rounds, in one thread beside the devices."""

import concurrent.futures
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import jax

T = TypeVar("T")
DEPTH = 2  # how many are made before they are wanted


class Ahead(Generic[T]):
    """Makes something for the numbers n, n + 1, ... in a thread, a few before they are asked for.

    What goes wrong in the thread is raised where its number is asked for. On several processes all is made when it is asked for:
    programs must be started in the same order by all of them.
    """

    def __init__(self, make: Callable[[int], T]):
        """Starts nothing. `make`: number -> what is wanted; called in increasing order unless another number is asked for."""
        self._make, self._thread = make, None
        self._coming: deque[tuple[int, concurrent.futures.Future[T]]] = deque()

    def take(self, number: int) -> T:
        """What `make(number)` gives. Those that follow are begun."""
        if jax.process_count() > 1:
            return self._make(number)
        if not self._coming or self._coming[0][0] != number:
            self.close()
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "rows of coming rounds")
        while len(self._coming) <= DEPTH:
            following = number + len(self._coming)
            self._coming.append((following, self._thread.submit(self._make, following)))
        try:
            found = self._coming[0][1].result()
        except BaseException:
            self.close()
            raise
        self._coming.popleft()
        return found

    def close(self) -> None:
        """Ends the thread when it is done with what it is at; it is begun anew if something is asked for."""
        self._coming.clear()
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None


def each(make: Callable[[int], T], number: int) -> Iterator[T]:
    """`make(0)` ... `make(number - 1)`, each made while its predecessor is in use."""
    ahead = Ahead(lambda i: make(i) if i < number else None)
    try:
        for i in range(number):
            found = ahead.take(i)
            assert found is not None
            yield found
    finally:
        ahead.close()
