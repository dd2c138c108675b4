"""A config's simulation without its data and weights: sets of the same size in their place, to count, to trace and to compile.

Published sets have a known size (`data/sources/dataset_sizes.py`), others are given one. Labels come in turn, so that partitions
by class give each client about as many rows as they would of the real, nearly balanced set.
"""

from typing import Any, NamedTuple

import numpy as np

from fedjax_core.algorithm import TARGETS, Examples
from fedjax_core.data import federated_data
from fedjax_core.data.partition import DEFAULT_CLIENTS
from fedjax_core.data.sources import dataset_sizes
from fedjax_core.data.subsample import adapted
from fedjax_core.experiment import build_task
from fedjax_core.experiment.lookup import Network
from fedjax_core.experiment.resolve_config import Asked
from fedjax_core.language import instruction_task as language
from fedjax_core.language import mock_instructions as texts
from fedjax_core.registry import Found, choose

WANTED = "--rows, --test_rows, --shape and --classes (and --users, the natural clients; --targets; --dtype)"
READ = "the files are not read"


class Counts(NamedTuple):
    """What is given of a data set in place of what is known of it; None: nothing.

    Attributes:
      rows, test_rows: of the training set and of the test set.
      shape: of a row.
      classes: K.
      users: natural clients.
      targets: one of `algorithm.TARGETS`.
      dtype: of a row.
      answer: tokens of the longest answer, where a language model writes.
    """

    rows: int | None = None
    test_rows: int | None = None
    shape: tuple[int, ...] | None = None
    classes: int | None = None
    users: int | None = None
    targets: str | None = None
    dtype: str | None = None
    answer: int | None = None


def kind(asked: Asked, counts: Counts = Counts()) -> build_task.Kind:  # noqa: B008
    """The way from a config's source to its task that reads no file; for `build_simulator.build`."""
    if asked.data.source.function is language.Source:
        made: list[language.Prepared] = []

        def whole(asked: Asked) -> federated_data.FederatedData:
            given = {"rows": counts.rows, "test_rows": counts.test_rows, "answer": counts.answer}
            sizes = texts.Sizes(**{name: value for name, value in given.items() if value is not None})
            clients = asked.data.clients or DEFAULT_CLIENTS
            made[:] = [texts.prepared(asked.data.source(), clients, asked.networks[0].found(), sizes)]
            return made[0].data

        def answered(asked: Asked, one: Network, data: Any, everybodys: Any, shapes_only: bool):
            del one, data, everybodys, shapes_only
            return language.task(made[0], asked.adapter, shapes_only=True)

        return build_task.Kind(whole, answered, lambda asked, data: ())
    return build_task.Kind(lambda asked: _divided(asked, counts), build_task.ROWS.task, _public)


def _divided(asked: Asked, counts: Counts) -> federated_data.FederatedData:
    data = asked.data
    if _made(data.source) and not any(value is not None for value in counts):
        return build_task.ROWS.federated(asked)
    of = dataset_sizes.smaller(_size(data.source, counts), data.size, data.examples)
    domains = (data.clients or DEFAULT_CLIENTS) if data.partition.name == "by_domain" else 1
    return federated_data.federate(
        dataset_sizes.stand_in(of, data.source.name, domains), data.partition, data.clients, data.seed, **data.tests
    )


def _made(source: Found) -> bool:
    """Whether a source needs no file, nor does the one that it is made of."""
    name, inner = source.name, source.options.get("of")
    if isinstance(inner, str):
        return inner.partition("(")[0] in dataset_sizes.MADE
    return name in dataset_sizes.MADE and "path" not in source.options


def _size(source: Found, counts: Counts) -> dataset_sizes.Size:
    """Of a source's data set, as known and as given.

    Raises:
      ValueError: it is neither.
    """
    if counts.targets is not None:
        choose("--targets", counts.targets, TARGETS)
    given = {name: value for name, value in counts._asdict().items() if value is not None and name != "answer"}
    of = dataset_sizes.size(source.name, source.options)
    if of is not None:
        return of._replace(**given)
    if missing := [name for name in ("rows", "shape", "classes") if name not in given]:
        what = f"data.source={source.spec!r}: {READ}, and how large the set is is not known"
        raise ValueError(f"{what}; give {WANTED}; --{missing[0]} is missing")
    given.setdefault("test_rows", max(1, given["rows"] // 5))
    return dataset_sizes.Size(**given)


def _public(asked: Asked, data: federated_data.FederatedData) -> Examples | tuple[()]:
    if asked.public is None:
        return ()
    source, number = asked.public
    if _made(source):
        return build_task.ROWS.public(asked, data)
    like = data.train
    of = dataset_sizes.smaller(_size(source, Counts()), None, number)
    examples = dataset_sizes.stand_in(of, source.name).train
    if examples.x.dtype != like.x.dtype or len(of.shape) != like.x.ndim - 1:
        return adapted(examples, like)
    return Examples(np.broadcast_to(np.zeros((), like.x.dtype), (of.rows, *like.x.shape[1:])), examples.y)
