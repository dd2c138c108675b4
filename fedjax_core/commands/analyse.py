"""Analyses finished runs: figures, each with its numbers beside it as CSV, and tables.

  fedjax-core analyse runs/fedavg runs/scaffold --what=curves --out=analysis
  fedjax-core analyse runs/fedavg --what=partition,clients,classes,communication,probe,match,tsne,landscape
  fedjax-core analyse runs/fedpft --what=attention,probe,tsne --features=extractor
  fedjax-core analyse runs/fedit runs/perada runs/fedoa --what=plane --out=analysis

What is read from a run is its directory alone; several runs share a figure where that says something.
"""

import argparse
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_core import by_name, experiment
from fedjax_core.commands import ending
from fedjax_core.data.federated import FederatedData
from fedjax_core.engine.simulation import Simulation, State
from fedjax_core.language import prepare as language
from fedjax_core.language import text
from fedjax_core.reporting import analysis, plots, report
from fedjax_core.storage.checkpoint import Checkpoints
from fedjax_core.storage.export import trained_network
from fedjax_core.storage.workdir import CHECKPOINTS, METRICS, RUN, read_json, read_jsonl, write_csv, write_json, write_text

EMBEDDED, ATTENDED = 50, 20  # examples of a client in the plane, and in the map of its attention
KNOWLEDGE_ROWS = 1000  # test examples in the plane beside class knowledge
SCOPES = {"own": "own test accuracy", "all": "accuracy on all test data"}
NUMBERS = "analysis.json"  # in a run's directory: what `number` has found
ANSWERS = "answers.json"  # and what its models have answered, in words


class Asked(NamedTuple):
    """What the command line asks for.

    Attributes:
      runs: directories of runs.
      out: where the files go.
      scores: for curves: of each run the first that it has; none: the first of `report.HEADLINE` that all have.
      model: a predictor; None: see `analysis.model_of`.
      features: which of the model's outputs.
      clients: whose features; None: all.
      rows: examples per client, in the plane and in attention; None: `EMBEDDED`, `ATTENDED`.
      centroids: whether tsne also shows the mean of each client's features of each class.
      scope: of accuracies by class and by client: "own", each client's own test rows, or "all", the whole test set.
      span, points: of the landscape and the plane.
      seed: of the embedding and of the landscape's directions.
    """

    runs: Sequence[Path]
    out: Path
    scores: Sequence[str] = ()
    model: str | None = None
    features: str = "features"
    clients: Sequence[int] | None = None
    rows: int | None = None
    centroids: bool = False
    scope: str = "own"
    span: float = 1.0
    points: int = 21
    seed: int = 0


class _Loaded:
    """Runs as simulations, each loaded once; only the last one that was asked for has its data and frozen arrays on the devices."""

    def __init__(self):
        self._runs: dict[Path, tuple[Any, Simulation, State]] = {}
        self._last: Path | None = None

    def __call__(self, run: Path) -> tuple[Simulation, State]:
        return self.whole(run)[1:]

    def whole(self, run: Path) -> tuple[Any, Simulation, State]:
        """With the config."""
        if self._last not in (None, run):
            self._runs[self._last][1].release()
        if run not in self._runs:
            self._runs[run] = experiment.load(run)
        self._last = run
        return self._runs[run]


def curves(asked: Asked, loaded: _Loaded) -> list[Path]:
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


def partition(asked: Asked, loaded: _Loaded) -> list[Path]:
    """Who has how much of what, as circles and as shades."""
    del loaded
    files = []
    for run, name in _named(asked):
        found = read_json(run / RUN)["partition"]
        for kind, draw in (("bubbles", plots.partition_bubbles), ("heatmap", plots.heatmap)):
            files.append(asked.out / f"{name}partition_{kind}.png")
            draw(found["label_table"], files[-1], found["class_names"])
    return files


