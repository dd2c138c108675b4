"""However many states were touched, a checkpoint writes a share of what changed; its parts stay few, and do not last for ever."""

import math
import os
import types
from typing import Any, cast

import jax
import numpy as np
import pytest

from fedjax_core.engine.client_state import manager
from fedjax_core.engine.client_state.host_store import HostStore
from fedjax_core.engine.client_state.manager import OffloadedStates
from fedjax_core.run import checkpointing
from fedjax_core.storage import client_state_files, renewal
from fedjax_core.storage.checkpoints import Checkpoints


class Log:
    """Rows of one byte, by the part that has each: what `renewed` is asked of a run, without files."""

    def __init__(self, rows, full):
        self.part, self.full, self.paid, self.number = np.zeros(rows, int), full, 0, 0
        self.sizes = {}
        self.write(np.arange(rows))

    def write(self, rows):
        for begin in range(0, len(rows), self.full):
            mine = rows[begin : begin + self.full]
            self.part[mine], self.sizes[self.number], self.number = self.number, len(mine), self.number + 1

    def checkpoint(self, changed):
        """Bytes that are written."""
        others = np.delete(self.part, changed)
        live = {int(number): int((others == number).sum()) for number in np.unique(others)}
        again, self.paid = renewal.renewed(live, len(changed), self.paid, self.full)
        rows = np.union1d(changed, np.flatnonzero(np.isin(self.part, again)))
        self.sizes = {number: size for number, size in self.sizes.items() if number in live and number not in again}
        self.write(rows)
        return len(rows)


@pytest.mark.parametrize("draw", ["anyone", "in turn", "the same few"])
def test_the_bounds_hold_however_clients_are_drawn(draw):
    rows, full, each, rng = 4000, 200, 10, np.random.default_rng(0)
    log, written = Log(rows, full), []
    first = set(log.sizes)
    for number in range(600):
        cohort = {"anyone": rng.choice(rows, each, replace=False), "in turn": (number * each + np.arange(each)) % rows}
        written.append(log.checkpoint(cohort.get(draw, rng.choice(50, each, replace=False))))
        assert written[-1] <= 2 * each + 3 * full
        assert sum(log.sizes.values()) <= 3 * (rows + full)
        assert len(log.sizes) <= 6 * rows / full + math.log2(full) + 3
        if number * each == rows:
            assert not first & set(log.sizes)  # as much has changed as there is
    assert sum(written) <= (2 + 2 * math.log2(full / each)) * 600 * each
    assert max(written) < rows / 4  # nothing like all of them


def test_checkpoints_of_many_touched_states(tmp_path, monkeypatch):
    """By files: all that is needed is there and nothing else, an old one that shares nothing is kept, and states come back."""
    monkeypatch.setattr(manager, "PART", 16 * 40)  # rows of 16 bytes
    like, n, rng = {"w": jax.ShapeDtypeStruct((3,), np.float32)}, 400, np.random.default_rng(0)
    kept = OffloadedStates((), [HostStore(n, like)])
    run: Any = types.SimpleNamespace(offloaded_states=kept, to_host=lambda state, with_offloaded: state)
    store, every = Checkpoints(tmp_path, keep=2), np.arange(n)
    kept.stores[0].write(every, {"w": np.zeros((n, 3), np.float32)}, np.ones(n, bool))
    written, oldest, state = [], [], cast(Any, {})
    for done in range(1, 41):
        ids = rng.choice(n, 20, replace=False)
        kept.stores[0].write(ids, {"w": np.full((20, 3), done, np.float32)}, np.ones(20, bool))
        before = {path.name for path in tmp_path.glob(f"{done - 1:08d}/parts/*")}
        checkpointing.save(run, store, state, done, done - 1)
        place = tmp_path / f"{done:08d}" / "parts"
        assert sorted(os.listdir(place)) == [
            client_state_files.called(number, None) for number in store.numbers_of_parts(done) or ()
        ]
        new = [path for path in place.iterdir() if path.name not in before]
        written.append(sum(path.stat().st_size for path in new) / 16)
        oldest.append(store.rounds()[0])
        if done == 25:  # a process of its own goes on
            kept = OffloadedStates((), [HostStore(n, like)])
            for each in zip(store.numbers_of_parts(done) or (), store.parts(done), strict=True):
                kept.take(*each)
            kept.saved()
            np.testing.assert_array_equal(kept.stores[0].rows["w"], run.offloaded_states.stores[0].rows["w"])
            assert kept.live() == run.offloaded_states.live()
            run.offloaded_states = kept
    assert written[0] >= n
    assert max(written[1:]) < n / 2
    assert len(store.rounds()) <= 4
    assert not client_state_files.shares(tmp_path / "00000040", tmp_path / f"{oldest[-1]:08d}")
    assert oldest[-1] > 5  # and it is no older than it need be
    files = {os.stat(path).st_ino: os.stat(path).st_nlink for path in tmp_path.glob("*/parts/*")}
    assert sum(files.values()) == len(list(tmp_path.glob("*/parts/*")))
    found = {}
    for part in store.parts(40):
        found |= dict(zip(part["0/places"].tolist(), part["0/00000"].tolist(), strict=True))
    assert [found[place] for place in range(n)] == kept.stores[0].rows["w"].tolist()
