"""Analyses finished runs: figures, each with its numbers beside it as CSV, and tables.

  fedjax-core analyse runs/fedavg runs/scaffold --what=curves --out=analysis --labels=FedAvg,SCAFFOLD --format=png,pdf
  fedjax-core analyse runs/fedavg --what=partition,clients,classes,communication,probe,match,tsne,landscape
  fedjax-core analyse runs/fedavg runs/scaffold --what=curves --axis=seconds --out=analysis
  fedjax-core analyse runs/fedpft --what=attention,probe,tsne --features=extractor
  fedjax-core analyse runs/fedit runs/perada runs/fedoa --what=plane --out=analysis
  fedjax-core analyse runs/fedavg --what=drift --clients=0,3

What is read from a run is its directory alone; several runs share a figure where that says
something.
"""

import argparse
import csv
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedjax_core import experiment, option_types, registry
from fedjax_core.commands.analyses import figures, tables
from fedjax_core.commands.analyses.context import TRUST, AnalysisContext, RunLoader
from fedjax_core.commands.analyses.figures import ATTENDED, EMBEDDED, SCOPES
from fedjax_core.commands.main import run_and_exit
from fedjax_core.reporting import console
from fedjax_core.storage.workdir import CONFIG, METRICS

__all__ = ["AnalysisContext", "RunLoader", "analyse", "main"]

WHAT: dict[str, Callable[[AnalysisContext, RunLoader], list[Path]]] = {
    "curves": figures.draw_curves,
    "traffic": figures.draw_traffic,
    "epsilon": figures.draw_epsilon,
    "partition": figures.draw_partition,
    "tsne": figures.draw_tsne,
    "attention": figures.draw_attention,
    "knowledge": figures.draw_knowledge,
    "probe": tables.write_probe,
    "match": tables.write_match,
    "communication": tables.write_communication,
    "sizes": tables.write_sizes,
    "clients": figures.draw_client_accuracies,
    "classes": figures.draw_class_accuracies,
    "landscape": figures.draw_landscape,
    "plane": figures.draw_plane,
    "drift": figures.draw_drift,
    "rouge": tables.write_rouge,
}
OF_SCORES, AROUND_MODELS = ("curves", "traffic", "epsilon"), ("landscape", "plane", "drift")
OF_ACCURACY, OF_FEATURES = ("clients", "classes"), ("tsne", "probe", "match")
ONE_CLIENT = ("attention", "knowledge", "landscape")  # which show one of --clients
READ_BY = {  # the analyses that read an option
    "score": OF_SCORES,
    "axis": ("curves",),
    "labels": (*OF_SCORES, *OF_ACCURACY, "probe", "match", "communication", "sizes", "plane", "rouge"),  # of one run
    "model": (*OF_ACCURACY, *OF_FEATURES, *ONE_CLIENT, "plane", "rouge"),
    "features": OF_FEATURES,
    "clients": ("tsne", "attention", "knowledge", *AROUND_MODELS),
    "rows": ("tsne", "attention"),
    "centroids": ("tsne",),
    "scope": OF_ACCURACY,
    "span": AROUND_MODELS,
    "points": AROUND_MODELS,
    "seed": ("tsne", "knowledge", "landscape"),
    "beams": ("rouge",),
}
FORMATS = ("png", "pdf", "svg")


def analyse(what: Sequence[str], context: AnalysisContext) -> list[Path]:
    """Runs the analyses `what`, names in `WHAT`.

    Returns:
      The figures (each with a CSV of its name beside it) and tables written.
    """
    functions = [WHAT[registry.check_choice("analysis", name, WHAT)] for name in what]
    for run in context.runs:
        if not any((run / name).exists() for name in (CONFIG, METRICS)):
            raise ValueError(f"{run} holds no run: there is neither {CONFIG} nor {METRICS}")
    context.out.mkdir(parents=True, exist_ok=True)
    load = RunLoader(context.trust)
    return [file for function in functions for file in function(context, load)]


