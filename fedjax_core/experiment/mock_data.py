"""Mock data of the size of a config's data sets, to count, to trace and to compile without reading
a file.

Published sets have a known size (`data/sources/dataset_sizes.py`); that of others is an argument.
Labels cycle through the classes, so that partitions by class give each client about as many
examples as they would of the real, nearly balanced set.
"""

from typing import Any, NamedTuple

import numpy as np

from fedjax_core.algorithm import TARGETS, Examples
from fedjax_core.data import federated_data
from fedjax_core.data.partition import DEFAULT_CLIENTS
from fedjax_core.data.sources import dataset_sizes
from fedjax_core.data.subsample import match_image_shape
from fedjax_core.experiment import build_task
from fedjax_core.experiment.lookup import Network
from fedjax_core.experiment.resolve_config import ResolvedConfig
from fedjax_core.language import instruction_task as language
from fedjax_core.language import mock_instructions as texts
from fedjax_core.registry import ResolvedSpec, check_choice

FLAGS = "--rows, --test_rows, --shape and --classes (and --users, the natural clients; --targets; --dtype)"


class Counts(NamedTuple):
    """The size of a data set, in place of the known one; None: the known one.

    Attributes:
      users: natural clients.
      targets: one of `algorithm.TARGETS`.
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


def mock_pipeline(resolved: ResolvedConfig, counts: Counts = Counts()) -> build_task.DataPipeline:  # noqa: B008
    """Returns a data pipeline of a config that reads no file, for `build_simulator.build`."""
    if resolved.is_for_texts:
        prepared: list[language.PreparedTask] = []

        def read_texts(resolved: ResolvedConfig) -> federated_data.FederatedData:
            given = {"rows": counts.rows, "test_rows": counts.test_rows, "answer": counts.answer}
            sizes = texts.Sizes(**{name: value for name, value in given.items() if value is not None})
            clients = resolved.data.clients or DEFAULT_CLIENTS
            prepared[:] = [texts.mock_prepared(resolved.data.source(), clients, resolved.networks[0].resolved(), sizes)]
            return prepared[0].data

        def make_task(resolved: ResolvedConfig, network: Network, data: Any, public: Any, shapes_only: bool):
            del network, data, public, shapes_only
            return language.build_task(prepared[0], resolved.adapter, shapes_only=True)

        return build_task.DataPipeline(read_texts, make_task, lambda resolved, data: ())
    return build_task.DataPipeline(lambda resolved: _make_arrays(resolved, counts), build_task.ARRAYS.task, _make_public)


def _make_arrays(resolved: ResolvedConfig, counts: Counts) -> federated_data.FederatedData:
    data = resolved.data
    if _is_generated(data.source) and not any(value is not None for value in counts):
        return build_task.ARRAYS.federated(resolved)
    size = dataset_sizes.subsample_size(_size(data.source, counts), data.size, data.examples)
    domains = (data.clients or DEFAULT_CLIENTS) if data.partition.name == "by_domain" else 1
    return federated_data.federate(
        dataset_sizes.mock_dataset(size, data.source.name, domains), data.partition, data.clients, data.seed, **data.tests
    )


def _is_generated(source: ResolvedSpec) -> bool:
    """Returns whether neither a source nor the one that it is made of reads a file."""
    name, inner = source.name, source.options.get("of")
    if isinstance(inner, str):
        return inner.partition("(")[0] in dataset_sizes.WITHOUT_FILES
    return name in dataset_sizes.WITHOUT_FILES and "path" not in source.options


def _size(source: ResolvedSpec, counts: Counts) -> dataset_sizes.Size:
    """Returns the size of a source's data set: the known one, with what is given replaced."""
    if counts.targets is not None:
        check_choice("--targets", counts.targets, TARGETS)
    given = {name: value for name, value in counts._asdict().items() if value is not None and name != "answer"}
    known = dataset_sizes.published_size(source.name, source.options)
    if known is not None:
        return known._replace(**given)
    if missing := [name for name in ("rows", "shape", "classes") if name not in given]:
        what = f"data.source={source.spec!r}: the size of the set is not known, and its files are not read"
        raise ValueError(f"{what}; give {FLAGS}; --{missing[0]} is missing")
    given.setdefault("test_rows", max(1, given["rows"] // 5))
    return dataset_sizes.Size(**given)


def _make_public(resolved: ResolvedConfig, data: federated_data.FederatedData) -> Examples | tuple[()]:
    if resolved.public is None:
        return ()
    source, number = resolved.public
    if _is_generated(source):
        return build_task.ARRAYS.public(resolved, data)
    like = data.train
    size = dataset_sizes.subsample_size(_size(source, Counts()), None, number)
    examples = dataset_sizes.mock_dataset(size, source.name).train
    if examples.x.dtype != like.x.dtype or len(size.shape) != like.x.ndim - 1:
        return match_image_shape(examples, like)
    return Examples(np.broadcast_to(np.zeros((), like.x.dtype), (size.rows, *like.x.shape[1:])), examples.y)
