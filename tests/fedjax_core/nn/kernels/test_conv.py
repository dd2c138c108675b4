"""Every form of the convolution against `lax.conv_general_dilated`, forward and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_core.nn.kernels import conv

# kernel, stride, size of the image, padding, channels, outputs: each branch of every form
CASES = [
    (1, 1, (5, 6), "SAME", 3, 4),
    (1, 2, (5, 6), "SAME", 3, 4),
    (3, 1, (9, 10), "SAME", 16, 4),  # one product of shifted rows and columns
    (3, 1, (5, 6), "SAME", 3, 4),
    (3, 2, (5, 6), "SAME", 3, 4),
    (3, 2, (6, 5), "SAME", 3, 4),
    (3, 2, (6, 5), 1, 3, 4),
    (5, 1, (9, 8), 2, 16, 4),
    (7, 1, (7, 8), "SAME", 2, 4),
    (3, 1, (5, 6), "SAME", 8, 32),  # blocks of images
    (3, 2, (10, 9), "VALID", 8, 32),  # no window sees the last row
    (5, 2, (8, 9), 2, 3, 32),
    (7, 2, (13, 12), 3, 3, 4),  # blocks with outputs filled up
    (5, 1, (8, 7), 2, 3, 16),
    (3, 1, (5, 6), "SAME", 32, 4),
    (3, 1, (8, 6), "SAME", 32, 40),  # fewer products
    (3, 1, (4, 5), 3, 32, 32),
    (3, 1, (26, 27), 1, 3, 5),  # many places: gradients by blocks of few channels, too
    (3, 1, (74, 73), "VALID", 1, 32),
    (3, 1, (46, 45), "SAME", 16, 20),
    (5, 1, (9, 8), 2, 1, 32),
    (3, 1, (2, 2), 1, 3, 4),  # tiny
    (3, 2, (4, 4), 1, 3, 4),
    (3, 1, (1, 1), 1, 3, 4),
]


def lax_conv(x, kernel, stride, padding):
    around = conv.resolve_padding(x.shape[1:3], kernel.shape[:2], stride, padding)
    return lax.conv_general_dilated(x, kernel, (stride, stride), around, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def with_gradients(function):
    return lambda x, kernel, dy: (function(x, kernel), *jax.vjp(function, x, kernel)[1](dy))


def draw(size, channels, kernel, stride, padding, outputs=4):
    """x [2 clients, 3 rows, H, W, C], kernel [2, k, k, C, O], dy."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, *size, channels)).astype(np.float32)
    weights = rng.normal(size=(2, kernel, kernel, channels, outputs)).astype(np.float32)
    shape = jax.eval_shape(jax.vmap(lambda x, k: lax_conv(x, k, stride, padding)), x, weights).shape
    return x, weights, rng.normal(size=shape).astype(np.float32)


def assert_close(found, wanted):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.shape == b.shape
        a, b = np.asarray(a), np.asarray(b)
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


@pytest.mark.parametrize(("kernel", "stride", "size", "padding", "channels", "outputs"), CASES)
def test_forms_equal_lax(kernel, stride, size, padding, channels, outputs):
    x, weights, dy = draw(size, channels, kernel, stride, padding, outputs)

    @jax.jit
    def run(x, weights, dy):
        def alone(form):
            return with_gradients(lambda x, k: conv.conv(x, k, stride, padding, form))(x[0], weights[0], dy[0])

        def every(form):
            return jax.vmap(with_gradients(lambda x, k: conv.conv(x, k, stride, padding, form)))(x, weights, dy)

        reference = with_gradients(lambda x, k: lax_conv(x, k, stride, padding))
        wanted = [reference(x[i], weights[i], dy[i]) for i in range(2)]
        together = jax.tree.map(lambda *parts: jnp.stack(parts), *wanted)
        return [alone(form) for form in conv.FORMS], wanted[0], every("auto"), together

    alone, wanted, vmapped, together = run(x, weights, dy)
    for found in alone:
        assert_close(found, wanted)
    assert_close(vmapped, together)


