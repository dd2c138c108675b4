"""Checks that hold for every method, as functions of a `Case` that raise AssertionError."""

import functools
import tempfile
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Cohort, find_nets, is_reduce
from fedjax_core.engine import rounds
from fedjax_core.storage import checkpoints
from fedjax_core.testing import toy_federation
from fedjax_core.testing.case import Case


def check_no_retrace_or_transfer(case: Case) -> None:
    """Checks that further rounds do not retrace or move data between host and device; the state keeps its structure."""
    sim, before, after = case.reference_run
    state, two = sim.compiled.put(before), sim.compiled.put(np.int32(2))
    run, arrays = sim.compiled.programs.run_resident_rounds, sim.compiled.device_arrays
    with jax.transfer_guard("disallow"):
        state, _ = run(arrays, state, two)  # traces anew if jax's caches were cleared
        traces = run._cache_size()
        for _ in range(2):
            state, _ = run(arrays, state, two)
    assert run._cache_size() == traces, "a later round was retraced: its state changed shape, dtype or structure"
    assert int(state.round) == 6
    chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
    assert jax.tree.structure(before) == jax.tree.structure(jax.device_get(state))


def check_rounds_learn_and_repeat(case: Case) -> None:
    """Checks that two rounds change the state to finite values, and to the same ones bit for bit when repeated."""
    sim, before, after = case.reference_run
    again, _ = sim.run_rounds(sim.compiled.put(before), 2)
    chex.assert_trees_all_equal(jax.device_get(again), after)
    moved = jax.tree.map(lambda a, b: np.abs(np.subtract(a, b, dtype=np.float64)).max(initial=0), before[:2], after[:2])
    assert max(jax.tree.leaves(moved)) > 1e-3, "neither the server's state nor a client's has changed"
    assert all(np.isfinite(np.asarray(x, np.float64)).all() for x in jax.tree.leaves(after))


def check_plans_agree(case: Case) -> None:
    """Checks that data on the host, states on the disk, two clients at once, two devices and more padding change nothing."""
    before, after = case.reference_run[1:]
    _, state, stores = case.offloaded_run
    chex.assert_trees_all_close(jax.device_get(state.server), after.server, atol=1e-5, rtol=1e-5)
    for (held, touched), rows, first in zip(stores, after.clients, before.clients, strict=True):
        for offloaded, expected, untouched in zip(*map(jax.tree.leaves, (held, rows, first)), strict=True):
            np.testing.assert_allclose(offloaded[touched], expected[touched], atol=1e-5, rtol=1e-5)
            np.testing.assert_array_equal(expected[~touched], untouched[~touched])


def check_cohort_order_is_irrelevant(case: Case) -> None:
    """Checks that the same cohort in reverse order gives the same round."""
    run, drawn, rows = case.make_round_fn()
    server, after, _ = run(drawn, rows)
    flip = functools.partial(jax.tree.map, lambda x: x[::-1])
    server2, after2, _ = run(flip(drawn), flip(rows))
    chex.assert_trees_all_close(server, server2, atol=1e-5, rtol=1e-5)
    chex.assert_trees_all_close(after, flip(after2), atol=1e-6, rtol=1e-6)


def check_absent_client_changes_nothing(case: Case) -> None:
    """Checks that a client that drops out, with NaN in its state, changes the round as little as an empty slot."""
    if case.reference_run[0].spec.sampler.size == 1:
        return  # a pooled method has one client
    run, drawn, rows = case.make_round_fn()
    gone = [(Cohort(c.ids, _first(c.examples, 0)), p) for c, p in drawn]
    poison = lambda x: jnp.asarray(
        jnp.nan if jnp.issubdtype(x.dtype, jnp.inexact) else 99, x.dtype
    )  # an index into a queue is an int
    poisoned = [jax.tree.map(lambda x: _first(x, poison(x)), r) for r in rows]
    server, after, record = run(gone, poisoned)
    nobody = toy_federation.CLIENTS
    empty = [(Cohort(_first(c.ids, nobody), _first(c.examples, 0)), _first(p, 10**6)) for c, p in drawn]
    server2, after2, record2 = run(empty, rows)
    chex.assert_trees_all_equal(server, server2)
    rest = functools.partial(jax.tree.map, lambda x: x[1:])
    chex.assert_trees_all_equal(rest(after), rest(after2))
    chex.assert_trees_all_equal(record, record2)
    for x in jax.tree.leaves(after):  # its own state: untouched
        np.testing.assert_array_equal(x[0], poison(x))


