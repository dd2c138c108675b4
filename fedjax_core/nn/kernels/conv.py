"""Convolution that is fast inside loops over clients and under `vmap`, with its gradients."""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray

from fedjax_core import registry
from fedjax_core.nn.kernels import are_kernels_enabled, bilinear, conv_few_channels, conv_tiny_images, winograd
from fedjax_core.nn.kernels.conv_general import make_layout
from fedjax_core.nn.kernels.conv_tiny_images import Around, Size

Array = jax.Array
Padding = str | int | Around

FORMS = ("auto", "native", "patches", "canonical")
IMAGES = 4  # of a block in a kernel's gradient: the numbers in the smallest vector register
WIDE = 32  # channels: minimum of outputs whose blocks are fast
_DIMENSIONS = ("NHWC", "HWIO", "NHWC")
_backend: contextvars.ContextVar[str | None] = contextvars.ContextVar("backend", default=None)


@contextlib.contextmanager
def tracing_for(backend: str) -> Iterator[None]:
    """Traces for another backend than jax's default: "cpu", "gpu" or "tpu"."""
    token = _backend.set(backend)
    try:
        yield
    finally:
        _backend.reset(token)


def _current_backend() -> str:
    return _backend.get() or jax.default_backend()


def describe_conv(form: str = "auto") -> dict[str, str]:
    """Resolves a form of convolution, and "auto" in particular; runs record the result.

    On CPUs "canonical" was fastest inside loops (step time relative to patches: CNN 0.8, ResNet-8
    0.6). Other backends use the native form, without measurements yet. Kernels that differ within a
    `vmap` become batched matrix products on every backend.

    Returns:
      {"form", "backend": that of `tracing_for`, else jax's default, "alone": form of a single
      convolution, "vmapped": form under a `vmap` over kernels}. With kernels turned off
      (`use_kernels`) both forms are "native".
    """
    registry.check_choice("convolution form", form, FORMS)
    backend = _current_backend()
    if not are_kernels_enabled():
        return {"form": form, "backend": backend, "alone": "native", "vmapped": "native"}
    if form != "auto":
        return {"form": form, "backend": backend, "alone": form, "vmapped": form}
    alone = "canonical" if backend == "cpu" else "native"
    return {"form": form, "backend": backend, "alone": alone, "vmapped": "patches"}


def conv(x: Array, kernel: Array, stride: int = 1, padding: Padding = "SAME", form: str = "auto") -> Array:
    """Returns a 2-d convolution (cross-correlation), as `lax.conv_general_dilated` up to rounding.

    Args:
      x: [B, H, W, C].
      kernel: [kh, kw, C, O].
      padding: see `resolve_padding`.
      form: "native": as `lax` does. "patches": windows side by side, times a matrix. "canonical":
        `lax` forward, gradients by canonical convolutions and matrix products; on CPUs `winograd`,
        `conv_tiny_images` and `conv_few_channels` where they are faster. "auto": see
        `describe_conv`. All have derivatives of any order.

    Returns:
      [B, H', W', O].

    Raises:
      ValueError: unknown `form` or `padding`.
    """
    around = resolve_padding(x.shape[1:3], kernel.shape[:2], stride, padding)
    describe_conv(form)  # raises for an unknown form
    if not are_kernels_enabled():
        return _native(x, kernel, stride, around)
    if form in ("native", "patches"):
        return _FORMS[form].forward(x, kernel, stride, around)
    return FORWARD.bind(x, kernel, **make_params(x.shape[1:3], kernel.shape[:2], stride, around, form))


def resolve_padding(size: tuple[int, ...], kernel: tuple[int, ...], stride: int, padding: Padding) -> Around:
    """Resolves padding to rows and columns around an image: ((top, bottom), (left, right)).

    `padding` is "SAME" (as `lax` and TensorFlow), "VALID", one number for all sides (as PyTorch),
    or both pairs; raises ValueError for another one.
    """
    if isinstance(padding, int):
        return ((padding, padding), (padding, padding))
    if isinstance(padding, str):
        if padding not in ("SAME", "VALID"):
            raise ValueError(f"unknown padding {padding!r}; use 'SAME', 'VALID', a number or ((top, bottom), (left, right))")
        rows, columns = lax.padtype_to_pads(size, kernel, (stride, stride), padding)
        return (rows, columns)
    return padding


def extract_windows(x: Array, kernel: tuple[int, int], stride: int, around: Around, fill: float = 0.0) -> list[Array]:
    """Extracts what each entry of a kernel is multiplied with, from an image padded with `fill`.

    Returns:
      kh * kw arrays [B, H', W', C] of x [B, H, W, C], row by row of the kernel.
    """
    x = lax.pad(x, jnp.asarray(fill, x.dtype), ((0, 0, 0), *((low, high, 0) for low, high in around), (0, 0, 0)))
    b, h, w, c = x.shape
    kh, kw = kernel
    out_h, out_w = (h - kh) // stride * stride + 1, (w - kw) // stride * stride + 1
    return [lax.slice(x, (0, i, j, 0), (b, i + out_h, j + out_w, c), (1, stride, stride, 1)) for i in range(kh) for j in range(kw)]


