"""Guards speed: rounds of the engine against a bare jitted loop in the same process, by ratios.

The reference scans over clients and steps and accumulates the weights; it samples the cohort,
shuffles, sums loss and accuracy, and does nothing else. Both run on one device, in turns. The best
of many short samples is compared, and a failed comparison is repeated, so that other load on the
machine does not fail the test.
"""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core import nn
from fedjax_core.algorithm import Examples
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import client_loop, simulator
from fedjax_core.task import make_task
from fedjax_core.training import local_training
from methods.fedavg import fedavg

CLIENTS, COHORT, RATE = 40, 16, 0.05


class Small(NamedTuple):
    """A workload of milliseconds; `recorded`: measured time of the reference over the engine's."""

    model: str
    options: dict
    shape: tuple[int, ...]
    examples: int
    batch: int
    recorded: float


WORKLOADS = {
    "mlp": Small("mlp", {"widths": (64, 64)}, (400,), 40, 10, 0.9),
    "cnn": Small("cnn", {"widths": (8, 16), "dense": 32}, (14, 14, 1), 20, 10, 0.74),
}


def dense(layer, x):
    return x @ layer["kernel"] + layer["bias"][None]


def convolution(layer, x):
    """Computes a valid 3x3 convolution by patches."""
    kernel = layer["kernel"]
    h, w = x.shape[1] - 2, x.shape[2] - 2
    patches = jnp.concatenate([x[:, i : i + h, j : j + w] for i in range(3) for j in range(3)], -1)
    return patches @ kernel.reshape(-1, kernel.shape[-1]) + layer["bias"][None, None, None]


def forward(model, params, x):
    if model == "mlp":
        x = jax.nn.relu(dense(params["dense2"], jax.nn.relu(dense(params["dense1"], x))))
        return dense(params["head"], x)
    x = jax.nn.relu(convolution(params["conv2"], jax.nn.relu(convolution(params["conv1"], x))))
    b, h, w, c = x.shape
    x = x.reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4)).reshape(b, -1)
    return dense(params["head"], jax.nn.relu(dense(params["dense"], x)))


def reference(small, params, x, y):
    """Returns rounds -> seconds per round of the bare loop."""
    steps = small.examples // small.batch

    def loss(params, x, y):
        logits = forward(small.model, params, x)
        value = -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))
        return value, (value * small.batch, jnp.sum(jnp.argmax(logits, -1) == y, dtype=jnp.float32))

    def client(params, entry, x, y):
        i, key = entry
        rows = i * small.examples + jax.random.permutation(key, small.examples)

        def step(carry, rows):
            params, sums = carry
            grads, said = jax.grad(loss, has_aux=True)(params, x[rows], y[rows])
            return (jax.tree.map(lambda p, g: p - RATE * g, params, grads), jax.tree.map(jnp.add, sums, said)), None

        zero = jnp.zeros(()), jnp.zeros(())
        return jax.lax.scan(step, (params, zero), rows.reshape(steps, small.batch))[0]

    @functools.partial(jax.jit, donate_argnums=0)
    def run(params, key, x, y, n):
        def one(r, carry):
            params, _ = carry
            draw, shuffle = jax.random.split(jax.random.fold_in(key, r))
            entries = jax.random.permutation(draw, CLIENTS)[:COHORT], jax.random.split(shuffle, COHORT)

            def add(total, entry):
                return jax.tree.map(jnp.add, total, client(params, entry, x, y)), None

            zero = jax.tree.map(jnp.zeros_like, (params, (jnp.zeros(()), jnp.zeros(()))))
            (total, sums), _ = jax.lax.scan(add, zero, entries)
            return jax.tree.map(lambda t: t / COHORT, total), sums

        return jax.lax.fori_loop(0, n, one, (params, (jnp.zeros(()), jnp.zeros(()))))

    held = [params, jax.random.key(0), jax.device_put(x), jax.device_put(y)]

    def timed(rounds):
        n = jnp.asarray(rounds)
        start = time.perf_counter()
        held[0], sums = run(*held, n)
        jax.device_get(sums)
        return (time.perf_counter() - start) / rounds

    return timed


def engine(small, x, y):
    """Returns rounds -> seconds per round of the engine, and its initial weights."""
    dataset = sources.Dataset("random", Examples(x, y), Examples(x[:10], y[:10]), tuple("0123456789"))
    index = np.arange(len(y)).reshape(CLIENTS, -1)
    data = federated_data.from_index(dataset, list(index), [np.zeros(0, int)] * CLIENTS)
    task = make_task(nn.build(small.model, 10, small.shape, **small.options), classes=10, population=CLIENTS)
    build = functools.partial(fedavg, optimizer=local_training.sgd(RATE), epochs=1, batch=small.batch)
    sim = simulator.Simulator(
        simulator.build_spec(
            simulator.one_group(build, task, CLIENTS), data, cohort=COHORT, plan=client_loop.Plan(1, 1), rounds_per_dispatch=50
        )
    )
    held = [sim.init(seed=0)]
    params = jax.tree.map(np.copy, jax.device_get(held[0].server.net.params))

    def timed(rounds):
        start = time.perf_counter()
        held[0], _ = sim.run_rounds(held[0], rounds)
        return (time.perf_counter() - start) / rounds

    return timed, params


@pytest.mark.parametrize("name", WORKLOADS)
def test_ratio_to_a_bare_loop(name):
    small = WORKLOADS[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CLIENTS * small.examples, *small.shape), np.float32)
    y = rng.integers(0, 10, len(x)).astype(np.int32)
    ours, params = engine(small, x, y)
    bare = reference(small, params, x, y)
    rounds = 5
    for contender in (ours, bare):
        contender(rounds)
    best: list[float] = []
    for _ in range(4):
        times = np.array([(ours(rounds), bare(rounds)) for _ in range(10)])
        best.append(float(times[:, 1].min() / times[:, 0].min()))
        if best[-1] >= small.recorded * 2 / 3:
            return
    pytest.fail(f"{name}: the bare loop's time over the engine's was {best}, and {small.recorded} when it was recorded")
