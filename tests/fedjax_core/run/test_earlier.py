"""The directory of a run that an earlier commit began can be gone on with.

`tests/fixtures/earlier_run` was written at commit 896959d: three rounds of SCAFFOLD (`smoke`, models=("mlp(widths=(3,))",), two
clients a round, plan.hold="host", a checkpoint each round, one kept), without its plots. Its environment says no place. Since then
clients' own test examples are drawn otherwise: the partition's hash and test table, and `own` scores, were written anew.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedjax_core import experiment
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import read_json, read_jsonl, write_json

EARLIER = Path(__file__).parents[2] / "fixtures" / "earlier_run"
TIMES = {"seconds", "compile_seconds"}


def test_a_run_of_an_earlier_commit_goes_on_as_if_it_were_of_this_one(tmp_path):
    resumed, anew = Path(shutil.copytree(EARLIER, tmp_path / "resumed")), tmp_path / "anew"
    config, _, state = experiment.load(resumed)
    assert int(state.round) == 3
    config.rounds = 4
    for directory in (resumed, anew):
        experiment.execute(config, str(directory), progress=False, console=lambda text: None)
    mine, theirs = (read_jsonl(directory / "metrics.jsonl") for directory in (resumed, anew))
    assert [record["round"] for record in mine] == [1, 2, 3, 4]
    assert mine[:3] == read_jsonl(EARLIER / "metrics.jsonl")
    for one, other in zip(mine, theirs, strict=True):
        assert one.keys() == other.keys()
        names = sorted(one.keys() - TIMES)
        np.testing.assert_allclose([one[name] for name in names], [other[name] for name in names], atol=1e-4, rtol=1e-4)
    kept = [states(Checkpoints(directory / "checkpoints")) for directory in (resumed, anew)]
    assert kept[0].keys() == kept[1].keys()
    for name, rows in kept[0].items():
        np.testing.assert_allclose(rows, kept[1][name], atol=1e-5, err_msg=name)


def test_a_field_that_this_version_does_not_have_is_left_out(tmp_path, caplog):
    directory = Path(shutil.copytree(EARLIER, tmp_path / "run"))
    config = read_json(directory / "config.json", dict)
    config["data"]["dropped"] = 3
    write_json(directory / "config.json", config)
    with caplog.at_level("WARNING", "fedjax_core"):
        assert "dropped" not in experiment.load(directory)[0].data
    assert "has a field data.dropped, which another version of the code wrote; it is left out" in caplog.text


def states(checkpoints: Checkpoints) -> dict[tuple[str, int], np.ndarray]:
    """By leaf and client, what the last part of round 4 that has it says."""
    parts = list(checkpoints.read_parts(4))
    return {
        (name, place): row
        for part in parts
        for name in part
        for place, row in zip(part["0/places"].tolist(), part[name], strict=True)
    }


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("config.json", "[]", "config.json is a list, expected an object"),
        ("config.json", "{}", "config.json has no method, expected an object"),
        ("run.json", "[]", "run.json is a list, expected an object"),
        ("run.json", "{}", "run.json has no partition, expected an object"),
        ("run.json", '{"partition": {}}', "partition of .*run.json has no hash, expected a string"),
        (
            "run.json",
            '{"partition": {"hash": "a"}, "plan": {"chunk": 0, "devices": 2}}',
            r"plan.chunk of .*run.json is an int \(0\), expected an int of at least 1",
        ),
    ],
)
def test_a_run_whose_files_have_another_form_is_not_loaded(tmp_path, file, text, said):
    directory = Path(shutil.copytree(EARLIER, tmp_path / "run"))
    (directory / file).write_text(text)
    with pytest.raises(ValueError, match=said):
        experiment.load(directory)


@pytest.mark.parametrize("file", ["config.json", "metrics.jsonl", "checkpoints/00000003/record.json"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path, file):
    directory = Path(shutil.copytree(EARLIER, tmp_path / "run"))
    config = experiment.load(directory)[0]
    (directory / file).unlink()
    os.mkfifo(directory / file)
    with pytest.raises(OSError, match="it is no regular file"):
        experiment.execute(config, str(directory), progress=False, console=lambda text: None)
