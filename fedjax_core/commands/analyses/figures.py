"""Analyses of finished runs that end in figures: of their directories alone, or of their trained models."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from fedjax_core.commands.analyses.context import Asked, Loaded, drawn, labels, named, of_features
from fedjax_core.reporting import analysis, plots, reporter
from fedjax_core.reporting.label_tables import partition_of
from fedjax_core.reporting.metrics_log import read
from fedjax_core.reporting.plots.score_curves import scores_in
from fedjax_core.reporting.score_labels import ROWS
from fedjax_core.storage.export_model import trained_network
from fedjax_core.storage.workdir import METRICS, RUN

EMBEDDED, ATTENDED = 50, 20  # examples of a client in the plane, and in the map of its attention
KNOWLEDGE_ROWS = 1000  # test examples in the plane beside class knowledge
SCOPES = {scope: f"test accuracy, {ROWS[scope]}" for scope in ("own", "all")}


def curves(asked: Asked, loaded: Loaded) -> list[Path]:
    """A score over the rounds, all runs together (--score); runs that differ in the seed alone as mean and standard deviation."""
    del loaded
    return drawn(asked, "curves", plots.curves, asked.runs, asked.scores or _main_scores(asked.runs), labels=asked.labels)


def _main_scores(runs: Sequence[Path]) -> list[str]:
    """The one of `reporter.HEADLINE` that all runs have, or else each run's own.

    Raises:
      ValueError: a run has none of them; says what it has.
    """
    of = {run: read(run / METRICS) for run in runs}
    have = {run: {name for record in records for name in record} for run, records in of.items()}
    for run, names in have.items():
        if not any(name in names for name in reporter.HEADLINE):
            raise ValueError(
                f"{run} has neither {' nor '.join(reporter.HEADLINE)}; choose with --score=NAME of {scores_in(of[run])}"
            )
    return [name for name in reporter.HEADLINE if all(name in names for names in have.values())][:1] or list(reporter.HEADLINE)


def traffic(asked: Asked, loaded: Loaded) -> list[Path]:
    """A score over the bytes that a client has sent, a line for each run (--score)."""
    del loaded
    scores = asked.scores or _main_scores(asked.runs)
    return drawn(asked, "traffic", plots.spending, asked.runs, scores, cost="bytes", labels=asked.labels)


def epsilon(asked: Asked, loaded: Loaded) -> list[Path]:
    """A score over what privacy has cost so far, a line for each run that has noise (--score)."""
    del loaded
    scores = asked.scores or _main_scores(asked.runs)
    return drawn(asked, "epsilon", plots.spending, asked.runs, scores, cost="epsilon", labels=asked.labels)


def partition(asked: Asked, loaded: Loaded) -> list[Path]:
    """Who has how much of what, as circles and as shades.

    Raises:
      ValueError: a run has no label table.
    """
    del loaded
    files = []
    for run, name in named(asked):
        found = partition_of(run)
        if not found.get("label_table"):
            lost = run / found["whole"] if "whole" in found else run / RUN
            raise ValueError(f"{run} has no label table, which {lost} would hold; restore that file, or leave the run out")
        for kind, draw in (("bubbles", plots.partition_bubbles), ("heatmap", plots.heatmap)):
            more = {key: found.get(key) for key in ("class_names", "clients", "client_names")}
            files += drawn(asked, f"{name}partition_{kind}", draw, found["label_table"], **more)
    return files


def tsne(asked: Asked, loaded: Loaded) -> list[Path]:
    """Features in the plane, by class and by client."""
    files = []
    for run, name in named(asked):
        simulation, state = loaded(run)
        most = EMBEDDED if asked.rows is None else asked.rows
        points = analysis.features(simulation, state, asked.model, asked.features, clients=asked.clients, most=most)
        shown = analysis.with_centroids(points) if asked.centroids else points
        places = analysis.tsne(shown.features, asked.seed)
        centres = np.arange(len(places)) >= len(points.classes)
        of = {"class_names": simulation.spec.data.class_names, "centres": centres}
        files += drawn(asked, f"{name}tsne{of_features(asked)}", plots.embedding, places, shown.classes, shown.clients, **of)
    return files


def attention(asked: Asked, loaded: Loaded) -> list[Path]:
    """What a client's test examples attend to: the feature and each prompt."""
    files = []
    for run, name in named(asked):
        simulation, state = loaded(run)
        client = asked.clients[0] if asked.clients else 0
        most = ATTENDED if asked.rows is None else asked.rows
        found, classes = analysis.attention(simulation, state, asked.model, client, most)
        for what, weights in found.items():
            names = [simulation.spec.data.class_names[k] for k in classes]
            files += drawn(asked, f"{name}{what}", plots.attention, weights, labels=names)
    return files


