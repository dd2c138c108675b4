"""The pieces, the most valuable first, and their steps. Imports only what is always installed."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

LONGEST = 540  # maximum seconds of a call and of a step
BEGINS = 75  # seconds that must be left to start a run or a table
START = 15  # maximum seconds before the first step of a call
DATA = "data"  # link in the folder of results, so that runs and tables resume after a move of the folder or the data
MEASURE, RUN, TABLE = "tests.benchmarks.accelerator.steps", "fedjax_core.commands.run", "fedjax_core.commands.table"
NEEDED = {  # module: required package
    "jax": "jax",
    "flax": "flax",
    "optax": "optax",
    "orbax.checkpoint": "orbax-checkpoint",
    "ml_collections": "ml-collections",
    "chex": "chex",
    "numpy": "numpy",
    "sklearn": "scikit-learn",
    "matplotlib": "matplotlib",
    "tqdm": "tqdm",
    "tensorboardX": "tensorboardX",
    "PIL": "Pillow",
}
PREPARED = {"tensorflow_datasets": "tensorflow-datasets", "array_record": "array-record"}  # required for sets prepared by tfds
DTYPES = ("tf32", "bfloat16", "float32")


class Asked(NamedTuple):
    """The settings of a call.

    Attributes:
      out: folder of all results.
      data: (name of the source, its directory) of CIFAR-10, the latter as seen from `out`; None: no
        data.
      toy: whether all pieces run at toy size, in this process.
      cache: folder of compiled programs, "" for none; None: the default of commands.
    """

    out: Path
    data: tuple[str, str] | None = None
    toy: bool = False
    cache: str | None = None


class Step(NamedTuple):
    """The work of one process.

    Attributes:
      name: name within the piece.
      module: module with a `main` that takes arguments and returns an exit status; 130: stopped,
        and resumed by the next call.
      arguments: arguments of `main`.
      seconds: time that must be left for a measurement to start; a run or a table needs `BEGINS`.
      directory: directory of a run or a table, which resumes in it; None: a measurement, which
        prints a line of JSON.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    seconds: int = 60
    directory: Path | None = None


class Piece(NamedTuple):
    """A group of steps.

    Attributes:
      name: name of its results.
      says: its description, in a line.
      steps: its steps.
      data: whether it needs CIFAR-10.
      gate: whether its failure makes all measurements impossible; each call tries it again.
    """

    name: str
    says: str
    steps: Callable[[Asked], Iterator[Step]]
    data: bool = False
    gate: bool = False


def cifar10(folder: Path) -> tuple[str, str] | None:
    """Returns (name of the source, its directory) of CIFAR-10 in a folder; None if it is absent."""
    if (folder / "cifar-10-binary.tar.gz").is_file():
        return "cifar10", str(folder)
    return next((("tfds:cifar10", str(place)) for place in (folder, folder / "tfds") if (place / "cifar10").is_dir()), None)


def least(steps: Iterable[Step]) -> int:
    """Returns the seconds that a call needs so that each of the steps can start in one."""
    return START + max((step.seconds if step.directory is None else BEGINS for step in steps), default=0)


def link(out: Path, place: Path) -> str:
    """Links the data into the folder of results; returns the link's name.

    Raises ValueError or OSError with one line.
    """
    at = out / DATA
    if at.is_symlink():
        at.unlink()
    if at.exists() and at.resolve() != place.resolve():
        raise ValueError(f"{at} is in the way of a link to {place}; it must be moved")
    if not at.exists():
        out.mkdir(parents=True, exist_ok=True)
        at.symlink_to(place.resolve())
    return DATA


def _measure(asked: Asked, name: str, what: str, seconds: int = 100, **options: Any) -> Step:
    told = {"what": what, "toy": asked.toy, **({} if asked.cache is None else {"cache": asked.cache}), **options}
    return Step(name, MEASURE, (json.dumps(told),), seconds)


def _cache(asked: Asked) -> tuple[str, ...]:
    return () if asked.cache is None else (f"--compilation_cache={asked.cache}",)


def _run(asked: Asked, piece: str, config: str, *changes: str) -> Step:
    source, folder = asked.data or ("", "")
    place = asked.out / piece
    of = () if asked.toy else (f"--config.data.source={source}", f"--config.data.dir={folder}")
    variant = "smoke" if asked.toy else "paper"
    return Step(piece, RUN, (f"{config}:{variant}", f"--workdir={place}", *of, *changes, *_cache(asked)), directory=place)


def _table(asked: Asked, piece: str, name: str, *more: str, toy: tuple[str, ...] = (), variant: str = "paper") -> Step:
    source, folder = asked.data or ("", "")
    place = asked.out / piece
    of = toy if asked.toy else (f"--set=data.source={source}", f"--set=data.dir={folder}", *more)
    variant = "smoke" if asked.toy else variant
    return Step(piece, TABLE, (name, f"--workdir={place}", f"--variant={variant}", *of, *_cache(asked)), directory=place)


ONE = "--set=plan.devices=1"  # toys need one device
TOY = (ONE, "--seeds=0", "--set=models=('mlp(widths=(4,))',)", "--set=rounds=1")
SMALL = ('--config.models=("mlp(widths=(4,))",)', "--config.plan.devices=1", "--config.rounds=2", "--config.data.clients=4")


def _rate(asked: Asked) -> Iterator[Step]:
    for dtype in DTYPES[:1] if asked.toy else DTYPES:
        yield _measure(asked, dtype, "rate", 40, dtype=dtype)


def _published(asked: Asked) -> Iterator[Step]:
    for dtype in () if asked.toy else DTYPES:  # at toy size, `peers` measures this round
        for workload in ("p7", "p7avg", "p3", "p3avg"):
            yield _measure(asked, f"{workload}, {dtype}", "rounds", 150, workload=workload, dtype=dtype)
    for config in ("fedskc",) if asked.toy else ("fedskc", "fedavg_cifar10"):
        yield _measure(asked, f"{config}:paper", "config", 150, config=config)


