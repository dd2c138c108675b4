"""Primitives of a function that is bilinear in two arrays, such as a convolution, and of its two transposes."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Array = jax.Array
PARTS = ("forward", "for_x", "for_kernel")


def join_batch(run: Callable[[Array], Array], x: Array, axis: int) -> Array:
    """Returns `run`, a function of examples [B, ...], under a `vmap` over an axis of x, whose entries join B; [axis, B, ...]."""
    x = jnp.moveaxis(x, axis, 0)
    size, images = x.shape[:2]
    joined = run(x.reshape(size * images, *x.shape[2:]))
    return joined.reshape(size, images, *joined.shape[1:])


def make_primitives(
    name: str, compute: Callable[..., Array], find_shape: Callable[..., tuple[int, ...]]
) -> tuple[Primitive, Primitive, Primitive]:
    """Returns the primitives of (x, kernel) -> y, (dy, kernel) -> dx and (x, dy) -> dkernel, named by `PARTS`.

    The transposes of each are the other two, so derivatives of any order and mode are made of these three.

    Args:
      name: without the prefix "fedjax_", by which `flop_count` knows a primitive whose `impl` is its program.
      compute: (part, first, second, vmapped=False, **params) -> the part's result. Under a `vmap` over the second array, and
        of "for_kernel" under any, it is called with vmapped=True, within the `vmap`. Under one over the first alone, the
        entries join its batch.
      find_shape: (part, first, second, **params) -> shape of the result; arrays are abstract.
    """

    def make(part: str) -> Primitive:
        primitive = Primitive(f"fedjax_{name}_{part}")
        run = functools.partial(compute, part)

        def batch(args: tuple[Array, Array], dims: tuple[int | None, int | None], **params) -> tuple[Array, int]:
            if dims[1] is not None or part == "for_kernel":
                return jax.vmap(functools.partial(run, vmapped=True, **params), dims)(*args), 0
            return join_batch(lambda first: primitive.bind(first, args[1], **params), args[0], dims[0] or 0), 0

        primitive.def_impl(run)
        primitive.def_abstract_eval(lambda *given, **params: ShapedArray(find_shape(part, *given, **params), given[0].dtype))
        batching.primitive_batchers[primitive] = batch
        mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=False))
        return primitive

    forward, for_x, for_kernel = map(make, PARTS)
    ad.defbilinear(
        forward, lambda dy, _, kernel, **p: for_x.bind(dy, kernel, **p), lambda dy, x, _, **p: for_kernel.bind(x, dy, **p)
    )
    ad.defbilinear(
        for_x, lambda dx, _, kernel, **p: forward.bind(dx, kernel, **p), lambda dx, dy, _, **p: for_kernel.bind(dx, dy, **p)
    )
    ad.defbilinear(for_kernel, lambda dk, _, dy, **p: for_x.bind(dy, dk, **p), lambda dk, x, _, **p: forward.bind(x, dk, **p))
    return forward, for_x, for_kernel
