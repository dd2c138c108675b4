"""The records of a run, read back: metrics.jsonl, checked, and made again from metrics.csv where a part of it is lost."""

import csv
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_core.atomic_files import read_bytes, write_text
from fedjax_core.storage.json_files import json_lines, read_jsonl
from fedjax_core.storage.workdir import METRICS

CSV = "metrics.csv"


def read(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl, in the order of their rounds.

    Raises:
      OSError: if the file cannot be read.
      ValueError: if a line is not JSON, or no record of a round that comes after those before it; one line that says which.
    """
    found, last = read_jsonl(path), 0
    for number, record in enumerate(found, 1):
        where = f"line {number} of {os.fspath(path)}"
        done = record.get("round") if isinstance(record, dict) else None
        if not isinstance(done, int) or isinstance(done, bool):
            raise ValueError(f"{where} is no record of a round, such as {{'round': 3}}; remove that line")
        if done <= last:
            raise ValueError(f"{where} is of round {done}, after one of round {last}; remove one of them")
        last = done
    return found


def kept(folder: Path, done: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """The records of rounds 1 ... `done`, all of them.

    Where metrics.jsonl lacks some that metrics.csv has, it is written again from that, aloud.

    Args:
      folder: of the run.
      done: the round of the checkpoint that the run goes on from.
      say: takes a line of text.

    Raises:
      OSError: if a file cannot be read or written.
      ValueError: if neither file has them all, or metrics.jsonl holds something else.
    """
    file = folder / METRICS
    records = read(file) if file.exists() else []
    found, have = _whole(folder, records, done), sum(record["round"] <= done for record in records)
    if have < done:
        say(f"{file} had {have} of {done} rounds; the others are taken from {CSV}")
    if have < done or have < len(records):
        write_text(file, json_lines(found))
    return found


def whole(folder: Path, done: int) -> list[dict[str, Any]]:
    """What `kept` gives, for who does not have the run's lock: no file is changed.

    Args:
      folder: of the run.
      done: the last round that is wanted.

    Raises:
      OSError: if a file cannot be read.
      ValueError: if neither file has them all, or metrics.jsonl holds something else.
    """
    file = folder / METRICS
    return _whole(folder, read(file) if file.exists() else [], done)


def _whole(folder: Path, records: Sequence[dict[str, Any]], done: int) -> list[dict[str, Any]]:
    """The records of rounds 1 ... `done`: those of metrics.jsonl, and of metrics.csv what is not among them."""
    have = [record for record in records if record["round"] <= done]
    if _complete(have, done):
        return have
    of = {record["round"]: record for record in [*_from_csv(folder / CSV), *have]}
    rebuilt = [of[number] for number in sorted(of) if number <= done]
    if not _complete(rebuilt, done):
        missing = next(number for number in range(1, done + 1) if number not in of)
        raise ValueError(
            f"{folder / METRICS} has {len(have)} of the {done} rounds that the checkpoint has done, and {CSV} has not the others "
            f"(round {missing} is missing); restore it, or take another directory"
        )
    return rebuilt


def _complete(records: Sequence[Mapping[str, Any]], done: int) -> bool:
    return [record["round"] for record in records] == list(range(1, done + 1))


def _from_csv(file: Path) -> list[dict[str, Any]]:
    """What a metrics.csv has, as records; nothing if there is none. Cells that are no numbers stay text."""
    if not file.exists():
        return []
    text = read_bytes(file).decode(errors="replace")
    rows = csv.DictReader(text.splitlines())
    found = [{name: _value(cell) for name, cell in row.items() if name and cell not in (None, "")} for row in rows]
    return [record for record in found if isinstance(record.get("round"), int)]


def _value(cell: str) -> Any:
    if re.fullmatch(r"-?\d+", cell):
        return int(cell)
    try:
        return float(cell)
    except ValueError:
        return cell