def _peers(asked: Asked) -> Iterator[Step]:
    for workload in ("c",) if asked.toy else ("c", "c10", "b"):
        for dtype in DTYPES[:1] if asked.toy else DTYPES:
            yield _measure(asked, f"{workload}, {dtype}", "rounds", workload=workload, dtype=dtype)


CHUNKS = {"c10": (1, 5, 10, 25, 50), "b": (1, 2, 4, 8), "p7": (1, 10, 20, 40), "a": (1, 10, 100)}
FORMS = {
    "c10": ("native", "patches", "canonical"),
    "b": ("native", "patches", "canonical"),
    "p7": ("native", "patches", "canonical"),
}


def _compared(asked: Asked) -> Iterator[Step]:
    if asked.toy:
        yield _measure(asked, "c10, chunk 2", "rounds", workload="c10", chunk=2, conv_form="canonical")
    else:
        for workload, chunks in CHUNKS.items():
            for chunk in chunks:
                yield _measure(asked, f"{workload}, chunk {chunk}", "rounds", 150, workload=workload, chunk=chunk, dtype="tf32")
        for workload, forms in FORMS.items():
            for form in forms:
                yield _measure(asked, f"{workload}, {form}", "rounds", 150, workload=workload, conv_form=form, dtype="tf32")
    for lanes in (2,) if asked.toy else (1, 4, 8):
        yield _measure(asked, f"lanes {lanes}", "lanes", 200, lanes=lanes, folder=str(asked.out / "compared" / f"lanes{lanes}"))


def _pfl(asked: Asked) -> Iterator[Step]:
    yield _table(asked, "pfl", "pfl_research/cifar10", toy=(ONE, "--set=models=('mlp(widths=(4,))',)", "--set=rounds=1"))


def _fedskc(asked: Asked) -> Iterator[Step]:
    yield _run(asked, "fedskc", "fedskc", *(SMALL if asked.toy else ()))


def _fedavg(asked: Asked) -> Iterator[Step]:
    yield _run(asked, "fedavg", "fedavg_cifar10", *(SMALL if asked.toy else ()))


COLUMN = "CIFAR-10, alpha 0.5"
FIRST, REST = (
    ("FedPFT", "FedAvg", "FedPer", "Local"),
    (*("FedPFT+Con", "FedRoD", "pFedSD", "FedBN", "FedRep", "FedAMP", "pFedGate", "FedCAC", "pFedPT"),),
)


def _table8(asked: Asked) -> Iterator[Step]:
    for row in FIRST[:1] if asked.toy else (*FIRST, *REST):
        only = f"--only={row}/{COLUMN}"
        more = ("--seeds=0", only, "--set=checkpoint.keep=1")
        yield _table(asked, "table8", "fedpft/table8", *more, toy=(*TOY, only))._replace(name=row)


TUNED = ("FedAvg", "FedAvg (uniform)", "GDA alone", "LCL + uniform", "LCL", "LCL + GDA", "LCL + GDA + GPR")
ALTERNATION = ("FedAvg", "transformed", "prompts", "FedPFT", "FedAvg+Linear", "FedPer")


def _claim(asked: Asked, piece: str, name: str, rows: Iterable[str], column: str) -> Iterator[Step]:
    """Yields a row of a table that decides a claim at a time, as it runs on CPUs."""
    for row in rows:
        only = f"--only={row}/{column}"
        yield _table(asked, piece, name, only, toy=(*TOY, only), variant="small")._replace(name=row)


def _tuned(asked: Asked) -> Iterator[Step]:
    yield from _claim(asked, "tuned", "fedskc/tuned_cifar10", TUNED[:1] if asked.toy else TUNED, "CIFAR-10, alpha 0.05")


def _alternation(asked: Asked) -> Iterator[Step]:
    yield from _claim(asked, "alternation", "fedpft/alternation", ALTERNATION[:1] if asked.toy else ALTERNATION, COLUMN)


def _fedit(asked: Asked) -> Iterator[Step]:
    folder = str(asked.out / "fedit")
    for chunk, batch in ((1, 2),) if asked.toy else ((1, 32), (6, 32), (6, 8)):
        yield _measure(asked, f"chunk {chunk}, batch {batch}", "fedit", 200, chunk=chunk, batch=batch, folder=folder)


PIECES = (
    Piece("rate", "matrix products: float32, tf32, bfloat16", _rate, gate=True),
    Piece("published", "rounds of FedPFT and FedAvg in FedPFT's setting, both stems; of FedSKC and FedAvg in FedSKC's", _published),
    Piece("peers", "rounds of c, c10 and b, as the peers were measured", _peers),
    Piece("compared", "chunks, forms of convolution, lanes", _compared),
    Piece("alternation", "what gives FedPFT's gain: CIFAR-10 at alpha 0.5, rates chosen, two seeds", _alternation, data=True),
    Piece("tuned", "what gives FedSKC's gain: CIFAR-10 at alpha 0.05, tuned, five seeds", _tuned, data=True),
    Piece("pfl", "pfl-research's CIFAR-10 benchmark, whole", _pfl, data=True),
    Piece("fedskc", "FedSKC's published CIFAR-10 run", _fedskc, data=True),
    Piece("fedavg", "FedAvg's in that setting", _fedavg, data=True),
    Piece("table8", "FedPFT's Table 8, CIFAR-10 at alpha 0.5, seed 0", _table8, data=True),
    Piece("fedit", "tokens a second and memory of FedIT on a random LLaMA of 1.1 billion parameters", _fedit),
)
