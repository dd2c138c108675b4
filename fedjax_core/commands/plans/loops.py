"""How often the loops of a compiled round run, where the program does not hold the number: once for each minibatch of a client."""

import re
from typing import NamedTuple

import numpy as np

_NAME = re.compile(r"batches_of_(\d+)\)*(?:/while)?$")  # what `training/batching.py` calls its loops


class Clients(NamedTuple):
    """Clients' rows, by which loops over minibatches are counted.

    Attributes:
      size: [N] training rows of each.
      part: how many of the places that a program has for clients are taken, on average. A client that is absent takes no step.
    """

    size: np.ndarray
    part: float = 1.0

    def trips(self, name: str) -> float | None:
        """How often a loop of this name runs, on average over the places; None for a name that says nothing of rows.

        >>> Clients(np.array([10, 30])).trips("jit(many)/while/body/batches_of_20/while")
        1.5
        """
        found = _NAME.search(name)
        return None if found is None else self.part * float(np.mean(-(-self.size // int(found[1]))))
