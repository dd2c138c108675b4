"""How similar two images are."""

import numpy as np

_WINDOW, _K1, _K2 = 1.5, 0.01, 0.03  # deviation of the Gaussian window, and the constants of SSIM


def peak_signal_to_noise(image: np.ndarray, other: np.ndarray, span: float) -> float:
    """Returns PSNR in decibels of images whose values span `span`; infinite if they are equal."""
    error = float(np.mean((np.asarray(image, float) - np.asarray(other, float)) ** 2))
    return float("inf") if error == 0 else 10 * np.log10(span**2 / error)


def structural_similarity(image: np.ndarray, other: np.ndarray, span: float) -> float:
    """Returns SSIM of images [H, W, C], mean over pixels and channels.

    Wang, Bovik, Sheikh, Simoncelli. Image Quality Assessment. IEEE TIP 2004: Gaussian windows of
    deviation 1.5, moments without a correction for samples.
    """
    from scipy.ndimage import gaussian_filter

    a, b = np.asarray(image, float), np.asarray(other, float)

    def smooth(x: np.ndarray) -> np.ndarray:
        return gaussian_filter(x, (_WINDOW, _WINDOW, 0), truncate=3.5)

    mean_a, mean_b = smooth(a), smooth(b)
    variance_a, variance_b = smooth(a * a) - mean_a**2, smooth(b * b) - mean_b**2
    covariance = smooth(a * b) - mean_a * mean_b
    c1, c2 = (_K1 * span) ** 2, (_K2 * span) ** 2
    ratio = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    return float(np.mean(ratio / ((mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2))))
