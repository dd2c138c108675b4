"""Rules whose coordinates several devices divide: the same result, a part of the memory."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_core.engine import client_loop
from fedjax_core.engine.client_loop import Plan
from fedjax_core.uplink import robust_aggregation, sharded_aggregation, unwrap
from fedjax_core.uplink.transform import VectorReduce
from tests import toy
from tests.fedjax_core.uplink.test_robust_aggregation import naive_bulyan

C, D = 12, 101  # clients, a multiple of the devices; coordinates, none
RULES = (
    "median",
    "trimmed_mean(attackers=0.25)",
    "krum(attackers=0.25)",
    "multi_krum(attackers=0.25)",
    "bulyan(attackers=0.25)",
    "geometric_median",
    "centred_clipping(radius=3.0, iterations=2)",
    "mixing(attackers=0.25) | trimmed_mean(attackers=0.25)",
)


@functools.cache
def devices(number=4, axes=1):
    shape, names = ((number,), ("clients",)) if axes == 1 else ((number // 2, 2), ("clients", "model"))
    return Mesh(np.array(jax.devices()[:number]).reshape(shape), names)


def cohort():
    """Rows of which three are far away and one is not there."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(C, D)).astype(np.float32) + 5
    rows[:3] *= 10
    weights = rng.integers(1, 9, C).astype(np.float32)
    rows[7], weights[7] = 0, 0
    return rows, weights


def of(reduce, mesh=None):
    """Compiled for the devices of a mesh, each with its own clients' rows."""

    def run(rows, weights, memory):
        key = jax.random.key(0)
        if mesh is None:
            return sharded_aggregation.finalize(reduce, (rows, weights), memory, key)
        with sharded_aggregation.shard_coordinates(mesh, "clients"):
            return sharded_aggregation.finalize(reduce, (rows, weights), memory, key)

    if mesh is None:
        return jax.jit(run)
    spread, whole = (NamedSharding(mesh, PartitionSpec(*axis)) for axis in (("clients",), ()))
    return jax.jit(run, in_shardings=(spread, spread, whole), out_shardings=whole)


def test_those_are_all_rules_that_want_rows():
    reduces = {
        name: robust_aggregation.parse_rule(name).reduce
        for name in robust_aggregation.RULES
        if name not in robust_aggregation.PRECEDING
    }
    stacked = {name for name, reduce in reduces.items() if reduce is not None and reduce.combine == "stack"}
    assert {text.partition("(")[0] for text in RULES} == {*stacked, *robust_aggregation.PRECEDING}


@pytest.mark.parametrize("rule", RULES)
def test_a_divided_rule_gives_what_it_gives_whole(rule):
    transform, (rows, weights) = robust_aggregation.parse_rule(rule), cohort()
    assert transform.reduce.shardable
    memory = np.full(D, 4.0, np.float32) if rule.startswith("centred") else ()
    expected = of(transform.reduce)(rows, weights, memory)
    chex.assert_trees_all_close(of(transform.reduce, devices())(rows, weights, memory), expected, rtol=2e-6, atol=1e-6)


def test_a_divided_bulyan_averages_the_nearest_values_where_values_tie():
    """Copies of one vector, as attackers send them, among small integers."""
    rng = np.random.default_rng(1)
    rows, weights = rng.integers(-3, 4, (C, D)).astype(np.float32), np.ones(C, np.float32)
    rows[1:3] = rows[0]
    expected = naive_bulyan(rows.astype(np.float64), 2)
    reduce = robust_aggregation.parse_rule("bulyan(attackers=0.2)").reduce
    for mesh in (None, devices()):
        np.testing.assert_allclose(of(reduce, mesh)(rows, weights, ())[0], expected, atol=2e-6)


def test_beside_an_axis_of_networks_and_under_vmap():
    reduce, (rows, weights) = robust_aggregation.parse_rule("krum(attackers=0.25)").reduce, cohort()
    expected, _, _ = of(reduce)(rows, weights, ())
    np.testing.assert_array_equal(of(reduce, devices(axes=2))(rows, weights, ())[0], expected)
    with sharded_aggregation.shard_coordinates(devices(), "clients"):
        vmapped = jax.jit(jax.vmap(lambda rows: sharded_aggregation.finalize(reduce, (rows, weights), (), jax.random.key(0))[0]))
        np.testing.assert_array_equal(vmapped(np.stack([rows, 2 * rows])), np.stack([expected, 2 * expected]))


def test_a_rule_from_outside_sees_whole_vectors_unless_it_says_otherwise(tmp_path):
    """One that divides by the number of coordinates would else see others."""
    file = tmp_path / "own.py"
    bodies = {"size": "rows[0] * rows.shape[1]", "wide": "rows * rows.shape[1]"}
    file.write_text("".join(f"def {name}():\n    return lambda rows, there: {body}\n\n" for name, body in bodies.items()))
    rows, weights = cohort()
    for text in (f"{file}:size", f"mixing | {file}:size", f"{file}:wide | median"):
        transform = robust_aggregation.parse_rule(text)
        assert not transform.reduce.shardable
        expected = of(transform.reduce)(rows, weights, ())
        chex.assert_trees_all_close(of(transform.reduce, devices())(rows, weights, ()), expected, rtol=1e-6)
    own = VectorReduce(combine="stack", finalize=lambda combined, memory, key: (combined[0][0], memory, {}), shardable=True)
    np.testing.assert_array_equal(of(own, devices())(rows, weights, ())[0], rows[0])


def test_each_device_has_its_part_alone():
    """Of 64 clients and 4,096 coordinates 1 MB: on one device all of it, on four a quarter, as it comes and as it goes."""
    rows, weights = jnp.zeros((64, 4096)), jnp.ones(64)
    reduce = robust_aggregation.parse_rule("krum").reduce
    text = of(reduce, devices()).lower(rows, weights, ()).compile().as_text()
    assert "all-to-all" in text
    assert "f32[64,1024]" in text
    assert "f32[64,4096]" not in text


def test_a_run_on_several_devices_is_that_on_one():
    """Where not all clients take part, and vectors do not divide evenly."""
    rule = "centred_clipping"
    found = []
    for number in (1, 4):
        sim = toy.simulate(
            "scaffold", transforms=[robust_aggregation.parse_rule(rule)], leave_out=True, cohort=5, plan=Plan(1, number)
        )
        assert sim.spec.mesh.shape[client_loop.AXIS] == number
        state, _ = sim.run_rounds(sim.init(0), 2)
        found.append(jax.device_get((unwrap(state.server), state.server.memory)))
    chex.assert_trees_all_close(*found, rtol=1e-5, atol=1e-6)
