"""Profiles of devices: their distributions, that a client's device is its own, and what is wrong with a file."""

import numpy as np
import pytest

from fedjax_core.devices import DeviceProfiles, draw_profiles
from fedjax_core.devices.profiles import MEBIBIT, ClientDraws, find_profile

MANY = 20_000


def draw(spec: str, population: int = MANY, seed: int = 3) -> DeviceProfiles:
    return draw_profiles(find_profile(spec), population, seed)


@pytest.mark.parametrize(
    "spec",
    [
        "lognormal(examples_per_second=100, down=1e6, up=1e5, bandwidth_sigma=0.3)",
        "uniform(examples_per_second=(50, 200), down=(1e5, 1e6), latency=(0.1, 0.2))",
        "exponential(examples_per_second=100)",
        "half_normal(examples_per_second=100)",
        "tiers(weights=(1, 3), examples_per_second=(400, 50))",
        "edge(examples_per_second=100)",
    ],
)
def test_a_client_has_the_same_device_among_few_and_among_many(spec):
    few, many, other = draw(spec, 7), draw(spec, 1000), draw(spec, 1000, seed=4)
    for name, values in few._asdict().items():
        np.testing.assert_array_equal(values, getattr(many, name)[:7])
    assert (many.examples_per_second != other.examples_per_second).mean() > 0.2
    assert all(values.dtype == np.float64 for values in many)


def test_draws_of_different_names_are_independent():
    draws = ClientDraws(MANY, 0)
    first, second = draws.uniform("speed"), draws.uniform("bandwidth")
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert 0 < first.min() < first.max() < 1


def test_distributions_are_those_that_they_are_called_by():
    speed = draw("lognormal(examples_per_second=100, sigma=0.5)").examples_per_second
    assert np.log(speed).mean() == pytest.approx(np.log(100), abs=0.02)
    assert np.log(speed).std() == pytest.approx(0.5, abs=0.02)
    seconds = 1 / draw("exponential(examples_per_second=100)").examples_per_second
    assert seconds.mean() == pytest.approx(0.01, rel=0.03)
    assert np.median(seconds) == pytest.approx(0.01 * np.log(2), rel=0.03)
    slowdown = 100 / draw("half_normal(examples_per_second=100, sigma=2.0)").examples_per_second
    assert slowdown.min() >= 1
    assert (slowdown - 1).mean() == pytest.approx(2 * np.sqrt(2 / np.pi), rel=0.03)
    drawn = draw("uniform(examples_per_second=(50, 200), down=(1e5, 1e6))")
    assert (drawn.examples_per_second.min(), drawn.examples_per_second.max()) == pytest.approx((50, 200), rel=0.01)
    assert drawn.down.mean() == pytest.approx(5.5e5, rel=0.02)
    assert abs(np.corrcoef(drawn.examples_per_second, drawn.down)[0, 1]) < 0.03
    assert np.isinf(drawn.up).all()


def test_one_factor_for_both_ways():
    drawn = draw("lognormal(examples_per_second=100, down=1e6, up=1e5, bandwidth_sigma=0.5)")
    np.testing.assert_allclose(drawn.down, 10 * drawn.up)
    assert np.log(drawn.up).std() == pytest.approx(0.5, abs=0.02)
    assert abs(np.corrcoef(np.log(drawn.examples_per_second), np.log(drawn.up))[0, 1]) < 0.03


def test_without_variance_all_are_equal():
    for spec in ("lognormal(examples_per_second=100, sigma=0.0, down=5.0)", "constant(examples_per_second=100, down=5.0)"):
        drawn = draw(spec, 10)
        np.testing.assert_array_equal(drawn.examples_per_second, np.full(10, 100.0))
        np.testing.assert_array_equal(drawn.down, np.full(10, 5.0))


def test_tiers_have_their_shares_and_their_devices():
    drawn = draw("tiers(weights=(1, 3), examples_per_second=(400, 50), up=(1e6, 1e5), latency=0.5, failure=(0.0, 0.25))")
    is_fast = drawn.examples_per_second == 400
    assert is_fast.mean() == pytest.approx(0.25, abs=0.01)
    np.testing.assert_array_equal(drawn.up, np.where(is_fast, 1e6, 1e5))
    np.testing.assert_array_equal(drawn.failure, np.where(is_fast, 0.0, 0.25))
    assert (drawn.latency == 0.5).all()
    assert np.isinf(drawn.memory).all()


