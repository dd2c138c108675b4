import inspect
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_core.data import partition

LIGHT = settings(max_examples=25, deadline=None)
BALANCED = np.repeat(np.arange(10), 100)
BALANCED_TEST = np.repeat(np.arange(10), 40)


@st.composite
def labelled(draw, least=40):
    """Labels of 2 to 6 classes of uneven sizes, in random order."""
    sizes = draw(st.lists(st.integers(12, 60), min_size=2, max_size=6))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    while len(labels) < least:
        labels = np.concatenate([labels, labels])
    return np.random.default_rng(draw(st.integers(0, 1000))).permutation(labels)


seeds = st.integers(0, 2**31)
alphas = st.sampled_from([1e-3, 0.05, 0.3, 1.0, 100.0])


def table(labels, index):
    return np.stack([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in index])


def assert_valid(index, clients, rows):
    assert len(index) == clients
    for part in index:
        assert part.dtype == np.int32
        assert np.all(np.diff(part) >= 0)
        if len(part):
            assert 0 <= part[0] <= part[-1] < rows


def assert_disjoint(index):
    together = np.concatenate(index)
    assert len(np.unique(together)) == len(together)


def assert_covers(index, rows):
    np.testing.assert_array_equal(np.sort(np.concatenate(index)), np.arange(rows))


# -- whole numbers


@LIGHT
@given(st.integers(0, 500), st.lists(st.floats(0, 10), min_size=1, max_size=8).filter(lambda shares: sum(shares) > 1e-3))
def test_apportion_adds_up_and_stays_within_one(total, shares):
    parts = partition.apportion(total, np.array(shares))
    assert parts.sum() == total
    assert np.all(np.abs(parts - total * np.array(shares) / sum(shares)) < 1)


def test_apportion_gives_remainders_to_the_largest():
    assert partition.apportion(10, np.array([1, 1, 1])).tolist() == [4, 3, 3]
    assert partition.apportion([7, 4], np.array([[0.5, 0.2, 0.3], [0, 1, 0]])).tolist() == [[4, 1, 2], [0, 4, 0]]


@LIGHT
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 30)), min_size=1, max_size=8), st.floats(0, 1))
def test_apportion_capped_adds_up_below_the_caps(parts, fraction):
    shares, caps = np.array([s for s, _ in parts]), np.array([c for _, c in parts])
    total = int(fraction * caps.sum())
    got = partition.apportion_capped(total, shares, caps)
    assert got.sum() == total
    assert np.all((got >= 0) & (got <= caps))


def test_apportion_capped_moves_the_excess_in_proportion():
    got = partition.apportion_capped(100, np.array([0.8, 0.15, 0.05]), np.array([40, 100, 100]))
    assert got.tolist() == [40, 45, 15]


# -- schemes over all rows


@LIGHT
@given(labelled(), st.integers(1, 12), seeds)
def test_iid_covers_evenly(labels, clients, seed):
    index = partition.iid(labels, clients, seed)
    assert_valid(index, clients, len(labels))
    assert_covers(index, len(labels))
    sizes = [len(part) for part in index]
    assert max(sizes) - min(sizes) <= 1


@LIGHT
@given(labelled(), st.integers(1, 12), seeds, alphas)
def test_dirichlet_covers_without_overlap(labels, clients, seed, alpha):
    index = partition.dirichlet(labels, clients, seed, alpha=alpha, min_size=0)
    assert_valid(index, clients, len(labels))
    assert_covers(index, len(labels))


@LIGHT
@given(labelled(), st.integers(1, 8), seeds, st.integers(1, 4))
def test_dirichlet_keeps_the_minimum_size(labels, clients, seed, min_size):
    index = partition.dirichlet(labels, clients, seed, alpha=1.0, min_size=min_size)
    assert min(len(part) for part in index) >= min_size
    assert_covers(index, len(labels))


@LIGHT
@given(labelled(), st.integers(1, 12), seeds, alphas)
def test_dirichlet_balanced_has_equal_sizes(labels, clients, seed, alpha):
    index = partition.dirichlet(labels, clients, seed, alpha=alpha, balanced=True)
    assert_covers(index, len(labels))
    sizes = [len(part) for part in index]
    assert max(sizes) - min(sizes) <= 1


