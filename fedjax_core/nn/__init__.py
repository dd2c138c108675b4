"""Networks: layers that are fast inside loops over clients, and modules as pure functions."""

from fedjax_core.nn import flax_adapter
from fedjax_core.nn.from_nnx import (
    FIXED_OPTIONS,
    MODULES,
    TEXT_MODULES,
    build,
    image_size,
    normalize_inputs,
)
from fedjax_core.nn.kernels import use_kernels
from fedjax_core.nn.kernels.conv import describe_conv
from fedjax_core.task import count_parameters

__all__ = [
    "FIXED_OPTIONS",
    "MODULES",
    "TEXT_MODULES",
    "build",
    "count_parameters",
    "describe_conv",
    "flax_adapter",
    "image_size",
    "normalize_inputs",
    "use_kernels",
]
