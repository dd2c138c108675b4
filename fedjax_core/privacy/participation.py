"""How often a client takes part, and how soon again: what noise is accounted by where cohorts are not drawn, but come in turn."""

from typing import NamedTuple


class Participation(NamedTuple):
    """What holds for every client, "b-min-separation with at most k participations" of the papers.

    Attributes:
      rounds: n, all of the run.
      separation: b, the least number of rounds from one in which a client takes part to the next one; 1: it may come every round.
      times: k, in how many rounds it takes part at most.
    """

    rounds: int
    separation: int
    times: int

    def by(self, done: int) -> int:
        """In how many of the first `done` rounds a client takes part at most."""
        return min(self.times, -(-done // self.separation))


def in_turn(rounds: int, cohort: int, population: int) -> Participation:
    """What holds if all clients stand in a circle, and each round takes the next `cohort` of them.

    Between two cohorts that have a client in common stand as many rounds as whole cohorts fit the circle; in all rounds together a
    client's turn comes rounds * cohort / population times, rounded up.

    Example:
      >>> in_turn(rounds=10, cohort=8, population=20)
      Participation(rounds=10, separation=2, times=4)
    """
    return Participation(rounds, population // cohort, -(-rounds * cohort // population))


def promised(held: Participation, separation: int | None, times: int | None) -> Participation:
    """What is accounted for where a config promises less than what its cohorts hold.

    Args:
      held: what the cohorts hold.
      separation: `privacy.min_separation`, or None.
      times: `privacy.participations`, or None.

    Raises:
      ValueError: it promises more.
    """
    if separation is not None and separation > held.separation:
        raise ValueError(
            f"privacy.min_separation={separation}: cohorts in turn bring a client back after {held.separation} rounds; take "
            "smaller cohorts, or more clients"
        )
    if times is not None and times < held.times:
        raise ValueError(
            f"privacy.participations={times}: in {held.rounds} rounds of cohorts in turn a client takes part up to {held.times} "
            "times; take fewer rounds, smaller cohorts, or more clients"
        )
    return Participation(held.rounds, separation or held.separation, times or held.times)