def test_the_preset_of_boards_and_networks():
    drawn = draw("edge(examples_per_second=93)")
    speeds, counts = np.unique(drawn.examples_per_second, return_counts=True)
    np.testing.assert_allclose(speeds, [93 / 11.625, 93 / 1.8125, 93])
    np.testing.assert_allclose(counts / MANY, 1 / 3, atol=0.02)
    assert MEBIBIT == 131_072
    assert drawn.down.min() == pytest.approx(20 * MEBIBIT, rel=0.02)
    assert drawn.down.max() == pytest.approx(1000 * MEBIBIT, rel=0.02)
    for speed in speeds:  # on any network
        down = drawn.down[drawn.examples_per_second == speed]
        assert (down.min(), down.max()) == pytest.approx((20 * MEBIBIT, 1000 * MEBIBIT), rel=0.05)
    np.testing.assert_array_equal(drawn.down, drawn.up)


def test_a_file(tmp_path):
    file = tmp_path / "devices.csv"
    file.write_text("examples_per_second, up, failure\n100, 1e5, 0.5\n\n20, , \n")
    drawn = draw(f"from_csv(path={str(file)!r})", 2)
    assert [values.tolist() for values in drawn] == [
        [100.0, 20.0],
        [np.inf, np.inf],
        [1e5, np.inf],
        [0.0, 0.0],
        [np.inf, np.inf],
        [0.5, 0.0],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the columns must be examples_per_second and any of down, up, latency, memory, failure, once each"),
        ("up\n1\n2\n", "line 1: the columns must be examples_per_second"),
        ("examples_per_second,speed\n1,2\n1,2\n", "unknown column in line 1 of .*'speed'; allowed: examples_per_second, down"),
        ("examples_per_second\n1\n", "has 1 lines after the first, one for each client; 2 clients train"),
        ("examples_per_second,up\n1,2\n1\n", "line 3: it has 1 cells, line 1 has 2"),
        ("examples_per_second,up\n1,2\n0,1\n", "line 3, column 'examples_per_second': '0' must be a finite positive number"),
        ("examples_per_second\n1\nfast\n", "line 3, column 'examples_per_second': 'fast' must be a finite positive number"),
        ("examples_per_second,failure\n1,0.5\n1,1\n", r"line 3, column 'failure': '1' must be in \[0, 1\)"),
        ("examples_per_second,latency\n1,nan\n1,1\n", "line 2, column 'latency': 'nan' must be a finite number of at least 0"),
        ('examples_per_second\n1\n"2\n', "is not a CSV file"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, text, message):
    file = tmp_path / "devices.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        draw(f"from_csv(path={str(file)!r})", 2)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("log_normal(examples_per_second=1)", "unknown device profile 'log_normal'; allowed: constant, lognormal"),
        ("lognormal(examples_per_second=0)", "examples_per_second=0 must be positive"),
        ("lognormal(examples_per_second=1, sigma=-1)", "sigma=-1 must be at least 0"),
        ("constant(examples_per_second=1, failure=1.0)", r"failure=1.0 must be in \[0, 1\)"),
        ("uniform(examples_per_second=5)", "examples_per_second=5 must be a tuple of 2"),
        ("uniform(examples_per_second=(5, 1))", r"examples_per_second=\(5, 1\) must be \(lowest, highest\)"),
        ("tiers(weights=(), examples_per_second=1)", r"weights=\(\) must have one number for each tier"),
        (
            "tiers(weights=(1, 1), examples_per_second=1, up=(1, 2, 3))",
            r"up=\(1, 2, 3\) must be one number, or one for each of the 2",
        ),
        ("from_csv(path='/no/such.csv')", "/no/such.csv: there is no such file"),
        (f"{__name__}:nothing", "must return a DeviceProfiles, it returned None"),
        (f"{__name__}:too_few", r"down has shape \[1\], not \[2\]"),
        (f"{__name__}:backwards", "examples_per_second of client 1 is -1.0, it must be a finite positive number"),
    ],
)
def test_what_is_wrong_with_a_profile(spec, message):
    with pytest.raises((ValueError, TypeError), match=message):
        draw(spec, 2)


def nothing(*, draws):
    del draws


def too_few(*, draws):
    return DeviceProfiles(np.ones(draws.population), *[np.ones(1)] * 5)


def backwards(*, draws):
    ones = np.ones(draws.population)
    return DeviceProfiles(np.array([1.0, -1.0]), ones, ones, ones, ones, 0 * ones)


def test_a_profile_of_ones_own():
    assert draw(f"{__name__}:by_id(step=2.0)", 3).examples_per_second.tolist() == [1.0, 3.0, 5.0]


def by_id(*, draws, step: float):
    ones = np.ones(draws.population)
    return DeviceProfiles(1 + step * np.arange(draws.population), ones, ones, ones, ones, 0 * ones)
