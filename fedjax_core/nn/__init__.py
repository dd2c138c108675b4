"""Networks: layers that are fast inside loops, and modules split into pure functions."""

from fedjax_core.nn import outside
from fedjax_core.nn.conv import describe
from fedjax_core.nn.model import FIXED, MODULES, TEXTS, build, count, from_module, image_size, normalise

__all__ = ["FIXED", "MODULES", "TEXTS", "build", "count", "describe", "from_module", "image_size", "normalise", "outside"]