def knowledge(asked: Asked, loaded: Loaded) -> list[Path]:
    """Logits of test examples in the plane, class knowledge as large dots: a client's after its training, and the server's."""
    files = []
    for run, name in named(asked):
        simulation, state = loaded(run)
        client = 0 if asked.clients is None else asked.clients[0]
        x, y = simulation.spec.data.test
        rows = np.unique(np.linspace(0, len(y) - 1, min(len(y), KNOWLEDGE_ROWS)).round().astype(int))
        view = simulation.view(state, client, trained=True)
        model = analysis.model_of(simulation, state, asked.model)
        sights = {"local": (view, *analysis.class_knowledge(simulation, view, model))}
        known = getattr(state.server, "known", None)
        if hasattr(state.server, "knowledge") and known is not None and np.any(known) and "global" in view.holds:
            classes = np.flatnonzero(known)
            sights["global"] = (simulation.view(state, client), np.asarray(state.server.knowledge)[classes], classes)
        for what, (seen, marks, classes) in sights.items():
            made = analysis.outputs(seen, model, x[rows], simulation.spec.batches.test)
            points = made["logits"] if made["logits"].shape[1] == marks.shape[1] else made["features"]
            places = analysis.tsne(np.concatenate([points, marks]), asked.seed)
            both = places[: len(rows)], y[rows], places[len(rows) :], classes
            names = simulation.spec.data.class_names
            files += drawn(asked, f"{name}knowledge_{what}", plots.landmarks, *both, class_names=names)
    return files


def clients(asked: Asked, loaded: Loaded) -> list[Path]:
    """Accuracy of every client, all runs together (--scope)."""
    series = {}
    for run, label in zip(asked.runs, labels(asked), strict=True):
        found = analysis.client_accuracies(*loaded.accuracies(run, asked.model, asked.scope))
        names = partition_of(run).get("client_names") or list(map(str, range(len(found))))
        series[label] = dict(zip(names, found.tolist(), strict=True))
    return drawn(asked, "clients", plots.dots, series, across="client", up=SCOPES[asked.scope])


def classes(asked: Asked, loaded: Loaded) -> list[Path]:
    """Accuracy by class over all clients, all runs together; and by client and class, run by run (--scope)."""
    series, files = {}, []
    for (run, name), label in zip(named(asked), labels(asked), strict=True):
        simulation, _ = loaded(run)
        names = simulation.spec.data.class_names
        correct, total = loaded.accuracies(run, asked.model, asked.scope)
        each = np.where(total > 0, correct / np.maximum(total, 1), np.nan)
        of_class = np.where(total.sum(0) > 0, correct.sum(0) / np.maximum(total.sum(0), 1), np.nan)
        series[label] = dict(zip(names, of_class.tolist(), strict=True))
        how = {"class_names": names, "client_names": simulation.spec.data.client_names or None}
        how |= {"of": SCOPES[asked.scope], "percent": True}
        files += drawn(asked, f"{name}classes_by_client", plots.heatmap, each, **how)
    return [*drawn(asked, "classes", plots.dots, series, across="class", up=SCOPES[asked.scope]), *files]


def landscape(asked: Asked, loaded: Loaded) -> list[Path]:
    """The test loss in a plane through the model (of client 0, if clients have models)."""
    files = []
    for run, name in named(asked):
        client = asked.clients[0] if asked.clients else 0
        where = {"span": asked.span, "points": asked.points, "seed": asked.seed}
        found = analysis.landscape(*loaded(run), asked.model, client, **where)
        files += drawn(asked, f"{name}landscape", plots.contours, found.steps, found.loss, accuracy=found.accuracy)
    return files


def plane(asked: Asked, loaded: Loaded) -> list[Path]:
    """The test loss around the first run's global model, and where the models of all runs stand: clients', else the global one."""
    nets, of = [], []
    for run, label in zip(asked.runs, labels(asked), strict=True):
        simulation, state = loaded(run)
        model = analysis.model_of(simulation, state, asked.model)
        x = jax.tree.map(lambda a: np.asarray(a[:8]), simulation.spec.data.test.x)
        for client in range(simulation.spec.population) if asked.clients is None else asked.clients:
            nets.append(trained_network(simulation.view(state, client), model, x))
            of.append(label)
            if model == "global":
                break
    found, where = analysis.surroundings(*loaded(asked.runs[0]), nets, span=asked.span, points=asked.points)
    marks = {label: where.places[[other == label for other in of]] for label in dict.fromkeys(of)}
    how = {"accuracy": found.accuracy, "marks": marks, "share": where.share.tolist()}
    return drawn(asked, "plane", plots.contours, found.steps, found.loss, **how)
