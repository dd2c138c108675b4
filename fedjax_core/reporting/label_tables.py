"""Label tables of a run: whole in run.json where they can be read, else their sums there and the whole in a CSV.

    client,of_partition,part,cat,dog,owl
    0,0,train,3,0,4
    0,0,test,1,1,0

A row per client and part; a column `name` follows `of_partition` where clients have names, as natural ones of a table. Unseen
clients follow the population: N, N + 1, ...; `of_partition` is its number in the partition.
"""

import csv
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.atomic_files import csv_line, explained, open_text, write_blocks
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import RECORDED, RUN

FILE = "label_table.csv"
READ = 10_000  # clients that are read for figures
READABLE = 50  # clients; of more nothing has a line each but CSV files
_BLOCK = 2**16  # lines that are made at once
_HEADS = ["client", "of_partition", "part"]
_NAMED = ["client", "of_partition", "name", "part"]  # where clients have names
Tables = Mapping[str, np.ndarray]  # by part ("train", "test"), [N, K]


def summarize_tables(tables: Tables) -> dict[str, Any]:
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


def write_label_table(
    folder: Path, class_names: Sequence[str], clients: Sequence[tuple[np.ndarray, Tables]], names: Sequence[str] = ()
) -> None:
    """Writes the CSV.

    Args:
      folder: of the run.
      class_names: K names.
      clients: of the population, then of unseen ones: (their numbers in the partition, their tables).
      names: of all of them in this order; empty: they have none.

    Raises:
      OSError: it cannot be written.
    """
    lines = itertools.chain([csv_line([*(_NAMED if names else _HEADS), *class_names])], _blocks(clients, names))
    write_blocks(folder / FILE, lines)


def _blocks(clients: Sequence[tuple[np.ndarray, Tables]], names: Sequence[str]) -> Iterator[bytes]:
    first = 0
    for ids, tables in clients:
        for part, table in tables.items():
            for begin in range(0, len(ids), _BLOCK):
                block = slice(begin, begin + _BLOCK)
                numbers = np.arange(begin, min(begin + _BLOCK, len(ids))) + first
                if names:
                    rows = zip(numbers.tolist(), ids[block].tolist(), table[block].tolist(), strict=True)
                    yield b"".join(csv_line([number, i, names[number], part, *row]) for number, i, row in rows)
                    continue
                yield _lines([_cells(np.stack([numbers, ids[block]], 1)), _same(part, len(numbers)), _cells(table[block])])
        first += len(ids)


def _cells(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers >= 0, [n, columns], each with a comma behind it: (characters [n, places], which of them count)."""
    width = len(str(int(numbers.max(initial=0))))
    powers = 10 ** np.arange(width - 1, -1, -1)
    characters = np.full((*numbers.shape, width + 1), ord(","), np.uint8)
    characters[..., :-1] = numbers[..., None] // powers % 10 + ord("0")
    there = np.ones(characters.shape, bool)
    there[..., : width - 1] = numbers[..., None] >= powers[:-1]
    return characters.reshape(len(numbers), -1), there.reshape(len(numbers), -1)


def _same(word: str, lines: int) -> tuple[np.ndarray, np.ndarray]:
    characters = np.broadcast_to(np.frombuffer(f"{word},".encode(), np.uint8), (lines, len(word) + 1))
    return characters, np.ones(characters.shape, bool)


def _lines(columns: Sequence[tuple[np.ndarray, np.ndarray]]) -> bytes:
    characters, there = (np.concatenate(parts, 1) for parts in zip(*columns, strict=True))
    characters[:, -1] = ord("\n")
    return characters[there].tobytes()


def partition_of(folder: str | os.PathLike) -> dict[str, Any]:
    """What a run recorded of its partition, with the population's "label_table" of training rows if there is one: whole, or of
    `READ` clients, evenly spaced, whose ids are "clients" then.

    Raises:
      OSError: a file cannot be read.
      ValueError: run.json has another form.
    """
    folder = Path(folder)
    records = read_json(folder / RUN, RECORDED) if (folder / RUN).exists() else {}
    found = dict(records.get("partition", {}))
    if {"whole", "number"} <= found.keys() and (folder / found["whole"]).exists():
        with explained("read", folder / found["whole"]), open_text(folder / found["whole"]) as opened:
            number = found["number"]
            rows = csv.reader(opened)
            heads = next(rows)
            first = heads.index("part") + 1
            if number > READ:
                found["clients"] = np.unique(np.linspace(0, number - 1, READ).round().astype(int)).tolist()
            wanted = set(found.get("clients", range(number)))
            lines = [line for at, line in enumerate(itertools.islice(rows, number)) if at in wanted]
            found["label_table"] = [[int(cell) for cell in line[first:]] for line in lines]
            if heads[: len(_NAMED)] == _NAMED:
                found["client_names"] = [line[_NAMED.index("name")] for line in lines]
    return found
