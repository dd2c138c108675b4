"""Definitions of the papers' tables: cells, protocols, and counts that need no training."""

import copy
import dataclasses
import functools
import importlib.util
from pathlib import Path

import jax
import pytest

from configs import base, local
from configs.tables import digits
from configs.tables.base import Column, Paper
from configs.tables.fedpft import all_methods as fedpft
from configs.tables.private import mechanisms
from fedjax_core import experiment
from fedjax_core.commands import tables
from fedjax_core.commands.tables import comparability, table_cells
from fedjax_core.experiment.build_model import build_model
from fedjax_core.experiment.lookup import find_network
from fedjax_core.experiment.uplink_options import account_privacy
from tests import test_configs
from tests.fedjax_core.commands.small_tables import paper_cells, run

needs_library = pytest.mark.skipif(importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting is not installed")
TABLES = Path(__file__).parents[1] / "configs" / "tables"
DEFINITIONS = sorted(
    file.relative_to(TABLES).with_suffix("").as_posix() for file in TABLES.rglob("[!_]*.py") if "def get_table" in file.read_text()
)


@pytest.mark.parametrize("variant", base.VARIANTS)
@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_table_is_well_defined(name, variant):
    """Every cell of `paper` at its first seed; of other variants, each row and each column: their combinations are the same."""
    table = tables.read_definition(f"configs/tables/{name}.py", variant)
    assert len(set(table.seeds)) == len(table.seeds) > 0
    if variant == "paper":
        cells = paper_cells(name)
        assert len(cells) == len({cell.name for cell in cells}) == len(table.rows) * len(table.columns)
        return
    table_cells.check_definition(table)
    first = [(row, table.columns[0]) for row in table.rows]
    each = first + [(table.rows[0], column) for column in table.columns[1:]]
    cells = [table_cells.build_cell(table, row, column, table.seeds[0], variant) for row, column in each]
    assert len(cells) == len({cell.name for cell in cells})
    of_column = dataclasses.replace(table, columns=table.columns[:1])
    comparability.check_rows_comparable(of_column, table_cells.configs_of(cells[: len(first)]))


def names(table: str) -> set[str]:
    return {cell.name for cell in paper_cells(table)}


def test_tables_of_one_paper_share_their_runs():
    assert names("fedskc/table3") < names("fedskc/table1")
    both = {name for name in names("fedpft/table9") if not name.startswith("fedavg-linear")}
    assert both < names("fedpft/table2") | names("fedpft/table8")
    whole = {name for name in names("fedoa/all_methods") if not name.startswith(("local", "pfedme-released"))}
    assert whole < names("fedoa/table2")
    assert not names("fedoa/table2") & names("fedoa/table6"), "own tests are others"


def test_epochs_of_fedpft():
    """4 + 1, but 3 + 2 of FedPFT+Con at alpha 0.1; the others have five as well."""
    for cell in paper_cells("fedpft/table8"):
        method = cell.config.method
        if cell.row.startswith("FedPFT"):
            early = (cell.row, cell.column) == ("FedPFT+Con", "CIFAR-10, alpha 0.1")
            assert (method.transform_epochs, method.model_epochs) == ((3, 2) if early else (4, 1))
            assert method.transform_rate == (0.1 if cell.row == "FedPFT+Con" else 0.5)
        elif cell.row != "FedRep":
            assert method.epochs + method.get("prompt_epochs", 0) == 5, cell.row
        assert (cell.config.rounds, cell.config.evaluation.every, cell.config.optimizer.lr, method.batch) == (1000, 1, 0.1, 100)


def test_a_row_of_the_paper_that_is_too_short_is_refused():
    columns = [Column("a", {}), Column("b", {})]
    assert fedpft.published({"x": "1.5±0.5 2.5"}, "Table 1", columns) == {
        "x": {
            "a": {"best round": Paper(1.5, 0.5, "FedPFT, Table 1"), "last round": None},
            "b": {"best round": Paper(2.5, None, "FedPFT, Table 1"), "last round": None},
        }
    }
    with pytest.raises(ValueError, match="shorter"):
        fedpft.published({"x": "1.5±0.5"}, "Table 1", columns)


def test_pacs_is_a_domain_per_client(shared_data):
    """4 clients with 1000 + 500 images, as in the paper, from the local file."""
    of_file = ["/pacs:data.source=npz(path='pacs64.npz', test_fraction=0.32)", f"data.dir={shared_data}"]
    table = tables.apply_settings(tables.read_definition("configs/tables/fedpft/table10.py", "paper"), of_file)
    (cell,) = tables.select_cells(tables.build_cells(table, "paper", [0]), ["FedPFT/PACS"])
    data = experiment.dataset(cell.config)
    assert data.label_table.sum(1).tolist() == [1000] * 4, "four clients"
    assert data.test_label_table.sum(1).tolist() == [500] * 4


@pytest.mark.parametrize(("number", "clients", "rows"), [(2, 6, 1000), (7, 30, 200)])
def test_protocol_of_fedoa(number, clients, rows):
    """At full size, without the files: a data set per client or a fifth of one, everybody tested on what was left out."""
    cells = paper_cells(f"fedoa/table{number}")
    assert {cell.config.data.source.partition("leave_out='")[2].rstrip("')") for cell in cells} == set(test_configs.TASKS)
    for cell in cells:
        method = cell.config.method
        together = cell.row == "Centralized"
        assert cell.config.rounds * method.epochs == (10 if together else 40), cell
        assert method.get("lam", 0.5) == 0.5
        assert (cell.config.optimizer.lr, cell.config.optimizer.anneal, method.batch) == (3e-4, "linear", 32)
    (cell,) = tables.select_cells(cells, ["fedoa/sentiment"])
    simulation = test_configs.build(copy.deepcopy(cell.config))
    data = simulation.spec.data
    assert [len(index) for index in data.train_index] == [rows] * clients
    assert [len(index) for index in data.test_index] == [len(data.test.y)] * clients == [400] * clients
    adapter = jax.eval_shape(simulation.spec.bound_groups[0].task.model.init, jax.random.key(0)).params
    assert sum(leaf.size for leaf in jax.tree.leaves(adapter)) == 4_194_304


def test_domains_of_fedoa(shared_data):
    """Table 8 in small, on the local file: three clients, three domains, tested on the fourth."""
    of_file = [f"data.dir={shared_data}"]
    table = tables.apply_settings(tables.read_definition("configs/tables/fedoa/table8.py", "small"), of_file)
    (cell,) = tables.select_cells(tables.build_cells(table, "small", [0]), ["FedOA/Photo"])
    data = experiment.dataset(cell.config)
    assert data.clients == 3
    assert data.label_table.sum() == 3000
    assert data.test_label_table.sum(1).tolist() == [1670] * 3


def test_the_table_of_digits_has_every_method_once_on_digits():
    """All names and settings resolve; configs with other targets or data have no row."""
    of_digits = digits.get_table("small")
    configs = {cell.row: cell.config for cell in tables.build_cells(of_digits, "small")}
    assert experiment.method_summaries().keys() - configs.keys() == set()
    for row, config in configs.items():
        assert "digits" in experiment.resolve(config).data.source.spec, row
    plain = [row for row in configs if row in digits.NAMES]
    assert [configs[row].method.name for row in plain] == plain


@needs_library
def test_epsilons_of_the_mechanisms_differ_in_noise_that_is_felt():
    """Independent noise on the mean has the norm of several clips at epsilon 1, of about one at 8.

    Rows without noise have the same cohorts and clip.
    """
    cells = {(cell.row, cell.column): cell.config for cell in tables.build_cells(mechanisms.get_table("small"), "small")}
    long = {}
    for column in ("epsilon 1", "epsilon 8"):
        config = cells["Gaussian, in turn", column]
        config.privacy.accountant = "rdp"
        asked = experiment.resolve(config)
        spent = account_privacy(asked.privacy, asked.cohort, config.data.clients, asked.sampling)
        assert spent is not None
        long[column] = spent.noise / spent.release.cohort * (64 * 32 + 32 + 32 * 10 + 10) ** 0.5
    assert long["epsilon 1"] > 5
    assert 0.5 < long["epsilon 8"] < 2
    assert cells["no noise, in turn", "epsilon 1"].cohort.sampling == "cyclic"
    assert cells["no noise, sampled", "epsilon 1"].cohort.sampling == "poisson"
    assert {c.aggregation.rule for (row, _), c in cells.items() if row.startswith("no")} == {f"norm_bound(bound={mechanisms.CLIP})"}
    assert {c.privacy.clip for (row, _), c in cells.items() if not row.startswith("no")} == {mechanisms.CLIP}


@functools.cache
def data_of(source: str):
    config = local.get_config("small")
    config.data.update(source=source, clients=5, partition="iid")
    return experiment.dataset(config)


ENTRIES: dict[tuple, dict[str, int]] = {}  # of a network for ten classes and data of a shape


def entries(spec: str, source: str) -> dict[str, int]:
    """Numbers in each entry of a network's params; the linear head has as many for each class."""
    data = data_of(source)
    key = spec, data.train.x.shape[1:]
    if key not in ENTRIES:
        model = build_model(find_network(spec), data, "average", 10, None)
        params = jax.eval_shape(model.init, jax.random.key(0)).params
        ENTRIES[key] = {name: sum(leaf.size for leaf in jax.tree.leaves(entry)) for name, entry in params.items()}
    return ENTRIES[key] | {"head": ENTRIES[key]["head"] // 10 * data.classes}


def counts(config) -> list[tuple[int, int, int]]:
    """Counts the numbers of each client's network, from shapes: body, whole, trained (FedBABU's head is fixed)."""
    by_network = []
    for spec in config.models:
        number = entries(spec, config.data.source)
        trained = {"all": number, "prompts": ("prompts", "head"), "head": ("head",)}[config.train]
        if config.method.name == "fedbabu":
            trained = [name for name in trained if name != "head"]
        body = sum(n for name, n in number.items() if name not in ("prompts", "head"))
        by_network.append((body, sum(number.values()), sum(number[name] for name in trained)))
    return [by_network[i % len(by_network)] for i in range(config.data.clients)]


OURS = {  # corrected values where the printed number includes more than the network, or is wrong
    ("ViT-S", "entire"): 20.666,  # printed 20.57; 20.70 has 100 classes
    ("pFedPT", "a client"): 1.026,  # printed with its frame
    ("pFedPG", "a client"): 0.015,  # printed with the server's generator
    ("FedGen", "five clients"): 84.360,  # printed with the generator
    ("FedTGP", "five clients"): 84.360,
    ("FedProto", "five clients"): 84.360,  # printed with a mapping layer in each
    ("FedGH", "five clients"): 84.336,  # printed with a linear layer in each
    ("FedMD", "five clients"): 84.336,  # printed with ten outputs more
    ("FedHE", "five clients"): 84.336,  # printed as the sum of rounded numbers, 84.335
}


@pytest.mark.parametrize("name", ["table5", "table6", "table7", "table8", "parameters"])
def test_parameters_of_fedhpl_are_the_published_ones(name):
    """Up to the last printed digit, from built networks at full size."""
    table = tables.read_definition(f"configs/tables/fedhpl/{name}.py", "small")
    compared = 0
    for cell in tables.build_cells(table, "small"):
        each = counts(cell.config)
        for measure in table.measures:
            what, _, option = measure.scores[0].removeprefix("analysis:").partition("(")
            numbers = [dict(zip(("body", "whole", "trained"), n, strict=True))[what] for n in each]
            ours = (sum(numbers) if option else sum(numbers) / len(numbers)) / measure.unit
            paper = (table.paper[cell.row] or {}).get(cell.column, {}).get(measure.label)
            if paper is None:
                continue
            wanted = paper.value
            if cell.column != "CIFAR-100":
                wanted = OURS.get((cell.row, measure.label), wanted)
            printed = min(len(str(wanted).partition(".")[2]), 3 if name in ("table7", "parameters") else 2)
            assert abs(ours - wanted) < 0.5001 * 10**-printed, (cell.row, cell.column, measure.label, ours)
            compared += 1
    assert compared == {"table5": 14, "table6": 42, "table7": 24, "table8": 12, "parameters": 16}[name]


def test_uplinks_of_fedhpl_and_of_its_baselines_are_the_published_ones(tmp_path):
    """Nothing is trained; any network with 512 features sends as much."""
    table = tables.apply_settings(
        tables.read_definition("configs/tables/fedhpl/table9.py", "small"), ["models=('cnn(widths=(2,), dense=512)',)"]
    )
    others = ("fedgen", "fedgh", "fedproto", "fedtgp", "fedmd", "fedhe", "fedhpl-each-logit")
    chosen = ["fedhpl", *(f"{row}/cifar-10-svhn" for row in others)]
    outcome, said = run(tmp_path, table, only=chosen)
    assert not outcome.failures, said
    assert not list((tmp_path / "runs").iterdir())
    for cell in tables.select_cells(tables.build_cells(table, "smoke"), chosen):
        paper = table.paper[cell.row][cell.column]
        values = outcome.results[cell.name].values
        labels = 10 if cell.row == "FedGen" else 0  # counts per label; the paper sends all labels
        assert values["a client"] == paper["a client"].value + labels
        if paper["five clients"]:
            assert values["five clients"] / 2**10 == pytest.approx(paper["five clients"].value, abs=0.005)
    text = (tmp_path / "table.md").read_text()
    assert "| FedHPL | 110 [110, +0] | 10,100 [10,100, +0] |" in text
    assert "in units of 2^10" in text
    assert "nan" not in text