@LIGHT
@given(labelled(), st.integers(2, 5), seeds, alphas, st.floats(0.01, 0.2))
def test_dirichlet_min_share_gives_everyone_of_each_class(labels, clients, seed, alpha, min_share):
    index = partition.dirichlet(labels, clients, seed, alpha=alpha, min_size=0, min_share=min_share)
    assert_covers(index, len(labels))
    assert np.all(table(labels, index) >= np.floor(min_share * np.bincount(labels)))


def test_dirichlet_shares_have_the_mean_of_the_distribution():
    """A scalar alpha treats all clients alike; a vector favours the clients with large entries, by its ratios."""
    seeds = range(200)
    even = np.mean([table(BALANCED, partition.dirichlet(BALANCED, 4, s, alpha=0.5)) for s in seeds], (0, 2))
    np.testing.assert_allclose(even, [25, 25, 25, 25], atol=2.5)
    skewed = [table(BALANCED, partition.dirichlet(BALANCED, 4, s, alpha=[3, 1, 3, 1], min_size=0)) for s in seeds]
    np.testing.assert_allclose(np.mean(skewed, (0, 2)), [37.5, 12.5, 37.5, 12.5], atol=2.5)


def test_dirichlet_small_alpha_means_more_skew():
    def largest_share(alpha):
        tables = [table(BALANCED, partition.dirichlet(BALANCED, 10, s, alpha=alpha, min_size=0)) for s in range(20)]
        return np.mean(np.max(tables, 1)) / 100

    np.testing.assert_allclose([largest_share(a) for a in (0.01, 0.1, 0.5, 1)], [0.94, 0.66, 0.38, 0.29], atol=0.04)
    assert largest_share(1e6) < 0.11


def test_log_dirichlet_has_the_distribution_of_numpy():
    """Mean 1/K and variance (K-1) / (K^2 (K alpha + 1)), at an alpha where numpy's draws are accurate too."""
    draws = np.exp(partition._log_dirichlet(np.random.default_rng(0), 0.3, (40_000, 4)))
    np.testing.assert_allclose(draws.sum(1), 1)
    np.testing.assert_allclose(draws.mean(0), 0.25, atol=0.01)
    np.testing.assert_allclose(draws.var(0), 3 / (16 * 2.2), atol=0.003)


@pytest.mark.parametrize("alpha", [1e-100, 1e-12, 1e-3, 1e100])
@pytest.mark.parametrize("balanced", [False, True])
def test_extreme_alphas_end_without_nan(alpha, balanced):
    start = time.monotonic()
    index = partition.dirichlet(BALANCED, 25, 0, alpha=alpha, balanced=balanced, min_size=0)
    assert_covers(index, len(BALANCED))
    assert time.monotonic() - start < 5
    cells = np.count_nonzero(table(BALANCED, index))
    if alpha > 1:
        assert cells == 250
    elif balanced:
        assert cells <= 2 * 25  # about two classes per client
    else:
        assert cells <= (10 if alpha < 1e-3 else 15)  # classes stay whole


def test_balanced_dirichlet_keeps_the_odds_ratios_of_the_draw():
    """The same draw, fitted to equal sizes: odds ratios agree up to rounding, on a table large enough for that."""
    rows = np.array([40_000, 60_000])
    log_share = partition._log_dirichlet(np.random.default_rng(1), 5.0, (2, 3))
    fitted = partition._fit_equal_sizes(rows, log_share)
    assert fitted.sum(1).tolist() == rows.tolist()
    assert fitted.sum(0).tolist() == [33_334, 33_333, 33_333]
    odds = lambda logs: np.diff(np.diff(logs, axis=0), axis=1)
    np.testing.assert_allclose(odds(np.log(fitted)), odds(log_share), atol=0.01)


@LIGHT
@given(labelled(), st.integers(1, 8), seeds)
def test_quantity_skew_covers_with_its_minimum(labels, clients, seed):
    index = partition.quantity_skew(labels, clients, seed, alpha=2.0, min_size=2)
    assert_valid(index, clients, len(labels))
    assert_covers(index, len(labels))
    assert min(len(part) for part in index) >= 2