@pytest.mark.parametrize("channels", [8, 16, 32])
def test_gradients_of_no_images_are_zero(channels):
    x, weights = jnp.zeros((0, 9, 9, channels)), jnp.ones((5, 5, channels, 40))
    dx, gradient = jax.jit(jax.grad(lambda x, k: jnp.sum(conv.conv(x, k)), (0, 1)))(x, weights)
    assert dx.shape == x.shape
    np.testing.assert_array_equal(gradient, jnp.zeros_like(weights))


def test_auto_under_every_vmap_and_in_a_loop():
    x, weights, dy = draw((9, 8), 16, 3, 1, "SAME")
    auto = with_gradients(conv.conv)
    reference = jax.jit(with_gradients(lambda x, k: lax_conv(x, k, 1, "SAME")))
    wanted = [reference(x[i], weights[i], dy[i]) for i in range(2)]
    together = jax.tree.map(lambda *parts: jnp.stack(parts), *wanted)
    assert_close(jax.jit(lambda *a: lax.map(lambda b: auto(*b), a))(x, weights, dy), together)
    shared = jax.jit(jax.vmap(auto, (0, None, 0)))(x, weights[0], dy)
    assert_close(jax.tree.map(lambda v: v[0], shared), wanted[0])
    # two nested vmaps, kernels differing in the outer one only
    nested = jax.jit(jax.vmap(jax.vmap(auto, (0, None, 0)), (0, 0, 0)))(x[:, None], weights, dy[:, None])
    assert_close(jax.tree.map(lambda v: v[:, 0], nested), together)


def test_gradient_of_a_vmap_with_shared_kernel():
    keys = jax.random.split(jax.random.key(0), 3)
    x, weights = jax.random.normal(keys[0], (2, 3, 5, 6, 3)), jax.random.normal(keys[1], (2, 3, 3, 3, 4))

    def loss(kernel, form):
        return jnp.sum(jnp.sin(jax.vmap(lambda x: conv.conv(x, kernel, 2, 1, form))(x)))

    found, wanted = (jax.jit(jax.grad(loss), static_argnums=1)(weights[0], form) for form in ("auto", "native"))
    assert_close(found, wanted)


@pytest.mark.parametrize("form", conv.FORMS)
def test_gradients_of_clients_that_share_dy(form):
    x, weights, dy = draw((5, 6), 3, 3, 2, 1)
    run = lambda of: jax.jit(jax.vmap(with_gradients(of), (0, None, None)))(x, weights[0], dy[0])
    assert_close(run(lambda x, k: conv.conv(x, k, 2, 1, form)), run(lambda x, k: lax_conv(x, k, 2, 1)))


def test_no_grouped_convolution_when_every_client_has_a_kernel():
    x, weights, dy = draw((9, 8), 16, 3, 1, "SAME")
    text = jax.jit(jax.vmap(with_gradients(conv.conv))).lower(x, weights, dy).as_text()
    assert "convolution" not in text
    shared = jax.jit(jax.vmap(conv.conv, (0, None))).lower(x, weights[0]).as_text()
    assert "convolution" in shared
    assert "feature_group_count = 1" in shared


@pytest.mark.parametrize("outputs", [4, 32])
def test_bfloat16(outputs):
    x, weights, dy = draw((9, 8), 16, 3, 1, "SAME", outputs)
    args = [a[0].astype(jnp.bfloat16) for a in (x, weights, dy)]
    for out in jax.jit(with_gradients(conv.conv))(*args):
        assert out.dtype == jnp.bfloat16


@pytest.mark.parametrize("channels", [8, 32])
def test_blocks_of_images_are_for_cpus(channels):
    x, weights, _ = draw((5, 6), channels, 3, 1, "SAME", 32)
    gradient = jax.grad(lambda k: jnp.sum(conv.conv(x[0], k, form="canonical")))
    assert "while" in jax.jit(gradient).lower(weights[0]).as_text()
    with conv.tracing_for("tpu"):
        assert "while" not in jax.jit(lambda k: gradient(k)).lower(weights[0]).as_text()


