"""JSON files: round trips, schemas, and files damaged by a killed process or an editor."""

import json
import math
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.storage.json_files import JsonLinesFile, PositiveInt, check_schema, read_json, read_jsonl, write_json


def test_values_of_every_kind_survive(tmp_path):
    value = {
        "numpy": np.float32(0.5),
        "jax": jnp.arange(3),
        "flag": np.True_,
        "none": None,
        "nan": math.nan,
        "worst": [math.inf, -math.inf],
        "path": Path("a/b"),
        1: "key",
    }
    write_json(tmp_path / "x.json", value)
    strict = json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail)
    assert strict["nan"] == "NaN"
    assert strict["worst"] == ["Infinity", "-Infinity"]
    read = read_json(tmp_path / "x.json")
    assert math.isnan(read.pop("nan"))
    assert read == {
        "numpy": 0.5,
        "jax": [0, 1, 2],
        "flag": True,
        "none": None,
        "worst": [math.inf, -math.inf],
        "path": "a/b",
        "1": "key",
    }


def test_json_lines(tmp_path):
    file = JsonLinesFile(tmp_path / "x.jsonl")
    file.append({"round": 1, "loss": np.float32(math.nan)})
    assert len(read_jsonl(tmp_path / "x.jsonl")) == 1  # without closing
    file.append({"round": 2}, {"round": 3})
    file.append()
    file.close()
    first, *others = read_jsonl(tmp_path / "x.jsonl")
    assert math.isnan(first["loss"])
    assert others == [{"round": 2}, {"round": 3}]
    with pytest.raises(OSError, match=f"cannot read {tmp_path}/none.jsonl: No such file"):
        read_jsonl(tmp_path / "none.jsonl")


@pytest.mark.parametrize("torn", ['{"round": 3, "lo', '{"round": 3}', "\x00\x00"])
def test_a_torn_last_line_is_left_out_and_then_cut(tmp_path, torn):
    path = tmp_path / "x.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n' + torn)
    assert read_jsonl(path) == [{"round": 1}, {"round": 2}]
    file = JsonLinesFile(path)
    file.append({"round": 4})
    file.close()
    assert path.read_text() == '{"round": 1}\n{"round": 2}\n{"round": 4}\n'


def test_a_broken_line_in_the_middle_is_told(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"round": 1}\n{"rou\n{"round": 2}\n')
    with pytest.raises(ValueError, match=f"line 2 of {tmp_path}/x.jsonl is not JSON"):
        read_jsonl(tmp_path / "x.jsonl")


def test_lines_survive_a_kill(tmp_path):
    code = """
    import sys
    from fedjax_core.storage.json_files import JsonLinesFile
    file = JsonLinesFile(sys.argv[1])
    for round in range(10**6):
        file.append({"round": round, "filling": "x" * 5000})
        sys.stdout.write(f"{round}\\n"), sys.stdout.flush()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "x.jsonl")]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[3], env=os.environ | {"JAX_PLATFORMS": "cpu"}, text=True, stdout=-1
    )
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    process.kill()
    told = process.communicate()[0].splitlines()
    rounds = [record["round"] for record in read_jsonl(tmp_path / "x.jsonl")]
    assert rounds == list(range(len(rounds)))
    assert len(rounds) >= 20 + len([line for line in told if line])


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "[" * 500 + "]" * 500, "\xff", "", "1" * 5000])
def test_no_text_ends_in_a_traceback(tmp_path, content):
    for name, read in (("x.json", read_json), ("x.jsonl", read_jsonl)):
        (tmp_path / name).write_text(content + "\n", encoding="latin-1")
        with pytest.raises(ValueError, match=f"{tmp_path}/{name} is (not JSON|nested more than 100 levels deep)") as error:
            read(tmp_path / name)
        assert "\n" not in str(error.value)


def test_lines_are_objects(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"round": 1}\n[2]\n')
    with pytest.raises(ValueError, match=f"line 2 of {tmp_path}/x.jsonl is a list, expected an object; remove that line"):
        read_jsonl(tmp_path / "x.jsonl")


def test_a_form_is_checked_before_anything_is_read_from_it(tmp_path):
    write_json(tmp_path / "x.json", {"rate": math.inf, "names": ["NaN"]})
    assert read_json(tmp_path / "x.json", {"rate": float, "names": [str], "more?": int})["rate"] == math.inf
    with pytest.raises(ValueError, match=rf"names\[0\] of {tmp_path}/x.json is a string \('NaN'\), expected an int; restore it"):
        read_json(tmp_path / "x.json", {"names": [int]})


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({"a": 1, "more": None}, {"a": int}),
        ({}, {"a?": int}),
        ({"x": [1, 2], "y": []}, {str: [int]}),
        ([1.5, 2, "NaN", "-Infinity"], [float]),
        (0.5, (float, [float])),
        ([0.5], (float, [float])),
        ({"chunk": 1}, {"chunk": PositiveInt}),
        (True, bool),
        (None, (str, type(None))),
    ],
)
def test_matching_values_pass(value, schema):
    check_schema(value, schema, "x.json")


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        (True, int, "x.json is true or false (True), expected an int!"),
        (1, bool, "x.json is an int (1), expected true or false!"),
        ("much", float, "x.json is a string ('much'), expected a number!"),
        ([[1], [2, "b"]], [[int]], "[1][1] of x.json is a string ('b'), expected an int!"),
        ({"plan": {"chunk": 1.5}}, {"plan?": {"chunk": int}}, "plan.chunk of x.json is a number (1.5), expected an int!"),
        ({"chunk": 0}, {"chunk": PositiveInt}, "chunk of x.json is an int (0), expected an int of at least 1!"),
        ({"chunk": True}, {"chunk": PositiveInt}, "chunk of x.json is true or false (True), expected an int of at least 1!"),
        ({"plan": {}}, {"plan": {"chunk": int}}, "plan of x.json has no chunk, expected an int!"),
        ({}, {"a": [int]}, "x.json has no a, expected a list!"),
        ({"a": {"b": 1}}, {str: {str: str}}, "a.b of x.json is an int (1), expected a string!"),
        ("s", (float, [float]), "x.json is a string ('s'), expected a number or a list!"),
        (["s"], (float, [float]), "[0] of x.json is a string ('s'), expected a number!"),
        ("x" * 1000, int, "x.json is a string ('" + "x" * 39 + "...), expected an int!"),
    ],
)
def test_a_mismatch_is_one_line(value, schema, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_schema(value, schema, "x.json", "!")
