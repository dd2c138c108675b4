"""Label tables of a run: whole in run.json where they can be read, else their sums there and the whole in a CSV.

    client,of_partition,part,cat,dog,owl
    0,0,train,3,0,4
    0,0,test,1,1,0

A row per client and part. Unseen clients follow the population: N, N + 1, ...; `of_partition` is its number in the partition.
"""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.storage.files import explained, write_text
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import RUN

FILE = "label_table.csv"
READABLE = 50  # clients; of more nothing has a line each but CSV files
_HEADS = ["client", "of_partition", "part"]
Tables = Mapping[str, np.ndarray]  # by part ("train", "test"), [N, K]


def of_run(tables: Tables) -> dict[str, Any]:
    """What run.json has of the tables."""
    (number, _) = next(iter(tables.values())).shape
    if number <= READABLE:
        return {("" if part == "train" else f"{part}_") + "label_table": table.tolist() for part, table in tables.items()}
    return {"number": number, "whole": FILE, **{f"{part}_rows": _sums(table) for part, table in tables.items()}}


def _sums(table: np.ndarray) -> dict[str, Any]:
    rows, classes = table.sum(1), (table > 0).sum(1)
    spread = {"smallest": int(rows.min()), "median": float(np.median(rows)), "largest": int(rows.max())}
    few, many = int(classes.min()), int(classes.max())
    return {"sum": int(rows.sum()), **spread, "fewest_classes": few, "most_classes": many, "of_class": table.sum(0).tolist()}


def write(folder: Path, class_names: Sequence[str], clients: Sequence[tuple[np.ndarray, Tables]]) -> None:
    """Writes the CSV.

    Args:
      folder: of the run.
      class_names: K names.
      clients: of the population, then of unseen ones: (their numbers in the partition, their tables).

    Raises:
      OSError: it cannot be written.
    """
    text, first = io.StringIO(newline=""), 0
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_HEADS, *class_names])
    for ids, tables in clients:
        known = ids.tolist()
        for part, table in tables.items():
            writer.writerows([first + at, known[at], part, *row] for at, row in enumerate(table.tolist()))
        first += len(known)
    write_text(folder / FILE, text.getvalue())


def partition_of(folder: str | os.PathLike) -> dict[str, Any]:
    """What a run recorded of its partition, with the population's whole "label_table" of training rows if there is one.

    Raises:
      OSError: a file cannot be read.
    """
    folder = Path(folder)
    records = read_json(folder / RUN) if (folder / RUN).exists() else {}
    found = dict(records.get("partition", {}))
    if "whole" in found and (folder / found["whole"]).exists():
        with explained("read", folder / found["whole"]), open(folder / found["whole"], newline="") as opened:
            rows = (row for row in csv.reader(opened) if row[2] == "train")
            found["label_table"] = [[int(cell) for cell in row[3:]] for row, _ in zip(rows, range(found["number"]), strict=False)]
    return found