def tsne(asked: Asked, loaded: _Loaded) -> list[Path]:
    """Features in the plane, by class and by client."""
    files = []
    for run, name in _named(asked):
        simulation, state = loaded(run)
        most = EMBEDDED if asked.rows is None else asked.rows
        points = analysis.features(simulation, state, asked.model, asked.features, clients=asked.clients, most=most)
        shown = analysis.with_centroids(points) if asked.centroids else points
        places = analysis.tsne(shown.features, asked.seed)
        files.append(asked.out / f"{name}tsne{_of_features(asked)}.png")
        centres = np.arange(len(places)) >= len(points.classes)
        plots.embedding(places, shown.classes, shown.clients, files[-1], simulation.data.class_names, centres)
    return files


def attention(asked: Asked, loaded: _Loaded) -> list[Path]:
    """What a client's test examples attend to: the feature and each prompt."""
    files = []
    for run, name in _named(asked):
        simulation, state = loaded(run)
        client = asked.clients[0] if asked.clients else 0
        most = ATTENDED if asked.rows is None else asked.rows
        found, classes = analysis.attention(simulation, state, asked.model, client, most)
        for what, weights in found.items():
            files.append(asked.out / f"{name}{what}.png")
            plots.attention(weights, files[-1], [simulation.data.class_names[k] for k in classes])
    return files


def knowledge(asked: Asked, loaded: _Loaded) -> list[Path]:
    """Logits of test examples in the plane, class knowledge as large dots: a client's after its training, and the server's."""
    files = []
    for run, name in _named(asked):
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


def _refits(what: str, asked: Asked, loaded: _Loaded) -> list[Path]:
    """Accuracy of every client before and after a part is trained again."""
    rows, means = [], []
    for run, label in zip(asked.runs, plots.labels_of(asked.runs), strict=True):
        simulation, state = loaded(run)
        after = {"probe": analysis.probe, "match": analysis.match}[what](simulation, state, asked.model, asked.features)
        before = analysis.client_accuracies(*analysis.class_accuracies(simulation, state, asked.model))
        rows += [{"run": label, "client": i, "origin": b, what: a} for i, (b, a) in enumerate(zip(before, after, strict=True))]
        there = np.isfinite(after) & np.isfinite(before)
        means.append({"run": label, "clients": int(there.sum()), "origin": before[there].mean(), what: after[there].mean()})
    name = f"{what}{_of_features(asked)}"
    write_csv(asked.out / f"{name}.csv", rows)
    shown = [{key: f"{100 * v:.2f} %" if isinstance(v, float) else str(v) for key, v in row.items()} for row in means]
    return [asked.out / f"{name}.csv", _table(asked.out / f"{name}.md", shown)]


def probe(asked: Asked, loaded: _Loaded) -> list[Path]:
    """Accuracy with a new linear head per client, beside the model's own."""
    return _refits("probe", asked, loaded)


def match(asked: Asked, loaded: _Loaded) -> list[Path]:
    """Accuracy with a linear layer trained between features and head, beside the model's own."""
    return _refits("match", asked, loaded)


def communication(asked: Asked, loaded: _Loaded) -> list[Path]:
    """What a client receives and sends in a round, by part."""
    rows = []
    for run, label in zip(asked.runs, plots.labels_of(asked.runs), strict=True):
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
        dict(zip(("run", "group", "way", "part"), key, strict=True)) | {"numbers": f"{n:,}", "size": report.readable_size(b)}
        for key, (n, b) in sums.items()
    ]
    return [asked.out / "communication.csv", _table(asked.out / "communication.md", shown)]


def sizes(asked: Asked, loaded: _Loaded) -> list[Path]:
    """What a client's network has and trains, and its messages hold, in numbers."""
    rows = []
    for run, label in zip(asked.runs, plots.labels_of(asked.runs), strict=True):
        rows += [{"run": label} | row for row in analysis.sizes(loaded(run)[0])]
    write_csv(asked.out / "sizes.csv", rows)
    shown = [{key: f"{value:,}" if isinstance(value, int) else value for key, value in row.items()} for row in rows]
    return [asked.out / "sizes.csv", _table(asked.out / "sizes.md", shown)]


