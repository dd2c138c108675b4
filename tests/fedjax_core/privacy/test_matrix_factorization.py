"""Matrices of correlated noise: their sensitivity by trying all participations, their noise on sums, and their epsilon."""

import importlib.util
import itertools
import tracemalloc

import numpy as np
import pytest

from fedjax_core.privacy import Participation, PrivacyConfig, Release, compute_epsilon, cyclic_participation, matrix_factorization
from fedjax_core.privacy.matrix_factorization import weaken

needs_library = pytest.mark.skipif(importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting is not installed")
needs_peer = pytest.mark.skipif(importlib.util.find_spec("jax_privacy") is None, reason="jax-privacy is not installed")


def dense(strategy):
    """C as a matrix [rows, n], of its definition."""
    n = strategy.participation.rounds
    if strategy.name == "tree":  # a row for each complete node
        nodes = [(at, at + 2**level) for level in range(n.bit_length()) for at in range(0, n - 2**level + 1, 2**level)]
        return np.array([[float(begin <= t < end) for t in range(n)] for begin, end in nodes])
    column = [strategy.column[i] for i in range(n)]
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


def patterns(participation, done):
    """All sets of rounds in which a client may take part."""
    for times in range(1, participation.times + 1):
        for rounds in itertools.combinations(range(done), times):
            if all(later - sooner >= participation.separation for sooner, later in itertools.pairwise(rounds)):
                yield list(rounds)


def most(matrix, participation, done):
    """How far a client moves it at most: by the same unit vector in each of its rounds, for no entry of C^T C is negative."""
    return max(np.linalg.norm(matrix[:, rounds].sum(1)) for rounds in patterns(participation, done))


@pytest.mark.parametrize(
    "participation", [Participation(8, 2, 3), Participation(8, 3, 3), Participation(6, 6, 1), Participation(5, 1, 5)]
)
@pytest.mark.parametrize("name", ["banded", "blt", "tree"])
def test_sensitivity_is_that_of_all_participations(name, participation):
    made = {"banded": lambda p: matrix_factorization.banded(p, bands=3), "blt": lambda p: matrix_factorization.blt(p, buffers=2)}
    strategy = made.get(name, matrix_factorization.tree)(participation)
    matrix = dense(strategy)
    assert np.min(matrix.T @ matrix) >= 0
    for done in (1, 3, participation.rounds):
        before = dense(matrix_factorization.tree(participation._replace(rounds=done))) if name == "tree" else matrix[:done]
        wanted, found = most(before, participation, done), strategy.sensitivity(done)
        if name == "tree":
            assert wanted <= found + 1e-9 <= 1.3 * wanted + 1e-8
        else:
            assert found == pytest.approx(wanted, rel=1e-6)
    for vectors in np.random.default_rng(0).normal(size=(20, participation.rounds, 3)):  # of other directions in each round
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        moved = max(np.linalg.norm(matrix[:, rounds] @ units[rounds]) for rounds in patterns(participation, participation.rounds))
        assert moved <= strategy.sensitivity() + 1e-9


def test_noise_of_a_tree_is_honakers():
    """Of four rounds, the best unbiased estimate of the third sum from the nodes that are complete by then, and of the fourth."""
    tree = matrix_factorization.tree(Participation(4, 4, 1))
    nodes = dense(tree)
    for t in (1, 2, 3, 4):
        mine = nodes[[not row[t:].any() for row in nodes.astype(bool)]][:, :t]
        best = np.linalg.inv(mine.T @ mine)  # of all rounds' values by least squares
        assert tree.sum_deviations()[t - 1] == pytest.approx(np.sqrt(best.sum()), rel=1e-9)


@pytest.mark.parametrize(
    "make", [lambda p: matrix_factorization.banded(p, bands=4), lambda p: matrix_factorization.blt(p, buffers=2)]
)
def test_noise_is_optimised_for_the_participation(make):
    """Less noise on sums than by independent noise or a tree, and than by what is best for another participation."""
    participation, other = Participation(32, 2, 16), Participation(32, 32, 1)
    noise = lambda strategy: np.sqrt(np.mean(strategy.sum_deviations() ** 2)) * strategy.sensitivity()
    for worse in (matrix_factorization.banded(participation, bands=1), matrix_factorization.tree(participation)):
        assert noise(make(participation)) < 0.9 * noise(worse)
    assert noise(make(participation)) < noise(make(other)._replace(participation=participation))
    inverse = np.linalg.inv(dense(make(participation)))
    np.testing.assert_allclose(make(participation).round_deviations(), np.linalg.norm(inverse, axis=1), rtol=1e-6)
    np.testing.assert_allclose(make(participation).sum_deviations(), np.linalg.norm(np.cumsum(inverse, 0), axis=1), rtol=1e-6)


@pytest.mark.parametrize("make", [lambda of, p: of("banded")(p, bands=4), lambda of, p: of("blt")(p, buffers=3)])
@pytest.mark.parametrize("participation", [Participation(30, 1, 30), Participation(24, 8, 3)])
def test_what_is_optimised_falls_and_is_better_than_its_start(monkeypatch, make, participation):
    noise = lambda strategy: np.mean(strategy.sum_deviations() ** 2) * strategy.sensitivity() ** 2
    best = make(lambda name: getattr(matrix_factorization, name), participation)
    monkeypatch.setattr(matrix_factorization, "_minimize", lambda loss, start, has_gradient: start)
    start = make(lambda name: getattr(matrix_factorization, name).__wrapped__, participation)
    assert noise(best) < 0.999 * noise(start)
    for strategy in (best, start):
        assert strategy.column[0] == 1
        assert np.all(np.diff(strategy.column) <= 0)
        assert strategy.column[-1] >= 0


def test_noise_of_many_rounds_takes_memory_of_its_buffers():
    """C^-1 of 4,000 rounds as a matrix has 128 MB; by its definition it is a recurrence."""
    participation = Participation(4_000, 400, 10)
    many = matrix_factorization.Strategy("blt", participation, decays=(0.9995, 0.98, 0.7), scales=(0.001, 0.02, 0.2))
    tracemalloc.start()
    sums, rounds = many.sum_deviations(), many.round_deviations()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6
    few = many._replace(participation=Participation(50, 5, 10))
    inverse = np.linalg.inv(dense(few))
    np.testing.assert_allclose(rounds[:50], np.linalg.norm(inverse, axis=1), rtol=1e-9)
    np.testing.assert_allclose(sums[:50], np.linalg.norm(np.cumsum(inverse, 0), axis=1), rtol=1e-9)


@pytest.mark.parametrize(
    "made", [matrix_factorization.banded(Participation(9, 3, 3), bands=4), matrix_factorization.blt(Participation(9, 3, 3))]
)
def test_a_recorded_matrix_is_taken_as_it_is(made):
    facts = {"rounds": 9, "min_separation": 3, "participations": 3} | made.facts()
    assert matrix_factorization.restore_strategy(made.name, made.participation, facts) == made
    assert matrix_factorization.restore_strategy(made.name, made.participation, facts | {"rounds": 10}) is None
    assert (
        matrix_factorization.restore_strategy(
            "tree", made.participation, facts | {"coefficients": None, "decays": None, "scales": None}
        )
        is None
    )
    first = next(iter(made.facts()))
    with pytest.raises(ValueError, match=rf"run\.json: {first}.* must give a column that begins with 1 and falls"):
        matrix_factorization.restore_strategy(
            made.name, made.participation, facts | {first: [1.0, *(1.5 for _ in facts[first][1:])]}
        )
    bounds = {"rounds": 9, "min_separation": 3, "participations": 3}
    for column in ([0.9, 0.5], [1.0, *np.linspace(0.5, -0.1, 8)]):
        with pytest.raises(ValueError, match=r"run\.json: coefficients of privacy must give a column that begins with 1 and falls"):
            matrix_factorization.restore_strategy("banded", made.participation, bounds | {"coefficients": column})


@needs_peer
def test_strategies_are_as_good_as_those_of_jax_privacy():
    """Its optimiser, for the same rounds and participation: the error of its numbers by our reckoning, and ours by its own."""
    import jax
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

    participation = Participation(32, 8, 4)
    with jax.enable_x64(), jax.numpy_rank_promotion("allow"):
        for ours in (matrix_factorization.banded(participation, bands=4), matrix_factorization.blt(participation, buffers=2)):
            if ours.decays:
                loss = buffered_toeplitz.LossFn.build_min_sep(n=32, error="mean", min_sep=8, max_participations=4)
                theirs = buffered_toeplitz.optimize_loss(loss_fn=loss, num_buffers=2, max_optimizer_steps=200)[0].toeplitz_coefs(32)
            else:
                theirs = toeplitz.optimize_banded_toeplitz(n=32, bands=4, max_optimizer_steps=100)
            error = lambda c: float(np.mean(toeplitz.per_query_error(strategy_coef=c, n=32)))
            size = lambda c: float(toeplitz.minsep_sensitivity_squared(c, min_sep=8, max_participations=4, n=32))
            assert size(ours.column) == pytest.approx(ours.sensitivity() ** 2, rel=1e-6)
            assert error(ours.column) == pytest.approx(np.mean(ours.sum_deviations() ** 2), rel=1e-6)
            assert error(ours.column) * size(ours.column) == pytest.approx(error(theirs) * size(theirs), rel=0.01)


def test_clients_come_in_turn_as_often_as_is_said():
    for cohort, population, rounds in [(8, 20, 10), (5, 10, 7), (3, 10, 4), (7, 7, 3), (6, 8, 9)]:
        held = cyclic_participation(rounds, cohort, population)
        came = [{(r * cohort + i) % population for i in range(cohort)} for r in range(rounds)]
        mine = [[r for r in range(rounds) if client in came[r]] for client in range(population)]
        apart = [later - sooner for one in mine for sooner, later in itertools.pairwise(one)]
        assert max(map(len, mine)) == held.times
        assert min(apart, default=held.separation) >= held.separation
        assert all(len([r for r in one if r < done]) <= held.times_by(done) for one in mine for done in range(rounds + 1))
    held = cyclic_participation(10, 8, 20)
    assert weaken(held, 1, 5) == Participation(10, 1, 5)
    with pytest.raises(ValueError, match=r"privacy.min_separation=3: a client returns after 2 rounds"):
        weaken(held, 3, None)
    with pytest.raises(ValueError, match=r"privacy.participations=1: in 10 rounds a client participates up to 4 times"):
        weaken(held, None, 1)


def planned(name, **given):
    asked = {"name": name, "clip": 1.0, "noise": 2.0, "epsilon": None, "delta": 1e-5, "cohort": None, "population": None}
    return PrivacyConfig(**asked | {"accountant": "rdp", "min_separation": None, "participations": None, "rounds": 12} | given)


@needs_library
@pytest.mark.parametrize("name", ["tree", "banded", "blt"])
def test_epsilon_is_that_of_one_gaussian_mechanism(name):
    import dp_accounting as dp

    spent = planned(name).make_ledger(5, 20, "cyclic")
    one = dp.rdp.RdpAccountant().compose(dp.GaussianDpEvent(2.0)).get_epsilon(1e-5)
    assert spent.epsilon(12) == pytest.approx(one, rel=1e-9)
    early = dp.rdp.RdpAccountant().compose(dp.GaussianDpEvent(2.0 * spent.strategy.sensitivity() / spent.strategy.sensitivity(1)))
    assert spent.epsilon(1) == pytest.approx(early.get_epsilon(1e-5), rel=1e-9)
    assert spent.epsilon(0) == 0 < spent.epsilon(1) < spent.epsilon(6) < spent.epsilon(12)
    assert "each client at most 3 times, 4 rounds apart, not amplified" in spent.describe(12)
    facts = spent.facts()
    assert (facts["sampling"], facts["min_separation"], facts["participations"], facts["rounds"]) == ("cyclic", 4, 3, 12)
    wanted = planned(name, noise=None, epsilon=3.0).make_ledger(5, 20, "cyclic")
    assert 2.99 < wanted.epsilon(12) <= 3.0
    larger = planned(name, cohort=10, population=1000).make_ledger(5, 20, "cyclic")
    assert larger.participation == Participation(12, 100, 1)


@needs_library
def test_independent_noise_of_clients_in_turn_counts_their_turns():
    spent = planned("gaussian").make_ledger(5, 20, "cyclic")
    each = Release("gaussian", "all")
    wanted = [compute_epsilon(each, 2.0, times, 1e-5, "rdp") for times in (1, 1, 2, 3)]
    assert [spent.epsilon(done) for done in (1, 4, 5, 12)] == wanted
    calibrated = planned("gaussian", noise=None, epsilon=3.0).make_ledger(5, 20, "cyclic")
    assert 2.99 < calibrated.epsilon(12) <= 3.0, "the noise is for the turns of a client"
    everybody = planned("blt").make_ledger(20, 20, "cyclic", calibrate=False)
    assert everybody.strategy.participation == Participation(12, 1, 12), "a turn in every round"
