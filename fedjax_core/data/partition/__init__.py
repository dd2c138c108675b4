"""How a data set is divided over clients: pure functions of labels and a data seed.

Every scheme takes `labels` [rows] (or domains, or ids), the number of clients N and a seed, and returns one sorted int32
array of row numbers per client. A scheme whose protocol also fixes the clients' test sets takes the test labels and returns a
pair `(train, test)` of such lists. Draws come from `numpy.random.Generator`s made from `(seed, scheme)`, so the data seed alone
fixes a partition, whatever the training seed, the backend or the number of devices.

Labels are only ever read in place: rows move between clients together with their labels. A request that cannot be met ends,
after a bounded number of tries, with a ValueError that holds the numbers.

A further scheme is a function, and a line in `SCHEMES`. It takes those of these arguments that it names, and options of its own:
  labels, test_labels            [rows], [test rows] int32 class indices
  domains, test_domains          the same of domains; a scheme that names one without a default needs data that have it
  ids, test_ids                  the same of natural clients
  clients, seed                  N and the data seed
"""

import inspect
from collections.abc import Callable, Mapping

import numpy as np

from fedjax_core import by_name
from fedjax_core.data.partition.origin import by_domain, natural
from fedjax_core.data.partition.own import dirichlet_clients, overlapping_dirichlet, pathological_clients
from fedjax_core.data.partition.quantity import iid, quantity_skew
from fedjax_core.data.partition.rows import Index
from fedjax_core.data.partition.skew import dirichlet, pathological, shards
from fedjax_core.data.partition.tail import long_tail

__all__ = ["GIVEN", "SCHEMES", "Index", "long_tail", "make"]

SCHEMES: dict[str, Callable[..., Index | tuple[Index, Index | None]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "quantity_skew": quantity_skew,
    "dirichlet_clients": dirichlet_clients,
    "pathological_clients": pathological_clients,
    "overlapping_dirichlet": overlapping_dirichlet,
    "pathological": pathological,
    "shards": shards,
    "by_domain": by_domain,
    "natural": natural,
}
COLUMNS = ("labels", "test_labels", "domains", "test_domains", "ids", "test_ids")
GIVEN = (*COLUMNS, "clients", "seed")  # arguments of a scheme that are no options of its own


def make(name: str, columns: Mapping[str, np.ndarray | None], clients: int, seed: int, **options) -> tuple[Index, Index | None]:
    """Runs the scheme called `name`.

    Args:
      name: one of `SCHEMES`.
      columns: what is known about the rows: `labels`, `test_labels`, `domains`, `test_domains`, `ids`, `test_ids`; None or
        absent where the data have no such column.
      clients: N.
      seed: data seed.
      **options: the scheme's own keyword arguments.

    Returns:
      Training index arrays, and the test index arrays of a scheme that defines them, otherwise None.

    Raises:
      ValueError: an unknown name, or a scheme that needs a column that the data lack.
      TypeError: an option that the scheme does not have, or one that is missing.
    """
    scheme = SCHEMES[by_name.choose("partition", name, SCHEMES)]
    takes = inspect.signature(scheme).parameters
    given = {"clients": clients, "seed": seed, **{key: values for key, values in columns.items() if values is not None}}
    for column in COLUMNS:
        if column in takes and takes[column].default is inspect.Parameter.empty and column not in given:
            raise ValueError(f"partition {name!r} needs {column}, and this data set has none.")
    by_name.check(f"partition {name!r}", scheme, GIVEN, options)
    result = scheme(**{key: given[key] for key in takes if key in given}, **options)
    return result if isinstance(result, tuple) else (result, None)