@pytest.mark.parametrize(
    ("side", "size", "inputs", "outputs", "is_block"),
    [
        (25, 3, 3, 4, False), (26, 3, 3, 4, True),  # by 3 images: 2,000 places
        (40, 3, 1, 32, False), (40, 3, 2, 31, False), (74, 3, 1, 32, True),
        (44, 3, 16, 20, False), (45, 3, 16, 20, True), (45, 3, 16, 19, False), (142, 3, 16, 19, True),
        (9, 5, 1, 32, True), (9, 5, 1, 16, True), (9, 1, 64, 64, False),
    ],
)  # fmt: skip
def test_which_gradients_are_sums_over_blocks(side, size, inputs, outputs, is_block):
    x, weights = jnp.ones((3, side, side, inputs)), jnp.ones((size, size, inputs, outputs))
    gradient = jax.grad(lambda k: jnp.sum(conv.conv(x, k, 1, "SAME", "canonical")))
    assert ("while" in jax.jit(gradient).lower(weights).as_text()) is is_block


def test_tiny_images_are_for_cpus_and_float32():
    def products(size, dtype=jnp.float32):
        kernel = jnp.ones((3, 3, 1, 1), dtype)
        run = jax.jit(lambda x: conv.conv(x, kernel, 1, 1, "canonical"))
        return run.lower(jnp.ones((3, size, size, 1), dtype)).as_text().count("dot_general")

    assert [products(1), products(2), products(2, jnp.bfloat16)] == [1, 16, 1]
    with conv.tracing_for("tpu"):
        assert products(2) == 1


def test_an_image_smaller_than_its_kernel_gives_nothing():
    for size, left in (((2, 2), (0, 0)), ((2, 5), (0, 3))):
        assert conv.conv(jnp.ones((3, *size, 1)), jnp.ones((3, 3, 1, 2)), padding="VALID").shape == (3, *left, 2)


def test_second_derivatives_of_the_plain_forms():
    x, weights, dy = draw((5, 6), 3, 3, 2, 1)

    def curvature(form):
        inner = jax.grad(lambda k: jnp.sum(jnp.sin(conv.conv(x[0], k, 2, 1, form)) * dy[0]))
        return jax.jit(jax.grad(lambda k: jnp.sum(jnp.square(inner(k)))))(weights[0])

    assert_close(curvature("patches"), curvature("native"))


def test_describe_is_the_rule():
    for backend, alone in (("cpu", "canonical"), ("gpu", "native")):
        with conv.tracing_for(backend):
            described = {"form": "auto", "backend": backend, "alone": alone, "vmapped": "patches"}
            assert conv.describe_conv("auto") == described
    assert conv.describe_conv("native")["backend"] == jax.default_backend()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"form": "winograd"}, "unknown convolution form 'winograd'"), ({"padding": "same"}, "unknown padding 'same'")],
)
def test_errors(arguments, words):
    with pytest.raises(ValueError, match=words):
        conv.conv(jnp.zeros((1, 4, 4, 1)), jnp.zeros((3, 3, 1, 1)), **arguments)


@pytest.mark.parametrize(
    ("kernel", "stride", "size", "padding", "channels", "outputs"), [CASES[3], CASES[9], CASES[12], CASES[15], CASES[17]]
)
def test_derivatives_of_any_order_and_mode(kernel, stride, size, padding, channels, outputs):
    """Alone, and of clients with a kernel each."""
    x, weights, dy = draw(size, channels, kernel, stride, padding, outputs)

    def derivatives(function, x, weights, dy):
        def squares(x, kernel):
            return jnp.sum(jnp.square(function(x, kernel, stride, padding)) * dy)

        gradients, turned = jax.grad(squares, (0, 1)), (x[::-1], weights[::-1])
        of_gradients = jax.grad(lambda *given: sum(jnp.sum(jnp.square(g)) for g in gradients(*given)), (0, 1))
        along = jax.jvp(gradients, (x, weights), turned)[1]  # Hessian times a direction
        return jax.jvp(squares, (x, weights), turned)[1], along, of_gradients(x, weights)

    @functools.partial(jax.jit, static_argnums=0)
    def run(function):
        of_function = functools.partial(derivatives, function)
        return of_function(x[0], weights[0], dy[0]), jax.vmap(of_function)(x, weights, dy)

    assert_close(run(conv.conv), run(lax_conv))


def test_no_image():
    kernel = jnp.ones((3, 3, 32, 32))
    assert conv.conv(jnp.ones((0, 4, 4, 32)), kernel).shape == (0, 4, 4, 32)
    assert jax.vmap(lambda x: conv.conv(x, kernel))(jnp.ones((2, 0, 4, 4, 32))).shape == (2, 0, 4, 4, 32)
