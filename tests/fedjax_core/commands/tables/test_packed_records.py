"""A table is made again from the packed records of its runs."""

import tarfile

from docs import pack_records
from tests.fedjax_core.commands.tables.searches import run


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
