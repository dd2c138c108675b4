"""Winograd's products against loops over windows in float64."""

import jax
import numpy as np
import pytest

from fedjax_core.nn.kernels import winograd
from tests.fedjax_core.nn import windows

CASES = [
    ((6, 8), ((1, 1), (1, 1))),
    ((5, 7), ((1, 1), (1, 1))),
    ((5, 6), ((0, 0), (0, 0))),
    ((4, 4), ((2, 0), (0, 3))),
    ((9, 8), ((-1, 2), (1, -2))),
]


@pytest.mark.parametrize(
    ("size", "around", "block"),  # one image after another, blocks with a rest, all
    [(*CASES[0], 1), (*CASES[0], 200), (*CASES[1], 10**6), *((*case, 200) for case in CASES[2:])],
)
def test_equals_loops_over_windows(size, around, block, monkeypatch):
    monkeypatch.setattr(winograd, "BLOCK", block)
    rng = np.random.default_rng(0)
    high, wide = windows.results(size, (3, 3), 1, around)
    x, kernel, dy = (rng.normal(size=shape).astype(np.float32) for shape in ((7, *size, 5), (3, 3, 5, 4), (7, high, wide, 4)))

    @jax.jit
    def found(x, kernel, dy):
        gradients = winograd.image_gradient(dy, kernel, around), winograd.kernel_gradient(x, dy, around)
        return winograd.forward(x, kernel, around), *gradients

    for a, b in zip(found(x, kernel, dy), windows.convolution(x, kernel, dy, 1, around), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max())


def test_images_of_a_block():
    found = {count: winograd._images(count, 8, 8, 128) for count in (1, 10, 96, 97, 100)}
    assert found == {1: 1, 10: 10, 96: 48, 97: 33, 100: 25}  # at most 96 * 1024 / (4 * 4 * 128) = 48; 97 is a prime
