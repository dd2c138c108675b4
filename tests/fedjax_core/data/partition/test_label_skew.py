import time
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_core.data import partition
from fedjax_core.data.apportion import make_generator
from fedjax_core.data.partition import label_skew, sampling
from fedjax_core.data.ragged_index import RaggedIndex
from tests.fedjax_core.data.partition.labels import (
    BALANCED,
    LIGHT,
    alphas,
    assert_covers,
    assert_disjoint,
    assert_valid,
    labelled,
    seeds,
    table,
)


def random_volumes_one_by_one(clients, classes_per_client, rows, rng):
    """PFLlib's `separate_data` without `balance`: [K, N] numbers of examples."""
    classes, left = len(rows), [classes_per_client] * clients
    volumes = np.zeros((classes, clients), int)
    for c in range(classes):
        chosen = [k for k in range(clients) if left[k] > 0][: int(np.ceil(clients / classes * classes_per_client))]
        mean = rows[c] / len(chosen)
        for k in chosen[:-1]:
            volumes[c, k] = rng.integers(int(max(mean / 10, 1 / classes)), int(mean))
        volumes[c, chosen[-1]] = rows[c] - volumes[c].sum()
        for k in chosen:
            left[k] -= 1
    return volumes


@pytest.mark.parametrize("each", [2, 10])
def test_random_volumes_are_those_of_pfllib(each):
    """All classes per client are its unbalanced "iid"; the last holder of a class has most of it."""
    labels, rng = np.repeat(np.arange(10), 600), np.random.default_rng(0)
    sorted_ours, sorted_theirs = [], []
    for seed in range(40):
        index = partition.pathological(labels, 20, seed, classes_per_client=each, equal_volume="random")
        assert_disjoint(index)
        ours, theirs = table(labels, index).T, random_volumes_one_by_one(20, each, [600] * 10, rng)
        assert ours.sum() == len(labels)
        for volumes, found in ((ours, sorted_ours), (theirs, sorted_theirs)):
            held = [own[own > 0] for own in volumes]
            assert {len(own) for own in held} == {2 * each}
            assert all(30 // each <= own[:-1].min() and own[:-1].max() < 300 / each for own in held)
            found.append([np.sort(own) for own in held])
    means = [np.mean(found, (0, 1)) for found in (sorted_ours, sorted_theirs)]
    np.testing.assert_allclose(*means, rtol=0.08)
    few = partition.pathological(np.arange(10).repeat(5), 4, 0, classes_per_client=10, equal_volume="random")
    assert table(np.arange(10).repeat(5), few).min() >= 1


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
@given(labelled(), st.integers(1, 12), seeds, alphas)
def test_dirichlet_self_balancing_passes_over_clients_with_the_mean_number(labels, clients, seed, alpha):
    index = partition.dirichlet(labels, clients, seed, alpha=alpha, min_size=0, self_balancing=True)
    assert_covers(index, len(labels))
    held = np.zeros(clients, int)
    for of_class in table(labels, index).T:
        assert not of_class[held >= len(labels) / clients].any()
        held += of_class
    full = label_skew._pass_over_full_clients(np.array([2, 2]), np.log([[0.99, 0.01]] * 2))
    assert full.tolist() == [[2, 0], [0, 2]]  # just the mean


def test_dirichlet_self_balancing_keeps_the_proportions_of_the_others():
    """Against PFLlib's loop, from the proportions of the plain draw of this seed."""
    labels, clients = np.repeat(np.arange(10), 10_000), 20
    shares = table(labels, partition.dirichlet(labels, clients, 3, alpha=0.5)).T / 10_000
    held, wanted = np.zeros(clients), []
    for proportions in shares:
        proportions = np.array([p * (number < len(labels) / clients) for p, number in zip(proportions, held, strict=True)])
        wanted.append(10_000 * proportions / proportions.sum())
        held += wanted[-1]
    found = table(labels, partition.dirichlet(labels, clients, 3, alpha=0.5, self_balancing=True)).T
    np.testing.assert_allclose(found, wanted, atol=10)
    assert 5000 <= found.sum(0).max() < 20_000
    assert (found == 0).sum() > (shares == 0).sum() + 10


@LIGHT
@given(labelled(), st.integers(2, 5), seeds, alphas, st.floats(0.01, 0.2))
def test_dirichlet_min_share_gives_everyone_of_each_class(labels, clients, seed, alpha, min_share):
    index = partition.dirichlet(labels, clients, seed, alpha=alpha, min_size=0, min_share=min_share)
    assert_covers(index, len(labels))
    assert np.all(table(labels, index) >= np.floor(min_share * np.bincount(labels)))


def test_dirichlet_shares_have_the_mean_of_the_distribution():
    """A scalar alpha treats all clients alike; a vector favours the clients with large entries, by
    its ratios.
    """
    seeds = range(100)
    even = np.mean([table(BALANCED, partition.dirichlet(BALANCED, 4, s, alpha=0.5)) for s in seeds], (0, 2))
    np.testing.assert_allclose(even, [25, 25, 25, 25], atol=3.5)
    skewed = [table(BALANCED, partition.dirichlet(BALANCED, 4, s, alpha=[3, 1, 3, 1], min_size=0)) for s in seeds]
    np.testing.assert_allclose(np.mean(skewed, (0, 2)), [37.5, 12.5, 37.5, 12.5], atol=3.5)


def test_dirichlet_small_alpha_means_more_skew():
    def largest_share(alpha):
        tables = [table(BALANCED, partition.dirichlet(BALANCED, 10, s, alpha=alpha, min_size=0)) for s in range(20)]
        return np.mean(np.max(tables, 1)) / 100

    np.testing.assert_allclose([largest_share(a) for a in (0.01, 0.1, 0.5, 1)], [0.94, 0.66, 0.38, 0.29], atol=0.04)
    assert largest_share(1e6) < 0.11


@LIGHT
@given(labelled(), st.integers(1, 12), seeds, st.sampled_from([0.3, 1.0, 100.0]), st.booleans())
def test_grouped_dirichlet_covers_without_overlap(labels, clients, seed, alpha, equal):
    index = partition.grouped_dirichlet(labels, clients, seed, alpha=alpha, group_size=3, min_fraction=0.1, equal_sizes=equal)
    assert_valid(index, clients, len(labels))
    assert_covers(index, len(labels))
    if equal:
        sizes = [len(part) for part in index]
        assert max(sizes) - min(sizes) <= 1


def test_extended_dirichlet_gives_n_classes_and_divides_each_by_a_dirichlet_over_its_holders():
    shares = []
    for seed in range(40):
        index = partition.make("extended_dirichlet", {"labels": BALANCED}, 20, seed, classes_per_client=3, alpha=2.0)[0]
        assert_covers(index, len(BALANCED))
        counts = table(BALANCED, index)  # [N, K]
        assert (np.count_nonzero(counts, 1) <= 3).all()
        shares.append(counts[counts > 0] / 100)
    share = np.concatenate(shares)  # of one of six holders: Beta(2, 10)
    assert share.mean() == pytest.approx(1 / 6, rel=0.03)
    assert share.var() == pytest.approx(2 * 10 / (12**2 * 13), rel=0.15)
    with pytest.raises(ValueError, match="hold fewer than 10 classes; needs classes_per_client >= 5"):
        partition.make("extended_dirichlet", {"labels": BALANCED}, 2, 0, classes_per_client=3, alpha=2.0)


def test_grouped_dirichlet_has_the_least_and_largest_sizes_of_its_groups():
    """Of 20 clients, ten by ten share 500 rows: at least 25 each, and a client below 50 gets at
    most one more class.
    """
    for seed in range(5):
        index = partition.grouped_dirichlet(BALANCED, 20, seed, alpha=0.05, equal_sizes=False)
        numbers = table(BALANCED, index)  # [N, K]
        sizes = numbers.sum(1)
        np.testing.assert_array_equal([sizes[:10].sum(), sizes[10:].sum()], [500, 500])
        assert sizes.min() >= 25
        before = np.cumsum(numbers, 1) - numbers
        assert np.all(numbers[before >= 50] == 0)  # whoever has the mean gets no more


def test_grouped_dirichlet_cuts_what_it_drew():
    """One seed, with and without equal sizes: the same examples in the same order of clients, cut
    elsewhere.
    """
    drawn = partition.grouped_dirichlet(BALANCED, 20, 3, alpha=0.2, equal_sizes=False)
    cut = partition.grouped_dirichlet(BALANCED, 20, 3, alpha=0.2)
    assert [len(part) for part in cut] == [50] * 20
    numbers = table(BALANCED, drawn)
    classes = np.concatenate([np.repeat(np.arange(10), n) for n in numbers])
    wanted = [np.bincount(part, minlength=10) for part in classes.reshape(20, 50)]
    np.testing.assert_array_equal(table(BALANCED, cut), wanted)


def test_grouped_dirichlet_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="alpha=0"):
        partition.grouped_dirichlet(BALANCED, 20, 0, alpha=0)
    with pytest.raises(ValueError, match="grouped_dirichlet: none of 5 draws"):
        partition.grouped_dirichlet(BALANCED, 20, 0, alpha=0.001, min_fraction=1.0, max_tries=5)


