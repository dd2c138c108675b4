"""Inputs that a network would silently read as something else than its training examples are refused."""

import jax
import numpy as np
import pytest

from fedjax_core.engine import client_view

PIXELS = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)


@pytest.mark.parametrize(
    ("x", "dtype", "says"),
    [
        (
            PIXELS.astype(np.float32),
            "uint8",
            r"x has floats from 0 to 95: must be uint8 in 0 \.\.\. 255, as in training, or floats in",
        ),
        ((PIXELS / 255 - 0.5) / 0.05, "uint8", "x has floats from -10 to -2.54"),
        (PIXELS.astype(np.int64), "uint8", r"x is of int64: must be uint8, or floats in \[0, 1\]"),
        (PIXELS, "float32", "x is of uint8: must be floats, as in training; uint8 are pixels"),
        (PIXELS.transpose(0, 3, 1, 2), "uint8", r"x has the shape \(2, 3, 4, 4\): must be \[n, 4, 4, 3\], as the examples"),
        (PIXELS.reshape(2, -1), "uint8", r"x has the shape \(2, 48\): must be \[n, 4, 4, 3\]"),
        (PIXELS[0], "uint8", r"x has the shape \(4, 4, 3\) of one example"),
        (PIXELS.tolist(), "uint8", r"x is a list: must be an array \[n, 4, 4, 3\] of NumPy or JAX"),
    ],
)
def test_other_inputs_than_those_of_training_are_refused(x, dtype, says):
    with pytest.raises(ValueError, match=says):
        client_view.check_inputs(x, (4, 4, 3), dtype)


def test_inputs_from_which_the_offset_was_not_subtracted_are_refused():
    """In float32 they would all be the same number, far from what the network has seen."""
    offset, x = np.array([0.0, 1.7e9]), np.array([[1.0, 1.7e9 - 30], [2.0, 1.7e9 + 40]])
    with pytest.raises(ValueError, match=r"x\[..., 1\] is near 1700000005: must be less its offset in training, 1700000000; pass"):
        client_view.check_inputs(x, (2,), "float32", offset)
    client_view.check_inputs((x - offset).astype(np.float32), (2,), "float32", offset)
    client_view.check_inputs(x, (2,), "float32")


def test_inputs_that_mean_the_same_are_taken():
    for x in (PIXELS, PIXELS / 255, jax.numpy.asarray(PIXELS), PIXELS[:0] / 255, PIXELS / 255 + 0.1):
        client_view.check_inputs(x, (4, 4, 3), "uint8")
    for dtype in (np.float32, np.float64, np.int64):
        client_view.check_inputs(PIXELS.astype(dtype), (4, 4, 3), "float32")
    client_view.check_inputs(np.zeros((2, 7), np.int32), (5,), "int32")  # texts of another length
    client_view.check_inputs(PIXELS.astype(np.float32), (4, 4, 3), None)
    jax.eval_shape(lambda x: client_view.check_inputs(x, (4, 4, 3), "uint8"), jax.ShapeDtypeStruct((2, 4, 4, 3), "float32"))
