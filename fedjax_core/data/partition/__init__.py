"""Divides a data set over clients by pure functions of labels and a data seed.

A scheme takes `labels` [n] (or domains, or ids), the number of clients N and a seed, and returns
one sorted int32 array of example indices per client. A scheme whose protocol also fixes the
clients' test sets returns a pair `(train, test)` of such lists. Generators are made from `(seed,
scheme)`, so the data seed alone fixes a partition, whatever the training seed, the backend or the
number of devices. What cannot be met ends, after a bounded number of tries, with a ValueError that
holds the numbers.

A further scheme is a function, and an entry of `SCHEMES`. A scheme from outside is the same
function in a module or file of its own, which a config names by its place,
`package.module:name(option=...)` or `path/to/file.py:name(option=...)`, or an entry point of the
group `fedjax_core.partitions`. It takes those of these arguments that it names, and options of its
own, whose annotations say which values they may have:
  labels, test_labels            [n], [n_test] int32 class indices
  domains, test_domains          the same of domains; one without a default needs data that have it
  ids, test_ids                  the same of natural clients
  clients, seed                  N, by default `DEFAULT_CLIENTS`, and the data seed;
                                 `apportion.make_generator(seed, name)` makes a generator of it
It returns N index lists into the training examples, or a pair of such lists, the second into the
test examples. Whatever it returns is checked, and sorted.
"""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_core import registry
from fedjax_core.data.partition.label_skew import dirichlet, extended_dirichlet, grouped_dirichlet, pathological, shards
from fedjax_core.data.partition.natural_clients import by_domain, natural
from fedjax_core.data.partition.per_client_label_skew import dirichlet_clients, overlapping_dirichlet, pathological_clients
from fedjax_core.data.partition.quantity import iid, long_tail, quantity_skew
from fedjax_core.data.partition.sampling import Index, check_index

Lists = Sequence[np.ndarray]
log = logging.getLogger("fedjax_core")
__all__ = ["COUNTS_ITSELF", "DEFAULT_CLIENTS", "GIVEN", "SCHEMES", "WITHOUT_CLASSES", "Index", "long_tail", "make"]

