"""Privacy of clients: one moves the sum by no more than the clip, the noise has its deviation, what has no bound is refused."""

import types
from typing import Any, cast

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies
from hypothesis.extra import numpy as arrays

from fedjax_core import registry
from fedjax_core.algorithm import Algorithm, ClientData, ClientOutput, Net
from fedjax_core.experiment.uplink_options import build_mechanism
from fedjax_core.privacy import Release
from fedjax_core.training import aggregators
from fedjax_core.uplink import ClientContext, UplinkValue, attacks, dp_mechanisms, unwrap
from fedjax_core.uplink.apply_transforms import wrap_method
from fedjax_core.uplink.dp_mechanisms import adaptive, gaussian, local_gaussian, local_laplace
from tests import toy

anything = arrays.arrays(np.float32, 7, elements=strategies.floats(width=32, allow_nan=True, allow_infinity=True))
norms = strategies.floats(1e-3, 1e3)
clip_jit = jax.jit(dp_mechanisms.clip_vector, static_argnums=2)


@hypothesis.given(anything, norms)
@hypothesis.settings(max_examples=150, deadline=None)
def test_no_vector_moves_the_sum_by_more_than_the_clip(row, clip):
    for order in (1, 2):
        found, is_longer = clip_jit(row, jnp.float32(clip), order)
        assert np.linalg.norm(np.asarray(found, np.float64), order) <= clip
        if not np.isfinite(row).all():
            assert is_longer
            assert not np.any(found), "zeros, also where entries are finite"
        size = np.linalg.norm(row.astype(np.float64), order)
        if np.isfinite(size) and size < 0.9999 * clip:
            np.testing.assert_array_equal(found, row)


@pytest.mark.parametrize(("order", "length"), [(1, 3.0), (2, 5**0.5)])
@pytest.mark.parametrize(("size", "clip"), [(1.5e38, 2.0), (1.5e-25, 1e-26)])  # whose norm, or its square, is beyond float32
def test_what_is_clipped_keeps_its_direction(order, length, size, clip):
    row = np.array([2 * size, -size, 0.0], np.float32)
    found, long = dp_mechanisms.clip_vector(jnp.asarray(row), clip, order)
    assert long
    np.testing.assert_allclose(found, clip * np.array([2, -1, 0]) / length, rtol=1e-4)


def summed(transform, rows, memory=(), weights=None):
    """The contributions of rows [C, D], added up."""
    weights = jnp.ones(len(rows)) if weights is None else weights
    context = ClientContext(jnp.int32(0), jnp.int32(1), jax.random.key(0), memory)
    lifted = [transform.reduce.map(row, w, context) for row, w in zip(rows, weights, strict=True)]
    return jax.tree.map(lambda *x: sum(x), *lifted)


@pytest.mark.parametrize("name", ["gaussian", "adaptive"])
def test_noise_has_the_stated_deviation(name):
    """20000 draws: their deviation is within 1.5 % of the stated one by three standard errors, so one that is 5 % off fails."""
    clip, noise, cohort, real = 0.4, 1.3, 50, 200
    transform = getattr(dp_mechanisms, name)(clip if name == "gaussian" else 3.0, noise, cohort, real)
    memory = () if name == "gaussian" else jnp.float32(clip)  # of this round, not the first
    rows = jnp.zeros((3, 20000)).at[0, 0].set(7.0)
    made, _, said = transform.reduce.finalize(summed(transform, rows, memory), memory, jax.random.key(1))
    expected = noise * clip * (cohort / real) / cohort  # of the mean, a quarter of what the real cohort's sum has, over 50
    if name == "adaptive":
        expected *= (1 - (noise / (2 * 10)) ** 2) ** -0.5  # sigma_b is a twentieth of 200
    assert abs(np.std(made[1:]) / expected - 1) < 0.015
    assert abs(np.mean(made[1:])) < 4 * expected / 20000**0.5
    assert abs(made[0] - clip / cohort) < 4 * expected, "the clip of what was longer"
    deviation, one = said["privacy/deviation"]
    np.testing.assert_allclose(deviation / one, expected, rtol=1e-5)
    assert said["privacy/clipped"] == (1, 3)


@pytest.mark.parametrize("made", [local_gaussian, local_laplace])
def test_local_noise_has_the_stated_deviation_and_each_client_its_own(made):
    transform, row = made(0.4, 1.3, 50, 50), jnp.zeros(20000)
    send = lambda key: transform.send(
        UplinkValue((row,), ()), ClientContext(0, jnp.int32(1), jax.random.key(key), ()), ()
    ).value.deltas[0]
    expected = 1.3 * 0.4 * (2**0.5 if made is local_laplace else 1)
    assert abs(np.std(send(0)) / expected - 1) < 0.03  # Laplace's kurtosis makes the error of its deviation larger
    assert abs(np.corrcoef(send(0), send(1))[0, 1]) < 0.04
    value = UplinkValue((jnp.full(2, 7.0), jnp.full(3, -7.0)), ())
    sent = made(0.4, 1e-9, 50, 50).send(value, ClientContext(0, jnp.int32(1), jax.random.key(0), ()), ()).value.deltas
    order = 1 if made is local_laplace else 2  # the norm that its noise is for, of all deltas together
    assert np.linalg.norm(np.concatenate(sent), order) == pytest.approx(0.4, rel=1e-4)


