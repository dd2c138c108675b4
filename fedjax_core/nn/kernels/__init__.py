"""Kernels: convolutions, pooling, attention and GELU that are fast where XLA's own are slow.

A round trains many small networks, one client after another in a loop or several under `vmap`. Three
things are slow there, mostly on CPUs, and each kernel avoids one of them:

  kernel             replaces                      because
  conv               `lax.conv_general_dilated`    inside a loop, XLA:CPU runs fast convolutions only in
                                                   the layout (NHWC, HWIO, NHWC), which gradients do not
                                                   have; under `vmap` with a kernel per client, it
                                                   becomes a grouped convolution, slow on all backends
  winograd           a 3x3 convolution             16 products for each 2x2 results in place of 36;
                                                   float32 on CPUs, 32 channels and more
  conv_few_channels  a convolution of few channels  XLA:CPU runs narrow products far below its peak
  conv_tiny_images   a convolution of images of a  most products are with the padding
                     few pixels
  pool               `lax.reduce_window`           its gradient is `select_and_scatter`, slow on CPUs
  attention.attend   `jax.nn.dot_product_attention`  products with batch axes behind others, and the
                                                   derivative of softmax, are slow on CPUs
  attention.gelu     `jax.nn.gelu`                 the gradient keeps one array in place of several

`conv` chooses between the convolutions by shapes, dtype and backend (`conv.describe`). Every kernel
computes the same function as what it replaces, up to rounding; but where several entries of a window
are the largest, the gradient of max-pooling is shared equally, and XLA gives it to the first.

All kernels are turned off at once, to compare with XLA's own operations or to exclude a kernel as the
cause of a problem, by the environment variable FEDJAX_KERNELS=0 or by

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