def scatter_windows(parts: list[Array], shape: tuple[int, ...], kernel: tuple[int, int], stride: int, around: Around) -> Array:
    """Adds windows back to an image of a shape [B, H, W, C]; the transpose of `extract_windows`."""
    total, (out_h, out_w) = jnp.zeros((), parts[0].dtype), parts[0].shape[1:3]
    for n, part in enumerate(parts):
        rows = n // kernel[1] - around[0][0]
        columns = n % kernel[1] - around[1][0]
        ends = (shape[1] - rows - (out_h - 1) * stride - 1, shape[2] - columns - (out_w - 1) * stride - 1)
        config = ((0, 0, 0), (rows, ends[0], stride - 1), (columns, ends[1], stride - 1), (0, 0, 0))
        total = total + lax.pad(part, jnp.zeros((), part.dtype), config)
    return total


def _native(x: Array, kernel: Array, stride: int, around: Around) -> Array:
    """Convolves over as many axes as `around` has pairs."""
    return lax.conv_general_dilated(x, kernel, (stride,) * len(around), around, dimension_numbers=make_layout(x.ndim))


def _patches(x: Array, kernel: Array, stride: int, around: Around) -> Array:
    kh, kw, c, o = kernel.shape
    if kh == kw == 1:
        return extract_windows(x, (1, 1), stride, around)[0] @ kernel[0, 0]
    seen = jnp.stack(extract_windows(x, (kh, kw), stride, around), -2)
    return seen.reshape(*seen.shape[:3], kh * kw * c) @ kernel.reshape(kh * kw * c, o)


def _canonical(x: Array, kernel: Array, stride: int, around: Around) -> Array:
    """Convolves by the fastest kernel for the shapes, else as `lax` does.

    For images smaller than the kernel in both directions patches are 30 to 100 times faster on
    XLA:CPU.
    """
    if _tiny(x.dtype, x.shape[1:3], kernel.shape[:2], stride, around):
        return conv_tiny_images.forward(x, kernel, stride, around)
    if stride == 1 and _fewer_products(x, kernel.shape):
        return winograd.forward(x, kernel, around)
    if conv_few_channels.pays(x.shape[1:3], kernel.shape, stride, around) and _float32_on_cpu(x.dtype):
        return conv_few_channels.forward(x, kernel, stride, around)
    smaller = x.shape[1] < kernel.shape[0] and x.shape[2] < kernel.shape[1]
    return (_patches if smaller else _native)(x, kernel, stride, around)


def _canonical_x(dy: Array, kernel: Array, size: Size, stride: int, around: Around) -> Array:
    """Returns the gradient for images of the given size.

    With stride 1 it is a convolution of dy by the flipped kernel. With a larger stride that
    convolution would run over the dilated dy, which is mostly zeros; instead there is one matrix
    product for each entry of the kernel.
    """
    kh, kw, c, _ = kernel.shape
    if _tiny(dy.dtype, size, (kh, kw), stride, around):
        return conv_tiny_images.image_gradient(dy, kernel, size, stride, around)
    if stride > 1:
        parts = [dy @ kernel[i, j].T for i in range(kh) for j in range(kw)]
        return scatter_windows(parts, (len(dy), *size, c), (kh, kw), stride, around)
    if _fewer_products(dy, kernel.shape):
        return winograd.image_gradient(dy, kernel, around)
    (top, bottom), (left, right) = around
    back = ((kh - 1 - top, kh - 1 - bottom), (kw - 1 - left, kw - 1 - right))
    return _canonical(dy, kernel[::-1, ::-1].swapaxes(2, 3), 1, back)


def _canonical_kernel(x: Array, dy: Array, size: Size, stride: int, around: Around) -> Array:
    """Returns the gradient for a kernel of the given size.

    By Winograd's products or convolutions of blocks of images where these are faster (1.2 to 2
    times on cores with AVX-512), else by matrix products.
    """
    c, o = x.shape[-1], dy.shape[-1]
    if _tiny(x.dtype, x.shape[1:3], size, stride, around):
        return conv_tiny_images.kernel_gradient(x, dy, size, stride, around)
    if stride == 1 and _fewer_products(dy, (*size, c, o)):
        return winograd.kernel_gradient(x, dy, around)
    if conv_few_channels.kernel_gradient_pays(x.shape[1:3], (*size, c, o), stride, around) and _float32_on_cpu(x.dtype):
        return conv_few_channels.kernel_gradient(x, dy, size, around)
    if min(dy.shape[1:3]) >= 4 and len(x) > 0 and _current_backend() == "cpu" and _blocks_pay(dy.shape, (*size, c), stride):
        dy = jnp.pad(dy, ((0, 0), (0, 0), (0, 0), (0, max(0, WIDE - o))))
        return _kernel_of_blocks(x, dy, size, stride, around)[..., :o]
    return _kernel_of_windows(x, dy, size, stride, around)


