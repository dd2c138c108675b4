"""What the models of a run answer, in words."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_core import experiment
from fedjax_core.engine.simulator import Simulation, State
from fedjax_core.language import instruction_task as language
from fedjax_core.language import option_scoring
from fedjax_core.reporting import analysis
from fedjax_core.storage.export_model import trained_network
from fedjax_core.storage.json_files import read_json, write_json

ANSWERS = "answers.json"  # in a run's directory: what its models have answered, in words
_ROW = {"client": int, "task": str, "dataset": str, "answer": str, "said": str, "rouge1": float, "exact": bool}
_ANSWERED = {str: {"round": int, "rows": [_ROW]}}  # by the model


def answered(
    run: Path, config: Any, simulation: Simulation, state: State, model: str | None = None, beams: int = 1
) -> list[dict[str, Any]]:
    """A row per client (of the global model on common tests: one) and test row; kept in the run's directory."""
    made, adapter = experiment.prepared(config), experiment.resolve(config).adapter
    model, done = analysis.model_of(simulation, state, model), int(state.round)
    known = read_json(run / ANSWERS, _ANSWERED) if (run / ANSWERS).exists() else {}
    key = model if beams == 1 else f"{model}, {beams} beams"
    if key in known and known[key]["round"] == done:
        return known[key]["rows"]
    common = len({index.tobytes() for index in simulation.spec.data.test_index}) == 1
    found = []
    for client in [0] if model == "global" and common else simulation.spec.scored_clients().tolist():
        view, rows = simulation.view(state, client), simulation.spec.data.test_index[client].tolist()
        x = jax.tree.map(lambda a: np.asarray(a[:8]), simulation.spec.data.test.x)
        params = language.parameters(made, adapter, view.task.frozen, trained_network(view, model, x))
        texts = language.answers(made, params, rows, simulation.spec.batches.test, beams=beams)
        asked = [made.divided.test[row] for row in rows]
        right = [row.answer for row in asked]
        for row, said, score, same in zip(
            asked, texts, option_scoring.rouge1(texts, right), option_scoring.exact(texts, right), strict=True
        ):
            found.append({"client": client, "task": row.task, "dataset": row.dataset, "answer": row.answer, "said": said})
            found[-1] |= {"rouge1": score, "exact": same}
    write_json(run / ANSWERS, known | {key: {"round": done, "rows": found}})
    return found


def mean_over_clients(rows: Sequence[Mapping[str, Any]], what: str) -> float:
    """Of each client's mean."""
    of = {client: [row[what] for row in rows if row["client"] == client] for client in {row["client"] for row in rows}}
    return float(np.mean([np.mean(values) for values in of.values()]))
