"""Spaces: what is drawn of them."""

import math

import pytest

from configs.tables.base import LogUniform, Uniform
from fedjax_core.commands.tables import search_spaces
from tests.fedjax_core.commands.tables.searches import rates


def test_draws_follow_from_the_seed_the_trial_and_the_field():
    """More trials, other fields and other rows leave them as they are; all rows have the same rates."""
    space = {"optimizer.lr": LogUniform(1e-3, 1.0), "method.mu": Uniform(2.0, 3.0), "method.k": ("a", "b", None)}
    few, many = (search_spaces.sample_settings(space, "random", 0, number, {}) for number in (5, 200))
    assert many[:5] == few
    assert [
        p["optimizer.lr"] for p in search_spaces.sample_settings({"optimizer.lr": space["optimizer.lr"]}, "random", 0, 5, {})
    ] == [p["optimizer.lr"] for p in few]
    assert search_spaces.sample_settings(space, "random", 1, 5, {}) != few
    assert rates(row="A") == rates(row="B")
    assert rates()[0] == 0.1, "the row's own"
    logs = [math.log10(p["optimizer.lr"]) for p in many]
    assert min(logs) >= -3
    assert max(logs) <= 0
    assert abs(sum(logs) / 200 + 1.5) < 0.2, "all magnitudes alike"
    assert abs(sum(p["method.mu"] for p in many) / 200 - 2.5) < 0.07
    assert {p["method.k"] for p in many} == {"a", "b", None}
    assert all(float(f"{p['method.mu']:.4g}") == p["method.mu"] for p in many), "what is shown is what was tried"


@pytest.mark.parametrize("sampler", ["random", "grid"])
def test_points_are_all_different_and_never_the_rows_own(sampler):
    space = {"a": (1, 2, 3), "b": (True, False)}
    found = search_spaces.sample_settings(space, sampler, 0, 99, {"a": 2.0, "b": True})
    assert len(found) == 5
    assert len({str(point) for point in found}) == 5
    assert {"a": 2, "b": True} not in found
    assert search_spaces.sample_settings(space, sampler, 0, 3, {"a": 2, "b": True}) == found[:3]
    assert len(search_spaces.sample_settings(space, sampler, 0, 99, {"a": 4, "b": True})) == 6
    assert search_spaces.sample_settings(space, sampler, 5, 5, {"a": 2, "b": True}) != found


def test_values_at_the_edge():
    space = {"r": LogUniform(0.01, 1.0), "u": Uniform(0, 1), "t": (1, 2, 4), "two": (1, 2), "name": ("a", "b", "c")}
    middle = {"r": 0.1, "u": 0.5, "t": 2, "two": 1, "name": "a"}
    assert search_spaces.describe_edges(space, middle) == []
    for change, said in {
        ("r", 0.9): "r=0.9 at the upper edge",
        ("r", 0.015): "r=0.015 at the lower edge",
        ("r", 2.0): "r=2.0 beyond the upper edge",
        ("r", 0): "r=0 beyond the lower edge",
        ("u", 0.05): "u=0.05 at the lower edge",
        ("t", 4): "t=4 at the upper edge",
        ("t", 0.5): "t=0.5 beyond the lower edge",
    }.items():
        assert search_spaces.describe_edges(space, middle | dict([change])) == [said]