def _blocks_pay(result: Size, kernel: Size, stride: int) -> bool:
    """Returns whether a kernel's gradient is faster by blocks, up to four times, with zeros up to `WIDE` outputs.

    XLA:CPU convolves to as many outputs in half the time of 16. As measured inside loops, on a core with AVX-512.

    Args:
      result: the shape of the convolution's result, [B, H', W', O].
      kernel: the kernel's, [kh, kw, C].
      stride: of the convolution.
    """
    (kh, kw, inputs), outputs, places = kernel, result[3], math.prod(result[:3])
    is_wide = outputs >= WIDE and kh * kw * inputs * outputs >= 1600
    if min(kh, kw) == 1:
        return is_wide and kh * kw > 1
    if min(kh, kw) >= conv_few_channels.LARGE and (stride > 1 or outputs >= conv_few_channels.CHANNELS):
        return True
    if is_wide or outputs < WIDE <= inputs:
        return True
    if stride > 1:
        return False
    if inputs < 3:
        return outputs >= WIDE and places >= 16_000
    if inputs < conv_few_channels.CHANNELS:
        return places >= 2_000
    return places >= (6_000 if outputs >= 20 else 60_000)


def _tiny(dtype: jnp.dtype, image: Size, kernel: Size, stride: int, around: Around) -> bool:
    """Returns whether `conv_tiny_images` is faster."""
    return conv_tiny_images.pays(image, kernel, stride, around) and _float32_on_cpu(dtype)


def _fewer_products(image: Array, kernel: Size) -> bool:
    """Returns whether `winograd` is faster with stride 1: 3x3, 32 channels and more, images of 4x4 and more."""
    fits = kernel[:2] == (3, 3) and min(kernel[2:]) >= 32 and min(image.shape[1:3]) >= 4 and len(image) > 0
    return fits and _float32_on_cpu(image.dtype)


def _float32_on_cpu(dtype: jnp.dtype) -> bool:
    """Returns whether dtype and backend are those that the special kernels were measured on."""
    return dtype == jnp.float32 and _current_backend() == "cpu"


