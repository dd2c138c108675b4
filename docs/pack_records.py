"""Packs the records of a table's finished runs into one small file, from which the table is made again.

python docs/pack_records.py runs/fair configs/results/records/fair.tar.xz

Unpacked into a table's directory (`tar xf FILE -C DIR`), the runs are found finished, and the same
command, with the same `data.dir`, makes the tables and runs what is missing. Runs from a file of
weights are found only where the very file is, whose content is a part of their names. A run that is
no trial and diverged counts as missing: it is trained again, over its record. Of a trial the metrics
are those on validation examples, which chose the settings; of all other runs everything is kept but
checkpoints, figures and TensorBoard files.
"""

import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from fedjax_core.commands.tables.results import is_over
from fedjax_core.storage.json_files import read_json

OF_TRIALS = ("config.json", "environment.json", "run.json", "summary.json", "metrics.jsonl", "diverged.txt")
KEPT = (*OF_TRIALS, "clients.csv", "clients_selected.csv", "analysis.json")


def list_files(table: Path) -> Iterator[tuple[Path, bytes]]:
    """Yields what is kept of finished and diverged runs: the path in the table's directory, and the bytes.

    A run is a trial if the table's search began it and deleted its checkpoints.
    """
    configs = sorted(table.glob("runs/*/config.json"))
    runs = [c.parent for c in configs if c.with_name("diverged.txt").exists() or is_over(c.parent, read_json(c)["rounds"])]
    for name in KEPT:  # files of one kind together, for the compression
        for run in runs:
            file, is_trial = run / name, not any(run.glob("checkpoints/*"))
            if not file.exists() or (is_trial and name not in OF_TRIALS):
                continue
            content = file.read_bytes()
            if is_trial and name == "metrics.jsonl":
                content = b"".join(map(_keep_validation, content.splitlines()))
            yield file.relative_to(table), content


def _keep_validation(line: bytes) -> bytes:
    record = json.loads(line)
    kept = {key: value for key, value in record.items() if key.startswith("validation/") or "/" not in key}
    return json.dumps(kept, separators=(",", ":")).encode() + b"\n"


def pack(table: Path, archive: Path) -> None:
    """Writes the archive; equal runs give equal bytes."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as opened:
        for path, content in list_files(table):
            entry = tarfile.TarInfo(path.as_posix())
            entry.size = len(content)
            opened.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
