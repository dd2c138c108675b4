"""Analyses of finished runs that end in tables."""

from pathlib import Path

import numpy as np

from fedjax_core.atomic_files import write_csv
from fedjax_core.commands.analyses.answers import answered, mean_over_clients
from fedjax_core.commands.analyses.context import Asked, Loaded, labels, markdown, of_features
from fedjax_core.reporting import analysis, reporter


def _refits(what: str, asked: Asked, loaded: Loaded) -> list[Path]:
    """Accuracy of every client before and after a part is trained again."""
    rows, means = [], []
    for run, label in zip(asked.runs, labels(asked), strict=True):
        simulation, state = loaded(run)
        after = {"probe": analysis.probe, "match": analysis.match}[what](simulation, state, asked.model, asked.features)
        before = analysis.client_accuracies(*loaded.accuracies(run, asked.model))
        names = simulation.spec.data.client_names
        rows += [
            {"run": label, "client": i} | ({"name": names[i]} if names else {}) | {"origin": b, what: a}
            for i, (b, a) in enumerate(zip(before, after, strict=True))
        ]
        there = np.isfinite(after) & np.isfinite(before)
        means.append({"run": label, "clients": int(there.sum()), "origin": before[there].mean(), what: after[there].mean()})
    name = f"{what}{of_features(asked)}"
    write_csv(asked.out / f"{name}.csv", rows)
    shown = [{key: f"{100 * v:.2f} %" if isinstance(v, float) else str(v) for key, v in row.items()} for row in means]
    return [asked.out / f"{name}.csv", markdown(asked.out / f"{name}.md", shown)]


def probe(asked: Asked, loaded: Loaded) -> list[Path]:
    """Accuracy with a new linear head per client, beside the model's own."""
    return _refits("probe", asked, loaded)


def match(asked: Asked, loaded: Loaded) -> list[Path]:
    """Accuracy with a linear layer trained between features and head, beside the model's own."""
    return _refits("match", asked, loaded)


def communication(asked: Asked, loaded: Loaded) -> list[Path]:
    """What a client receives and sends in a round, by part."""
    rows = []
    for run, label in zip(asked.runs, labels(asked), strict=True):
        rows += [{"run": label} | row for row in analysis.communication(loaded(run)[0])]
    columns = ["run", "group", "way", "part", "layer", "array", "shape", "dtype", "numbers", "bytes"]
    write_csv(asked.out / "communication.csv", rows, columns)
    sums: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        for part in (row["part"], "all"):
            total = sums.setdefault((row["run"], row["group"], row["way"], part), [0, 0])
            total[0] += row["numbers"]
            total[1] += row["bytes"]
    sums = dict(sorted(sums.items(), key=lambda item: item[0][-1] == "all"))
    shown = [
        dict(zip(("run", "group", "way", "part"), key, strict=True)) | {"numbers": f"{n:,}", "size": reporter.readable_size(b)}
        for key, (n, b) in sums.items()
    ]
    return [asked.out / "communication.csv", markdown(asked.out / "communication.md", shown)]


def sizes(asked: Asked, loaded: Loaded) -> list[Path]:
    """What a client's network has and trains, and its messages hold, in numbers."""
    rows = []
    for run, label in zip(asked.runs, labels(asked), strict=True):
        rows += [{"run": label} | row for row in analysis.sizes(loaded(run)[0])]
    write_csv(asked.out / "sizes.csv", rows)
    shown = [{key: f"{value:,}" if isinstance(value, int) else value for key, value in row.items()} for row in rows]
    return [asked.out / "sizes.csv", markdown(asked.out / "sizes.md", shown)]


def rouge(asked: Asked, loaded: Loaded) -> list[Path]:
    """What models of instructions answer, in words, with its ROUGE-1: a language model writes, an encoder chooses."""
    rows, means = [], []
    for run, label in zip(asked.runs, labels(asked), strict=True):
        mine = answered(run, *loaded.whole(run), asked.model, asked.beams)
        rows += [{"run": label} | row for row in mine]
        for name in dict.fromkeys(row["dataset"] for row in mine):
            of_set = [row for row in mine if row["dataset"] == name]
            mean = lambda what, of_set=of_set: f"{100 * mean_over_clients(of_set, what):.2f} %"
            means.append({"run": label, "data set": name, "rouge1": mean("rouge1"), "exact": mean("exact")})
    write_csv(asked.out / "rouge.csv", rows)
    return [asked.out / "rouge.csv", markdown(asked.out / "rouge.md", means)]
