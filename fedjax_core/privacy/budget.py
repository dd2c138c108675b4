"""The privacy settings of a config, and what a run spends of its budget."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_core.privacy.accounting import RELATIONS, Release, calibrate_noise, choose_accountant, compute_epsilon, is_spent
from fedjax_core.privacy.distributed_noise import INTEGER_SUMS, IntegerSum
from fedjax_core.privacy.matrix_factorization import (
    STRATEGIES,
    Participation,
    Strategy,
    cyclic_participation,
    restore_strategy,
    weaken,
)

PARTICIPATION_FIELDS = ("min_separation", "participations")  # of config.privacy, for cohorts that take turns
SETTINGS = ("level", "clip", "noise", "epsilon", "delta", "cohort", "population", "accountant", *PARTICIPATION_FIELDS)
LEVELS = ("client", "example")
STEPS_PER_OCTAVE = 16  # PLD computes epsilon at so many numbers of rounds between powers of two


class PrivacyConfig(NamedTuple):
    """Settings of a config, checked as far as possible without data.

    Attributes:
      clip: norm of a clipped delta; of the gradient of an example.
      delta: 0 for pure differential privacy.
      cohort, population: of the deployment; None: as simulated.
      min_separation, participations: declared bounds for clients that take turns; None: those of
        the cohorts.
      rounds: T, which the noise is calibrated to.
      level: what is protected, one of `LEVELS`.
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
    level: str = "client"

    def make_ledger(
        self,
        cohort: int,
        population: int,
        sampling: str,
        calibrate: bool = True,
        recorded_facts: Mapping[str, Any] | None = None,
        parameters: int = 1,
        takes_all: bool = False,
    ) -> "PrivacyLedger":
        """Returns the ledger of a run, with its noise calibrated.

        Args:
          sampling: "fixed", "poisson" or "cyclic"; "": drawn in another way.
          calibrate: False: no accountant is used, and noise that would have to be calibrated is the
            recorded one, or 1: for shapes alone.
          recorded_facts: what run.json has about the run's noise (`PrivacyLedger.facts`), which is not
            computed again: another machine may find other last digits. None: nothing.
          parameters: coordinates of what a client sends, for sums of integers.
          takes_all: whether every client is in every cohort, however they are drawn.

        Raises:
          ValueError: the deployment is smaller than the simulation; the accountant does not support
            the mechanism; cohorts exceed the declared bounds; dp-accounting is not installed.
        """
        facts = recorded_facts or {}
        release = self._make_release(cohort, population, sampling, parameters, takes_all)
        participation, strategy, times = None, None, self.rounds
        if release.sampling == "cyclic":
            actual = cyclic_participation(self.rounds, release.cohort, release.population)
            participation = weaken(actual, self.min_separation, self.participations)
            times = participation.times
            if self.name in STRATEGIES:
                strategy = restore_strategy(self.name, participation, facts)
                strategy = strategy or STRATEGIES[self.name](participation, **self.options)
                times = 1
        if not calibrate:
            accountant = choose_accountant(release, self.accountant)
            noise = facts.get("noise_multiplier") or 1.0 if self.noise is None else self.noise
        elif self.noise is None:
            noise, accountant = self._calibrate(release, times, facts.get("noise_multiplier"))
        else:
            noise = self.noise
            accountant = choose_accountant(release, self.accountant, noise, times, self.delta)
        ledger = PrivacyLedger(
            release=release,
            noise=noise,
            clip=self.clip,
            delta=self.delta,
            accountant=accountant,
            rounds=self.rounds,
            name=self.name,
            simulated=(cohort, population),
            participation=participation,
            strategy=strategy,
        )
        if calibrate:
            ledger.epsilon(1)  # raises before round 1 if dp-accounting is not installed
        return ledger

    def _make_release(self, cohort: int, population: int, sampling: str, parameters: int, takes_all: bool) -> Release:
        """Returns what leaves in one round of the deployment."""
        real, everybody = self.cohort or cohort, self.population or population
        if everybody < population:
            raise ValueError(f"privacy.population={everybody} must be at least the simulated population, {population}")
        if real < cohort:
            raise ValueError(
                f"privacy.cohort={real} must be at least the simulated cohort, {cohort}: noise can only be scaled down"
            )
        if real > everybody:
            raise ValueError(f"privacy.cohort={real} must be at most the population, {everybody}; set privacy.population")
        if self.name in INTEGER_SUMS:  # a client is charged for every round, or for its turns
            if sampling not in ("fixed", "cyclic"):
                raise ValueError(
                    f"privacy.mechanism={self.name!r} needs the same number of clients in every round, whose noise adds up, drawn "
                    "whatever their data are: set cohort.sampling to 'fixed' or 'cyclic'"
                )
            arithmetic = INTEGER_SUMS[self.name](self.clip, self.noise or 1.0, cohort, parameters, **self.options)
            arithmetic.step  # noqa: B018 - raises where the modulus is too small
            return Release("integers", "cyclic" if sampling == "cyclic" else "all", cohort, population, arithmetic)
        noise = "laplace" if self.name == "local_laplace" else "gaussian"
        is_known = sampling in RELATIONS or takes_all
        if self.name.startswith("local") and is_known:
            return Release(noise, "local")
        if is_known and real == everybody and sampling != "cyclic":
            sampling = "all"
        if sampling not in RELATIONS:
            raise ValueError(
                f"privacy.mechanism={self.name!r}: epsilon is not known for cohorts that are drawn this way, since who sends may "
                "depend on exact losses or numbers of examples; set cohort.sampling to 'fixed', 'poisson' or 'cyclic'"
            )
        return Release(noise, sampling, real, everybody)

    def _calibrate(self, release: Release, times: int, recorded_noise: float | None) -> tuple[float, str]:
        """Returns the noise multiplier for the wanted epsilon, and its accountant."""
        assert self.epsilon is not None
        accountant = choose_accountant(release, self.accountant)
        if accountant == "pld" and self.delta > 0:
            # PLD may need half of the noise that RDP does.
            least = calibrate_noise(release, self.epsilon, self.delta, times, "rdp") / 2
            accountant = choose_accountant(release, self.accountant, least, times, self.delta)
        if recorded_noise:
            spent = compute_epsilon(release, recorded_noise, times, self.delta, accountant)
            if is_spent(spent, self.epsilon):
                return recorded_noise, accountant
        return calibrate_noise(release, self.epsilon, self.delta, times, accountant), accountant


