"""FedJAX's release: `python -m tests.benchmarks.peers.fedjax_simulation '{"workload": "a"}'`.

With "pmap" its pmap backend, over as many simulated devices; else its jit backend. Batch
normalisation uses batch statistics and keeps no running ones, which this framework's models cannot
store.
"""

import json
import os
import sys
from importlib import metadata

OPTIONS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
if OPTIONS.get("pmap"):
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={OPTIONS['pmap']}"

import fedjax  # noqa: E402 - after the number of devices is set
import haiku as hk  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from tests.benchmarks import protocol  # noqa: E402
from tests.benchmarks.workloads import CNN_OPTIONS, SEED, WORKLOADS  # noqa: E402


def norm(x):
    """Applies batch normalisation in training mode."""
    return hk.BatchNorm(True, True, 0.9, eps=1e-5)(x, is_training=True)


def block(x, width, stride):
    """Applies two 3x3 convolutions beside a shortcut."""
    y = jax.nn.relu(norm(hk.Conv2D(width, 3, stride, padding=(1, 1), with_bias=False)(x)))
    y = norm(hk.Conv2D(width, 3, padding=(1, 1), with_bias=False)(y))
    if stride > 1 or x.shape[-1] != width:
        x = norm(hk.Conv2D(width, 1, stride, padding="VALID", with_bias=False)(x))
    return jax.nn.relu(x + y)


def network(workload):
    """Returns the workload's network, a haiku function of a batch."""

    def forward(batch):
        x = batch["x"]
        if workload.model == "mlp":
            return hk.nets.MLP((*workload.options["widths"], workload.classes))(x)
        if workload.model == "cnn":
            o = CNN_OPTIONS | workload.options
            drop = (lambda x: hk.dropout(hk.next_rng_key(), o["dropout"], x)) if o["dropout"] else (lambda x: x)
            for i, width in enumerate(o["widths"]):
                x = jax.nn.relu(hk.Conv2D(width, o["kernel"], padding="VALID")(x))
                if o["pool"] == "each" or i + 1 == len(o["widths"]):
                    x = hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")(x)
            x = drop(hk.Flatten()(x))
            for width in o["dense"]:
                x = jax.nn.relu(hk.Linear(width)(x))
            return hk.Linear(workload.classes)(drop(x))
        if workload.options.get("stem") == "imagenet":
            x = jax.nn.relu(norm(hk.Conv2D(64, 7, 2, padding=(3, 3), with_bias=False)(x)))
            x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
            x = hk.MaxPool((1, 3, 3, 1), (1, 2, 2, 1), "VALID")(x)
        else:
            x = jax.nn.relu(norm(hk.Conv2D(64, 3, padding=(1, 1), with_bias=False)(x)))
        for stage in range({"resnet8": 3, "resnet10": 4}[workload.model]):
            x = block(x, 64 << stage, 2 if stage else 1)
        return hk.Linear(workload.classes)(x.mean((1, 2)))

    return (
        hk.without_state(hk.transform_with_state(lambda batch: forward(batch))) if workload.model == "mlp" else _stateless(forward)
    )


def _stateless(forward):
    """Transforms like `hk.transform`, and discards running statistics."""
    both = hk.transform_with_state(forward)
    empty = {}

    def init(rng, batch):
        params, state = both.init(rng, batch)
        empty["state"] = jax.tree_util.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(lambda: state))
        return params

    def apply(params, rng, batch):
        return both.apply(params, empty["state"], rng, batch)[0]

    return hk.Transformed(init, apply)


def main(options):
    """Warms up and serves."""
    workload = WORKLOADS[options["workload"]]
    if options.get("pmap"):
        fedjax.set_for_each_client_backend("pmap")
    x, y = workload.data()
    clients = {b"%06d" % i: {"x": x[rows], "y": y[rows]} for i, rows in enumerate(workload.index())}
    sample = {"x": x[:1], "y": y[:1]}
    transformed = network(workload)
    with jax.disable_jit(False):
        params = transformed.init(jax.random.PRNGKey(SEED), sample)
    model = fedjax.create_model_from_haiku(
        transformed, sample, lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out)
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(workload.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=workload.batch, num_epochs=workload.epochs),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        fedjax.InMemoryFederatedData(clients), num_clients=workload.cohort, seed=SEED
    )
    held = [algorithm.init(params)]

    def run(rounds):
        for _ in range(rounds):
            held[0], _ = algorithm.apply(held[0], sampler.sample())
        jax.block_until_ready(held[0].params)

    run(workload.rounds)
    protocol.serve(
        run,
        versions={name: metadata.version(name) for name in ("fedjax", "jax", "dm-haiku")},
        backend="pmap" if options.get("pmap") else "jit",
    )


if __name__ == "__main__":
    main(OPTIONS)
