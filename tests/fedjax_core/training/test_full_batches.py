"""`drop_last`: minibatches that are not full are left out of local training, another remainder each epoch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import fedavg
from fedjax_core import experiment
from fedjax_core.algorithm import ClientData, Examples, Net, Remainder
from fedjax_core.training import local_training


def uses(size, *, batch, epochs, remainder, capacity=9):
    """Returns how often each of a client's examples was in a minibatch, and the number that was summed."""

    def loss(net, batch, key):
        used = jnp.sum(jax.nn.one_hot(batch.x, capacity) * batch.mask[:, None], 0)
        return -net.params["w"] @ used, local_training.Aux(net.stats, jnp.sum(batch.mask))  # so that SGD at 1 counts them

    data = ClientData(Examples(jnp.arange(capacity), jnp.zeros(capacity, jnp.int32)), jnp.arange(capacity), jnp.int32(size))
    train = local_training.fit(loss, optax.sgd(1.0), epochs=epochs, batch=batch)
    trained = jax.jit(train)(Net({"w": jnp.zeros(capacity)}, {}), data._replace(remainder=remainder), jax.random.key(2))
    return np.asarray(trained.net.params["w"]).astype(int), int(trained.sums)


@pytest.mark.parametrize(("size", "full"), [(9, 2), (8, 2), (7, 1), (4, 1), (3, 0), (0, 0)])
def test_only_full_batches_are_trained_on(size, full):
    """Or on all examples, where they are fewer than a batch."""
    times, summed = uses(size, batch=4, epochs=1, remainder=Remainder.DROP)
    used = 4 * full or size
    assert sorted(times) == sorted([1] * used + [0] * (9 - used))
    assert summed == used
    assert not times[size:].any()
    kept, number = uses(size, batch=4, epochs=1, remainder=Remainder.KEEP)
    assert (kept.tolist(), number) == ([1] * size + [0] * (9 - size), size)
    if size == 4 * full:
        np.testing.assert_array_equal(times, kept)


def test_each_epoch_drops_others():
    times, summed = uses(9, batch=4, epochs=20, remainder=Remainder.DROP)
    assert summed == 20 * 8
    assert (times.min(), times.max()) != (0, 20)
    assert len(np.flatnonzero(times < 20)) > 4


def test_a_batch_that_no_client_fills_is_refused():
    with pytest.raises(ValueError, match="no client has the 10 examples of a batch; the largest has 9"):
        uses(9, batch=10, epochs=1, remainder=Remainder.DROP)


def config(**changes):
    config = fedavg.get_config("smoke")
    config.drop_last = True
    config.data.update(clients=8, partition="dirichlet(alpha=0.5, min_size=16)", test_split="merged")
    config.method.update(batch=16, epochs=1)
    config.update(changes)
    return config


def test_a_federation_trains_on_full_batches():
    simulator = experiment.build(config(models=("mlp(widths=(4,), init='torch')",)))
    sizes = np.array([len(rows) for rows in simulator.spec.data.train_index])
    assert (sizes % 16 > 0).any()
    state, _ = simulator.run_rounds(simulator.init(0), 1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(simulator.to_host(state)))


def test_a_client_that_would_never_train_is_refused():
    small = config()
    small.method.batch = 400
    with pytest.raises(ValueError, match=r"drop_last=True: client \d+ has \d+ training examples, fewer than method.batch=400"):
        experiment.build(small)