class PrivacyLedger(NamedTuple):
    """What rounds cost.

    Attributes:
      noise: multiplier.
      clip: the (first) norm.
      delta: 0 for pure differential privacy.
      rounds: of the whole run.
      simulated: simulated cohort and population, which may differ from the release's.
      participation: bounds for clients that take turns; else None.
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
    participation: Participation | None = None
    strategy: Strategy | None = None

    @property
    def arithmetic(self) -> IntegerSum | None:
        """Of a sum of integers, with the noise; None for real numbers."""
        return self.release.arithmetic and self.release.arithmetic._replace(multiplier=self.noise)

    @property
    def is_scaled(self) -> bool:
        """Whether epsilon is about a deployment that is larger than the simulation."""
        deployment = self.release.cohort, self.release.population
        return self.release.sampling != "local" and self.simulated != deployment

    def epsilon(self, done: int) -> float:
        """Returns epsilon after `done` rounds.

        PLD takes long for each number of rounds. It is evaluated at a few of them, and the others
        have the value of the next one: an upper bound, for at most a sixteenth more rounds, and
        exact at the last.
        """
        done = last_of_octave_part(done, self.rounds) if self.accountant == "pld" else done
        noise = self.noise
        if self.strategy is not None and done:
            # One mechanism in all; there is no noise for more rounds.
            sensitivity = self.strategy.sensitivity(min(done, self.rounds))
            noise, done = self.noise * self.strategy.sensitivity() / sensitivity, 1
        elif self.participation is not None:
            done = self.participation.times_by(done)
        return compute_epsilon(self.release, noise, done, self.delta, self.accountant)

    def facts(self) -> dict[str, Any]:
        """Returns all but the rounds done, for run.json and summary.json."""
        facts = {"mechanism": self.name, "clip": self.clip, "noise_multiplier": self.noise, "delta": self.delta}
        if self.release.sampling != "local":
            facts |= {"cohort": self.release.cohort, "population": self.release.population}
            if self.is_scaled:
                facts |= {"simulated_cohort": self.simulated[0], "simulated_population": self.simulated[1]}
            if self.participation is not None:
                facts["min_separation"] = self.participation.separation
            if self.strategy is not None:  # its numbers are for these rounds only
                facts |= {"rounds": self.rounds, "participations": self.strategy.participation.times}
                facts |= {"sensitivity": self.strategy.sensitivity()} | self.strategy.facts()
        if self.arithmetic is not None:
            facts |= {"bits": self.arithmetic.bits, "step": self.arithmetic.step}
        facts |= {"sampling": self.release.sampling, "neighbours": self.release.relation}
        return facts | {"accountant": self.accountant}

    def spent(self, done: int) -> dict[str, Any]:
        """Returns what `done` rounds cost, for summary.json."""
        return {"epsilon": self.epsilon(done)}

    def describe(self, done: int) -> str:
        """Returns one line on what was spent after `done` rounds."""
        text = f"epsilon {self.epsilon(done):.4g} at delta {self.delta:g} after round {done}"
        if done < self.rounds:
            text += f", {self.epsilon(self.rounds):.4g} after round {self.rounds}"
        clients = "of one client that sends in every round"
        if self.release.sampling != "local":
            clients = f"{self.release.sampling} cohorts of {self.release.cohort} of {self.release.population}"
        if self.is_scaled:
            clients += " (deployment; simulated {} of {})".format(*self.simulated)
        if self.participation is not None:
            _, separation, times = self.participation
            clients += f", each client at most {times} times, {separation} rounds apart, not amplified"
        how = f"noise multiplier {self.noise:.4g}, clip {self.clip:g}, {clients}, by {self.accountant}"
        return f"privacy  {text} ({self.name}: {how}; neighbours: {self.release.relation})"


def last_of_octave_part(done: int, rounds: int) -> int:
    """Returns the round whose epsilon PLD computes in place of that of `done`: the next of a few.

    >>> [last_of_octave_part(done, 40) for done in (31, 33, 39, 40, 41)]
    [31, 34, 40, 40, 41]
    """
    step = max(1, 2 ** (max(done, 1).bit_length() - 1) // STEPS_PER_OCTAVE)
    ahead = -(-done // step) * step
    return min(ahead, rounds) if done <= rounds else done


def missing_settings(fields: Mapping[str, Any], name: str) -> list[str]:
    """Returns the fields that a mechanism needs and that are not given, each with its meaning."""
    clipped = "the gradient of an example" if fields["privacy.level"] == "example" else "a client's delta"
    needed = {
        ("clip",): f"privacy.clip, the norm that {clipped} is clipped to",
        ("noise", "epsilon"): "privacy.noise, the noise multiplier, or privacy.epsilon, the budget of all rounds",
        ("delta",): "privacy.delta, at most one over the number of clients (1e-6 for a million)",
    }
    if name == "local_laplace":
        del needed["delta",]
    return [text for names, text in needed.items() if all(fields[f"privacy.{field}"] is None for field in names)]


def build_privacy_config(fields: Mapping[str, Any], name: str | None, options: Mapping[str, Any] = {}) -> PrivacyConfig | None:
    """Returns the privacy settings of a config; None if privacy is off.

    Args:
      fields: all fields of the config by dotted name.
      name: of the mechanism, without its options; None: privacy is off.
      options: of the mechanism.

    Raises:
      ValueError: a field is missing, or is given where it has no effect.
    """
    values: dict[str, Any] = {field: fields[f"privacy.{field}"] for field in SETTINGS}
    given = [field for field, value in values.items() if value is not None]
    if name is None:
        if given:
            raise ValueError(f"privacy.{given[0]}={values[given[0]]!r} needs privacy.mechanism, such as 'gaussian'")
        return None
    if missing := missing_settings(fields, name):
        raise ValueError(f"privacy.mechanism={name!r} needs {'; '.join(missing)}")
    if values["noise"] is not None and values["epsilon"] is not None:
        raise ValueError(
            f"privacy.noise={values['noise']}, privacy.epsilon={values['epsilon']}: give one of them, the noise "
            "multiplier or the budget of all rounds"
        )
    values["level"] = values["level"] or "client"
    if values["level"] == "example":
        _check_example_level(values, name)
        return PrivacyConfig(name=name, rounds=fields["rounds"], options=options, **values)
    is_local = name.startswith("local")
    if is_local or name in INTEGER_SUMS:
        for field in ("cohort", "population"):
            if values[field] is not None:
                raise ValueError(f"privacy.{field}={values[field]} has no effect with {name!r}: each client has its own noise")
    elif values["population"] is not None and values["cohort"] is None:
        raise ValueError(
            f"privacy.population={values['population']} needs privacy.cohort, the clients of the deployment in a round"
        )
    sampling = fields["cohort.sampling"]
    if name in STRATEGIES and sampling != "cyclic":
        raise ValueError(
            f"privacy.mechanism={name!r} is for clients that take turns, and cohort.sampling={sampling!r} draws them: "
            "set it to 'cyclic', or use 'gaussian'"
        )
    for field in PARTICIPATION_FIELDS:
        if values[field] is not None and (sampling != "cyclic" or is_local):
            raise ValueError(f"privacy.{field}={values[field]} is for a central mechanism with cohort.sampling='cyclic'")
    values["delta"] = values["delta"] or 0.0
    return PrivacyConfig(name=name, rounds=fields["rounds"], options=options, **values)


def _check_example_level(values: Mapping[str, Any], name: str) -> None:
    """Raises ValueError for settings of client-level privacy."""
    if name != "gaussian":
        raise ValueError(
            f"privacy.level='example' has its noise in local training, and privacy.mechanism={name!r} has it on what clients "
            "send: use 'gaussian', or level 'client'. Both at once need two clips and have two epsilons, which a config has not"
        )
    for field in ("cohort", "population", *PARTICIPATION_FIELDS):
        if values[field] is not None:
            raise ValueError(
                f"privacy.{field}={values[field]} has no effect with privacy.level='example': each client has its own noise"
            )
