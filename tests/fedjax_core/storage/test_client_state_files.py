"""Parts of checkpoints: written once, whole in each, and found if they are damaged."""

import math
import os
import shutil
import types
from typing import Any, cast

import jax
import numpy as np
import pytest

from fedjax_core.engine.client_state import manager
from fedjax_core.engine.client_state.manager import OffloadedStates
from fedjax_core.engine.client_state.stores import HostStore
from fedjax_core.run import checkpointing
from fedjax_core.storage import client_state_files
from fedjax_core.storage.checkpoints import Checkpoints

STATE = {"w": np.arange(3.0)}


def part(number):
    return {"0/places": np.array([number], np.int32), "0/00000": np.full((1, 2), number, np.float32)}


def saved(directory, keep=1):
    store = Checkpoints(directory, keep=keep)
    store.save(1, STATE, {}, [part(1), part(2)])
    store.save(4, STATE, {}, [part(4)], earlier_round=1)
    store.save(5, STATE, {}, [], earlier_round=4)
    return store


@pytest.mark.parametrize("links", [True, False])
def test_a_checkpoint_is_whole_when_those_before_are_gone(tmp_path, monkeypatch, links):
    if not links:

        def refuse(*arguments):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr("fedjax_core.storage.client_state_files.os.link", refuse)
    store = saved(tmp_path)
    assert store.rounds() == [5]
    assert [found["0/places"].tolist() for found in store.read_parts(5)] == [[1], [2], [4]]
    assert store.part_numbers(5) == [0, 1, 2]
    assert store.part_numbers(4) is None
    np.testing.assert_array_equal(store.restore(5, STATE)[0]["w"], STATE["w"])
    copied = Checkpoints(shutil.copytree(tmp_path, tmp_path / "copied"))
    assert len(list(copied.read_parts(5))) == 3


def test_what_is_there_is_not_written_again(tmp_path):
    saved(tmp_path, keep=3)
    files = [tmp_path / f"{number:08d}" / "parts" / "00001.safetensors" for number in (1, 4, 5)]
    assert len({os.stat(file).st_ino for file in files}) == 1
    assert not (tmp_path / "00000001" / "parts" / "00002.safetensors").exists()


def test_without_parts_there_are_none(tmp_path):
    store = Checkpoints(tmp_path)
    store.save(1, STATE)
    assert store.part_numbers(1) is None
    assert list(store.read_parts(1)) == []
    assert "parts" not in os.listdir(tmp_path / "00000001")


def test_damage_is_found(tmp_path):
    store = saved(tmp_path, keep=3)
    file = tmp_path / "00000005" / "parts" / "00002.safetensors"
    bits = bytearray(file.read_bytes())
    bits[-1] ^= 1
    file.unlink()  # the links of others stay
    file.write_bytes(bytes(bits))
    with pytest.raises(
        ValueError, match=r"the checkpoint of round 5 cannot be used \(.*00002\.safetensors is damaged.*older: round 1, 4"
    ):
        list(store.read_parts(5))
    file.unlink()
    with pytest.raises(ValueError, match=r"it lacks parts/00002\.safetensors"):
        list(store.read_parts(5))
    assert len(list(store.read_parts(4))) == 3


def test_of_a_damaged_file_that_others_share_only_what_lacks_it_is_a_way_back(tmp_path):
    store = Checkpoints(tmp_path, keep=5)
    store.save(1, STATE, {}, [part(1)])
    for done in (2, 4, 5):
        store.save(done, STATE, {}, [part(done)], earlier_round={2: None, 4: 2, 5: 4}[done])
    file = tmp_path / "00000004" / "parts" / "00000.safetensors"
    with file.open("r+b") as opened:  # in its place: of all that link to it
        opened.seek(-1, 2)
        opened.write(b"!")
    remedy = rf"rename {tmp_path}/00000002 to 00000002.damaged and {tmp_path}/00000004 to 0.*4.damaged and {tmp_path}/00000005 to"
    with pytest.raises(
        ValueError, match=rf"round 2, 4 has the same file; older without it: round 1; to go back to round 1 {remedy}"
    ):
        list(store.read_parts(5))
    store._delete(tmp_path / "00000001")
    with pytest.raises(ValueError, match="round 2, 4 has the same file; there is no older one without it; start anew"):
        list(store.read_parts(5))


def test_a_part_that_vanished_under_a_run_is_missed_by_the_next_checkpoint(tmp_path):
    store = saved(tmp_path, keep=3)
    (tmp_path / "00000005" / "parts" / "00001.safetensors").unlink()
    with pytest.raises(
        ValueError, match=rf"{tmp_path}/00000005 lacks parts/00001\.safetensors, which the next checkpoint"
    ) as caught:
        store.save(6, STATE, {}, [part(6)], earlier_round=5)
    assert "\n" not in str(caught.value)
    assert store.rounds() == [1, 4, 5]
    assert not list(tmp_path.glob(".unfinished*"))


