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
        ((7,), np.int64, np.int32),  # token ids
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
        ({"train_x": np.zeros(4)}, r"train_x has shape \(4,\): must be \[rows, ...\].*pass train_x\[:, None\]"),
        ({"train_x": np.zeros((4, 0, 2, 3), np.uint8)}, r"train_x has shape \(4, 0, 2, 3\): .* no empty axis"),
        ({"train_x": np.array([["a"]] * 4)}, "train_x has type <U1: must be uint8"),
        ({"train_x": np.zeros((4, 8, 8, 3), int)}, r"train_x has shape \(4, 8, 8, 3\) .* int64: images must be uint8 .* or floats"),
        ({"train_x": np.full((4, 2), 2**40)}, "train_x has values from 1099511627776 .*: integers must fit 32 bits"),
        ({"train_x": np.full((4, 2), 1e300)}, "train_x has 8 values that are NaN or infinite"),
        ({"train_x": [[1], [1, 2], [1], [1]]}, "train_x has rows of different shapes"),
        ({"train_x": np.full((4, 2, 2, 3), np.nan)}, "train_x has 48 values that are NaN"),
        ({"train_x": images(3, 2, 2)}, "train_x has 3 rows and train_y 4"),
        ({"test_x": images(2, 3, 3)}, "rows must agree in shape and type"),
        ({"test_x": images(2, 2, 2) / 255}, "rows must agree in shape and type"),
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
        ({"train_domains": [0, 0, 1], "test_domains": [0, 1]}, "train_domains has 3 entries for 4 rows"),
        ({"train_domains": [0, 0, 1, 1], "test_domains": [0, 2], "domain_names": ("p", "s")}, "test_domains has the value 2"),
        ({"test_clients": [0, 1]}, "test_clients without train_clients"),
        ({"train_clients": [0, 0, 1, -1]}, "train_clients has values from -1"),
    ],
)
def test_from_arrays_refuses_what_does_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        sources.from_arrays(**GOOD | change)
