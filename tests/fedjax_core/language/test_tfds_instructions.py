"""Text sets as tensorflow_datasets prepares them, written small and without TensorFlow, become
questions.
"""

import json

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from tensorflow_datasets.proto import tf_example_pb2, tf_feature_pb2

from fedjax_core.language import tfds_instructions
from fedjax_core.language.instruction_data import parse_options

TEXT, NUMBER = tfds.features.Text(), np.int32
PAIR = {"sentence1": TEXT, "sentence2": TEXT, "idx": NUMBER}
NLI = tfds.features.ClassLabel(names=["e", "n", "c"])
SETS = {  # folder, test split, features, and the i-th record
    "snli": (
        "snli/1.1.0",
        "test",
        {"premise": TEXT, "hypothesis": TEXT, "label": NLI},
        lambda i: {"premise": f"Rain {i}.", "hypothesis": "It is wet. ", "label": i % 4 - 1},
    ),
    "anli": (
        "anli/r1/0.1.0",
        "test",
        {"uid": TEXT, "context": TEXT, "hypothesis": TEXT, "label": NLI},
        lambda i: {"uid": f"{i}", "context": f"Sun {i}.", "hypothesis": "It is dry.", "label": i % 3},
    ),
    "sst2": (
        "glue/sst2/2.0.0",
        "validation",
        {"sentence": TEXT, "label": tfds.features.ClassLabel(names=["negative", "positive"]), "idx": NUMBER},
        lambda i: {"sentence": f"a film, {i} ", "label": int(i % 5 == 0), "idx": i},
    ),
    "sentiment140": (
        "sentiment140/1.0.0",
        "test",
        {"polarity": NUMBER, "date": TEXT, "text": TEXT},
        lambda i: {"polarity": (0, 2, 4)[i % 3], "date": "today", "text": f"@you {i}"},
    ),
    "mrpc": (
        "glue/mrpc/2.0.0",
        "validation",
        PAIR | {"label": tfds.features.ClassLabel(names=["not_equivalent", "equivalent"])},
        lambda i: {"sentence1": f"a {i}", "sentence2": "b", "idx": i, "label": i % 2},
    ),
    "stsb": (
        "glue/stsb/2.0.0",
        "validation",
        PAIR | {"label": np.float32},
        lambda i: {"sentence1": f"a {i}", "sentence2": "b", "idx": i, "label": (i % 11) / 2},
    ),
    "openbookqa": (
        "openbookqa/0.1.0",
        "test",
        {
            "question": {"stem": TEXT} | {f"choice_{letter}": TEXT for letter in "ABCD"},
            "fact1": TEXT,
            "answerKey": tfds.features.ClassLabel(names=list("ABCD")),
        },
        lambda i: {
            "question": {"stem": f"Who {i}?"} | {f"choice_{letter}": f"{letter} {i}" for letter in "ABCD"},
            "fact1": "They do.",
            "answerKey": i % 4,
        },
    ),
    "record": (
        "super_glue/record/1.0.2",
        "validation",
        {"passage": TEXT, "query": TEXT, "entities": tfds.features.Sequence(TEXT), "answers": tfds.features.Sequence(TEXT)},
        lambda i: {
            "passage": f"Ada met Bob.\n@highlight\nIn {i}",
            "query": "@placeholder was met",
            "entities": ["Ada", "Bob"],
            "answers": [] if i % 4 == 3 else ["Bob", "Robert"],
        },
    ),
}


def _feature(value) -> tf_feature_pb2.Feature:
    values = value if isinstance(value, list) else [value]
    made = tf_feature_pb2.Feature()
    if not values or isinstance(values[0], str):
        made.bytes_list.value.extend(text.encode() for text in values)
    elif isinstance(values[0], float):
        made.float_list.value.extend(values)
    else:
        made.int64_list.value.extend(values)
    return made


