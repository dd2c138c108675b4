"""Six clients of unequal sizes with least squares in two weights: local and common optima are known in closed form."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Net
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import client_loop, simulator
from fedjax_core.task import Model, make_task
from fedjax_core.training import losses

SIZES = (3, 5, 2, 4, 6, 4)


def _model():
    def apply(net, x, key=None, train=False, mask=None, intermediates=False):
        return {"logits": x @ net.params["head"]["kernel"], "features": x}, net.stats

    init = lambda key: Net({"head": {"kernel": jnp.asarray([[2.0], [-1.0]])}}, {})
    return Model(init, apply, lambda net, x, *_, **__: (x, net.stats), lambda net, z: z @ net.params["head"]["kernel"], "linear")


@functools.cache
def data(alike=False):
    """Each client's rows differ, or are copies of one (`alike`), so that every minibatch has one gradient."""
    rng = np.random.default_rng(0)
    n = sum(SIZES)
    x, noise = rng.normal(size=(n, 2)), rng.normal(size=n)
    ends = np.cumsum(SIZES)
    rows = [np.arange(end - size, end) for size, end in zip(SIZES, ends, strict=True)]
    y = np.empty(n)
    for mine in rows:  # each client has an optimum of its own
        x[mine] = x[mine[0]] if alike else x[mine]
        y[mine] = x[mine] @ rng.normal(size=2) + 0.1 * (0 if alike else noise[mine])
    x, y = x.astype(np.float32), y[:, None].astype(np.float32)
    dataset = sources.from_arrays(x, y, x[:6], y[:6], targets="numbers", name="quadratics")
    return federated_data.from_index(dataset, rows, [np.arange(i, i + 1) for i in range(6)])


def rows(alike=False):
    """Each client's (x, y)."""
    train = data(alike).train
    return [(train.x[index], train.y[index]) for index in data(alike).train_index]


def optimum():
    """Minimum of the mean over clients of their mean squared errors, [2, 1]."""
    a = sum(x.T @ x / len(x) for x, _ in rows())
    b = sum(x.T @ y / len(x) for x, y in rows())
    return np.linalg.solve(a, b)


def linear(outputs, y, mask):
    """A loss whose gradient does not depend on the weights: the mean of outputs * y."""
    return losses.masked_mean(jnp.sum(outputs * y, -1), mask)


def constant_gradients(alike=False):
    """Each client's gradient of `linear`, [2, 1]."""
    return [x.T @ y / len(x) for x, y in rows(alike)]


def run(method, rounds, *, loss=None, seed=0, alike=False, **settings):
    """The host's state after some rounds of a method with its optimizer bound."""
    task = dataclasses.replace(make_task(_model(), classes=1, population=6, shape=(2,)), loss=loss)
    groups = simulator.one_group(method, task, 6)
    spec = simulator.build_spec(groups, data(alike), plan=client_loop.Plan(1, 1), rounds_per_dispatch=max(1, rounds), **settings)
    sim = simulator.Simulator(spec)
    state = sim.init(seed)
    return jax.device_get(sim.run_rounds(state, rounds)[0] if rounds else state)


def first():
    """The weights that training begins from."""
    return weights(_model().init(None))


def weights(net):
    return np.asarray(net.params["head"]["kernel"])
