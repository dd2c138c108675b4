"""The runs of a table: each cell's resolved config, checked, and the name of its directory."""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fedjax_core import code_fingerprint, experiment, option_types, registry
from fedjax_core.commands.tables import places, score_checks
from fedjax_core.commands.tables.comparability import check_rows_comparable
from fedjax_core.commands.tables.definition import Definition, check, targets_of
from fedjax_core.experiment.schema import MAY_LACK_GROUPS
from fedjax_core.reporting import reporter
from fedjax_core.run import MAY_DIFFER
from fedjax_core.storage.json_files import plain

OF_TABLES = {  # fields of configs that a table sets itself, and where it has them
    "seed": "a table has seeds of its own: --seeds, or the definition's seeds",
    "evaluation.targets": "a table has targets of its own, in its definition",
}
BATCH_BEFORE = 256  # of `evaluation.batch`, where it is None: by it older runs of the same cell are known


class Cell(NamedTuple):
    """One run of a table.

    Attributes:
      row, column: labels.
      seed: of training.
      config: resolved.
      name: of its directory.
      trial: its number in a search; None: it is no trial.
      own: of the user's own code behind it, and of the files that its networks begin from, what `code_fingerprint.digests` says.
    """

    row: str
    column: str
    seed: int
    config: Any
    name: str
    trial: int | None = None
    own: Mapping[Path, str] = MappingProxyType({})

    def __str__(self) -> str:
        trial = "" if self.trial is None else f"trial {self.trial} / "
        return f"{self.row} / {self.column} / {trial}seed {self.seed}"


