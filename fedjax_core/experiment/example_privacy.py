"""Privacy of single examples: from a config and a simulation to the noise of local steps."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedjax_core.engine import information_flow
from fedjax_core.engine.client_sampling import FixedSampler, PoissonSampler, draw_rounds, is_known_ahead
from fedjax_core.engine.simulation_spec import SimulationSpec
from fedjax_core.engine.streams import stream_key
from fedjax_core.experiment.resolve_config import ResolvedConfig
from fedjax_core.language import instruction_task as language
from fedjax_core.privacy import ExampleLedger, make_example_ledger
from fedjax_core.training.private_gradient import ExamplePrivacy

ROUNDS_AT_ONCE = 256  # cohorts that are drawn in one call


class ParticipationCounter:
    """Counts in how many rounds each client is sampled, by drawing the cohorts of a seed again."""

    def __init__(self, sampler: FixedSampler | PoissonSampler, seed: int):
        self._sampler, self._key = sampler, stream_key(jax.random.key_data(jax.random.key(seed)), "cohort")
        self._counts = [np.zeros(sampler.population, np.int64)]  # after 0, ROUNDS_AT_ONCE, ... rounds
        self._cohorts: dict[int, np.ndarray] = {}

    def __call__(self, done: int) -> np.ndarray:
        """Returns the counts [N] of the first `done` rounds."""
        whole, rest = divmod(done, ROUNDS_AT_ONCE)
        while len(self._counts) <= whole:
            self._counts.append(self._counts[-1] + self._count(self._draw_part(len(self._counts) - 1)))
        return self._counts[whole] + (self._count(self._draw_part(whole)[:rest]) if rest else 0)

    def _draw_part(self, part: int) -> np.ndarray:
        if part not in self._cohorts:
            drawn = draw_rounds(self._sampler, self._key, part * ROUNDS_AT_ONCE, ROUNDS_AT_ONCE)
            self._cohorts = {part: np.asarray(drawn)}
        return self._cohorts[part]

    def _count(self, ids: np.ndarray) -> np.ndarray:
        population = len(self._counts[0])
        return np.bincount(ids.reshape(-1), minlength=population + 1)[:population]


def initial_privacy(resolved: ResolvedConfig, recorded: Mapping[str, Any] | None) -> ExamplePrivacy | None:
    """Returns clip and noise of local steps, before noise is calibrated; None without privacy of examples.

    Args:
      resolved: the config.
      recorded: facts of a run, with its calibrated noise.
    """
    privacy = resolved.privacy
    if privacy is None or privacy.level != "example":
        return None
    if resolved.regularizers:
        names = tuple(spec.spec for spec in resolved.regularizers)
        raise ValueError(
            f"regularizers={names} compare the examples of a minibatch, which privacy.level='example' takes one by one"
        )
    if own := [f"clients.{name}" for name in resolved.clients.specs if name != "lr"]:
        raise ValueError(
            f"{own[0]} and privacy.level='example': epsilon is computed for local steps and minibatches that all clients have "
            "in common; only clients.lr may differ"
        )
    packed = (n.resolved for n in resolved.networks if n.resolved.function is language.Spec and n.resolved.option("pack"))
    if network := next(packed, None):
        raise ValueError(
            f"models={network.spec!r} and privacy.level='example': an example would be a row of packed texts, and one text changes "
            "many rows; set pack=False"
        )
    if resolved.fields["drop_last"]:
        raise ValueError("drop_last=True and privacy.level='example': its minibatches are Poisson samples, none is left over")
    return ExamplePrivacy(privacy.clip, privacy.noise or (recorded or {}).get("noise_multiplier") or 1.0)


def account_examples(resolved: ResolvedConfig, spec: SimulationSpec, recorded: Mapping[str, Any] | None) -> ExampleLedger | None:
    """Returns what rounds cost in privacy of examples; None without it.

    Args:
      recorded: facts of a run whose noise is not calibrated again.

    Raises:
      ValueError: the method reads examples outside of its private local training, or its trainings
        have minibatches of several sizes.
    """
    if spec.example_privacy is None or resolved.privacy is None:
        return None
    if not is_known_ahead(spec.sampler):
        raise ValueError(
            f"cohort.sampling={resolved.sampling!r} and privacy.level='example': participations are counted before training; "
            "'fixed', 'cyclic' and 'poisson' draw them without its results"
        )
    examples = np.concatenate(list(spec.data.train_index))
    if len(np.unique(examples)) < len(examples):
        raise ValueError(
            f"data.partition={resolved.fields['data.partition']!r} and privacy.level='example': an example is there several times, "
            "in one client or in several, and epsilon is that of one; take a partition that divides the examples"
        )
    fits = information_flow.find_private_fits(spec)
    if len({fit.batch for fit in fits}) > 1:
        batches = " and ".join(str(batch) for batch in sorted({fit.batch for fit in fits}))
        raise ValueError(f"privacy.level='example' accounts for minibatches of one size, the method's have {batches}")
    epochs, batch = sum(fit.epochs for fit in fits), max((fit.batch for fit in fits), default=1)
    counter = ParticipationCounter(spec.sampler, resolved.seed)
    return make_example_ledger(resolved.privacy, np.asarray(spec.host_arrays.size), epochs, batch, counter, recorded)


def with_example_noise(resolved: ResolvedConfig, spec: SimulationSpec, recorded: Mapping[str, Any] | None) -> SimulationSpec:
    """Returns the simulation with the noise that its budget needs; the same without privacy of examples."""
    ledger = account_examples(resolved, spec, recorded)
    if ledger is None:
        return spec
    return dataclasses.replace(spec, example_privacy=ExamplePrivacy(ledger.clip, ledger.noise))
