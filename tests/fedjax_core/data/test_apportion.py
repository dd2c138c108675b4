import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedjax_core.data import apportion
from tests.fedjax_core.data.partition.labels import LIGHT


@LIGHT
@given(st.integers(0, 500), st.lists(st.floats(0, 10), min_size=1, max_size=8).filter(lambda shares: sum(shares) > 1e-3))
def test_apportion_adds_up_and_stays_within_one(total, shares):
    parts = apportion.apportion(total, np.array(shares))
    assert parts.sum() == total
    assert np.all(np.abs(parts - total * np.array(shares) / sum(shares)) < 1)
    assert parts.tolist() == apportion.apportion([total], np.array([shares]))[0].tolist()  # which sorts


def test_apportion_gives_remainders_to_the_largest():
    assert apportion.apportion(10, np.array([1, 1, 1])).tolist() == [4, 3, 3]
    assert apportion.apportion([7, 4], np.array([[0.5, 0.2, 0.3], [0, 1, 0]])).tolist() == [[4, 1, 2], [0, 4, 0]]


@LIGHT
@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any), min_size=1, max_size=6), st.integers(0, 40))
def test_apportion_owed_stays_within_one_and_pays_back(rows, total):
    owed, exact, paid = np.zeros(4), np.zeros(4), np.zeros(4)
    for shares in map(np.array, rows):
        parts = apportion.apportion_owed(total, shares, owed)
        quota = total * shares / shares.sum()
        assert parts.sum() == total
        assert np.all(np.abs(parts - quota) < 1)
        exact, paid = exact + quota, paid + parts
    np.testing.assert_allclose(owed, exact - paid, atol=1e-9)


@LIGHT
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 30)), min_size=1, max_size=8), st.floats(0, 1))
def test_apportion_capped_adds_up_below_the_caps(parts, fraction):
    shares, caps = np.array([s for s, _ in parts]), np.array([c for _, c in parts])
    total = int(fraction * caps.sum())
    got = apportion.apportion_capped(total, shares, caps)
    assert got.sum() == total
    assert np.all((got >= 0) & (got <= caps))


def test_apportion_capped_moves_the_excess_in_proportion():
    got = apportion.apportion_capped(100, np.array([0.8, 0.15, 0.05]), np.array([40, 100, 100]))
    assert got.tolist() == [40, 45, 15]
    got = apportion.apportion_capped(10, np.array([1, 0, 0]), np.array([4, 2, 6]))
    assert got.tolist() == [4, 2, 4]  # 1.5 and 4.5 of the room of 2 and 6
