"""What holds for every method, as functions of a `Case`; each raises AssertionError where it does not hold."""

import functools
import tempfile
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Cohort
from fedjax_core.storage import checkpoints
from fedjax_core.testing import toy_federation
from fedjax_core.testing.case import Case


def two_rounds_are_one_trace_without_transfer(case: Case) -> None:
    """More rounds compile nothing more and move nothing between host and device; the state keeps its structure."""
    sim, before, after = case.reference
    compiled = sim.compiled
    state, two = compiled.put(before), compiled.put(np.int32(2))
    run_rounds, arrays = compiled.programs.run_rounds, compiled.device_arrays
    with jax.transfer_guard("disallow"):
        state, _ = run_rounds(arrays, state, two)  # traces anew if jax's caches were cleared
        traces = _traces(run_rounds)
        for _ in range(2):
            state, _ = run_rounds(arrays, state, two)
    assert _traces(run_rounds) == traces, "a later round was traced anew: its state has another shape, dtype or structure"
    assert int(state.round) == 6
    chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
    assert jax.tree.structure(before) == jax.tree.structure(jax.device_get(state))


def something_is_learnt_and_runs_repeat_bit_for_bit(case: Case) -> None:
    """Two rounds change the state, to finite values, and the same ones when they are run again."""
    sim, before, after = case.reference
    again, _ = sim.rounds(sim.compiled.put(before), 2)
    chex.assert_trees_all_equal(jax.device_get(again), after)
    moved = jax.tree.map(lambda a, b: np.abs(np.subtract(a, b, dtype=np.float64)).max(initial=0), before[:2], after[:2])
    assert max(jax.tree.leaves(moved)) > 1e-3, "neither the server's state nor a client's has changed"
    assert all(np.isfinite(np.asarray(x, np.float64)).all() for x in jax.tree.leaves(after))


def plans_and_places_agree_and_padding_is_invisible(case: Case) -> None:
    """Data on the host, states on the disk, two clients at once, two devices, more padding, against the plainest plan."""
    before, after = case.reference[1:]
    _, state, stores = case.elsewhere
    chex.assert_trees_all_close(jax.device_get(state.server), after.server, atol=1e-5, rtol=1e-5)
    for (held, touched), rows, first in zip(stores, after.clients, before.clients, strict=True):
        for mine, theirs, untouched in zip(*map(jax.tree.leaves, (held, rows, first)), strict=True):
            np.testing.assert_allclose(mine[touched], theirs[touched], atol=1e-5, rtol=1e-5)
            np.testing.assert_array_equal(theirs[~touched], untouched[~touched])


def order_of_the_cohort_is_irrelevant(case: Case) -> None:
    """The same clients in the opposite order give the same round."""
    run, drawn, rows = case.one_round()
    server, after, _ = run(drawn, rows)
    flip = functools.partial(jax.tree.map, lambda x: x[::-1])
    server2, after2, _ = run(flip(drawn), flip(rows))
    chex.assert_trees_all_close(server, server2, atol=1e-5, rtol=1e-5)
    chex.assert_trees_all_close(after, flip(after2), atol=1e-6, rtol=1e-6)


def an_absent_client_changes_nothing(case: Case) -> None:
    """A client that drops out, whose state holds NaN, leaves the round as if it had not been sampled."""
    if case.reference[0].cohort == 1:
        return  # a pooled method has one client
    run, drawn, rows = case.one_round()
    gone = [(Cohort(c.ids, _first(c.examples, 0)), p) for c, p in drawn]
    poison = lambda x: jnp.nan if jnp.issubdtype(x.dtype, jnp.inexact) else 99  # a place in a queue is no float
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


def a_checkpoint_goes_on_where_it_was_left(case: Case) -> None:
    """A state that was saved and restored trains on bit for bit."""
    sim, before, _ = case.reference
    state, _ = sim.rounds(sim.compiled.put(before), 1)
    with tempfile.TemporaryDirectory() as directory:
        store = checkpoints.Checkpoints(directory)
        store.save(1, sim.to_host(state))
        saved, _ = store.restore(1, jax.tree.map(np.zeros_like, sim.to_host(state)))
    a, _ = sim.rounds(state, 2)
    b, _ = sim.rounds(sim.from_host(saved), 2)
    chex.assert_trees_all_equal(jax.device_get(a), jax.device_get(b))


def the_round_exports_for_every_platform(case: Case) -> None:
    """The compiled round lowers for CPU, TPU and CUDA."""
    sim, before, _ = case.reference
    exported = jax.export.export(sim.compiled.programs.run_rounds, platforms=("cpu", "tpu", "cuda"))(
        sim.compiled.device_arrays, sim.compiled.put(before), sim.compiled.put(np.int32(1))
    )
    assert exported.platforms == ("cpu", "tpu", "cuda")


def scores_cover_every_predictor(case: Case) -> None:
    """Each of the method's predictors is scored on the clients' own test rows."""
    sim, _, after = case.reference
    scores = sim.evaluate(sim.compiled.put(after)).metrics
    for model in sim.spec.abstract_algorithm(0).predict:
        assert f"test/{model}/own/accuracy/mean" in scores, f"predictor {model!r} has no score"
    assert all(0 <= v <= 1 for k, v in scores.items() if "accuracy" in k)


def _first(x: Any, value: Any) -> Any:
    """A copy of an array whose first entry is another."""
    x = np.array(x)
    x[0] = value
    return x


def _traces(program: Any) -> int:
    """How many traces a jitted program has."""
    return program._cache_size()


CONTRACT = (
    two_rounds_are_one_trace_without_transfer,
    something_is_learnt_and_runs_repeat_bit_for_bit,
    plans_and_places_agree_and_padding_is_invisible,
    order_of_the_cohort_is_irrelevant,
    an_absent_client_changes_nothing,
    a_checkpoint_goes_on_where_it_was_left,
    the_round_exports_for_every_platform,
    scores_cover_every_predictor,
)
