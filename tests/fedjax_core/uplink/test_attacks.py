"""Attacks: who makes them, and what they send, against formulas written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_core.data import poisoning
from fedjax_core.uplink import ClientContext, UplinkValue, attacks

IDS = [4, 1, 6]


def made(spec):
    (found,) = attacks.find_attacks(spec, poisoning.POISONS)
    return attacks.make_attack(found.name, found(), IDS)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sign_flip(scale=2.0)", lambda x: -2 * x),
        ("scaled(factor=-3.0)", lambda x: -3 * x),
        ("not_finite", lambda x: np.full_like(x, np.nan)),
        ("not_finite(value='inf')", lambda x: np.full_like(x, np.inf)),
    ],
)
def test_an_attacker_sends_something_else_and_the_honest_what_they_have(spec, expected):
    delta, values, counts = np.float32([1, -2]), np.float32([[3, 4], [5, 6]]), np.float32([7, 0])
    value = UplinkValue(({"w": delta},), ((values, counts),))
    send = jax.jit(lambda i: made(spec).send(value, ClientContext(i, 3, jax.random.key(0), ()), ()).value)
    for i in range(8):
        found = send(i)
        change = expected if i in IDS else lambda x: x
        np.testing.assert_array_equal(found.deltas[0]["w"], change(delta))
        np.testing.assert_array_equal(found.class_means[0][0], change(values))
        np.testing.assert_array_equal(found.class_means[0][1], counts)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("jnp.sum(x)", r"an array \[\]; expected a real array \[2\]"),
        ("0.0", r"float; expected a real array \[2\]"),
        ("1j * x", r"an array \[2\] of complex64; expected a real array \[2\]"),
    ],
)
def test_an_own_attack_with_another_shape_is_refused_in_a_line(tmp_path, body, says):
    """It was stretched to the delta's shape."""
    file = tmp_path / "own.py"
    file.write_text(f"import jax.numpy as jnp\n\ndef mine():\n    return lambda x, key: {body}\n")
    value = UplinkValue(({"w": jnp.ones(2)},), ())
    with pytest.raises(ValueError, match=f"attack .*mine' returned {says}"):
        made(f"{file}:mine").send(value, ClientContext(jnp.int32(4), 3, jax.random.key(0), ()), ())


def test_noise_has_its_deviation_and_a_draw_for_every_array():
    value = UplinkValue((jnp.ones(4000), jnp.ones(4000)), ())
    found = made("noise(deviation=0.5)").send(value, ClientContext(jnp.int32(4), 3, jax.random.key(0), ()), ()).value.deltas
    assert abs(np.std(found[0]) / 0.5 - 1) < 0.04
    assert abs(np.mean(found[0])) < 0.03
    assert abs(np.corrcoef(found[0], found[1])[0, 1]) < 0.05


def crafted(spec, ids, mask):
    rows = np.random.default_rng(0).normal(size=(len(ids), 3)).astype(np.float32)
    rows = np.where(mask[:, None], rows, 0)
    craft = jax.jit(made(spec).attack_stack)
    return rows, np.asarray(craft(rows, mask, np.array(ids, np.int32), jax.random.key(0)))


def test_those_who_know_what_the_others_send():
    ids, mask = [7, 4, 0, 1, 6, 3, 8, 5, 2], np.array([1, 1, 1, 1, 0, 1, 1, 1, 1], bool)
    evil = np.isin(ids, IDS) & mask
    honest = mask & ~evil
    n, m = 8, 2
    z = stats.norm.ppf((n - m - (n // 2 + 1 - m)) / (n - m))
    for spec, expected in {
        "alie": lambda x: x.mean(0) - z * x.std(0),
        "alie(z=1.5)": lambda x: x.mean(0) - 1.5 * x.std(0),
        "inner_product(epsilon=0.3)": lambda x: -0.3 * x.mean(0),
        "mimic": lambda x: x[list(np.array(ids)[honest]).index(0)],
    }.items():
        rows, found = crafted(spec, ids, mask)
        np.testing.assert_array_equal(found[~evil], rows[~evil])
        np.testing.assert_allclose(found[evil], np.tile(expected(rows[honest].astype(np.float64)), (m, 1)), atol=1e-5, err_msg=spec)
    rows, found = crafted("alie", [0, 2, 3], np.ones(3, bool))
    np.testing.assert_array_equal(found, rows)  # no attacker has come
    rows, found = crafted("alie", [4, 0], np.ones(2, bool))
    np.testing.assert_array_equal(found, rows[[1, 1]], "of one honest client there is no deviation")
    rows, found = crafted("mimic", [4, 1], np.ones(2, bool))
    np.testing.assert_array_equal(found, np.zeros((2, 3)), "nobody is honest")


def test_the_same_clients_attack_at_one_seed_and_others_at_another():
    first, again, other = (attacks.draw_attackers(100, 0.3, seed).tolist() for seed in (0, 0, 1))
    assert first == again != other
    assert len(set(first)) == 30
    assert [len(attacks.draw_attackers(5, fraction, 0)) for fraction in (0.01, 0.35, 0.65)] == [1, 2, 3]


@pytest.mark.parametrize("spec", ["sign_flipp", "sign_flip(scale=-1.0)", "not_finite(value='big')", "alie | nothing"])
def test_a_wrong_attack_is_refused_in_a_line(spec):
    with pytest.raises(ValueError, match="attack") as refused:
        attacks.find_attacks(spec, poisoning.POISONS)
    assert "\n" not in str(refused.value)
