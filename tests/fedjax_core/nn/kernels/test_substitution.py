"""Functions by kernels in place of XLA's operations, against the functions themselves."""

import functools

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export, lax

from fedjax_core import nn
from fedjax_core.nn import flax_adapter
from fedjax_core.nn.kernels import substitution
from fedjax_core.nn.kernels.conv import tracing_for
from fedjax_core.nn.kernels.substitution import substitute_kernels

RNGS = nnx.Rngs(0)
OPERATIONS = {
    "3x3": (nnx.Conv(3, 4, (3, 3), rngs=RNGS), (7, 8, 3)),
    "5x3, stride 2": (nnx.Conv(3, 4, (5, 3), strides=2, padding=((1, 2), (0, 1)), rngs=RNGS), (7, 8, 3)),
    "sequences": (nnx.Conv(3, 4, (5,), strides=2, rngs=RNGS), (9, 3)),
    "two strides": (nnx.Conv(3, 4, (3, 3), strides=(1, 2), padding="VALID", rngs=RNGS), (7, 8, 3)),
    "by channel": (nnx.Conv(4, 4, (3, 3), feature_group_count=4, rngs=RNGS), (6, 7, 4)),
    "several by channel": (nnx.Conv(4, 12, (3, 3), strides=2, feature_group_count=4, rngs=RNGS), (6, 7, 4)),
    "groups": (nnx.Conv(6, 4, (3, 2), feature_group_count=2, rngs=RNGS), (6, 7, 6)),
    "dilated": (nnx.Conv(3, 4, (3, 3), kernel_dilation=(2, 1), rngs=RNGS), (7, 8, 3)),
    "dilated sequences": (nnx.Conv(3, 4, (3,), kernel_dilation=4, rngs=RNGS), (20, 3)),
    "transposed": (nnx.ConvTranspose(3, 4, (3, 2), strides=(2, 2), rngs=RNGS), (5, 4, 3)),
    "volumes": (nnx.Conv(2, 3, (3, 3, 2), strides=2, rngs=RNGS), (5, 4, 6, 2)),
    "negative padding": (lambda x: lax.conv_general_dilated(x, KERNEL, (1, 1), ((-1, 1), (1, 0)), None, None, LAYOUT), (7, 8, 3)),
    "max-pool": (lambda x: nnx.max_pool(x, (2, 2), (2, 2)), (7, 8, 3)),
    "max-pool with padding": (lambda x: nnx.max_pool(x, (3, 3), (2, 2), "SAME"), (7, 8, 3)),
}
LAYOUT = ("NHWC", "HWIO", "NHWC")
KERNEL = jax.random.normal(jax.random.key(5), (3, 3, 3, 4))
LEFT = {
    "channels first": lambda x: lax.conv(x, jnp.ones((4, 3, 3, 3), jnp.float32), (1, 1), "SAME"),
    "whole numbers": lambda x: nnx.max_pool(x.astype(jnp.int32), (2, 2), (2, 2)),
    "large windows": lambda x: nnx.max_pool(jnp.tile(x, (1, 3, 2, 1)), (9, 9), (9, 9)),
    "pool of rows": lambda x: nnx.max_pool(x, (2, 1), (2, 1)),
    "precision": lambda x: lax.conv_general_dilated(x, KERNEL, (1, 1), "SAME", dimension_numbers=LAYOUT, precision="high"),
    "sums": lambda x: lax.conv_general_dilated(
        x, KERNEL, (1, 1), "SAME", dimension_numbers=LAYOUT, preferred_element_type=jnp.float64
    ),
}


def split(operation):
    """Returns the operation as a function of (parameters, x), and the parameters."""
    if not isinstance(operation, nnx.Module):
        return lambda _, x: operation(x), ()
    graph, params = nnx.split(operation)
    return lambda params, x: nnx.merge(graph, params)(x), nnx.to_pure_dict(params)


def draw(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def assert_close(found, wanted):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(jnp.max(jnp.abs(b))))


