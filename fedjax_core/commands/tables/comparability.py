"""Finds settings in which the rows of a table differ, and checks that its definition names them.

Rows of one column are compared with each other. What a search chooses for a row counts as one
setting, "chosen by the search", whatever its value is.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_core import experiment, registry
from fedjax_core.commands.tables import measures
from fedjax_core.engine import client_sampling
from fedjax_core.storage.json_files import flatten, to_json_values

FIELDS = {  # by kind of difference, the fields of a config that make it; groups end with a dot
    "cohort": ("cohort.", "dropout"),
    "rounds": (
        "rounds",
        "schedule",
        *(f"evaluation.{name}" for name in ("select", "patience", "until", "every", "last_k")),
    ),
    "epochs": ("clients.epochs", "clients.steps", "clients.seconds"),
    "batch": ("method.batch", "drop_last", "clients.batch"),
    "network": ("models", "weights", "train", "adapter", "clients.rank", "statistics", "normalise"),
    "optimizer": ("optimizer.", "clients.lr"),
    "data": ("data.", "public", "task", "augment"),
    "evaluation": ("evaluation.clients", "evaluation.newcomer_updates"),
}
KINDS = tuple(FIELDS)
NAMES = {"epochs": "local epochs", "optimizer": "optimiser"}  # how a table calls kinds whose own name is another
NO_DIFFERENCE = ("data.dir",)
NOT_LOCAL = ("finetune", "server", "public", "private", "personal")  # prefixes of "_epochs"
SEARCHED = "chosen by the search"
MOST_LISTED = 6  # rows; a larger group is "the other rows"


class Difference(NamedTuple):
    """A kind of setting in which rows differ.

    Attributes:
      kind: one of `KINDS`.
      text: which rows have what.
      columns: labels of the columns where this is so; empty if it is so in all.
    """

    kind: str
    text: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        where = f" (on {', '.join(self.columns)})" if self.columns else ""
        return f"{NAMES.get(self.kind, self.kind)}{where}: {self.text}"


Configs = Mapping[tuple[str, str], Any]
"""Resolved configs of a table by (row, column), of one seed."""


def check_rows_comparable(table: Any, configs: Configs) -> None:
    """Checks that the definition names every kind of setting in which its rows differ."""
    unnamed = [difference for difference in find_differences(table, configs) if difference.kind not in table.differ]
    if unnamed:
        kinds = tuple(dict.fromkeys([*table.differ, *(difference.kind for difference in unnamed)]))
        raise ValueError(
            f"rows differ in {'; in '.join(map(str, unnamed))}. Give them the same settings (the "
            f"table's changes are of all rows), or say that it is meant: Table(differ={kinds!r})"
        )


def find_differences(table: Any, configs: Configs) -> list[Difference]:
    """Returns the settings in which rows of one column differ; none of a table that trains nothing."""
    if all(measures.is_count(measure) for measure in table.measures):
        return []
    columns = [column.label for column in table.columns]
    options = {pair: read_method_options(config) for pair, config in configs.items()}
    fields = {pair: flatten(to_json_values(experiment.complete_config(config))) for pair, config in configs.items()}
    columns_of: dict[tuple[str, str], list[str]] = {}
    for kind in KINDS:
        for column in columns:
            if text := _compare_rows(table, fields, options, column, kind):
                columns_of.setdefault((kind, text), []).append(column)
    return [
        Difference(kind, text, () if differing == columns else tuple(differing)) for (kind, text), differing in columns_of.items()
    ]


def describe_settings(table: Any, configs: Configs) -> list[str]:
    """Returns what a table trains on, as a reader compares it with a paper's: a line for columns that share it."""
    columns_of: dict[str, list[str]] = {}
    for column in table.columns:
        of_rows = [configs[row.label, column.label] for row in table.rows if (row.label, column.label) in configs]
        columns_of.setdefault("; ".join(_describe_values(of_rows)), []).append(column.label)
    one = len(columns_of) == 1
    return [text if one else f"{', '.join(columns)}: {text}" for text, columns in columns_of.items()]


def _describe_values(configs: Sequence[Any]) -> list[str]:
    """Returns the data, rounds and networks of configs."""
    join = lambda values: " or ".join(dict.fromkeys(map(str, values)))
    source = join(config.data.source for config in configs)
    examples = join(f"{config.data.examples:,} examples" for config in configs if config.data.examples is not None)
    size = join(f"{config.data.size} pixels" for config in configs if config.data.size is not None)
    rounds = join(f"{config.rounds:,}" for config in configs)
    networks = join(", ".join(dict.fromkeys(config.models)) for config in configs)
    return [part for part in (source, examples, size, f"{rounds} rounds", networks) if part]


