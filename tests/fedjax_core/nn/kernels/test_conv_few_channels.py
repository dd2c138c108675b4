"""Convolutions between few channels against loops over windows in float64."""

import jax
import numpy as np
import pytest

from fedjax_core.nn.kernels import conv, conv_few_channels
from tests.fedjax_core.nn import windows

CASES = [  # size, kernel, around
    ((8, 8), (3, 3, 3, 4), ((1, 1), (1, 1))),
    ((9, 8), (3, 3, 1, 4), ((0, 0), (0, 0))),
    ((7, 10), (2, 5, 3, 2), ((0, 1), (2, 2))),
    ((6, 9), (4, 3, 2, 5), ((3, 0), (2, 1))),
    ((9, 9), (3, 3, 2, 4), ((-1, 2), (1, -2))),
]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("size", "window", "around"), [*CASES, ((13, 12), (7, 7, 1, 4), ((3, 3), (3, 3)))])
def test_equals_loops_over_windows(size, window, around, stride):
    rng = np.random.default_rng(0)
    x, kernel = (rng.normal(size=shape).astype(np.float32) for shape in ((3, *size, window[2]), window))
    found = jax.jit(conv_few_channels.forward, static_argnums=(2, 3))(x, kernel, stride, around)
    nothing = np.zeros((3, *windows.results(size, window[:2], stride, around), window[3]))
    np.testing.assert_allclose(found, windows.convolution(x, kernel, nothing, stride, around)[0], atol=1e-5)


@pytest.mark.parametrize(("size", "window", "around"), [*CASES, ((12, 11), (5, 5, 3, 6), ((0, 0), (2, 2)))])
def test_the_gradient_for_the_kernel_equals_loops_over_windows(size, window, around):
    rng = np.random.default_rng(1)
    x, kernel = (rng.normal(size=shape).astype(np.float32) for shape in ((3, *size, window[2]), window))
    dy = rng.normal(size=(3, *windows.results(size, window[:2], 1, around), window[3])).astype(np.float32)
    found = jax.jit(conv_few_channels.kernel_gradient, static_argnums=(2, 3))(x, dy, window[:2], around)
    np.testing.assert_allclose(found, windows.convolution(x, kernel, dy, 1, around)[2], atol=1e-4)


@pytest.mark.parametrize(
    ("size", "window", "stride", "taken"),
    [
        ((8, 8), (3, 3, 3, 16), 1, True),
        ((8, 8), (3, 3, 3, 32), 1, True),
        ((8, 8), (3, 3, 4, 32), 1, False),
        ((8, 8), (3, 3, 1, 32), 1, False),
        ((8, 8), (3, 3, 16, 16), 1, True),
        ((8, 8), (3, 3, 24, 16), 1, False),
        ((8, 8), (3, 3, 3, 16), 2, False),
        ((16, 16), (3, 3, 3, 16), 2, True),
        ((16, 16), (7, 7, 3, 32), 2, True),
        ((16, 16), (3, 3, 8, 16), 2, False),
        ((32, 32), (7, 7, 3, 16), 4, False),
        ((8, 8), (1, 3, 3, 16), 1, False),
        ((5, 8), (3, 3, 3, 16), 1, False),
    ],
)
def test_where_it_is_taken(size, window, stride, taken):
    assert conv_few_channels.pays(size, window, stride, ((1, 1), (1, 1))) == taken


@pytest.mark.parametrize(
    ("window", "taken"),
    [((5, 5, 3, 6), True), ((5, 5, 6, 12), True), ((5, 5, 6, 16), False), ((3, 3, 3, 6), False), ((5, 5, 3, 32), False)],
)
def test_where_the_gradient_for_the_kernel_is_taken(window, taken):
    assert conv_few_channels.kernel_gradient_pays((14, 14), window, 1, ((0, 0), (0, 0))) == taken


def test_a_convolution_between_few_channels_takes_it_on_a_cpu_alone():
    x, kernel = np.zeros((2, 8, 8, 3), np.float32), np.zeros((3, 3, 3, 16), np.float32)

    def program(backend):
        with conv.tracing_for(backend):
            return jax.jit(lambda x, kernel: conv.conv(x, kernel, form="canonical")).lower(x, kernel).as_text()

    assert "stride = [2, 2]" in program("cpu")
    assert "stride = [2, 2]" not in program("gpu")
