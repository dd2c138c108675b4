"""Whoever drives several runs: what each of them hears, made up here, without any training."""

from types import SimpleNamespace
from typing import Any

import pytest

from fedjax_core.run import driving
from fedjax_core.run.asked import Asked


def going(heard: dict[str, Any], name: str, n: int, at_the_end: Exception | None = None) -> Any:
    """A run that asks for n rounds once, and returns what it was told of them."""
    try:
        heard[name] = yield Asked(None, name, n, False, None)  # pyright: ignore[reportArgumentType]
    except BaseException as error:
        heard[name] = error
        if at_the_end is not None:
            raise at_the_end from None
        raise
    return name


def test_a_second_signal_ends_each_run_as_it_would_alone():
    """By what it is, not as a generator is closed; also those after one that fails as it ends."""
    heard: dict[str, Any] = {}

    def rounds(wanted):
        raise KeyboardInterrupt

    runs = [going(heard, "a", 1), going(heard, "b", 1, OSError("no space left")), going(heard, "c", 1)]
    with pytest.raises(KeyboardInterrupt):
        driving.run_in_lanes(runs, SimpleNamespace(rounds=rounds))  # pyright: ignore[reportArgumentType]
    assert {name: type(error) for name, error in heard.items()} == dict.fromkeys("abc", KeyboardInterrupt)


def test_seconds_of_a_round_are_those_of_the_longest_run(monkeypatch):
    heard: dict[str, Any] = {}
    found = SimpleNamespace(rounds=lambda wanted: [(one.state, [{}] * one.n) for one in wanted])
    monkeypatch.setattr(driving, "clocked", lambda work: (work(), 20.0, 10.0))
    assert driving.run_in_lanes([going(heard, "a", 1), going(heard, "b", 10)], found) == ["a", "b"]  # pyright: ignore[reportArgumentType]
    assert [(heard[name].seconds, heard[name].compiling) for name in "ab"] == [(2.0, 1.0), (20.0, 10.0)]
