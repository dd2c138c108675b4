import numpy as np
import pytest

from fedjax_core.data import input_range

RNG = np.random.default_rng(0)


def test_a_sample_is_of_evenly_spaced_rows_of_those_that_count():
    x = np.arange(1000.0).reshape(100, 5, 2)
    np.testing.assert_array_equal(input_range.sample_channels(x), x.reshape(-1, 2))
    np.testing.assert_array_equal(input_range.sample_channels(x, most=40), x[[0, 25, 50, 75]].reshape(-1, 2))
    np.testing.assert_array_equal(input_range.sample_channels(x, np.array([3, 7]), most=10), x[3])
    assert len(input_range.sample_channels(x, most=1)) == 5  # a whole row


def test_centre_and_spread_are_those_of_a_normal_distribution():
    """With one example of 1e30, which would make the deviation 1e28."""
    x = RNG.normal(3.0, 2.0, (20_000, 1))
    x[7] = 1e30
    (median,), (deviation,) = input_range.find_centre_and_spread(x)
    assert median == pytest.approx(3.0, abs=0.05)
    assert deviation == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (np.where(np.arange(1000) % 5 == 0, 1.0, 0.0), np.sqrt(190 / 990)),  # without the farthest 1 %
        (np.where(np.arange(1000) == 5, 10.0, 0.0), np.sqrt(100 / 1000)),  # all the others are alike
        (np.zeros(1000), 0.0),
    ],
)
def test_the_spread_of_columns_that_are_mostly_alike(column, wanted):
    assert input_range.find_centre_and_spread(column[:, None])[1][0] == pytest.approx(wanted)


def test_what_is_far_from_zero_has_an_offset_and_nothing_else():
    near, far = RNG.normal(5, 2, 500), 1.7e9 + RNG.integers(0, 60, 500)
    missing = np.where(np.arange(500) % 20 == 0, 0.0, far)  # some examples are 0: the others keep their digits
    offset = input_range.find_offset(np.stack([near, far, missing, np.full(500, 1e9)], 1))
    assert offset is not None
    assert offset[[0, 3]].tolist() == [0, 0]
    np.testing.assert_allclose(offset[[1, 2]], 1.7e9 + 30, atol=5)
    assert input_range.find_offset(near[:, None]) is None


def test_ratio_of_deviations():
    x = RNG.uniform(size=(50, 4))
    assert input_range.ratio_of_deviations(x, x * 255) == pytest.approx(255)
    assert input_range.ratio_of_deviations(x[:3], x) is None  # too few
    assert input_range.ratio_of_deviations(x, np.zeros_like(x)) is None
