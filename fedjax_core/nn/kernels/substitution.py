"""Runs a function, such as a network of one's own, by the kernels in place of XLA's operations."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive, jaxpr_as_fun

from fedjax_core.nn.kernels import are_kernels_enabled, conv, conv_general
from fedjax_core.nn.kernels.pool import MAX_POOL

MOST = 64  # entries of a kernel or a window: each is an operation of the program
_LEVELS = ("default", "fastest", "bfloat16", "high", "tensorfloat32", "bfloat16_3x", "highest", "float32")
_WITH_PROGRAMS = ("jit", "pjit", "checkpoint", "remat2", "scan", "while", "cond")


def substitute_kernels(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that computes the same of finite numbers, up to rounding, with these kernels in its program.

    They take the place of convolutions of [B, ..., C] by [..., C / groups, O] and of max-pools of [B, H, W, C] with square
    windows, also inside loops, branches, `jit` and `jax.checkpoint`. Others stay: kernels and windows of more than 64 entries,
    channels first, a precision of their own, results without entries, symbolic shapes.

    Args:
      function: of pytrees of arrays.
    """

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        if not are_kernels_enabled():
            return function(*args)
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        results = jaxpr_as_fun(_substitute(program, {}))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


def _substitute(program: Any, known: dict[int, Any]) -> Any:
    """Returns a Jaxpr or ClosedJaxpr with kernels; the same object if it has no place for one.

    Args:
      known: results by the id of their programs, which are lowered once if they are called several times.
    """
    if id(program) in known:
        return known[id(program)]
    inner = getattr(program, "jaxpr", program)  # of a closed one; from jax 0.12 on the two are one
    if inner is not program:
        new = _substitute(inner, known)
        result = program if new is inner else program.replace(jaxpr=new)
    else:
        equations = [_substitute_equation(equation, known) for equation in program.eqns]
        is_same = all(new is old for new, old in zip(equations, program.eqns, strict=True))
        result = program if is_same else program.replace(eqns=equations)
    known[id(program)] = result
    return result


def _substitute_equation(equation: JaxprEqn, known: dict[int, Any]) -> JaxprEqn:
    name = equation.primitive.name
    if name in _FIND:
        found = _FIND[name](equation) if _has_entries(equation) else None
        return equation if found is None else equation.replace(primitive=found[0], params=found[1])
    if name not in _WITH_PROGRAMS:
        return equation
    params = {key: _substitute_param(value, known) for key, value in equation.params.items()}
    return equation if params == equation.params else equation.replace(params=params)


def _substitute_param(value: Any, known: dict[int, Any]) -> Any:
    if isinstance(value, Jaxpr | ClosedJaxpr):
        return _substitute(value, known)
    is_branches = isinstance(value, tuple) and any(isinstance(item, Jaxpr | ClosedJaxpr) for item in value)
    return tuple(_substitute_param(item, known) for item in value) if is_branches else value


def _has_entries(equation: JaxprEqn) -> bool:
    """Returns whether operands and result have known shapes, with entries for each example."""
    x, *others = _find_operands(equation)
    result: Any = equation.outvars[0].aval
    sizes = [*x.shape[1:], *result.shape[1:], *(size for operand in others for size in operand.shape)]
    return all(isinstance(size, int) and size > 0 for size in sizes) and isinstance(x.shape[0], int)


def _find_conv(equation: JaxprEqn) -> tuple[Primitive, dict[str, Any]] | None:
    """Returns the kernel of a convolution and its parameters; None: there is none."""
    x, kernel = _find_operands(equation)
    given = equation.params
    has_kernel = (
        given["dimension_numbers"] == conv_general.make_layout(x.ndim)
        and given["batch_group_count"] == 1
        and jnp.issubdtype(x.dtype, jnp.floating)
        and (given["preferred_element_type"] is None or given["preferred_element_type"] == x.dtype)
        and _is_default_precision(given["precision"])
    )
    if not has_kernel or math.prod(kernel.shape[:-2]) > MOST:
        return None
    strides, around = given["window_strides"], tuple(map(tuple, given["padding"]))
    dilations, groups = (given["lhs_dilation"], given["rhs_dilation"]), given["feature_group_count"]
    if x.ndim in (3, 4) and {1} == {*dilations[0], *dilations[1], groups} and len({*strides}) == 1 and min(map(min, around)) >= 0:
        return conv.FORWARD, conv.make_params(x.shape[1:-1], kernel.shape[:-2], strides[0], around)
    geometry = conv_general.Geometry(x.shape[1:], kernel.shape, strides, around, *dilations, groups)
    return conv_general.FORWARD, {"geometry": geometry, "backend": conv.describe_conv()["backend"]}


def _find_operands(equation: JaxprEqn) -> list[Any]:
    """Returns the abstract values of an equation's operands, which are arrays."""
    return [atom.aval for atom in equation.invars]


def _is_default_precision(precision: Any) -> bool:
    """Returns whether a convolution's precision is the configured one, which kernels have."""
    config: Any = jax.config
    default = config.jax_default_matmul_precision
    is_level = isinstance(precision, tuple) and default in _LEVELS  # else the name of an algorithm
    return precision is None or (is_level and {*precision} == {lax.Precision(default)})


def _find_max_pool(equation: JaxprEqn) -> tuple[Primitive, dict[str, Any]] | None:
    """Returns the kernel of a max-pool and its parameters; None: there is none."""
    (x,), given = _find_operands(equation), equation.params
    window, strides, padding = given["window_dimensions"], given["window_strides"], given["padding"]
    has_kernel = (
        x.ndim == 4
        and {1} == {*given["base_dilation"], *given["window_dilation"], window[0], window[3], strides[0], strides[3]}
        and window[1] == window[2]
        and window[1] ** 2 <= MOST
        and strides[1] == strides[2]
        and not any((*padding[0], *padding[3]))
        and min(map(min, padding)) >= 0
        and jnp.issubdtype(x.dtype, jnp.floating)
    )
    around = (tuple(padding[1]), tuple(padding[2]))
    return (MAX_POOL, {"window": window[1], "stride": strides[1], "around": around}) if has_kernel else None


_FIND = {"conv_general_dilated": _find_conv, "reduce_window_max": _find_max_pool}
