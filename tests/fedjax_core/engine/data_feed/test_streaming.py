"""Data on the host and on the disk against data on the device: every number is the same, to the bit."""

import dataclasses
import threading
from typing import Any

import chex
import jax
import numpy as np
import pytest

from fedjax_core.algorithm import Examples
from fedjax_core.data import hold_out
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.data.row_readers import ExampleReader
from fedjax_core.engine import dispatch
from fedjax_core.engine.data_feed import cohort_buffer, streaming
from fedjax_core.engine.data_feed.device_arrays import make_index_table
from fedjax_core.engine.simulator import Evaluation
from tests import toy


def threads() -> set[threading.Thread]:
    """Those that read examples of coming rounds, for whatever simulation."""
    return {thread for thread in threading.enumerate() if "examples of coming rounds" in thread.name}


def everything(name, **settings):
    """(state after three rounds, their records, all scores) of a run that stops after the first and goes on from its snapshot."""
    data = hold_out.hold_out_validation(toy.data(), 0.34, 0)
    settings = {"data": data, "evaluation": Evaluation(("global", "own", "post_local"), batch=4)} | settings
    sim = toy.simulate(name, **settings)
    state, records = sim.run_rounds(sim.init(0), 1)
    state, more = sim.run_rounds(sim.from_host(jax.tree.map(np.copy, sim.to_host(state))), 2, scored=True)
    found = jax.device_get(state), records + more, sim.evaluate(state)[0]
    program: Any = sim.compiled.programs.run_resident_rounds
    assert program._cache_size() == 1
    sim.release()
    return found


@pytest.mark.parametrize(
    ("name", "settings", "place"),
    [("fedrep", {"dropout": 0.2}, "disk"), ("fedavg", {"plan": (1, 2)}, "host")],
    ids=["on the disk, personalised, on one device", "on the host, on two devices"],
)
def test_every_number_is_that_of_data_on_the_device(name, settings, place):
    before = threads()
    state, records, scores = everything(name, data_on="device", **settings)
    assert any(score.startswith("validation/") for score in scores)
    other = everything(name, data_on=place, **settings)
    chex.assert_trees_all_equal(other[0], state)
    assert other[1:] == (records, scores)
    assert threads() <= before


def test_buffers_hold_what_clients_have():
    lists = RaggedIndex.from_lists([np.arange(4), np.arange(4, 5), np.arange(5, 15), np.zeros(0, int)])
    x = np.arange(15, dtype=np.float32) + 100
    of, reader = [make_index_table(lists)], ExampleReader(Examples(x, x))
    slab, (table,) = cohort_buffer.pack(reader, of, np.array([1, 4, 0], np.int32), 8)  # 4 is an empty place
    assert slab.x[:6].tolist() == [100, 104, 100, 101, 102, 103]  # row 0 of the data, then client 1, then client 0
    for client, size in ((0, 4), (1, 1)):
        of_slab, whole = np.asarray(table[client]), np.asarray(of[0][client])
        np.testing.assert_array_equal(slab.x[of_slab], x[whole])
        assert (of_slab[size:] == 0).all()
    assert len(slab.x) == 8
    for leaf in slab:  # which a CPU's devices take as they are
        assert jax.device_put(leaf).unsafe_buffer_pointer() == leaf.ctypes.data
    assert cohort_buffer.count_examples(of, np.array([[1, 4, 0], [2, 3, 4]])).tolist() == [5, 10]
    with pytest.raises(ValueError, match="6 examples: must be at most capacity=5"):
        cohort_buffer.pack(reader, of, np.array([1, 4, 0], np.int32), 5)


def test_a_late_cohort_that_is_the_largest_has_the_room_of_the_first():
    """One program serves all rounds: the slab is as large in each, though their rows differ by more than a half."""
    sim = toy.simulate("fedavg", data_on="host", cohort=2)
    sizes, key, rows = np.asarray(sim.spec.host_arrays.size), sim.init(0).key, []
    for number in range(12):
        cohort = jax.device_get(
            sim.compiled.programs.draw_cohorts(sim.compiled.device_arrays, key, sim.compiled.put(np.int32(number)))
        )[0][0]
        rows.append(int(sizes[cohort.ids].sum()))
        held = sim.compiled.feed.for_round(key, number, False)
        assert len(held.train.y) == len(held.train.x) == 1 + np.sort(sizes)[-2:].sum()
    assert max(rows) > 1.5 * rows[0]
    assert np.argmax(rows) > 0
    sim.release()


