"""Clients' lists of rows by offsets: one array of row numbers, and where each client's part of it begins and how long it is."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

_BLOCK = 2**22  # row numbers that are worked on at once


class RowLists(Sequence[np.ndarray]):
    """N lists of row numbers, read like a tuple of arrays. A client costs eight bytes beside its rows, however long the longest is.

    >>> lists = RowLists.of([[4, 5, 6], [], [2]])
    >>> lists[0].tolist(), len(lists), lists.rows.tolist(), lists.start.tolist(), lists.size.tolist()
    ([4, 5, 6], 3, [4, 5, 6, 2], [0, 3, 3], [3, 0, 1])

    Attributes:
      rows: [R] int32, all lists one after another; lists may share a part of it.
      start: [N] int32, where in `rows` each list begins.
      size: [N] int32, how long it is.
    """

    def __init__(self, rows: np.ndarray, start: np.ndarray, size: np.ndarray):
        """As the attributes; nothing is copied that has the type already.

        Raises:
          ValueError: more rows than 32 bits count.
        """
        if len(rows) > np.iinfo(np.int32).max:
            raise ValueError(f"{len(rows)} rows of all clients together: must be at most {np.iinfo(np.int32).max}.")
        self.rows, self.start, self.size = (np.asarray(part, np.int32) for part in (rows, start, size))
        self._followed: np.ndarray | None = None

    @classmethod
    def of(cls, lists: Iterable[Sequence[int] | np.ndarray]) -> "RowLists":
        """The lists one after another. One that is given several times, as the same object, stands there once."""
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
    def cut(cls, rows: np.ndarray, sizes: np.ndarray) -> "RowLists":
        """The rows divided into lists of these sizes, in their order; each list is sorted."""
        return cls.dealt(rows, np.repeat(np.arange(len(sizes)), sizes), len(sizes))

    @classmethod
    def dealt(cls, rows: np.ndarray, whose: np.ndarray, clients: int) -> "RowLists":
        """Each row [R] in the list of the client [R] whose it is; each list is sorted."""
        sizes = np.bincount(whose, minlength=clients)
        return cls(rows[np.lexsort((rows, whose))], np.cumsum(sizes) - sizes, sizes)

    @classmethod
    def cut_evenly(cls, rows: np.ndarray, clients: int) -> "RowLists":
        """The rows divided into lists of one size, in their order; each is sorted already."""
        size = len(rows) // clients
        return cls(rows, np.arange(clients) * size, np.full(clients, size))

    @classmethod
    def same(cls, rows: np.ndarray, clients: int) -> "RowLists":
        """The same list for everybody."""
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
        """Rows of all clients, one that several hold counted for each."""
        return int(self.size.sum(dtype=np.int64))

    def followed(self, zeros: int) -> np.ndarray:
        """[R + zeros] `rows`, and so many zeros behind them; `rows` lies in it from then on, so that memory has it once."""
        if self._followed is None or len(self._followed) != len(self.rows) + zeros:
            self._followed = np.concatenate([self.rows, np.zeros(zeros, np.int32)])
            self.rows = self._followed[: len(self.rows)]
        return self._followed

    def chosen(self, clients: np.ndarray) -> "RowLists":
        """The lists of some clients; `rows` stays whole."""
        return RowLists(self.rows, self.start[clients], self.size[clients])

    def joined(self, clients: np.ndarray | slice = slice(None)) -> np.ndarray:
        """The rows of some clients, one list after another; int32."""
        start, size = self.start[clients].astype(np.int64), self.size[clients].astype(np.int64)
        ends = np.cumsum(size)
        if len(size) and np.array_equal(start[1:], start[0] + ends[:-1]):  # they lie so
            return self.rows[start[0] : start[0] + ends[-1]]
        return self.rows[np.arange(ends[-1] if len(ends) else 0) + np.repeat(start - ends + size, size)]

    def distinct(self) -> tuple["RowLists", np.ndarray]:
        """Lists that several clients share once, and which of them [N] each client has."""
        _, first, back = np.unique(self.start * np.int64(2**31) + self.size, return_index=True, return_inverse=True)
        return self.chosen(first), back

    def blocks(self, most: int = _BLOCK) -> Iterator[slice]:
        """The clients in blocks with at most so many rows, or of one client."""
        begin, ends = 0, np.cumsum(self.size, dtype=np.int64)
        while begin < len(self):
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, min(int(np.searchsorted(ends, before + most, "right")), begin + most))
            yield slice(begin, end)
            begin = end

    def counts(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """[N, K] int64, rows of each class; `labels` [rows] are those of all rows."""
        if self.total > len(self.rows):  # lists that several clients share are counted once
            once, back = self.distinct()
            if len(once) < len(self):
                return once.counts(labels, classes)[back]
        labels = np.asarray(labels)
        out = np.zeros((len(self), classes), np.int64)
        for block in self.blocks():
            sizes = self.size[block]
            cells = np.repeat(np.arange(len(sizes)), sizes) * classes + labels[self.joined(block)]
            out[block] = np.bincount(cells, minlength=len(sizes) * classes).reshape(-1, classes)
        return out
