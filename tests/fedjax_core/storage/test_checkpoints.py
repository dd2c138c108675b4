"""Checkpoints against kills, full disks, other numbers of devices, running event loops, and every kind of leaf."""

import asyncio
import os
import random
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fedjax_core.storage.checkpoints import Checkpoints

ROOT = Path(__file__).parents[3]


class Net(NamedTuple):
    params: Any
    stats: Any = ()


def start(code: str, *arguments: object) -> subprocess.Popen:
    """Runs Python code in a process of its own."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(code: str, *arguments: object) -> str:
    """The same, to the end; nothing may appear on stderr."""
    process = start(code, *arguments)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors == ""
    return output


def bits(leaf: Any) -> bytes:
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf).tobytes()


def assert_same(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert type(a) is type(b)
        if isinstance(b, (np.ndarray, np.generic, jax.Array)):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert bits(a) == bits(b)
        else:
            assert a == b


def every_leaf() -> Any:
    """Random bits of every dtype, NaNs with payloads among them, and every odd structure."""
    rng = np.random.default_rng(0)
    dtypes = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
    special = "bfloat16 float8_e4m3fn float8_e5m2"

    def noise(dtype: Any, shape: tuple[int, ...] = (3, 2)) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return rng.integers(0, 256, size, np.uint8).view(dtype).reshape(shape)

    host = {name: noise(name) for name in dtypes.split()} | {n: noise(getattr(ml_dtypes, n)) for n in special.split()}
    host |= {name: np.array([[1], [-2]]).astype(getattr(ml_dtypes, name)) for name in ("int4",)}
    device = {name: jnp.asarray(noise(name)) for name in ("uint32", "float32", "complex64", "float16", "int8")}
    device |= {"bfloat16": jnp.asarray(noise(ml_dtypes.bfloat16)), "int4": jnp.arange(-3, 3, dtype=jnp.int4)}
    return {
        "host": host,
        "device": device,
        "flags": [np.array([True, False]), jnp.array([False, True])],
        "net": Net({"w": jnp.ones((2, 1)), "none": None}, Net((), {})),
        "empty": ({}, (), [], np.zeros((0, 3), np.int64), jnp.zeros((2, 0), jnp.bfloat16)),
        "scalars": (jnp.float32(np.nan), np.array(7, np.int64), np.float32(0.1), np.float64(0.1), 3, 0.1, True, 2**62),
        "keys": (jax.random.key(1), jax.random.split(jax.random.key(2, impl="rbg"), 3), jax.random.PRNGKey(3)),
        "no keys": jax.random.split(jax.random.key(0), 4)[:0],
        "transposed": np.arange(6.0).reshape(2, 3).T,
        "big-endian": np.arange(3, dtype=">i4"),
        "a/b.c d%[0]": np.ones(1),
    }


def test_every_leaf_comes_back_bit_for_bit(tmp_path):
    state = every_leaf()
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(3, state, {"loss": float("inf"), "rounds": [1, 2]})
    restored, record = checkpoints.restore(3, state)
    assert_same(restored, state)
    assert record == checkpoints.read_record(3) == {"loss": float("inf"), "rounds": [1, 2]}
    assert all(leaf.flags.writeable for leaf in jax.tree.leaves(restored) if isinstance(leaf, np.ndarray))


def test_shapes_suffice_to_restore(tmp_path):
    state = {"net": Net(jnp.arange(4.0)), "key": jax.random.key(0)}
    Checkpoints(tmp_path).save(1, state)
    restored, record = Checkpoints(tmp_path).restore(1, jax.eval_shape(lambda: state))
    assert_same(restored, state)
    assert record == {}
    assert not restored["net"].params.committed  # goes wherever a computation is
    host, _ = Checkpoints(tmp_path).restore(1, {"net": Net(np.zeros(4, np.float32)), "key": jax.random.key(7)})
    assert isinstance(host["net"].params, np.ndarray)


@pytest.mark.parametrize("state", [(), Net({"empty": np.zeros(0)}), None])
def test_states_of_hardly_anything(tmp_path, state):
    Checkpoints(tmp_path).save(0, state)
    assert_same(Checkpoints(tmp_path).restore(0, state)[0], state)


def test_saving_does_not_keep_buffers_from_being_donated(tmp_path):
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = step(jnp.zeros(1 << 16))
    address = x.unsafe_buffer_pointer()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, x)
    x = step(x)
    assert x.unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(checkpoints.restore(1, x)[0], np.ones(1 << 16))


def test_the_last_n_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.latest() is None
    assert checkpoints.rounds() == []
    for number in (2, 4, 10, 120):
        checkpoints.save(number, {"x": np.full(2, number)})
    assert checkpoints.rounds() == [10, 120]
    assert checkpoints.latest() == 120
    assert checkpoints.restore(10, {"x": np.zeros(2, int)})[0]["x"].tolist() == [10, 10]
    assert sorted(os.listdir(tmp_path)) == ["00000010", "00000120"]
    with pytest.raises(ValueError, match=r"no checkpoint of round 4; it has: 10, 120"):
        checkpoints.restore(4, {})
    with pytest.raises(ValueError, match=r"no checkpoint of round 4; it has: 10, 120"):
        checkpoints.read_record(4)
    with pytest.raises(ValueError, match="keep is 0"):
        Checkpoints(tmp_path, keep=0)


def test_a_round_can_be_saved_again(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for value in range(12):
        checkpoints.save(5, np.array(value), {"value": value})
        assert checkpoints.rounds() == [5]
        assert checkpoints.restore(5, np.array(0)) == (value, {"value": value})
    assert len(os.listdir(tmp_path)) == 1


def test_a_run_that_goes_back_has_no_later_checkpoints(tmp_path):
    """Nor does one that was replaced come back in the place of its successor."""
    checkpoints = Checkpoints(tmp_path / "selected", keep=1)
    checkpoints.delete_after(3)
    assert not (tmp_path / "selected").exists()
    checkpoints.save(38, {"x": jnp.ones(1)})
    shutil.copytree(tmp_path / "selected" / "00000038", tmp_path / "selected" / "00000038-1")
    for after, left in ((38, [38]), (30, [])):
        Checkpoints(tmp_path / "selected", writer=False).delete_after(after)
        assert checkpoints.rounds() == [38]
        checkpoints.delete_after(after)
        assert checkpoints.rounds() == left
    assert not list((tmp_path / "selected").iterdir())
    checkpoints.save(32, {"x": jnp.ones(1)})
    assert checkpoints.rounds() == [32]


def test_what_killed_processes_left_is_ignored_and_then_swept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, np.arange(3))
    shutil.copytree(tmp_path / "00000001", tmp_path / ".unfinished-00000002")
    (tmp_path / ".unfinished-00000000").mkdir()
    assert checkpoints.latest() == 1
    assert len(os.listdir(tmp_path)) == 3  # a reader sweeps nothing
    checkpoints.save(2, np.arange(3))
    assert sorted(os.listdir(tmp_path)) == ["00000001", "00000002"]


def test_a_moved_run_is_restored(tmp_path):
    Checkpoints(tmp_path / "here").save(1, np.arange(1000))
    (tmp_path / "here").rename(tmp_path / "there")
    assert_same(Checkpoints(tmp_path / "there").restore(1, np.arange(1000))[0], np.arange(1000))


def test_another_structure_is_refused_by_leaf(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    state = {"net": Net({"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)}), "key": jax.random.key(0)}
    checkpoints.save(1, state)

    def message(like: Any) -> str:
        with pytest.raises(ValueError, match="does not fit this run") as error:
            checkpoints.restore(1, like)
        assert "\n" not in str(error.value)
        return str(error.value)

    def net(**change: np.ndarray) -> Any:
        return state | {"net": Net(state["net"].params | change)}

    wide = np.zeros((4, 2), np.float32)
    assert "leaf net/params/w is float32[3,2] there, float32[4,2] is wanted;" in message(net(w=wide))
    assert "leaf net/params/b is float32[2] there, float64[2] is wanted;" in message(net(b=np.zeros(2)))
    assert "leaf net/params/c is nothing there, int64[] is wanted;" in message(net(c=np.array(0)))
    assert "leaf key is key<fry>[] there, nothing is wanted;" in message({"net": state["net"]})
    assert "leaf key is key<fry>[] there, key<rbg>[] is wanted;" in message(state | {"key": jax.random.key(0, impl="rbg")})
    assert "(and 3 more)" in message({"other": state["net"].params["w"]})
    checkpoints.save(1, {"x": np.zeros(1)})
    with pytest.raises(ValueError, match="leaf x is wanted as a jax array of float64, which needs jax_enable_x64"):
        checkpoints.restore(1, {"x": jax.ShapeDtypeStruct((1,), np.float64)})


def test_fields_that_changed_places_are_found_by_name(tmp_path):
    Checkpoints(tmp_path).save(1, Net(np.zeros(2), np.ones(2)))

    class Swapped(NamedTuple):
        stats: Any
        params: Any

    restored, _ = Checkpoints(tmp_path).restore(1, Swapped(np.empty(2), np.empty(2)))
    assert restored.stats.tolist() == [1, 1]


def test_what_cannot_be_saved(tmp_path):
    checkpoints = Checkpoints(tmp_path / "none")
    with pytest.raises(TypeError, match="net/params is a str; a checkpoint holds arrays of numbers"):
        checkpoints.save(1, {"net": Net("relu")})
    with pytest.raises(TypeError, match="0 is a ndarray of object"):
        checkpoints.save(1, [np.array([{}])])
    with pytest.raises(TypeError, match=r"record\.method is a function"):
        checkpoints.save(1, {}, {"method": every_leaf})
    with pytest.raises(ValueError, match="two leaves are called a/b"):
        checkpoints.save(1, {"a": {"b": 1}, "a/b": 2})
    with pytest.raises(ValueError, match="round is -1"):
        checkpoints.save(-1, {})
    assert not (tmp_path / "none").exists()


def test_a_damaged_checkpoint_names_the_older_ones_and_the_way_back(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for number in (1, 4, 9):
        checkpoints.save(number, np.full(1000, number), {"touched": [number]})
    shutil.rmtree(tmp_path / "00000009" / "arrays")
    way = f"; older: round 1, 4; to go back to round 4 rename {tmp_path}/00000009 to 00000009.damaged and call again"
    with pytest.raises(OSError, match=f"the checkpoint of round 9 cannot be used .cannot read {tmp_path}/00000009: ") as error:
        checkpoints.restore(9, np.arange(1000))
    assert str(error.value).endswith(way)
    assert "\n" not in str(error.value)
    (tmp_path / "00000009").rename(tmp_path / "00000009.damaged")  # as it says
    assert checkpoints.latest() == 4
    assert checkpoints.restore(4, np.arange(1000))[0][0] == 4
    checkpoints.save(9, np.full(1000, 9))
    assert checkpoints.rounds() == [1, 4, 9]
    shutil.rmtree(tmp_path / "00000001" / "arrays")
    with pytest.raises(OSError, match="there is no older one; start anew in another directory"):
        checkpoints.restore(1, np.arange(1000))


def test_every_flipped_bit_is_recognised_or_harmless(tmp_path):
    """A bit of every byte of the small files, and of some bytes of Orbax's: an error, or the arrays bit for bit."""
    noise = np.random.default_rng(0)
    state = {
        "large": noise.standard_normal(5000).astype(np.float32),  # in a file of its own, which Orbax does not check
        "coarse": jnp.asarray(noise.standard_normal((2, 3)), jnp.bfloat16),
        "key": jax.random.key(3),
        "round": 7,
    }
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(2, state, {"touched": [3, 1]})
    place = tmp_path / "00000002"
    reasons = set()
    for file in sorted(path for path in place.rglob("*") if path.is_file()):
        whole = file.read_bytes()
        for at in range(0, len(whole), 1 if file.parent == place else 1 + len(whole) // 8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << (at % 8)
            file.write_bytes(flipped)
            said = ""
            try:
                restored, record = checkpoints.restore(2, state)
            except (ValueError, OSError) as error:
                said = str(error)
            if said:
                assert "\n" not in said
                assert "the checkpoint of round 2 cannot be used" in said
                reasons.add(said.split(" is not what was written")[0].rpartition("damaged: ")[2])
            else:
                assert_same(restored, state)
                assert record == {"touched": [3, 1]}
        file.write_bytes(whole)
    assert {"leaf large", "it"} <= reasons  # the array's digest, and that of a file, were needed
    assert_same(checkpoints.restore(2, state)[0], state)


def test_a_checkpoint_without_digests_is_restored_aloud(tmp_path, caplog):
    """As versions before digests wrote them."""
    state = {"w": np.arange(5)}
    Checkpoints(tmp_path).save(1, state)
    Checkpoints(tmp_path).restore(1, state)
    assert not caplog.records
    (tmp_path / "00000001" / "digests.json").unlink()
    restored, _ = Checkpoints(tmp_path).restore(1, state)
    assert_same(restored, state)
    assert "00000001 has no digests" in caplog.text


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("record.json", "[3]", r"record\.json is a list, expected an object"),
        ("leaves.json", "{}", r"leaves\.json is an object, expected a list"),
        ("leaves.json", '[{"path": "w", "dtype": 3}]', r"\[0\]\.dtype of .*leaves\.json is an int \(3\), expected a string"),
        ("leaves.json", "[" * 100_000, r"leaves\.json is nested more than 100 levels deep"),
        ("digests.json", "[]", r"digests\.json is a list, expected an object"),
    ],
)
def test_json_of_another_shape_is_told(tmp_path, file, content, said):
    Checkpoints(tmp_path).save(1, {"w": np.arange(5)})
    if file != "digests.json":
        (tmp_path / "00000001" / "digests.json").unlink()  # of an earlier version, or the digest would tell
    (tmp_path / "00000001" / file).write_text(content)
    with pytest.raises(ValueError, match=said) as error:
        Checkpoints(tmp_path).restore(1, {"w": np.arange(5)})
    assert "\n" not in str(error.value)


