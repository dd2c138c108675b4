"""Builds the runs of a table: each cell's resolved and checked config, and the name of its directory."""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fedjax_core import code_fingerprint, experiment, option_types, registry
from fedjax_core.commands.tables import definition, measures
from fedjax_core.commands.tables.comparability import check_rows_comparable
from fedjax_core.commands.tables.definition import Definition, check_definition, check_targets, column_targets
from fedjax_core.experiment import schema
from fedjax_core.reporting import console
from fedjax_core.storage.json_files import to_json_values, unflatten
from fedjax_core.storage.workdir import INCIDENTAL

RUNS = "runs"  # in a table's directory: those of its runs
SET_BY_TABLE = {  # fields of configs that a table sets itself, and where it has them
    "seed": "a table has seeds of its own: --seeds, or the definition's seeds",
    "evaluation.targets": "a table has targets of its own, in its definition",
}
BATCH_BEFORE = 256  # of `evaluation.batch`, where it is None: by it older runs of the same cell are known


class Cell(NamedTuple):
    """One run of a table.

    Attributes:
      trial: its number in a search; None: it is no trial.
      own: `code_fingerprint.hash_files` of the user's own code behind it, and of the files its networks and clients begin from.
    """

    row: str
    column: str
    seed: int
    config: Any
    name: str
    trial: int | None = None
    own: Mapping[Path, str] = MappingProxyType({})

    @property
    def pair(self) -> tuple[str, str]:
        """The labels (row, column)."""
        return self.row, self.column

    def workdir(self, folder: Path) -> Path:
        """Returns the directory of the run, in that of its table."""
        return folder / RUNS / self.name

    def __str__(self) -> str:
        trial = "" if self.trial is None else f"trial {self.trial} / "
        return f"{self.row} / {self.column} / {trial}seed {self.seed}"


