"""Analyses of finished runs that end in tables, and what models of instructions answer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core import experiment
from fedjax_core.atomic_files import write_csv
from fedjax_core.commands.analyses.context import AnalysisContext, RunLoader, features_suffix, run_labels, write_markdown
from fedjax_core.engine.simulator import Simulator, State
from fedjax_core.language import generation
from fedjax_core.language import instruction_task as language
from fedjax_core.reporting import analysis, console
from fedjax_core.storage.json_files import read_json, write_json

ANSWERS = "answers.json"  # in a run's directory: what its models have answered, in words
_ANSWER_FIELDS = {"client": int, "task": str, "dataset": str, "answer": str, "said": str, "rouge1": float, "exact": bool}
_ANSWERS_FORM = {str: {"round": int, "rows": [_ANSWER_FIELDS]}}  # by the model


def collect_answers(
    run: Path, config: Any, simulation: Simulator, state: State, model: str | None = None, beams: int = 1
) -> list[dict[str, Any]]:
    """Returns a record per client and test example, read from the run's directory or computed and, if possible, written there.

    A global model on test examples that all clients share is asked once, as client 0.
    """
    prepared, adapter = experiment.read_instructions(config), experiment.resolve(config).adapter
    model, round_num = analysis.choose_scored_model(simulation, state, model), int(state.round)
    stored = read_json(run / ANSWERS, _ANSWERS_FORM) if (run / ANSWERS).exists() else {}
    key = model if beams == 1 else f"{model}, {beams} beams"
    if key in stored and stored[key]["round"] == round_num:
        return stored[key]["rows"]
    is_shared = len({index.tobytes() for index in simulation.spec.data.test_index}) == 1
    records, batch, longest = [], simulation.spec.batches.test, language.choose_longest(prepared)
    for client in [0] if model == "global" and is_shared else simulation.spec.scored_clients().tolist():
        view, rows = simulation.client_view(state, client), simulation.spec.data.test_index[client].tolist()
        params = language.generation_params(prepared, adapter, view.task.frozen, analysis.find_network(simulation, view, model))
        texts = language.generate_answers(prepared, params, rows, batch, longest, beams)
        examples = [prepared.divided.test[row] for row in rows]
        targets = [example.answer for example in examples]
        rouge1, exact = generation.compute_rouge1(texts, targets), generation.is_exact_match(texts, targets)
        for example, text, score, is_exact in zip(examples, texts, rouge1, exact, strict=True):
            record = {"client": client, "task": example.task, "dataset": example.dataset, "answer": example.answer}
            records.append(record | {"said": text, "rouge1": score, "exact": is_exact})
    try:
        write_json(run / ANSWERS, stored | {key: {"round": round_num, "rows": records}})
    except OSError as error:
        console.say(f"{console.one_line(error)}; the answers will be written anew next time")
    return records


def mean_over_clients(records: Sequence[Mapping[str, Any]], field: str) -> float:
    """Returns the mean over clients of each client's mean."""
    values: dict[int, list[float]] = {}
    for record in records:
        values.setdefault(record["client"], []).append(record[field])
    return float(np.mean([np.mean(of_client) for of_client in values.values()]))


def _write_refits(what: str, context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Writes the accuracy of every client before and after a part is trained again."""
    rows, means = [], []
    for run, label in zip(context.runs, run_labels(context), strict=True):
        simulation, state = load(run)
        after = {"probe": analysis.score_probe, "match": analysis.score_match}[what](
            simulation, state, context.model, context.features
        )
        before = analysis.compute_client_accuracies(*load.accuracies(run, context.model))
        names = simulation.spec.data.client_names
        rows += [
            {"run": label, "client": i} | ({"name": names[i]} if names else {}) | {"origin": b, what: a}
            for i, (b, a) in enumerate(zip(before, after, strict=True))
        ]
        is_finite = np.isfinite(after) & np.isfinite(before)
        means.append(
            {"run": label, "clients": int(is_finite.sum()), "origin": before[is_finite].mean(), what: after[is_finite].mean()}
        )
    name = f"{what}{features_suffix(context)}"
    write_csv(context.out / f"{name}.csv", rows)
    shown = [{key: f"{100 * v:.2f} %" if isinstance(v, float) else str(v) for key, v in row.items()} for row in means]
    return [context.out / f"{name}.csv", write_markdown(context.out / f"{name}.md", shown)]


def write_probe(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Writes the accuracy with a new linear head per client, beside the model's own."""
    return _write_refits("probe", context, load)


def write_match(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Writes the accuracy with a linear layer before the head, beside the model's own."""
    return _write_refits("match", context, load)


def write_communication(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Writes what a client receives and sends in a round, by part."""
    rows = []
    for run, label in zip(context.runs, run_labels(context), strict=True):
        rows += [{"run": label} | row for row in analysis.count_communication(load(run)[0])]
    columns = ["run", "group", "way", "part", "layer", "array", "shape", "dtype", "numbers", "bytes"]
    write_csv(context.out / "communication.csv", rows, columns)
    sums: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        for part in (row["part"], "all"):
            total = sums.setdefault((row["run"], row["group"], row["way"], part), [0, 0])
            total[0] += row["numbers"]
            total[1] += row["bytes"]
    sums = dict(sorted(sums.items(), key=lambda item: item[0][-1] == "all"))
    shown = [
        dict(zip(("run", "group", "way", "part"), key, strict=True)) | {"numbers": f"{n:,}", "size": console.readable_size(b)}
        for key, (n, b) in sums.items()
    ]
    return [context.out / "communication.csv", write_markdown(context.out / "communication.md", shown)]


def write_sizes(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Writes how many numbers a client's network has and trains, and its messages hold."""
    rows = []
    for run, label in zip(context.runs, run_labels(context), strict=True):
        rows += [{"run": label} | row for row in analysis.count_sizes(load(run)[0])]
    write_csv(context.out / "sizes.csv", rows)
    shown = [{key: f"{value:,}" if isinstance(value, int) else value for key, value in row.items()} for row in rows]
    return [context.out / "sizes.csv", write_markdown(context.out / "sizes.md", shown)]


def write_rouge(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Writes what models of instructions answer, with its ROUGE-1."""
    rows, means = [], []
    for run, label in zip(context.runs, run_labels(context), strict=True):
        answers = collect_answers(run, *load.load_with_config(run), context.model, context.beams)
        rows += [{"run": label} | row for row in answers]
        for name in dict.fromkeys(row["dataset"] for row in answers):
            of_set = [row for row in answers if row["dataset"] == name]
            scores = {field: f"{100 * mean_over_clients(of_set, field):.2f} %" for field in ("rouge1", "exact")}
            means.append({"run": label, "data set": name} | scores)
    write_csv(context.out / "rouge.csv", rows)
    return [context.out / "rouge.csv", write_markdown(context.out / "rouge.md", means)]