def test_the_count_of_those_within_the_clip_has_the_stated_noise():
    """Andrew et al., Theorem 1, counts on it. Nobody comes, so the logarithm of the clip moves by noise alone, of its own."""
    noise, cohort, real, rate, deviation = 1.3, 50, 200, 0.2, 10.0
    transform = adaptive(0.4, noise, cohort, real, rate=rate, deviation=deviation)
    memory = transform.init_memory(None)
    absent = summed(transform, jnp.zeros((2, 3)), memory, jnp.zeros(2))
    finalize = jax.jit(jax.vmap(lambda key: transform.reduce.finalize(absent, memory, key)[:2]))
    means, clips = map(np.asarray, finalize(jax.random.split(jax.random.key(2), 20000)))
    steps = np.log(clips / 0.4)
    assert np.abs(np.corrcoef(means.T, steps)[3, :3]).max() < 0.03, "four standard errors"
    assert np.std(steps) == pytest.approx(rate * deviation * (cohort / real) / cohort, rel=0.015)
    assert abs(np.mean(steps)) < 4 * np.std(steps) / 20000**0.5


def test_the_clip_follows_the_quantile():
    """Norms spread evenly over (0, 10): the clip comes to the one below which three in ten lie."""
    transform = adaptive(0.1, 0.5, 100, 1e6, quantile=0.3, rate=0.5)
    rows = jnp.linspace(0.05, 9.95, 100)[:, None] * jnp.array([[0.6, 0.8]])

    def step(memory, key):
        lifted = jax.vmap(lambda row: transform.reduce.map(row, jnp.float32(1), ClientContext(0, 1, key, memory)))(rows)
        _, memory, _ = transform.reduce.finalize(jax.tree.map(lambda x: jnp.sum(x, 0), lifted), memory, key)
        return memory, memory

    _, clips = jax.lax.scan(step, transform.init_memory(None), jax.random.split(jax.random.key(0), 120))
    assert abs(np.mean(clips[-20:]) - 3) < 0.6


def test_the_clip_follows_its_quantile_among_those_that_are_expected_to_come_back():
    """Of 100 clients 40 drop out every round: who is absent is neither within the clip nor above it."""
    spec = "adaptive(quantile=0.9, rate=0.5)"
    mechanism = registry.resolve_spec("mechanism", spec, dp_mechanisms.MECHANISMS, given=dp_mechanisms.GIVEN)
    spent = types.SimpleNamespace(release=Release("gaussian", "poisson", 100, 1000), strategy=None, clip=0.1, noise=1e-3)
    (transform,) = build_mechanism(mechanism, cast(Any, spent), 100, dropout=0.4)
    rows = jnp.linspace(0.05, 9.95, 100)[:, None] * jnp.array([[0.6, 0.8]])

    def step(memory, key):
        mask = jnp.argsort(jax.random.uniform(key, 100)) < 60
        lifted = jax.vmap(lambda row, w: transform.reduce.map(row, w, ClientContext(0, 1, key, memory)))(rows, mask * 1.0)
        mean, after, _ = transform.reduce.finalize(jax.tree.map(lambda x: jnp.sum(x, 0), lifted), memory, key)
        return after, (memory, jnp.linalg.norm(mean))

    _, (clips, means) = jax.lax.scan(step, transform.init_memory(None), jax.random.split(jax.random.key(0), 120))
    assert abs(np.mean(clips[-20:]) - 9) < 0.6
    expected = np.minimum(np.linspace(0.05, 9.95, 100), 9).mean()
    assert abs(np.mean(means[-20:]) / expected - 1) < 0.1, "a mean over those that came"


def test_indicators_without_enough_noise_are_refused():
    with pytest.raises(ValueError, match=r"deviation=0\.4 must be above half of the noise multiplier 1"):
        adaptive(1.0, 1.0, 10, 10, deviation=0.4)
    adaptive(1.0, 1.0, 10, 10)  # a twentieth of ten is not enough, and so it is the multiplier


