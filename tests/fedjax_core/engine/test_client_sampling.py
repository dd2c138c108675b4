"""Who takes part."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_core.devices import parse_schedule
from fedjax_core.engine import client_sampling
from fedjax_core.engine.client_sampling import ClientSampler
from fedjax_core.engine.data_feed.cohort_buffer import SizeBound
from fedjax_core.experiment.example_privacy import ParticipationCounter
from fedjax_core.privacy import PrivacyConfig
from tests import toy


@pytest.mark.parametrize(
    ("setting", "population", "expected"),
    [(None, 20, 20), (7, 20, 7), (20, 20, 20), (1, 20, 1), (0.4, 20, 8), (1.0, 20, 20), (0.001, 20, 1), (0.26, 10, 3)],
)
def test_number(setting, population, expected):
    assert client_sampling.resolve_cohort_size(setting, population) == expected


@pytest.mark.parametrize("setting", [0, 21, -1, 0.0, 1.5, -0.5, True, "all", float("nan")])
def test_number_refuses(setting):
    with pytest.raises(ValueError, match=r"cohort=.* between 1 and the population's 20 nor a fraction in \(0, 1\]"):
        client_sampling.resolve_cohort_size(setting, 20)


class SampleTest(chex.TestCase):
    # 3 of 40 take Floyd's algorithm, 30 of 40 a permutation
    @parameterized.parameters((40, 3), (40, 30))
    def test_every_client_and_every_pair_is_as_likely(self, population, size):
        draws = 4000
        keys = jax.random.split(jax.random.key(0), draws)
        ids = np.asarray(jax.jit(jax.vmap(lambda k: client_sampling.sample_fixed(k, population, size)))(keys))
        there = np.zeros((draws, population))
        np.put_along_axis(there, ids, 1, axis=1)
        np.testing.assert_array_equal(there.sum(1), size)  # without replacement
        p = size / population
        self.assertChi2(there.sum(0), draws * p, 1 - p)
        pairs = (there.T @ there)[np.triu_indices(population, 1)]
        q = p * (size - 1) / (population - 1)
        self.assertChi2(pairs, draws * q, 1 - q)

    def assertChi2(self, counts, expected, factor):
        """The statistic lies within six standard deviations of its mean, the number of cells."""
        statistic = np.sum((counts - expected) ** 2) / (expected * factor)
        self.assertLess(abs(statistic - len(counts)), 6 * np.sqrt(2 * len(counts)))

    @parameterized.parameters((1, 1), (7, 7), (30, 29), (30, 6), (30, 5), (30, 1), (10**9, 10))
    def test_distinct_clients_of_the_population(self, population, size):
        sample = jax.jit(lambda key: client_sampling.sample_fixed(key, population, size))
        draws = [np.asarray(sample(jax.random.key(i))) for i in range(10)]
        for ids in draws:
            self.assertEqual(ids.dtype, np.int32)
            self.assertLen(set(ids.tolist()), size)
            self.assertTrue(np.all((ids >= 0) & (ids < population)))
        if size < population:
            self.assertGreater(len({frozenset(ids.tolist()) for ids in draws}), 1)  # keys matter

    def test_a_small_cohort_of_a_huge_population(self):
        """No array of the population's size is made."""
        jaxpr = jax.make_jaxpr(lambda key: client_sampling.sample_fixed(key, 10**9, 10))(jax.random.key(0))
        self.assertNotIn("1000000000]", str(jaxpr))


@pytest.mark.parametrize("made", [client_sampling.FixedSampler, client_sampling.PoissonSampler])
def test_rounds_and_seeds_have_cohorts_of_their_own(made):
    draws = [np.asarray(client_sampling.draw_rounds(made(5, 20), jax.random.key(seed), 0, 3)) for seed in range(2)]
    assert len({cohort.tobytes() for cohorts in draws for cohort in cohorts}) == 6


def test_numbers_of_a_poisson_cohort_are_binomial():
    sampler = client_sampling.PoissonSampler(5, 20)
    ids = np.asarray(client_sampling.draw_rounds(sampler, jax.random.key(0), 0, 4000))
    numbers, of_client = (ids < 20).sum(1), np.bincount(ids.ravel(), minlength=21)[:20]
    assert (numbers.mean(), numbers.var()) == pytest.approx((5, 20 * 0.25 * 0.75), rel=0.05)
    np.testing.assert_allclose(of_client / 4000, 0.25, atol=0.03)


class EverySecond(ClientSampler):
    """The clients with even ids, in a program of two slots more."""

    @property
    def slots(self):
        return self.size + 2

    def draw(self, key, round_num, clients, state):
        return jnp.pad(2 * jnp.arange(self.size, dtype=jnp.int32), (0, 2), constant_values=self.population)


