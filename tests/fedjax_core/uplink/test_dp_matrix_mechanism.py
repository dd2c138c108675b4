"""Noise that is correlated over rounds: a stream is C^-1 times independent rows, and resumes; clients come in turn."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core import experiment
from fedjax_core.engine import client_sampling
from fedjax_core.privacy import Participation, cyclic_participation, matrix_factorization
from fedjax_core.uplink import dp_matrix_mechanism
from tests import toy
from tests.fedjax_core.privacy.test_matrix_factorization import dense, most
from tests.fedjax_core.privacy.test_runs import private

ROUNDS, SIZE = 11, 3
TURNS = Participation(ROUNDS, 4, 3)
MADE = {
    "tree": matrix_factorization.tree(TURNS),
    "banded": matrix_factorization.banded(TURNS, bands=3),
    "one band": matrix_factorization.banded(TURNS, bands=1),
    "blt": matrix_factorization.blt(TURNS, buffers=2),
}


def rows_of(strategy, keys, size):
    """[n, size] of the stream."""
    rows = dp_matrix_mechanism.make_stream(strategy)
    begin = dp_matrix_mechanism.Noise(jnp.int32(0), jnp.zeros((rows.num_vectors, size)))
    return jax.jit(lambda keys: jax.lax.scan(lambda noise, key: rows.step(noise, key)[::-1], begin, keys)[1])(keys)


def draws(strategy, keys):
    """z, drawn as the stream does: a row for each round, of a tree for each complete node."""
    if strategy.name != "tree":
        return np.stack([jax.random.normal(key, (SIZE,)) for key in keys])
    ends = [(level, at + 2**level) for level in range(ROUNDS.bit_length()) for at in range(0, ROUNDS - 2**level + 1, 2**level)]
    return np.stack([jax.random.normal(jax.random.fold_in(keys[end - 1], level), (SIZE,)) for level, end in ends])


@pytest.mark.parametrize("name", MADE)
def test_the_stream_is_the_inverse_times_independent_rows(name):
    """Of a tree: differences of least-squares estimates of each sum, from the nodes below its largest ones, as Honaker has them."""
    strategy, keys = MADE[name], jax.random.split(jax.random.key(0), ROUNDS)
    z, matrix = draws(strategy, keys), dense(strategy)
    if name != "tree":
        expected = np.linalg.inv(matrix) @ z
    else:
        sums = np.zeros((ROUNDS + 1, SIZE))
        for t in range(1, ROUNDS + 1):
            mine = ~matrix[:, t:].any(1)
            estimate = np.linalg.lstsq(matrix[mine][:, :t], z[mine], rcond=None)[0]
            sums[t] = estimate.sum(0)
        expected = np.diff(sums, axis=0)
    np.testing.assert_allclose(rows_of(strategy, keys, SIZE), expected, atol=2e-5)


@pytest.mark.parametrize("name", MADE)
def test_noise_on_sums_has_the_stated_deviation(name):
    """20000 entries: within 2 % of the stated one, so one that is 5 % off fails."""
    strategy = MADE[name]
    rows = np.asarray(rows_of(strategy, jax.random.split(jax.random.key(1), ROUNDS), 20000))
    np.testing.assert_allclose(np.std(rows, axis=1), strategy.round_deviations(), rtol=0.02)
    np.testing.assert_allclose(np.std(np.cumsum(rows, 0), axis=1), strategy.sum_deviations(), rtol=0.02)


@pytest.mark.parametrize("name", ["banded", "blt"])
def test_noise_covers_what_a_client_can_move_in_the_deployment_s_mean(name):
    """Means of 50 simulated clients have the noise that those of 200 would have: multiplier, clip and the largest move of C x by
    any pattern of participation, over 200. Within 2 %, so one that is 5 % off fails."""
    strategy, noise, clip, size = MADE[name], 1.3, 0.5, 20000
    transform = dp_matrix_mechanism.make_mechanism(clip, noise, 50, 200, strategy)
    assert transform.reduce is not None
    rows = dp_matrix_mechanism.make_stream(strategy)
    memory, means, told = dp_matrix_mechanism.Noise(jnp.int32(0), jnp.zeros((rows.num_vectors, size))), [], []
    for key in jax.random.split(jax.random.key(2), ROUNDS):
        nothing = jnp.zeros(size), jnp.float32(0), jnp.float32(1)
        mean, memory, said = transform.reduce.finalize(nothing, memory, key)
        means.append(np.asarray(mean))
        told.append(said["privacy/deviation"][0])
    expected = noise * clip * most(dense(strategy), TURNS, ROUNDS) / 200 * strategy.sum_deviations()
    np.testing.assert_allclose(np.std(np.cumsum(means, 0), axis=1), expected, rtol=0.02)
    np.testing.assert_allclose(np.std(means, axis=1), told, rtol=0.02)
    clipped, is_longer, _ = transform.reduce.map(jnp.full(4, 7.0), jnp.float32(1), None)
    assert is_longer
    assert np.linalg.norm(clipped) == pytest.approx(clip, rel=1e-4)


def test_rounds_have_it_and_a_restored_state_goes_on_with_it():
    """With a clip of almost nothing the server's model moves by the noise alone: after r rounds by their sum, whose deviation the
    record tells; a checkpoint after two rounds goes on bit for bit."""
    turns = cyclic_participation(6, 4, toy.CLIENTS)
    transform = dp_matrix_mechanism.make_mechanism(1e-6, 1e6, 4, 4, matrix_factorization.blt(turns, buffers=2))
    sim = toy.simulate("fedavg_uniform", transforms=[transform], cohort=4, sampling="cyclic", statistics=False, leave_out=True)
    state = sim.init(0)
    begin = flat(state)
    state, records = sim.run_rounds(state, 2)
    saved = sim.to_host(state)
    moved = [np.std(flat(state) - begin)]
    state, more = sim.run_rounds(state, 4)
    moved.append(np.std(flat(state) - begin))
    again, same = sim.run_rounds(sim.from_host(saved), 4)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(again), jax.device_get(state))
    assert [record["server/privacy/deviation"] for record in same] == [record["server/privacy/deviation"] for record in more]
    for found, record in zip(moved, (records[-1], more[-1]), strict=True):
        assert abs(found / record["server/privacy/deviation_of_sums"] - 1) < 0.35
    assert sim.compiled.programs.run_resident_rounds._cache_size() == 1, "one program over all rounds"


def flat(state):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(jax.device_get(state.server.inner.net))])


def test_cohorts_come_in_turn():
    sim = toy.simulate("fedavg_uniform", cohort=3, sampling="cyclic")
    drawn = [
        np.asarray(
            sim.compiled.programs.draw_cohorts(sim.compiled.device_arrays, jax.random.key_data(jax.random.key(5)), np.int32(r))[0][
                0
            ].ids
        )
        for r in range(9)
    ]
    in_order = list(itertools.chain(*(sorted(ids[ids < toy.CLIENTS].tolist()) for ids in drawn)))
    assert len(in_order) == 27
    rounds = [[r for r in range(9) if client in drawn[r]] for client in range(toy.CLIENTS)]
    assert max(map(len, rounds)) == cyclic_participation(9, 3, toy.CLIENTS).times
    assert min(b - a for one in rounds for a, b in itertools.pairwise(one)) == toy.CLIENTS // 3
    with pytest.raises(ValueError, match=r"cohorts of 999 of 10000000 clients begin anew after .* take a cohort that divides"):
        client_sampling.make_sampler("cyclic", 999, 10**7)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, r"'blt' is for clients that take turns, and cohort.sampling='poisson' draws them: set it to 'cyclic'"),
        ({"sampling": "cyclic", "mechanism": "blt(buffers=9)"}, r"buffers=9 must be in \[1, 6\]"),
        ({"sampling": "cyclic", "mechanism": "banded(bands=6)"}, r"bands=6 must be at most the 2 rounds"),
        ({"mechanism": "gaussian", "min_separation": 2}, r"min_separation=2 is for a central mechanism with cohort.sampling='cy"),
        ({"sampling": "cyclic", "min_separation": 6}, r"min_separation=6: a client returns after 5 rounds"),
    ],
)  # fmt: skip
def test_what_cohorts_do_not_hold_is_refused_before_a_run(given, says):
    config = private(**{"mechanism": "blt"} | {key: value for key, value in given.items() if key != "sampling"})
    config.cohort.sampling = given.get("sampling", "poisson")
    with pytest.raises(ValueError, match=says) as caught:
        experiment.resolve(config).privacy.make_ledger(4, 20, config.cohort.sampling, calibrate=False)
    assert "\n" not in str(caught.value)
