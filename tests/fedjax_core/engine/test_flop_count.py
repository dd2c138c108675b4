"""Operations, counted in programs that are not compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_core import nn
from fedjax_core.algorithm import ClientData, Examples
from fedjax_core.commands.plans import program_costs
from fedjax_core.engine import flop_count
from fedjax_core.nn.kernels.conv import conv
from fedjax_core.training import local_training

ROWS = program_costs.ClientLoops(np.array([10, 10]))


def trained(model, shape, classes):
    """The jaxpr of two epochs over ten rows, in batches of four."""
    loss = local_training.model_loss(model)
    fit = local_training.fit(loss, optax.sgd(0.1), epochs=2, batch=4)
    arrays = Examples(jnp.zeros((20, *shape), jnp.float32), jnp.zeros(20, jnp.int32))

    def local(key, size):
        return fit(model.init(key), ClientData(arrays, jnp.arange(10), size), key).net

    return jax.make_jaxpr(local)(jax.random.key(0), jnp.int32(10))


def test_operations_of_an_mlp_are_those_counted_by_hand():
    jaxpr = trained(nn.build("mlp", 3, (8,), widths=(5,)), (8,), 3)
    forward, backward = 2 * 4 * (8 * 5 + 5 * 3), 2 * 4 * (8 * 5 + 2 * 5 * 3)  # no gradient for the inputs
    assert flop_count.count_flops(jaxpr, ROWS.trip_count) == 2 * 3 * (forward + backward)
    assert flop_count.count_flops(jaxpr, lambda name: None) == 2 * (forward + backward)  # as a compiler counts: the steps once


def test_operations_of_convolutions_are_those_counted_by_hand():
    def value(x, kernel):
        return jnp.sum(jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))

    jaxpr = jax.make_jaxpr(jax.grad(value, (0, 1)))(jnp.zeros((4, 8, 8, 3)), jnp.zeros((3, 3, 3, 16)))
    each = 2 * 4 * (4 * 4) * 9 * 3 * 16  # forward, and each gradient: zeros between an image gradient's entries do not count
    assert flop_count.count_flops(jaxpr, ROWS.trip_count) == 3 * each
    ours = jax.make_jaxpr(jax.grad(lambda x, kernel: jnp.sum(conv(x, kernel, 2)), (0, 1)))(*jaxpr.in_avals)
    assert flop_count.count_flops(ours, ROWS.trip_count) == 3 * each  # the programs of its primitives
