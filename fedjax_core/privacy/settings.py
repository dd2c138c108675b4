"""What a config asks of privacy, and what a run of it has spent."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_core.privacy.accounting import Release, calibrated, choose, epsilon

ALONE = ("clip", "noise", "epsilon", "delta", "cohort", "population", "accountant")  # fields of config.privacy beside the mechanism
NOISE = {"gaussian": "gaussian", "adaptive": "gaussian", "local_gaussian": "gaussian", "local_laplace": "laplace"}
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
      rounds: T, which the noise is calibrated to.
    """

    name: str
    clip: float
    noise: float | None
    epsilon: float | None
    delta: float
    cohort: int | None
    population: int | None
    accountant: str | None
    rounds: int

    def spent(self, cohort: int, population: int, sampling: str, calibrate: bool = True, known: float | None = None) -> "Spent":
        """With the simulation known: what one round is, and how much noise it has.

        Args:
          cohort: C of the simulation, expected.
          population: N of it.
          sampling: "fixed" or "poisson".
          calibrate: False: noise that would have to be calibrated is 1, and nothing is accounted; for shapes alone.
          known: the noise multiplier that the run has; it is not found again, and nothing is accounted.

        Raises:
          ValueError: the deployment is smaller than the simulation; the accountant cannot do it; dp-accounting is not installed.
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
        if self.name.startswith("local"):
            release = Release(NOISE[self.name], "local")
        elif real == everybody:
            release = Release(NOISE[self.name], "all", real, everybody)
        else:
            release = Release(NOISE[self.name], sampling, real, everybody)
        accountant = choose(release, self.accountant)
        noise, calibrate = self.noise if known is None else known, calibrate and known is None
        if noise is None:
            noise = 1.0
            if calibrate:
                assert self.epsilon is not None
                noise = calibrated(release, self.epsilon, self.delta, self.rounds, accountant)
        made = Spent(release, noise, self.clip, self.delta, accountant, self.rounds, self.name, (cohort, population))
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
    """

    release: Release
    noise: float
    clip: float
    delta: float
    accountant: str
    rounds: int
    name: str
    simulated: tuple[int, int]

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
        return said | of | simulated | whose

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
        how = f"noise multiplier {self.noise:.4g}, clip {self.clip:g}, {clients}, by {self.accountant}"
        return f"privacy  {told} ({self.name}: {how}; neighbours: {self.release.relation})"


def asked(said: Mapping[str, Any], name: str | None) -> Privacy | None:
    """What the config's fields ask for.

    Args:
      said: all fields by dotted name.
      name: of the mechanism, without its options; None: privacy is off.

    Raises:
      ValueError: a field is missing, or is given where it says nothing.
    """
    found: dict[str, Any] = {field: said[f"privacy.{field}"] for field in ALONE}
    given = [field for field, value in found.items() if value is not None]
    if name is None:
        if given:
            raise ValueError(f"privacy.{given[0]}={found[given[0]]!r} needs privacy.mechanism, such as 'gaussian'")
        return None
    if found["clip"] is None:
        raise ValueError(f"privacy.mechanism={name!r} needs privacy.clip, the norm that a client's delta is clipped to")
    if (found["noise"] is None) == (found["epsilon"] is None):
        raise ValueError(
            f"privacy.noise={found['noise']}, privacy.epsilon={found['epsilon']}: give one of them, the noise multiplier or the "
            "epsilon that all rounds together may have"
        )
    if found["delta"] is None and name != "local_laplace":
        raise ValueError("privacy.delta must be given, at most one over the number of clients: 1e-6 for a million")
    if name.startswith("local"):
        for field in ("cohort", "population"):
            if found[field] is not None:
                raise ValueError(f"privacy.{field}={found[field]} says nothing of {name!r}: each client has noise of its own")
    elif found["population"] is not None and found["cohort"] is None:
        raise ValueError(
            f"privacy.population={found['population']} needs privacy.cohort, the clients that the deployment has in a round"
        )
    found["delta"] = found["delta"] or 0.0
    return Privacy(name=name, rounds=said["rounds"], **found)