def clients(asked: Asked, loaded: _Loaded) -> list[Path]:
    """Accuracy of every client, all runs together (--scope)."""
    series = {}
    for run, label in zip(asked.runs, plots.labels_of(asked.runs), strict=True):
        found = analysis.client_accuracies(*analysis.class_accuracies(*loaded(run), asked.model, asked.scope))
        series[label] = {str(i): a for i, a in enumerate(found.tolist())}
    plots.dots(series, asked.out / "clients.png", "client", SCOPES[asked.scope])
    return [asked.out / "clients.png"]


def classes(asked: Asked, loaded: _Loaded) -> list[Path]:
    """Accuracy by class over all clients, all runs together; and by client and class, run by run (--scope)."""
    series, files = {}, [asked.out / "classes.png"]
    for (run, name), label in zip(_named(asked), plots.labels_of(asked.runs), strict=True):
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


def landscape(asked: Asked, loaded: _Loaded) -> list[Path]:
    """The test loss in a plane through the model (of client 0, if clients have models)."""
    files = []
    for run, name in _named(asked):
        client = asked.clients[0] if asked.clients else 0
        where = {"span": asked.span, "points": asked.points, "seed": asked.seed}
        found = analysis.landscape(*loaded(run), asked.model, client, **where)
        files.append(asked.out / f"{name}landscape.png")
        plots.contours(found.steps, found.loss, files[-1], found.accuracy)
    return files


def plane(asked: Asked, loaded: _Loaded) -> list[Path]:
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


def rouge(asked: Asked, loaded: _Loaded) -> list[Path]:
    """What models of instructions answer, in words, with its ROUGE-1: a language model writes, an encoder chooses."""
    rows, means = [], []
    for run, label in zip(asked.runs, plots.labels_of(asked.runs), strict=True):
        mine = _answered(run, *loaded.whole(run), asked.model)
        rows += [{"run": label} | row for row in mine]
        for name in dict.fromkeys(row["dataset"] for row in mine):
            of_set = [row for row in mine if row["dataset"] == name]
            mean = lambda what, of_set=of_set: f"{100 * _mean_over_clients(of_set, what):.2f} %"
            means.append({"run": label, "data set": name, "rouge1": mean("rouge1"), "exact": mean("exact")})
    write_csv(asked.out / "rouge.csv", rows)
    return [asked.out / "rouge.csv", _table(asked.out / "rouge.md", means)]


def _answered(run: Path, config: Any, simulation: Simulation, state: State, model: str | None = None) -> list[dict[str, Any]]:
    """A row per client (of the global model on common tests: one) and test row; kept in the run's directory."""
    made = experiment.prepared(config)
    model, done = analysis.model_of(simulation, state, model), int(state.round)
    known = read_json(run / ANSWERS) if (run / ANSWERS).exists() else {}
    if model in known and known[model]["round"] == done:
        return known[model]["rows"]
    common = len({index.tobytes() for index in simulation.data.test_index}) == 1
    found = []
    for client in [0] if model == "global" and common else simulation.scored_clients().tolist():
        view, rows = simulation.view(state, client), simulation.data.test_index[client].tolist()
        x = jax.tree.map(lambda a: np.asarray(a[:8]), simulation.data.test.x)
        params = language.parameters(made, config.adapter, view.task.frozen, trained_network(view, model, x))
        texts = language.answers(made, params, rows, simulation.evaluation.batch)
        asked = [made.divided.test[row] for row in rows]
        right = [row.answer for row in asked]
        for row, said, score, same in zip(asked, texts, text.rouge1(texts, right), text.exact(texts, right), strict=True):
            found.append({"client": client, "task": row.task, "dataset": row.dataset, "answer": row.answer, "said": said})
            found[-1] |= {"rouge1": score, "exact": same}
    write_json(run / ANSWERS, known | {model: {"round": done, "rows": found}})
    return found


def _mean_over_clients(rows: Sequence[Mapping[str, Any]], what: str) -> float:
    """Of each client's mean."""
    of = {client: [row[what] for row in rows if row["client"] == client] for client in {row["client"] for row in rows}}
    return float(np.mean([np.mean(values) for values in of.values()]))


