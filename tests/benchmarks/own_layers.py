"""Times layers of Flax in local training, by the library's kernels and by XLA's own operations.

  python -m tests.benchmarks.own_layers [--repeats=3]

A step is one of gradient descent on 32 examples. "Alone": of one client, in a loop. "Of four": of a client among four that a
`vmap` trains in a loop. Processor milliseconds a step and client, the smallest of the repeats, in turns.
"""

import argparse
import sys
import time

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_core import nn
from fedjax_core.nn.kernels.substitution import substitute_kernels

STEPS, CLIENTS = 10, 4
RNGS = nnx.Rngs(0)


def after_linear(function):
    """Returns a network whose gradient goes through a function."""
    return nnx.Sequential(nnx.Linear(32, 32, rngs=RNGS), function)


LAYERS = {
    "3x3": (nnx.Conv(32, 32, (3, 3), rngs=RNGS), (16, 16, 32)),
    "5 on sequences": (nnx.Conv(32, 32, (5,), rngs=RNGS), (256, 32)),
    "3x3 by channel": (nnx.Conv(32, 32, (3, 3), feature_group_count=32, rngs=RNGS), (16, 16, 32)),
    "3x3, four groups": (nnx.Conv(32, 32, (3, 3), feature_group_count=4, rngs=RNGS), (16, 16, 32)),
    "3x3, dilated": (nnx.Conv(32, 32, (3, 3), kernel_dilation=2, rngs=RNGS), (16, 16, 32)),
    "2x2, transposed": (nnx.ConvTranspose(32, 32, (2, 2), strides=(2, 2), rngs=RNGS), (16, 16, 32)),
    "a linear layer": (after_linear(lambda x: x), (16, 16, 32)),
    "it and a max-pool": (after_linear(lambda x: nnx.max_pool(x, (2, 2), (2, 2))), (16, 16, 32)),
}


def make_steps(layer: nnx.Module, shape: tuple[int, ...]):
    """Returns {name: function that trains} of a layer."""
    graph, params = nnx.split(layer)
    x = jax.random.normal(jax.random.key(0), (32, *shape))
    apply = substitute_kernels(lambda params, x: nnx.merge(graph, params)(x))
    gradient = jax.grad(lambda params: jnp.mean(jnp.square(apply(params, x))))

    def train(params):
        step = lambda _, params: jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient(params))
        return jax.lax.fori_loop(0, STEPS, step, params)

    of_clients = jax.tree.map(lambda leaf: jnp.stack([leaf] * CLIENTS), params)
    alone, together = jax.jit(train), jax.jit(jax.vmap(train))
    return {"alone": lambda: alone(params), "of four": lambda: together(of_clients)}


def measure(run) -> float:
    """Returns processor seconds of a call."""
    begun = time.process_time()
    jax.block_until_ready(run())
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    names = " | ".join(f"{kind}, {by}" for kind in ("alone", "of four") for by in ("XLA's", "ours"))
    sys.stdout.write(f"| | {names} |\n|---|{'--:|' * 4}\n")
    for name, (layer, shape) in LAYERS.items():
        times = {}
        for enabled in (False, True):
            nn.use_kernels(enabled)
            for kind, run in make_steps(layer, shape).items():
                measure(run)  # compiles
                least = min(measure(run) for _ in range(repeats))
                times[kind, enabled] = 1e3 * least / STEPS / (1 if kind == "alone" else CLIENTS)
        cells = [f"{times[kind, enabled]:.1f}" for kind in ("alone", "of four") for enabled in (False, True)]
        sys.stdout.write(f"| {name} | {' | '.join(cells)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