class Keyed(ClientSampler):
    """Draws by the key alone, as if it were another one in each round."""

    def draw(self, key, round_num, clients, state):
        return client_sampling.sample_fixed(key, self.population, self.size)


def test_a_sampler_that_forgets_the_round_is_said(monkeypatch, caplog):
    folded = lambda self, key, round_num, *rest: Keyed.draw(self, jax.random.fold_in(key, round_num), round_num, *rest)
    draws = np.random.default_rng(0)  # a traced draw calls it once, for all rounds
    of_numpy = lambda self, *_: draws.permutation(self.population)[: self.size].astype(np.int32)
    for name, draw, is_said in (("keyed", Keyed.draw, True), ("numpy", of_numpy, True), ("folded", folded, False)):
        monkeypatch.setitem(client_sampling.SAMPLERS, name, type(name, (Keyed,), {"draw": draw}))
        toy.simulate("fedavg", sampling=name, cohort=3)
        assert ("draws the same clients in rounds 1 to 3" in caplog.text) == is_said
        caplog.clear()
    toy.simulate("fedavg", sampling="keyed", cohort=toy.CLIENTS)
    assert not caplog.text


def test_a_sampler_has_a_draw(monkeypatch):
    monkeypatch.setitem(client_sampling.SAMPLERS, "none", type("None", (ClientSampler,), {}))
    with pytest.raises(TypeError, match=r"cohort.sampling='none' has no draw\(key, round_num, clients, state\)"):
        client_sampling.make_sampler("none", 3, 8)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"init": lambda self: 0}, r"init is called with \(clients\) by position; it takes by position: none"),
        (
            {"update": lambda self, state, ids, losses: state},
            r"update is called with \(state, clients, round_num, cohort, losses\)",
        ),
    ],
)
def test_a_samplers_functions_take_what_they_are_called_with(method, message, monkeypatch):
    monkeypatch.setitem(client_sampling.SAMPLERS, "own", type("Own", (EverySecond,), method))
    with pytest.raises(TypeError, match=f"cohort.sampling='own': {message}"):
        client_sampling.make_sampler("own", 3, 8)


def test_a_sampler_is_a_class_and_a_name(monkeypatch):
    """Rounds draw by it, streamed examples have room for its cohorts, and privacy is refused."""
    monkeypatch.setitem(client_sampling.SAMPLERS, "even", EverySecond)
    sim = toy.simulate("fedavg", sampling="even", cohort=3, data_on="host")
    arrays = sim.compiled.feed.for_round(jax.random.key_data(jax.random.key(0)), 0, False)
    assert sorted(arrays.index.ids.tolist()) == [0, 2, 4, toy.CLIENTS, toy.CLIENTS]
    assert len(arrays.train.y) == 1 + SizeBound(sim.spec.host_arrays.size, sim.spec.sampler).total()
    bound = SizeBound(np.array([1, 9, 1, 9, 1, 9, 1, 2]), sim.spec.sampler)
    assert bound.total() == 9 + 9 + 9 + 2 + 1
    sim.release()
    begins = type("Begins", (EverySecond,), {"init": lambda self, clients: clients.examples})
    assert [made(3, 8).is_adaptive for made in (EverySecond, begins)] == [False, True]  # whose state host data would not have
    private = PrivacyConfig("gaussian", 1.0, 1.0, None, 1e-5, None, None, "rdp", None, None, 3)
    with pytest.raises(ValueError, match="epsilon is not known for cohorts that are drawn this way"):
        private.make_ledger(3, 8, sim.spec.sampler.accounting, calibrate=False)
    whole_deployment = private._replace(cohort=1000, population=1000)  # still only some of the simulated clients
    with pytest.raises(ValueError, match="epsilon is not known for cohorts that are drawn this way"):
        whole_deployment.make_ledger(3, 8, sim.spec.sampler.accounting, calibrate=False)
    with pytest.raises(ValueError, match="epsilon is not known for cohorts that are drawn this way"):
        private.make_ledger(8, 8, sim.spec.sampler.accounting, calibrate=False)  # of 8 clients it draws every second
    assert private.make_ledger(8, 8, "", calibrate=False, takes_all=True).release.sampling == "all"
    for name in ("local_gaussian", "local_laplace"):  # the noise hides what is sent, not who sends
        local = private._replace(name=name)
        with pytest.raises(ValueError, match="drawn this way, since who sends may depend on exact losses or numbers of examples"):
            local.make_ledger(3, 8, sim.spec.sampler.accounting, calibrate=False)
        for allowed in ((3, 8, "fixed"), (3, 8, "poisson"), (3, 8, "cyclic")):
            assert local.make_ledger(*allowed, calibrate=False).release.sampling == "local"
        assert local.make_ledger(8, 8, "", calibrate=False, takes_all=True).release.sampling == "local"
    with pytest.raises(ValueError, match=r"unknown sampler 'odd'; allowed: fixed, poisson, cyclic, size, .*, oort, even"):
        client_sampling.make_sampler("odd", 3, 8)
    monkeypatch.setattr(EverySecond, "draw", lambda self, key, round_num, clients, state: jnp.ones(8, bool))
    sim = toy.simulate("fedavg", sampling="even", cohort=3)
    with pytest.raises(TypeError, match=r"draw must return int32 ids of at most 5 clients, it returned bool\[8\]"):
        sim.run_rounds(sim.init(0), 1)


