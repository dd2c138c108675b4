"""How often the loops of a compiled round run, where the program does not hold the number: once for each minibatch of a client."""

import re
from typing import NamedTuple

import numpy as np

_NAME = re.compile(r"batches_of_(\d+)\)*(?:/while)?$")  # what `learning/rows.py` calls its loops


class Clients(NamedTuple):
    """Clients' rows, by which loops over minibatches are counted.

    Attributes:
      size: [N] training rows of each.
    """

    size: np.ndarray

    def trips(self, name: str) -> float | None:
        """How often a loop of this name runs, on average over the clients; None for a name that says nothing of rows.

        >>> Clients(np.array([10, 30])).trips("jit(many)/while/body/batches_of_20/while")
        1.5
        """
        found = _NAME.search(name)
        return None if found is None else float(np.mean(-(-self.size // int(found[1]))))
