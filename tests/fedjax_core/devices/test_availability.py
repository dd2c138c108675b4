"""Who can be reached in a round: shares, lengths of spells, traces, and that a client's spells are its own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.devices import make_availability
from fedjax_core.devices.availability import find_availability


@functools.cache
def table(spec: str, clients: int, rounds: int, seed: int = 0) -> np.ndarray:
    """[rounds, clients] who can be reached."""
    availability = make_availability(find_availability(spec), clients, seed)
    assert availability is not None
    ids = jnp.arange(clients, dtype=jnp.int32)
    in_round = jax.jit(lambda r: availability.is_available(availability.arrays, r, ids))
    return np.array([in_round(np.int32(r)) for r in range(rounds)])


def test_always_needs_nothing():
    assert make_availability(find_availability("always"), 4, 0) is None


def test_spells_of_a_markov_chain_are_as_long_as_said():
    reached = table("markov(on=8, off=4)", 400, 200)
    assert reached.mean() == pytest.approx(8 / 12, abs=0.02)
    assert reached[0].mean() == pytest.approx(8 / 12, abs=0.08)  # from the first round on
    before, after = reached[:-1], reached[1:]
    assert (before & ~after).sum() / before.sum() == pytest.approx(1 / 8, abs=0.01)
    assert (~before & after).sum() / (~before).sum() == pytest.approx(1 / 4, abs=0.01)
    next_but_one = reached[2:][before[:-1]].mean()  # a chain: two rounds on, the square of its matrix
    assert next_but_one == pytest.approx(2 / 3 + (1 / 3) * (1 - 3 / 8) ** 2, abs=0.02)


def test_clients_of_a_chain_are_independent():
    reached = table("markov(on=8, off=4)", 400, 200)
    together = np.mean(reached[:, ::2] & reached[:, 1::2])
    assert together == pytest.approx(reached.mean() ** 2, abs=0.02)


def test_a_day():
    reached = table("daily(mean=0.5, amplitude=0.4, period=8, spread=0.0)", 4000, 8)
    np.testing.assert_allclose(reached.mean(1), 0.5 + 0.4 * np.sin(2 * np.pi * np.arange(8) / 8), atol=0.04)
    spread = table("daily(mean=0.5, amplitude=0.4, period=8)", 4000, 8)
    np.testing.assert_allclose(spread.mean(1), 0.5, atol=0.04)
    assert spread[0].std() > 0


@pytest.mark.parametrize("spec", ["daily()", "markov(on=8, off=4)"])
def test_a_client_is_reached_in_the_same_rounds_among_few_and_among_many(spec):
    clients = 400 if spec.startswith("markov") else 40
    rounds = 200 if spec.startswith("markov") else 10
    np.testing.assert_array_equal(table(spec, 7, 10), table(spec, clients, rounds)[:10, :7])
    assert (table(spec, 7, 10) != table(spec, 7, 10, seed=1)).any()


def test_a_trace_begins_again(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("1,0,0\n1,1,0\n")
    reached = table(f"trace(path={str(file)!r})", 2, 5)
    assert reached.T.tolist() == [[True, False, False, True, False], [True, True, False, True, True]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,0\n", "has 1 lines, one for each client; 2 clients train"),
        ("1,0\n1\n", "line 2: it has 1 cells, line 1 has 2"),
        ("1,0\n1,x\n", "line 2, column 2: 'x' must be 0 or 1"),
    ],
)
def test_what_is_wrong_with_a_trace(tmp_path, text, message):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        make_availability(find_availability(f"trace(path={str(file)!r})"), 2, 0)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dayly()", r"unknown availability 'dayly'; allowed: always, daily, markov, trace\. Did you mean 'daily'"),
        ("daily(mean=1.5)", r"mean=1.5 must be in \[0, 1\]"),
        ("markov(on=0.5)", "on=0.5 must be at least 1"),
        ("markov(on=1, off=2)", "on=1, off=2: 1 / on [+] 1 / off must be at most 1"),
        ("trace(path='/no/such.csv')", "/no/such.csv: there is no such file"),
        (f"{__name__}:never", "must return an Availability or None, it returned 0"),
    ],
)
def test_what_is_wrong_with_an_availability(spec, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_availability(find_availability(spec), 2, 0)


def never(*, draws):
    del draws
    return 0