def _flat(record, prefix=""):
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def write(root, name, train=40, tests=20):
    """A set as `download_and_prepare(file_format="array_record")` leaves it."""
    folder, test, features, record = SETS[name]
    where = root / folder
    where.mkdir(parents=True)
    tfds.features.FeaturesDict(features).save_config(where)
    splits = []
    parts = folder.split("/")
    for split, first, number in (("train", 0, train), (test, 1000, tests)):
        writer = ArrayRecordWriter(str(where / f"{parts[0]}-{split}.array_record-00000-of-00001"), "group_size:1")
        for i in range(first, first + number):
            example = tf_example_pb2.Example()
            for key, value in _flat(record(i)):
                example.features.feature[key].CopyFrom(_feature(value))
            writer.write(example.SerializeToString())
        writer.close()
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        splits.append({"name": split, "filepathTemplate": template, "numBytes": "1", "shardLengths": [str(number)]})
    info = {"name": parts[0], "version": parts[-1], "fileFormat": "array_record", "splits": splits}
    if len(parts) == 3:
        info["configName"] = parts[1]
    (where / "dataset_info.json").write_text(json.dumps(info))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("tfds")
    for name in SETS:
        write(root / "tfds", name)
    return root


def test_every_set_becomes_questions(folder):
    train, test = tfds_instructions.read(folder, examples=12, tests=6)
    for rows, number in ((train, 12), (test, 6)):
        assert [(row.task, row.dataset) for row in rows] == [
            (form.task, name) for name, form in tfds_instructions.FORMS.items() for _ in range(number)
        ]
        for row in rows:
            assert row.answer in row.options
            assert parse_options(row.instruction) == (row.question, row.options)
    assert tfds_instructions.read(folder, examples=12, tests=6) == (train, test), "the same examples again"
    assert not {row.instruction for row in train} & {row.instruction for row in test}


def test_words_are_those_of_the_records(folder):
    train, _ = tfds_instructions.read(folder, examples=12, tests=6)
    snli = next(row for row in train if row.dataset == "snli" and row.answer == "no")
    assert int(snli.question.removeprefix("Rain ").partition(".")[0]) % 4 == 3
    assert snli.question.endswith("\nIt is wet.")
    for row in (row for row in train if row.dataset == "stsb"):
        number = int(row.question.split()[1])
        assert row.answer == str(int((number % 11) / 2 + 0.5))
    for row in (row for row in train if row.dataset == "openbookqa"):
        number = int(row.question.partition("Who ")[2].partition("?")[0])
        assert row.options == tuple(f"{letter} {number}" for letter in "ABCD")
        assert row.answer == row.options[number % 4]
    record = next(row for row in train if row.dataset == "record")
    assert "highlight" not in record.question
    assert record.question.endswith("____ was met")
    assert (record.options, record.answer) == (("Ada", "Bob"), "Bob")


def test_answers_are_balanced_and_rows_without_a_label_left_out(folder):
    train, _ = tfds_instructions.read(folder, examples=16, tests=6)
    count = lambda name: sorted(sum(row.answer == answer for row in train if row.dataset == name) for answer in of[name])
    of = {row.dataset: row.options for row in train}
    assert count("sst2") == [8, 8], "of 8 and 32"
    assert count("sentiment140") == [8, 8], "none is neutral"
    assert count("snli") == [5, 5, 6]
    assert count("mrpc") == [8, 8]


def test_what_is_not_there_is_named(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tfds:snli is not prepared in .*array_record"):
        tfds_instructions.read(tmp_path)
    with pytest.raises(ValueError, match=r"tfds:snli: split 'train' has 30 examples with a label, of which 31 are needed"):
        tfds_instructions.read(folder, examples=31)
    with pytest.raises(ValueError, match="examples=0 and test_examples=200 must be at least 1"):
        tfds_instructions.read(folder, examples=0)
    write(tmp_path, "snli")
    (tmp_path / "snli/1.1.0/snli-train.array_record-00000-of-00001").unlink()
    with pytest.raises(ValueError, match=r"tfds:snli: split 'train' is missing, damaged or of another form"):
        tfds_instructions.read(tmp_path)
