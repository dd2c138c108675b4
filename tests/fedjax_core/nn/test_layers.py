"""Normalisation and dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedjax_core import experiment, nn
from fedjax_core.nn import layers


def run(x, mask, batch=True, mean=0.5, var=2.0):
    """Output, running mean and variance, after starting from the given ones."""
    norm = layers.BatchNorm(3)
    norm.scale[...], norm.bias[...] = jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([0.0, 1.0, -1.0])
    norm.mean[...], norm.var[...] = jnp.full(3, mean), jnp.full(3, var)
    return norm(x, batch=batch, mask=mask), norm.mean[...], norm.var[...]


def test_batch_norm_follows_pytorch():
    x = np.random.default_rng(0).normal(2, 3, (4, 2, 5, 3)).astype(np.float32)
    mean, var, n = x.mean((0, 1, 2)), x.var((0, 1, 2)), 40
    y, running_mean, running_var = run(jnp.asarray(x), None)
    wanted = (x - mean) / np.sqrt(var + 1e-5) * [1, 2, 3] + [0, 1, -1]
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(running_mean, 0.9 * 0.5 + 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(running_var, 0.9 * 2 + 0.1 * var * n / (n - 1), rtol=1e-5)  # unbiased
    evaluated, *kept = run(jnp.asarray(x), None, batch=False)
    np.testing.assert_allclose(evaluated, (x - 0.5) / np.sqrt(2 + 1e-5) * [1, 2, 3] + [0, 1, -1], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(kept[0], jnp.full(3, 0.5))


@pytest.mark.parametrize("garbage", [1e4, np.nan])
def test_masked_rows_do_not_exist(garbage):
    x = jax.random.normal(jax.random.key(0), (3, 2, 2, 3))
    padded, mask = jnp.concatenate([x, jnp.full((2, 2, 2, 3), garbage)]), jnp.asarray([1.0, 1, 1, 0, 0])

    def loss(x, mask):
        y, mean, var = run(x, mask)
        return jnp.sum(jnp.sin(y[:3])), (y[:3], mean, var)

    found, wanted = (jax.grad(loss, has_aux=True)(*a) for a in ((padded, mask), (x, None)))
    for a, b in zip((found[0][:3], *found[1]), (wanted[0], *wanted[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_wholly_masked_batch_changes_nothing():
    x = jnp.zeros((2, 2, 2, 3))
    y, mean, var = run(x, jnp.zeros(2))
    gradient = jax.grad(lambda x: jnp.sum(run(x, jnp.zeros(2))[0]))(x)
    np.testing.assert_array_equal(mean, jnp.full(3, 0.5))
    np.testing.assert_array_equal(var, jnp.full(3, 2.0))
    assert np.isfinite(y).all()
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(("groups", "used"), [(None, 24), (2, 2)])
def test_group_norm_is_flax(groups, used):
    x = jax.random.normal(jax.random.key(0), (2, 3, 3, 48)) * 3 + 1
    ours = layers.make_norm("group", 48, nnx.Rngs(0), groups=groups)(x, batch=True, mask=None)
    theirs = nnx.GroupNorm(48, num_groups=used, epsilon=1e-5, rngs=nnx.Rngs(0))(x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_he_initialisation_is_over_what_the_layer_feeds():
    kernel = layers.Conv(4, 64, 3, rngs=nnx.Rngs(0)).kernel[...]
    assert float(jnp.std(kernel)) == pytest.approx((2 / (3 * 3 * 64)) ** 0.5, rel=0.05)
    assert abs(float(jnp.mean(kernel))) < 0.01


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (lambda **how: layers.Conv(40, 50, 3, bias=True, rngs=nnx.Rngs(0), **how), 360),
        (lambda **how: nnx.Linear(90, 80, rngs=nnx.Rngs(0), **how), 90),
    ],
)
def test_torchs_initialisation_is_kaiming_uniform_and_its_bias_is_not_zero(layer, fan_in):
    """torch.nn.Linear and Conv2d: kaiming_uniform(a=sqrt(5)) has the bound sqrt(6 / ((1 + 5) fan_in)); the bias the same."""
    begun = layer(**layers.make_initializers("torch", fan_in))
    for values in (np.asarray(begun.kernel[...]), np.asarray(begun.bias[...])):
        limit = (6 / ((1 + 5) * fan_in)) ** 0.5
        assert np.abs(values).max() == pytest.approx(limit, rel=0.1)
        assert np.abs(values).max() <= limit
        assert values.std() == pytest.approx(limit / 3**0.5, rel=0.2)
        assert abs(values.mean()) < limit / 2
    assert not np.any(layer(**layers.make_initializers("normal", fan_in)).bias[...])


def test_every_layer_of_a_network_begins_as_in_torch():
    for name, shape, options in (("cnn", (12, 12, 1), {"widths": (4, 8), "dense": 16, "pool": "each"}), ("mlp", (12,), {})):
        net = nn.build(name, 3, shape, init="torch", **options).init(jax.random.key(0))
        for layer in net.params.values():
            limit = layer["kernel"][..., 0].size ** -0.5
            assert 0.5 * limit < np.abs(layer["kernel"]).max() <= limit
            assert 0 < np.abs(layer["bias"]).max() <= limit
    with pytest.raises(ValueError, match="init"):
        experiment.lookup.find_network("cnn(init='xavier')")


def test_dropout():
    x, key = jnp.ones((100, 50)), jax.random.key(0)
    y = layers.dropout(x, 0.25, key, train=True)
    np.testing.assert_array_equal(y, layers.dropout(x, 0.25, key, train=True))
    np.testing.assert_allclose(np.unique(y), [0, 4 / 3], rtol=1e-6)
    assert float(jnp.mean(y)) == pytest.approx(1, abs=0.05)
    assert layers.dropout(x, 0.25, None, train=False) is x
    with pytest.raises(ValueError, match="needs a key"):
        layers.dropout(x, 0.25, None, train=True)


def test_unknown_norm():
    with pytest.raises(ValueError, match="unknown norm 'layer'; allowed: batch, group, none"):
        layers.make_norm("layer", 3, nnx.Rngs(0))


def test_groups_of_another_norm_are_refused():
    with pytest.raises(ValueError, match="groups=2 is an option of norm='group', not of norm='batch'"):
        layers.make_norm("batch", 4, nnx.Rngs(0), groups=2)
