"""A table is made again from the packed records of its runs."""

import tarfile

from docs import pack_records
from fedjax_core.commands.analyses import scalar_metrics
from fedjax_core.commands.tables import measures
from fedjax_core.reporting import reporter
from fedjax_core.storage import workdir
from fedjax_core.storage.json_files import read_json, write_json
from tests.fedjax_core.commands.tables.searches import run


def write_run(run_dir, rounds=4):
    """Writes what says that a run of four rounds is at this round."""
    run_dir.mkdir(parents=True, exist_ok=True)
    write_json(run_dir / workdir.CONFIG, {"rounds": 4})
    write_json(run_dir / "summary.json", {"rounds": rounds, "facts": {reporter.ENDED: "now"}})


def test_numbers_of_analyses_are_kept_and_need_no_checkpoint(tmp_path):
    run_dir = tmp_path / "first" / "runs" / "a"
    (run_dir / "checkpoints" / "00000004").mkdir(parents=True)
    write_run(run_dir)
    write_json(run_dir / "analysis.json", {"probe": {"round": 4, "value": 0.5}})
    pack_records.pack(tmp_path / "first", tmp_path / "a.tar.xz")
    with tarfile.open(tmp_path / "a.tar.xz") as opened:
        opened.extractall(tmp_path / "second", filter="data")
    unpacked = tmp_path / "second" / "runs" / "a"
    assert scalar_metrics.make_metric("probe")(unpacked) == 0.5
    assert measures.list_unknown_analyses(unpacked, ["analysis:probe", "analysis:match"]) == ["analysis:match"]


def test_a_trial_stays_a_run(tmp_path):
    """So the table can train it again, where another choice needs its checkpoint. An interrupted run is left out."""
    trial = tmp_path / "first" / "runs" / "a"
    write_run(trial)
    for name in (workdir.ENVIRONMENT, "clients.csv"):
        write_json(trial / name, {})
    write_run(tmp_path / "first" / "runs" / "interrupted", rounds=3)
    packed = {str(path.relative_to("runs")) for path, _ in pack_records.list_files(tmp_path / "first")}
    assert packed == {f"a/{name}" for name in (workdir.CONFIG, workdir.ENVIRONMENT, "summary.json")}


def test_a_table_is_made_again_from_packed_records(tmp_path, fake_search):
    outcome, _ = run(tmp_path / "first")
    for name in outcome.results:
        (tmp_path / "first" / "runs" / name / "checkpoints" / "00000004").mkdir(parents=True)
    for summary in (tmp_path / "first").glob("runs/*/summary.json"):
        write_json(summary.with_name(workdir.CONFIG), {"rounds": read_json(summary)["rounds"]})
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
