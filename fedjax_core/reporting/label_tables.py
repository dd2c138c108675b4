"""Label tables of a run: in run.json if clients are few, else their sums there and a CSV file.

    client,of_partition,part,cat,dog,owl
    0,0,train,3,0,4
    0,0,test,1,1,0

A column `name` follows `of_partition`, the client's number in the partition, if clients have
names. Unseen clients follow the population: N, N + 1, ...
"""

import csv
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.atomic_files import encode_csv_line, open_text, reword_os_errors, write_blocks
from fedjax_core.reporting.evenly_spaced import space_evenly
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import RUN, RUN_SCHEMA

FILE = "label_table.csv"
READ = 10_000  # clients read for figures
READABLE = 50  # clients; of more only CSV files have a line each
_BLOCK = 2**16  # lines written at a time
_HEADS = ["client", "of_partition", "part"]
_NAMED = ["client", "of_partition", "name", "part"]  # if clients have names
Tables = Mapping[str, np.ndarray]  # by part ("train", "test"), [N, K]


def summarize_tables(tables: Tables) -> dict[str, Any]:
    """Returns the entry of run.json."""
    number = len(next(iter(tables.values())))
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
    """Writes the CSV file.

    Args:
      class_names: K names.
      clients: (numbers in the partition, tables) of the population, then of unseen clients.
      names: of all clients in this order; empty: clients have no names.
    """
    lines = itertools.chain([encode_csv_line([*(_NAMED if names else _HEADS), *class_names])], _blocks(clients, names))
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
                    yield b"".join(encode_csv_line([number, i, names[number], part, *row]) for number, i, row in rows)
                    continue
                yield _join_columns(
                    [_format_ints(np.stack([numbers, ids[block]], 1)), _repeat(part, len(numbers)), _format_ints(table[block])]
                )
        first += len(ids)


def _format_ints(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Formats ints >= 0, [n, columns], with commas: characters [n, width], mask of those to keep."""
    width = len(str(int(numbers.max(initial=0))))
    powers = 10 ** np.arange(width - 1, -1, -1)
    characters = np.full((*numbers.shape, width + 1), ord(","), np.uint8)
    characters[..., :-1] = numbers[..., None] // powers % 10 + ord("0")
    mask = np.ones(characters.shape, bool)
    mask[..., : width - 1] = numbers[..., None] >= powers[:-1]
    return characters.reshape(len(numbers), -1), mask.reshape(len(numbers), -1)


def _repeat(word: str, lines: int) -> tuple[np.ndarray, np.ndarray]:
    characters = np.broadcast_to(np.frombuffer(f"{word},".encode(), np.uint8), (lines, len(word) + 1))
    return characters, np.ones(characters.shape, bool)


def _join_columns(columns: Sequence[tuple[np.ndarray, np.ndarray]]) -> bytes:
    characters, mask = (np.concatenate(parts, 1) for parts in zip(*columns, strict=True))
    characters[:, -1] = ord("\n")
    return characters[mask].tobytes()


def read_partition(folder: str | os.PathLike) -> dict[str, Any]:
    """Returns the record of a partition, with the "label_table" of training examples if there is one.

    Of more than `READ` clients the table has so many, evenly spaced, and "clients" their ids.

    Raises:
      ValueError: run.json is malformed.
    """
    folder = Path(folder)
    records = read_json(folder / RUN, RUN_SCHEMA) if (folder / RUN).exists() else {}
    record = dict(records.get("partition", {}))
    if {"whole", "number"} <= record.keys() and (folder / record["whole"]).exists():
        with reword_os_errors("read", folder / record["whole"]), open_text(folder / record["whole"]) as opened:
            number = record["number"]
            rows = csv.reader(opened)
            heads = next(rows)
            first = heads.index("part") + 1
            if number > READ:
                record["clients"] = space_evenly(number, READ).tolist()
            wanted = set(record.get("clients", range(number)))
            lines = [line for i, line in enumerate(itertools.islice(rows, number)) if i in wanted]
            record["label_table"] = [[int(cell) for cell in line[first:]] for line in lines]
            if heads[: len(_NAMED)] == _NAMED:
                record["client_names"] = [line[_NAMED.index("name")] for line in lines]
    return record
