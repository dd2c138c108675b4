"""Distributed noise: the published bounds, draws, and sums modulo 2^b against loops over integers."""

import importlib.util
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import fedavg
from fedjax_core import experiment
from fedjax_core.privacy import IntegerSum, PrivacyConfig, Release, compute_epsilon
from fedjax_core.privacy.distributed_noise import BETA, ORDERS
from fedjax_core.uplink import secure_sum
from fedjax_core.uplink.transform import ClientContext

needs_library = pytest.mark.skipif(importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting is not installed")


def arithmetic(noise: str = "discrete_gaussian", bits: int = 16, multiplier: float = 1.0, clients: int = 10, parameters: int = 50):
    return IntegerSum(noise, bits, 0.5, multiplier, clients, parameters)


@pytest.mark.parametrize("bits", [8, 5])  # with few of them tau is large
def test_divergences_are_those_of_the_papers(bits: int):
    """ICML 2021, Theorems 1 and 2, and NeurIPS 2021, Corollary 3.6, written out in units of gamma."""
    for noise in ("skellam", "discrete_gaussian"):
        ours = arithmetic(noise, bits=bits)
        d, n, gamma, c = 64, 10, ours.step, 0.5
        rounded = min(
            math.sqrt(c**2 + gamma**2 * d / 4 + math.sqrt(2 * math.log(1 / BETA)) * gamma * (c + gamma * math.sqrt(d) / 2)),
            c + gamma * math.sqrt(d),
        )
        assert ours.l2 * gamma == pytest.approx(rounded)
        sigma = 1.0 * c / math.sqrt(n)  # of one client
        for alpha, value in zip(ORDERS, ours.renyi_divergences(), strict=True):
            if noise == "skellam":
                mu, d2 = n * sigma**2 / gamma**2, rounded / gamma
                d1 = min(d2**2, math.sqrt(d) * d2)
                excess = min(((2 * alpha - 1) * d2**2 + 6 * d1) / (4 * mu**2), 3 * d1 / (2 * mu))
                expected = alpha * d2**2 / (2 * mu) + excess
            else:
                tau = 10 * sum(math.exp(-2 * math.pi**2 * sigma**2 / gamma**2 * k / (k + 1)) for k in range(1, n))
                first = alpha / 2 * rounded**2 / (n * sigma**2) + tau * d
                expected = min(first, alpha / 2 * (rounded / (math.sqrt(n) * sigma) + tau * math.sqrt(d)) ** 2)
            assert value == pytest.approx(expected)


@needs_library
def test_with_many_bits_epsilon_is_that_of_gaussian_noise():
    gaussian = compute_epsilon(Release("gaussian", "all", 10, 10), 1.0, 20, 1e-5, "rdp")
    for noise in ("skellam", "discrete_gaussian"):
        epsilons = [
            compute_epsilon(Release("integers", "all", 10, 10, arithmetic(noise, bits=bits)), 1.0, 20, 1e-5, "rdp")
            for bits in (6, 10, 22)
        ]
        assert epsilons[0] > epsilons[1] > epsilons[2]
        assert epsilons[2] == pytest.approx(gaussian, rel=0.02)
        assert epsilons[2] >= gaussian - 1e-6


@needs_library
def test_the_clients_noise_is_what_is_calibrated():
    given = dict.fromkeys(("cohort", "population", "accountant", "min_separation", "participations"))
    config = PrivacyConfig("skellam", 0.5, None, 3.0, 1e-5, **given, rounds=20)
    ledger = config.make_ledger(10, 10, "fixed", parameters=50)
    assert ledger.arithmetic == arithmetic("skellam", multiplier=ledger.noise)
    assert 2.99 < ledger.epsilon(20) <= 3.0


@pytest.mark.parametrize(
    ("draw", "variance"), [("skellam", 3.0), ("skellam", 4e3), ("discrete_gaussian", 0.4), ("discrete_gaussian", 2e5)]
)
def test_draws_have_their_distribution(draw: str, variance: float):
    number = 40_000
    function = secure_sum.draw_skellam if draw == "skellam" else secure_sum.draw_discrete_gaussian
    draws = np.asarray(jax.jit(lambda key: function(key, number, variance))(jax.random.key(0)))
    assert draws.dtype == np.int32
    values = np.arange(-40, 41)
    if draw == "discrete_gaussian" and variance < 1:
        mass = np.exp(-(values**2) / (2 * variance))
        mass /= mass.sum()
        variance_of_draws = float(np.sum(mass * values**2))
        counts = np.array([(draws == k).mean() for k in (-1, 0, 1, 2)])
        np.testing.assert_allclose(counts, mass[39:43], atol=4 * 0.5 / np.sqrt(number))
    else:
        variance_of_draws = variance
    assert draws.mean() == pytest.approx(0, abs=4 * np.sqrt(variance / number))
    assert draws.var() == pytest.approx(variance_of_draws, rel=0.04)
    standard = (draws - draws.mean()) / draws.std()
    kurtosis = np.mean(standard**4) - 3
    assert kurtosis == pytest.approx(1 / variance if draw == "skellam" else 0, abs=0.6 if variance < 1 else 0.12)


def reduce_by_hand(ours: IntegerSum, vectors: np.ndarray, key: jax.Array, memory: int = 0):
    """Returns the mean and the messages of a round, by a loop over clients and Python integers."""
    reduce = secure_sum.make_mechanism(ours).reduce
    assert reduce is not None
    messages, parts = [], None
    lift = jax.jit(reduce.map)
    for i, vector in enumerate([*vectors, np.zeros_like(vectors[0])]):  # the last is absent
        context = ClientContext(jnp.int32(i), jnp.int32(5), jax.random.fold_in(key, i), jnp.uint32(memory))
        contribution = lift(jnp.asarray(vector), jnp.float32(i < len(vectors)), context)
        messages.append([int(number) % 2**ours.bits for number in np.asarray(contribution[0])])
        parts = contribution if parts is None else jax.tree.map(jnp.add, parts, contribution)
    mean, after, said = reduce.finalize(parts, jnp.uint32(memory), key)
    assert after == memory + 1, "the next round has another rotation"
    clipped, came = said["privacy/clipped"]
    assert (clipped, came) == (np.sum(np.linalg.norm(vectors, axis=1) > ours.clip), len(vectors))
    np.testing.assert_allclose(said["privacy/deviation"][0], ours.multiplier * ours.clip / ours.clients, rtol=1e-6)
    return np.asarray(mean), messages[:-1]


@pytest.mark.parametrize("noise", ["discrete_gaussian", "skellam"])
def test_a_round_is_the_sum_of_messages_modulo_two_to_the_bits(noise: str):
    ours = arithmetic(noise, bits=12, multiplier=0.3, clients=6)
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(6, 50)).astype(np.float32) * 0.05
    vectors[0] *= 100  # is clipped
    mean, messages = reduce_by_hand(ours, vectors, jax.random.key(0))
    total = [sum(column) % 2**12 for column in zip(*messages, strict=True)]
    signed = np.array([number - 2**12 if number >= 2**11 else number for number in total], np.float32)
    signs = np.asarray(jax.random.rademacher(jax.random.fold_in(jax.random.key(secure_sum._ROTATION_SEED), 0), (64,), jnp.float32))
    hadamard = np.array([[(-1) ** bin(i & j).count("1") for j in range(64)] for i in range(64)]) / 8
    np.testing.assert_allclose(mean, ((hadamard @ signed) * signs * ours.step / 6)[:50], atol=1e-5)
    clipped = vectors * np.minimum(1, 0.5 / np.linalg.norm(vectors, axis=1, keepdims=True))
    error = mean - clipped.mean(0)
    deviation = math.sqrt((0.3 * 0.5) ** 2 + 6 * ours.step**2 / 4) / 6
    assert np.sqrt(np.mean(error**2)) < 2 * deviation


