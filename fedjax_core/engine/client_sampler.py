"""The interface of a way to sample clients."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from fedjax_core.algorithm import Array, Cohort, PyTree

NEEDS = ("seconds", "availability", "losses")  # facts that a simulation may lack


@dataclasses.dataclass(frozen=True)
class ClientFacts:
    """Facts about the N clients before a round, for a traced draw.

    Attributes:
      examples: [N] int32, their training examples.
      seconds: [N] float32, of their rounds; None unless the sampler needs them.
      is_available: ids [n] -> [n] bool, which clients can be reached in this round and are not
        late in every round.
      compute_losses: (ids [n], examples, key) -> [n] float32, the mean loss of the server's model on
        each client's training examples, or on a number of them drawn with replacement; for samplers
        that need "losses".
    """

    examples: Array
    seconds: Any
    is_available: Callable[[Array], Array]
    compute_losses: Callable[[Array, int | None, Array], Array]


@dataclasses.dataclass(frozen=True)
class ClientSampler:
    """A way to draw cohorts. A subclass defines `draw`, and whatever else is not as here.

    A sampler with `init` or `update`, or that needs "losses", is adaptive: its draws depend on earlier rounds.

    Attributes:
      size: C, the clients of a cohort; where their number varies, its expected value.
      population: N.
      accounting: how the privacy ledger counts such cohorts, a key of `accounting.RELATIONS`; "":
        privacy is refused, of clients and of examples. It holds for one `draw`: a subclass that
        defines `draw` begins with "" and `ClientSampler.log_moments`, whatever its parent has.
    """

    size: int
    population: int
    accounting: ClassVar[str] = ""

    def __init_subclass__(cls, **keywords: Any):
        """Takes back what a parent says of its own draws."""
        super().__init_subclass__(**keywords)
        if "draw" in vars(cls):
            cls.accounting = vars(cls).get("accounting", "")
            cls.log_moments = vars(cls).get("log_moments", ClientSampler.log_moments)

    @property
    def needs(self) -> tuple[str, ...]:
        """Those of `NEEDS` without which it cannot draw."""
        return ()

    @property
    def slots(self) -> int:
        """The most clients that a cohort has."""
        return self.size

    @property
    def polled(self) -> int:
        """Clients that are sent the model before the cohort is drawn, and answer with one number."""
        return 0

    @property
    def has_update(self) -> bool:
        """Whether it learns from the clients' losses."""
        return type(self).update is not ClientSampler.update

    @property
    def is_adaptive(self) -> bool:
        """Whether draws depend on earlier rounds, or on a state from `init`."""
        return self.has_update or "losses" in self.needs or type(self).init is not ClientSampler.init

    def init(self, clients: ClientFacts) -> PyTree:
        """Returns the state before round 1, arrays; traced."""
        del clients
        return ()

    def draw(self, key: Array, round_num: Array | int, clients: ClientFacts, state: PyTree) -> Array:
        """Returns a round's ids [slots] int32, N in empty slots; traced.

        Args:
          key: the same in all rounds.
          round_num: rounds done.
          clients: what is known about them.
          state: from `init` or `update`.
        """
        raise NotImplementedError

    def update(self, state: PyTree, clients: ClientFacts, round_num: Array | int, cohort: Cohort, losses: Array) -> PyTree:
        """Returns the state after a round; traced.

        Args:
          state: with which its cohort was drawn.
          clients: as for its draw.
          round_num: rounds done before it.
          cohort: clients [C]; `examples` is 0 for those that did not come back.
          losses: [C] mean training losses of those that did.
        """
        del clients, round_num, cohort, losses
        return state

    def log_moments(self, exponents: np.ndarray, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Bounds log E[exp(a * S)], where S is the sum of one number per client over a cohort.

        This bound holds for every sampler. A lower one saves memory where examples are streamed.

        Args:
          exponents: [A, 1] values of a, above 0.
          values: [L] the numbers, ascending.
          counts: [L] how many clients have each.

        Returns:
          [A] bounds.
        """
        return self.slots * exponents[:, 0] * values[-1]
