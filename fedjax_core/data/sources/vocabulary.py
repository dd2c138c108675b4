"""Words as numbers: the most frequent ones are told apart, all others are one.

  0 <pad>   1 <bos>   2 <eos>   3 ... 3 + V - 1 the words, the most frequent first   3 + V <unk>

as FedJAX and TensorFlow Federated have StackOverflow's. A text is <bos>, its words, <eos>.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

PAD, BOS, EOS = 0, 1, 2
FIRST = 3
SPECIAL = ("<pad>", "<bos>", "<eos>")


def most_frequent(texts: Iterable[Sequence[str]], number: int) -> list[str]:
    """So many words, the most frequent first; of equally frequent ones in alphabetical order."""
    counts = Counter(word for text in texts for word in text)
    return sorted(counts, key=lambda word: (-counts[word], word))[:number]


def names(words: Sequence[str]) -> list[str]:
    """Of all numbers."""
    return [*SPECIAL, *words, "<unk>"]


def rows(texts: Sequence[Sequence[str]], words: Sequence[str], length: int, behind: bool) -> np.ndarray:
    """Texts as rows of numbers.

    Args:
      texts: words of each.
      words: those that are told apart.
      length: T; longer texts are cut.
      behind: whether rows are for telling the next word: [rows, T + 1], -1 behind a text; else [rows, T], `PAD` behind it.
    """
    place = {word: FIRST + i for i, word in enumerate(words)}
    unknown, width = FIRST + len(words), length + behind
    found = np.full((len(texts), width), -1 if behind else PAD, np.int32)
    for row, text in zip(found, texts, strict=True):
        ids = [BOS, *(place.get(word, unknown) for word in text[:width]), EOS][:width]
        row[: len(ids)] = ids
    return found


def told_apart(
    texts: Mapping[str, Sequence[Sequence[str]]], number: int, length: int, behind: bool
) -> tuple[list[str], dict[str, np.ndarray]]:
    """(names, rows of each part), by the words of the part "train"."""
    words = most_frequent(texts["train"], number)
    return names(words), {part: rows(of, words, length, behind) for part, of in texts.items()}
