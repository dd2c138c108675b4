"""The work of a client's round in examples of plain training, from its traced update; nothing is run."""

from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.extend.core import ClosedJaxpr

from fedjax_core.algorithm import Array, Net, PyTree, builder_name
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.flop_count import count_flops
from fedjax_core.engine.simulation_spec import SimulationSpec
from fedjax_core.training import local_training
from fedjax_core.training.batching import Loop, parse_loop

BATCH = 64  # of plain training; the work of an example does not depend on it
FIELDS = {  # of configs, by setting
    "epochs": "clients.epochs",
    "steps": "clients.steps or clients.seconds",
    "batch": "clients.batch",
    "rate": "clients.lr",
    "share": "devices.late='partial'",
    "rank": "clients.rank",
}


class ClientWork(NamedTuple):
    """Work of the clients' rounds, [N] each, in examples of plain training of their networks.

    It is fixed + share * (epochs * own + shared), with the epochs and the share of a client's settings.

    Attributes:
      fixed: beside local steps that may be the client's own.
      own: of one of its own epochs.
      shared: of other training, of whose steps it takes its share.
      epochs: own epochs; a fraction where a client has a number of steps; 0 where it has neither.
      longest: the most epochs of a training: its own, or those of other training.
      size, batch: examples of the client, and of its full minibatches.
    """

    fixed: np.ndarray
    own: np.ndarray
    shared: np.ndarray
    epochs: np.ndarray
    longest: np.ndarray
    size: np.ndarray
    batch: np.ndarray

    @property
    def steps(self) -> np.ndarray:
        """[N] local steps of an epoch, the last of them on fewer examples."""
        return np.ceil(self.size / self.batch)

    def count_steps(self, epochs: np.ndarray) -> np.ndarray:
        """Returns [N] the local steps that are done after these epochs, counted by examples."""
        epochs = np.maximum(epochs, 0) * (1 + 1e-9)  # of rounding
        rest = np.floor((epochs - np.floor(epochs)) * self.size / self.batch)
        return np.floor(epochs) * self.steps + np.minimum(rest, np.maximum(self.steps - 1, 0))

    def count_epochs(self, steps: np.ndarray) -> np.ndarray:
        """Returns [N] the epochs of these local steps, counted by examples."""
        whole, rest = np.divmod(steps, np.maximum(self.steps, 1))
        return whole + np.minimum(rest * self.batch / np.maximum(self.size, 1), 1)

    def total(self, share: np.ndarray | float = 1.0) -> np.ndarray:
        """Returns [N] the work with this share of the local steps."""
        return self.fixed + share * (self.epochs * self.own + self.shared)


def measure_work(spec: SimulationSpec) -> ClientWork:
    """Returns the work of the clients' rounds.

    Work is the FLOP of matrix products and convolutions (`flop_count.py`). Two epochs of FedAvg over
    50 examples are 100; a forward pass over them is about a third of 50,
    counted by its own FLOP. A branch that depends on the round counts as its larger side. A loop over minibatches
    of other data, such as FedMD's public examples, counts as one over the client's own.

    Raises:
      ValueError: a network has neither matrix products nor convolutions.
    """
    sizes, settings = np.asarray(spec.host_arrays.size, np.float64), spec.host_arrays.settings
    work = ClientWork(*np.zeros((5, spec.population)), size=sizes, batch=np.ones(spec.population))
    for g, group in enumerate(spec.groups):
        counts, epochs, batch = _count_work(spec, g)
        plain = _count_plain_work(spec, g)
        if plain == 0:
            raise ValueError(
                f"devices.profile: network {group.task.model.name!r} has neither matrix products nor convolutions, by which "
                "the work of a client is counted"
            )
        i, (once, fixed, own, shared) = group.clients, (count / plain for count in counts)
        work.fixed[i], work.own[i], work.shared[i] = once + fixed * sizes[i], own * sizes[i], shared * sizes[i]
        if settings is None or not batch:
            continue
        work.batch[i] = batch if settings.batch is None else np.clip(np.asarray(settings.batch)[i], 1, batch)
        if settings.epochs is not None:
            work.epochs[i] = np.asarray(settings.epochs)[i]
        elif settings.steps is not None:
            work.epochs[i] = work.count_epochs(np.asarray(settings.steps))[i]
        work.longest[i] = np.maximum(work.epochs[i], epochs)
    return work


