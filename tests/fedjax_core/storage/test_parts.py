"""Parts of checkpoints: written once, whole in each, and found if they are damaged."""

import os
import shutil

import numpy as np
import pytest

from fedjax_core.storage.checkpoint import Checkpoints

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

        monkeypatch.setattr("fedjax_core.storage.parts.os.link", refuse)
    store = saved(tmp_path)
    assert store.rounds() == [5]
    assert [found["0/places"].tolist() for found in store.parts(5)] == [[1], [2], [4]]
    assert store.number_of_parts(5) == 3
    assert store.number_of_parts(4) is None
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
    assert store.number_of_parts(1) is None
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
