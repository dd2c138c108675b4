"""Safetensors files: what other programs read and write, and what damage does to them."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.storage.safetensors_files import read_tensors, write_tensors

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array(True),
    "é.x": np.arange(3, dtype=np.int64),
    "empty": np.zeros((0, 4), np.float16),
    "swapped": np.arange(4, dtype=">i4"),
    "view": np.arange(12, dtype=np.uint8).reshape(3, 4).T[1:],
}


def test_other_programs_read_and_write_the_same(tmp_path):
    package = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "x.safetensors"
    write_tensors(path, ARRAYS, {"who": "us"})
    for name, found in package.load_file(path).items():
        np.testing.assert_array_equal(found, ARRAYS[name])
        assert found.dtype == ARRAYS[name].dtype.newbyteorder("<")
    plain = {name: np.ascontiguousarray(a) for name, a in ARRAYS.items() if name != "swapped"}
    package.save_file(plain, path, {"who": "them"})
    found, metadata = read_tensors(path)
    assert metadata == {"who": "them"}
    assert found.keys() == plain.keys()
    for name, array in plain.items():
        np.testing.assert_array_equal(found[name], array)


def test_bits_of_small_floats_as_other_programs_see_them(tmp_path):
    package = pytest.importorskip("safetensors")
    write_tensors(tmp_path / "x", {"w": jnp.asarray([1.5, -0.0, jnp.inf], jnp.bfloat16)}, {})
    ((name, entry),) = package.deserialize((tmp_path / "x").read_bytes())
    assert (name, entry["dtype"], entry["shape"]) == ("w", "BF16", [3])
    assert bytes(entry["data"]) == np.array([0x3FC0, 0x8000, 0x7F80], "<u2").tobytes()


def file(header, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        file({}, size=2**63),
        file(b"{" * 100_000),
        file(b"\xff\xfe"),
        file([1]),
        file({"a": 1}),
        file({"a": entry("F31")}, b"1234"),
        file({"a": entry(shape=(2,))}, b"1234"),
        file({"a": entry(shape=(-1, -1))}, b"1234"),
        file({"a": entry(shape=("x",))}, b"1234"),
        file({"a": entry(offsets=(4, 8))}, b"12345678"),  # a gap
        file({"a": entry(), "b": entry()}, b"1234"),  # an overlap
        file({"a": entry(offsets=(-4, 0))}, b"1234"),
        file({"a": entry()}, b"123"),
        file({"a": entry()}, b"12345"),
    ],
)
def test_damaged_files_are_refused(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(path)) + " is not a safetensors file"):
        read_tensors(path)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"__metadata__": ["a"]}, "__metadata__ of its header is a list, expected an object"),
        ({"__metadata__": {"who": 3}}, "__metadata__.who of its header is an int (3), expected a string"),
        ({"a": [1]}, "a of its header is a list, expected an object"),
        ({"a": {"dtype": "F32", "shape": [1]}}, "a of its header has no data_offsets, expected a list"),
        (
            {"a": {"dtype": "F32", "shape": 3, "data_offsets": [0, 4]}},
            "a.shape of its header is an int (3)",
        ),
        ({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, "a.shape[0] of its header is a number (1.0)"),
        ({"a": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}, "a is of F31, expected one of"),
        (
            {"a": {"dtype": "F32", "shape": [2**42], "data_offsets": [0, 2**44]}},
            "a of F32[4398046511104] has offsets [0, 17592186044416], expected [0, 17592186044416] of 4",
        ),
        ({"a": {"dtype": "F32", "shape": [2**70, 0], "data_offsets": [0, 0]}}, ""),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, "has offsets [0, 4, 8], expected [0, 4]"),
        ({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, "its tensors have 1 bytes, expected 4"),
        (b"[" * 100_000, "nested too deeply"),
        ([1], "its header is a list, expected an object"),
    ],
)
def test_what_is_wrong_with_a_header_is_said(tmp_path, header, said):
    path = tmp_path / "x.safetensors"
    path.write_bytes(file(header, b"1234"))
    with pytest.raises(ValueError, match=re.escape(f"{path} is not a safetensors file, or is damaged: ")) as error:
        read_tensors(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_every_cut_is_noticed(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": ARRAYS["a"]}, {})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is not a safetensors file"):
            read_tensors(path)


def bits(arrays):
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}


def test_every_flipped_bit_is_recognised_or_harmless(tmp_path):
    path = tmp_path / "x.safetensors"
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.int16)}
    write_tensors(path, arrays, {"description": '{"mean": 0.5}'})
    whole, recognised = path.read_bytes(), 0
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << (at % 8)
        path.write_bytes(flipped)
        said = ""
        try:
            found, metadata = read_tensors(path)
        except ValueError as error:
            said = str(error)
        if said:
            recognised += 1
            assert "damaged" in said or "truncated" in said
            assert "\n" not in said
        else:  # the entry of the digests has another name, and there is nothing else wrong
            assert metadata["description"] == '{"mean": 0.5}'
            assert bits(found) == bits(arrays)
    assert recognised >= len(whole) - len("digests")


def test_an_altered_array_is_named_where_arrays_are_read(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": np.zeros(4, np.float32)}, {"who": "us"})
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\x01")
    with pytest.raises(ValueError, match=rf"{path} is damaged: a is not what was written \(its digest differs\)"):
        read_tensors(path)
    assert read_tensors(path, checked=False)[1] == {"who": "us"}
    path.write_bytes(whole.replace(b'"who": "us"', b'"who": "me"'))
    with pytest.raises(ValueError, match=rf"{path} is damaged: who is not what was written"):
        read_tensors(path, checked=False)


def test_dtypes_that_the_format_has_not(tmp_path):
    with pytest.raises(TypeError, match="w is of complex64, which safetensors does not support"):
        write_tensors(tmp_path / "x", {"w": np.zeros(2, np.complex64)}, {})
    assert not (tmp_path / "x").exists()
