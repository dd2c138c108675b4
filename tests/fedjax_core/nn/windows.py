"""The oracle of convolutions: loops over windows in float64. Imports nothing of the library."""

import numpy as np


def padded(x, around):
    """[B, H, W, C] with so many rows and columns of zeros around, or less where a number is below 0."""
    x = np.pad(x, ((0, 0), *((max(low, 0), max(high, 0)) for low, high in around), (0, 0)))
    rows, columns = (slice(max(-low, 0), size - max(-high, 0)) for (low, high), size in zip(around, x.shape[1:3], strict=True))
    return x[:, rows, columns]


def results(size, window, stride, around):
    """Height and width of what comes out."""
    return tuple((n + sum(ends) - k) // stride + 1 for n, k, ends in zip(size, window, around, strict=True))


def convolution(x, kernel, dy, stride, around):
    """The convolution, and its gradients for x and the kernel, window by window."""
    kh, kw = kernel.shape[:2]
    whole, (x, kernel, dy) = x.shape, (part.astype(np.float64) for part in (x, kernel, dy))
    x = padded(x, around)
    y, dx, gradient = np.zeros(dy.shape), np.zeros(x.shape), np.zeros(kernel.shape)
    for i in range(dy.shape[1]):
        for j in range(dy.shape[2]):
            here = np.s_[:, i * stride : i * stride + kh, j * stride : j * stride + kw]
            y[:, i, j] = np.einsum("bijc,ijco->bo", x[here], kernel)
            dx[here] += np.einsum("bo,ijco->bijc", dy[:, i, j], kernel)
            gradient += np.einsum("bijc,bo->ijco", x[here], dy[:, i, j])
    dx = padded(dx, [(-low, -high) for low, high in around])
    assert dx.shape == whole
    return y, dx, gradient
