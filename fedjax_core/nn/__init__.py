"""Networks: layers that are fast inside loops over clients, and modules as pure functions."""

from fedjax_core.nn import flax_adapter
from fedjax_core.nn.from_nnx import FIXED, MODULES, TEXTS, build, count, from_module, image_size, normalise
from fedjax_core.nn.kernels import use_kernels
from fedjax_core.nn.kernels.conv import describe

__all__ = [
    "FIXED",
    "MODULES",
    "TEXTS",
    "build",
    "count",
    "describe",
    "flax_adapter",
    "from_module",
    "image_size",
    "normalise",
    "use_kernels",
]
