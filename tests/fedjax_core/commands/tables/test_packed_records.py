"""A table is made again from the packed records of its runs."""

import tarfile

from docs import pack_records
from fedjax_core.commands.analyses import scalar_metrics
from fedjax_core.commands.tables import measures
from fedjax_core.storage import workdir
from fedjax_core.storage.json_files import write_json
from tests.fedjax_core.commands.tables.searches import run


def test_numbers_of_analyses_are_kept_and_need_no_checkpoint(tmp_path):
    run_dir = tmp_path / "first" / "runs" / "a"
    (run_dir / "checkpoints" / "00000004").mkdir(parents=True)
    write_json(run_dir / "summary.json", {})
    write_json(run_dir / "analysis.json", {"probe": {"round": 4, "value": 0.5}})
    pack_records.pack(tmp_path / "first", tmp_path / "a.tar.xz")
    with tarfile.open(tmp_path / "a.tar.xz") as opened:
        opened.extractall(tmp_path / "second", filter="data")
    unpacked = tmp_path / "second" / "runs" / "a"
    assert scalar_metrics.make_metric("probe")(unpacked) == 0.5
    assert measures.list_unknown_analyses(unpacked, ["analysis:probe", "analysis:match"]) == ["analysis:match"]


def test_a_trial_stays_a_run(tmp_path):
    """So the table can train it again, where another choice needs its checkpoint."""
    trial = tmp_path / "first" / "runs" / "a"
    trial.mkdir(parents=True)
    for name in (workdir.CONFIG, workdir.ENVIRONMENT, "summary.json", "clients.csv"):
        write_json(trial / name, {})
    packed = {path.name for path, _ in pack_records.list_files(tmp_path / "first")}
    assert packed == {workdir.CONFIG, workdir.ENVIRONMENT, "summary.json"}


def test_a_table_is_made_again_from_packed_records(tmp_path, fake_search):
    outcome, _ = run(tmp_path / "first")
    for name in outcome.results:
        (tmp_path / "first" / "runs" / name / "checkpoints" / "00000004").mkdir(parents=True)
    for name in ("a.tar.xz", "b.tar.xz"):
        pack_records.pack(tmp_path / "first", tmp_path / name)
    assert (tmp_path / "a.tar.xz").read_bytes() == (tmp_path / "b.tar.xz").read_bytes()
    with tarfile.open(tmp_path / "a.tar.xz") as opened:
        opened.extractall(tmp_path / "second", filter="data")
    fake_search.done.clear()
    again, _ = run(tmp_path / "second")
    assert fake_search.done == []
    assert again.results.keys() == outcome.results.keys()
    for name in ("table.md", "table.csv", "trials.csv"):
        assert (tmp_path / "first" / name).read_text() == (tmp_path / "second" / name).read_text()
    trial = next(path for path in (tmp_path / "second" / "runs").iterdir() if path.name not in outcome.results)
    assert "test/global" not in (trial / "metrics.jsonl").read_text()
