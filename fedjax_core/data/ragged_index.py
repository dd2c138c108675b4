"""Ragged index lists: one array of example indices, with each client's offset and length."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

_BLOCK = 2**22  # example indices that are worked on at once


def list_places(sizes: np.ndarray) -> np.ndarray:
    """Returns the place of each entry in its list, for lists of these sizes one after another.

    >>> list_places(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)


def list_owners(sizes: np.ndarray) -> np.ndarray:
    """Returns which list each entry is of, for lists of these sizes one after another.

    >>> list_owners(np.array([2, 0, 3])).tolist()
    [0, 0, 2, 2, 2]
    """
    return np.repeat(np.arange(len(sizes)), sizes)


class RaggedIndex(Sequence[np.ndarray]):
    """N lists of example indices, read like a tuple of arrays; a client costs eight bytes more.

    >>> lists = RaggedIndex.from_lists([[4, 5, 6], [], [2]])
    >>> lists[0].tolist(), len(lists), lists.rows.tolist(), lists.start.tolist(), lists.size.tolist()
    ([4, 5, 6], 3, [4, 5, 6, 2], [0, 3, 3], [3, 0, 1])

    Attributes:
      rows: [R] int32, all lists one after another; lists may share a part of it.
      start: [N] int32, where in `rows` each list begins.
      size: [N] int32, its length.
    """

    def __init__(self, rows: np.ndarray, start: np.ndarray, size: np.ndarray):
        if len(rows) > np.iinfo(np.int32).max:
            raise ValueError(f"{len(rows)} examples of all clients together: must be at most {np.iinfo(np.int32).max}.")
        self.rows, self.start, self.size = (np.asarray(part, np.int32) for part in (rows, start, size))
        self._followed: np.ndarray | None = None

    @classmethod
    def from_lists(cls, lists: Iterable[Sequence[int] | np.ndarray]) -> "RaggedIndex":
        """Concatenates lists. An object that is given several times is stored once."""
        if isinstance(lists, cls):
            return lists
        given = list(lists)
        first = {id(each): at for at, each in reversed(list(enumerate(given)))}
        whose = np.array([first[id(each)] for each in given], np.int64)
        size = np.array([len(each) for each in given], np.int64)
        own = whose == np.arange(len(given))
        start = (np.cumsum(np.where(own, size, 0)) - size)[whose]
        parts = [np.asarray(each, np.int32) for each, its in zip(given, own, strict=True) if its and len(each)]
        return cls(np.concatenate([np.zeros(0, np.int32), *parts]), start, size)

    @classmethod
    def from_sizes(cls, rows: np.ndarray, sizes: np.ndarray) -> "RaggedIndex":
        """Cuts examples into lists of these sizes, in their order; each is sorted already."""
        return cls(rows, np.cumsum(sizes, dtype=np.int64) - sizes, sizes)

    @classmethod
    def split(cls, rows: np.ndarray, sizes: np.ndarray) -> "RaggedIndex":
        """Cuts examples into lists of these sizes, in their order, and sorts each list."""
        return cls.group_by_client(rows, list_owners(sizes), len(sizes))

    @classmethod
    def group_by_client(cls, rows: np.ndarray, whose: np.ndarray, clients: int) -> "RaggedIndex":
        """Groups examples [R] by their client [R]; each list is sorted."""
        return cls.from_sizes(rows[np.lexsort((rows, whose))], np.bincount(whose, minlength=clients))

    @classmethod
    def repeat(cls, rows: np.ndarray, clients: int) -> "RaggedIndex":
        """Returns the same list for every client."""
        return cls(rows, np.zeros(clients, np.int32), np.full(clients, len(rows), np.int32))

    def __len__(self) -> int:
        return len(self.size)

    @overload
    def __getitem__(self, at: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[np.ndarray, ...]: ...

    def __getitem__(self, at):
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        start = self.start[at]
        return self.rows[start : start + self.size[at]]

    @property
    def total(self) -> int:
        """Number of examples of all clients; a shared one counts for each."""
        return int(self.size.sum(dtype=np.int64))

    def append_zeros(self, zeros: int) -> np.ndarray:
        """Returns `rows` with zeros appended, [R + zeros]; `rows` is a view of it from then on."""
        if self._followed is None or len(self._followed) != len(self.rows) + zeros:
            self._followed = np.concatenate([self.rows, np.zeros(zeros, np.int32)])
            self.rows = self._followed[: len(self.rows)]
        return self._followed

    def select(self, clients: np.ndarray) -> "RaggedIndex":
        """Returns the lists of some clients; `rows` stays whole."""
        return RaggedIndex(self.rows, self.start[clients], self.size[clients])

    def concatenate(self, clients: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Returns the examples of some clients, one list after another; int32."""
        start, size = self.start[clients].astype(np.int64), self.size[clients].astype(np.int64)
        ends = np.cumsum(size)
        if len(size) and np.array_equal(start[1:], start[0] + ends[:-1]):  # they are contiguous
            return self.rows[start[0] : start[0] + ends[-1]]
        return self.rows[np.arange(ends[-1] if len(ends) else 0) + np.repeat(start - ends + size, size)]

    def unique(self) -> tuple["RaggedIndex", np.ndarray]:
        """Returns each shared list once, and the index [N] of each client's list."""
        _, first, back = np.unique(self.start * np.int64(2**31) + self.size, return_index=True, return_inverse=True)
        return self.select(first), back

    def blocks(self, most: int = _BLOCK) -> Iterator[slice]:
        """Yields blocks of clients with at most `most` examples, or of one client."""
        begin, ends = 0, np.cumsum(self.size, dtype=np.int64)
        while begin < len(self):
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, min(int(np.searchsorted(ends, before + most, "right")), begin + most))
            yield slice(begin, end)
            begin = end

    def count_labels(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """Returns the number of examples of each class [N, K], from the labels [n] of all examples."""
        if self.total > len(self.rows):  # lists that several clients share are counted once
            once, back = self.unique()
            if len(once) < len(self):
                return once.count_labels(labels, classes)[back]
        labels = np.asarray(labels)
        out = np.zeros((len(self), classes), np.int64)
        for block in self.blocks():
            sizes = self.size[block]
            cells = list_owners(sizes) * classes + labels[self.concatenate(block)]
            out[block] = np.bincount(cells, minlength=len(sizes) * classes).reshape(-1, classes)
        return out
