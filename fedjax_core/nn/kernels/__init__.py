"""Kernels: convolutions, pooling, attention, GELU and batch normalization where XLA's own are slow or large.

  conv          replaces `lax.conv_general_dilated`. Inside a loop XLA:CPU runs fast convolutions only
                in the layout (NHWC, HWIO, NHWC), which gradients do not have; under `vmap` over
                kernels it becomes a grouped convolution, slow anywhere. `winograd`,
                `conv_few_channels` and `conv_tiny_images` are forms that it chooses by shapes,
                dtype and backend (`conv.describe_conv`).
  conv_general  replaces it with groups, dilation, other strides or numbers of axes
  pool          replaces `lax.reduce_window`, whose gradient is `select_and_scatter`
  attention     replaces `jax.nn.dot_product_attention` and `jax.nn.gelu`
  batch_norm    has a gradient for which no copy of the batch is kept

`substitution.substitute_kernels` puts conv, conv_general and pool into the program of a function, such
as a network of one's own. Convolutions and pools have derivatives of any order and mode.

Each computes the same function as what it replaces, up to rounding and the gradient of max-pooling
where several entries are the largest. `use_kernels(False)` or FEDJAX_KERNELS=0 turns all off, to
compare with XLA's own operations; convolutions are then native whatever their `conv_form`, as runs
record in run.json.
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
    """Turns all kernels on or off in this process; functions are compiled anew."""
    global _enabled
    if enabled != _enabled:
        _enabled = enabled
        jax.clear_caches()


def are_kernels_enabled() -> bool:
    """Returns whether kernels are used."""
    return _enabled
