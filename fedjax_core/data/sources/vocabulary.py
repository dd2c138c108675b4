"""A vocabulary of the most frequent words; all others are one token.

  0 <pad>   1 <bos>   2 <eos>   3 ... 3 + V - 1 the words, the most frequent first   3 + V <unk>

as FedJAX and TensorFlow Federated have StackOverflow's. A text is <bos>, its words, <eos>. Where a
text itself has one of these four names as a word, as published texts have <unk>, that word is
<unk>.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from fedjax_core.data.row_readers import check_fits

PAD, BOS, EOS = 0, 1, 2
FIRST = 3
SPECIAL, UNKNOWN = ("<pad>", "<bos>", "<eos>"), "<unk>"


def most_frequent_words(texts: Iterable[Sequence[str]], number: int) -> list[str]:
    """Returns the `number` most frequent words, equally frequent ones in alphabetical order."""
    counts = Counter(word for text in texts for word in text)
    for name in token_names(()):  # special tokens are no words
        del counts[name]
    return sorted(counts, key=lambda word: (-counts[word], word))[:number]


def token_names(words: Sequence[str]) -> list[str]:
    """Returns the names of all token ids."""
    return [*SPECIAL, *words, UNKNOWN]


def encode_texts(texts: Sequence[Sequence[str]], words: Sequence[str], length: int, behind: bool) -> np.ndarray:
    """Encodes texts as token ids.

    Args:
      texts: words of each.
      words: of the vocabulary.
      length: T; longer texts are cut.
      behind: whether the next word is predicted: [n, T + 1], -1 behind a text; else [n, T], `PAD`
        behind it.
    """
    index = {word: FIRST + i for i, word in enumerate(words)}
    unknown = FIRST + len(words)
    return _encode(texts, lambda word: index.get(word, unknown), length + behind, -1 if behind else PAD)


def _encode(texts: Sequence[Sequence[str]], index: Callable[[str], int], width: int, padding: int) -> np.ndarray:
    """Returns [texts, width] int32: the index of each word between <bos> and <eos>, padded."""
    check_fits(f"length={width} of {len(texts)} texts", (len(texts), width), np.int32)
    encoded = np.full((len(texts), width), padding, np.int32)
    for row, text in zip(encoded, texts, strict=True):
        ids = [BOS, *map(index, text[:width]), EOS][:width]
        row[: len(ids)] = ids
    return encoded


def index_texts(
    texts: Mapping[str, Sequence[Sequence[str]]], number: int, length: int, behind: bool
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Returns (names, token ids of each part), with the most frequent words of the part "train"."""
    words = most_frequent_words(texts["train"], number)
    return token_names(words), {part: encode_texts(of_part, words, length, behind) for part, of_part in texts.items()}


class StreamingVocabulary:
    """`index_texts` for millions of texts: words are kept once, and ids renumbered at the end."""

    def __init__(self, length: int, behind: bool):
        self._width = length + behind
        self._padding = -1 if behind else PAD
        self._numbers: dict[str, int] = {}  # from 1; 0 is a word that was never counted
        self._counts = [0]

    def encode(self, texts: Sequence[Sequence[str]], counted: bool) -> np.ndarray:
        """Encodes texts as [texts, width] int32; `counted` words count for the vocabulary."""
        for word in (word for text in texts for word in text) if counted else ():
            number = self._numbers.setdefault(word, len(self._counts))
            if number == len(self._counts):
                self._counts.append(0)
            self._counts[number] += 1
        return _encode(texts, lambda word: FIRST + self._numbers.get(word, 0), self._width, self._padding)

    def index_texts(self, number: int, parts: Mapping[str, deque[np.ndarray]]) -> tuple[list[str], dict[str, np.ndarray]]:
        """Returns (names, token ids of each part), by the words that were counted.

        It empties the queues, so that memory has no part twice.
        """
        counted = self._numbers.keys() - token_names(())
        words = heapq.nsmallest(number, counted, key=lambda word: (-self._counts[self._numbers[word]], word))
        renumbered = np.full(FIRST + len(self._counts), FIRST + len(words), np.int32)
        renumbered[:FIRST] = np.arange(FIRST)
        renumbered[[FIRST + self._numbers[word] for word in words]] = FIRST + np.arange(len(words))
        return token_names(words), {part: self._renumber(renumbered, blocks) for part, blocks in parts.items()}

    def _renumber(self, renumbered: np.ndarray, blocks: deque[np.ndarray]) -> np.ndarray:
        ids = np.empty((sum(map(len, blocks)), self._width), np.int32)
        start = 0
        while blocks:
            block = blocks.popleft()
            ids[start : start + len(block)] = np.where(block < 0, block, renumbered[block])
            start += len(block)
        return ids
