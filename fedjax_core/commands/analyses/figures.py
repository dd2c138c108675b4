"""Analyses of finished runs that end in figures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedjax_core.algorithm import select_examples
from fedjax_core.commands.analyses.context import AnalysisContext, RunLoader, features_suffix, run_labels, runs_with_prefixes
from fedjax_core.reporting import analysis, plots, reporter
from fedjax_core.reporting.evenly_spaced import space_evenly
from fedjax_core.reporting.label_tables import read_partition
from fedjax_core.reporting.metrics_log import read_records
from fedjax_core.reporting.plots.score_curves import list_scores
from fedjax_core.reporting.score_labels import ROWS
from fedjax_core.storage.workdir import METRICS, RUN

EMBEDDED, ATTENDED = 50, 20  # examples of a client in the plane, and in the map of its attention
KNOWLEDGE_ROWS = 1000  # test examples in the plane beside class knowledge
SCOPES = {scope: f"test accuracy, {ROWS[scope]}" for scope in ("own", "all")}


def draw_curves(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Draws a score over rounds, or --axis=seconds (--score); runs that differ in the seed alone as mean and deviation."""
    del load
    name = "curves" if context.axis == "rounds" else f"curves_{context.axis}"
    return _draw(context, name, plots.plot_curves, context.runs, _choose_scores(context), labels=context.labels, axis=context.axis)


def _choose_scores(context: AnalysisContext) -> Sequence[str]:
    """Returns those asked for; else the first of `reporter.HEADLINE` that all runs have, or all of them without such."""
    if context.scores:
        return context.scores
    records = {run: read_records(run / METRICS) for run in context.runs}
    scores = {run: {name for record in of_run for name in record} for run, of_run in records.items()}
    for run, names in scores.items():
        if not any(name in names for name in reporter.HEADLINE):
            raise ValueError(
                f"{run} has neither {' nor '.join(reporter.HEADLINE)}; choose with --score=NAME of {list_scores(records[run])}"
            )
    return [name for name in reporter.HEADLINE if all(name in names for names in scores.values())][:1] or list(reporter.HEADLINE)


