import time

import numpy as np
import pytest

from fedjax_core.data import partition
from fedjax_core.data.partition import sampling
from tests.fedjax_core.data.partition.labels import BALANCED, CALLS, COLUMNS, assert_covers, table


def test_log_dirichlet_has_the_distribution_of_numpy():
    """Mean 1/K and variance (K-1) / (K^2 (K alpha + 1)), at an alpha where numpy's draws are
    accurate too.
    """
    draws = np.exp(sampling.log_dirichlet(np.random.default_rng(0), 0.3, (40_000, 4)))
    np.testing.assert_allclose(draws.sum(1), 1)
    np.testing.assert_allclose(draws.mean(0), 0.25, atol=0.01)
    np.testing.assert_allclose(draws.var(0), 3 / (16 * 2.2), atol=0.003)


@pytest.mark.parametrize("alpha", [1e-100, 1e-12, 1e-3, 1e100])
@pytest.mark.parametrize("option", [{}, {"balanced": True}, {"self_balancing": True}])
def test_extreme_alphas_end_without_nan(alpha, option):
    start = time.monotonic()
    index = partition.dirichlet(BALANCED, 25, 0, alpha=alpha, **option, min_size=0)
    assert_covers(index, len(BALANCED))
    assert time.monotonic() - start < 5
    cells = np.count_nonzero(table(BALANCED, index))
    if alpha > 1:
        assert cells == 250
    elif "balanced" in option:
        assert cells <= 2 * 25  # about two classes per client
    else:
        assert cells <= (10 if alpha < 1e-3 else 15)  # classes stay whole


@pytest.mark.parametrize("name", ["dirichlet", "quantity_skew", "dirichlet_clients", "overlapping_dirichlet"])
@pytest.mark.parametrize("alpha", [-1, 0, float("nan"), float("inf"), "a lot", [1.0, 2.0]])
def test_bad_alphas_are_refused(name, alpha):
    with pytest.raises(ValueError, match="alpha"):
        partition.make(name, COLUMNS, 6, 0, **CALLS[name] | {"alpha": alpha})


def test_infeasible_minimum_sizes_end_with_what_would_do():
    with pytest.raises(ValueError, match=r"min_size=101 for 10 clients and 1000 examples: must lie in \[0, 100\]"):
        partition.dirichlet(BALANCED, 10, 0, alpha=1.0, min_size=101)
    with pytest.raises(
        ValueError, match=r"none of 1000 draws with alpha=0.001 .*Try min_size <= 0, or alpha >= [0-9.]+, or"
    ) as error:
        partition.dirichlet(BALANCED, 20, 0, alpha=0.001)
    advised = float(str(error.value).split("alpha >= ")[1].split(",")[0])
    assert min(len(part) for part in partition.dirichlet(BALANCED, 20, 0, alpha=advised * 1.1, max_tries=10_000)) >= 1
    with pytest.raises(ValueError, match="quantity_skew: none of 5 draws"):
        partition.quantity_skew(BALANCED, 50, 0, alpha=0.01, max_tries=5)
