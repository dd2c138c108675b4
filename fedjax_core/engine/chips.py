"""Accelerators as their makers describe them: how fast at best, and how much memory."""

from typing import Any, NamedTuple

_TPU, _NVIDIA = "https://docs.cloud.google.com/tpu/docs", "https://www.nvidia.com/en-us/data-center"


class Chip(NamedTuple):
    """One device as jax counts them: of TPU v2 and v3 a half of a chip.

    Attributes:
      flops: dense FLOP/s of bfloat16 matrix products, at most. On a TPU products of float32 are of that kind unless a precision is
        asked for; on a GPU they are slower.
      bandwidth: bytes/s between the device and its memory, at most.
      memory: bytes that programs can have, as the compiler counts them; of GPUs the published size.
      source: of flops and bandwidth.
    """

    flops: float
    bandwidth: float
    memory: int
    source: str


def _gib(size: float) -> int:
    return int(size * 2**30)


CHIPS = {  # by `device.device_kind`
    "TPU v2": Chip(23e12, 350e9, _gib(7.48), f"{_TPU}/v2"),
    "TPU v3": Chip(61.5e12, 450e9, _gib(15.48), f"{_TPU}/v3"),
    "TPU v4": Chip(275e12, 1200e9, _gib(30.75), f"{_TPU}/v4"),
    "TPU v5 lite": Chip(197e12, 819e9, _gib(15.75), f"{_TPU}/v5e"),
    "TPU v5": Chip(459e12, 2765e9, _gib(95.73), f"{_TPU}/v5p"),
    "TPU v6 lite": Chip(918e12, 1638e9, _gib(31.24), f"{_TPU}/v6e"),
    "NVIDIA A100-SXM4-40GB": Chip(312e12, 1555e9, 40 * 10**9, f"{_NVIDIA}/a100"),
    "NVIDIA A100-SXM4-80GB": Chip(312e12, 2039e9, 80 * 10**9, f"{_NVIDIA}/a100"),
    "NVIDIA H100 80GB HBM3": Chip(989e12, 3350e9, 80 * 10**9, f"{_NVIDIA}/h100"),
    "NVIDIA H200": Chip(989e12, 4800e9, 141 * 10**9, f"{_NVIDIA}/h200"),
}


def of(device: Any) -> Chip | None:
    """What is published of a device; None of one that is not in the table, such as a CPU."""
    return CHIPS.get(device.device_kind)
