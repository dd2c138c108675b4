"""What a run spends of the privacy of single examples, client by client.

`training/private_gradient.py` makes the noise. One local step of client k is a Gaussian mechanism
on a Poisson sample of its examples, `PoissonSampledDpEvent` of rate q_k = min(1, batch / n_k). In
each round in which the client takes part it takes epochs * ceil(n_k / batch) of them.

Neighbouring data sets differ in one example of one client: its gradients are replaced by zeros, so
that n_k, which is public, stays. Cohorts are drawn without looking at examples, and are public too:
each client is charged for the rounds in which it is sampled, without amplification by sampling of
clients. Noise that is calibrated to an epsilon is enough for the client that spends most.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_core.privacy.accounting import (
    MAX_MULTIPLIER,
    RESOLUTION,
    Release,
    choose_accountant,
    compute_epsilon,
    import_library,
    is_spent,
    round_up,
)
from fedjax_core.privacy.budget import PrivacyConfig, last_of_octave_part

SIZE_RATIO = 1.1  # of clients that are bounded together
RELATION = "zero out one example of one client"


class ExampleLedger(NamedTuple):
    """What rounds cost; read as `PrivacyLedger`.

    Attributes:
      noise: multiplier of each local step.
      clip: norm of the gradient of one example.
      sizes: [N] the clients' numbers of examples, n_k.
      epochs: of local training in a round.
      batch: expected examples of a minibatch.
      rounds: of the whole run.
      count_participations: rounds done -> [N] in how many of them each client was sampled.
    """

    noise: float
    clip: float
    delta: float
    accountant: str
    sizes: np.ndarray
    epochs: int
    batch: int
    rounds: int
    count_participations: Callable[[int], np.ndarray]

    def local_steps(self, done: int) -> np.ndarray:
        """Returns the number [N] of local steps of each client in the first `done` rounds."""
        return self.count_participations(done) * self.epochs * -(-self.sizes // self.batch)

    def epsilon(self, done: int) -> float:
        """Returns the largest epsilon of a client after `done` rounds; by PLD as `PrivacyLedger`."""
        return self._largest(self._charged_rounds(done), self.noise, self.accountant)

    def client_epsilons(self, done: int, accountant: str | None = None) -> np.ndarray:
        """Returns each client's epsilon [N]; 0 for one that was never sampled."""
        pairs, index = self._groups(self._charged_rounds(done))
        values = [self._epsilon_of(size, steps, self.noise, accountant or self.accountant) for size, steps in pairs]
        return np.array(values)[index]

    def calibrate(self, wanted: float) -> "ExampleLedger":
        """Returns the ledger with the least noise, rounded up to 1e-4, of a wanted epsilon after all rounds.

        Raises:
          ValueError: no multiplier below 1e6 is enough.
        """
        spent = lambda noise: self._largest(self.rounds, noise, self.accountant)
        low, high = 0.0, 1.0
        while spent(high) > wanted:
            low, high = high, 2 * high
            if high > MAX_MULTIPLIER:
                raise ValueError(f"no noise multiplier below 1e6 gives epsilon {wanted:g} at delta {self.delta:g}")
        while high - low > RESOLUTION / 2:
            middle = (low + high) / 2
            low, high = (middle, high) if middle < 0.05 or spent(middle) > wanted else (low, middle)
        return self._replace(noise=round_up(high))

    def facts(self) -> dict[str, Any]:
        """Returns all but the rounds done, for run.json and summary.json."""
        return {
            "level": "example",
            "mechanism": "gaussian",
            "clip": self.clip,
            "noise_multiplier": self.noise,
            "delta": self.delta,
            "batch": self.batch,
            "local_epochs": self.epochs,
            "sampling": "poisson",
            "neighbours": RELATION,
            "accountant": self.accountant,
        }

    def spent(self, done: int) -> dict[str, Any]:
        """Returns what `done` rounds cost, for summary.json."""
        lowest, median, highest = map(float, np.quantile(self.client_epsilons(done, "rdp"), (0, 0.5, 1)))
        return {
            "epsilon": self.epsilon(done),
            "client_epsilons_rdp": {"lowest": lowest, "median": median, "highest": highest},
            "most_local_steps": int(self.local_steps(done).max(initial=0)),
        }

    def describe(self, done: int) -> str:
        """Returns one line on what was spent after `done` rounds."""
        text = f"epsilon {self.epsilon(done):.4g} at delta {self.delta:g} for the examples of every client after round {done}"
        if done < self.rounds:
            text += f", {self.epsilon(self.rounds):.4g} after round {self.rounds}"
        steps = int(self.local_steps(done).max(initial=0))
        how = f"noise multiplier {self.noise:.4g}, clip {self.clip:g}, Poisson minibatches of {self.batch}"
        how += f", at most {steps} local steps"
        return f"privacy  {text} ({how}, by {self.accountant}; neighbours: {RELATION})"

    def _charged_rounds(self, done: int) -> int:
        return last_of_octave_part(done, self.rounds) if self.accountant == "pld" else done

    def _groups(self, done: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the different pairs [G, 2] of (examples, local steps), and each client's index."""
        pairs = np.stack([self.sizes, self.local_steps(done)], 1)
        unique, index = np.unique(pairs, axis=0, return_inverse=True)
        return unique, index.reshape(-1)

    def _epsilon_of(self, size: int, steps: int, noise: float, accountant: str) -> float:
        release = Release("gaussian", "poisson" if size > self.batch else "all", min(self.batch, int(size)), int(size))
        if steps == 0:
            return 0.0
        rdp = compute_epsilon(release, noise, int(steps), self.delta, "rdp")
        if accountant == "rdp" or choose_accountant(release, None, noise, int(steps), self.delta) == "rdp":
            return rdp
        return min(rdp, compute_epsilon(release, noise, int(steps), self.delta, "pld"))

    def _largest(self, done: int, noise: float, accountant: str) -> float:
        """Returns the largest epsilon, exactly: of clients of like size a bound is computed first."""
        pairs = self._groups(done)[0]
        bins = np.floor(np.log(np.maximum(pairs[:, 0], 1)) / np.log(SIZE_RATIO)).astype(int)
        groups = [pairs[bins == each] for each in np.unique(bins)]
        bounds = [self._epsilon_of(group[:, 0].min(), group[:, 1].max(), noise, "rdp") for group in groups]
        largest = 0.0
        for index in np.argsort(bounds)[::-1]:
            if bounds[index] <= largest:
                break
            by_rdp = sorted(
                ((self._epsilon_of(size, steps, noise, "rdp"), size, steps) for size, steps in groups[index].tolist()), reverse=True
            )
            for bound, size, steps in by_rdp:
                if bound <= largest:
                    break
                largest = max(largest, self._epsilon_of(size, steps, noise, accountant))
        return largest


def make_example_ledger(
    config: PrivacyConfig,
    sizes: np.ndarray,
    epochs: int,
    batch: int,
    count_participations: Callable[[int], np.ndarray],
    recorded_facts: Mapping[str, Any] | None,
) -> ExampleLedger:
    """Returns the ledger of a run, with its noise calibrated if the config has an epsilon.

    Args:
      recorded_facts: what run.json has about the run's noise, which is not calibrated again if it is
        for these rounds; None: nothing.

    Raises:
      ValueError: dp-accounting is not installed; no noise is enough.
    """
    import_library()
    accountant = config.accountant or "pld"
    recorded = (recorded_facts or {}).get("noise_multiplier")
    ledger = ExampleLedger(
        config.noise or recorded or 1.0,
        config.clip,
        config.delta,
        accountant,
        sizes,
        epochs,
        batch,
        config.rounds,
        count_participations,
    )
    if config.noise is not None:
        return ledger
    assert config.epsilon is not None
    if recorded and is_spent(ledger.epsilon(config.rounds), config.epsilon):
        return ledger
    return ledger.calibrate(config.epsilon)