def test_other_files_beside_the_parts_are_nobodys(tmp_path):
    store = saved(tmp_path, keep=3)
    for name in (".DS_Store", "00001 (copy).safetensors", "notes.txt"):
        (tmp_path / "00000005" / "parts" / name).write_text("")
    store.save(6, STATE, {}, [part(6)], earlier_round=5)
    assert [found["0/places"].tolist() for found in store.read_parts(6)] == [[1], [2], [4], [6]]
    (tmp_path / "new").mkdir()
    assert client_state_files.link_parts(tmp_path / "new", tmp_path / "00000005")[1] == 3, (
        "nor of a checkpoint that has not recorded them"
    )


def test_a_damaged_snapshot_names_the_checkpoints_beside_it(tmp_path):
    store = Checkpoints(tmp_path / "all", keep=3)
    for done in (1, 2):
        store.save(done, STATE, {}, [part(done)])
    kept = Checkpoints(tmp_path / "selected", keep=1, beside=tmp_path / "all")
    kept.save(2, STATE, {}, (), earlier_round=2, earlier_in=store)
    file = tmp_path / "selected" / "00000002" / "parts" / "00000.safetensors"
    with file.open("r+b") as opened:  # in its place: of both
        opened.seek(-1, 2)
        opened.write(b"!")
    with pytest.raises(ValueError, match=r"in \S*all round 2 has the same file; \S*all has round 1 without it") as caught:
        list(kept.read_parts(2))
    assert "\n" not in str(caught.value)
    other = Checkpoints(tmp_path / "all", beside=tmp_path / "selected")
    with pytest.raises(ValueError, match=r"older: round 1; .* call again; in \S*selected round 2 has the same file"):
        list(other.read_parts(2))


def test_the_last_checkpoint_that_shares_nothing_is_kept_and_the_one_after_it(tmp_path):
    store, kept = Checkpoints(tmp_path, keep=2), []
    for done in range(1, 9):
        store.save(done, STATE, {}, [part(done)], earlier_round=None if done in (1, 4, 7) else done - 1)
        kept.append(store.rounds())
    assert kept == [[1], [1, 2], [1, 2, 3], [3, 4], [3, 4, 5], [3, 4, 5, 6], [6, 7], [6, 7, 8]]
    alone = Checkpoints(tmp_path / "alone", keep=1)
    for done in (1, 2):
        alone.save(done, STATE, {}, [part(done)])
    assert alone.rounds() == [2]


def test_a_checkpoint_goes_without_parts_that_are_written_anew(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    assert store.save(1, STATE, {}, [part(1), part(2), part(3)]) == 0
    assert store.save(2, STATE, {}, [part(1)], earlier_round=1, dropped=[0, 2]) == 3  # no number is given twice
    assert store.part_numbers(2) == [1, 3]
    assert [found["0/places"].tolist() for found in store.read_parts(2)] == [[2], [1]]
    assert sorted(os.listdir(tmp_path / "00000002" / "parts")) == ["00001.safetensors", "00003.safetensors"]


def test_parts_of_several_processes_stand_in_the_order_of_checkpoints(tmp_path):
    earlier = tmp_path / "earlier"
    names = ["00000.safetensors", "99999-0000.safetensors", "99999-0001.safetensors", "100000-0000.safetensors"]
    for place in (earlier, tmp_path):
        place.mkdir(exist_ok=True)
    (earlier / "parts").mkdir()
    for name in names:
        (earlier / "parts" / name).touch()
    assert client_state_files.link_parts(tmp_path, earlier) == (names, 100001)
    assert client_state_files.write_parts(tmp_path, [part(7)], 3, process=1) == 1
    assert (tmp_path / "parts" / client_state_files.part_name(3, 1)).exists()


def test_a_part_that_cannot_be_written_leaves_what_there_was(tmp_path):
    store = Checkpoints(tmp_path)
    store.save(1, STATE, {}, [part(1)])

    def failing():
        yield part(2)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"cannot write the checkpoint of round 2 .earlier ones are intact"):
        store.save(2, STATE, {}, failing(), earlier_round=1)
    assert os.listdir(tmp_path) == ["00000001"]
    assert len(list(store.read_parts(1))) == 1