def test_noise_is_the_servers_in_a_poisson_cohort():
    """With a clip of almost nothing the mean delta is the noise alone: the same whatever clients send, another in each round; and
    SCAFFOLD, which asks how many came, is told the expected number."""
    sim = toy.simulate("scaffold", transforms=[gaussian(1e-6, 1e6, 5, 5)], leave_out=True, sampling="poisson", statistics=False)
    starts = [sim.init(4), sim.init(4)]  # of whose first cohort three come
    elsewhere = jax.tree.map(lambda x: x + 1, unwrap(starts[1].server).net.params)
    inner = unwrap(starts[1].server)
    starts[1] = starts[1]._replace(server=starts[1].server._replace(inner=inner._replace(net=inner.net._replace(params=elsewhere))))
    nets = [jax.device_get(unwrap(start.server).net) for start in starts]
    after, records, controls = [], [], []
    for start in starts:
        state, record = sim.run_rounds(start, 1)
        records += record
        after.append(jax.device_get(unwrap(state.server).net))
        controls.append(flat(unwrap(state.server).c))
    moved = [flat(new) - flat(old) for new, old in zip(after, nets, strict=True)]
    np.testing.assert_allclose(*moved, atol=1e-5)
    assert abs(np.std(moved[0]) * 5 - 1) < 0.35
    assert abs(np.std(controls[0]) * 5 / (5 / 8) - 1) < 0.25
    end, more = sim.run_rounds(state, 3)
    assert len({r["cohort"] for r in records + more}) > 1, "a Poisson cohort's size varies"
    assert np.abs(flat(unwrap(end.server).net) - flat(after[1])).max() > 0.1


@pytest.mark.parametrize(("mechanism", "wrong"), [(local_gaussian, jnp.nan), (local_laplace, jnp.inf), (local_gaussian, 0.0)])
def test_who_has_nothing_finite_to_send_is_left_out_before_noise_hides_it(mechanism, wrong):
    """What is left of it is zeros, without a draw of the noise; what others send is noise of almost all. Where nobody is left
    out, it sends nothing finite."""

    def client_update(sent, client, data, key):
        return ClientOutput((), jnp.ones(3).at[1].add(wrong), {})

    inner = Algorithm(
        lambda key: jnp.zeros(3), client_update, lambda *_: (jnp.zeros(3), {}), aggregators.mean(aggregators.weight_uniformly), {}
    )

    def sent(leave_out):
        made = wrap_method(inner, [mechanism(1.0, 1e3, 8, 8)], jax.ShapeDtypeStruct((3,), jnp.float32), leave_out)
        server, data = made.server_init(jax.random.key(0)), ClientData((), jnp.arange(1), jnp.int32(1))
        client = made.client_init(jax.random.key(0), server, jnp.int32(0))
        return made.client_update(made.broadcast(server, jnp.int32(0)), client, data, jax.random.key(1)).uplink

    (part, counts), *_ = arriving = sent(leave_out=True)
    assert bool(counts) == bool(arriving.is_counted) == (wrong == 0)
    assert bool(np.abs(part).max() > 1) == (wrong == 0)
    assert arriving.metrics["privacy/clipped"][1] == (wrong == 0), "who is left out is not counted"
    part, _ = sent(leave_out=False).uplink
    assert bool(np.isfinite(part).all()) == (wrong == 0)


def flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(jax.device_get(tree))])


@pytest.mark.parametrize(
    ("name", "mechanism", "says"),
    [
        ("fedavg", gaussian, r"privacy 'gaussian' needs uniform client weights; fedavg weights .* set method.weights='uniform'"),
        ("fedavg", local_gaussian, r"local privacy 'local_gaussian' needs uniform client weights; fedavg weights"),
        ("fedproto", gaussian, "clips deltas; fedproto sends class means, whose counts"),
        ("fednh", gaussian, "clips deltas; fednh sends class means beside its delta"),
    ],
)
def test_what_has_no_bound_is_refused_by_name(name, mechanism, says):
    with pytest.raises(ValueError, match=says):
        toy.simulate(name, transforms=[mechanism(1.0, 1.0, 5, 5)], statistics=False)


def test_attackers_who_know_the_others_would_break_the_clip():
    """One client would move its own delta and theirs: by mimic of three, the clipped sum by four clips."""
    name = "mimic"
    attack = attacks.make_attack(name, attacks.CRAFTED[name](), [0])
    with pytest.raises(ValueError, match=rf"attack '{name}' depends on the uplinks of other clients, .* privacy 'gaussian'"):
        toy.simulate("fedavg_uniform", transforms=[attack, gaussian(1.0, 1.0, 5, 5)], statistics=False)
    toy.simulate("fedavg_uniform", transforms=[attack, local_gaussian(1.0, 1.0, 5, 5)], statistics=False)


def test_noise_and_running_statistics_that_travel_exclude_each_other():
    nets = {True: Net({"w": jnp.ones(2)}, {"norm": {"mean": jnp.zeros(2), "var": jnp.ones(2)}}), False: Net({"w": jnp.ones(2)})}
    for transform in (gaussian(1.0, 1.0, 5, 5), local_laplace(1.0, 1.0, 5, 5)):
        transform.check("fedavg", UplinkValue((nets[False],), ()))
        with pytest.raises(ValueError, match="set statistics='local', which sends none, or use a network without") as refused:
            transform.check("fedavg", UplinkValue((nets[True],), ()))
        assert "\n" not in str(refused.value)