def primitives(function, *args):
    """Returns the names of a program's primitives, with those of the programs in it."""

    def names(jaxpr):
        for equation in jaxpr.eqns:
            yield equation.primitive.name
            for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
                inner = getattr(inner, "jaxpr", inner)
                yield from names(inner) if hasattr(inner, "eqns") else ()

    return {*names(jax.make_jaxpr(function)(*args).jaxpr)}


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_derivatives_are_those_of_the_function(name):
    """Alone, and of clients with parameters each: values, gradients, their gradients and tangents."""
    operation, shape = OPERATIONS[name]
    function, params = split(operation)
    x, along = draw(1, 2, 3, *shape), draw(2, 3, *shape)
    of_clients = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf[::-1]]), params)

    def derive(function, params, x):
        loss = lambda params, x: jnp.sum(function(params, x) ** 3)
        gradients = jax.grad(loss, (0, 1))
        length = lambda *given: sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients(*given)))
        tangent = jax.jvp(lambda x: loss(params, x), (x,), (along,))[1]
        return function(params, x), gradients(params, x), jax.grad(length, (0, 1))(params, x), tangent

    @functools.partial(jax.jit, static_argnums=0)
    def run(function):
        of_function = functools.partial(derive, function)
        shared = jax.vmap(of_function, (None, 0))(params, x)
        return of_function(params, x[0]), jax.vmap(of_function)(of_clients, x), shared

    own = substitute_kernels(function)
    assert_close(run(own), run(function))
    assert not primitives(own, params, x[0]) & {"conv_general_dilated", "reduce_window_max"}


@pytest.mark.parametrize("name", LEFT)
def test_other_operations_stay(name):
    with jax.enable_x64(True):
        x = draw(1, 2, 3, 8, 3).astype(jnp.float32)
        program = jax.make_jaxpr(LEFT[name])(x)
    assert substitution._substitute(program, {}) is program


@pytest.mark.parametrize("level", ["BF16_BF16_F32", "high", "float32", None])
def test_a_convolution_of_the_configured_precision_is_a_kernels(level):
    """The name of an algorithm is no level, and leaves all as it is."""
    with jax.default_matmul_precision(level):
        found = primitives(substitute_kernels(lambda x: OPERATIONS["3x3"][0](x)), draw(1, 2, 7, 8, 3))
    assert ("fedjax_conv_forward" in found) == (level != "BF16_BF16_F32")


def test_a_program_that_is_called_several_times_stays_one():
    block = jax.jit(nnx.Conv(3, 3, (3, 3), rngs=RNGS).__call__)
    own = substitute_kernels(lambda x: block(block(block(x))))
    calls = [e for e in jax.make_jaxpr(own)(draw(1, 2, 6, 6, 3)).jaxpr.eqns if e.primitive.name == "jit"]
    assert len(calls) == 3
    assert len({id(e.params["jaxpr"]) for e in calls}) == 1


def test_results_without_entries_and_symbolic_batches_are_left():
    small = jnp.zeros((2, 1, 1, 3))
    assert substitute_kernels(OPERATIONS["max-pool"][0])(small).shape == (2, 0, 0, 3)
    valid = lambda kernel: lax.conv_general_dilated(small, kernel, (1, 1), "VALID", dimension_numbers=LAYOUT)
    gradient = jax.grad(lambda kernel: jnp.sum(substitute_kernels(valid)(kernel)))
    np.testing.assert_array_equal(gradient(KERNEL), jnp.zeros_like(KERNEL))
    (batch,) = export.symbolic_shape("batch")
    for name in ("3x3", "by channel", "dilated", "transposed", "max-pool"):
        operation, shape = OPERATIONS[name]
        own = jax.jit(lambda x, operation=operation: substitute_kernels(lambda x: operation(x))(x))
        exported = export.export(own)(jax.ShapeDtypeStruct((batch, *shape), jnp.float32))
        assert_close(exported.call(draw(1, 3, *shape)), operation(draw(1, 3, *shape)))


def test_narrow_numbers_are_summed_wide():
    layer = nnx.Conv(8, 8, (7, 7), feature_group_count=8, use_bias=False, rngs=RNGS)
    x, kernel = draw(1, 2, 16, 16, 8).astype(jnp.bfloat16), layer.kernel[...].astype(jnp.bfloat16)
    run = lambda x, kernel: lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=LAYOUT, feature_group_count=8)
    wanted = run(x.astype(jnp.float32), kernel.astype(jnp.float32))
    found = substitute_kernels(run)(x, kernel)
    assert found.dtype == jnp.bfloat16
    assert float(jnp.max(jnp.abs(found - wanted))) < 0.004 * float(jnp.max(jnp.abs(wanted)))