def check_settings(spec: SimulationSpec) -> None:
    """Raises ValueError if a group's method does not read the settings of local training by client."""
    if spec.host_arrays.settings is not None:
        for g in range(len(spec.groups)):
            _trace_update(spec, g)


def _trace_update(spec: SimulationSpec, g: int) -> ClosedJaxpr:
    """Traces a round of group g's client; raises ValueError if it does not read its settings."""

    def update(settings: Any, arrays: DeviceArrays, sent: PyTree, client: PyTree, size: Array, round_num: Array, key: Array):
        data = spec.client_data(arrays, 0, size)._replace(settings=settings)
        return spec.algorithm(g, arrays, round_num).client_update(sent, client, data, key)

    shapes, number = spec.shapes.groups[g], jax.ShapeDtypeStruct((), np.int32)
    settings = jax.tree.map(lambda x: jax.ShapeDtypeStruct((), x.dtype), spec.host_arrays.settings)
    jaxpr = jax.make_jaxpr(update)(settings, spec.abstract_arrays, shapes.sent, shapes.client, number, number, jax.random.key(0))
    used = {id(variable) for equation in jaxpr.jaxpr.eqns for variable in equation.invars}
    for (path, _), variable in zip(jax.tree.leaves_with_path(settings), jaxpr.jaxpr.invars, strict=False):
        if id(variable) not in used:
            name = jax.tree_util.keystr(path, simple=True)
            raise ValueError(
                f"{FIELDS[name]}: {builder_name(spec.groups[g].build)} does not read it; only local training by "
                "`local_training.fit`, with the method's epochs, batch and optimizer, does"
            )
    return jaxpr


def _count_work(spec: SimulationSpec, g: int) -> tuple[tuple[float, ...], int, int]:
    """Returns FLOP, epochs and minibatch of the training in a round of group g's client.

    The FLOP are those without examples; and of each example, those that no setting changes, those of
    one of its own epochs, and those of training of which it takes a share. Epochs are the most of
    such training, the minibatch is that of its own epochs, or else of this training; 0 without any.
    """
    jaxpr = _trace_update(spec, g)
    loops: set[tuple[int | None, int]] = {(0, 0)}  # epochs of a training, None: the client's own; examples of its minibatch

    def count(size: float, own: float, share: float) -> float:
        def trips(name: str) -> float | None:
            loop = parse_loop(name)
            if loop is None or loop.kind != "epochs":
                return _count_steps(size, loop)
            loops.add((loop.epochs, loop.size))
            return own if loop.epochs is None else share * loop.epochs

        return count_flops(jaxpr, trips)

    once, fixed = count(0.0, 0.0, 0.0), count(1.0, 0.0, 0.0)
    flops = once, fixed - once, count(1.0, 1.0, 0.0) - fixed, count(1.0, 0.0, 1.0) - fixed
    epochs, batch = max((epochs, batch) for epochs, batch in loops if epochs is not None)
    return flops, epochs, next((b for own, b in loops if own is None), batch)


def _count_plain_work(spec: SimulationSpec, g: int) -> float:
    """Returns the FLOP of training group g's network on one example."""
    task = spec.groups[g].task

    def train(arrays: DeviceArrays, net: Net, size: Array, key: Array):
        bound = task.bind(arrays.tasks[g], 0)
        fit = local_training.fit(local_training.supervised_loss(bound), optax.sgd(0.1), epochs=1, batch=BATCH)
        return fit(net, spec.client_data(arrays, 0, size), key).net

    net, number = jax.eval_shape(task.model.init, jax.random.key(0)), jax.ShapeDtypeStruct((), np.int32)
    jaxpr = jax.make_jaxpr(train)(spec.abstract_arrays, net, number, jax.random.key(0))
    return count_flops(jaxpr, lambda name: _count_steps(1.0, parse_loop(name)))


def _count_steps(size: float, loop: Loop | None) -> float | None:
    """Returns the steps of a loop over `size` examples, a part of a minibatch as a part of a step; None for other loops."""
    match loop:
        case Loop("micro_batches", turns):
            return turns
        case Loop("batches", batch):
            return size / batch
    return None