def test_a_process_that_does_not_write(tmp_path):
    Checkpoints(tmp_path / "x", writer=False).save(1, np.arange(3))
    assert not (tmp_path / "x").exists()


def test_inside_a_running_event_loop(tmp_path):
    """As in a notebook; the loop is left as it was found."""

    async def cell() -> Any:
        loop = asyncio.get_running_loop()
        Checkpoints(tmp_path).save(1, {"x": jnp.arange(5)})
        await asyncio.sleep(0)
        restored, _ = Checkpoints(tmp_path).restore(1, {"x": jnp.arange(5)})
        assert asyncio.get_running_loop() is loop
        assert not hasattr(asyncio, "_nest_patched")
        return restored

    assert_same(asyncio.run(cell()), {"x": jnp.arange(5)})


def test_kills_leave_a_consistent_checkpoint(tmp_path):
    """SIGKILL at random moments of a loop that does nothing but save, replace, and delete."""
    code = """
    import sys
    import numpy as np
    from fedjax_core.storage.checkpoints import Checkpoints
    checkpoints = Checkpoints(sys.argv[1], keep=2)
    like = {f"layer {i}": np.zeros(20_000, np.int64) for i in range(4)} | {"empty": np.zeros(0)}
    last = checkpoints.latest()
    if last is not None:
        state, record = checkpoints.restore(last, like)
        assert all((value == last).all() for value in state.values()), state
        assert record == {"round": last}
    sys.stdout.write(f"{-1 if last is None else last}\\n"), sys.stdout.flush()
    for round in range(0 if last is None else last, 10**6):
        checkpoints.save(round, {name: np.full_like(x, round) for name, x in like.items()}, {"round": round})
        sys.stdout.write(f"{round}\\n"), sys.stdout.flush()
    """
    moments = random.Random(0)
    told = -1
    for _ in range(3):
        with start(code, tmp_path) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            lines = [process.stdout.readline() for _ in range(4)]
            time.sleep(moments.uniform(0, 0.15))
            process.kill()
            lines += process.stdout.readlines()
            assert process.stderr.read() == ""
        assert int(lines[0]) in (told, told + 1)  # complete, but killed before it could say so
        told = int(lines[-1])
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    assert latest > 3
    assert len(Checkpoints(tmp_path).rounds()) <= 3


