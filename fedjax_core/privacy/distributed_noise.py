"""Epsilon of sums of integers with noise that clients add, as secure aggregation computes them.

Kairouz, Liu, Steinke. The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation. ICML 2021.
Agarwal, Kairouz, Liu. The Skellam Mechanism for Differentially Private Federated Learning. NeurIPS
2021.

  paper         here            meaning
  gamma         step            granularity: a vector is rounded to multiples of it
  d             size            coordinates, padded to a power of two by the rotation
  n             clients         in a round; all come back
  beta          BETA            bias of conditional rounding
  Delta_1, _2   l1, l2          sensitivities of the rounded vectors, in steps
  mu            variance        of the noise on the sum, in squared steps
"""

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_core import option_types

Bits = Annotated[int, option_types.Limit("in [4, 24]", lambda v: 4 <= v <= 24)]  # float32 has so many exactly
BETA = math.exp(-0.5)  # rounding is repeated with at most this probability
WRAP_DEVIATIONS = 4.0  # k: deviations of a coordinate of the sum that the modulus leaves room for
ORDERS = tuple(range(2, 129)) + (160, 192, 256, 384, 512, 1024)  # the Skellam bound is for integers


class IntegerSum(NamedTuple):
    """The arithmetic of one round: rounding, noise and modulus.

    Attributes:
      noise: a key of `INTEGER_SUMS`.
      bits: b, of the modulus 2^b.
      clip: c, norm of a client's vector.
      multiplier: deviation of the noise on the sum over the clip.
      clients: n.
      parameters: coordinates before they are padded.
    """

    noise: str
    bits: int
    clip: float
    multiplier: float
    clients: int
    parameters: int

    @property
    def size(self) -> int:
        """d.

        >>> IntegerSum("skellam", 16, 1.0, 1.0, 10, parameters=5).size
        8
        """
        return 1 << max(0, self.parameters - 1).bit_length()

    @property
    def step(self) -> float:
        """gamma: the least with k deviations of a coordinate of the sum within the modulus.

        A rotated sum has coordinates of variance (n c)^2 / d, rounding adds n gamma^2 / 4 and the
        noise its own (ICML 2021, Section 4).

        Raises:
          ValueError: the modulus is too small for so many clients.
        """
        k = WRAP_DEVIATIONS
        room = 4 ** (self.bits - 1) - k**2 * self.clients / 4
        if room <= 0:
            raise ValueError(
                f"privacy.mechanism: bits={self.bits} is too few for the sum of {self.clients} clients; "
                f"take {math.floor(math.log2(k * math.sqrt(self.clients))) + 1} or more"
            )
        variance = (self.clients * self.clip) ** 2 / self.size + (self.multiplier * self.clip) ** 2
        return k * math.sqrt(variance / room)

    @property
    def variance(self) -> float:
        """mu: of the noise on the sum, in squared steps."""
        return (self.multiplier * self.clip / self.step) ** 2

    @property
    def l2(self) -> float:
        """Delta_2: norm of a rounded vector, which conditional rounding keeps (ICML 2021, Theorem 1)."""
        norm, root = self.clip / self.step, math.sqrt(self.size)
        likely = norm**2 + self.size / 4 + math.sqrt(2 * math.log(1 / BETA)) * (norm + root / 2)
        return min(math.sqrt(likely), norm + root)

    @property
    def l1(self) -> float:
        """Delta_1: integers are at most their squares."""
        return min(self.l2**2, self.l2 * math.sqrt(self.size))

    def renyi_divergences(self) -> np.ndarray:
        """Returns the bound at each of `ORDERS`, of one round."""
        orders = np.array(ORDERS, float)
        if self.noise == "skellam":  # NeurIPS 2021, Corollary 3.6
            excess = np.minimum(
                ((2 * orders - 1) * self.l2**2 + 6 * self.l1) / (4 * self.variance**2), 3 * self.l1 / (2 * self.variance)
            )
            return orders * self.l2**2 / (2 * self.variance) + excess
        tau, scaled = self.sum_distance(), self.l2 / math.sqrt(self.variance)  # ICML 2021, Theorem 2
        return np.minimum(orders / 2 * scaled**2 + tau * self.size, orders / 2 * (scaled + tau * math.sqrt(self.size)) ** 2)

    def sum_distance(self) -> float:
        """Returns tau: how far the sum of n discrete Gaussians is from a discrete Gaussian, a coordinate."""
        own = self.variance / self.clients
        k = np.arange(1, self.clients)
        return float(10 * np.sum(np.exp(-2 * math.pi**2 * own * k / (k + 1))))


def discrete_gaussian(clip: float, noise: float, cohort: int, parameters: int, *, bits: Bits = 16) -> IntegerSum:
    """Each client adds discrete Gaussian noise; their sum is close to one.

    Args:
      bits: a number of what a client sends has.
    """
    return IntegerSum("discrete_gaussian", bits, clip, noise, cohort, parameters)


def skellam(clip: float, noise: float, cohort: int, parameters: int, *, bits: Bits = 16) -> IntegerSum:
    """Each client adds the difference of two Poisson variables; their sum is one, too."""
    return IntegerSum("skellam", bits, clip, noise, cohort, parameters)


INTEGER_SUMS: dict[str, Callable[..., IntegerSum]] = {"discrete_gaussian": discrete_gaussian, "skellam": skellam}
