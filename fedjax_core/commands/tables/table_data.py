"""Loads the data of a table's runs, and compares them with those that finished runs were run on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedjax_core import experiment
from fedjax_core.commands.tables.progress import Beat
from fedjax_core.commands.tables.table_cells import Cell
from fedjax_core.data import digest
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.reporting import reporter
from fedjax_core.run import check_inputs
from fedjax_core.storage.json_files import read_json, to_json_values
from fedjax_core.storage.workdir import DATA, RECORDED, RUN


class TableData:
    """The data of a table's runs; those of the last config are kept."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        """Keeps the folder of the table, and `say`, which prints a line."""
        self._folder = folder
        self._say = say
        self._last: tuple[str, FederatedData] | None = None
        self._digests: dict[str, str | None] = {}  # by name of the inputs; None: they cannot be read

    def load(self, config: Any) -> FederatedData:
        """Returns the data of a run's config."""
        key = json.dumps(to_json_values(config.data.to_dict()), sort_keys=True)
        if self._last is None or self._last[0] != key:
            self._last = None  # frees the old data before the new are loaded
            self._last = key, experiment.dataset(config)
        return self._last[1]

    def check_inputs(self, cell: Cell) -> None:
        """Checks the inputs and targets that a cell or a trial was run on.

        A run that has not begun, or that an earlier version began, has no record of them.
        """
        workdir = self._folder / "runs" / cell.name
        recorded = read_json(workdir / RUN, RECORDED).get(DATA) if (workdir / RUN).exists() else None
        if recorded is None:
            return
        name = experiment.name_inputs(cell.config)
        if name not in self._digests:
            self._digests[name] = self._compute_digest(cell)
        if self._digests[name] is not None:
            check_inputs(workdir, recorded, {"digest": self._digests[name]})

    def _compute_digest(self, cell: Cell) -> str | None:
        with Beat(f"reading the data of {cell.column}", self._say):
            try:
                return digest.digest_data(self.load(cell.config)).digest
            except (ValueError, OSError) as error:
                what = "its finished runs are taken up without comparing their data"
                self._say(f"{cell.column}: {what}, which cannot be read: {reporter.one_line(error)}")
                return None
