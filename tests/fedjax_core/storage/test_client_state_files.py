"""Parts of checkpoints: written once, whole in each, and found if they are damaged."""

import os
import shutil

import jax
import numpy as np
import pytest

from fedjax_core.engine.client_state.host_store import HostStore
from fedjax_core.engine.client_state.manager import OffloadedStates
from fedjax_core.storage import client_state_files
from fedjax_core.storage.checkpoints import Checkpoints

STATE = {"w": np.arange(3.0)}


def part(number):
    return {"0/places": np.array([number], np.int32), "0/00000": np.full((1, 2), number, np.float32)}


def saved(directory, keep=1):
    store = Checkpoints(directory, keep=keep)
    store.save(1, STATE, {}, [part(1), part(2)])
    store.save(4, STATE, {}, [part(4)], after=1)
    store.save(5, STATE, {}, [], after=4)
    return store


@pytest.mark.parametrize("links", [True, False])
def test_a_checkpoint_is_whole_when_those_before_are_gone(tmp_path, monkeypatch, links):
    if not links:

        def refuse(*arguments):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr("fedjax_core.storage.client_state_files.os.link", refuse)
    store = saved(tmp_path)
    assert store.rounds() == [5]
    assert [found["0/places"].tolist() for found in store.parts(5)] == [[1], [2], [4]]
    assert store.numbers_of_parts(5) == [0, 1, 2]
    assert store.numbers_of_parts(4) is None
    np.testing.assert_array_equal(store.restore(5, STATE)[0]["w"], STATE["w"])
    copied = Checkpoints(shutil.copytree(tmp_path, tmp_path / "copied"))
    assert len(list(copied.parts(5))) == 3


def test_what_is_there_is_not_written_again(tmp_path):
    saved(tmp_path, keep=3)
    files = [tmp_path / f"{number:08d}" / "parts" / "00001.safetensors" for number in (1, 4, 5)]
    assert len({os.stat(file).st_ino for file in files}) == 1
    assert not (tmp_path / "00000001" / "parts" / "00002.safetensors").exists()


def test_without_parts_there_are_none(tmp_path):
    store = Checkpoints(tmp_path)
    store.save(1, STATE)
    assert store.numbers_of_parts(1) is None
    assert list(store.parts(1)) == []
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
        list(store.parts(5))
    file.unlink()
    with pytest.raises(ValueError, match=r"it lacks parts/00002\.safetensors"):
        list(store.parts(5))
    assert len(list(store.parts(4))) == 3


def test_of_a_damaged_file_that_others_share_only_what_lacks_it_is_a_way_back(tmp_path):
    store = Checkpoints(tmp_path, keep=5)
    store.save(1, STATE, {}, [part(1)])
    for done in (2, 4, 5):
        store.save(done, STATE, {}, [part(done)], after={2: None, 4: 2, 5: 4}[done])
    file = tmp_path / "00000004" / "parts" / "00000.safetensors"
    with file.open("r+b") as opened:  # in its place: of all that link to it
        opened.seek(-1, 2)
        opened.write(b"!")
    remedy = rf"rename {tmp_path}/00000002 to 00000002.damaged and {tmp_path}/00000004 to 0.*4.damaged and {tmp_path}/00000005 to"
    with pytest.raises(
        ValueError, match=rf"round 2, 4 has the same file; older without it: round 1; to go back to round 1 {remedy}"
    ):
        list(store.parts(5))
    store._delete(tmp_path / "00000001")
    with pytest.raises(ValueError, match="round 2, 4 has the same file; there is no older one without it; start anew"):
        list(store.parts(5))


def test_a_part_that_vanished_under_a_run_is_missed_by_the_next_checkpoint(tmp_path):
    store = saved(tmp_path, keep=3)
    (tmp_path / "00000005" / "parts" / "00001.safetensors").unlink()
    with pytest.raises(
        ValueError, match=rf"{tmp_path}/00000005 lacks parts/00001\.safetensors, which the next checkpoint"
    ) as caught:
        store.save(6, STATE, {}, [part(6)], after=5)
    assert "\n" not in str(caught.value)
    assert store.rounds() == [1, 4, 5]
    assert not list(tmp_path.glob(".unfinished*"))


def test_other_files_beside_the_parts_are_nobodys(tmp_path):
    store = saved(tmp_path, keep=3)
    for name in (".DS_Store", "00001 (copy).safetensors", "notes.txt"):
        (tmp_path / "00000005" / "parts" / name).write_text("")
    store.save(6, STATE, {}, [part(6)], after=5)
    assert [found["0/places"].tolist() for found in store.parts(6)] == [[1], [2], [4], [6]]
    (tmp_path / "new").mkdir()
    assert client_state_files.begin(tmp_path / "new", tmp_path / "00000005")[1] == 3, (
        "nor of a checkpoint that has not recorded them"
    )