def check_no_difference_keeps_the_models(case: Case) -> None:
    """Checks that the server's networks stay as they are in a first round without clients, and if clients send differences of 0.

    A method that sends weights where these differences should be ends with networks of 0.
    """
    sim, before, _ = case.reference_run
    algorithm, slots = sim.spec.algorithm(0, sim.compiled.device_arrays, 0), sim.spec.sampler.slots
    collected = rounds.collect_nothing(algorithm, sim.spec.shapes.groups[0].out.uplink, slots)
    are_differences = all(part.payload == "delta" for part in jax.tree.leaves(algorithm.collect, is_leaf=is_reduce))
    for examples in (0, 1) if are_differences else (0,):
        cohort = Cohort(jnp.arange(slots), jnp.full(slots, examples))
        after, _ = algorithm.server_update(jax.tree.map(jnp.asarray, before.server), collected, cohort, jax.random.key(0))
        why = f"{'differences of 0' if examples else 'a round without clients'} changed a network of the server"
        for new, old in zip(*map(jax.tree.leaves, (find_nets(after), find_nets(before.server))), strict=True):
            np.testing.assert_allclose(new, old, atol=1e-6, err_msg=f"{why}; clients send the difference to what they received")


def check_checkpoint_resumes(case: Case) -> None:
    """Checks that a saved and restored state trains on bit for bit."""
    sim, before, _ = case.reference_run
    state, _ = sim.run_rounds(sim.compiled.put(before), 1)
    with tempfile.TemporaryDirectory() as directory:
        store = checkpoints.Checkpoints(directory)
        store.save(1, sim.to_host(state))
        saved, _ = store.restore(1, jax.tree.map(np.zeros_like, sim.to_host(state)))
    a, _ = sim.run_rounds(state, 2)
    b, _ = sim.run_rounds(sim.from_host(saved), 2)
    chex.assert_trees_all_equal(jax.device_get(a), jax.device_get(b))


def check_round_exports(case: Case) -> None:
    """Checks that the rounds lower for TPU and CUDA, on whatever backend they run here."""
    sim, before, _ = case.reference_run
    arguments = sim.compiled.device_arrays, sim.compiled.put(before), sim.compiled.put(np.int32(1))
    assert jax.export.export(sim.compiled.programs.run_resident_rounds, platforms=("tpu", "cuda"))(*arguments).platforms == (
        "tpu",
        "cuda",
    )


def check_every_predictor_is_evaluated(case: Case) -> None:
    """Checks that every predictor is evaluated on the clients' own test examples."""
    sim, _, after = case.reference_run
    scores = sim.evaluate(sim.compiled.put(after)).metrics
    for model in sim.spec.abstract_algorithm(0).predict:
        assert f"test/{model}/own/accuracy/mean" in scores, f"predictor {model!r} has no score"
    assert all(0 <= v <= 1 for k, v in scores.items() if "accuracy" in k)


def _first(x: Any, value: Any) -> Any:
    """Returns a copy of an array with another first entry."""
    x = np.array(x)
    x[0] = value
    return x


CONTRACT = (
    check_no_retrace_or_transfer,
    check_rounds_learn_and_repeat,
    check_plans_agree,
    check_cohort_order_is_irrelevant,
    check_absent_client_changes_nothing,
    check_no_difference_keeps_the_models,
    check_checkpoint_resumes,
    check_round_exports,
    check_every_predictor_is_evaluated,
)
