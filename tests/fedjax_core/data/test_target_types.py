"""Targets other than classes: read from arrays and tables, divided, held back, and refused where
classes are read.
"""

import gzip

import numpy as np
import pytest

from fedjax_core import experiment
from fedjax_core.data import federated_data, sources
from tests.fedjax_core.test_experiment import config as plain_config

X = np.arange(24, dtype=np.float32).reshape(12, 2)


def made(kind):
    y = {"labels": np.arange(36).reshape(12, 3) % 2, "numbers": np.arange(12) / 7}[kind]
    return sources.from_arrays(X[:8], y[:8], X[8:], y[8:], targets=kind)


def test_arrays_become_targets():
    labels, numbers = made("labels"), made("numbers")
    assert labels.train.y.dtype == bool
    assert labels.class_names == ("0", "1", "2")
    assert (numbers.train.y.dtype, numbers.train.y.shape) == (np.float32, (8, 1))
    text = np.array([[3, 1, 2, 0], [2, 2, -1, -1]])
    tokens = sources.from_arrays(text, None, text, None, targets="tokens")
    assert tokens.train.x.tolist() == [[3, 1, 2], [2, 2, 0]]
    assert tokens.train.y.tolist() == [[1, 2, 0], [2, -1, -1]]
    assert tokens.class_names == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("y", "targets", "message"),
    [
        (np.ones((12, 2)), "classes", "other targets are named by targets='labels', 'numbers' or 'tokens'"),
        (np.full((12, 2), 3), "labels", "must be truth values, or 0 and 1"),
        (np.full(12, np.nan), "numbers", "has 8 values that are NaN or infinite"),
        (np.ones((12, 3), int), "tokens", r"train_x is \(8, 2\) and train_y \(8, 3\): there must be a target for each place"),
        (np.ones((12, 3)), "tokens", r"must be signed integers of shape \[n, T\]"),
        (np.ones(12), "label", "Did you mean 'labels'"),
    ],
)
def test_wrong_targets_end_in_one_line(y, targets, message):
    with pytest.raises(ValueError, match=message):
        sources.from_arrays(X[:8], y[:8], X[8:], y[8:], targets=targets)


def test_a_mapping_of_inputs_is_refused_with_what_works():
    x = {"nodes": X, "mask": X > 0}
    with pytest.raises(ValueError, match=r"train_x is a mapping of nodes, mask: must be one array; put them side by side"):
        sources.from_arrays(x, np.arange(12) % 2, x, np.arange(12) % 2)


def test_classes_of_pixels_are_counted_by_the_targets_alone(caplog):
    """Not by pixels, which are uint8 and no token ids."""
    pixels, y = np.arange(48, dtype=np.uint8).reshape(6, 4, 2), np.arange(24).reshape(6, 4) % 3
    for x in (pixels, pixels[..., 0], pixels / 255):
        assert sources.from_arrays(x[:4], y[:4], x[4:], y[4:], targets="tokens").class_names == ("0", "1", "2")
    assert "classes" not in caplog.text
    y[0, 0] = 255  # a mark for "not annotated", in place of a negative number
    sources.from_arrays(pixels[:4], y[:4], pixels[4:], y[4:], targets="tokens")
    assert "252 of 256 classes, such as 3, have neither training nor test examples" in caplog.text


def test_tables_have_targets():
    rows = [{"x": [i, 1.0], "tags": ["a", "b"][: i % 3], "size": i / 2, "weight": 1.0, "who": f"u{i % 2}"} for i in range(10)]
    labels = sources.from_table(rows, x="x", y="tags", targets="labels", clients="who", test_fraction=0.2)
    assert labels.class_names == ("a", "b")
    assert len(labels.test.y) == 2
    both = np.concatenate([labels.train.y, labels.test.y])
    assert both.sum(0).tolist() == [6, 3]
    numbers = sources.from_table(rows, x="x", y=["size", "weight"], targets="numbers", test_fraction=0.3)
    assert numbers.class_names == ("size", "weight")
    assert numbers.train.y.shape == (7, 2)


def test_rows_are_divided_by_their_number_alone():
    data = federated_data.federate(made("labels"), {"name": "iid"}, 4, 0)
    assert [len(rows) for rows in data.train_index] == [2] * 4
    assert [len(rows) for rows in data.test_index] == [1] * 4
    np.testing.assert_array_equal(data.label_table.sum(0), data.train.y.sum(0))
    numbers = federated_data.federate(
        made("numbers"), {"name": "quantity_skew", "alpha": 1.0}, 2, 0, test_split="matched", test_examples=2
    )
    assert numbers.label_table.tolist() == [[len(rows)] for rows in numbers.train_index]
    assert [len(rows) for rows in numbers.test_index] == [2, 2]
    assert "8 training and 4 test examples, 1 numbers, 2 clients" in federated_data.format_summary(numbers)


@pytest.mark.parametrize("options", [{"partition": {"name": "dirichlet", "alpha": 1.0}}, {"long_tail": 10.0}])
def test_what_reads_classes_is_refused(options):
    given = {"partition": {"name": "iid"}} | options
    with pytest.raises(ValueError, match=r"needs classes, the data have numbers: real numbers, \[rows, D\] floats; "):
        federated_data.federate(made("numbers"), given.pop("partition"), 2, 0, **given)


def test_a_text_is_cut_into_rows_of_its_parts(tmp_path):
    (tmp_path / "book.txt.gz").write_bytes(gzip.compress(b"abcab" * 40))
    data = sources.load("text(path='book.txt.gz', length=10, parts=4)", tmp_path)
    assert data.class_names == tuple("abc")
    assert data.train.x.shape == (13, 10)
    np.testing.assert_array_equal(data.train.x[:, 1:], data.train.y[:, :-1])
    assert sorted({*data.train_clients.tolist()}) == [0, 1, 2, 3]
    with pytest.raises(FileNotFoundError, match="put a text file there, or name another"):
        sources.load("text(path='no.txt')", tmp_path)
    with pytest.raises(
        ValueError, match=r"200 characters make 4 examples of length=40: must be at least 8, two for each of 4 parts"
    ):
        sources.load("text(path='book.txt.gz', length=40, parts=4)", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "smoothed"}, "loss='smoothed' is for classes or tokens, the data have numbers"),
        ({"task": "episodes(way=2)"}, "needs classes, the data have numbers"),
        ({"method.name": "fedproto"}, "fedproto needs classes, the data have numbers"),
    ],
)
def test_a_config_for_classes_is_refused_before_anything_runs(change, message):
    config = plain_config()
    config.data.partition = "iid"
    with config.unlocked():
        for field, value in change.items():
            place, _, last = field.rpartition(".")
            (config[place] if place else config)[last] = value
    if "task" in change:
        config.evaluation.scopes = ("global",)
    data = federated_data.federate(made("numbers"), {"name": "iid"}, 2, 0)
    with pytest.raises(ValueError, match=message):
        experiment.build(config, data=data)
