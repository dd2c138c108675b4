"""Analyses of finished runs that end in figures: of their directories alone, or of their trained models."""

from pathlib import Path

import jax
import numpy as np

from fedjax_core.commands.analyses.asked import Asked, Loaded, named, of_features
from fedjax_core.reporting import analysis, plots, report
from fedjax_core.storage.export import trained_network
from fedjax_core.storage.workdir import METRICS, RUN, read_json, read_jsonl

EMBEDDED, ATTENDED = 50, 20  # examples of a client in the plane, and in the map of its attention
KNOWLEDGE_ROWS = 1000  # test examples in the plane beside class knowledge
SCOPES = {"own": "own test accuracy", "all": "accuracy on all test data"}


def curves(asked: Asked, loaded: Loaded) -> list[Path]:
    """A score over the rounds, all runs together."""
    del loaded
    scores = asked.scores
    if not scores:
        shared = [{name for record in read_jsonl(run / METRICS) for name in record} for run in asked.runs]
        scores = [name for name in report.HEADLINE if all(name in names for names in shared)][:1]
    if not scores:
        raise ValueError("the runs have no score in common that says it all; choose with --score=NAME, or NAME,NAME for either")
    plots.curves(asked.runs, scores, asked.out / "curves.png")
    return [asked.out / "curves.png"]


def partition(asked: Asked, loaded: Loaded) -> list[Path]:
    """Who has how much of what, as circles and as shades."""
    del loaded
    files = []
    for run, name in named(asked):
        found = read_json(run / RUN)["partition"]
        for kind, draw in (("bubbles", plots.partition_bubbles), ("heatmap", plots.heatmap)):
            files.append(asked.out / f"{name}partition_{kind}.png")
            draw(found["label_table"], files[-1], found["class_names"])
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
        files.append(asked.out / f"{name}tsne{of_features(asked)}.png")
        centres = np.arange(len(places)) >= len(points.classes)
        plots.embedding(places, shown.classes, shown.clients, files[-1], simulation.data.class_names, centres)
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
            files.append(asked.out / f"{name}{what}.png")
            plots.attention(weights, files[-1], [simulation.data.class_names[k] for k in classes])
    return files


def knowledge(asked: Asked, loaded: Loaded) -> list[Path]:
    """Logits of test examples in the plane, class knowledge as large dots: a client's after its training, and the server's."""
    files = []
    for run, name in named(asked):
        simulation, state = loaded(run)
        client = 0 if asked.clients is None else asked.clients[0]
        x, y = simulation.data.test
        rows = np.unique(np.linspace(0, len(y) - 1, min(len(y), KNOWLEDGE_ROWS)).round().astype(int))
        view = simulation.view(state, client, trained=True)
        model = analysis.model_of(simulation, state, asked.model)
        sights = {"local": (view, *analysis.class_knowledge(simulation, view, model))}
        known = getattr(state.server, "known", None)
        if hasattr(state.server, "knowledge") and known is not None and np.any(known) and "global" in view.holds:
            classes = np.flatnonzero(known)
            sights["global"] = (simulation.view(state, client), np.asarray(state.server.knowledge)[classes], classes)
        for what, (seen, marks, classes) in sights.items():
            made = analysis.outputs(seen, model, x[rows], simulation.evaluation.batch)
            points = made["logits"] if made["logits"].shape[1] == marks.shape[1] else made["features"]
            places = analysis.tsne(np.concatenate([points, marks]), asked.seed)
            files.append(asked.out / f"{name}knowledge_{what}.png")
            plots.landmarks(places[: len(rows)], y[rows], places[len(rows) :], classes, files[-1], simulation.data.class_names)
    return files


def clients(asked: Asked, loaded: Loaded) -> list[Path]:
    """Accuracy of every client, all runs together (--scope)."""
    series = {}
    for run, label in zip(asked.runs, plots.labels_of(asked.runs), strict=True):
        found = analysis.client_accuracies(*analysis.class_accuracies(*loaded(run), asked.model, asked.scope))
        series[label] = {str(i): a for i, a in enumerate(found.tolist())}
    plots.dots(series, asked.out / "clients.png", "client", SCOPES[asked.scope])
    return [asked.out / "clients.png"]


def classes(asked: Asked, loaded: Loaded) -> list[Path]:
    """Accuracy by class over all clients, all runs together; and by client and class, run by run (--scope)."""
    series, files = {}, [asked.out / "classes.png"]
    for (run, name), label in zip(named(asked), plots.labels_of(asked.runs), strict=True):
        simulation, state = loaded(run)
        names = simulation.data.class_names
        correct, total = analysis.class_accuracies(simulation, state, asked.model, asked.scope)
        each = np.where(total > 0, correct / np.maximum(total, 1), np.nan)
        of_class = np.where(total.sum(0) > 0, correct.sum(0) / np.maximum(total.sum(0), 1), np.nan)
        series[label] = dict(zip(names, of_class.tolist(), strict=True))
        files.append(asked.out / f"{name}classes_by_client.png")
        plots.heatmap(each, files[-1], names, of=SCOPES[asked.scope], percent=True)
    plots.dots(series, files[0], "class", "test accuracy")
    return files


def landscape(asked: Asked, loaded: Loaded) -> list[Path]:
    """The test loss in a plane through the model (of client 0, if clients have models)."""
    files = []
    for run, name in named(asked):
        client = asked.clients[0] if asked.clients else 0
        where = {"span": asked.span, "points": asked.points, "seed": asked.seed}
        found = analysis.landscape(*loaded(run), asked.model, client, **where)
        files.append(asked.out / f"{name}landscape.png")
        plots.contours(found.steps, found.loss, files[-1], found.accuracy)
    return files


def plane(asked: Asked, loaded: Loaded) -> list[Path]:
    """The test loss around the first run's global model, and where the models of all runs stand: clients', else the global one."""
    nets, of = [], []
    for run, label in zip(asked.runs, plots.labels_of(asked.runs), strict=True):
        simulation, state = loaded(run)
        model = analysis.model_of(simulation, state, asked.model)
        x = jax.tree.map(lambda a: np.asarray(a[:8]), simulation.data.test.x)
        for client in range(simulation.population) if asked.clients is None else asked.clients:
            nets.append(trained_network(simulation.view(state, client), model, x))
            of.append(label)
            if model == "global":
                break
    found, where = analysis.surroundings(*loaded(asked.runs[0]), nets, span=asked.span, points=asked.points)
    marks = {label: where.places[[other == label for other in of]] for label in dict.fromkeys(of)}
    plots.contours(found.steps, found.loss, asked.out / "plane.png", found.accuracy, marks, where.share.tolist())
    return [asked.out / "plane.png"]
