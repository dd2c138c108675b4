"""Counts the FLOP of matrix products and convolutions in a traced program, with loops multiplied out.

A compiler's own count of FLOP has a loop's body once. A product of [M, K] and [K, N] has 2 M K N,
and a convolution two for each entry of the kernel that an output sees, padding included, zeros
between a dilated input's entries not.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

OWN = "fedjax_"  # begins the names of primitives of this library (`nn/kernels/conv.py`), whose `impl` is their program
Trips = Callable[[str], float | None]  # name of a loop -> how often it runs, if that is known


def count_flops(traced: Any, trips: Trips) -> float:
    """Counts the FLOP of one call on one device. The loop of rounds, which has no name, counts once.

    Args:
      traced: a jaxpr.
      trips: of loops whose number of steps is no constant; others of that kind count once.
    """
    return _count(traced.jaxpr if isinstance(traced, ClosedJaxpr) else traced, trips)


def _count(jaxpr: Jaxpr, trips: Trips) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            total += _count_product(equation)
        elif name == "conv_general_dilated":
            total += _count_convolution(equation)
        elif name == "scan":
            total += params["length"] * _count(params["jaxpr"].jaxpr, trips)
        elif name == "while":
            number = trips(str(equation.source_info.name_stack))
            total += (1 if number is None else number) * _count(params["body_jaxpr"].jaxpr, trips)
        elif name == "cond":
            total += max(_count(branch.jaxpr, trips) for branch in params["branches"])
        else:
            total += sum(_count(inner, trips) for inner in inner_jaxprs(equation))
    return total


def inner_jaxprs(equation: Any) -> list[Jaxpr]:
    """Returns the jaxprs that an equation has among its parameters; of this library's primitives their program."""
    if equation.primitive.name.startswith(OWN):
        run = functools.partial(equation.primitive.impl, **equation.params)
        return [jax.make_jaxpr(run)(*(atom.aval for atom in equation.invars)).jaxpr]
    values = [item for value in equation.params.values() for item in (value if isinstance(value, tuple | list) else (value,))]
    return [value.jaxpr if isinstance(value, ClosedJaxpr) else value for value in values if isinstance(value, ClosedJaxpr | Jaxpr)]


def _count_product(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return 2.0 * math.prod(out) * math.prod(left[axis] for axis in contracted)


def _count_convolution(equation: Any) -> float:
    spec = equation.params["dimension_numbers"].rhs_spec  # of the kernel: its outputs, its inputs, height and width
    kernel, out = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
    seen = math.prod(kernel[axis] for axis in spec[1:])
    return 2.0 * math.prod(out) * seen / math.prod(equation.params["lhs_dilation"])
