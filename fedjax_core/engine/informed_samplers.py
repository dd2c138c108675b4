"""Samplers that use what is known about clients: sizes, availability, losses, seconds."""

import dataclasses
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array, Cohort
from fedjax_core.engine.client_sampler import ClientFacts, ClientSampler
from fedjax_core.option_types import AtLeastOne, Fraction, NonNegative, Positive, PositiveFraction, one_of


def perturb_weights(key: Array, weights: Array) -> Array:
    """Returns [N] log weight + Gumbel noise, whose descending order is that of successive draws.

    Each draw takes a client with probability in proportion to its weight [N], of those that are
    left; clients of weight 0 get -inf (Efraimidis and Spirakis, Weighted random sampling with a
    reservoir, 2006).
    """
    return jnp.log(weights) + jax.random.gumbel(key, weights.shape, mode="high")


def sample_by_weight(key: Array, weights: Array, size: int) -> Array:
    """Draws `size` clients without replacement by weight [N].

    Returns:
      [size] int32 ids in the order of their draws; N where fewer have a weight above 0.
    """
    highest, ids = jax.lax.top_k(perturb_weights(key, weights), size)
    return jnp.where(highest > -jnp.inf, ids, len(weights)).astype(jnp.int32)


def reach_clients(clients: ClientFacts) -> Array:
    """Returns [N] bool, which clients have examples and can be reached."""
    return (clients.examples > 0) & clients.is_available(jnp.arange(len(clients.examples)))


class SizeSampler(ClientSampler):
    """C clients in proportion to their examples, without replacement, whether they can be reached or not.

    A client's chance follows its examples, so the mean of uplinks should be uniform: weights by
    examples would count them twice.
    """

    def draw(self, key, round_num, clients, state):
        return sample_by_weight(jax.random.fold_in(key, round_num), clients.examples.astype(jnp.float32), self.size)


@dataclasses.dataclass(frozen=True)
class AvailableSampler(ClientSampler):
    """C of the clients that can be reached in the round, uniformly; all of them where they are fewer.

    Attributes:
      by_size: whether they are drawn in proportion to their examples instead.
    """

    by_size: bool = False

    @property
    def needs(self):
        return ("availability",)

    def draw(self, key, round_num, clients, state):
        weights = jnp.where(reach_clients(clients), clients.examples if self.by_size else 1, 0)
        return sample_by_weight(jax.random.fold_in(key, round_num), weights.astype(jnp.float32), self.size)


@dataclasses.dataclass(frozen=True)
class PowerOfChoiceSampler(ClientSampler):
    """Power-of-Choice: of d candidates, drawn in proportion to examples, the C with the largest losses.

    Cho, Wang, Joshi. Towards Understanding Biased Client Selection in Federated Learning. AISTATS
    2022. https://arxiv.org/abs/2010.01243. Candidates are clients that can be reached.

    Attributes:
      candidates: d, at least C; None: 2 C, at most N.
      loss: "current", of the server's model, which all candidates receive (pow-d), or "last", of
        each client's own last training, infinite before it (rpow-d).
      examples: on how many of a candidate's examples the current loss is computed, drawn anew with
        replacement (cpow-d); None: all.
    """

    candidates: AtLeastOne | None = None
    loss: Annotated[str, one_of("current", "last")] = "current"
    examples: AtLeastOne | None = None

    def __post_init__(self):
        """Raises ValueError for a number of candidates outside of [C, N], or examples of known losses."""
        if not self.size <= self.num_candidates <= self.population:
            raise ValueError(
                f"cohort.sampling: candidates={self.candidates} must be between the cohort's {self.size} and the population's "
                f"{self.population} clients"
            )
        if self.examples is not None and self.loss == "last":
            raise ValueError(f"cohort.sampling: examples={self.examples} is for loss='current'; loss='last' computes nothing")

    @property
    def num_candidates(self) -> int:
        """d."""
        return min(2 * self.size, self.population) if self.candidates is None else self.candidates

    @property
    def needs(self):
        return ("losses",) if self.loss == "current" else ()

    @property
    def polled(self):
        return self.num_candidates if self.loss == "current" else 0

    @property
    def has_update(self):
        return self.loss == "last"

    def init(self, clients):
        return jnp.full(self.population, jnp.inf) if self.loss == "last" else ()

    def draw(self, key, round_num, clients, state):
        draw_key, loss_key = jax.random.split(jax.random.fold_in(key, round_num))
        weights = jnp.where(reach_clients(clients), clients.examples, 0).astype(jnp.float32)
        ids = sample_by_weight(draw_key, weights, self.num_candidates)
        if self.loss == "last":
            losses = state[jnp.minimum(ids, self.population - 1)]
        else:
            losses = clients.compute_losses(ids, self.examples, loss_key)
        worst_first = jnp.argsort(-jnp.where(ids < self.population, losses, -jnp.inf), stable=True)
        return ids[worst_first][: self.size]

    def update(self, state, clients, round_num, cohort, losses):
        return state.at[_returned(cohort, self.population)].set(losses, mode="drop")