def test_without_noise_to_speak_of_it_is_the_mean_of_clipped_vectors():
    ours = arithmetic(bits=24, multiplier=1e-4, clients=4)
    vectors = np.random.default_rng(2).normal(size=(4, 50)).astype(np.float32) * 0.02
    mean, messages = reduce_by_hand(ours, vectors, jax.random.key(1), memory=3)
    np.testing.assert_allclose(mean, vectors.mean(0), atol=1e-4)
    _, others = reduce_by_hand(ours, vectors, jax.random.key(1), memory=4)
    assert np.mean(np.not_equal(messages, others)) > 0.9, "each round has a rotation of its own"


@pytest.mark.parametrize("noise", ["discrete_gaussian", "skellam"])
def test_the_noise_of_all_clients_is_what_is_accounted_for(noise: str):
    """2000 numbers: their deviation is within 5 % of the stated one by three standard errors."""
    ours = arithmetic(noise, bits=12, multiplier=0.3, clients=6, parameters=2000)
    mean, _ = reduce_by_hand(ours, np.zeros((6, 2000), np.float32), jax.random.key(3))
    assert np.std(6 * mean) == pytest.approx(0.3 * 0.5, rel=0.05)


def test_rounding_is_unbiased_and_bounded():
    vector = jnp.asarray(np.random.default_rng(3).normal(size=64), jnp.float32)
    bound = math.sqrt(float(jnp.sum(vector**2)) + 16 + float(jnp.linalg.norm(vector)) + 4)
    draws = jax.jit(jax.vmap(lambda key: secure_sum.round_within(vector, bound, key)))(jax.random.split(jax.random.key(0), 4000))
    assert float(jnp.max(jnp.sum(draws**2, 1))) <= bound**2
    assert float(jnp.max(jnp.abs(draws - vector[None]))) < 1
    np.testing.assert_allclose(draws.mean(0), vector, atol=0.12)  # a bias of at most beta / (1 - beta) is allowed