def cells(table: Definition, variant: str, seeds: Sequence[int] | None = None) -> list[Cell]:
    """The runs of a table, checked; one seed of everything before the next.

    Args:
      table: the definition.
      variant: of the rows' configs.
      seeds: in place of the table's.

    Raises:
      ValueError: the definition is wrong: a name twice, a method, setting, row or column that there is not, a number of the paper
        that is missing, rows that differ in more than the definition says; one line that names it.
    """
    check(table)
    seeds = tuple(table.seeds if seeds is None else seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds {seeds} must be one or more, each once")
    every = [cell(table, row, column, seed, variant) for seed in seeds for column in table.columns for row in table.rows]
    check_rows_comparable(table, configs_of(every))
    return every


def configs_of(every: Sequence[Cell]) -> dict[tuple[str, str], Any]:
    """Returns the configs of cells by (row, column), of the first seed."""
    return {(one.row, one.column): one.config for one in reversed(every)}


def cell(
    table: Definition,
    row: Any,
    column: Any,
    seed: int,
    variant: str,
    tuned: Mapping[str, Any] | None = None,
    trial: int | None = None,
) -> Cell:
    """One run of a row on a column.

    Args:
      table, row, column: of the definition.
      seed: of training.
      variant: of the row's config.
      tuned: changes after all others, which a search tries or chose.
      trial: its number in a search.

    Raises:
      ValueError: its config is wrong; one line that names the row and the column.
    """
    where = f"{row.label} / {column.label}" + (f" / trial {trial}" if trial and tuned else "")
    try:
        config = _resolved(table, row, column, seed, variant, tuned or {})
        with registry.noting() as named:
            asked = experiment.resolve(config)
        for measure in table.measures:
            score_checks.check(measure, config, asked)
    except Exception as error:  # get_config is the user's code too
        raise ValueError(f"{where}: {reporter.one_line(error)}") from error
    own = code_fingerprint.digests([*code_fingerprint.files(named), *experiment.begun_from(asked)])
    name = f"{places.slug(row.label)}--{places.slug(column.label)}--seed{seed}--{_hash(config, list(own.values()))}"
    return Cell(row.label, column.label, seed, config, name, trial, own)


def _resolved(table: Definition, row: Any, column: Any, seed: int, variant: str, tuned: Mapping[str, Any]) -> Any:
    config = copy.deepcopy(row.config(variant))  # which may return the same one each time
    _check_config(config)
    of_cell = table.cells.get((row.label, column.label), {})
    changes: dict[str, Any] = {}
    for some in (table.changes, column.changes, row.changes, of_cell, tuned):
        changes |= some
    for field, value in changes.items():
        if field in OF_TABLES:
            raise ValueError(f"{field}={value!r} would have no effect; {OF_TABLES[field]}")
    if "method.name" in changes and "method" in config:
        experiment.switch(config, _take_method(changes))
    for field, value in changes.items():
        _change(config, field, value)
    config.seed = seed
    if table.new_partitions:
        config.data.seed += seed
    config.evaluation.targets = tuple(targets_of(table, column.label))
    return config


def _check_config(config: Any) -> None:
    if not isinstance(config, ConfigDict):
        raise ValueError(f"the row's config gave {option_types.short(config)}, not a ConfigDict as those of configs/ do")


def _take_method(changes: dict[str, Any]) -> dict[str, Any]:
    """Takes the fields of the method out of changes; returns them as `experiment.switch` has them."""
    fields = [field for field in changes if field.startswith("method.")]
    method_of: dict[str, Any] = {}
    for field in fields:
        _, *above, last = field.split(".")
        options = method_of
        for name in above:
            options = options.setdefault(name, {})
        options[last] = changes.pop(field)
    return method_of


def _change(config: Any, field: str, value: Any) -> None:
    """Sets a dotted field that is there, or an option of the method."""
    *above, last = field.split(".")
    place: Any = config
    for name in above:
        place = place.get(name) if isinstance(place, ConfigDict) else None
    known = list(place) if isinstance(place, ConfigDict) else []
    if last not in known and not (above == ["method"] and known):
        raise ValueError(f"the config has no field {field}.{registry.did_you_mean(field, _fields(config))}")
    try:
        with place.unlocked():
            place[last] = value
    except TypeError as error:
        raise ValueError(f"{field}={value!r}: {reporter.one_line(error)}") from None


def _fields(config: ConfigDict, prefix: str = "") -> list[str]:
    found = []
    for name, value in config.items():
        found += [f"{prefix}{name}", *(_fields(value, f"{prefix}{name}.") if isinstance(value, ConfigDict) else ())]
    return found


def _hash(config: Any, files: Sequence[str]) -> str:
    """Of what makes a run what it is: not how it is spread over devices, saved or summarised, and no field that is not given, so
    that new fields of configs, and new groups of such, leave it as it was.

    Args:
      config: resolved.
      files: digests of the user's own code that it names, of what this imports, and of files of weights.
    """

    def given(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        kept = {key: value for key, value in fields.items() if value is not None and f"{prefix}{key}" not in left_out}
        return {key: given(value, f"{prefix}{key}.") if isinstance(value, dict) else value for key, value in kept.items()}

    of_scores = {
        "rounds",
        "evaluation.until",
        "evaluation.patience",
        "evaluation.every",
        "evaluation.batch",
    }  # these say where it ends, and what scores
    left_out = set(MAY_DIFFER) - of_scores
    fields = plain(experiment.complete_config(config))
    if fields.get("evaluation", {}).get("batch", 0) is None:
        fields["evaluation"]["batch"] = BATCH_BEFORE
    fields = given(fields)
    fields = {key: value for key, value in fields.items() if value != {} or key not in MAY_LACK_GROUPS}
    if files:
        fields["files"] = files
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:8]


def choose(all_cells: Sequence[Cell], only: Iterable[str]) -> list[Cell]:
    """The cells that texts mean (`places`); all of them for none.

    Raises:
      ValueError: a text means none of the table's.
    """
    only = list(only)
    if not only:
        return list(all_cells)
    meant = {pair for text in only for pair in places.chosen(text, _pairs(all_cells))}
    return [c for c in all_cells if (c.row, c.column) in meant]


def names(all_cells: Sequence[Cell], text: str) -> list[str]:
    """The texts in "ROW,ROW/COLUMN,...", for `choose`."""
    return places.split(text, _pairs(all_cells))


def _pairs(all_cells: Sequence[Cell]) -> list[tuple[str, str]]:
    return [(c.row, c.column) for c in all_cells]
