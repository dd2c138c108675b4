"""Checks that a method's first draws beside the network are independent of the network's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.nn import from_nnx
from fedjax_core.task import make_task
from fedjax_core.training import local_training
from methods.fednh import fednh
from methods.pfedgate import pfedgate
from methods.pfedpt import pfedpt

KEY = jax.random.key(0)
MODEL = from_nnx.build("cnn", 10, (8, 8, 1), widths=(8, 16), dense=16)
TASK = make_task(MODEL, classes=10, population=6, shape=(8, 8, 1))
OPTIMIZER = local_training.sgd(0.1)


@pytest.mark.parametrize("method", [pfedgate, pfedpt], ids=lambda method: method.__name__)
def test_states_of_clients(method):
    algorithm = method(TASK, optimizer=OPTIMIZER)
    server = algorithm.server_init(KEY)
    drawn = [algorithm.client_init(KEY, server, jnp.int32(client)) for client in range(6)]
    kernels = [np.ravel(leaf) for leaf in jax.tree.leaves(MODEL.init(KEY).params) if np.std(leaf) > 0]
    assert len(kernels) == 4
    for leaf in (np.ravel(leaf) for leaf in jax.tree.leaves(drawn) if np.std(leaf) > 0):
        for kernel in kernels:
            n = min(len(leaf), len(kernel))
            assert n >= 32
            assert abs(np.corrcoef(leaf[:n], kernel[:n])[0, 1]) < 0.8


def test_prototypes_of_fednh():
    """The first orthogonal vector is the first of the vectors that were drawn, [16, 10], normalized."""
    server = fednh(TASK, optimizer=OPTIMIZER).server_init(KEY)
    for kernel in (np.ravel(leaf) for leaf in jax.tree.leaves(server.net.params) if np.size(leaf) >= 160):
        drawn = kernel[:160].reshape(16, 10)[:, 0]
        assert abs(server.prototypes[0] @ drawn) / np.linalg.norm(drawn) < 0.9