def test_quantity_skew_leaves_label_distributions_alone():
    labels = np.tile(np.arange(4), 5000)
    counts = table(labels, partition.quantity_skew(labels, 4, 3, alpha=0.8, min_size=500))
    assert counts.sum(1).max() > 2 * counts.sum(1).min()
    np.testing.assert_allclose(counts / counts.sum(1, keepdims=True), 0.25, atol=0.06)


@LIGHT
@given(labelled(), st.integers(1, 10), seeds, st.integers(1, 3))
def test_shards_cover_evenly_with_few_classes(labels, clients, seed, shards_per_client):
    index = partition.shards(labels, clients, seed, shards_per_client=shards_per_client)
    assert_covers(index, len(labels))
    sizes = [len(part) for part in index]
    assert max(sizes) - min(sizes) <= shards_per_client
    shard = -(-len(labels) // (clients * shards_per_client))
    most = 2 + (shard - 1) // np.bincount(labels).min()  # classes that one shard can touch
    assert np.count_nonzero(table(labels, index), 1).max() <= shards_per_client * most


def test_shards_of_even_data_hold_one_class_each():
    counts = table(BALANCED, partition.shards(BALANCED, 25, 0, shards_per_client=2))  # 50 shards of 20 rows
    assert set(np.unique(counts)) <= {0, 20, 40}
    assert np.count_nonzero(counts, 1).max() == 2


@LIGHT
@given(labelled(), st.integers(1, 10), seeds, st.data())
def test_pathological_has_n_classes_of_equal_volume(labels, clients, seed, data):
    classes = labels.max() + 1
    n = data.draw(st.integers(-(-classes // clients), classes))
    index = partition.pathological(labels, clients, seed, classes_per_client=n)
    assert_valid(index, clients, len(labels))
    assert_disjoint(index)
    counts = table(labels, index)
    assert np.all(np.count_nonzero(counts, 1) == n)
    assert len(np.unique(counts[counts > 0])) == 1
    holders = np.count_nonzero(counts, 0)
    assert holders.max() - holders.min() <= 1


def test_pathological_can_deal_out_all_rows():
    index = partition.pathological(BALANCED, 7, 0, classes_per_client=3, equal_volume=False)
    assert_covers(index, len(BALANCED))
    counts = table(BALANCED, index)
    assert np.all(np.count_nonzero(counts, 1) == 3)
    assert set(np.unique(counts)) == {0, 33, 34, 50}  # classes with three and with two holders


@LIGHT
@given(labelled(), seeds, st.data())
def test_pathological_clients_can_hold_different_numbers_of_classes(labels, seed, data):
    classes = int(labels.max()) + 1
    numbers = data.draw(st.lists(st.integers(1, classes), min_size=classes, max_size=8))
    index = partition.pathological(labels, len(numbers), seed, classes_per_client=numbers, equal_volume=False)
    assert_valid(index, len(numbers), len(labels))
    assert_covers(index, len(labels))
    assert np.count_nonzero(table(labels, index), 1).tolist() == numbers


def test_fedhpls_private_clients_hold_two_to_all_classes():
    """Figures 7 and 9: five clients; every class has three holders."""
    counts = table(BALANCED, partition.pathological(BALANCED, 5, 0, classes_per_client=(2, 4, 6, 8, 10)))
    assert np.count_nonzero(counts, 1).tolist() == [2, 4, 6, 8, 10]
    assert np.count_nonzero(counts, 0).tolist() == [3] * 10
    assert set(np.unique(counts)) == {0, 33}


# -- schemes with clients' own distributions


@LIGHT
@given(st.integers(1, 10), seeds, st.sampled_from([0.3, 1.0, 50.0]))
def test_dirichlet_clients_have_exact_sizes_and_one_distribution(clients, seed, alpha):
    train, test = partition.dirichlet_clients(
        BALANCED, BALANCED_TEST, clients, seed, alpha=alpha, train_examples=50, test_examples=20
    )
    assert_valid(train, clients, len(BALANCED))
    assert_valid(test, clients, len(BALANCED_TEST))
    for part in (*train, *test):
        assert len(np.unique(part)) == len(part)
    assert {len(part) for part in train} == {50}
    assert {len(part) for part in test} == {20}
    apart = table(BALANCED, train) / 50 - table(BALANCED_TEST, test) / 20
    assert np.abs(apart).max() < 1 / 50 + 1 / 20  # both within one row of q


def test_dirichlet_clients_share_examples_and_follow_alpha():
    def draw(alpha):
        return partition.dirichlet_clients(BALANCED, BALANCED_TEST, 40, 0, alpha=alpha, train_examples=90, test_examples=30)[0]

    skewed, even = (table(BALANCED, draw(alpha)).max(1).mean() / 90 for alpha in (0.1, 1000.0))
    assert skewed > 0.5
    assert even < 0.15
    assert len(np.unique(np.concatenate(draw(1.0)))) < 40 * 90


def test_dirichlet_clients_repeat_rows_only_on_request():
    few = np.repeat(np.arange(4), 20)
    with pytest.raises(ValueError, match=r"client 0 wants \d+ of the 20 training rows of class \d \(draw 50 of 50\); lower train"):
        partition.dirichlet_clients(few, few, 3, 0, alpha=0.01, train_examples=60, test_examples=10, max_tries=50)
    train, _ = partition.dirichlet_clients(few, few, 3, 0, alpha=0.01, train_examples=60, test_examples=10, replace=True)
    assert [len(part) for part in train] == [60, 60, 60]
    assert len(np.unique(train[0])) <= 20 < table(few, train)[0].max()


def test_pathological_clients_repeat_rows_only_on_request():
    with pytest.raises(ValueError, match=r"client 0 wants 150 of the 100 training rows of class \d .*lower train_examples=300"):
        partition.pathological_clients(BALANCED, BALANCED_TEST, 3, 0, classes_per_client=2, train_examples=300)
    train, _ = partition.pathological_clients(
        BALANCED, BALANCED_TEST, 3, 0, classes_per_client=2, train_examples=300, test_examples=80, replace=True
    )
    assert [sorted(row[row > 0]) for row in table(BALANCED, train)] == [[150, 150]] * 3
    with pytest.raises(ValueError, match=r"train_examples=0 must be >= 1"):
        partition.pathological_clients(BALANCED, BALANCED_TEST, 3, 0, classes_per_client=2, train_examples=0)


def test_dirichlet_clients_need_test_rows_of_each_class():
    with pytest.raises(ValueError, match="class 9 has training rows but no test rows"):
        partition.dirichlet_clients(BALANCED, BALANCED_TEST[BALANCED_TEST < 9], 3, 0, alpha=1.0, train_examples=10)


@LIGHT
@given(st.integers(1, 10), seeds, st.integers(1, 5))
def test_pathological_clients_have_equal_shares(clients, seed, n):
    train, test = partition.pathological_clients(
        BALANCED, BALANCED_TEST, clients, seed, classes_per_client=n, train_examples=60, test_examples=30
    )
    for labels, index, total in ((BALANCED, train, 60), (BALANCED_TEST, test, 30)):
        counts = table(labels, index)
        assert np.all(np.count_nonzero(counts, 1) == n)
        assert np.all(counts.sum(1) == total)
        assert np.ptp(counts[counts > 0]) <= 1


@LIGHT
@given(labelled(), st.integers(1, 8), seeds, st.sampled_from(["random_over_classes", "random_over_clients", 0.1, 10.0]))
def test_overlapping_dirichlet_sizes_add_up_to_all_rows(labels, clients, seed, alpha):
    index = partition.overlapping_dirichlet(labels, clients, seed, alpha=alpha)
    assert_valid(index, clients, len(labels))
    assert sum(len(part) for part in index) == len(labels)
    for part in index:
        assert len(np.unique(part)) == len(part)


def test_overlapping_dirichlet_overlaps():
    index = partition.overlapping_dirichlet(BALANCED, 5, 0, train_examples=300)
    assert [len(part) for part in index] == [300] * 5
    assert len(np.unique(np.concatenate(index))) < 1000


# -- domains and natural clients


@LIGHT
@given(st.integers(1, 4), st.integers(1, 3), seeds)
def test_by_domain_gives_each_client_one_domain(count, each, seed):
    rng = np.random.default_rng(seed)
    domains = rng.permutation(np.repeat(np.arange(count), rng.integers(10, 40, count)))
    test_domains = rng.permutation(np.repeat(np.arange(count), rng.integers(5, 20, count)))
    train, test = partition.by_domain(domains, test_domains, count * each, seed)
    for of_row, index in ((domains, train), (test_domains, test)):
        assert_valid(index, count * each, len(of_row))
        assert_covers(index, len(of_row))
        for client, part in enumerate(index):
            assert set(of_row[part]) == {client % count}


def test_by_domain_takes_the_numbers_asked_for():
    domains = np.repeat(np.arange(2), [50, 30])
    train, test = partition.by_domain(domains, domains, 4, 0, train_examples=15, test_examples=7)
    assert [len(part) for part in train] == [15] * 4
    assert [len(part) for part in test] == [7] * 4
    assert_disjoint(train)
    with pytest.raises(ValueError, match="domain 1 has 30 train rows for 2 clients, 15 each; train_examples=16"):
        partition.by_domain(domains, domains, 4, 0, train_examples=16)
    with pytest.raises(ValueError, match="3 clients for 2 domains: must be a multiple of 2"):
        partition.by_domain(domains, domains, 3, 0)
    with pytest.raises(ValueError, match="domain 1 has 0 test rows"):
        partition.by_domain(domains, domains[:50], 2, 0)


def test_clients_are_tested_on_a_domain_that_nobody_has():
    train, test = partition.by_domain(np.repeat([0, 2, 3], 5), np.ones(4, int), 6, 0)
    assert [len(part) for part in train] == [3, 3, 3, 2, 2, 2]
    assert [part.tolist() for part in test] == [[0, 1, 2, 3]] * 6


def test_natural_clients_keep_their_rows():
    ids, test_ids = np.array([7, 3, 7, 9, 3, 7]), np.array([9, 7, 9])
    train, test = partition.natural(ids, test_ids, 3, 0)
    assert [part.tolist() for part in train] == [[1, 4], [0, 2, 5], [3]]
    assert test is not None
    assert [part.tolist() for part in test] == [[], [1], [0, 2]]
    some, none = partition.natural(ids, None, 2, 5)
    assert none is None
    assert len({int(ids[rows[0]]) for rows in some}) == 2
    with pytest.raises(ValueError, match="4 clients, but the data have 3 natural ones"):
        partition.natural(ids, test_ids, 4, 0)


# -- long tail


def test_long_tail_of_cifar10_is_the_published_one():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    kept = partition.long_tail(labels, 0, rho=100)
    assert np.bincount(labels[kept]).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert len(np.unique(kept)) == len(kept) == 12406
    assert np.bincount(labels[partition.long_tail(labels, 0, rho=10)])[[0, -1]].tolist() == [5000, 500]


@LIGHT
@given(labelled(), st.floats(1, 10), seeds)
def test_long_tail_follows_its_profile(labels, rho, seed):
    counts = np.bincount(labels[partition.long_tail(labels, seed, rho=rho)])
    profile = counts[0] * rho ** -(np.arange(len(counts)) / (len(counts) - 1))
    np.testing.assert_array_equal(counts, np.floor(profile + 1e-9))
    assert np.all(counts <= np.bincount(labels))


def test_long_tail_refuses_an_empty_tail():
    with pytest.raises(ValueError, match=r"rho=200: class 9 would keep no row of 100 .*allowed here: 1 to 100"):
        partition.long_tail(BALANCED, 0, rho=200)
    with pytest.raises(ValueError, match=r"rho=0.5: must be a finite number >= 1"):
        partition.long_tail(BALANCED, 0, rho=0.5)


# -- all of them

CALLS = {
    "iid": {},
    "dirichlet": {"alpha": 0.5},
    "quantity_skew": {"alpha": 1.0},
    "dirichlet_clients": {"alpha": 1.0, "train_examples": 40, "test_examples": 10},
    "pathological_clients": {"classes_per_client": 2, "train_examples": 40, "test_examples": 10},
    "overlapping_dirichlet": {},
    "pathological": {"classes_per_client": 3},
    "shards": {},
    "by_domain": {},
    "natural": {},
}
COLUMNS = {
    "labels": BALANCED,
    "test_labels": BALANCED_TEST,
    "domains": np.tile(np.arange(2), 500),
    "test_domains": np.tile(np.arange(2), 200),
    "ids": np.tile(np.arange(20), 50),
    "test_ids": np.tile(np.arange(20), 20),
}


def flat(result):
    return [part for half in result if half is not None for part in half]


def test_every_scheme_is_called_here():
    assert set(CALLS) == {scheme.__name__ for scheme in partition.SCHEMES}


@pytest.mark.parametrize("name", CALLS)
def test_partitions_depend_on_the_seed_alone(name):
    np.random.seed(1)  # noqa: NPY002
    first = partition.make(name, COLUMNS, 6, 3, **CALLS[name])
    np.random.seed(2)  # noqa: NPY002
    again = partition.make(name, COLUMNS, 6, 3, **CALLS[name])
    other = partition.make(name, COLUMNS, 6, 4, **CALLS[name])
    for a, b in zip(flat(first), flat(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(flat(first), flat(other), strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_labels_are_read_not_changed(name):
    before = {key: values.copy() for key, values in COLUMNS.items()}
    partition.make(name, COLUMNS, 6, 0, **CALLS[name])
    for key, values in COLUMNS.items():
        np.testing.assert_array_equal(values, before[key])


@pytest.mark.parametrize("scheme", partition.SCHEMES, ids=lambda scheme: scheme.__name__)
def test_more_clients_than_rows_or_none_at_all_are_refused(scheme):
    takes = inspect.signature(scheme).parameters
    given = {key: values for key, values in COLUMNS.items() if key in takes}
    options = CALLS[scheme.__name__]
    for clients in (0, -1, 2.5):
        with pytest.raises(ValueError, match=f"clients={clients}: must be an integer >= 1"):
            scheme(**given, clients=clients, seed=0, **options)
    if not scheme.__name__.endswith("_clients"):  # those share examples
        with pytest.raises(ValueError, match="1001 clients"):
            scheme(**given, clients=1001, seed=0, **options)


@pytest.mark.parametrize("name", ["dirichlet", "quantity_skew", "dirichlet_clients", "overlapping_dirichlet"])
@pytest.mark.parametrize("alpha", [-1, 0, float("nan"), float("inf"), "a lot", [1.0, 2.0]])
def test_bad_alphas_are_refused(name, alpha):
    with pytest.raises(ValueError, match="alpha"):
        partition.make(name, COLUMNS, 6, 0, **CALLS[name] | {"alpha": alpha})


@pytest.mark.parametrize("seed", [-1, 0.5, None, True])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(ValueError, match=r"data seed .* must be an integer >= 0"):
        partition.iid(BALANCED, 2, seed)


def test_bad_labels_are_refused():
    with pytest.raises(ValueError, match=r"labels of shape \(3,\) and type float64"):
        partition.iid(np.array([0.0, 1.0, 2.0]), 1, 0)
    with pytest.raises(ValueError, match="label -1 in row 1"):
        partition.iid(np.array([0, -1, 2]), 1, 0)


def test_infeasible_minimum_sizes_end_with_what_would_do():
    with pytest.raises(ValueError, match=r"min_size=101 for 10 clients and 1000 rows: must lie in \[0, 100\]"):
        partition.dirichlet(BALANCED, 10, 0, alpha=1.0, min_size=101)
    with pytest.raises(
        ValueError, match=r"none of 1000 draws with alpha=0.001 .*Try min_size <= 0, or alpha >= [0-9.]+, or"
    ) as error:
        partition.dirichlet(BALANCED, 20, 0, alpha=0.001)
    advised = float(str(error.value).split("alpha >= ")[1].split(",")[0])
    assert min(len(part) for part in partition.dirichlet(BALANCED, 20, 0, alpha=advised * 1.1, max_tries=10_000)) >= 1
    with pytest.raises(ValueError, match="quantity_skew: none of 5 draws"):
        partition.quantity_skew(BALANCED, 50, 0, alpha=0.01, max_tries=5)


def test_other_infeasible_requests_are_refused():
    with pytest.raises(
        ValueError, match=r"4 clients with classes_per_client=2 hold 8 of 10 classes; needs classes_per_client >= 3"
    ):
        partition.pathological(BALANCED, 4, 0, classes_per_client=2)
    with pytest.raises(ValueError, match=r"classes_per_client=11: must lie in \[1, 10\]"):
        partition.pathological(BALANCED, 4, 0, classes_per_client=11)
    with pytest.raises(ValueError, match=r"classes_per_client=\(2, 11, 3\): must lie in \[1, 10\]"):
        partition.pathological(BALANCED, 3, 0, classes_per_client=(2, 11, 3))
    for wrong in ((2, 10), 2.5):
        with pytest.raises(ValueError, match=r"must be an integer, or 3 of them, one per client"):
            partition.pathological(BALANCED, 3, 0, classes_per_client=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"class \d has 2 rows for 3 holders"):
        partition.pathological(np.repeat(np.arange(2), 2), 3, 0, classes_per_client=2)
    with pytest.raises(ValueError, match=r"shards_per_client=11 for 100 clients and 1000 rows: must lie in \[1, 10\]"):
        partition.shards(BALANCED, 100, 0, shards_per_client=11)
    with pytest.raises(ValueError, match=r"min_share=0.3 for 5 clients: must lie in \[0, 1/5 = 0.2\]"):
        partition.dirichlet(BALANCED, 5, 0, alpha=1.0, min_share=0.3)
    with pytest.raises(ValueError, match=r"min_share=0.1 with balanced=True"):
        partition.dirichlet(BALANCED, 5, 0, alpha=1.0, min_share=0.1, balanced=True)
    with pytest.raises(ValueError, match=r"train_examples=1001: must lie in \[1, 1000\]"):
        partition.overlapping_dirichlet(BALANCED, 5, 0, train_examples=1001)


def test_make_explains_names_options_and_missing_columns():
    with pytest.raises(ValueError, match=r"unknown partition 'dirichlt'; allowed: iid, dirichlet.*Did you mean 'dirichlet'\?"):
        partition.make("dirichlt", COLUMNS, 3, 0)
    with pytest.raises(TypeError, match=r"partition 'dirichlet' has no option 'alhpa'.*Did you mean 'alpha'\?"):
        partition.make("dirichlet", COLUMNS, 3, 0, alhpa=1.0)
    with pytest.raises(TypeError, match="partition 'dirichlet' needs the option 'alpha'"):
        partition.make("dirichlet", COLUMNS, 3, 0)
    with pytest.raises(ValueError, match="partition 'natural' needs ids, and this data set has none"):
        partition.make("natural", {"labels": BALANCED}, 3, 0)


def test_fedhpls_non_iid_gives_everyone_of_each_class():
    """Disjoint, all rows dealt, random concentrations or given ones, and 1 %, 10 % or 0.5 % of each class for every client."""
    for alpha in ("random", 0.1, 0.5, 1.0):
        for least in (0.01, 0.1, 0.005):
            labels = np.repeat(np.arange(4), 1000)
            index = partition.dirichlet(labels, 5, 0, alpha=alpha, min_share=least)
            assert_covers(index, len(labels))
            assert table(labels, index).min() >= 1000 * least


def test_fedhpls_dir_of_all_three_sets_has_as_many_rows_as_there_are():
    """Concentrations add up to 1 over a client's classes, or over a class's clients; a client's rows are all different."""
    labels = np.repeat(np.arange(10), 500)
    for alpha in ("random_over_classes", "random_over_clients"):
        index = partition.overlapping_dirichlet(labels, 5, 0, alpha=alpha)
        assert [len(rows) for rows in index] == [1000] * 5
        assert all(len(np.unique(rows)) == 1000 for rows in index)
        assert len(np.unique(np.concatenate(index))) < 5000, "clients share examples"


def test_random_concentrations_follow_fedhpl():
    """Each class's concentrations add up to 1 over the clients, so its shares are as skewed as at alpha = 1/N."""
    tables = [table(BALANCED, partition.dirichlet(BALANCED, 5, s, alpha="random", min_size=0)) for s in range(40)]
    assert 0.6 < np.mean(np.max(tables, 1)) / 100 < 0.85
    with pytest.raises(ValueError, match="alpha='randm'"):
        partition.dirichlet(BALANCED, 5, 0, alpha="randm")  # pyright: ignore[reportArgumentType]
