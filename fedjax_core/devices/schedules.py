"""Asynchronous schedules: when the server steps, and what a stale update counts.

The server keeps a cohort of clients training. It takes an update as it arrives, steps once it has
`buffer` of them, and sends the newest model to other clients in their place (`arrivals.py`). The
staleness of an update is the number of server steps between its client's download and its arrival.

A function of staleness is a name here, or a function in a module or file. It takes options, and
returns a function of an array of staleness.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedjax_core import registry
from fedjax_core.option_types import AtLeastZero, NonNegative, Part, Positive, PositiveFraction, check_value, shorten

StalenessFn = Callable[[np.ndarray], np.ndarray]


class Schedule(NamedTuple):
    """An asynchronous schedule.

    Attributes:
      name: of the function that made it.
      buffer: updates of a server step, a number or a fraction of the clients that train at once.
      weight_fn: staleness [n], float64, -> weights [n] of updates.
      mixes_models: whether the server moves towards a client's model; else it adds the client's
        delta to its own.
      max_staleness: above which an update is dropped; None: none is.
    """

    name: str
    buffer: int | float
    weight_fn: StalenessFn
    mixes_models: bool = False
    max_staleness: int | None = None

    @property
    def has_weights(self) -> bool:
        """Whether the server weights deltas."""
        return self.mixes_models or bool(np.any(self.weight_fn(np.arange(1000.0)) != 1))


def constant() -> StalenessFn:
    """Counts all updates alike."""
    return lambda staleness: np.ones(np.shape(staleness))


def polynomial(a: NonNegative = 0.5) -> StalenessFn:
    """Weights an update of staleness u by (1 + u) ** -a."""
    return lambda staleness: (1.0 + staleness) ** -a


def hinge(a: Positive = 10.0, b: NonNegative = 6.0) -> StalenessFn:
    """Weights an update of staleness u by 1 up to b, then by 1 / (a (u - b) + 1).

    >>> hinge(a=10, b=4)(np.array([0, 4, 5])).tolist()
    [1.0, 1.0, 0.09090909090909091]
    """
    return lambda staleness: 1 / (a * np.maximum(staleness - b, 0.0) + 1)


STALENESS: dict[str, Callable[..., StalenessFn]] = {"constant": constant, "polynomial": polynomial, "hinge": hinge}


def fedbuff(
    *,
    buffer: Part = 10,
    staleness: str = "polynomial(a=0.5)",
    server_lr: Positive = 1.0,
    max_staleness: AtLeastZero | None = None,
) -> Schedule:
    """Steps by the mean of K updates: w + server_lr (1/K) sum s(u_i) delta_i.

    Nguyen et al. Federated Learning with Buffered Asynchronous Aggregation. AISTATS 2022.
    https://arxiv.org/abs/2106.06639

    Args:
      buffer: K, a number or a fraction of the clients that train at once.
      staleness: s, one of "constant", "polynomial(a=...)", "hinge(a=..., b=...)".
      server_lr: rate of the server.
      max_staleness: above which an update is dropped; None: none is.
    """
    s = find_staleness(staleness)
    return Schedule("fedbuff", buffer, lambda u: server_lr * s(u), max_staleness=max_staleness)


def fedasync(
    *, alpha: PositiveFraction = 0.6, staleness: str = "polynomial(a=0.5)", max_staleness: AtLeastZero | None = None
) -> Schedule:
    """Steps by each update: (1 - a) w + a w_i, where a = alpha s(u_i), and w_i is the client's model.

    Xie, Koyejo, Gupta. Asynchronous Federated Optimization. 2019. https://arxiv.org/abs/1903.03934
    Its proximal term is that of FedProx.

    Args:
      alpha: mixing rate of a fresh update.
      staleness: s, one of "constant", "polynomial(a=...)", "hinge(a=..., b=...)".
      max_staleness: above which an update is dropped; None: none is.
    """
    s = find_staleness(staleness)
    return Schedule("fedasync", 1, lambda u: alpha * s(u), mixes_models=True, max_staleness=max_staleness)


SCHEDULES: dict[str, Callable[..., Schedule]] = {"fedbuff": fedbuff, "fedasync": fedasync}


def find_staleness(spec: str) -> StalenessFn:
    """Returns a function of staleness by its spec.

    Raises:
      ValueError, TypeError: it does not exist, or an option is not allowed.
    """
    weight_fn = registry.resolve_spec("staleness", spec, STALENESS, field="schedule: staleness")()
    try:
        values = np.asarray(weight_fn(np.arange(100.0)))
    except Exception as error:  # a user's function may raise anything
        what = f"schedule: staleness={shorten(spec)} must return a function of an array of staleness, float64"
        raise ValueError(f"{what}; it raised {type(error).__name__}: {error}") from error
    if values.shape != (100,) or not np.all(np.isfinite(values)) or np.any(values < 0):
        raise ValueError(f"schedule: staleness={shorten(spec)} must give a finite number of at least 0 for each staleness")
    return weight_fn


def parse_schedule(spec: str) -> Schedule:
    """Returns a schedule by its spec, such as "fedbuff(buffer=10)".

    Raises:
      ValueError, TypeError: it does not exist, or an option is not allowed.
    """
    schedule = registry.resolve_spec("schedule", spec, SCHEDULES, field="schedule")()
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule={spec!r} must return a Schedule, it returned {shorten(schedule)}")
    check_value("schedule: buffer", schedule.buffer, Part)
    return schedule