def test_rows_of_a_balanced_dirichlet_of_very_many_clients_are_moved_together(monkeypatch):
    """To the same sizes, of the same examples, and about as one move after the other has it, which
    takes minutes of 300,000 clients.
    """
    rows, log_share = np.array([4000, 6000, 500]), sampling.log_dirichlet(np.random.default_rng(1), 0.5, (3, 40))
    one_by_one = label_skew._fit_equal_sizes(rows, log_share)
    monkeypatch.setattr(label_skew, "_move_one_by_one", lambda *given: pytest.fail("one by one"))
    monkeypatch.setattr(label_skew, "MANY", 39)
    together = label_skew._fit_equal_sizes(rows, log_share)
    for sums in (0, 1):
        np.testing.assert_array_equal(together.sum(sums), one_by_one.sum(sums))
    assert np.min(together) >= 0
    assert np.abs(together - one_by_one).max() <= 3


@pytest.mark.parametrize("move", [label_skew._move_one_by_one, label_skew._move_together])
def test_what_is_moved_is_of_the_class_that_fits_the_taker(move):
    table, surplus = np.array([[3, 1], [3, 1]]), np.array([1, -1])
    move(table, surplus, np.array([[0.0, -1.0], [0.0, -5.0]]))
    assert table.tolist() == [[2, 2], [3, 1]]


