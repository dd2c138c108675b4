"""Words as numbers: the most frequent ones are told apart, all others are one.

  0 <pad>   1 <bos>   2 <eos>   3 ... 3 + V - 1 the words, the most frequent first   3 + V <unk>

as FedJAX and TensorFlow Federated have StackOverflow's. A text is <bos>, its words, <eos>. Where a text itself has one of these
four names as a word, as published texts have <unk>, that word is <unk>.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedjax_core.data.row_readers import check_fits

PAD, BOS, EOS = 0, 1, 2
FIRST = 3
SPECIAL, UNKNOWN = ("<pad>", "<bos>", "<eos>"), "<unk>"


def most_frequent_words(texts: Iterable[Sequence[str]], number: int) -> list[str]:
    """So many words, the most frequent first; of equally frequent ones in alphabetical order. Names of other numbers are none."""
    counts = Counter(word for text in texts for word in text)
    for name in token_names(()):
        del counts[name]
    return sorted(counts, key=lambda word: (-counts[word], word))[:number]


def token_names(words: Sequence[str]) -> list[str]:
    """Of all numbers."""
    return [*SPECIAL, *words, UNKNOWN]


def encode_texts(texts: Sequence[Sequence[str]], words: Sequence[str], length: int, behind: bool) -> np.ndarray:
    """Texts as rows of numbers.

    Args:
      texts: words of each.
      words: those that are told apart.
      length: T; longer texts are cut.
      behind: whether rows are for telling the next word: [rows, T + 1], -1 behind a text; else [rows, T], `PAD` behind it.
    """
    place = {word: FIRST + i for i, word in enumerate(words)}
    unknown, width = FIRST + len(words), length + behind
    check_fits(f"length={length} of {len(texts)} texts", (len(texts), width), np.int32)
    found = np.full((len(texts), width), -1 if behind else PAD, np.int32)
    for row, text in zip(found, texts, strict=True):
        ids = [BOS, *(place.get(word, unknown) for word in text[:width]), EOS][:width]
        row[: len(ids)] = ids
    return found


def index_texts(
    texts: Mapping[str, Sequence[Sequence[str]]], number: int, length: int, behind: bool
) -> tuple[list[str], dict[str, np.ndarray]]:
    """(names, rows of each part), by the words of the part "train"."""
    words = most_frequent_words(texts["train"], number)
    return token_names(words), {part: encode_texts(of, words, length, behind) for part, of in texts.items()}


class StreamingVocabulary:
    """`told_apart` of millions of texts: each word is kept once, and a text is numbers that are made others in the end."""

    def __init__(self, length: int, behind: bool):
        """As `rows` has them."""
        self._width, self._rest = length + behind, -1 if behind else PAD
        self._numbers: dict[str, int] = {}  # from 1; 0 is a word that was never counted
        self._counts = [0]

    def rows(self, texts: Sequence[Sequence[str]], counted: bool) -> np.ndarray:
        """[texts, width] int32 for `told_apart`. `counted`: whether their words count for which are the most frequent."""
        check_fits(f"length={self._width} of {len(texts)} texts", (len(texts), self._width), np.int32)
        found = np.full((len(texts), self._width), self._rest, np.int32)
        for row, text in zip(found, texts, strict=True):
            if counted:
                for word in text:
                    number = self._numbers.setdefault(word, len(self._counts))
                    if number == len(self._counts):
                        self._counts.append(0)
                    self._counts[number] += 1
            ids = [BOS, *(FIRST + self._numbers.get(word, 0) for word in text[: self._width]), EOS][: self._width]
            row[: len(ids)] = ids
        return found

    def told_apart(self, number: int, parts: Mapping[str, deque[np.ndarray]]) -> tuple[list[str], dict[str, np.ndarray]]:
        """(names, rows of each part), by the words that were counted. Takes the pieces out of their queues, so that memory has no
        part twice."""
        told = self._numbers.keys() - token_names(())
        words = heapq.nsmallest(number, told, key=lambda word: (-self._counts[self._numbers[word]], word))
        place = np.full(FIRST + len(self._counts), FIRST + len(words), np.int32)
        place[:FIRST] = np.arange(FIRST)
        place[[FIRST + self._numbers[word] for word in words]] = FIRST + np.arange(len(words))
        return token_names(words), {part: self._joined(place, pieces) for part, pieces in parts.items()}

    def _joined(self, place: np.ndarray, pieces: deque[np.ndarray]) -> np.ndarray:
        found, at = np.empty((sum(map(len, pieces)), self._width), np.int32), 0
        while pieces:
            piece = pieces.popleft()
            found[at : at + len(piece)] = np.where(piece < 0, piece, place[piece])
            at += len(piece)
        return found
