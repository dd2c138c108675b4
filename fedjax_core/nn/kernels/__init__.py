"""Kernels: convolutions, pooling, attention and GELU that are fast where XLA's own are slow.

A round trains many small networks, one client after another in a loop or several under `vmap`.
Some operations are slow there, mostly on CPUs. Each kernel replaces one:

  conv                replaces `lax.conv_general_dilated`. Inside a loop XLA:CPU runs fast
                      convolutions only in the layout (NHWC, HWIO, NHWC), which gradients do not
                      have; under `vmap` over kernels it becomes a grouped convolution, slow anywhere.
  winograd            3x3 convolutions with 16 products for 2x2 results instead of 36; float32 on
                      CPUs, from 32 channels on
  conv_few_channels   convolutions of few channels, whose products are narrow and slow on XLA:CPU
  conv_tiny_images    convolutions of images of a few pixels, without the products with padding
  pool                replaces `lax.reduce_window`, whose gradient is `select_and_scatter`
  attention.attend    replaces `jax.nn.dot_product_attention`, whose products and softmax derivative
                      are slow on CPUs
  attention.gelu      replaces `jax.nn.gelu`; its gradient keeps one array

`conv` chooses between the convolutions by shapes, dtype and backend (`conv.describe_conv`). Every kernel
computes the same function as what it replaces, up to rounding; but where several entries of a
window are the largest, the gradient of max-pooling is shared equally, and XLA gives it to the
first.

All kernels are turned off at once, to compare with XLA's own operations or to exclude a kernel as
the cause of a problem, by the environment variable FEDJAX_KERNELS=0 or by

    from fedjax_core import nn
    nn.use_kernels(False)

Convolutions, whatever their `conv_form`, are then `lax.conv_general_dilated`. Runs record this in
run.json, where the convolution's form is "native".
"""

import os

import jax

VARIABLE = "FEDJAX_KERNELS"


def _read_variable() -> bool:
    """Returns whether the environment turns kernels on; "1", the default, or "0".

    Raises:
      ValueError: another value.
    """
    value = os.environ.get(VARIABLE, "1")
    if value not in ("0", "1"):
        raise ValueError(f"${VARIABLE}={value!r} must be 0 or 1")
    return value == "1"


_enabled = _read_variable()


def use_kernels(enabled: bool = True) -> None:
    """Turns all kernels on or off in this process.

    Functions that were compiled before are compiled anew when they are called next.
    """
    global _enabled
    if enabled != _enabled:
        _enabled = enabled
        jax.clear_caches()


def are_kernels_enabled() -> bool:
    """Returns whether kernels are used."""
    return _enabled