def test_a_message_is_rounded_without_bias_and_within_the_sensitivity():
    """Rounds one coordinate of 2.5 steps to 2 or 3, and of 3.2 steps, the clip, never to 4, beyond Delta_2."""
    ours = arithmetic(bits=8, multiplier=1e-3, parameters=1)
    assert 3.1 < ours.clip / ours.step < ours.l2 < 3.9
    reduce, keys = secure_sum.make_mechanism(ours).reduce, jax.random.split(jax.random.key(0), 400)
    assert reduce is not None

    def steps_of(length):
        lift = lambda key: reduce.map(jnp.full(1, length), jnp.float32(1), ClientContext(0, 1, key, jnp.uint32(0)))[0]
        return np.abs(np.asarray(jax.jit(jax.vmap(lift))(keys)).astype(np.int32))

    assert np.mean(steps_of(2.5 * ours.step)) == pytest.approx(2.5, abs=0.1)
    assert (steps_of(1.0) == 3).all()


def test_the_bits_that_a_small_cohort_is_told_to_take_work():
    """And one more do not."""
    for bits, noise, clients, parameters, most in ((16, 1.0, 10, 55_210, 12), (16, 1.0, 100, 55_210, 14), (24, 1e6, 3, 1, 11)):
        arithmetic = IntegerSum("skellam", bits, 0.4, noise, clients, parameters)
        assert secure_sum.find_most_bits(arithmetic) == most
        secure_sum.make_mechanism(arithmetic._replace(bits=most))
        with pytest.raises(ValueError, match=rf"{clients} clients with bits={most + 1} .*'skellam\(bits={most}\)'"):
            secure_sum.make_mechanism(arithmetic._replace(bits=most + 1))


@needs_library
def test_a_run_sends_bits_and_tells_its_epsilon():
    config = fedavg.get_config("smoke")
    config.data.examples, config.normalise, config.cohort.size = 60, "unit", 5
    config.method.update(epochs=1, weights="uniform")
    config.privacy.update({"mechanism": "discrete_gaussian(bits=12)", "clip": 0.5, "noise": 1.0, "delta": 1e-5})
    simulator = experiment.build(config)
    parameters = sum(
        leaf.size for leaf in jax.tree.leaves(simulator.spec.bound_groups[0].task.model.init(jax.random.key(0)).params)
    )
    assert simulator.spec.shapes.up == 1.5 * 2 ** math.ceil(math.log2(parameters))
    for changes, reason in (
        ({"dropout": 0.1}, "clients that do not come back"),
        ({"cohort.sampling": "poisson"}, "the same number of clients"),
        ({"compression.uplink": "quantise"}, "a code of its own"),
        ({"privacy.cohort": 100}, "privacy.cohort=100 has no effect"),
        ({"privacy.accountant": "pld"}, "use 'rdp'"),
        ({"aggregation.not_finite": "leave_out"}, "needs all clients of a round"),
        ({"privacy.mechanism": "skellam(bits=24)"}, r"too large for draws in float32; take 'skellam\(bits=1[12]\)', more clients"),
        ({"privacy.mechanism": "skellam(bits=4)", "cohort.size": 20}, "too few for the sum of 20 clients"),
    ):
        other = config.copy_and_resolve_references()
        with other.unlocked():
            other.update_from_flattened_dict(changes)
        with pytest.raises(ValueError, match=reason):
            experiment.build(other)