def _parser() -> console.Parser:
    parser = console.Parser("analyse", __doc__)
    listed = "\n".join(f"  {name:14} {(function.__doc__ or '').partition(chr(10))[0]}" for name, function in WHAT.items())
    parser.epilog = f"analyses:\n{listed}"
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directory of a run")
    parser.add_argument("--what", required=True, action="append", help="analyses, with commas between; may be repeated")
    parser.add_argument("--out", help="where the files go; for one run its own directory's analysis/ by default")
    parser.add_argument(
        "--score",
        default="",
        help="of curves, such as test/global/accuracy; of several the first that a run has",
    )
    parser.add_argument("--axis", default="rounds", choices=("rounds", "seconds"), help="of curves; seconds: of simulated time")
    parser.add_argument(
        "--labels",
        help="what figures and tables call the runs, with commas between, and in double quotes one that has a comma: one for each "
        "run or line",
    )
    parser.add_argument("--format", default="png", help="of figures, with commas between: png, pdf, svg")
    parser.add_argument("--model", help="which of the method's models: global, personal")
    parser.add_argument("--features", default="features", help="which of the model's outputs")
    parser.add_argument(
        "--clients",
        help=f"ids, with commas between, of {', '.join(READ_BY['clients'])}; without, all, or where one is shown the first",
    )
    parser.add_argument("--rows", type=int, help=f"examples per client, in the plane ({EMBEDDED}) and in attention ({ATTENDED})")
    parser.add_argument("--centroids", action="store_true", help="of each client's classes, in the plane of tsne")
    parser.add_argument(
        "--scope",
        default="own",
        choices=sorted(SCOPES),
        help="accuracies on each client's own test rows, or on all test data",
    )
    parser.add_argument(
        "--span",
        type=float,
        default=1.0,
        help="of the landscape, in units of the filters' norms; of plane and drift, of what they show",
    )
    parser.add_argument("--points", type=int, default=21, help="of landscape, plane and drift, along each direction")
    parser.add_argument("--seed", type=int, default=0, help="of the draws of tsne and of the landscape's directions")
    parser.add_argument("--beams", type=int, default=1, help="of rouge: with which a language model writes; 1: greedily")
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument(
        "--compilation_cache", default=experiment.COMPILATION_CACHE, help="where compiled programs are kept; '' for nowhere"
    )
    return parser


def _parse_ids(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise ValueError(f"--clients={text} must be ids of clients with commas between, such as 0,3")
    return [int(part) for part in text.split(",")]


def _parse_labels(text: str) -> list[str]:
    """Returns names separated by commas; one that contains a comma is in double quotes."""
    return next(csv.reader([text], skipinitialspace=True))


def _check_read(given: argparse.Namespace, what: Sequence[str]) -> None:
    """Raises ValueError for an option that none of the analyses reads, or several clients where one is shown."""
    parser = _parser()
    for option, analyses in READ_BY.items():
        value, is_of_each = getattr(given, option), option == "labels" and len(given.runs) > 1
        if value != parser.get_default(option) and not is_of_each and set(what).isdisjoint(analyses):
            raise ValueError(f"--{option}={value} has no effect on {','.join(what)}; it is of {', '.join(analyses)}")
    alone = next((name for name in what if name in ONE_CLIENT), None)
    if alone and given.clients and "," in given.clients:
        raise ValueError(f"--clients={given.clients}: {alone} shows one client; give its id")


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns 0, or 1 (error), 2 (wrong command line), 130 (interrupted)."""
    console.send_warnings_to_stderr()
    try:
        given = _parser().parse_args(arguments)
        what = [registry.check_choice("analysis", name, WHAT) for name in ",".join(given.what).split(",")]
        runs = [Path(run).expanduser() for run in given.runs]
        if given.out is None and len(runs) > 1:
            raise ValueError("several runs need --out=DIR, where their common files go")
        chosen = None if given.clients is None else _parse_ids(given.clients)
        _check_read(given, what)
        labels = None if given.labels is None else _parse_labels(given.labels)
        formats = [registry.check_choice("--format", kind, FORMATS) for kind in given.format.split(",")]
        for name, least in (("beams", 1), ("points", 2), ("rows", 1)):
            if (value := getattr(given, name)) is not None and value < least:
                raise ValueError(f"--{name}={value} must be at least {least}")
        option_types.check_value("--span", given.span, option_types.Positive)
        option_types.check_value("--seed", given.seed, option_types.Seed)
        context = AnalysisContext(
            runs=runs,
            out=runs[0] / "analysis" if given.out is None else Path(given.out).expanduser(),
            scores=[name for name in given.score.split(",") if name],
            model=given.model,
            features=given.features,
            clients=chosen,
            rows=given.rows,
            centroids=given.centroids,
            scope=given.scope,
            span=given.span,
            points=given.points,
            seed=given.seed,
            beams=given.beams,
            labels=labels,
            formats=formats,
            trust=given.trust,
            axis=given.axis,
        )
    except ValueError as error:
        return console.fail(error, 2)

    def write_analyses() -> None:
        experiment.cache_compiled_programs(given.compilation_cache)
        experiment.use_all_cores()
        for file in analyse(what, context):
            console.say(file.read_text(encoding="utf-8").rstrip() if file.suffix == ".md" else str(file))

    return console.run_command(write_analyses)


if __name__ == "__main__":
    run_and_exit("fedjax_core.commands.analyze", sys.argv[1:])
