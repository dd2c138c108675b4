"""Modules that know nothing of this library."""

import inspect

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import fedavg, fedper, fedproto, fedrcl, fedrod
from fedjax_core import experiment
from fedjax_core.nn import outside

X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), jnp.float32)


class Plain(nnx.Module):
    """Logits, with dropout of Flax's own."""

    def __init__(self, classes: int, input_shape: tuple[int, ...], *, width: int = 5, rngs: nnx.Rngs):
        self.first = nnx.Linear(int(np.prod(input_shape)), width, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x):
        return self.last(self.drop(nnx.relu(self.first(x.reshape(len(x), -1)))))


class Parted(nnx.Module):
    """A body and a head."""

    def __init__(self, classes: int, input_shape: tuple[int, ...], *, rngs: nnx.Rngs):
        self.layer = nnx.Linear(int(np.prod(input_shape)), 5, rngs=rngs)
        self.head = nnx.Linear(5, classes, rngs=rngs)

    def body(self, x):
        return nnx.relu(self.layer(x.reshape(len(x), -1)))


class Normalised(nnx.Module):
    def __init__(self, classes: int, input_shape: tuple[int, ...], *, rngs: nnx.Rngs):
        self.norm = nnx.BatchNorm(input_shape[0], rngs=rngs)
        self.last = nnx.Linear(input_shape[0], classes, rngs=rngs)

    def __call__(self, x):
        return self.last(self.norm(x))


class Masked(Normalised):
    def __call__(self, x, mask=None):
        return self.last(self.norm(x, mask=None if mask is None else mask[:, None]))


class OfLinen(linen.Module):
    classes: int

    @linen.compact
    def __call__(self, x, train=False):
        x = linen.relu(linen.Dense(5)(x.reshape(len(x), -1)))
        return linen.Dense(self.classes)(linen.Dropout(0.5, deterministic=not train)(x))


def of(builder, **options):
    return outside.build(builder, builder.__name__, 3, (4,), options)


@pytest.mark.parametrize("builder", [Plain, lambda classes: OfLinen(classes)], ids=["nnx", "linen"])
def test_dropout_draws_from_the_given_key_in_training_alone(builder):
    model = of(builder)
    net = model.init(jax.random.key(0))
    apply = jax.jit(lambda key, train: model.apply(net, X, key, train=train)[0]["logits"], static_argnums=1)
    a, b = jax.random.split(jax.random.key(1))
    assert apply(a, True).shape == (6, 3)
    np.testing.assert_array_equal(apply(a, True), apply(a, True))
    assert np.abs(np.subtract(apply(a, True), apply(b, True))).max() > 1e-3
    np.testing.assert_array_equal(apply(a, False), apply(b, False))
    other = model.init(jax.random.key(5))
    assert any(np.abs(np.subtract(x, y)).max() > 1e-3 for x, y in zip(*map(jax.tree.leaves, (net, other)), strict=True))


def test_a_plain_module_computes_what_it_computes_by_itself():
    model = of(Plain, width=7)
    net = model.init(jax.random.key(0))
    alone = Plain(3, (4,), width=7, rngs=nnx.Rngs(jax.random.key(0)))
    alone.eval()
    np.testing.assert_allclose(model.apply(net, X)[0]["logits"], alone(X), atol=1e-6)
    with pytest.raises(ValueError, match="'Plain' gives logits alone, and the method wants its features or its head"):
        model.features(net, X)


def test_a_body_and_a_head_make_features():
    model = of(Parted)
    net = model.init(jax.random.key(0))
    outputs, _ = model.apply(net, X)
    assert outputs["features"].shape == (6, 5)
    np.testing.assert_array_equal(outputs["logits"], model.head(net, model.features(net, X)[0]))
    assert set(net.params) == {"layer", "head"}


@pytest.mark.parametrize("axes", [{"first/kernel": -1}, {"first/kernel": 0}, {"first/kernel": "model"}, "first"])
def test_a_module_says_which_axes_several_devices_divide(axes):
    divided = type("Divided", (Plain,), {"model_axes": axes})
    if axes == {"first/kernel": -1}:
        assert of(divided).model_axes == (("first/kernel", -1),)
        assert of(Plain).model_axes == ()
        return
    with pytest.raises(ValueError, match=r"'Divided': model_axes=.* must map ends of paths to axes counted from the end, such as"):
        of(divided)


def test_batch_statistics_leave_out_padding_or_are_refused():
    with pytest.raises(ValueError, match="has batch statistics, which rows of padding would enter"):
        of(Normalised)
    model = of(Masked)
    net, mask = model.init(jax.random.key(0)), jnp.asarray([True] * 4 + [False] * 2)
    _, some = model.apply(net, X, train=True, mask=mask)
    _, same = model.apply(net, X.at[4:].set(99.0), train=True, mask=mask)
    for a, b, before in zip(*map(jax.tree.leaves, (some, same, net.stats)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
        assert np.abs(np.subtract(a, before)).max() > 1e-4
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (model.apply(net, X)[1], net.stats)), strict=True))


def test_what_is_no_module_is_told():
    with pytest.raises(TypeError, match="is a int; a builder returns a module"):
        outside.build(lambda classes: classes, "mine", 3, (4,), {})


def test_a_config_names_a_module_of_a_file(tmp_path):
    """By its path; FedAvg trains it. Methods that share a part, read features or replace heads say what to add."""
    file = tmp_path / "mine.py"
    source = inspect.getsource(Plain)
    file.write_text(f"import numpy as np\nfrom flax import nnx\n\n\n{source}")
    config = fedavg.get_config("smoke")
    config.models, config.plan.devices = (f"{file}:Plain(width=6)",), 1
    sim = experiment.build(config)
    state, records = sim.rounds(sim.init(0), 1)
    assert np.isfinite(records[0]["train/loss"])
    assert 0 <= sim.evaluate(state)["test/global/accuracy"] <= 1
    for other in (fedper, fedproto, fedrcl, fedrod):
        asked = other.get_config("smoke")
        asked.models = config.models
        with pytest.raises(ValueError, match=r"give its module a method body\(x\) .* and a linear `head` for them"):
            experiment.build(asked)
