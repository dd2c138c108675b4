import numpy as np
import pytest

from fedjax_core.data import sources
from tests.fedjax_core.data.sources.written import assert_same, images

GOOD = {"train_x": images(4, 2, 2), "train_y": [0, 1, 2, 0], "test_x": images(2, 2, 2), "test_y": [0, 1]}


def test_from_arrays_keeps_what_it_is_given():
    data = sources.from_arrays(**GOOD)
    assert_same(data, GOOD["train_x"], GOOD["train_y"], GOOD["test_x"], GOOD["test_y"])
    assert data.class_names == ("0", "1", "2")
    floats = sources.from_arrays(np.ones((4, 3)), [0, 1, 1, 0], np.zeros((2, 3)), [0, 1])
    assert floats.train.x.dtype == np.float32


@pytest.mark.parametrize(
    ("row", "dtype", "kept"),
    [
        ((5, 3), np.float16, np.float32),  # a series
        ((7,), np.int64, np.int32),  # numbers, or token ids
        ((4, 4, 3), np.uint16, np.int32),  # pixels deeper than 8 bits
        ((2, 2, 2, 1), np.uint8, np.uint8),  # a volume
        ((4,), np.bool_, np.float32),
        ((3, 2), np.int8, np.int32),
    ],
)
def test_rows_of_any_shape_and_type(row, dtype, kept):
    x = np.ones((4, *row), dtype)
    data = sources.from_arrays(x, [0, 1, 2, 0], x[:2], [0, 1])
    assert (data.train.x.shape, data.train.x.dtype) == ((4, *row), kept)
    np.testing.assert_array_equal(data.train.x, 1)


def test_classes_may_be_missing_from_both_parts():
    assert len(sources.from_arrays(**GOOD | {"train_y": [0, 1, 2, 999]}).class_names) == 1000
    names = [str(c) for c in range(5001)]
    assert len(sources.from_arrays(**GOOD | {"train_y": [0, 1, 2, 5000]}, class_names=names).class_names) == 5001


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_x": np.zeros(4)}, r"train_x has shape \(4,\): must be \[n, ...\].*pass train_x\[:, None\]"),
        ({"train_x": np.zeros((4, 0, 2, 3), np.uint8)}, r"train_x has shape \(4, 0, 2, 3\): .* no empty axis"),
        ({"train_x": np.array([["a"]] * 4)}, "train_x has type <U1: must be uint8"),
        ({"train_x": np.zeros((4, 2, 2, 3), int)}, r"must agree in shape and type; uint8 are pixels, 0 \.\.\. 255"),
        ({"train_x": np.full((4, 2), 1e300)}, "train_x has 8 values that are NaN or infinite"),
        ({"train_x": [[1], [1, 2], [1], [1]]}, "train_x has examples of different shapes"),
        ({"train_x": [([[1, 2], [3]], 0)] * 4}, "train_x has examples of different shapes"),
        ({"train_x": np.full((4, 2, 2, 3), np.nan)}, "train_x has 48 values that are NaN"),
        ({"train_x": images(3, 2, 2)}, "train_x has 3 examples and train_y 4"),
        ({"test_x": images(2, 3, 3)}, "examples must agree in shape and type"),
        ({"test_x": images(2, 2, 2) / 255}, "examples must agree in shape and type"),
        ({"train_y": [0.0, 1.0, 2.0, 0.0]}, "train_y has shape .* float64: must be integers"),
        ({"train_y": [[0], [1], [2], [0]]}, r"train_y has shape \(4, 1\)"),
        ({"train_y": [0, 1, -1, 0]}, "train_y has values from -1 to 1: must be >= 0"),
        ({"class_names": ("a", "b")}, "train_y has the value 2, class_names has 2 names"),
        (
            {"train_y": [0, 1, 2, 2**31 - 2]},
            "train_y has the value 2147483646, and all columns together 4 different ones: must count",
        ),
        ({"test_y": [0, 1_000_000]}, "test_y has the value 1000000, .* or pass class_names, 1000001 of them"),
        ({"train_domains": [0, 0, 1, 1], "test_domains": [0, 5000]}, "test_domains has the value 5000"),
        ({"train_y": [0, 0, 0, 0], "test_y": [0, 0]}, "1 class: classification needs at least 2"),
        ({"train_domains": [0, 0, 1, 1]}, "give both or neither"),
        ({"train_domains": [0, 0, 1], "test_domains": [0, 1]}, "train_domains has 3 entries for 4 examples"),
        ({"train_domains": [0, 0, 1, 1], "test_domains": [0, 2], "domain_names": ("p", "s")}, "test_domains has the value 2"),
        ({"test_clients": [0, 1]}, "test_clients without train_clients"),
        ({"train_clients": [0, 0, 1, -1]}, "train_clients has values from -1"),
    ],
)
def test_from_arrays_refuses_what_does_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        sources.from_arrays(**GOOD | change)