def _compare_rows(table: Any, fields: Configs, options: Configs, column: str, kind: str) -> str:
    """Returns which rows of a column have which settings of a kind; empty if all have the same."""
    fewer = () if table.search is None else table.search.fewer  # reported below "Search"
    searched = {field: values for row in table.rows for field, values in row.space.items()}
    settings = {
        row.label: _read_settings(
            kind, fields[row.label, column], options[row.label, column], searched if row.label in fewer else row.space
        )
        for row in table.rows
    }
    names = dict.fromkeys(name for setting in settings.values() for name in setting)
    differing = [n for n in names if len({repr(s.get(n)) for s in settings.values()}) > 1]
    if not differing:
        return ""
    groups: dict[str, list[str]] = {}
    for row, setting in settings.items():
        shown = ", ".join(_format_setting(name, setting.get(name)) for name in differing)
        groups.setdefault(shown, []).append(row)
    largest = max(groups, key=lambda shown: len(groups[shown]))
    listed = {
        shown: "the other rows" if shown == largest and len(rows) > MOST_LISTED else ", ".join(rows)
        for shown, rows in groups.items()
    }
    return "; ".join(f"{shown} ({rows})" for shown, rows in listed.items())


def _read_settings(kind: str, fields: Mapping[str, Any], options: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a kind by the name that they are shown with; "" where none is needed.

    Args:
      kind: one of `KINDS`.
      fields: of the config, by dotted name.
      options: of its method, with defaults.
      space: what a search chooses.
    """
    read = lambda field: SEARCHED if field in space else fields.get(field)
    if kind == "cohort":
        setting = {"": _describe_cohort(fields), "cohort.sampling": fields.get("cohort.sampling")}
        return setting | {"dropout": fields.get("dropout") or None}
    if kind == "epochs":
        return {"": _count_local_epochs(options, space)} | {field: read(field) for field in FIELDS["epochs"]}
    setting: dict[str, Any] = {}
    for field, value in fields.items():
        if field in NO_DIFFERENCE or not any(_is_of(field, wanted) for wanted in FIELDS[kind]):
            continue
        if field == "evaluation.select":  # of the model that a method has
            value = re.sub("/(global|personal)/own/", "/own/", str(value))
        setting[field] = value
    setting |= {field: SEARCHED for field in space if any(_is_of(field, wanted) for wanted in FIELDS[kind])}
    if kind == "batch":
        batch = setting.get("method.batch") or options.get("batch")
        more = {field: read(field) for field in ("drop_last", "clients.batch")}
        return {"": SEARCHED if "method.batch" in space else batch} | more
    return setting


def kind_of(field: str) -> str | None:
    """Returns the kind of difference that a field of a config makes; None if it makes none.

    >>> kind_of("optimizer.lr"), kind_of("method.head_epochs"), kind_of("method.mu")
    ('optimizer', 'epochs', None)
    """
    if field == "method.epochs" or (field.startswith("method.") and field.endswith("_epochs")):
        return "epochs"
    return next((kind for kind in KINDS if any(_is_of(field, wanted) for wanted in FIELDS[kind])), None)


def _is_of(field: str, wanted: str) -> bool:
    return field.startswith(wanted) if wanted.endswith(".") else field == wanted


def _describe_cohort(fields: Mapping[str, Any]) -> str:
    size, fraction, clients = (fields.get(name) for name in ("cohort.size", "cohort.fraction", "data.clients"))
    if fields.get("data.unseen_clients") is not None or clients is None:
        many = f"{size} of the" if size else f"{100 * (fraction or 1):g} % of the"
        return f"{many} clients a round"
    number = size or client_sampling.resolve_cohort_size(None if fraction is None else float(fraction), clients)
    return f"{number} of {clients} clients a round"


def _count_local_epochs(options: Mapping[str, Any], space: Mapping[str, Any]) -> Any:
    """Returns how often a client passes over its examples in a round, in all phases of its training.

    Epochs of fine-tuning, of the server, and of what comes before the first round do not count.
    Nor do those of a personal model that is trained beside the shared one.
    """
    names = [
        name for name in options if name == "epochs" or (name.endswith("_epochs") and name.removesuffix("_epochs") not in NOT_LOCAL)
    ]
    if any(f"method.{name}" in space for name in names):
        return SEARCHED
    counts = [options[name] for name in names if isinstance(options[name], int)]
    return sum(counts) if counts else None


def read_method_options(config: Any) -> dict[str, Any]:
    """Returns a method's options, with its defaults for those that the config leaves out."""
    given = {key: value for key, value in config.method.to_dict().items() if value is not None}
    name, own = registry.parse_spec(given.pop("name"), "method.name")
    takes, _ = registry.read_parameters(experiment.method_builder(name))
    defaults = {key: parameter.default for key, parameter in takes.items() if parameter.default is not parameter.empty}
    return defaults | own | given


def _format_setting(name: str, value: Any) -> str:
    if isinstance(value, list):
        value = tuple(value)
    if not name:
        return str(value)
    return f"{name} {value}" if value == SEARCHED else f"{name}={value!r}"
