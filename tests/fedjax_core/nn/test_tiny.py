"""Convolutions of tiny images against loops over windows in float64."""

import jax
import numpy as np
import pytest

from fedjax_core.nn import tiny

CASES = [  # size, kernel, stride, around, products
    ((2, 2), (3, 3), 1, ((1, 1), (1, 1)), 16),
    ((1, 1), (3, 3), 1, ((1, 1), (1, 1)), 1),
    ((4, 4), (3, 3), 2, ((1, 1), (1, 1)), 25),
    ((2, 2), (3, 3), 2, ((1, 1), (1, 1)), 4),
    ((4, 1), (3, 2), 2, ((1, 0), (0, 1)), 5),
    ((1, 1), (3, 3), 1, ((2, 2), (2, 2)), 9),  # one that all of a kernel meets
]


def naive(x, kernel, dy, stride, around):
    """The convolution, and its gradients for x and the kernel, window by window."""
    (kh, kw), (top, left) = kernel.shape[:2], (ends[0] for ends in around)
    wide = np.pad(x.astype(np.float64), ((0, 0), *around, (0, 0)))
    y, dx, gradient = np.zeros(dy.shape), np.zeros(wide.shape), np.zeros(kernel.shape)
    for i in range(dy.shape[1]):
        for j in range(dy.shape[2]):
            here = np.s_[:, i * stride : i * stride + kh, j * stride : j * stride + kw]
            y[:, i, j] = np.einsum("bijc,ijco->bo", wide[here], kernel)
            dx[here] += np.einsum("bo,ijco->bijc", dy[:, i, j], kernel)
            gradient += np.einsum("bijc,bo->ijco", wide[here], dy[:, i, j])
    return y, dx[:, top : top + x.shape[1], left : left + x.shape[2]], gradient


@pytest.mark.parametrize(("size", "window", "stride", "around", "products"), CASES)
def test_equals_loops_over_windows(size, window, stride, around, products):
    rng = np.random.default_rng(0)
    high, wide = tiny._results(size, window, stride, around)
    shapes = (7, *size, 5), (*window, 5, 4), (7, high, wide, 4)
    x, kernel, dy = (rng.normal(size=shape).astype(np.float32) for shape in shapes)

    @jax.jit
    def found(x, kernel, dy):
        y = tiny.forward(x, kernel, stride, around)
        dx = tiny.image_gradient(dy, kernel, size, stride, around)
        return y, dx, tiny.kernel_gradient(x, dy, window, stride, around)

    for a, b in zip(found(x, kernel, dy), naive(x, kernel, dy, stride, around), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max())
    assert found.lower(x, kernel, dy).as_text().count("stablehlo.dot_general") == 3 * products


def test_pays_where_padding_is_most_of_what_is_met():
    one, none = ((1, 1), (1, 1)), ((0, 0), (0, 0))
    assert [tiny.pays((n, n), (3, 3), 1, one) for n in (1, 2, 3, 4, 32)] == [True, True, False, False, False]
    assert [tiny.pays((n, n), (3, 3), 2, one) for n in (2, 4, 8)] == [True, True, False]
    assert not tiny.pays((4, 4), (1, 1), 2, none)
    assert not tiny.pays((3, 3), (3, 3), 1, none)
    assert [tiny.pays(size, (3, 3), 1, none) for size in ((1, 1), (2, 2), (2, 5))] == [False, False, False]  # nothing comes out
