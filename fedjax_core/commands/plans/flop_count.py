"""Floating-point operations of a traced program: those of matrix products and convolutions, with loops multiplied out.

A compiler's own count has a loop's body once, and other operations beside. Here a product of [M, K] and [K, N] has 2 M K N, and a
convolution two for each entry of the kernel that an output sees, padding included, zeros between a dilated input's entries not.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr

Trips = Callable[[str], float | None]  # name of a loop -> how often it runs, if that is known


def count(traced: Any, trips: Trips) -> float:
    """FLOP of one call on one device. The loop of rounds, which has no name of its own, runs once.

    Args:
      traced: a jaxpr.
      trips: of loops whose number of steps is no constant; others of that kind count once.
    """
    return _of(traced.jaxpr if isinstance(traced, ClosedJaxpr) else traced, trips)


def _of(jaxpr: Jaxpr, trips: Trips) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            total += _product(equation)
        elif name == "conv_general_dilated":
            total += _convolution(equation)
        elif name == "scan":
            total += params["length"] * _of(params["jaxpr"].jaxpr, trips)
        elif name == "while":
            number = trips(str(equation.source_info.name_stack))
            total += (1 if number is None else number) * _of(params["body_jaxpr"].jaxpr, trips)
        elif name == "cond":
            total += max(_of(branch.jaxpr, trips) for branch in params["branches"])
        else:
            total += sum(_of(inner, trips) for inner in _inside(params))
    return total


def _inside(params: dict[str, Any]) -> Iterator[Jaxpr]:
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, Jaxpr):
                yield one


def _product(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return 2.0 * math.prod(out) * math.prod(left[axis] for axis in contracted)


def _convolution(equation: Any) -> float:
    spec = equation.params["dimension_numbers"].rhs_spec  # of the kernel: its outputs, its inputs, height and width
    kernel, out = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
    seen = math.prod(kernel[axis] for axis in spec[1:])
    return 2.0 * math.prod(out) * seen / math.prod(equation.params["lhs_dilation"])