def test_training_and_test_set_may_be_integers_and_floats():
    """A column of numbers whose test examples happen to be whole."""
    data = sources.from_arrays([[1.5, 2], [3, 4]], [0, 1], np.array([[5, 6]]), [1])
    assert data.train.x.dtype == data.test.x.dtype == np.float32


def test_digits_far_from_zero_are_kept():
    """Seconds and milliseconds since 1970, as floats or integers; float32 would round them to one
    in 128.
    """
    seconds = np.arange(40.0)[:, None]
    for x in (1.7e9 + seconds, (1.7e9 + seconds).astype(np.int64), 1_700_000_000_000 + seconds.astype(np.int64)):
        data = sources.from_arrays(x[:30], np.arange(30) % 2, x[30:], np.arange(10) % 2)
        assert data.train.x.dtype == data.test.x.dtype == np.float64
        np.testing.assert_array_equal(np.diff(data.train.x, axis=0), 1)
    targets = sources.from_arrays(seconds[:30], 1.7e9 + seconds[:30], seconds[30:], 1.7e9 + seconds[30:], targets="numbers")
    assert (targets.train.x.dtype, targets.train.y.dtype, targets.test.y.dtype) == (np.float32, np.float64, np.float64)


def test_numbers_near_zero_stay_float32():
    years = np.random.default_rng(0).normal(1990, 20, (50, 1))
    for x in (years, np.concatenate([years * 0, [[1e9]]])):  # a few large ones: most of the examples lose nothing
        data = sources.from_arrays(x, np.arange(len(x)) % 2, x, np.arange(len(x)) % 2)
        assert data.train.x.dtype == np.float32


def test_token_ids_must_fit_32_bits():
    with pytest.raises(ValueError, match="train_x has values from 1 to 1099511627776: token ids must fit 32 bits"):
        sources.from_arrays([[1, 2**40]], [[1, 1]], [[1, 1]], [[1, 1]], targets="tokens")


def test_tags_of_words_have_names_of_their_own():
    words, tags = np.array([[7, 1, 5], [2, 0, 6]]), np.array([[0, 1, -1], [1, 1, 0]])
    assert sources.from_arrays(words, tags, words, tags, ("noun", "verb"), targets="tokens").class_names == ("noun", "verb")
    assert len(sources.from_arrays(words, tags, words, tags, targets="tokens").class_names) == 8
    with pytest.raises(ValueError, match="train_y has the value 1, class_names has 1 names"):
        sources.from_arrays(words, tags, words, tags, ("noun",), targets="tokens")
    with pytest.raises(ValueError, match="train_x has the value 7, class_names has 7 names"):
        sources.from_arrays(words, None, words, None, "abcdefg", targets="tokens")


def test_large_integers_in_a_file_are_refused(tmp_path):
    """They would have to be read whole to become floats."""
    np.save(tmp_path / "x.npy", np.full((4, 2), 2**25, np.int32))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    with pytest.raises(ValueError, match="to 33554432, and float32 has every integer up to 16777216"):
        sources.from_arrays(x, [0, 1, 0, 1], x, [0, 1, 0, 1])


@pytest.mark.parametrize("scale", [255, 1 / 255])
def test_images_of_two_scales_are_refused(scale):
    pixels = np.random.default_rng(0).uniform(size=(8, 4, 4, 1))
    y = np.arange(8) % 2
    with pytest.raises(ValueError, match=r"train_x is in \[.*\] and test_x in \[.*\], whose deviation .*: must be on one scale"):
        sources.from_arrays(pixels, y, pixels * scale, y)
    sources.from_arrays(pixels, y, pixels * 2, y)


