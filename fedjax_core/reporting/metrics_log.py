"""Reads a run's records from metrics.jsonl, and restores missing ones from metrics.csv."""

import csv
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedjax_core.atomic_files import read_bytes, write_text
from fedjax_core.storage.json_files import format_json_lines, read_jsonl
from fedjax_core.storage.workdir import METRICS

CSV = "metrics.csv"


def read_records(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads the records of a metrics.jsonl.

    Raises:
      ValueError: a line is not the record of a later round; one line that names it.
    """
    records, last = read_jsonl(path), 0
    for number, record in enumerate(records, 1):
        where = f"line {number} of {os.fspath(path)}"
        done = record.get("round")
        if not isinstance(done, int) or isinstance(done, bool):
            raise ValueError(f"{where} is not the record of a round, such as {{'round': 3}}; remove that line")
        if done <= last:
            raise ValueError(f"{where} is of round {done}, after one of round {last}; remove one of them")
        last = done
    return records


def restore_records(folder: Path, done: int, say: Callable[[str], None]) -> None:
    """Cuts metrics.jsonl to rounds 1 ... `done`.

    Missing records are restored from metrics.csv, with a message by `say`.

    Raises:
      ValueError: the files together lack a round, or metrics.jsonl is malformed.
    """
    file = folder / METRICS
    records = read_records(file) if file.exists() else []
    complete, present = _complete_records(folder, records, done), sum(record["round"] <= done for record in records)
    if present < done:
        say(f"{file} had {present} of {done} rounds; the others are taken from {CSV}")
    if present < done or present < len(records):
        write_text(file, format_json_lines(complete))


def read_complete_records(folder: Path, done: int) -> list[dict[str, Any]]:
    """Returns the records of rounds 1 ... `done` for a process without the lock; changes no file.

    Raises:
      ValueError: as `restore_records`.
    """
    file = folder / METRICS
    return _complete_records(folder, read_records(file) if file.exists() else [], done)


def _complete_records(folder: Path, records: Sequence[dict[str, Any]], done: int) -> list[dict[str, Any]]:
    """Returns the records of rounds 1 ... `done`: those logged, and missing ones from metrics.csv."""
    logged = {record["round"]: record for record in records if record["round"] <= done}
    if len(logged) == done:
        return list(logged.values())
    available = {record["round"]: record for record in _read_csv(folder / CSV)} | logged
    missing = [number for number in range(1, done + 1) if number not in available]
    if missing:
        raise ValueError(
            f"{folder / METRICS} has {len(logged)} of the {done} rounds of the checkpoint, and {CSV} lacks round {missing[0]}; "
            "restore it, or take another directory"
        )
    return [available[number] for number in range(1, done + 1)]


def _read_csv(file: Path) -> list[dict[str, Any]]:
    """Returns the records of a metrics.csv, if there is one; cells may be strings."""
    if not file.exists():
        return []
    text = read_bytes(file).decode(errors="replace")
    rows = csv.DictReader(text.splitlines())
    records = [{name: _parse_cell(cell) for name, cell in row.items() if name and cell not in (None, "")} for row in rows]
    return [record for record in records if isinstance(record.get("round"), int)]


def _parse_cell(cell: str) -> Any:
    if re.fullmatch(r"-?\d+", cell):
        return int(cell)
    try:
        return float(cell)
    except ValueError:
        return cell