@pytest.mark.parametrize("layer", ["3x3", "sequences", "by channel", "dilated"])
def test_no_convolution_is_grouped_by_client(layer):
    """Also on accelerators, whose own convolutions serve networks that are not under a vmap."""
    operation, shape = OPERATIONS[layer]
    function, params = split(operation)
    x, of_clients = draw(1, 8, 2, *shape), jax.tree.map(lambda leaf: jnp.stack([leaf] * 8), params)
    gradient = jax.grad(lambda params, x: jnp.sum(jnp.square(substitute_kernels(function)(params, x))))
    for backend in ("cpu", "gpu"):
        with tracing_for(backend):
            lowered = jax.jit(jax.vmap(lambda params, x: gradient(params, x))).lower(of_clients, x).as_text()
        assert "convolution" not in lowered
    with tracing_for("gpu"):
        assert "convolution" in jax.jit(lambda params, x: gradient(params, x)).lower(params, x[0]).as_text()


def test_programs_within_are_changed_and_others_left():
    conv, _ = OPERATIONS["3x3"]
    same = nnx.Conv(3, 3, (3, 3), rngs=nnx.Rngs(1))
    within = {
        "jit": jax.jit(lambda x: conv(x)),
        "checkpoint": jax.checkpoint(lambda x: conv(x)),
        "scan": lambda x: lax.scan(lambda x, _: (same(x), None), x, length=2)[0],
        "while": lambda x: lax.fori_loop(0, jnp.sum(x > 9), lambda _, x: same(x), x),
        "cond": lambda x: lax.cond(jnp.sum(x) > 0, same, lambda x: x, x),
    }
    x = draw(1, 2, 7, 8, 3)
    for function in within.values():
        own = substitute_kernels(lambda x, function=function: function(x))
        assert "conv_general_dilated" not in primitives(own, x)
        assert "fedjax_conv_forward" in primitives(own, x)
        assert_close(jax.jit(own)(x), jax.jit(function)(x))
    plain = jax.make_jaxpr(lambda x: jax.jit(jnp.tanh)(x) + lax.fori_loop(0, 3, lambda i, x: x * i, x))(x)
    assert substitution._substitute(plain, {}) is plain


def test_structures_and_dtypes_are_kept():
    conv = nnx.Conv(3, 4, (3, 3), dtype=jnp.bfloat16, rngs=RNGS)
    function = substitute_kernels(lambda x, more: {"y": conv(x), "more": more, "key": jax.random.fold_in(more["key"], 1)})
    result = function(draw(1, 2, 6, 6, 3), {"key": jax.random.key(0), "none": None, "number": 3})
    assert result["y"].dtype == jnp.bfloat16
    assert result["more"]["none"] is None
    assert int(result["more"]["number"]) == 3
    assert result["key"] == jax.random.fold_in(jax.random.key(0), 1)


class Nnx(nnx.Module):
    def __init__(self, classes: int, input_shape: tuple[int, ...], *, rngs: nnx.Rngs):
        self.conv, self.norm = nnx.Conv(input_shape[-1], 4, (3, 3), rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.head = nnx.Linear(4, classes, rngs=rngs)

    def body(self, x, mask=None):
        x = nnx.max_pool(self.norm(self.conv(x), mask=None if mask is None else mask[:, None, None, None]), (2, 2), (2, 2))
        return x.mean((1, 2))


class Linen(linen.Module):
    classes: int

    @linen.compact
    def __call__(self, x, train=False):
        x = linen.max_pool(linen.relu(linen.Conv(4, (3, 3))(x)), (2, 2), (2, 2))
        return linen.Dense(self.classes)(linen.Dropout(0.5, deterministic=not train)(x.mean((1, 2))))


@pytest.mark.parametrize("builder", [Nnx, Linen])
def test_networks_of_ones_own_have_the_kernels(builder):
    model = flax_adapter.build(builder, "own", 3, (8, 8, 1), {})
    net, x, mask = model.init(jax.random.key(0)), draw(3, 5, 8, 8, 1), jnp.asarray([1, 1, 1, 1, 0], bool)

    def run(net):
        apply = lambda net: model.apply(net, x, jax.random.key(1), train=True, mask=mask)
        (outputs, stats), back = jax.vjp(apply, net)
        return outputs, stats, back(jax.tree.map(jnp.ones_like, (outputs, stats)))

    assert {"fedjax_conv_forward", "fedjax_max_pool"} <= primitives(run, net)
    fast = jax.jit(run)(net)
    nn.use_kernels(False)
    try:
        assert not any(name.startswith("fedjax_") for name in primitives(run, net))
        wanted = jax.jit(run)(net)
        largest = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(wanted))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * largest), fast, wanted)
    finally:
        nn.use_kernels(True)
