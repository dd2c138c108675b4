"""Winograd's products against loops over windows in float64."""

import jax
import numpy as np
import pytest

from fedjax_core.nn import winograd

CASES = [
    ((6, 8), ((1, 1), (1, 1))),
    ((5, 7), ((1, 1), (1, 1))),
    ((5, 6), ((0, 0), (0, 0))),
    ((4, 4), ((2, 0), (0, 3))),
    ((9, 8), ((-1, 2), (1, -2))),
]


def padded(x, around):
    x = np.pad(x, ((0, 0), *((max(low, 0), max(high, 0)) for low, high in around), (0, 0)))
    rows, columns = (slice(max(-low, 0), size - max(-high, 0)) for (low, high), size in zip(around, x.shape[1:3], strict=True))
    return x[:, rows, columns]


def naive(x, kernel, dy, around):
    """The convolution, and its gradients for the kernel and for x, window by window."""
    whole, x, kernel = x.shape, padded(x.astype(np.float64), around), kernel.astype(np.float64)
    y, dx, gradient = np.zeros(dy.shape), np.zeros(x.shape), np.zeros(kernel.shape)
    for i in range(dy.shape[1]):
        for j in range(dy.shape[2]):
            here = np.s_[:, i : i + 3, j : j + 3]
            y[:, i, j] = np.einsum("bijc,ijco->bo", x[here], kernel)
            dx[here] += np.einsum("bo,ijco->bijc", dy[:, i, j].astype(np.float64), kernel)
            gradient += np.einsum("bijc,bo->ijco", x[here], dy[:, i, j].astype(np.float64))
    dx = padded(dx, [(-low, -high) for low, high in around])
    assert dx.shape == whole
    return y, gradient, dx


@pytest.mark.parametrize("block", [1, 200, 10**6])  # one image after another, blocks with a rest, all
@pytest.mark.parametrize(("size", "around"), CASES)
def test_equals_loops_over_windows(size, around, block, monkeypatch):
    monkeypatch.setattr(winograd, "BLOCK", block)
    rng = np.random.default_rng(0)
    high, wide = (n + sum(ends) - 2 for n, ends in zip(size, around, strict=True))
    x, kernel, dy = (rng.normal(size=shape).astype(np.float32) for shape in ((7, *size, 5), (3, 3, 5, 4), (7, high, wide, 4)))

    @jax.jit
    def found(x, kernel, dy):
        gradients = winograd.kernel_gradient(x, dy, around), winograd.image_gradient(dy, kernel, around)
        return winograd.forward(x, kernel, around), *gradients

    for a, b in zip(found(x, kernel, dy), naive(x, kernel, dy, around), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max())


def test_images_of_a_block():
    found = {count: winograd._images(count, 8, 8, 128) for count in (1, 10, 96, 97, 100)}
    assert found == {1: 1, 10: 10, 96: 48, 97: 33, 100: 25}  # at most 96 * 1024 / (4 * 4 * 128) = 48; 97 is a prime