class OortState(NamedTuple):
    """What Oort remembers.

    Attributes:
      utility: [N] float32, of each client's last round.
      last_round: [N] int32, when that was, from 1; 0: never.
      quantile: [] of the clients' seconds, up to which they are not penalised.
      exploited: [2] mean utilities of exploited clients, summed over the last full window of rounds
        and over the current one.
    """

    utility: Array
    last_round: Array
    quantile: Array
    exploited: Array


@dataclasses.dataclass(frozen=True)
class OortSampler(ClientSampler):
    """Oort: clients of a large loss whose rounds are short, beside clients that never took part.

    Lai, Zhu, Madhyastha, Chowdhury. Oort: Efficient Federated Learning via Guided Participant
    Selection. OSDI 2021. https://arxiv.org/abs/2010.06081. Formulas are the released code's, but the
    cut-off, which is the paper's: 0.95 of the k-th best utility. Other defaults are FedScale's.
    Departures: a client's utility is its examples times its mean training loss, where the
    paper has the root of the mean square; seconds are known, not measured; a client that never took
    part has its examples as utility, which does not count in the others' range; the pacer's windows
    of rounds do not overlap. Clients of noisy labels have large losses, and are preferred.

    Attributes:
      exploration: share of a cohort that never took part; it falls by the factor `decay` each round,
        to `least`, and is 0 once all that can be reached took part.
      decay, least: as above.
      cutoff: exploited are drawn among those whose score is at least this share of the k-th best.
      clip: quantile above which utilities count as equal.
      penalty: alpha, power of (preferred seconds / seconds) of a slow client.
      quantile: of the clients' seconds, the preferred ones at first.
      step: by which the pacer changes the quantile.
      window: rounds between its decisions.
      pool: new clients are drawn among this times as many with the largest utility.
    """

    exploration: Fraction = 0.9
    decay: PositiveFraction = 0.98
    least: Fraction = 0.3
    cutoff: PositiveFraction = 0.95
    clip: PositiveFraction = 0.9
    penalty: NonNegative = 2.0
    quantile: PositiveFraction = 0.3
    step: Fraction = 0.05
    window: AtLeastOne = 20
    pool: Positive = 5.0

    @property
    def needs(self):
        return ("seconds",)

    def init(self, clients):
        zeros = jnp.zeros(self.population)
        return OortState(zeros, jnp.zeros(self.population, jnp.int32), jnp.float32(self.quantile), jnp.zeros(2))

    def draw(self, key, round_num, clients, state):
        exploit_key, explore_key, fill_key = jax.random.split(jax.random.fold_in(key, round_num), 3)
        is_reached, is_known = reach_clients(clients), state.last_round > 0
        is_old, is_new = is_reached & is_known, is_reached & ~is_known
        share = jnp.maximum(self.exploration * self.decay ** (round_num + 1.0), self.least) * jnp.any(is_new)
        num_old = jnp.minimum(jnp.floor(self.size * (1 - share) + 1e-3).astype(jnp.int32), jnp.sum(is_old))
        num_new = jnp.minimum(self.size - num_old, jnp.sum(is_new))
        slowdown = self._penalise(clients, state)

        score = jnp.where(is_old, self._score(state, is_old, round_num) * slowdown, -jnp.inf)
        kth = -jnp.sort(-score)[jnp.maximum(num_old, 1) - 1]
        is_exploited = _draw_some(exploit_key, jnp.where(is_old & (score >= self.cutoff * kth), score, 0), num_old)
        prior = jnp.where(is_new, clients.examples * slowdown, 0)
        in_pool = jnp.argsort(jnp.argsort(-prior, stable=True)) < jnp.floor(self.pool * num_new + 1e-3)
        is_explored = _draw_some(explore_key, jnp.where(in_pool, prior, 0), num_new)

        is_chosen = is_exploited | is_explored
        fill = jax.random.uniform(fill_key, is_chosen.shape)
        ids = jnp.argsort(jnp.where(is_chosen, -1, jnp.where(is_reached, fill, 2)), stable=True)[: self.size]
        return jnp.where(is_reached[ids], ids, self.population).astype(jnp.int32)

    def _score(self, state: OortState, is_old: Array, round_num: Array | int) -> Array:
        """Returns [N] utilities scaled to [0, 1], plus what grows with the rounds since they were seen."""
        number = jnp.sum(is_old)
        ascending = jnp.sort(jnp.where(is_old, state.utility, jnp.inf))
        at = lambda index: ascending[jnp.clip(index, 0, number - 1)]
        lowest = 0.999 * at(0)
        clipped = jnp.minimum(state.utility, at(jnp.floor(number * self.clip + 1e-3).astype(jnp.int32)))
        scaled = (clipped - lowest) / jnp.maximum(at(number - 1) - lowest, 1e-4)
        return scaled + jnp.sqrt(0.1 * jnp.log(round_num + 1.0) / jnp.maximum(state.last_round, 1))

    def _penalise(self, clients: ClientFacts, state: OortState) -> Array:
        """Returns [N] factors in (0, 1]: 1 up to the preferred seconds, then falling."""
        has_examples = clients.examples > 0
        ascending, number = jnp.sort(jnp.where(has_examples, clients.seconds, jnp.inf)), jnp.sum(has_examples)
        index = jnp.floor(number * state.quantile + 1e-3).astype(jnp.int32)
        preferred = jnp.where(state.quantile >= 1, jnp.inf, ascending[jnp.minimum(index, number - 1)])
        return jnp.minimum(preferred / clients.seconds, 1) ** self.penalty

    def update(self, state, clients, round_num, cohort, losses):
        returned = _returned(cohort, self.population)
        utility = cohort.examples * losses
        is_exploited = (cohort.examples > 0) & (state.last_round[jnp.minimum(cohort.ids, self.population - 1)] > 0)
        mean = jnp.sum(jnp.where(is_exploited, utility, 0)) / jnp.maximum(jnp.sum(is_exploited), 1)
        before, now = state.exploited[0], state.exploited[1] + mean
        change, done = jnp.abs(now - before), round_num + 1
        wider = jnp.where(change <= 0.1 * before, self.step, jnp.where(change >= 5 * before, -self.step, 0.0))
        moved = jnp.where(
            done >= 2 * self.window, jnp.clip(state.quantile + wider, min(self.step, self.quantile), 1), state.quantile
        )
        is_end = done % self.window == 0
        return OortState(
            state.utility.at[returned].set(utility, mode="drop"),
            state.last_round.at[returned].set(done, mode="drop"),
            jnp.where(is_end, moved, state.quantile),
            jnp.where(is_end, jnp.stack([now, 0.0]), jnp.stack([before, now])),
        )


def _returned(cohort: Cohort, population: int) -> Array:
    """Returns [C] ids, N of those that did not come back."""
    return jnp.where(cohort.examples > 0, cohort.ids, population)


def _draw_some(key: Array, weights: Array, number: Array) -> Array:
    """Returns [N] bool, `number` clients by weight without replacement; none of weight 0."""
    rank = jnp.argsort(jnp.argsort(-perturb_weights(key, weights), stable=True), stable=True)
    return (rank < number) & (weights > 0)
