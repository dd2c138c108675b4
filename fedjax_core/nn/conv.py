"""Convolution that stays fast inside loops over clients."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
Around = tuple[tuple[int, int], tuple[int, int]]
Padding = str | int | Around

FORMS = ("auto", "native", "patches", "canonical")
_DIMENSIONS = ("NHWC", "HWIO", "NHWC")


def pads(size: tuple[int, int], kernel: tuple[int, int], stride: int, padding: Padding) -> Around:
    """Rows and columns of zeros around an image.

    Args:
      size: height and width.
      kernel: height and width.
      stride: step of the window.
      padding: "SAME", "VALID", one number for all sides, or ((top, bottom), (left, right)).

    Returns:
      ((top, bottom), (left, right)).

    Raises:
      ValueError: another `padding`.
    """
    if isinstance(padding, int):
        return ((padding, padding), (padding, padding))
    if isinstance(padding, str):
        if padding not in ("SAME", "VALID"):
            raise ValueError(f"padding {padding!r}; use 'SAME', 'VALID', a number or ((top, bottom), (left, right))")
        return tuple(lax.padtype_to_pads(size, kernel, (stride, stride), padding))
    return padding


def conv(x: Array, kernel: Array, stride: int = 1, padding: Padding = "SAME", form: str = "auto") -> Array:
    """2-d convolution (cross-correlation), as `lax.conv_general_dilated` computes it.

    Args:
      x: [B, H, W, C].
      kernel: [kh, kw, C, O].
      stride: step of the window, both ways.
      padding: see `pads`.
      form: how it is computed.

    Returns:
      [B, H', W', O].

    Raises:
      ValueError: unknown `form` or `padding`.
    """
    around = pads(x.shape[1:3], kernel.shape[:2], stride, padding)
    if form in ("auto", "canonical"):
        return _canonical(x, kernel, stride, around)
    if form == "native":
        return _native(x, kernel, stride, around)
    if form == "patches":
        return _patches(x, kernel, stride, around)
    raise ValueError(f"unknown convolution form {form!r}; use one of {', '.join(FORMS)}")


def _native(x: Array, kernel: Array, stride: int, around: Around, dilation: int = 1) -> Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), around, (dilation, dilation), dimension_numbers=_DIMENSIONS)


def windows(x: Array, kernel: tuple[int, int], stride: int, around: Around, fill: float = 0.0) -> list[Array]:
    """What each entry of a kernel sees of an image.

    Args:
      x: [B, H, W, C].
      kernel: height and width.
      stride: step of the window.
      around: see `pads`.
      fill: value of the padding.

    Returns:
      kh * kw arrays [B, H', W', C], row by row of the kernel.
    """
    x = lax.pad(x, jnp.asarray(fill, x.dtype), ((0, 0, 0), *((low, high, 0) for low, high in around), (0, 0, 0)))
    b, h, w, c = x.shape
    kh, kw = kernel
    out_h, out_w = (h - kh) // stride * stride + 1, (w - kw) // stride * stride + 1
    return [lax.slice(x, (0, i, j, 0), (b, i + out_h, j + out_w, c), (1, stride, stride, 1)) for i in range(kh) for j in range(kw)]


def spread(parts: list[Array], shape: tuple[int, ...], kernel: tuple[int, int], stride: int, around: Around) -> Array:
    """The transpose of `windows`: adds each part where it was seen.

    Args:
      parts: kh * kw arrays [B, H', W', C].
      shape: of the image, [B, H, W, C].
      kernel: height and width.
      stride: step of the window.
      around: see `pads`.

    Returns:
      [B, H, W, C].
    """
    total, (out_h, out_w) = jnp.zeros((), parts[0].dtype), parts[0].shape[1:3]
    for n, part in enumerate(parts):
        rows = n // kernel[1] - around[0][0]
        columns = n % kernel[1] - around[1][0]
        ends = (shape[1] - rows - (out_h - 1) * stride - 1, shape[2] - columns - (out_w - 1) * stride - 1)
        config = ((0, 0, 0), (rows, ends[0], stride - 1), (columns, ends[1], stride - 1), (0, 0, 0))
        total = total + lax.pad(part, jnp.zeros((), part.dtype), config)
    return total


def _patches(x: Array, kernel: Array, stride: int, around: Around) -> Array:
    kh, kw, c, o = kernel.shape
    return jnp.concatenate(windows(x, (kh, kw), stride, around), axis=-1) @ kernel.reshape(kh * kw * c, o)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _canonical(x: Array, kernel: Array, stride: int, around: Around) -> Array:
    return _native(x, kernel, stride, around)


def _canonical_forward(x: Array, kernel: Array, stride: int, around: Around) -> tuple[Array, tuple[Array, Array]]:
    return _native(x, kernel, stride, around), (x, kernel)


def _canonical_backward(stride: int, around: Around, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, kernel = saved
    kh, kw, c, o = kernel.shape
    back = tuple(
        (k - 1 - low, size - (out - 1) * stride - 1 + low)
        for k, size, out, (low, _) in zip((kh, kw), x.shape[1:3], dy.shape[1:3], around, strict=True)
    )
    dx = _native(dy, kernel[::-1, ::-1].swapaxes(2, 3), 1, back, stride)
    rows = dy.reshape(-1, o)
    dk = [s.reshape(-1, c).T @ rows for s in windows(x, (kh, kw), stride, around)]
    return dx, jnp.stack(dk).reshape(kernel.shape)


_canonical.defvjp(_canonical_forward, _canonical_backward)
