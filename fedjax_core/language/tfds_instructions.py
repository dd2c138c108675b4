"""Instruction data from text sets of tensorflow_datasets: FedOA's eight, in words of our own.

  train, test = read(DIR, examples=1000, tests=200)

  task                    set (its folder)      test examples     answers
  entailment              snli, anli/r1         test              yes, it cannot be said, no
  sentiment               glue/sst2             validation        negative, positive
                          sentiment140          test              the same, but no neutral tweets
  paraphrase              glue/mrpc             validation        no, yes
                          glue/stsb             validation        0 to 5, rounded
  reading_comprehension   openbookqa            test              the four choices
                          super_glue/record     validation        the article's entities

A question ends with its answers, as `instruction_data.read` has them. Examples without a label are
left out. The same ones are always taken: of the training examples of each answer equally many, as
far as possible; of the tests any. TensorFlow is not needed.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_core.data.apportion import make_generator
from fedjax_core.data.sources.file_checks import SPLIT_SEED
from fedjax_core.data.sources.tfds_sets import find_tfds_folder
from fedjax_core.language.instruction_data import OPTIONS, Instance

BLOCK = 2000  # records read at once
Words = tuple[str, Sequence[str], str] | None  # question, permitted answers, the right one; None: no label

TRUTH, MOOD, SAME = ("yes", "it cannot be said", "no"), ("negative", "positive"), ("no", "yes")
SCORES = ("0", "1", "2", "3", "4", "5")


def _labelled(question: str, options: Sequence[str], label: int) -> Words:
    return (question, options, options[label]) if 0 <= label < len(options) else None


def _follows(premise: str, hypothesis: str, label: int) -> Words:
    return _labelled(f"{premise}\n\nFrom this alone: is it true that the following holds?\n{hypothesis}", TRUTH, label)


def _snli(row: Mapping[str, Any]) -> Words:
    return _follows(row["premise"], row["hypothesis"], row["label"])


def _anli(row: Mapping[str, Any]) -> Words:
    return _follows(row["context"], row["hypothesis"], row["label"])


def _sst2(row: Mapping[str, Any]) -> Words:
    return _labelled(f"What does the author of this line think of the film?\n\n{row['sentence']}", MOOD, row["label"])


def _sentiment140(row: Mapping[str, Any]) -> Words:
    label = {0: 0, 4: 1}.get(int(row["polarity"]), -1)
    return _labelled(f"In what mood was this message written?\n\n{row['text']}", MOOD, label)


def _mrpc(row: Mapping[str, Any]) -> Words:
    return _labelled(f"{row['sentence1']}\n{row['sentence2']}\n\nDo both sentences tell the same?", SAME, row["label"])


def _stsb(row: Mapping[str, Any]) -> Words:
    question = "How near are they in meaning, from 0 (nothing in common) to 5 (the same)?"
    return _labelled(f"{row['sentence1']}\n{row['sentence2']}\n\n{question}", SCORES, math.floor(row["label"] + 0.5))


def _openbookqa(row: Mapping[str, Any]) -> Words:
    choices = [row["question"][f"choice_{letter}"] for letter in "ABCD"]
    return _labelled(f"It is known: {row['fact1']}\n\n{row['question']['stem']}", choices, row["answerKey"])


def _record(row: Mapping[str, Any]) -> Words:
    right = [answer for answer in row["answers"] if answer in row["entities"]]
    if not right:
        return None
    article = row["passage"].replace("@highlight", "").strip()
    gap = row["query"].replace("@placeholder", "____")
    return f"{article}\n\nWho or what is missing here?\n{gap}", row["entities"], right[0]


class Form(NamedTuple):
    """How a set becomes questions.

    Attributes:
      task: its task.
      folder: as tfds names it.
      test: the split that is tested on.
      words: record -> question, answers and answer.
      balanced: whether all examples have the same few answers.
    """

    task: str
    folder: str
    test: str
    words: Callable[[Mapping[str, Any]], Words]
    balanced: bool = True


FORMS = {
    "snli": Form("entailment", "snli", "test", _snli),
    "anli": Form("entailment", "anli/r1", "test", _anli),
    "sst2": Form("sentiment", "glue/sst2", "validation", _sst2),
    "sentiment140": Form("sentiment", "sentiment140", "test", _sentiment140),
    "mrpc": Form("paraphrase", "glue/mrpc", "validation", _mrpc),
    "stsb": Form("paraphrase", "glue/stsb", "validation", _stsb),
    "openbookqa": Form("reading_comprehension", "openbookqa", "test", _openbookqa, False),
    "record": Form("reading_comprehension", "super_glue/record", "validation", _record, False),
}


def read(data_dir: str | Path, examples: int = 1000, tests: int = 200) -> tuple[list[Instance], list[Instance]]:
    """Reads all eight sets: (training examples, test examples), set after set.

    Args:
      data_dir: holds `NAME/[CONFIG/]VERSION/` of each, itself or in its folder `tfds`.
      examples: training examples of each set.
      tests: test examples of each.

    Raises:
      FileNotFoundError: a set is missing; the message says how to prepare it.
      ValueError: it has not as many examples with a label, or is damaged.
    """
    if examples < 1 or tests < 1:
        raise ValueError(f"examples={examples} and test_examples={tests} must be at least 1")
    train = [row for name in FORMS for row in _draw(Path(data_dir), name, "train", examples, FORMS[name].balanced)]
    return train, [row for name in FORMS for row in _draw(Path(data_dir), name, FORMS[name].test, tests, False)]


def _draw(data_dir: Path, name: str, split: str, number: int, balanced: bool) -> list[Instance]:
    """Draws `number` examples of a split, of each answer equally many if `balanced`."""
    import tensorflow_datasets

    form = FORMS[name]
    where = f"tfds:{form.folder}"
    builder: Any = tensorflow_datasets.builder_from_directory(find_tfds_folder(data_dir, form.folder))
    try:
        rows = builder.as_data_source(split)
        order = make_generator(SPLIT_SEED, f"{name} {split}").permutation(len(rows))
        instances: list[Instance] = []
        for start in range(0, len(order), BLOCK):
            records = rows.__getitems__(order[start : start + BLOCK].tolist())
            instances += [_make_instance(name, words) for record in records if (words := form.words(_decode_texts(record)))]
            counts = Counter(row.answer for row in instances)
            share = -(-number // len(instances[0].options)) if instances and balanced else 0
            if len(instances) >= number and all(counts[option] >= share for option in instances[0].options if balanced):
                break
    except NotImplementedError as error:
        raise ValueError(f"{where}: has no random access; prepare it again with file_format='array_record'.") from error
    except (KeyError, ValueError, RuntimeError, OSError) as error:
        raise ValueError(f"{where}: split {split!r} is missing, damaged or of another form ({error}); prepare it again.") from error
    if len(instances) < number:
        raise ValueError(f"{where}: split {split!r} has {len(instances)} examples with a label, of which {number} are needed.")
    if not balanced:
        return instances[:number]
    seen: Counter[str] = Counter()
    turns = []
    for row in instances:
        turns.append(seen[row.answer])
        seen[row.answer] += 1
    kept = np.sort(np.argsort(turns, kind="stable")[:number])
    return [instances[i] for i in kept]


def _decode_texts(value: Any) -> Any:
    """Returns a record with strings in place of bytes, stripped."""
    if isinstance(value, Mapping):
        return {key: _decode_texts(part) for key, part in value.items()}
    if isinstance(value, bytes):
        return value.decode().strip()
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim):
        return [_decode_texts(part) for part in value]
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value


def _make_instance(name: str, words: tuple[str, Sequence[str], str]) -> Instance:
    question, answers, answer = words
    line = lambda text: " ".join(text.split())
    options = tuple(dict.fromkeys(map(line, answers)))
    listed = "".join(f"\n- {option}" for option in options)
    return Instance(FORMS[name].task, name, f"{question}\n\n{OPTIONS}{listed}", question, options, line(answer))
