"""Compression: packed arrays are as small as they should be, and give back what they should."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.training.metrics import nbytes
from fedjax_core.uplink import ClientContext, UplinkValue, compression, unwrap
from fedjax_core.uplink.compression import pack_bits, unpack_bits
from tests import toy

X = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)


def sent(spec, x=X, key=0, client_state=None):
    """(packed arrays, what the server has of them, what the client keeps) of one delta."""
    transform, value = compression.parse_compressor(spec), UplinkValue(({"w": jnp.asarray(x)},), ())
    client_state = transform.init_client_state(value) if client_state is None else client_state
    passed = jax.jit(
        lambda key, client_state: tuple(transform.send(value, ClientContext(jnp.int32(0), jnp.int32(1), key, ()), client_state))
    )
    found, client_state, _, wire = passed(jax.random.key(key), client_state)
    return wire[0], np.asarray(found.deltas[0]["w"]), client_state


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_packed_codes_come_back(bits):
    codes = np.random.default_rng(bits).integers(0, 2**bits, 21)
    words = pack_bits(jnp.asarray(codes), bits)
    assert words.dtype == jnp.uint8
    assert len(words) == -(-21 * bits // 8)
    np.testing.assert_array_equal(unpack_bits(words, bits, 21), codes)


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ("float16", 1200),
        ("bfloat16", 1200),
        ("quantise(bits=8, bucket=100)", 600 + 6 * 4),
        ("quantise(bits=3, bucket=100)", 225 + 6 * 4),
        ("top_k(fraction=0.1)", 60 * (4 + 2)),
        ("random_k(fraction=0.1)", 60 * 4 + 8),
        ("power_sgd(rank=2)", 2 * (20 + 30) * 4),
        ("sign", 75 + 4),
        ("sign(majority=True)", 75),
    ],
)
def test_the_bytes_are_those_of_the_packed_arrays(spec, size):
    wire, found, _ = sent(spec)
    assert nbytes(wire) == size
    assert found.shape == X.shape
    assert np.corrcoef(found.ravel(), X.ravel())[0, 1] > (0.2 if "_" in spec else 0.7), "it says something of the delta"


def test_quantisation_is_without_bias_and_within_a_step():
    one = compression.quantise(bits=3, bucket=600)
    of_key = lambda key: one.unpack(one.pack(jnp.asarray(X), key, ())[0], X.shape)
    found = np.asarray(jax.jit(jax.vmap(of_key))(jax.random.split(jax.random.key(0), 200)))
    step = np.abs(X).max() / 3
    assert np.abs(found - X).max() <= step * 1.0001
    assert np.abs(found.mean(0) - X).max() < 5 * step / 2 / 200**0.5
    assert len(np.unique(np.round(found / step).astype(int))) == 7
    assert not np.any(sent("quantise", 0 * X)[1])


def test_what_was_not_sent_is_kept_and_sent_later():
    for spec in ("top_k(fraction=0.05)", "random_k(fraction=0.05)", "power_sgd(rank=1)", "sign"):
        _, first, client_state = sent(spec)
        np.testing.assert_allclose(first + np.reshape(client_state[0][0], X.shape), X, atol=1e-5)
        _, second, again = sent(spec, key=1, client_state=client_state)
        left = np.reshape(again[0][0], X.shape)
        np.testing.assert_allclose(first + second + left, 2 * X, atol=1e-4)
        if "_k" in spec:
            np.testing.assert_array_equal(first[first != 0], X[first != 0])
    _, first, _ = sent("top_k(fraction=0.05)")
    assert np.abs(first[first != 0]).min() > np.abs(X[first == 0]).max()
    _, unbiased, client_state = sent("random_k(fraction=0.25, feedback=False)")
    np.testing.assert_allclose(unbiased[unbiased != 0], 4 * X[unbiased != 0], rtol=1e-6)
    assert client_state[0] == sent("sign(majority=True)")[2][0] == ()
    np.testing.assert_allclose(np.abs(sent("sign")[1]), np.abs(X).mean(), rtol=1e-5)


def test_power_sgd_is_exact_at_the_rank_of_a_matrix():
    low = X[:, :2] @ X[:2]
    np.testing.assert_allclose(sent("power_sgd(rank=2)", low)[1], low, atol=1e-4)
    np.testing.assert_array_equal(sent("power_sgd(rank=2)", X[:4, :4])[1], X[:4, :4], "of which the factors are not smaller")
    _, _, client_state = sent("power_sgd(rank=2)", 0 * X)  # whose factor is zero, and would be for ever
    np.testing.assert_allclose(sent("power_sgd(rank=2)", low, client_state=client_state)[1], low, atol=1e-4)


def test_the_last_of_many_entries_is_found():
    """Whose index is beyond 16 bits; one entry is sent at least."""
    x = np.zeros(70_000, np.float32)
    x[-1] = 5
    wire, found, _ = sent("top_k(fraction=1e-6)", x)
    assert nbytes(wire) == 4 + 4
    np.testing.assert_array_equal(found, x)


def test_every_array_is_rounded_by_draws_of_its_own():
    transform, value = compression.parse_compressor("quantise(bits=3)"), UplinkValue((jnp.asarray(X), jnp.asarray(X)), ())
    context = ClientContext(jnp.int32(0), jnp.int32(1), jax.random.key(0), ())
    first, second = transform.send(value, context, transform.init_client_state(value)).value.deltas
    assert 0.1 < np.mean(first != second) < 0.6


def test_numbers_of_examples_stay_as_they_are():
    """Float16 has no 100,001; counts of class means are among the bytes."""
    sent = {"w": jnp.ones(2) / 3, "count": jnp.int32(100_001)}
    received, wire = compression.compress_broadcast("float16").broadcast(sent)
    assert (received["count"], received["w"].dtype, nbytes(wire)) == (100_001, jnp.float32, 2 * 2 + 4)
    np.testing.assert_array_equal(received["w"], np.float16([1 / 3, 1 / 3]))
    transform = compression.parse_compressor("float16")
    value = UplinkValue((jnp.asarray(X),), ((jnp.asarray(2 * X), jnp.full(20, 100_001.0)),))
    context = ClientContext(jnp.int32(0), jnp.int32(1), jax.random.key(0), ())
    output = transform.send(value, context, transform.init_client_state(value))
    assert nbytes(output.wire) == 2 * X.size + 2 * X.size + 4 * 20
    np.testing.assert_array_equal(output.value.class_means[0][0], (2 * X).astype(np.float16))
    np.testing.assert_array_equal(output.value.class_means[0][1], value.class_means[0][1])


def test_a_majority_votes_on_the_step():
    """Three clients, of whom one is absent: the sign of the sum of signs, times the step."""
    reduce = compression.parse_compressor("sign(majority=True, step=0.5)").reduce
    rows, weights = jnp.array([[3.0, -1, 2], [0.1, -9, -1], [0, 0, 0]]), jnp.array([5.0, 1, 0])
    votes = jnp.sum(jax.vmap(lambda row, w: reduce.map(row, w, None))(rows, weights), 0)
    np.testing.assert_array_equal(reduce.finalize(votes, (), None)[0], [0.5, -0.5, 0])


def test_a_majority_leaves_alone_what_nobody_trains():
    """Nine clients whose deltas are zero: each votes by a draw of its own, so that the steps go both ways."""
    transform = compression.parse_compressor("sign(majority=True, step=0.5)")
    value = UplinkValue((jnp.zeros(400),), ())
    send = lambda key: transform.send(
        value, ClientContext(jnp.int32(0), jnp.int32(1), key, ()), transform.init_client_state(value)
    ).value.deltas[0]
    votes = jax.jit(jax.vmap(send))(jax.random.split(jax.random.key(0), 9))
    steps = np.asarray(transform.reduce.finalize(jnp.sum(votes, 0), (), None)[0])
    assert abs(np.mean(steps)) < 0.1, "four standard errors of 400 steps"
    assert abs(np.corrcoef(votes[0], votes[1])[0, 1]) < 0.2, "clients vote independently"


def test_products_are_in_full_precision():
    """Else TPUs and GPUs round their factors."""
    one = compression.power_sgd(rank=2)
    client_state = one.init_state(X.shape)
    with jax.default_matmul_precision(None):
        text = str(jax.make_jaxpr(lambda x: one.unpack(one.pack(x, None, client_state)[0], X.shape))(X))
    assert text.count("dot_general") == text.count("Precision.HIGHEST, Precision.HIGHEST") == 3


def test_a_round_sends_packed_arrays_up_and_down():
    plain, _, state = toy.reference("scaffold")
    everything = toy.simulate(
        "scaffold", transforms=[compression.parse_compressor("top_k(fraction=1.0)"), compression.compress_broadcast("float16")]
    )
    found, _ = everything.run_rounds(everything.init(0), 2)
    chex.assert_trees_all_close(jax.device_get(unwrap(found.server)), state.server, atol=5e-3)
    numbers = plain.spec.shapes.up / 4
    assert everything.spec.shapes.down == plain.spec.shapes.down / 2
    assert everything.spec.shapes.up == numbers * (4 + 2)


@pytest.mark.parametrize("name", ["scaffold", "fedcm", "feddc", "mime_lite"])
def test_a_majority_votes_on_one_delta(name):
    """FedCM's direction is the delta over the sum of the rates; a vote would make both equally long."""
    with pytest.raises(ValueError, match=f"'sign' replaces the mean of one delta by steps of its own; {name} sends 2 deltas"):
        toy.simulate(name, transforms=[compression.parse_compressor("sign(majority=True)")])


@pytest.mark.parametrize("name", ["top_k", "sign"])
def test_class_means_are_not_sent_in_part(name):
    with pytest.raises(ValueError, match=f"'{name}' sends a part of a delta now and the rest later; fedproto sends class means"):
        toy.simulate("fedproto", transforms=[compression.parse_compressor(name)])