def test_a_full_disk_leaves_earlier_checkpoints(tmp_path):
    """A limit on the size of files in its place, above and below what Orbax needs for the arrays; nothing is logged."""
    code = """
    import os, resource, sys
    import numpy as np
    from absl import logging
    from fedjax_core.storage.checkpoints import Checkpoints
    logging.set_verbosity(logging.DEBUG)
    noise = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8)
    checkpoints = Checkpoints(sys.argv[1])
    checkpoints.save(1, noise)
    before, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (10, 100_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            checkpoints.save(2, noise)
        except OSError as error:
            message = str(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, resource.RLIM_INFINITY))
        assert os.listdir(sys.argv[1]) == ["00000001"], os.listdir(sys.argv[1])
        assert (checkpoints.restore(1, noise)[0] == noise).all()
        sys.stdout.write(message + "\\n")
    checkpoints.save(2, noise)
    assert checkpoints.rounds() == [1, 2]
    """
    messages = run(code, tmp_path).splitlines()
    assert len(messages) == 2
    for message in messages:
        start = f"[Errno 27] cannot write the checkpoint of round 2 (earlier ones are intact) in {tmp_path}: "
        assert message.startswith(start)
        assert message.endswith("File too large")


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write the checkpoint of round 1 .* in .*/file/x: Not a directory"):
        Checkpoints(tmp_path / "file" / "x").save(1, {})