WHAT: dict[str, Callable[[Asked, _Loaded], list[Path]]] = {
    function.__name__: function
    for function in (
        *(curves, partition, tsne, attention, knowledge, probe, match),
        *(communication, sizes, clients, classes, landscape, plane, rouge),
    )
}


def analyse(what: Sequence[str], asked: Asked) -> list[Path]:
    """Does the analyses `what`, names in `WHAT`.

    Returns:
      The figures (each with a CSV of its name beside it) and tables written.

    Raises:
      ValueError: an unknown name, or a run that cannot give what is asked.
      OSError: a run cannot be read, or the files cannot be written.
    """
    functions = [WHAT[by_name.choose("analysis", name, WHAT)] for name in what]
    asked.out.mkdir(parents=True, exist_ok=True)
    loaded = _Loaded()
    return [file for function in functions for file in function(asked, loaded)]


def _named(asked: Asked) -> list[tuple[Path, str]]:
    """Runs, each with the beginning of its files' names: nothing if there is one."""
    labels = plots.labels_of(asked.runs) if len(asked.runs) > 1 else [""]
    return [(run, f"{label.replace('/', '-')}-" if label else "") for run, label in zip(asked.runs, labels, strict=True)]


def _of_features(asked: Asked) -> str:
    """The end of a file's name, where other features than the head's are looked at."""
    return "" if asked.features == "features" else f"_{asked.features}"