SCHEMES: dict[str, Callable[..., Lists | tuple[Lists, Lists | None]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "extended_dirichlet": extended_dirichlet,
    "grouped_dirichlet": grouped_dirichlet,
    "quantity_skew": quantity_skew,
    "dirichlet_clients": dirichlet_clients,
    "pathological_clients": pathological_clients,
    "overlapping_dirichlet": overlapping_dirichlet,
    "pathological": pathological,
    "shards": shards,
    "by_domain": by_domain,
    "natural": natural,
}
DEFAULT_CLIENTS = 20  # where nobody says how many
COUNTS_ITSELF = ("natural",)  # without a number of clients these have all that there are
WITHOUT_CLASSES = ("iid", "quantity_skew", "by_domain", "natural")  # read of labels how many there are, if anything
COLUMNS = ("labels", "test_labels", "domains", "test_domains", "ids", "test_ids")
_DESCRIBE = {
    "labels": "the class of each example",
    "domains": "the domain of each example (domains=COLUMN of a table, train_domains and test_domains of a .npz)",
    "ids": "the client of each example (clients=COLUMN of a table, train_clients and test_clients of a .npz)",
}
_DESCRIBE |= {f"test_{column}": text for column, text in _DESCRIBE.items()}
GIVEN = (*COLUMNS, "clients", "seed")  # arguments of a scheme that are no options of its own


def make(
    name: str, columns: Mapping[str, np.ndarray | None], clients: int | None, seed: int, **options: Any
) -> tuple[Lists, Lists | None]:
    """Runs the scheme called `name`.

    Args:
      name: one of `SCHEMES`, or one from outside.
      columns: `labels`, `test_labels`, `domains`, `test_domains`, `ids`, `test_ids`; None or absent
        where the data have no such column.
      clients: N; None: all natural clients, with other schemes `DEFAULT_CLIENTS`.
      seed: data seed.
      **options: the scheme's own keyword arguments.

    Returns:
      Training index arrays, and the test index arrays of a scheme that defines them, otherwise
      None.

    Raises:
      ValueError: an unknown name, or a scheme that needs a column that the data lack.
      TypeError: an option that the scheme does not have, or one that is missing; or a scheme from
        outside that returns something else than index lists.
    """
    return divide(registry.resolve_spec("partition", name, SCHEMES, given=GIVEN, options=options), columns, clients, seed)


def resolve_num_clients(spec: str, clients: int | None) -> int | None:
    """Returns N as a scheme gets it: None stays for one that counts clients itself.

    >>> resolve_num_clients("iid", None), resolve_num_clients("iid", 5), resolve_num_clients("natural", None)
    (20, 5, None)
    """
    return DEFAULT_CLIENTS if clients is None and registry.parse_spec(spec)[0] not in COUNTS_ITSELF else clients


def divide(
    scheme: registry.ResolvedSpec, columns: Mapping[str, np.ndarray | None], clients: int | None, seed: int
) -> tuple[Lists, Lists | None]:
    """Runs a scheme, as `make` does by name."""
    clients = resolve_num_clients(scheme.name, clients)
    takes = inspect.signature(scheme.function).parameters
    given = {"clients": clients, "seed": seed, **{key: _read_only(x) for key, x in columns.items() if x is not None}}
    for column in COLUMNS:
        if column in takes and takes[column].default is inspect.Parameter.empty and column not in given:
            raise ValueError(f"partition {scheme.name!r} needs {_DESCRIBE[column]}, and the data have none.")
    result = scheme(**given)
    if scheme.origin != registry.BUILT_IN:
        assert clients is not None
        return _check_result(scheme.name, result, clients, {key: len(given.get(key, ())) for key in ("labels", "test_labels")})
    return result if isinstance(result, tuple) else (result, None)


def _read_only(values: np.ndarray) -> np.ndarray:
    """Returns a view that a scheme cannot write to: these are the data's own labels."""
    view = np.asarray(values).view()
    view.flags.writeable = False
    return view


def _check_result(name: str, result: Any, clients: int, rows: Mapping[str, int]) -> tuple[Index, Index | None]:
    """Validates the index lists that a scheme from outside returned."""
    halves = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    for half in halves if halves[1] is not None else halves[:1]:
        if not isinstance(half, Sequence) or len(half) != clients:
            result_type = f"{len(half)} lists" if isinstance(half, Sequence) else type(half).__name__
            wants = f"must be a list of {clients} index lists, or two of them."
            wants += " A tuple is (lists of training, lists of test examples)." if halves is result else ""
            raise TypeError(f"partition {name!r} returned {result_type}: {wants}")

    def check_half(half: Sequence[Any], what: str, limit: int) -> Index:
        return [check_index(f"{what} examples of client {i}", part, limit) for i, part in enumerate(half)]

    try:
        train = check_half(halves[0], "training", rows["labels"])
        test = None if halves[1] is None else check_half(halves[1], "test", rows["test_labels"])
    except ValueError as error:
        raise ValueError(f"partition {name!r}: {error}") from error
    _warn_of_use(name, train, rows["labels"])
    return train, test


def _warn_of_use(name: str, train: Index, examples: int) -> None:
    """Warns of training examples that no client has, and of a client that has one several times."""
    if missing := examples - len(np.unique(np.concatenate(train))):
        log.warning("partition %r: %d of %d training examples have no client", name, missing, examples)
    for client, rows in enumerate(train):
        if len(again := rows[1:][rows[1:] == rows[:-1]]):
            what = "partition %r: client %d has training example %d %d times, which counts as often"
            log.warning(what, name, client, again[0], np.sum(rows == again[0]))
            return
