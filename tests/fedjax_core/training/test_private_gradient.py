"""DP-SGD of local training against loops over single examples, its noise, and its minibatches."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_core.algorithm import ClientData, Examples, Net
from fedjax_core.training import local_training
from fedjax_core.training.private_gradient import ExamplePrivacy, check_training
from tests import toy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax_privacy") is None, reason="jax-privacy is not installed")
MODEL = toy.model(statistics=False)
RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(40, toy.INPUTS)).astype(np.float32), (np.arange(40) % toy.CLASSES).astype(np.int32)


def client(size: int, privacy: ExamplePrivacy | None, padding: int = 0) -> ClientData:
    index = jnp.arange(size + padding) % 40
    return ClientData(Examples(jnp.asarray(X), jnp.asarray(Y)), index, jnp.int32(size), privacy=privacy)


def train(data: ClientData, *, lr: float, epochs: int, batch: int, momentum: float = 0.0, seed: int = 0):
    fit = local_training.fit(
        local_training.model_loss(MODEL), local_training.sgd(lr, momentum=momentum)(0), epochs=epochs, batch=batch
    )
    return jax.jit(fit)(MODEL.init(jax.random.key(1)), data, jax.random.key(seed))


def example_loss(params, x, y):
    return -jax.nn.log_softmax(MODEL.apply(Net(params, {}), x[None])[0]["logits"][0])[y]


def test_steps_are_those_of_a_loop_over_single_examples():
    clip, size, batch, epochs, lr = 1.8, 11, 4, 2, 0.1
    privacy, key = ExamplePrivacy(clip, 0.0), jax.random.key(0)
    data = client(size, privacy, padding=5)
    params = MODEL.init(jax.random.key(1)).params
    drawn, norms = [], []
    for e in range(epochs):
        order_key, _ = jax.random.split(jax.random.fold_in(key, e))
        for i in range(3):  # ceil(11 / 4)
            sample = privacy.draw(data, jax.random.fold_in(order_key, i), batch)
            total = jax.tree.map(np.zeros_like, params)
            for slot in np.asarray(sample.slots)[: int(sample.count)]:
                grads = jax.grad(example_loss)(params, jnp.asarray(X[slot]), int(Y[slot]))
                norm = float(np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(grads))))
                scale = min(1.0, clip / norm)
                total = jax.tree.map(lambda t, g, s=scale: t + s * np.asarray(g), total, grads)
                norms.append(norm)
            drawn.append(int(sample.count))
            params = jax.tree.map(lambda w, g: w - lr * g / batch, params, total)
    assert min(norms) < clip < max(norms), "some examples are clipped, others are not"
    assert len(set(drawn)) > 1, "the size of a Poisson minibatch varies"
    result = train(data, lr=lr, epochs=epochs, batch=batch)
    for ours, naive in zip(jax.tree.leaves(result.net.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(ours, naive, atol=2e-5)
    assert float(result.sums["loss"][1]) == sum(drawn), "metrics are those of the drawn examples"


def test_without_noise_and_clip_it_is_plain_training_on_the_same_minibatches():
    """With an expected minibatch of all examples both take full-batch steps."""
    settings = {"lr": 0.5, "epochs": 3, "batch": 20, "momentum": 0.9}
    plain, private = (train(client(20, privacy), **settings) for privacy in (None, ExamplePrivacy(np.inf, 0.0)))
    for ours, theirs in zip(jax.tree.leaves(private.net), jax.tree.leaves(plain.net), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(private.sums["accuracy"], plain.sums["accuracy"])


def test_noise_has_the_deviation_that_is_accounted_for():
    """The noise of three steps with a rate of 1 on Poisson minibatches, of gradients that are clipped to almost nothing."""
    clip, noise, batch = 1e-3, 1000.0, 8
    start, draws = MODEL.init(jax.random.key(1)), []
    for seed in range(30):
        noisy = train(client(20, ExamplePrivacy(clip, noise)), lr=1.0, epochs=1, batch=batch, seed=seed)
        moved = zip(*map(jax.tree.leaves, (noisy.net.params, start.params)), strict=True)
        draws.append(np.concatenate([(batch * (a - b)).ravel() / 3**0.5 for a, b in moved]))
    draws = np.stack(draws)
    number = draws.size
    assert np.mean(draws**2) == pytest.approx((clip * noise) ** 2, rel=4 * np.sqrt(2 / number))
    assert abs(np.mean(draws)) < 4 * clip * noise / np.sqrt(number)
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 4 / np.sqrt(number), "seeds have noise of their own"


def test_minibatches_are_poisson_samples():
    size, batch, steps = 25, 5, 4000
    data = client(size, None, padding=7)
    draw = jax.vmap(lambda key: ExamplePrivacy(1.0, 1.0).draw(data, key, batch))
    sample = draw(jax.random.split(jax.random.key(2), steps))
    counts = np.asarray(sample.count)
    assert counts.mean() == pytest.approx(batch, abs=4 * np.sqrt(4 / steps)), "the mean of a binomial"
    assert counts.var() == pytest.approx(size * 0.2 * 0.8, rel=0.12), "and its variance: no fixed size"
    members = np.zeros((steps, size + 7))
    for row, slots, count in zip(members, np.asarray(sample.slots), counts, strict=True):
        row[slots[:count]] = 1
    assert members[:, size:].sum() == 0, "padding is never drawn"
    np.testing.assert_allclose(members[:, :size].mean(0), 0.2, atol=4.5 * np.sqrt(0.16 / steps))
    both = members[:, :size].T @ members[:, :size] / steps
    np.testing.assert_allclose(both[~np.eye(size, dtype=bool)], 0.04, atol=5 * np.sqrt(0.04 / steps))


def test_one_example_moves_a_step_by_at_most_the_clip():
    """Also one whose gradient is not finite."""
    clip = 0.3
    loss = local_training.model_loss(MODEL)
    fit = local_training.fit(loss, optax.sgd(1.0), epochs=1, batch=10)
    results = []
    for value in (0.0, 1e6, np.nan):
        data = client(10, ExamplePrivacy(clip, 0.0))
        x = jnp.asarray(X).at[3].set(value)
        results.append(fit(MODEL.init(jax.random.key(1)), data._replace(arrays=Examples(x, data.arrays.y)), jax.random.key(0)).net)
    for other in results[1:]:
        difference = jax.tree.map(lambda a, b: 10 * (a - b), other, results[0])
        assert float(optax.tree.norm(difference)) <= 2 * clip + 1e-5
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(other))


def test_trainings_without_a_bound_for_one_example_are_refused():
    data = client(8, ExamplePrivacy(1.0, 1.0))
    with pytest.raises(ValueError, match="batch normalisation"):
        check_training(data, {"mean": jnp.zeros(3)})
    with pytest.raises(ValueError, match="episodes"):
        check_training(data._replace(draw=lambda data, key: None), {})
    with pytest.raises(ValueError, match="`epoch_inputs`"):
        check_training(data, {}, epoch_inputs=lambda net, data, epoch: ())
    optimizer = optax.chain(local_training.sharpness_aware(0.1), optax.sgd(0.1))
    fit = local_training.fit(local_training.model_loss(MODEL), optimizer, epochs=1, batch=4)
    with pytest.raises(ValueError, match="sharpness-aware"):
        fit(MODEL.init(jax.random.key(1)), data, jax.random.key(0))