def test_each_device_has_the_rows_of_its_own_clients():
    sim = toy.simulate("fedavg", data_on="host", plan=(1, 4))
    key, sizes = sim.init(0).key, np.asarray(sim.spec.host_arrays.size)
    ((cohort, _),) = jax.device_get(
        sim.compiled.programs.draw_cohorts(sim.compiled.device_arrays, key, sim.compiled.put(np.int32(0)))
    )
    supply: Any = sim.compiled.feed
    held = supply.for_round(key, 0, False)
    whole = np.asarray(sim.spec.data.train.x)
    for d, ids in enumerate(cohort.ids.reshape(4, -1)):
        x, start = (np.asarray(leaf.addressable_shards[d].data) for leaf in (held.train.x, held.index.start))
        assert len(x) < 1 + sizes.sum() / 2
        assert held.index.ids.addressable_shards[d].data.tolist() == ids.tolist()
        for i, first in zip(ids[ids < sim.spec.population], start, strict=False):
            np.testing.assert_array_equal(x[first : first + sizes[i]], whole[sim.spec.data.train_index[i]])
    planned = supply.abstract_buffers(("index",))
    assert planned["train"].x.shape == held.train.x.shape
    assert planned["train"].x.sharding.is_equivalent_to(held.train.x.sharding, held.train.x.ndim)
    sim.release()


def test_rows_of_coming_rounds_lie_beside_a_round(monkeypatch):
    """Whether a round fits is asked with the slabs that are brought while it trains."""
    sim, asked = toy.simulate("fedavg", data_on="host", plan=(2, 1)), []
    monkeypatch.setattr(dispatch, "memory_limit", lambda mesh: 2**40)
    monkeypatch.setattr(dispatch, "too_large_reason", lambda compiled, limit, beside=0: asked.append(beside))
    sim.run_rounds(sim.init(0), 1)
    found = sim.compiled.feed.for_round(sim.init(0).key, 0, False)
    assert asked == [(streaming.PREFETCH_DEPTH + 1) * sum(leaf.nbytes for leaf in jax.tree.leaves((found.train, found.index)))]
    assert asked[0] > 0
    sim.release()


class Squares:
    """Of numbers; 5 has none."""

    def __init__(self):
        self.made: list[int] = []

    def __call__(self, number):
        self.made.append(number)
        if number == 5:
            raise OSError("cannot read row 5 of x.npy: gone")
        return number**2


def test_what_comes_is_made_before_it_is_wanted():
    before = threads()
    make = Squares()
    coming = streaming.Prefetcher(make)
    assert [coming.get(number) for number in (2, 3)] == [4, 9]
    coming.close()
    assert make.made[:3] == [2, 3, 4]
    assert coming.get(0) == 0  # from where a checkpoint stands
    assert [coming.get(number) for number in (1, 2, 3, 4)] == [1, 4, 9, 16]
    with pytest.raises(OSError, match=r"cannot read row 5 of x\.npy: gone"):
        coming.get(5)
    assert threads() <= before
    assert list(streaming.prefetch(make, 5)) == [0, 1, 4, 9, 16]


def test_a_file_that_goes_bad_ends_a_run_in_one_line(tmp_path):
    """And the run goes on when it is there again."""
    plain = toy.data()
    np.save(tmp_path / "x.npy", plain.train.x)
    data = dataclasses.replace(plain, train=Examples(np.load(tmp_path / "x.npy", mmap_mode="r"), plain.train.y))
    sim = toy.simulate("fedavg", data=data, data_on="disk")
    state, whole = sim.init(0), (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(b"")
    with pytest.raises(OSError, match=r"cannot read row \d+ of .*x\.npy: the file has become shorter than its array$"):
        sim.run_rounds(state, 1)
    (tmp_path / "x.npy").write_bytes(whole)
    state, _ = sim.run_rounds(state, 1)
    assert int(state.round) == 1
    sim.release()
