"""`weights="samples"` of every method: a client with n examples counts as n equal clients do under `weights="uniform"`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core import registry
from fedjax_core.algorithm import Cohort, is_reduce
from fedjax_core.engine import rounds
from fedjax_core.training import aggregators, local_training
from tests import toy

WEIGHTED = [name for name, method in toy.METHODS.items() if "weights" in registry.read_parameters(method)[0]]
BESIDE_COUNTS = ("fedpac", "fedproto_g", "fednh")  # uplinks also have class means, which their counts weight
ELSEWHERE = {
    **dict.fromkeys(("fedskc", "fedskc_printed", "fedskc_released"), "GDA gives the weights; test_fedskc.py has it off"),
    "fedhpl_mixed": "as fedhpl",
    "fedproto": "only class means; test_fedproto.py",
    "mofedsam": "always uniform",
}
OPTIONS = {
    "feddf": {"server_epochs": 0},  # the teachers of the distillation count alike
    "feddf_mixed": {"server_epochs": 0},
    "fedhpl": {"average": ("head",)},
    "perada": {"distil": {"on": False}},
}
PARTS = {"fedcac": "shared", "fedhpl": "shared"}  # of the server's state, where the weights are not of all of it


def build_with_weights(name, weights):
    task = toy.CASES[name].task()
    task = task.bind(jax.device_put(task.bound_arrays), 0)
    return toy.METHODS[name](task, optimizer=local_training.sgd(0.1), weights=weights, **OPTIONS.get(name, {}))


def draw_uplinks(algorithm, server, number):
    """Returns uplinks of the shapes that clients send: floats in (0.5, 1.5), all else one."""
    key = jax.random.key(0)
    client = jax.eval_shape(lambda server: algorithm.client_init(key, server, 0), server)
    sent = jax.eval_shape(lambda server: algorithm.broadcast(server, 0), server)
    shapes = jax.eval_shape(algorithm.client_update, sent, client, toy.client_data(0), key).uplink
    rng = np.random.default_rng(0)

    def draw(leaf):
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape) if is_float else np.ones(leaf.shape), leaf.dtype)

    return [jax.tree.map(draw, shapes) for _ in range(number)]


def finish_round(name, algorithm, server, uplinks, cohort):
    """Returns the server's state, or the part of it, after a round of these uplinks."""
    reduces, structure = jax.tree.flatten(algorithm.collect, is_leaf=is_reduce)
    entries = [jax.tree.map(lambda x, c=c: x[c], cohort) for c in range(len(uplinks))]
    added, stacked = [], []
    for place, reduce in enumerate(reduces):
        parts = [reduce.map(structure.flatten_up_to(uplink)[place], entry) for uplink, entry in zip(uplinks, entries, strict=True)]
        if reduce.combine == "add":
            added.append(jax.tree.map(lambda *x: sum(x), *parts))
        else:
            stacked.append(jax.tree.map(lambda *x: jnp.stack(x), *parts))
    collected = rounds.collect(algorithm.collect, [(added, stacked)])
    after = algorithm.server_update(server, collected, cohort, jax.random.key(1))[0]
    return getattr(after, PARTS[name]) if name in PARTS else after


@pytest.mark.parametrize("name", [name for name in WEIGHTED if name not in (*BESIDE_COUNTS, *ELSEWHERE)])
def test_samples_count_as_often_as_a_client_has_examples(name):
    by_samples, uniform = (build_with_weights(name, weights) for weights in ("samples", "uniform"))
    server = by_samples.server_init(jax.random.key(0))
    one, other = draw_uplinks(by_samples, server, 2)
    clients, copies = Cohort(jnp.array([0, 1]), jnp.array([1, 3])), Cohort(jnp.array([0, 1, 1, 1]), jnp.array([2, 2, 2, 2]))
    found = finish_round(name, by_samples, server, [one, other], clients)
    expected = finish_round(name, uniform, server, [one, other, other, other], copies)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), found, expected)
    without = finish_round(name, uniform, server, [one, other], clients)
    gaps = jax.tree.map(lambda x, y: np.abs(np.asarray(x, float) - np.asarray(y, float)).max(), found, without)
    assert max(jax.tree.leaves(gaps)) > 1e-3


@pytest.mark.parametrize("name", BESIDE_COUNTS)
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_the_mean_of_the_deltas_has_the_weights(name, weights):
    reduces = jax.tree.leaves(build_with_weights(name, weights).collect, is_leaf=is_reduce)
    assert [r.weight_fn for r in reduces if r.payload == "delta"] == [aggregators.WEIGHT_FNS[weights]]
