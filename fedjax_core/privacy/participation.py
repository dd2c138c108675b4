"""How often a client participates, and how soon again, where cohorts take turns."""

from typing import NamedTuple


class Participation(NamedTuple):
    """The papers' "b-min-separation with at most k participations", for every client.

    Attributes:
      rounds: n, all rounds of the run.
      separation: b, the smallest number of rounds from one participation to the next; 1: every
        round.
      times: k, the largest number of participations.
    """

    rounds: int
    separation: int
    times: int

    def times_by(self, done: int) -> int:
        """Returns the largest number of participations in the first `done` rounds."""
        return min(self.times, -(-done // self.separation))


def cyclic_participation(rounds: int, cohort: int, population: int) -> Participation:
    """Returns the bounds where each round takes the next `cohort` clients of a circle.

    Between two cohorts that share a client there are as many rounds as whole cohorts fit the
    circle. A client has rounds * cohort / population turns, rounded up.

    Example:
      >>> cyclic_participation(rounds=10, cohort=8, population=20)
      Participation(rounds=10, separation=2, times=4)
    """
    return Participation(rounds, population // cohort, -(-rounds * cohort // population))


def weaken(actual: Participation, separation: int | None, times: int | None) -> Participation:
    """Returns the bounds that noise is calibrated to, if a config declares weaker ones.

    Args:
      actual: bounds of the cohorts.
      separation: `privacy.min_separation`, or None.
      times: `privacy.participations`, or None.

    Raises:
      ValueError: the cohorts exceed the declared bounds.
    """
    if separation is not None and separation > actual.separation:
        raise ValueError(
            f"privacy.min_separation={separation}: a client returns after {actual.separation} rounds; "
            "use smaller cohorts, or more clients"
        )
    if times is not None and times < actual.times:
        raise ValueError(
            f"privacy.participations={times}: in {actual.rounds} rounds a client participates up to "
            f"{actual.times} times; use fewer rounds, smaller cohorts, or more clients"
        )
    return Participation(actual.rounds, separation or actual.separation, times or actual.times)
