"""The work of a client's round in examples of plain training, from its traced update; nothing is run."""

import functools

import jax
import numpy as np
import optax

from fedjax_core.algorithm import Array, ClientData, Net, PyTree
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.flop_count import count_flops
from fedjax_core.engine.simulation_spec import SimulationSpec
from fedjax_core.training import local_training
from fedjax_core.training.batching import parse_loop_name

BATCH = 64  # of plain training; the work of an example does not depend on it


def count_client_examples(spec: SimulationSpec) -> np.ndarray:
    """Returns [N] the work of each client's round, in examples of plain training of its network.

    Work is the FLOP of matrix products and convolutions (`flop_count.py`). Two epochs of FedAvg over
    50 examples are 100; a forward pass over them is about a third of 50, and as much as it is
    exactly. A branch that depends on the round counts as its larger side. A loop over minibatches
    of other data, such as FedMD's public examples, counts as one over the client's own.

    Raises:
      ValueError: a network has neither matrix products nor convolutions.
    """
    examples = np.zeros(spec.population)
    sizes = np.asarray(spec.host_arrays.size, np.float64)
    for g, group in enumerate(spec.groups):
        fixed, per_example = _count_work(spec, g)
        plain = _count_plain_work(spec, g)
        if plain == 0:
            raise ValueError(
                f"devices.profile: network {group.task.model.name!r} has neither matrix products nor convolutions, by which "
                "the work of a client is counted"
            )
        examples[group.clients] = (fixed + per_example * sizes[group.clients]) / plain
    return examples


def _count_work(spec: SimulationSpec, g: int) -> tuple[float, float]:
    """Returns the FLOP of a round of group g's client: (those without examples, those of each example)."""

    def update(arrays: DeviceArrays, sent: PyTree, client: PyTree, size: Array, round_num: Array, key: Array):
        data = spec.client_data(arrays, 0, size)
        return spec.algorithm(g, arrays, round_num).client_update(sent, client, data, key)

    shapes, number = spec.shapes.groups[g], jax.ShapeDtypeStruct((), np.int32)
    jaxpr = jax.make_jaxpr(update)(_shapes_of(spec), shapes.sent, shapes.client, number, number, jax.random.key(0))
    fixed = count_flops(jaxpr, functools.partial(_count_steps, 0.0))
    return fixed, count_flops(jaxpr, functools.partial(_count_steps, 1.0)) - fixed


def _count_plain_work(spec: SimulationSpec, g: int) -> float:
    """Returns the FLOP of training group g's network on one example."""
    task = spec.groups[g].task

    def train(arrays: DeviceArrays, net: Net, size: Array, key: Array):
        bound = task.bind(arrays.tasks[g], 0)
        fit = local_training.fit(local_training.supervised_loss(bound), optax.sgd(0.1), epochs=1, batch=BATCH)
        data: ClientData = spec.client_data(arrays, 0, size)
        return fit(net, data, key).net

    net, number = jax.eval_shape(task.model.init, jax.random.key(0)), jax.ShapeDtypeStruct((), np.int32)
    jaxpr = jax.make_jaxpr(train)(_shapes_of(spec), net, number, jax.random.key(0))
    return count_flops(jaxpr, functools.partial(_count_steps, 1.0))


def _shapes_of(spec: SimulationSpec) -> DeviceArrays:
    return jax.eval_shape(lambda arrays: arrays, spec.host_arrays)


def _count_steps(size: float, name: str) -> float | None:
    """Returns the steps of a loop over `size` examples, a part of a minibatch as a part of a step; None for other loops."""
    batch = parse_loop_name(name)
    return None if batch is None else size / batch