def test_seeds_share_the_program_that_draws_their_cohorts():
    key_data = [np.asarray(jax.random.key_data(jax.random.key(seed))) for seed in range(3)]
    before = client_sampling.draw_rounds._cache_size()
    counts = [ParticipationCounter(client_sampling.PoissonSampler(3, 11), seed)(5) for seed in range(3)]
    simulation = toy.simulate("fedavg", mixed=False, schedule=parse_schedule("fedbuff(buffer=2)"), cohort=4)
    arrived = [np.stack([step.ids for step in simulation.spec.asynchrony.read_steps(key, 0, 6)]) for key in key_data]
    assert client_sampling.draw_rounds._cache_size() == before + 2  # a sampler each
    for of_seeds in (counts, arrived):
        assert len({array.tobytes() for array in of_seeds}) == 3


class DropoutTest(chex.TestCase):
    def test_frequency(self):
        there = client_sampling.draw_stays(jax.random.key(0), jnp.arange(10000), 0.3)
        self.assertAlmostEqual(float(there.mean()), 0.7, delta=0.02)
        self.assertTrue(bool(client_sampling.draw_stays(jax.random.key(0), jnp.arange(1000), 0.0).all()))

    def test_is_drawn_by_id_not_by_place(self):
        ids = jnp.asarray([4, 90, 17, 5])
        key = jax.random.key(1)
        order = np.array([2, 0, 3, 1])
        np.testing.assert_array_equal(
            client_sampling.draw_stays(key, ids, 0.5)[order], client_sampling.draw_stays(key, ids[order], 0.5)
        )
        everyone = client_sampling.draw_stays(key, jnp.arange(100), 0.5)
        np.testing.assert_array_equal(client_sampling.draw_stays(key, ids, 0.5), everyone[ids])
        self.assertFalse(np.array_equal(everyone, client_sampling.draw_stays(jax.random.key(2), jnp.arange(100), 0.5)))


class MembersTest(chex.TestCase):
    @given(st.integers(0, 1000), st.sampled_from([1, 5, 12]), st.sampled_from([0, 3]))
    @settings(max_examples=15, deadline=None)
    def test_the_cohort_within_a_group(self, seed, size, more):
        rng = np.random.default_rng(seed)
        population = 12
        group = np.sort(rng.permutation(population)[: rng.integers(1, population)])
        ids = rng.permutation(population)[:size].astype(np.int32)
        places = min(size, len(group)) + more
        found = np.asarray(client_sampling.select_members(jnp.asarray(ids), jnp.isin(ids, group), population, places)).tolist()
        expected = [int(i) for i in ids if i in group]
        self.assertEqual(found, expected + [population] * (places - len(expected)))


def test_a_subclass_that_draws_otherwise_claims_no_accounting():
    class Largest(client_sampling.FixedSampler):
        def draw(self, key, round_num, clients=None, state=()):
            return jnp.argsort(-clients.examples)[: self.size]

    class Logged(client_sampling.FixedSampler):
        pass

    class Declared(client_sampling.FixedSampler):
        accounting = "fixed"

        def draw(self, key, round_num, clients=None, state=()):
            return client_sampling.sample_fixed(jax.random.fold_in(key, round_num + 1), self.population, self.size)

    assert (Largest.accounting, Logged.accounting, Declared.accounting) == ("", "fixed", "fixed")
    assert [client_sampling.is_known_ahead(made(10, 100)) for made in (Largest, Logged, EverySecond)] == [False, True, False]
    assert Largest.log_moments is ClientSampler.log_moments
    assert Logged.log_moments is client_sampling.FixedSampler.log_moments
    assert client_sampling.CyclicSampler.log_moments is client_sampling.FixedSampler.log_moments
    sizes = np.array([1] * 90 + [100] * 10)
    assert SizeBound(sizes, Largest(10, 100)).largest(10) == 1000  # it draws all of them
