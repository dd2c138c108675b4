"""Bounds of epsilon from one run: the published formula, and a mechanism whose noise is half of what it says."""

import importlib.util
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_core import audit
from fedjax_core.algorithm import ClientData, Examples, Net
from fedjax_core.audit import membership
from fedjax_core.data import federated_data, hold_out, poisoning, sources
from fedjax_core.privacy import Release, compute_epsilon
from fedjax_core.task import Model
from fedjax_core.training import local_training
from fedjax_core.training.private_gradient import ExamplePrivacy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax_privacy") is None, reason="jax-privacy is not installed")


def binomial_tail(number: int, p: float, least: int) -> float:
    return sum(math.comb(number, k) * p**k * (1 - p) ** (number - k) for k in range(least, number + 1))


def p_value(canaries: int, guesses: int, hits: int, epsilon: float, delta: float) -> float:
    """Returns the probability of so many hits (Steinke et al. 2023, Theorem 5.2), by sums of binomials."""
    q = 1 / (1 + math.exp(-epsilon))
    tail = binomial_tail(guesses, q, hits)
    excess = max((binomial_tail(guesses, q, hits - i) - tail) / i for i in range(1, hits + 1))
    return tail + 2 * canaries * delta * excess


@pytest.mark.parametrize("delta", [1e-6, 1e-4])
def test_the_bound_is_where_the_p_value_of_the_paper_is_the_significance(delta: float):
    is_in, auditing = np.arange(200) < 100, membership.import_auditing()
    scores = np.where(is_in, 1.0, 0.0)
    scores[3], scores[150:153] = 0.0, 1.0  # of 102 guesses 99 are right
    found = audit.audit_scores(scores, is_in, delta=delta, significance=0.1, threshold=0.5)
    assert found.lower > 1
    assert p_value(200, 102, 99, found.lower, delta) == pytest.approx(0.05, rel=1e-3), "half of the significance is this bound's"
    other = auditing.CanaryScoreAuditor(scores[is_in], scores[~is_in])
    assert found.lower_gaussian == other.epsilon_one_run_fdp(0.05, delta, threshold_strategy=auditing.Explicit(0.5))


def linear_model(inputs: int) -> Model:
    def apply(net, x, key=None, train=False, mask=None):
        return {"logits": x @ net.params["head"]["kernel"], "features": x}, net.stats

    init = lambda key: Net({"head": {"kernel": jnp.zeros((inputs, 2))}}, {})
    return Model(init, apply, lambda net, x, *rest, **more: (x, net.stats), lambda net, z: z @ net.params["head"]["kernel"])


def audit_of_local_training(noise: float, declared: float, canaries: int = 4000) -> audit.CanaryAudit:
    """Audits one step of DP-SGD by examples with gradients at right angles, whose directions the auditor knows."""
    rng, clip = np.random.default_rng(1), 0.5
    is_in, y = rng.random(canaries) < 0.5, rng.integers(0, 2, canaries)
    rows = np.flatnonzero(is_in)
    data = ClientData(
        Examples(jnp.eye(canaries), jnp.asarray(y, jnp.int32)),
        jnp.asarray(rows),
        jnp.int32(len(rows)),
        privacy=ExamplePrivacy(clip, noise),
    )
    model = linear_model(canaries)
    fit = local_training.fit(local_training.model_loss(model), optax.sgd(1.0), epochs=1, batch=canaries)
    moved = np.asarray(jax.jit(fit)(model.init(jax.random.key(0)), data, jax.random.key(2)).net.params["head"]["kernel"]) * len(
        rows
    )
    direction = np.where(np.arange(2) == y[:, None], 1, -1) / math.sqrt(2)  # minus the gradient of a canary, of length 1
    upper = compute_epsilon(Release("gaussian", "all"), declared, 1, 1e-5, "pld")
    return audit.audit_scores((moved * direction).sum(1) / clip, is_in, delta=1e-5, upper=upper, threshold=1.5)


def test_noise_of_half_the_declared_size_is_found_out():
    honest, broken = audit_of_local_training(1.0, declared=1.0), audit_of_local_training(0.5, declared=1.0)
    assert 0.5 < honest.lower <= honest.lower_gaussian < honest.upper
    assert not honest.is_violated
    assert broken.is_violated
    assert broken.upper == pytest.approx(4.38, abs=0.01)
    assert broken.lower_gaussian > 1.1 * broken.upper