def test_other_numbers_of_devices(tmp_path):
    """Saved on 8, restored and saved on 1, restored on 8."""

    def lay(devices):
        mesh = jax.make_mesh((devices,), ("clients",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
        split, whole = NamedSharding(mesh, PartitionSpec("clients")), NamedSharding(mesh, PartitionSpec())
        return {
            "clients": jax.device_put(jnp.arange(32.0, dtype=jnp.bfloat16).reshape(16, 2), split),
            "server": jax.device_put(jnp.arange(5.0), whole),
            "keys": jax.device_put(jax.random.split(jax.random.key(1), 16), split),
            "key": jax.random.key(2),
        }

    Checkpoints(tmp_path).save(0, lay(8))
    for round_num, devices in enumerate((1, 8)):
        like = lay(devices)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)
        for form in (like, shapes):
            restored, _ = Checkpoints(tmp_path).restore(round_num, form)
            assert_same(restored, like)
            assert all(restored[name].sharding == like[name].sharding for name in like)
            assert len(restored["clients"].sharding.device_set) == devices
        Checkpoints(tmp_path).save(round_num + 1, restored)


def test_restored_to_where_the_state_lies(tmp_path):
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("clients"))
    state = {
        "split": jax.device_put(jnp.arange(8.0 * len(devices)), split),
        "last": jax.device_put(jnp.zeros(1), devices[-1]),
        "anywhere": jnp.zeros(2),
    }
    Checkpoints(tmp_path).save(1, state)
    restored, _ = Checkpoints(tmp_path).restore(1, state)
    assert_same(restored, state)
    assert restored["split"].sharding == split
    assert restored["last"].devices() == {devices[-1]}
    assert (restored["last"].committed, restored["anywhere"].committed) == (True, False)