def draw_traffic(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Draws a score over the bytes that a client has sent, a line for each run (--score)."""
    del load
    return _draw(context, "traffic", plots.plot_costs, context.runs, _choose_scores(context), cost="bytes", labels=context.labels)


def draw_epsilon(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Draws a score over the epsilon spent so far, a line for each run that has noise (--score)."""
    del load
    return _draw(context, "epsilon", plots.plot_costs, context.runs, _choose_scores(context), cost="epsilon", labels=context.labels)


def draw_partition(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Draws how many examples of each class each client has, as circles and as shades."""
    del load
    files = []
    for run, prefix in runs_with_prefixes(context):
        partition = read_partition(run)
        if not partition.get("label_table"):
            lost = run / partition["whole"] if "whole" in partition else run / RUN
            raise ValueError(f"{run} has no label table, which {lost} would hold; restore that file, or leave the run out")
        for kind, draw in (("bubbles", plots.plot_partition), ("heatmap", plots.plot_heatmap)):
            names = {key: partition.get(key) for key in ("class_names", "clients", "client_names")}
            files += _draw(context, f"{prefix}partition_{kind}", draw, partition["label_table"], **names)
    return files


def draw_tsne(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Draws features in the plane, by class and by client."""
    files = []
    for run, prefix in runs_with_prefixes(context):
        simulation, state = load(run)
        most = EMBEDDED if context.rows is None else context.rows
        points = analysis.compute_features(simulation, state, context.model, context.features, clients=context.clients, most=most)
        shown = analysis.with_centroids(points) if context.centroids else points
        places = analysis.embed_by_tsne(shown.features, context.seed)
        centres = np.arange(len(places)) >= len(points.classes)
        labels = {"class_names": simulation.spec.data.class_names, "centres": centres}
        files += _draw(
            context, f"{prefix}tsne{features_suffix(context)}", plots.plot_embedding, places, shown.classes, shown.clients, **labels
        )
    return files


def draw_attention(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Draws what a client's test examples attend to: the feature and each prompt."""
    files = []
    for run, prefix in runs_with_prefixes(context):
        simulation, state = load(run)
        most = ATTENDED if context.rows is None else context.rows
        maps, classes = analysis.compute_attention(simulation, state, context.model, context.first_client, most)
        for name_of_map, weights in maps.items():
            names = [simulation.spec.data.class_names[k] for k in classes]
            files += _draw(context, f"{prefix}{name_of_map}", plots.plot_attention, weights, labels=names)
    return files


def draw_knowledge(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Draws logits of test examples in the plane, and class knowledge: a client's and the server's."""
    files = []
    for run, prefix in runs_with_prefixes(context):
        simulation, state = load(run)
        client, (x, y) = context.first_client, simulation.spec.data.test
        rows = space_evenly(len(y), KNOWLEDGE_ROWS)
        view = simulation.client_view(state, client, trained=True)
        model = analysis.choose_scored_model(simulation, state, context.model)
        views = {"local": (view, *analysis.collect_class_knowledge(simulation, view, model))}
        known = getattr(state.server, "known", None)
        if hasattr(state.server, "knowledge") and known is not None and np.any(known) and "global" in view.holds:
            classes = np.flatnonzero(known)
            views["global"] = (simulation.client_view(state, client), np.asarray(state.server.knowledge)[classes], classes)
        for name_of_view, (view_shown, landmarks, classes) in views.items():
            outputs = analysis.compute_outputs(view_shown, model, select_examples(x, rows), simulation.spec.batches.test)
            points = outputs["logits"] if outputs["logits"].shape[1] == landmarks.shape[1] else outputs["features"]
            places = analysis.embed_by_tsne(np.concatenate([points, landmarks]), context.seed)
            embedded = places[: len(rows)], y[rows], places[len(rows) :], classes
            names = simulation.spec.data.class_names
            files += _draw(context, f"{prefix}knowledge_{name_of_view}", plots.plot_landmarks, *embedded, class_names=names)
    return files


def draw_client_accuracies(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Draws the accuracy of every client, all runs together (--scope)."""
    series = {}
    for run, label in zip(context.runs, run_labels(context), strict=True):
        accuracies = analysis.compute_client_accuracies(*load.accuracies(run, context.model, context.scope))
        names = load(run)[0].spec.data.client_names or list(map(str, range(len(accuracies))))
        series[label] = dict(zip(names, accuracies.tolist(), strict=True))
    return _draw(context, "clients", plots.plot_dots, series, across="client", up=SCOPES[context.scope])


def draw_class_accuracies(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Draws accuracies by class of all runs, and by client and class of each (--scope)."""
    series, files = {}, []
    for (run, prefix), label in zip(runs_with_prefixes(context), run_labels(context), strict=True):
        simulation, _ = load(run)
        names = simulation.spec.data.class_names
        correct, total = load.accuracies(run, context.model, context.scope)
        each = np.where(total > 0, correct / np.maximum(total, 1), np.nan)
        of_class = np.where(total.sum(0) > 0, correct.sum(0) / np.maximum(total.sum(0), 1), np.nan)
        series[label] = dict(zip(names, of_class.tolist(), strict=True))
        options = {"class_names": names, "client_names": simulation.spec.data.client_names or None}
        options |= {"of": SCOPES[context.scope], "percent": True}
        files += _draw(context, f"{prefix}classes_by_client", plots.plot_heatmap, each, **options)
    return [*_draw(context, "classes", plots.plot_dots, series, across="class", up=SCOPES[context.scope]), *files]


def draw_landscape(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Draws the test loss in a plane through the model (of client 0, if clients have models)."""
    files = []
    for run, prefix in runs_with_prefixes(context):
        grid = {"span": context.span, "points": context.points, "seed": context.seed}
        surface = analysis.compute_landscape(*load(run), context.model, context.first_client, **grid)
        files += _draw(context, f"{prefix}landscape", plots.plot_contours, surface.steps, surface.loss, accuracy=surface.accuracy)
    return files


def draw_plane(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Draws the test loss around the first run's global model, and where all runs' models are."""
    nets, run_of_net = [], []
    for run, label in zip(context.runs, run_labels(context), strict=True):
        simulation, state = load(run)
        model = analysis.choose_scored_model(simulation, state, context.model)
        for client in range(simulation.spec.population) if context.clients is None else context.clients:
            nets.append(analysis.find_network(simulation, simulation.client_view(state, client), model))
            run_of_net.append(label)
            if model == "global":
                break
    surface, positions = analysis.compute_surroundings(*load(context.runs[0]), nets, span=context.span, points=context.points)
    marks = {label: positions.places[[other == label for other in run_of_net]] for label in dict.fromkeys(run_of_net)}
    options = {"accuracy": surface.accuracy, "marks": marks, "share": positions.share.tolist()}
    return _draw(context, "plane", plots.plot_contours, surface.steps, surface.loss, **options)


def draw_drift(context: AnalysisContext, load: RunLoader) -> list[Path]:
    """Draws clients' training losses and the test loss around their models, and each round's labels."""
    files = []
    for run, prefix in runs_with_prefixes(context):
        simulation, state = load(run)
        clients = (0, 1) if context.clients is None else context.clients
        counts = analysis.count_cohort_labels(simulation, state)
        surfaces, plane = analysis.compute_drift(simulation, state, clients, span=context.span, points=context.points)
        marks = {f"client {i}": plane.places[at] for at, i in enumerate(clients)}
        for name_of_loss, surface in surfaces.items():
            options = {"accuracy": surface.accuracy, "marks": marks, "share": plane.share.tolist()}
            options["of"] = "test loss" if name_of_loss == "global" else f"training loss, {name_of_loss}"
            file = f"{prefix}drift_{name_of_loss.replace(' ', '')}"
            files += _draw(context, file, plots.plot_contours, surface.steps, surface.loss, **options)
        rounds = range(1, len(counts) + 1)
        options = {"class_names": simulation.spec.data.class_names, "clients": rounds, "across": "round"}
        files += _draw(context, f"{prefix}drift_labels", plots.plot_heatmap, counts, **options)
    return files


def _draw(context: AnalysisContext, name: str, draw: Callable[..., Figure], *shown: Any, **how: Any) -> list[Path]:
    """Draws a figure in the formats of the context.

    Args:
      draw: a function of `plots`; gets `shown`, the path as `path`, and `how`.
    """
    files = [context.out / f"{name}.{kind}" for kind in context.formats]
    figure = draw(*shown, path=files[0], **how)
    for file in files[1:]:
        plots.write_figure(figure, file)
    return files