def test_features_of_two_scales_are_warned_of(caplog):
    pixels, y = np.random.default_rng(0).uniform(size=(40, 16)), np.arange(40) % 2
    sources.from_arrays(pixels, y, pixels, y)
    sources.from_arrays(pixels, y, np.where(np.arange(16) == 3, pixels * 1000, pixels), y)  # one column that drifts is no scale
    assert not caplog.messages
    sources.from_arrays(pixels, y, pixels * 255, y)
    assert "test_x in [" in caplog.text
    assert "255 times as large: must be on one scale" in caplog.text


def test_masked_entries_are_refused_or_missing():
    x = np.arange(12.0).reshape(6, 2)
    masked = np.ma.masked_equal(x, 3.0)
    y = np.arange(6) % 2
    with pytest.raises(ValueError, match="train_x is a masked array with masked entries"):
        sources.from_arrays(masked, y, x, y)
    sources.from_arrays(np.ma.masked_equal(x, -1.0), y, x, y)
    columns = {"a": np.ma.masked_equal(x[:, 1], 3.0), "y": y}
    with pytest.raises(ValueError, match="row 1 of column 'a'"):
        sources.from_table(columns, columns, x=("a",), y="y")
    filled = sources.from_table(columns, columns, x=("a",), y="y", missing="mean")
    assert filled.train.x[1, 0] == pytest.approx(np.mean([1, 5, 7, 9, 11]))


def test_classes_without_an_example_are_warned_of(caplog):
    x = np.zeros((3, 2))
    sources.from_arrays(x, [1, 2, 3], x, [1, 2, 3], class_names="abcd")
    sources.from_arrays(x, [0, 1, 1], x, [2, 2, 2])
    assert not caplog.messages
    assert len(sources.from_arrays(x, [1, 2, 3], x, [1, 2, 3]).class_names) == 4
    sources.from_arrays(x, [10, 20, 30], x, [10, 20, 30])
    one, many = caplog.messages
    assert one.startswith(
        "labels begin at 1, so that 1 of 4 classes, such as 0, have neither training nor test examples: subtract 1"
    )
    assert many.startswith("labels begin at 10, so that 28 of 31 classes, such as 0, have")
    assert ": make labels count from 0 without gaps, or pass class_names" in many


def test_images_whose_channels_come_first_are_warned_of(caplog):
    y = np.arange(6) % 2
    sources.from_arrays(np.zeros((6, 3, 32, 32), np.uint8), y, np.zeros((6, 3, 32, 32), np.uint8), y)
    assert "if its channels come first, pass x.transpose(0, 2, 3, 1)" in caplog.text
    caplog.clear()
    sources.from_arrays(np.zeros((6, 3, 24, 32), np.uint8), y, np.zeros((6, 3, 24, 32), np.uint8), y)
    assert "read as [n, H, W, C]" in caplog.text
    caplog.clear()
    sources.from_arrays(np.zeros((6, 32, 32, 3), np.uint8), y, np.zeros((6, 32, 32, 3), np.uint8), y)
    assert not caplog.text


class Sparse:
    """Stands in for a sparse matrix of scipy."""

    def toarray(self):
        return np.zeros((6, 2))


class Pairs:
    """Stands in for a data set of torch."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i >= 6:
            raise IndexError(i)
        return np.zeros((1, 8, 8), np.float32), i % 2


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (
            Pairs(),
            np.arange(6) % 2,
            r"train_x has pairs \(x, y\) as examples: .*, np.stack\(\[np.asarray\(x\) for x, y in data\]\)",
        ),
        (np.array([np.zeros((8, 8)), np.zeros((9, 9))] * 3, object), np.arange(6) % 2, "train_x has examples of different shapes"),
        (Sparse(), np.arange(6) % 2, r"train_x is a sparse matrix: must be an array, such as train_x.toarray\(\)"),
        (
            np.zeros((6, 2)),
            np.array(["no", "yes"] * 3),
            r"of texts, np.unique\(np.concatenate\(\[train_y, test_y\]\), return_inverse=True\) has the names",
        ),
    ],
)
def test_what_helps_is_said(x, y, said):
    with pytest.raises(ValueError, match=said):
        sources.from_arrays(x, y, np.zeros((6, 2)), np.arange(6) % 2)