def test_two_processes(tmp_path):
    """Process 0 writes what is replicated, both restore it, onto devices of both."""
    code = """
    import sys
    import jax, jax.numpy as jnp, numpy as np
    port, me, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    jax.distributed.initialize(f"localhost:{port}", 2, me)
    from jax.experimental import multihost_utils
    from jax.sharding import NamedSharding, PartitionSpec
    from fedjax_core.storage.checkpoints import Checkpoints
    mesh = jax.make_mesh((2,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("clients"))
    put = lambda x, sharding: jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    state = {"net": put(np.arange(6.0, dtype=np.float32), whole), "local": jnp.arange(3), "host": np.arange(2),
             "key": jax.random.key(3)}
    checkpoints = Checkpoints(directory)
    for round in (1, 2):
        checkpoints.save(round, state, {"round": round})
    try:
        checkpoints.save(3, {"rows": put(np.arange(4.0), split)})
        assert me == 1
    except ValueError as error:
        assert "rows is sharded over several processes" in str(error)
    multihost_utils.sync_global_devices("saved")
    assert checkpoints.rounds() == [1, 2]
    like = state | {"net": jax.ShapeDtypeStruct((6,), np.float32, sharding=split),
                    "key": jax.ShapeDtypeStruct((), state["key"].dtype, sharding=whole)}
    restored, record = checkpoints.restore(2, like)
    assert record == {"round": 2}
    assert restored["net"].sharding == split
    assert restored["net"].addressable_data(0).tolist() == [[0, 1, 2], [3, 4, 5]][me]
    assert restored["key"].sharding.is_fully_replicated and len(restored["key"].sharding.device_set) == 2
    assert restored["local"].tolist() == [0, 1, 2]
    again, _ = checkpoints.restore(1, state)
    assert again["net"].sharding == whole
    total = jax.jit(lambda x: x.sum(), out_shardings=whole)(again["net"])
    assert float(total) == 15
    sys.stdout.write("done")
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    both = [start(code, port, me, tmp_path) for me in range(2)]
    results = [process.communicate(timeout=120) for process in both]
    for process, (output, errors) in zip(both, results, strict=True):
        assert process.returncode == 0, errors
        assert output.endswith("done")
