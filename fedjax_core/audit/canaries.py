"""A lower bound of epsilon from one training, by examples that are in it or not by coin flips.

Steinke, Nasr, Jagielski. Privacy Auditing with One (1) Training Run. NeurIPS 2023.

  paper   here           meaning
  m       canaries       examples, each in the training with probability 1/2
  S_i     is_in          whether it is
  Y_i     score          the auditor's evidence; the highest are guessed to be in, the others abstained
  r, v    guesses, hits  of them

`jax_privacy.auditing` computes the bound; thresholds are corrected for (Bonferroni). It is a bound for
neighbours that differ in one example: where it exceeds the accountant's epsilon, either the
mechanism or its accounting is wrong, but for the probability `significance`.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_core.algorithm import Examples, select_examples
from fedjax_core.audit.membership import check_scores, import_auditing, score_by_loss
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.data.target_types import label_table, require_classes
from fedjax_core.engine.simulator import Simulator

SIGNIFICANCE = 0.05


class CanaryAudit(NamedTuple):
    """Bounds of epsilon at `delta`.

    Attributes:
      lower: with confidence 1 - significance, by Steinke et al. (2023).
      lower_gaussian: likewise, for a mechanism that is Gaussian differentially private (Mahloujifar et
        al. 2024); tighter.
      upper: the accountant's; infinite without privacy.
    """

    canaries: int
    delta: float
    significance: float
    lower: float
    lower_gaussian: float
    upper: float

    @property
    def is_violated(self) -> bool:
        """Whether the accountant's epsilon is disproved."""
        return max(self.lower, self.lower_gaussian) > self.upper


def audit_scores(
    scores: np.ndarray,
    is_in: np.ndarray,
    *,
    delta: float,
    upper: float = np.inf,
    significance: float = SIGNIFICANCE,
    threshold: float | None = None,
) -> CanaryAudit:
    """Returns bounds from the canaries' scores [m], higher for those that are taken to be in.

    Args:
      threshold: above which canaries are guessed to be in, chosen without the scores; None: the best
        one, with a correction for the choice.

    Raises:
      ValueError: there are none, or a score is NaN.
    """
    check_scores("canaries", scores)
    auditing = import_auditing()
    auditor = auditing.CanaryScoreAuditor(scores[is_in], scores[~is_in])
    strategy = auditing.Bonferroni() if threshold is None else auditing.Explicit(threshold)
    # Both bounds hold with half of the significance, so that both together do.
    lower = auditor.epsilon_one_run(significance / 2, delta, threshold_strategy=strategy)
    lower_gaussian = auditor.epsilon_one_run_fdp(significance / 2, delta, threshold_strategy=strategy)
    return CanaryAudit(len(scores), delta, significance, float(lower), float(lower_gaussian), upper)


class Canaries(NamedTuple):
    """Data with canaries.

    Attributes:
      data: what is trained on.
      examples: all canaries.
      is_in: [m] whether each is in the training.
    """

    data: FederatedData
    examples: Examples
    is_in: np.ndarray


def insert_canaries(data: FederatedData, number: int, seed: int) -> Canaries:
    """Inserts mislabelled test examples into the clients' training, each with probability 1/2.

    A canary's client does not depend on the coins, so that data sets that differ in one coin are neighbours: they differ in
    one example of one client. Canaries are left out of the test set.

    Raises:
      ValueError: there are fewer test examples; targets are no classes; all canaries or none are in.
    """
    require_classes("audit: a canary, a mislabelled example,", data.train.y, "leave --canaries out")
    if number > len(data.test.y) // 2:
        raise ValueError(f"audit: canaries={number} must be at most half of the {len(data.test.y)} test examples they are made of")
    rng = np.random.default_rng([seed, 0xCA])
    chosen = rng.permutation(len(data.test.y))[:number]
    examples = select_examples(data.test, chosen)
    wrong = (examples.y + rng.integers(1, data.classes, number)) % data.classes
    examples = examples._replace(y=wrong.astype(examples.y.dtype))
    is_in = rng.random(number) < 0.5
    if is_in.all() or not is_in.any():
        raise ValueError(f"audit: canaries={number}: the coins put {'all' if is_in.all() else 'none'} of them in; take more")
    first, owners = len(data.train.y) - data.poisoned_rows, np.arange(number) % data.clients  # poisoned examples stay the last
    turns = [(first + np.flatnonzero(is_in & (owners == client))).astype(np.int32) for client in range(data.clients)]
    train = Examples(
        *(np.concatenate([a[:first], b, a[first:]]) for a, b in zip(map(np.asarray, data.train), examples, strict=True))
    )
    moved = [(own + number * (own >= first)).astype(np.int32) for own in data.train_index]
    index = RaggedIndex.from_lists([np.concatenate([own, new]) for own, new in zip(moved, turns, strict=True)])
    kept = np.setdiff1d(np.arange(len(data.test.y)), chosen)
    position = np.full(len(data.test.y), -1)
    position[kept] = np.arange(len(kept))

    def renumber(lists: Sequence[np.ndarray]) -> RaggedIndex:
        moved = (np.sort(position[own]) for own in lists)
        return RaggedIndex.from_lists([own[own >= 0].astype(np.int32) for own in moved])

    with_canaries = dataclasses.replace(
        data,
        train=train,
        train_index=index,
        test=select_examples(data.test, kept),
        test_index=renumber(data.test_index),
        unseen=None if data.unseen is None else data.unseen._replace(test_index=renumber(data.unseen.test_index)),
        label_table=label_table(train.y, index, data.classes),
    )
    return Canaries(with_canaries, examples, is_in)


def audit_with_canaries(
    simulator: Simulator, canaries: Canaries, rounds: int, *, seed: int, delta: float, upper: float
) -> CanaryAudit:
    """Trains with canaries, and audits by their losses under the final global model.

    Args:
      simulator: of `canaries.data`.
      upper: the accountant's epsilon of these rounds.
    """
    state, _ = simulator.run_rounds(simulator.init(seed), rounds)
    scores = score_by_loss(simulator, state, canaries.examples)
    return audit_scores(scores, canaries.is_in, delta=delta, upper=upper)
