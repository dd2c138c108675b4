"""Intervals of differences and ranks against scipy, and against all resamples where they can be counted."""

import itertools

import numpy as np
import pytest
from scipy import stats

from fedjax_core.reporting import bootstrap


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def test_over_seeds_as_scipy_has_it():
    """Percentiles of a paired difference; both have errors of their draws."""
    a, b = numbers(2, 12)
    draws = bootstrap.resample_means(np.stack([a, b]), number=40_000)
    low, high = bootstrap.percentile_interval(draws[0] - draws[1])
    options = {"paired": True, "method": "percentile", "n_resamples": 40_000, "rng": np.random.default_rng(1)}
    wanted = stats.bootstrap((a, b), lambda a, b, axis: np.mean(a - b, axis), vectorized=True, **options)
    np.testing.assert_allclose([low, high], wanted.confidence_interval, atol=0.02)


def test_over_clients_as_scipy_has_it():
    """One seed: what is drawn are its clients, the same for both rows; scipy draws their differences, or weighs them."""
    a, b = numbers(2, 30)
    rows, weights = np.stack([a, b]), np.arange(1.0, 31)
    options = {"paired": True, "method": "percentile", "n_resamples": 40_000, "rng": np.random.default_rng(1), "vectorized": True}
    for statistic, of in (
        (bootstrap.unweighted_mean, lambda a, b, w, axis: np.mean(a - b, axis)),
        (bootstrap.weighted_mean, lambda a, b, w, axis: np.sum((a - b) * w, axis) / np.sum(w, axis)),
    ):
        wanted = stats.bootstrap((a, b, weights), of, **options).confidence_interval
        for same in (True, False):
            of_seed = statistic(rows, weights)[:, None]
            draws = bootstrap.resample_means(of_seed, [rows], [weights], statistic=statistic, same_clients=same, number=40_000)
            np.testing.assert_allclose(bootstrap.percentile_interval(draws[0] - draws[1]), wanted, atol=0.02)


def test_many_seeds_as_a_paired_t_test_has_it():
    a, b = numbers(2, 60) + [[0.3], [0.0]]
    draws = bootstrap.resample_means(np.stack([a, b]))
    wanted = stats.ttest_rel(a, b).confidence_interval()
    np.testing.assert_allclose(bootstrap.percentile_interval(draws[0] - draws[1]), wanted, atol=0.04)


def test_three_seeds_are_all_resamples_of_three():
    """27 of them: the outermost 1 / 27 is more than 2.5 %, so a 95 % interval is the range, as the docstring says."""
    rows = np.array([[0.2, 0.5, 0.9]])
    draws = bootstrap.resample_means(rows)
    possible = {round(float(np.mean(some)), 9) for some in itertools.product(rows[0], repeat=3)}
    assert {round(value, 9) for value in draws[0]} == possible
    np.testing.assert_allclose(np.ravel(bootstrap.percentile_interval(draws)), [0.2, 0.9])
    assert np.mean(draws[0] == draws[0].min()) == pytest.approx(1 / 27, abs=0.01)


@pytest.mark.parametrize("same", [True, False])
def test_clients_that_differ_count_once_where_all_seeds_have_the_same(same):
    """Values are a client's alone, the same for each seed. The variance of the mean over E clients is v / E with one partition,
    however many seeds; with a partition for each of S seeds it is v / (E S)."""
    values = numbers(1, 40)
    draws = bootstrap.resample_means(np.repeat(values.mean(-1)[:, None], 5, 1), [values] * 5, same_clients=same, number=20_000)
    assert draws.mean() == pytest.approx(values.mean(), abs=0.01)
    assert draws.var() == pytest.approx(values.var() / 40 / (1 if same else 5), rel=0.05)


def test_seeds_and_clients_both_vary():
    """Seed effects of variance u, client effects of variance v: u / S + v / E, crossed; other counts of clients for each seed."""
    of_seed, of_client = numbers(8), 2 * numbers(30, seed=1)
    of_client -= of_client.mean()
    values = [(of_seed[s] + of_client)[None] for s in range(8)]
    draws = bootstrap.resample_means(of_seed[None], values, number=20_000)
    assert draws.var() == pytest.approx(of_seed.var() / 8 + of_client.var() / 30, rel=0.05)
    fewer = [value[:, : 30 - s] for s, value in enumerate(values)]
    assert bootstrap.resample_means(of_seed[None], fewer, same_clients=False).shape == (1, bootstrap.RESAMPLES)
    with pytest.raises(ValueError, match="same_clients, but seeds have 30, 29"):
        bootstrap.resample_means(of_seed[None], fewer)


@pytest.mark.parametrize("same", [True, False])
def test_all_rows_get_the_same_draws_and_rows_without_clients_only_seeds(same, monkeypatch):
    values = [numbers(1, 20, seed=s) for s in range(3)]
    values = [np.concatenate([v, v + 0.25, np.full_like(v, np.nan)]) for v in values]
    by_seed = np.stack([v.mean(-1) for v in values], -1)
    by_seed[2] = [1.0, 2.0, 3.0]
    options = {"known": np.array([True, True, False]), "same_clients": same, "number": 500}
    draws = bootstrap.resample_means(by_seed, values, **options)
    np.testing.assert_allclose(draws[1] - draws[0], 0.25)
    assert len(set(np.round(draws[2], 9))) == 7  # sums of three of 1, 2, 3
    np.testing.assert_array_equal(draws, bootstrap.resample_means(by_seed, values, **options))
    assert np.any(draws != bootstrap.resample_means(by_seed, values, **options, seed=1))
    monkeypatch.setattr(bootstrap, "AT_ONCE", 20 * 7)  # in blocks of 7: as many, of the same distribution
    again = bootstrap.resample_means(by_seed, values, **options)
    assert again.shape == (3, 500)
    assert again[0].std() == pytest.approx(draws[0].std(), rel=0.2)


def test_ranks_are_those_of_scipy():
    values = np.random.default_rng(0).integers(0, 4, (6, 50)).astype(float)
    np.testing.assert_array_equal(bootstrap.rank_rows(values, larger=False), stats.rankdata(values, axis=0))
    np.testing.assert_array_equal(bootstrap.rank_rows(values), stats.rankdata(-values, axis=0))
