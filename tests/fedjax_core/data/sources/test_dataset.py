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
    ("change", "message"),
    [
        ({"train_x": images(4, 2, 2)[..., 0]}, r"train_x has shape \(4, 2, 2\).*pass train_x\[..., None\]"),
        ({"train_x": images(4, 2, 2).astype(int)}, "train_x has type int64: must be uint8"),
        ({"train_x": np.full((4, 2, 2, 3), np.nan)}, "train_x has 48 values that are NaN"),
        ({"train_x": images(3, 2, 2)}, "train_x has 3 rows and train_y 4"),
        ({"test_x": images(2, 3, 3)}, "rows must agree in shape and type"),
        ({"test_x": images(2, 2, 2) / 255}, "rows must agree in shape and type"),
        ({"train_y": [0.0, 1.0, 2.0, 0.0]}, "train_y has shape .* float64: must be integers"),
        ({"train_y": [[0], [1], [2], [0]]}, r"train_y has shape \(4, 1\)"),
        ({"train_y": [0, 1, -1, 0]}, "train_y has values from -1 to 1: must be >= 0"),
        ({"class_names": ("a", "b")}, "train_y has the value 2, class_names has 2 names"),
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
