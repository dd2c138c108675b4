"""Convolutions of tiny images against loops over windows in float64."""

import jax
import numpy as np
import pytest

from fedjax_core.nn.kernels import conv_tiny_images
from tests.fedjax_core.nn import windows

CASES = [  # size, kernel, stride, around, products
    ((2, 2), (3, 3), 1, ((1, 1), (1, 1)), 16),
    ((1, 1), (3, 3), 1, ((1, 1), (1, 1)), 1),
    ((4, 4), (3, 3), 2, ((1, 1), (1, 1)), 25),
    ((2, 2), (3, 3), 2, ((1, 1), (1, 1)), 4),
    ((4, 1), (3, 2), 2, ((1, 0), (0, 1)), 5),
    ((1, 1), (3, 3), 1, ((2, 2), (2, 2)), 9),  # one that all of a kernel meets
]


@pytest.mark.parametrize(("size", "window", "stride", "around", "products"), CASES)
def test_equals_loops_over_windows(size, window, stride, around, products):
    rng = np.random.default_rng(0)
    high, wide = windows.results(size, window, stride, around)
    shapes = (7, *size, 5), (*window, 5, 4), (7, high, wide, 4)
    x, kernel, dy = (rng.normal(size=shape).astype(np.float32) for shape in shapes)

    @jax.jit
    def found(x, kernel, dy):
        y = conv_tiny_images.forward(x, kernel, stride, around)
        dx = conv_tiny_images.image_gradient(dy, kernel, size, stride, around)
        return y, dx, conv_tiny_images.kernel_gradient(x, dy, window, stride, around)

    for a, b in zip(found(x, kernel, dy), windows.convolution(x, kernel, dy, stride, around), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max())
    assert found.lower(x, kernel, dy).as_text().count("stablehlo.dot_general") == 3 * products


def test_pays_where_padding_is_most_of_what_is_met():
    one, none = ((1, 1), (1, 1)), ((0, 0), (0, 0))
    assert [conv_tiny_images.pays((n, n), (3, 3), 1, one) for n in (1, 2, 3, 4, 32)] == [True, True, False, False, False]
    assert [conv_tiny_images.pays((n, n), (3, 3), 2, one) for n in (2, 4, 8)] == [True, True, False]
    assert not conv_tiny_images.pays((4, 4), (1, 1), 2, none)
    assert not conv_tiny_images.pays((3, 3), (3, 3), 1, none)
    assert [conv_tiny_images.pays(size, (3, 3), 1, none) for size in ((1, 1), (2, 2), (2, 5))] == [
        False,
        False,
        False,
    ]  # nothing comes out