def test_balanced_dirichlet_keeps_the_odds_ratios_of_the_draw():
    """The same draw, fitted to equal sizes: odds ratios agree up to rounding, on a table large
    enough for that.
    """
    rows = np.array([40_000, 60_000])
    log_share = sampling.log_dirichlet(np.random.default_rng(1), 5.0, (2, 3))
    fitted = label_skew._fit_equal_sizes(rows, log_share)
    assert fitted.sum(1).tolist() == rows.tolist()
    assert fitted.sum(0).tolist() == [33_334, 33_333, 33_333]
    odds = lambda logs: np.diff(np.diff(logs, axis=0), axis=1)
    np.testing.assert_allclose(odds(np.log(fitted)), odds(log_share), atol=0.01)


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


def shards_one_by_one(labels, clients, seed, each):
    rng = make_generator(seed, "shards")
    shuffled = rng.permutation(len(labels))
    cut = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], clients * each)
    dealt = rng.permutation(len(cut)).reshape(clients, each)
    return [np.sort(np.concatenate([cut[shard] for shard in hand])) for hand in dealt]


def pathological_one_by_one(labels, clients, seed, each):
    """Of equal volume."""
    rng, classes = make_generator(seed, "pathological"), labels.max() + 1
    held = np.zeros((clients, classes), int)
    for client in range(clients):
        order = rng.permutation(classes)
        held[client, order[np.argsort(held.sum(0)[order], kind="stable")[:each]]] = 1
    number = min(np.bincount(labels) // held.sum(0))
    hands = [[] for _ in range(clients)]
    for c in range(classes):
        shuffled = rng.permutation(np.flatnonzero(labels == c))
        for place, client in enumerate(np.flatnonzero(held[:, c])):
            hands[client] += shuffled[place * number : (place + 1) * number].tolist()
    return [np.sort(hand) for hand in hands]


@pytest.mark.parametrize(
    ("scheme", "naive", "option"),
    [
        (partition.shards, shards_one_by_one, "shards_per_client"),
        (partition.pathological, pathological_one_by_one, "classes_per_client"),
    ],
)
def test_all_clients_are_dealt_at_once_what_they_were_dealt_one_by_one(scheme, naive, option):
    labels = np.random.default_rng(3).integers(0, 5, 301)
    for clients, seed in ((7, 0), (12, 5)):
        found = scheme(labels, clients, seed, **{option: 3})
        assert isinstance(found, RaggedIndex)  # no array for each client
        assert [part.tolist() for part in found] == [part.tolist() for part in naive(labels, clients, seed, 3)]
    assert isinstance(partition.dirichlet(labels, 7, 0, alpha=0.5), RaggedIndex)


def test_classes_are_dealt_to_many_clients_in_time_that_grows_with_their_number():
    start = time.process_time()
    held = sampling.assign_classes(np.random.default_rng(0), 50, 20_000, 2)
    assert time.process_time() - start < 4
    assert set(held.sum(0)) == {800}


def test_shards_of_even_data_hold_one_class_each():
    counts = table(BALANCED, partition.shards(BALANCED, 25, 0, shards_per_client=2))  # 50 shards of 20 examples
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


def test_fedhpls_non_iid_gives_everyone_of_each_class():
    """Disjoint, all examples dealt, random concentrations or given ones, and 1 %, 10 % or 0.5 % of
    each class for every client.
    """
    for alpha in ("random", 0.1, 0.5, 1.0):
        for least in (0.01, 0.1, 0.005):
            labels = np.repeat(np.arange(4), 1000)
            index = partition.dirichlet(labels, 5, 0, alpha=alpha, min_share=least)
            assert_covers(index, len(labels))
            assert table(labels, index).min() >= 1000 * least


def test_random_concentrations_follow_fedhpl():
    """Each class's concentrations add up to 1 over the clients, so its shares are as skewed as at
    alpha = 1/N.
    """
    tables = [table(BALANCED, partition.dirichlet(BALANCED, 5, s, alpha="random", min_size=0)) for s in range(40)]
    assert 0.6 < np.mean(np.max(tables, 1)) / 100 < 0.85
    with mock.patch.object(label_skew, "log_dirichlet", wraps=sampling.log_dirichlet) as draw:
        partition.dirichlet(BALANCED, 5, 0, alpha="random", min_size=0)
    np.testing.assert_allclose(draw.call_args.args[1].sum(1), np.ones(10))
    with pytest.raises(ValueError, match="alpha='randm'"):
        partition.dirichlet(BALANCED, 5, 0, alpha="randm")  # pyright: ignore[reportArgumentType]