def _kernel_of_blocks(x: Array, dy: Array, size: Size, stride: int, around: Around) -> Array:
    """Returns the gradient as a sum over blocks of images.

    Each is a canonical convolution of x, with channels as the batch and images as the channels, by
    dy dilated by `stride`.
    """
    narrow, dtype = dy.dtype, jnp.promote_types(dy.dtype, jnp.float32)
    x, dy = (jnp.pad(part, ((0, -len(part) % IMAGES), (0, 0), (0, 0), (0, 0))).astype(dtype) for part in (x, dy))
    bottom, right = ((dy.shape[i + 1] - 1) * stride + size[i] - x.shape[i + 1] - around[i][0] for i in range(2))
    around = (around[0][0], bottom), (around[1][0], right)  # a negative end crops what no window covers

    def add(i: Array, total: Array) -> Array:
        of_x, of_dy = (lax.dynamic_slice_in_dim(part, i * IMAGES, IMAGES) for part in (x, dy))
        turned = of_x.transpose(3, 1, 2, 0), of_dy.transpose(1, 2, 0, 3)
        return total + lax.conv_general_dilated(*turned, (1, 1), around, None, (stride, stride), _DIMENSIONS)

    total = lax.fori_loop(0, len(x) // IMAGES, add, jnp.zeros((x.shape[-1], *size, dy.shape[-1]), dtype))
    return total.transpose(1, 2, 0, 3).astype(narrow)


def _kernel_of_windows(x: Array, dy: Array, size: Size, stride: int, around: Around) -> Array:
    """Returns the gradient as few and nearly square matrix products.

    In general one for each row of the kernel, with windows of one row. With stride 1 and a large
    image a single one: x shifted by 0 .. kw - 1 columns against dy shifted by 0 .. kh - 1 rows has
    all kh * kw sums as blocks.
    """
    (kh, kw), c, o = size, x.shape[-1], dy.shape[-1]
    if stride > 1 or dy.shape[1] < 8 or c < 16 or kh == 1:
        seen, rows = extract_windows(x, (kh, kw), stride, around), dy.reshape(-1, o)
        lines = [jnp.stack(seen[i * kw : (i + 1) * kw], -2).reshape(-1, kw * c) for i in range(kh)]
        return jnp.stack([line.T @ rows for line in lines]).reshape(kh, kw, c, o)
    shifted = jnp.stack(extract_windows(x, (1, kw), 1, around), -2).reshape(-1, kw * c)
    zero = jnp.zeros((), dy.dtype)
    rows = [lax.pad(dy, zero, ((0, 0, 0), (i, kh - 1 - i, 0), (0, 0, 0), (0, 0, 0))) for i in range(kh)]
    blocks = shifted.T @ jnp.stack(rows, -2).reshape(-1, kh * o)
    return blocks.reshape(kw, c, kh, o).transpose(2, 0, 1, 3)


class _Form(NamedTuple):
    """A convolution (x, kernel, stride, around) and its gradients."""

    forward: Callable[..., Array]
    for_x: Callable[..., Array]
    for_kernel: Callable[..., Array]


def _by_transposing(forward: Callable[..., Array]) -> _Form:
    """Returns a form whose gradients are transposes of `forward`."""

    def transpose(linear: Callable[[Array], Array], shape: tuple[int, ...], dy: Array) -> Array:
        return jax.linear_transpose(linear, jax.ShapeDtypeStruct(shape, dy.dtype))(dy)[0]

    def for_x(dy: Array, kernel: Array, size: Size, stride: int, around: Around) -> Array:
        return transpose(lambda x: forward(x, kernel, stride, around), (len(dy), *size, kernel.shape[2]), dy)

    def for_kernel(x: Array, dy: Array, size: Size, stride: int, around: Around) -> Array:
        return transpose(lambda kernel: forward(x, kernel, stride, around), (*size, x.shape[-1], dy.shape[-1]), dy)

    return _Form(forward, for_x, for_kernel)


def _trace_once(rule: Callable[..., Array]) -> Callable[..., Array]:
    """Returns a function of a form that is traced and lowered once for all layers of the same shapes.

    Networks repeat their layers, and a round trains several of them; tracing Winograd's products
    takes longer than all else in a ResNet.
    """

    @functools.partial(jax.jit, static_argnums=(2, 3))
    def run(first: Array, second: Array, sizes: tuple, backend: str) -> Array:
        with tracing_for(backend):
            return rule(first, second, *sizes)

    @functools.wraps(rule)
    def run_traced(first: Array, second: Array, *sizes) -> Array:
        return run(first, second, sizes, _current_backend())  # the backend is a part of what is traced

    return run_traced


_FORMS = {
    name: _Form(*map(_trace_once, form))
    for name, form in {
        "native": _by_transposing(_native),
        "canonical": _Form(_canonical, _canonical_x, _canonical_kernel),
        "patches": _by_transposing(_patches),
    }.items()
}


class _Place(NamedTuple):
    """The sizes of image and kernel, stride and padding of a convolution and its gradients."""

    image: Size
    kernel: Size
    stride: int
    around: tuple[tuple[int, int], ...]

    def sizes(self, part: str) -> tuple:
        """Returns what a part of `_Form` takes beside its arrays."""
        around = self.stride, self.around
        return around if part == "forward" else ((self.image if part == "for_x" else self.kernel), *around)


def make_params(image: Size, kernel: Size, stride: int, around: tuple[tuple[int, int], ...], form: str = "auto") -> dict[str, Any]:
    """Returns the parameters of `FORWARD` for sizes of one or two axes, with the padding of each axis."""
    chosen = describe_conv(form)
    return {
        "forms": (chosen["alone"], chosen["vmapped"]),
        "backend": chosen["backend"],
        "place": _Place(image, kernel, stride, around),
    }


def _compute(
    part: str, first: Array, second: Array, *, forms: tuple[str, str], backend: str, place: _Place, vmapped: bool = False
) -> Array:
    """Returns a part of `_Form`, of the first of two forms, or of the second under a `vmap`."""
    if len(place.image) == 1:  # an image of one row
        rows = _Place((1, *place.image), (1, *place.kernel), place.stride, ((0, 0), *place.around))
        second = second[:, None] if part == "for_kernel" else second[None]
        result = _compute(part, first[:, None], second, forms=forms, backend=backend, place=rows, vmapped=vmapped)
        return result[0] if part == "for_kernel" else result[:, 0]
    with tracing_for(backend):
        return getattr(_FORMS[forms[vmapped]], part)(first, second, *place.sizes(part))


def _find_shape(part: str, first: ShapedArray, second: ShapedArray, *, place: _Place, **_: Any) -> tuple[int, ...]:
    if part == "forward":
        return jax.eval_shape(lambda x, kernel: _native(x, kernel, *place.sizes(part)), first, second).shape
    if part == "for_x":
        return (first.shape[0], *place.image, second.shape[-2])
    return (*place.kernel, first.shape[-1], second.shape[-1])


FORWARD = bilinear.make_primitives("conv", _compute, _find_shape)[0]