def test_a_damaged_snapshot_names_the_checkpoints_beside_it(tmp_path):
    store = Checkpoints(tmp_path / "all", keep=3)
    for done in (1, 2):
        store.save(done, STATE, {}, [part(done)])
    kept = Checkpoints(tmp_path / "selected", keep=1, beside=tmp_path / "all")
    kept.save(2, STATE, {}, (), after=2, of=store)
    file = tmp_path / "selected" / "00000002" / "parts" / "00000.safetensors"
    with file.open("r+b") as opened:  # in its place: of both
        opened.seek(-1, 2)
        opened.write(b"!")
    with pytest.raises(ValueError, match=r"in \S*all round 2 has the same file; \S*all has round 1 without it") as caught:
        list(kept.parts(2))
    assert "\n" not in str(caught.value)
    other = Checkpoints(tmp_path / "all", beside=tmp_path / "selected")
    with pytest.raises(ValueError, match=r"older: round 1; .* call again; in \S*selected round 2 has the same file"):
        list(other.parts(2))


def test_the_last_checkpoint_that_shares_nothing_is_kept_and_the_one_after_it(tmp_path):
    store, kept = Checkpoints(tmp_path, keep=2), []
    for done in range(1, 9):
        store.save(done, STATE, {}, [part(done)], after=None if done in (1, 4, 7) else done - 1)
        kept.append(store.rounds())
    assert kept == [[1], [1, 2], [1, 2, 3], [3, 4], [3, 4, 5], [3, 4, 5, 6], [6, 7], [6, 7, 8]]
    alone = Checkpoints(tmp_path / "alone", keep=1)
    for done in (1, 2):
        alone.save(done, STATE, {}, [part(done)])
    assert alone.rounds() == [2]


def test_a_checkpoint_goes_without_parts_that_are_written_anew(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    assert store.save(1, STATE, {}, [part(1), part(2), part(3)]) == 0
    assert store.save(2, STATE, {}, [part(1)], after=1, without=[0, 2]) == 3  # no number is given twice
    assert store.numbers_of_parts(2) == [1, 3]
    assert [found["0/places"].tolist() for found in store.parts(2)] == [[2], [1]]
    assert sorted(os.listdir(tmp_path / "00000002" / "parts")) == ["00001.safetensors", "00003.safetensors"]


def test_parts_of_several_processes_stand_in_the_order_of_checkpoints(tmp_path):
    earlier = tmp_path / "earlier"
    names = ["00000.safetensors", "99999-0000.safetensors", "99999-0001.safetensors", "100000-0000.safetensors"]
    for place in (earlier, tmp_path):
        place.mkdir(exist_ok=True)
    (earlier / "parts").mkdir()
    for name in names:
        (earlier / "parts" / name).touch()
    assert client_state_files.begin(tmp_path, earlier) == (names, 100001)
    assert client_state_files.write(tmp_path, [part(7)], 3, process=1) == 1
    assert (tmp_path / "parts" / client_state_files.called(3, 1)).exists()


def test_a_part_that_cannot_be_written_leaves_what_there_was(tmp_path):
    store = Checkpoints(tmp_path)
    store.save(1, STATE, {}, [part(1)])

    def failing():
        yield part(2)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"cannot write the checkpoint of round 2 .earlier ones are intact"):
        store.save(2, STATE, {}, failing(), after=1)
    assert os.listdir(tmp_path) == ["00000001"]
    assert len(list(store.parts(1))) == 1


def test_a_process_reads_the_rows_that_it_keeps_and_whose_the_others_are(tmp_path):
    store = HostStore(8, {"w": jax.ShapeDtypeStruct((2,), np.float32)}, keeps=lambda places: places % 2 == 0)
    checkpoints, kept = saved(tmp_path), OffloadedStates((), [store])
    file = tmp_path / "00000005" / "parts" / "00000.safetensors"  # client 1's, that another process keeps
    whole = file.read_bytes()
    file.write_bytes(whole[:-12] + np.array([7, 7], np.float32).tobytes() + whole[-4:])
    with pytest.raises(ValueError, match=r"00000\.safetensors is damaged"):
        list(checkpoints.parts(5))
    for each in zip(checkpoints.numbers_of_parts(5) or (), checkpoints.parts(5, kept.wanted), strict=True):
        kept.take(*each)
    assert store.part[[1, 2, 4]].tolist() == [0, 1, 2]
    assert np.flatnonzero(store.touched).tolist() == [1, 2, 4]
    assert store.rows["w"][[1, 2, 4]].tolist() == [[0, 0], [2, 2], [4, 4]]
    file.write_bytes(whole[:-4] + np.array([3], np.int32).tobytes())
    with pytest.raises(ValueError, match="0/places is not what was written"):
        list(checkpoints.parts(5, kept.wanted))
