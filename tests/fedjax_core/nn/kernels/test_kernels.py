"""The switch that turns all kernels off: numbers and gradients agree within rounding, and no kernel is left."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core import nn
from fedjax_core.nn import kernels
from fedjax_core.nn.kernels import are_kernels_enabled, attention, batch_norm, conv, pool


@pytest.fixture(autouse=True)
def enabled():
    yield
    nn.use_kernels(True)


def draw(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


X = draw(0, 2, 8, 8, 4)
QUERY, KEY, VALUE = draw(1, 2, 5, 4, 3), draw(2, 2, 6, 2, 3), draw(3, 2, 6, 2, 3)
MASK = jnp.arange(5)[None, :, None] >= jnp.arange(6)[None, None] - jnp.arange(2)[:, None, None]

OPERATIONS = {
    "conv": (lambda k: conv.conv(X, k), draw(4, 3, 3, 4, 8)),
    "canonical": (lambda k: conv.conv(X, k, 2, "VALID", "canonical"), draw(4, 3, 3, 4, 8)),
    "winograd": (lambda k: conv.conv(draw(5, 2, 6, 6, 32), k), draw(6, 3, 3, 32, 32)),
    "few channels": (lambda k: conv.conv(draw(7, 2, 9, 9, 3), k), draw(8, 3, 3, 3, 8)),
    "tiny images": (lambda k: conv.conv(draw(9, 2, 2, 2, 3), k), draw(10, 3, 3, 3, 4)),
    "batch_norm": (lambda x: batch_norm.normalize_batch(x, 1 + X[0, 0, 0], X[0, 0, 1], X[:, :1, :1, :1] < X[0, 0, 0, 0])[0], X),
    "max_pool": (lambda x: pool.max_pool(x, 3, 2, 1), X),
    "attend": (lambda q: attention.attend(q, KEY, VALUE), QUERY),
    "masked attend": (lambda q: attention.attend(q, KEY, VALUE, MASK), QUERY),
    "gelu": (attention.gelu, X),
}


def value_and_gradient(function, x):
    value, back = jax.vjp(function, x)
    return value, *back(draw(11, *value.shape))


def primitives(jaxpr):
    """Names of all primitives of a program, with those of the programs inside it."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_gradients_agree_with_those_of_xla(name):
    function, x = OPERATIONS[name]
    compiled = jax.jit(lambda x: value_and_gradient(function, x))
    fast = compiled(x)
    nn.use_kernels(False)
    for a, b in zip(fast, compiled(x), strict=True):  # compiled anew
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.max(jnp.abs(b))))


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_kernel_is_left(name):
    function, x = OPERATIONS[name]
    custom = lambda: {p for p in primitives(jax.make_jaxpr(function)(x).jaxpr) if p.startswith(("custom_", "fedjax_"))}
    assert custom()
    nn.use_kernels(False)
    assert not are_kernels_enabled()
    assert not custom()


def test_a_network_agrees_and_its_record_says_native():
    model = nn.build("cnn", 3, (8, 8, 1), widths=(4, 4), dense=8)
    net, x, y = jax.jit(model.init)(jax.random.key(0)), draw(12, 4, 8, 8, 1), jnp.asarray([0, 1, 2, 0])
    loss = lambda net: jnp.mean(model.apply(net, x)[0]["logits"][jnp.arange(4), y])
    gradient = jax.jit(jax.grad(loss))
    fast = gradient(net)
    nn.use_kernels(False)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), fast, gradient(net))  # compiled anew
    assert nn.describe_conv() == {"form": "auto", "backend": jax.default_backend(), "alone": "native", "vmapped": "native"}


def test_the_environment_turns_kernels_off(monkeypatch):
    command = "from fedjax_core.nn import kernels; print(kernels.are_kernels_enabled())"
    environment = os.environ | {"FEDJAX_KERNELS": "0"}
    done = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr
    monkeypatch.setenv("FEDJAX_KERNELS", "no")
    with pytest.raises(ValueError, match="FEDJAX_KERNELS='no' must be 0 or 1"):
        kernels._read_variable()