def test_states_are_restored_by_name():
    """Not by their order; in parts of earlier versions they have no names."""
    like = jax.ShapeDtypeStruct((2,), np.float32)
    old = OffloadedStates((), [HostStore(3, {"anchor": like, "own": like})])
    old.stores[0].write(np.arange(3), {"anchor": np.ones((3, 2)), "own": np.full((3, 2), 2.0)}, np.ones(3, bool))
    (part,) = old.read_parts(old.plan_parts(None))
    new = OffloadedStates((), [HostStore(3, {"anchor": like, "mine": like})])
    with pytest.raises(ValueError, match="client states are of another method or model"):
        new.load_part(0, part)
    unnamed = {"0/places": part["0/places"], "0/00000": part["0['anchor']"], "0/00001": part["0['own']"]}
    for again in (part, unnamed):
        restored = OffloadedStates((), [HostStore(3, {"anchor": like, "own": like})])
        restored.load_part(0, again)
        assert restored.stores[0].states["own"].tolist() == [[2.0, 2.0]] * 3


def test_a_process_reads_the_rows_that_it_keeps_and_whose_the_others_are(tmp_path):
    store = HostStore(8, {"w": jax.ShapeDtypeStruct((2,), np.float32)}, is_local=lambda slots: slots % 2 == 0)
    checkpoints, kept = saved(tmp_path), OffloadedStates((), [store])
    file = tmp_path / "00000005" / "parts" / "00000.safetensors"  # client 1's, that another process keeps
    whole = file.read_bytes()
    file.write_bytes(whole[:-12] + np.array([7, 7], np.float32).tobytes() + whole[-4:])
    with pytest.raises(ValueError, match=r"00000\.safetensors is damaged"):
        list(checkpoints.read_parts(5))
    for each in zip(checkpoints.part_numbers(5) or (), checkpoints.read_parts(5, kept.wanted_arrays), strict=True):
        kept.load_part(*each)
    assert store.part_number[[1, 2, 4]].tolist() == [0, 1, 2]
    assert np.flatnonzero(store.touched).tolist() == [1, 2, 4]
    assert store.states["w"][[1, 2, 4]].tolist() == [[0, 0], [2, 2], [4, 4]]
    file.write_bytes(whole[:-4] + np.array([3], np.int32).tobytes())
    with pytest.raises(ValueError, match="0/places is not what was written"):
        list(checkpoints.read_parts(5, kept.wanted_arrays))


class Log:
    """Rows of one byte, by the part that has each: what `choose_parts_to_rewrite` decides for a run, without files."""

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
        again, self.paid = client_state_files.choose_parts_to_rewrite(live, len(changed), self.paid, self.full)
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
    monkeypatch.setattr(manager, "PART_BYTES", 16 * 40)  # rows of 16 bytes
    like, n, rng = {"w": jax.ShapeDtypeStruct((3,), np.float32)}, 400, np.random.default_rng(0)
    kept = OffloadedStates((), [HostStore(n, like)])
    run: Any = types.SimpleNamespace(offloaded_states=kept, to_host=lambda state: state)
    store, every = Checkpoints(tmp_path, keep=2), np.arange(n)
    kept.stores[0].write(every, {"w": np.zeros((n, 3), np.float32)}, np.ones(n, bool))
    written, oldest, state = [], [], cast(Any, {})
    for done in range(1, 41):
        ids = rng.choice(n, 20, replace=False)
        kept.stores[0].write(ids, {"w": np.full((20, 3), done, np.float32)}, np.ones(20, bool))
        before = {path.name for path in tmp_path.glob(f"{done - 1:08d}/parts/*")}
        checkpointing.save_checkpoint(run, store, state, done, done - 1)
        place = tmp_path / f"{done:08d}" / "parts"
        assert sorted(os.listdir(place)) == [
            client_state_files.part_name(number, None) for number in store.part_numbers(done) or ()
        ]
        new = [path for path in place.iterdir() if path.name not in before]
        written.append(sum(path.stat().st_size for path in new) / 16)
        oldest.append(store.rounds()[0])
        if done == 25:  # a process of its own goes on
            kept = OffloadedStates((), [HostStore(n, like)])
            for each in zip(store.part_numbers(done) or (), store.read_parts(done), strict=True):
                kept.load_part(*each)
            kept.mark_saved()
            np.testing.assert_array_equal(kept.stores[0].states["w"], run.offloaded_states.stores[0].states["w"])
            assert kept.live_bytes() == run.offloaded_states.live_bytes()
            run.offloaded_states = kept
    assert written[0] >= n
    assert max(written[1:]) < n / 2
    assert len(store.rounds()) <= 4
    assert not client_state_files.has_shared_part(tmp_path / "00000040", tmp_path / f"{oldest[-1]:08d}")
    assert oldest[-1] > 5  # and it is no older than it need be
    files = {os.stat(path).st_ino: os.stat(path).st_nlink for path in tmp_path.glob("*/parts/*")}
    assert sum(files.values()) == len(list(tmp_path.glob("*/parts/*")))
    found = {}
    for part in store.read_parts(40):
        found |= dict(zip(part["0/places"].tolist(), part["0['w']"].tolist(), strict=True))
    assert [found[place] for place in range(n)] == kept.stores[0].states["w"].tolist()