def _table(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    """Writes rows as a Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in ([list(rows[0]), ["---"] * len(rows[0])] if rows else [])]
    write_text(path, "\n".join([*lines, *(f"| {' | '.join(row.values())} |" for row in rows)]) + "\n")
    return path


# ---------------------------------------------------------------------------------------------------- numbers for tables


def _mean_origin(simulation: Simulation, state: State, model: str | None = None) -> float:
    return float(np.nanmean(analysis.client_accuracies(*analysis.class_accuracies(simulation, state, model))))


def _mean_probe(simulation: Simulation, state: State, model: str | None = None, key: str = "features") -> float:
    return float(np.nanmean(analysis.probe(simulation, state, model, key)))


def _mean_match(simulation: Simulation, state: State, model: str | None = None, key: str = "features") -> float:
    return float(np.nanmean(analysis.match(simulation, state, model, key)))


def _mean_rouge(
    run: Path, config: Any, simulation: Simulation, state: State, model: str | None = None, of: str | None = None
) -> float:
    rows = _answered(run, config, simulation, state, model)
    if of is not None:
        by_name.choose("task or data set of rouge", of, dict.fromkeys([row[what] for what in ("task", "dataset") for row in rows]))
        rows = [row for row in rows if of in (row["task"], row["dataset"])]
    return _mean_over_clients(rows, "rouge1")


def _size(what: str) -> Callable[..., float]:
    def size(simulation: Simulation, state: State | None = None, total: bool = False, group: int | None = None) -> float:
        del state
        rows = analysis.sizes(simulation)
        if group is not None:
            if not 0 <= group < len(rows):
                raise ValueError(f"{what}: group={group} must lie in [0, {len(rows)}), the number of architectures")
            rows = rows[group : group + 1]
        over = sum(row["clients"] * row[what] for row in rows)
        return over if total else over / sum(row["clients"] for row in rows)

    return size


SIZES = {what: _size(what) for what in ("whole", "body", "trained", "down", "up")}  # need no trained state
MEANS = {"origin": _mean_origin, "probe": _mean_probe, "match": _mean_match, "rouge": _mean_rouge} | SIZES
GIVEN = ("run", "config", "simulation", "state")  # what these take of a run


def is_size(text: str) -> bool:
    """Whether an analysis of `number` is of shapes alone."""
    return by_name.parse(text)[0] in SIZES


def size(text: str, simulation: Simulation) -> float:
    """An analysis of shapes alone, of a simulation that has not run; see `number`."""
    name, options = by_name.parse(text)
    return SIZES[name](simulation, **options)


def number(text: str) -> Callable[[Path, FederatedData | None], float]:
    """One analysis as a number: the mean over clients after the last round.

    Args:
      text: "origin", "probe" or "match", with options as in "probe(model='global', key='features')"; "rouge" of answers in words,
        with of="sst2" on one test set, or one task; or a count, "whole", "body", "trained", "down", "up" (`analysis.sizes`), with
        total=True the sum over clients, with group=0 of one architecture.

    Returns:
      (run's directory, its data or None to load them) -> the number, which is kept in the run's directory.

    Raises:
      ValueError, TypeError: an unknown name or option.
    """
    name, options = by_name.parse(text)
    function = MEANS[by_name.choose("analysis", name, MEANS)]
    by_name.check(f"analysis {name!r}", function, GIVEN, options)

    def of(run: Path, data: FederatedData | None = None) -> float:
        file = run / NUMBERS
        known = read_json(file) if file.exists() else {}
        done = Checkpoints(run / CHECKPOINTS).latest()
        if text not in known or known[text]["round"] != done:
            found: dict[str, Any] = dict(zip(GIVEN, (run, *experiment.load(run, data=data)), strict=True))
            known[text] = {"round": done, "value": by_name.call(f"analysis {name!r}", function, found, options)}
            found["simulation"].release()
            write_json(file, known)
        return known[text]["value"]

    return of


# ---------------------------------------------------------------------------------------------------- command line


def _parser() -> argparse.ArgumentParser:
    parser = report.Parser("fedjax-core analyse", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = "\n".join(f"  {name:14} {(function.__doc__ or '').partition(chr(10))[0]}" for name, function in WHAT.items())
    parser.epilog = f"analyses:\n{listed}"
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directory of a run")
    parser.add_argument("--what", required=True, help="analyses, with commas between")
    parser.add_argument("--out", help="where the files go; for one run its own directory's analysis/ by default")
    parser.add_argument(
        "--score", default="", help="for curves, such as test/global/accuracy; with commas, the first that a run has"
    )
    parser.add_argument("--model", help="which of the method's models: global, personal")
    parser.add_argument("--features", default="features", help="which of the model's outputs")
    parser.add_argument("--clients", help="ids, with commas between")
    parser.add_argument("--rows", type=int, help=f"examples per client, in the plane ({EMBEDDED}) and in attention ({ATTENDED})")
    parser.add_argument("--centroids", action="store_true", help="of each client's classes, in the plane of tsne")
    parser.add_argument(
        "--scope", default="own", choices=sorted(SCOPES), help="accuracies on each client's own test rows, or on all"
    )
    parser.add_argument(
        "--span", type=float, default=1.0, help="of the landscape, in units of the filters' norms; of the plane, of what it shows"
    )
    parser.add_argument("--points", type=int, default=21, help="of the landscape and the plane, along each direction")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compilation_cache", default=experiment.PROGRAMS, help="where compiled programs are kept; '' for nowhere")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Parses, analyses; the exit status is 0, 1 for an error told in one line, 2 for a wrong command line, 130 if interrupted."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        given = _parser().parse_args(arguments)
        what = [by_name.choose("analysis", name, WHAT) for name in given.what.split(",")]
        runs = [Path(run) for run in given.runs]
        if given.out is None and len(runs) > 1:
            raise ValueError("several runs need --out=DIR, where their common files go")
        chosen = None if given.clients is None else [int(i) for i in given.clients.split(",")]
        out = runs[0] / "analysis" if given.out is None else Path(given.out)
        scores = [name for name in given.score.split(",") if name]
        shown = (scores, given.model, given.features, chosen, given.rows, given.centroids)
        asked = Asked(runs, out, *shown, given.scope, given.span, given.points, given.seed)
    except ValueError as error:
        return report.fail(error, 2)
    try:
        experiment.keep_programs(given.compilation_cache)
        experiment.use_all_cores()
        for file in analyse(what, asked):
            report.say(file.read_text().rstrip() if file.suffix == ".md" else str(file))
    except KeyboardInterrupt:
        return report.fail("interrupted", 130)
    except (ValueError, TypeError, OSError) as error:
        return report.fail(error, 1)
    return 0


if __name__ == "__main__":
    ending.end("fedjax_core.commands.analyse", sys.argv[1:])
