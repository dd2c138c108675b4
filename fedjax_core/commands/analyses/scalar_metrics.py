"""Analyses of finished runs as one number each, for tables."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core import experiment, registry
from fedjax_core.commands.analyses.tables import collect_answers, mean_over_clients
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine.simulator import Simulator, State
from fedjax_core.reporting import analysis
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import read_json, write_json
from fedjax_core.storage.workdir import CHECKPOINTS

NUMBERS = "analysis.json"  # in a run's directory: the results of `make_metric`
_NUMBERS_FORM = {str: {"round": (int, type(None)), "value": float}}  # by the analysis's text; a round where there are checkpoints


def _mean_origin(simulation: Simulator, state: State, model: str | None = None) -> float:
    return float(np.nanmean(analysis.compute_client_accuracies(*analysis.compute_class_accuracies(simulation, state, model))))


def _mean_probe(simulation: Simulator, state: State, model: str | None = None, key: str = "features") -> float:
    return float(np.nanmean(analysis.score_probe(simulation, state, model, key)))


def _mean_match(simulation: Simulator, state: State, model: str | None = None, key: str = "features") -> float:
    return float(np.nanmean(analysis.score_match(simulation, state, model, key)))


def _mean_rouge(
    run: Path, config: Any, simulation: Simulator, state: State, model: str | None = None, of: str | None = None, beams: int = 1
) -> float:
    rows = collect_answers(run, config, simulation, state, model, beams)
    if of is not None:
        registry.check_choice(
            "task or data set of rouge", of, dict.fromkeys([row[what] for what in ("task", "dataset") for row in rows])
        )
        rows = [row for row in rows if of in (row["task"], row["dataset"])]
    return mean_over_clients(rows, "rouge1")


def _read_size(rows: Sequence[Mapping[str, Any]], what: str, total: bool = False, group: int | None = None) -> float:
    if group is not None:
        if not 0 <= group < len(rows):
            raise ValueError(f"{what}: group={group} must be in [0, {len(rows)}), the number of architectures")
        rows = rows[group : group + 1]
    over = sum(row["clients"] * row[what] for row in rows)
    return over if total else over / sum(row["clients"] for row in rows)


def _make_size(what: str) -> Callable[..., float]:
    def size(simulation: Simulator, total: bool = False, group: int | None = None) -> float:
        return _read_size(analysis.count_sizes(simulation), what, total, group)

    return size


SIZES = {what: _make_size(what) for what in ("whole", "body", "trained", "down", "up")}  # need no trained state
MEANS = {"origin": _mean_origin, "probe": _mean_probe, "match": _mean_match, "rouge": _mean_rouge} | SIZES
RUN_ARGUMENTS = ("run", "config", "simulation", "state")  # what these take of a run


def is_size(text: str) -> bool:
    """Returns whether an analysis needs shapes alone, no trained state."""
    return registry.parse_spec(text)[0] in SIZES


def compute_sizes(texts: Sequence[str], simulation: Simulator) -> list[float]:
    """Returns analyses that need shapes alone, not a run; see `make_metric`."""
    rows, specs = analysis.count_sizes(simulation), map(registry.parse_spec, texts)
    return [_read_size(rows, name, **options) for name, options in specs]


def read_numbers(run: Path) -> dict[str, Any]:
    """Returns what `make_metric` has kept in a run's directory, by analysis."""
    file = run / NUMBERS
    return read_json(file, _NUMBERS_FORM) if file.exists() else {}


def make_metric(text: str) -> Callable[..., float]:
    """Returns a function that computes an analysis of a run: the mean over clients after its last or selected round.

    Args:
      text: "origin", "probe" or "match", with options as in "probe(model='global', key='features')"; "rouge" of answers in words,
        with of="sst2" on one test set, or one task; or a count, "whole", "body", "trained", "down", "up"
        (`analysis.count_sizes`), with total=True the sum over clients, with group=0 of one architecture.

    Returns:
      (run's directory, its data or None to load them, whether its config may import what it names: `experiment.load`) -> the
      number, which is kept in the run's directory.
    """
    name, options = registry.parse_spec(text)
    function = MEANS[registry.check_choice("analysis", name, MEANS)]
    registry.check_call(f"analysis {name!r}", function, RUN_ARGUMENTS, options)

    def compute(run: Path, data: FederatedData | None = None, trust: bool = False) -> float:
        stored = read_numbers(run)
        latest = Checkpoints(run / CHECKPOINTS).latest()  # None: the checkpoints were deleted
        if text not in stored or latest not in (None, stored[text]["round"]):
            loaded = experiment.load(run, data=data, trust=trust)
            arguments: dict[str, Any] = dict(zip(RUN_ARGUMENTS, (run, *loaded), strict=True))
            stored[text] = {"round": latest, "value": registry.call_checked(f"analysis {name!r}", function, arguments, options)}
            arguments["simulation"].release()
            write_json(run / NUMBERS, stored)
        return stored[text]["value"]

    return compute
