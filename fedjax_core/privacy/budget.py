"""What a config asks of privacy, and what a run of it has spent."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_core.privacy.accounting import Release, calibrated, choose, epsilon
from fedjax_core.privacy.matrix_factorization import STRATEGIES, Strategy, recorded
from fedjax_core.privacy.participation import Participation, in_turn, promised

OF_TURNS = ("min_separation", "participations")  # fields of config.privacy that say how clients take turns
ALONE = ("clip", "noise", "epsilon", "delta", "cohort", "population", "accountant", *OF_TURNS)  # all beside the mechanism
NOISE = {"local_laplace": "laplace"}  # of the others Gaussian
STEPS = 16  # epsilon by PLD is found at so many numbers of rounds between one power of two and the next


class Privacy(NamedTuple):
    """What a config asks for, checked as far as it can be without data.

    Attributes:
      name: of the mechanism.
      clip: norm that a client's delta is clipped to.
      noise: multiplier, or None.
      epsilon: in place of it, or None.
      delta: 0 for pure differential privacy.
      cohort, population: of the deployment, or None: the simulated ones.
      accountant: "pld", "rdp" or None.
      min_separation, participations: what is promised of clients that come in turn, or None: what their cohorts hold.
      rounds: T, which the noise is calibrated to.
      options: of the mechanism.
    """

    name: str
    clip: float
    noise: float | None
    epsilon: float | None
    delta: float
    cohort: int | None
    population: int | None
    accountant: str | None
    min_separation: int | None
    participations: int | None
    rounds: int
    options: Mapping[str, Any] = {}

    def spent(
        self, cohort: int, population: int, sampling: str, calibrate: bool = True, known: Mapping[str, Any] | None = None
    ) -> "Spent":
        """With the simulation known: what one round is, and how much noise it has.

        Args:
          cohort: C of the simulation, expected.
          population: N of it.
          sampling: "fixed", "poisson" or "cyclic".
          calibrate: False: nothing is accounted, and noise that would have to be calibrated is the known one, or 1: for shapes
            alone.
          known: what run.json has of the run's noise (`Spent.facts`), which is not found anew: another machine might find it
            differently in the last digits. None: nothing.

        Raises:
          ValueError: the deployment is smaller than the simulation; the accountant cannot do it; cohorts do not hold what is
            promised of clients' turns; dp-accounting is not installed.
        """
        real, everybody = self.cohort or cohort, self.population or population
        if everybody < population:
            raise ValueError(f"privacy.population={everybody} must be at least the simulated population, {population}")
        if real < cohort:
            raise ValueError(
                f"privacy.cohort={real} must be at least the simulated cohort, {cohort}: noise can be scaled down only"
            )
        if real > everybody:
            raise ValueError(f"privacy.cohort={real} must be at most the population, {everybody}; set privacy.population")
        kind, turns, strategy = NOISE.get(self.name, "gaussian"), None, None
        if self.name.startswith("local"):
            release = Release(kind, "local")
        elif sampling == "cyclic":
            release = Release(kind, sampling, real, everybody)
            turns = promised(in_turn(self.rounds, real, everybody), self.min_separation, self.participations)
            if self.name in STRATEGIES:
                strategy = recorded(self.name, turns, known or {}) or STRATEGIES[self.name](turns, **self.options)
        else:
            release = Release(kind, "all" if real == everybody else sampling, real, everybody)
        accountant = choose(release, self.accountant)
        noise, before = self.noise, (known or {}).get("noise_multiplier")
        times = 1 if strategy is not None else self.rounds if turns is None else turns.times
        if noise is None and not calibrate:
            noise = before or 1.0
        elif noise is None:
            assert self.epsilon is not None
            if accountant == "pld" and self.delta > 0:  # which may need half of the noise that RDP does
                least = calibrated(release, self.epsilon, self.delta, times, "rdp") / 2
                accountant = choose(release, self.accountant, least, times, self.delta)
            found = epsilon(release, before, times, self.delta, accountant) / self.epsilon if before else math.inf
            noise = before if before and 0.999 <= found <= 1 + 1e-6 else None  # else it is of other rounds
            noise = calibrated(release, self.epsilon, self.delta, times, accountant) if noise is None else noise
        elif calibrate:
            accountant = choose(release, self.accountant, noise, times, self.delta)
        simulated = cohort, population
        made = Spent(release, noise, self.clip, self.delta, accountant, self.rounds, self.name, simulated, turns, strategy)
        if calibrate:
            made.epsilon(1)  # says before round 1 that the accountant is missing
        return made


class Spent(NamedTuple):
    """What rounds cost.

    Attributes:
      release: of one round.
      noise: multiplier.
      clip: the (first) norm.
      delta: 0 for pure differential privacy.
      accountant: "pld" or "rdp".
      rounds: the last one.
      name: of the mechanism.
      simulated: cohort and population of the simulation, which are not always the release's.
      turns: how often clients come, where they come in turn; else None.
      strategy: of noise that is correlated over rounds; else None.
    """

    release: Release
    noise: float
    clip: float
    delta: float
    accountant: str
    rounds: int
    name: str
    simulated: tuple[int, int]
    turns: Participation | None = None
    strategy: Strategy | None = None

    @property
    def larger(self) -> bool:
        """Whether epsilon is of a deployment that is larger than the simulation."""
        return self.release.sampling != "local" and self.simulated != (self.release.cohort, self.release.population)

    def epsilon(self, done: int) -> float:
        """Of so many rounds. PLD finds it anew for each number of rounds, so it is found for a few, and told for those before: an
        upper bound, of at most a sixteenth more rounds; exact at the last round."""
        if self.accountant == "pld":
            step = max(1, 2 ** (max(done, 1).bit_length() - 1) // STEPS)
            ahead = -(-done // step) * step
            done = min(ahead, self.rounds) if done <= self.rounds else done
        if self.strategy is not None and done:
            done = min(done, self.rounds)  # there is no noise for more
            multiplier = self.noise * self.strategy.sensitivity() / self.strategy.sensitivity(done)
            return epsilon(self.release, multiplier, 1, self.delta, self.accountant)
        done = done if self.turns is None else self.turns.by(done)
        return epsilon(self.release, self.noise, done, self.delta, self.accountant)

    def so_far(self, done: int) -> dict[str, float]:
        """For the record of a round."""
        return {"privacy/epsilon": self.epsilon(done)}

    def facts(self) -> dict[str, Any]:
        """For run.json and summary.json: all but rounds done."""
        said = {"mechanism": self.name, "clip": self.clip, "noise_multiplier": self.noise, "delta": self.delta}
        whose = {"sampling": self.release.sampling, "neighbours": self.release.relation, "accountant": self.accountant}
        if self.release.sampling == "local":
            return said | whose
        of = {"cohort": self.release.cohort, "population": self.release.population}
        simulated = dict(zip(("simulated_cohort", "simulated_population"), self.simulated, strict=True)) if self.larger else {}
        turns = {} if self.turns is None else {"min_separation": self.turns.separation}
        if self.strategy is not None:  # whose numbers are of these rounds alone
            turns |= {"rounds": self.rounds, "participations": self.strategy.participation.times}
            turns |= {"sensitivity": self.strategy.sensitivity()} | self.strategy.facts()
        return said | of | simulated | turns | whose

    def words(self, done: int) -> str:
        """One line on what was spent."""
        told = f"epsilon {self.epsilon(done):.4g} at delta {self.delta:g} after round {done}"
        if done < self.rounds:
            told += f", {self.epsilon(self.rounds):.4g} after round {self.rounds}"
        clients = "of one client that sends in every round"
        if self.release.sampling != "local":
            clients = f"{self.release.sampling} cohorts of {self.release.cohort} of {self.release.population}"
        if self.larger:
            clients += " (deployment; simulated {} of {})".format(*self.simulated)
        if self.turns is not None:
            clients += f", each client at most {self.turns.times} times, {self.turns.separation} rounds apart, not amplified"
        how = f"noise multiplier {self.noise:.4g}, clip {self.clip:g}, {clients}, by {self.accountant}"
        return f"privacy  {told} ({self.name}: {how}; neighbours: {self.release.relation})"


def missing_settings(said: Mapping[str, Any], name: str) -> list[str]:
    """Returns the fields that a mechanism of this name needs and that are not given, each with what it is."""
    needed = {
        ("clip",): "privacy.clip, the norm that a client's delta is clipped to",
        ("noise", "epsilon"): "privacy.noise, the noise multiplier, or privacy.epsilon, what all rounds together may cost",
        ("delta",): "privacy.delta, at most one over the number of clients (1e-6 for a million)",
    }
    if name == "local_laplace":
        del needed["delta",]
    return [what for fields, what in needed.items() if all(said[f"privacy.{field}"] is None for field in fields)]


def build_privacy_config(said: Mapping[str, Any], name: str | None, options: Mapping[str, Any] = {}) -> Privacy | None:
    """What the config's fields ask for.

    Args:
      said: all fields by dotted name.
      name: of the mechanism, without its options; None: privacy is off.
      options: of the mechanism.

    Raises:
      ValueError: a field is missing, or is given where it says nothing.
    """
    found: dict[str, Any] = {field: said[f"privacy.{field}"] for field in ALONE}
    given = [field for field, value in found.items() if value is not None]
    if name is None:
        if given:
            raise ValueError(f"privacy.{given[0]}={found[given[0]]!r} needs privacy.mechanism, such as 'gaussian'")
        return None
    if lacking := missing_settings(said, name):
        raise ValueError(f"privacy.mechanism={name!r} needs {'; '.join(lacking)}")
    if found["noise"] is not None and found["epsilon"] is not None:
        raise ValueError(
            f"privacy.noise={found['noise']}, privacy.epsilon={found['epsilon']}: give one of them, the noise multiplier or the "
            "epsilon that all rounds together may have"
        )
    if name.startswith("local"):
        for field in ("cohort", "population"):
            if found[field] is not None:
                raise ValueError(f"privacy.{field}={found[field]} says nothing of {name!r}: each client has noise of its own")
    elif found["population"] is not None and found["cohort"] is None:
        raise ValueError(
            f"privacy.population={found['population']} needs privacy.cohort, the clients that the deployment has in a round"
        )
    sampling = said["cohort.sampling"]
    if name in STRATEGIES and sampling != "cyclic":
        raise ValueError(
            f"privacy.mechanism={name!r} is for clients that come in turn, and cohort.sampling={sampling!r} draws them: set it to "
            "'cyclic', or take 'gaussian'"
        )
    for field in OF_TURNS:
        if found[field] is not None and (sampling != "cyclic" or name.startswith("local")):
            raise ValueError(f"privacy.{field}={found[field]} is for a central mechanism with cohort.sampling='cyclic'")
    found["delta"] = found["delta"] or 0.0
    return Privacy(name=name, rounds=said["rounds"], options=options, **found)