def test_canaries_are_mislabelled_examples_that_are_in_by_coin_flips():
    data = federated_data.federate(sources.load("digits"), "dirichlet(alpha=0.5)", 10)
    inserted = audit.insert_canaries(data, 100, seed=3)
    number = int(inserted.is_in.sum())
    assert 30 < number < 70
    assert sum(map(len, inserted.data.train_index)) == sum(map(len, data.train_index)) + number
    first = len(data.train.y)
    rows = np.concatenate([index[index >= first] for index in inserted.data.train_index]) - first
    assert sorted(rows) == np.flatnonzero(inserted.is_in).tolist()
    counts = [np.bincount(inserted.data.train.y[index], minlength=10) for index in inserted.data.train_index]
    np.testing.assert_array_equal(inserted.data.label_table, counts)
    assert len(inserted.data.test.y) == len(data.test.y) - 100
    assert np.array_equal(inserted.data.train.x[first:], inserted.examples.x)
    seen = {x.tobytes(): int(y) for x, y in zip(data.test.x, data.test.y, strict=True)}
    assert all(seen[x.tobytes()] != y for x, y in zip(inserted.examples.x, inserted.examples.y, strict=True))
    assert not {x.tobytes() for x in inserted.data.test.x} & {x.tobytes() for x in inserted.examples.x}
    own = [data.test.x[index] for index in data.test_index]
    kept = {x.tobytes() for x in inserted.data.test.x}
    for before, index in zip(own, inserted.data.test_index, strict=True):
        assert [x.tobytes() for x in inserted.data.test.x[index]] == [x.tobytes() for x in before if x.tobytes() in kept]
    some = hold_out.hold_out_clients(data, 3, 0)
    found = audit.insert_canaries(some, 100, seed=3).data
    for before, after in zip(some.unseen.test_index, found.unseen.test_index, strict=True):
        rows = [x.tobytes() for x in data.test.x[before]]
        assert [x.tobytes() for x in found.test.x[after]] == [x for x in rows if x in {x.tobytes() for x in found.test.x}]
    with pytest.raises(ValueError, match="at most half"):
        audit.insert_canaries(data, len(data.test.y), seed=0)


def test_canaries_leave_poisoned_examples_the_last():
    data = federated_data.federate(sources.load("digits"), "dirichlet(alpha=0.5)", 5)
    poisoned = poisoning.poison_clients(data, [poisoning.label_flip()], [1, 3], seed=0)
    found = audit.insert_canaries(poisoned, 40, seed=3).data
    assert found.poisoned_rows == poisoned.poisoned_rows == len(data.train_index[1]) + len(data.train_index[3])
    np.testing.assert_array_equal(hold_out.find_seen_examples(found), np.arange(len(data.train.y) + 40))
    for new, old in zip(found.train, poisoned.train, strict=True):
        np.testing.assert_array_equal(new[-found.poisoned_rows :], old[-found.poisoned_rows :])
    for before, after in zip(poisoned.train_index, found.train_index, strict=True):
        np.testing.assert_array_equal(found.train.x[after[: len(before)]], poisoned.train.x[before])
        np.testing.assert_array_equal(found.train.y[after[: len(before)]], poisoned.train.y[before])


def test_one_coin_moves_no_other_canary(monkeypatch):
    """So that data sets that differ in one coin are neighbours."""
    data = federated_data.federate(sources.load("digits"), "dirichlet(alpha=0.5)", 3)
    generator = np.random.default_rng

    class Coins:
        def __init__(self, seed):
            self.draws = generator(seed)
            self.permutation, self.integers = self.draws.permutation, self.draws.integers

        def random(self, number):
            return coins(self.draws.random(number))

    def rows() -> list[set[int]]:
        first = len(data.train.y)
        return [set((index[index >= first] - first).tolist()) for index in audit.insert_canaries(data, 12, seed=0).data.train_index]

    monkeypatch.setattr(np.random, "default_rng", Coins)
    coins = lambda drawn: drawn
    before = rows()
    (flipped,) = {min(set(range(12)) & set.union(*before))}
    coins = lambda drawn: np.where(np.arange(12) == flipped, 0.9, drawn)
    assert [own - {flipped} for own in before] == rows()
    for put, word in ((0.0, "all"), (0.9, "none")):
        coins = lambda drawn, put=put: np.full_like(drawn, put)
        with pytest.raises(ValueError, match=f"audit: canaries=12: the coins put {word} of them in; take more"):
            rows()