def build_cells(table: Definition, variant: str, seeds: Sequence[int] | None = None) -> list[Cell]:
    """Builds the checked runs of a table, one seed of everything before the next."""
    check_definition(table)
    seeds = tuple(table.seeds if seeds is None else seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds {seeds} must be one or more, each once")
    every = [build_cell(table, row, column, seed, variant) for seed in seeds for column in table.columns for row in table.rows]
    check_targets(table)
    check_rows_comparable(table, configs_of(every))
    return every


def configs_of(every: Sequence[Cell]) -> dict[tuple[str, str], Any]:
    """Returns the configs of cells by (row, column), of the first seed."""
    return {cell.pair: cell.config for cell in reversed(every)}


def build_cell(
    table: Definition,
    row: Any,
    column: Any,
    seed: int,
    variant: str,
    tuned: Mapping[str, Any] | None = None,
    trial: int | None = None,
) -> Cell:
    """Builds one run of a row on a column.

    Args:
      tuned: changes after all others, which a search tries or chose.
      trial: its number in a search.
    """
    where = f"{row.label} / {column.label}" + (f" / trial {trial}" if trial and tuned else "")
    try:
        config = _resolve_config(table, row, column, seed, variant, tuned or {})
        resolved = experiment.resolve(config)
        for measure in table.measures:
            measures.check_scores(measure, config, resolved)
    except Exception as error:  # get_config is the user's code too
        raise ValueError(f"{where}: {console.one_line(error)}") from error
    files = experiment.existing_input_files(resolved)
    own = code_fingerprint.hash_own_files(resolved.lookups) | code_fingerprint.hash_files(files)
    labels = f"{definition.slugify(row.label)}--{definition.slugify(column.label)}"
    name = f"{labels}--seed{seed}--{_hash_run(resolved.config, list(own.values()))}"
    return Cell(row.label, column.label, seed, config, name, trial, own)


def _resolve_config(table: Definition, row: Any, column: Any, seed: int, variant: str, tuned: Mapping[str, Any]) -> Any:
    config = copy.deepcopy(row.config(variant))  # which may return the same one each time
    schema.check_complete(config, "the row's config")
    of_cell = table.cells.get((row.label, column.label), {})
    layers: list[Mapping[str, Any]] = [table.changes, column.changes, row.changes, of_cell, tuned]
    changes: dict[str, Any] = {}
    for layer in layers:
        changes |= layer
    for field, value in changes.items():
        if field in SET_BY_TABLE:
            raise ValueError(f"{field}={value!r} would have no effect; {SET_BY_TABLE[field]}")
    if "method.name" in changes and "method" in config:
        experiment.switch_method(config, _take_method(changes))
    for field, value in changes.items():
        _set_field(config, field, value)
    of_cohort = [layer for layer in layers if not layer.keys().isdisjoint(("cohort.fraction", "cohort.size"))]
    schema.check_fraction_counts(config, of_cohort[-1].get("cohort.fraction") if of_cohort else None)
    config.seed = seed
    if table.new_partitions:
        config.data.seed += seed
    config.evaluation.targets = tuple(column_targets(table, column.label))
    return config


def _take_method(changes: dict[str, Any]) -> dict[str, Any]:
    """Takes the fields of the method out of changes; returns them as `experiment.switch_method` takes them."""
    fields = [field for field in changes if field.startswith("method.")]
    return unflatten({field.removeprefix("method."): changes.pop(field) for field in fields})


def _set_field(config: Any, field: str, value: Any) -> None:
    """Sets a dotted field that is there, or an option of the method."""
    if not schema.has_field(config, field) and not (field.rpartition(".")[0] == "method" and config.get("method")):
        raise ValueError(f"the config has no field {field}.{registry.did_you_mean(field, _list_fields(config))}")
    group, name = schema.find_group(config, field)
    if field in schema.FIELDS:
        value = (value,) if isinstance(value, str) and field in schema.TUPLES else value
        option_types.check_value(field, value, schema.FIELDS[field])
    try:
        with group.unlocked():
            group[name] = value
    except TypeError as error:
        raise ValueError(f"{field}={value!r}: {console.one_line(error)}") from None


def _list_fields(config: ConfigDict, prefix: str = "") -> list[str]:
    fields = []
    for name, value in config.items():
        fields += [f"{prefix}{name}", *(_list_fields(value, f"{prefix}{name}.") if isinstance(value, ConfigDict) else ())]
    return fields


def _hash_run(config: Mapping[str, Any], files: Sequence[str]) -> str:
    """Hashes what makes a run what it is.

    Not hashed are `INCIDENTAL` fields, and those that are not given: so new fields and groups of
    configs do not change the hash.

    Args:
      files: digests of the user's own code that it names or imports, and of files that it names.
    """

    def given(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        kept = {key: value for key, value in fields.items() if value is not None and f"{prefix}{key}" not in INCIDENTAL}
        return {key: given(value, f"{prefix}{key}.") if isinstance(value, dict) else value for key, value in kept.items()}

    fields = to_json_values(config)
    if fields.get("evaluation", {}).get("batch", 0) is None:
        fields["evaluation"]["batch"] = BATCH_BEFORE
    fields = given(fields)
    fields = {key: value for key, value in fields.items() if value != {} or key not in schema.OPTIONAL_GROUPS}
    if files:
        fields["files"] = files
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:8]


def select_cells(all_cells: Sequence[Cell], only: Iterable[str]) -> list[Cell]:
    """Returns the cells that selectors match (`select_pairs`); all of them without a selector."""
    only = list(only)
    if not only:
        return list(all_cells)
    meant = {pair for text in only for pair in definition.select_pairs(text, _pairs(all_cells))}
    return [cell for cell in all_cells if cell.pair in meant]


def split_cell_selectors(all_cells: Sequence[Cell], text: str) -> list[str]:
    """Splits "ROW,ROW/COLUMN,..." into selectors for `select_cells`."""
    return definition.split_selectors(text, _pairs(all_cells))


def _pairs(all_cells: Sequence[Cell]) -> list[tuple[str, str]]:
    return [cell.pair for cell in all_cells]
