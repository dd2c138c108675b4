"""`paper` variants and tables have the settings in configs/tables/settings.toml."""

import fnmatch
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from configs.tables.fedhpl import all_methods
from fedjax_core import experiment
from fedjax_core.commands import tables

ROOT = Path(__file__).parents[1] / "configs"
FILE = ROOT / "tables" / "settings.toml"
# the other tables are ours, with the configs' small variants
PAPERS = ("fedskc", "fedpft", "fedhpl", "fedoa", "mcmahan", "pfl_research")
CONFIGS = sorted(path.stem for path in ROOT.glob("[!_]*.py") if path.stem != "base")
TABLES = {f"{paper}/{path.stem}": path for paper in PAPERS for path in sorted((ROOT / "tables" / paper).glob("[!_]*.py"))}
COUNTS = re.compile(r"analysis:(trained|whole|body|up|down)\b")
HELD = ("rounds", "data.clients", "cohort.", "optimizer.")

Entry = Mapping[str, list]  # by field: [value, source]


def flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Returns {"a": {"b": 1}} as {"a.b": 1}, without None; tuples become lists."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{above}{name}.")
        elif value is not None:
            found[above + name] = list(value) if isinstance(value, tuple) else value
    return found


def settings(config: Any) -> dict[str, Any]:
    """Returns all fields of a config and the defaults of its method."""
    said = experiment.complete_config(config)
    parameters = inspect.signature(experiment.method_builder(said["method"]["name"])).parameters
    defaults = {name: p.default for name, p in parameters.items() if isinstance(p.default, bool | int | float | str)}
    return flat({"method": defaults}) | flat(said)


def held(found: Mapping[str, Any]) -> set[str]:
    """Returns the fields that the file must list: common ones, and the method's numbers."""
    numbers = {field for field, value in found.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    return {field for field in found if field.startswith(HELD)} | {field for field in numbers if field.startswith("method.")}


def differences(found: Mapping[str, Any], entries: Iterable[Entry], free: Iterable[str] = ()) -> dict[str, Any]:
    """Returns, by field, the setting and the entry where they differ.

    A method without local epochs has none; free fields are not compared.
    """
    wanted = {field: value for entry in entries for field, (value, _) in entry.items()}
    if "method.epochs" not in found:
        wanted.pop("method.epochs", None)
    fields = sorted((held(found) | set(wanted)) - set(free))
    return {field: (found.get(field), wanted.get(field)) for field in fields if found.get(field) != wanted.get(field)}


@pytest.fixture(scope="module")
def file() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text())


def general(file: Mapping[str, Any], paper: str, method: str) -> list[Entry]:
    of_paper = file[paper] if paper else {}
    return [file["methods"].get(method, {}), of_paper.get("all", {}), of_paper.get("methods", {}).get(method, {})]


@pytest.mark.parametrize("name", CONFIGS)
def test_paper_variants(file, name):
    found = settings(importlib.import_module(f"configs.{name}").get_config("paper"))
    assert name in file["configs"], "settings.toml lacks this config"
    own = dict(file["configs"][name])
    entries = [*general(file, own.pop("like", ""), found["method.name"]), own]
    assert not differences(found, entries)


def trained() -> dict[str, Any]:
    """Returns the papers' tables in their paper variants, except those of counts only."""
    read = {
        name: tables.read_definition(str(path), "paper") for name, path in TABLES.items() if "def get_table" in path.read_text()
    }
    scores = {name: [score for measure in table.measures for score in measure.scores] for name, table in read.items()}
    return {name: table for name, table in read.items() if not all(map(COUNTS.match, scores[name]))}


def test_rows_of_tables(file):
    """Every row on all of its data. An unused entry of the file is an error."""
    wrong: list[str] = []
    used: set[tuple[str, str]] = set()
    for name, table in trained().items():
        paper, table_name = name.split("/")
        here = file[paper]
        for cell in tables.build_cells(table, "paper", [0]):
            where = f"{table_name} / {cell.row} / {cell.column}"
            if cell.row not in here["rows"]:
                wrong.append(f"{paper}: {where}: settings.toml lacks the row")
                continue
            found = settings(cell.config)
            patterns = [pattern for pattern in here["where"] if fnmatch.fnmatchcase(where, pattern)]
            used |= {(paper, cell.row)} | {(paper, pattern) for pattern in patterns}
            entries = [here["rows"][cell.row], *(here["where"][pattern] for pattern in patterns)]
            off = differences(found, [*general(file, paper, found["method.name"]), *entries], here.get("free", {}))
            wrong += [f"{paper}: {where}: {field} is {ours}, not {wanted}" for field, (ours, wanted) in off.items()]
    assert not wrong, "\n".join(wrong)
    assert used == {(paper, entry) for paper in PAPERS for part in ("rows", "where") for entry in file[paper][part]}


def test_every_number_has_a_source(file):
    def walk(tree: Any, place: str) -> None:
        for name, value in tree.items():
            if isinstance(value, dict):
                walk(value, f"{place}.{name}")
            elif name != "like":
                assert isinstance(value, list), (place, name)
                assert len(value) == 2, (place, name)
                assert isinstance(value[1], str), (place, name)
                assert len(value[1]) > 3, (place, name)

    walk(file, "")
    assert set(file) == {"methods", "configs", *PAPERS}
    assert set(file["methods"]) == set(experiment.method_summaries())
    assert set(file["configs"]) == set(CONFIGS)


def test_methods_with_prototypes_are_scored_by_the_nearest():
    """As in their papers; in the FedHPL tables, before the score of the classifier."""
    for measure in (all_methods.LAST, all_methods.BEST, *all_methods.SPREAD):
        where = [score.split("/")[1] for score in measure.scores]
        assert where.index("nearest") < where.index("personal")


def test_a_slip_is_found(file):
    """A wrong rate, coefficient or default, and a number that the file or a config lacks."""
    found = settings(importlib.import_module("configs.fedbabu").get_config("paper"))
    entries = general(file, "fedpft", "fedbabu")
    assert not differences(found, entries)
    for field, value in (("method.finetune_rate", 0.1), ("optimizer.clip", 10.0), ("method.extra", 1), ("data.clients", 41)):
        assert differences({**found, field: value}, entries).keys() == {field}
    assert differences(found, [*entries, {"optimizer.momentum": [0.9, "x"]}]) == {"optimizer.momentum": (None, 0.9)}
