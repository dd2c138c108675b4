"""Asynchronous rounds: a round is one step of the server over the updates that have arrived.

Who arrives, and how stale the update is, follows from the clients' durations and the sampler. The
host computes it before the round (`devices/arrivals.py`), and the program reads it (`arrival_windows.py`).

What a client sends is a function of what it downloaded, its state and its data, so it is computed
in the round of its arrival. The state of the simulation has a ring of what earlier broadcasts were
made of. A client is at one place at a time, so its state is the same at its download and its arrival.

The draws and the learning rate of a client's update are those of the round of its download.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, Array, PyTree, builder_name
from fedjax_core.devices.arrivals import KEPT, bound_ring
from fedjax_core.devices.durations import count_awaited
from fedjax_core.devices.schedules import Schedule
from fedjax_core.engine.arrival_windows import Arrivals, Asynchrony, ClientArrival
from fedjax_core.engine.client_sampler import ClientSampler
from fedjax_core.engine.client_sampling import is_known_ahead
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.simulation_spec import SimulationSpec, State
from fedjax_core.training.adapters import truncate_adapters
from fedjax_core.uplink import UplinkTransform, unwrap
from fedjax_core.uplink.staleness import KIND, Stale

# before anything is compiled


def buffer_size(schedule: Schedule, concurrency: int) -> int:
    """Returns K.

    Raises:
      ValueError: it is more than the clients that train at once.
    """
    if schedule.buffer > concurrency:
        raise ValueError(
            f"schedule: buffer={schedule.buffer} must be at most the {concurrency} clients that train at once (cohort)"
        )
    size = count_awaited(schedule.buffer, concurrency)
    assert size is not None
    return size


def add_schedule(
    spec: SimulationSpec, schedule: Schedule, sampler: ClientSampler, transforms: Sequence[UplinkTransform]
) -> SimulationSpec:
    """Returns the simulation with an asynchronous schedule; `spec` has its transform, the clients' devices and shapes.

    Args:
      sampler: of the stream of clients.
      transforms: of uplinks, in their order; the schedule's is among them.

    Raises:
      ValueError: something does not go with it.
    """
    given = f"schedule {schedule.name!r}"
    if spec.rounds_per_dispatch > KEPT:
        raise ValueError(f"{given} and rounds_per_dispatch={spec.rounds_per_dispatch}: one dispatch has at most {KEPT} rounds")
    devices, profiled = spec.client_devices, spec.client_seconds is not None
    if devices is not None and devices.availability is not None:
        raise ValueError(f"{given} and devices.availability: rounds of availability are those of a synchronous server")
    if devices is not None and (devices.deadline is not None or devices.wait_for is not None):
        raise ValueError(f"{given} and devices.deadline or devices.wait_for: the schedule's buffer says for whom the server waits")
    if not is_known_ahead(sampler):
        raise ValueError(f"{given} samples its clients before training; cohort.sampling must be 'fixed', 'cyclic' or 'poisson'")
    if spec.plan.model > 1:
        raise ValueError(f"{given} and plan.model={spec.plan.model}: the ring of broadcasts is not divided over devices")
    empty = np.flatnonzero(np.asarray(spec.host_arrays.size) == 0)
    if profiled and 0 < len(empty) < spec.population:
        raise ValueError(
            f"{given} and devices.profile: {len(empty)} of {spec.population} clients, such as client {empty[0]}, have no training "
            "examples; they would arrive early and fill the server's buffer with nothing; leave them out of the data, or partition "
            "with min_size=1"
        )
    seconds = spec.client_seconds if profiled else np.ones(spec.population)
    assert seconds is not None
    server_seconds = 0.0 if devices is None else devices.server_seconds
    buffer, window = spec.sampler.size, (spec.rounds_per_dispatch, spec.sampler.size)
    asynchrony = Asynchrony(
        schedule,
        sampler,
        buffer,
        seconds,
        server_seconds,
        slots=bound_ring(seconds, sampler.size, buffer, schedule.max_staleness, server_seconds),
        in_ring=_find_ring_leaves(spec),
        memory=[transform.kind for transform in transforms].index(KIND),
    )
    numbers = np.zeros(window, np.int32)
    arrivals = Arrivals(np.int32(0), numbers, numbers, numbers, np.zeros(window, np.float32), numbers[:, 0])
    arrays = spec.host_arrays._replace(arrivals=arrivals)
    return dataclasses.replace(spec, asynchrony=asynchrony, host_arrays=arrays)


def check_method(spec: SimulationSpec, schedule: Schedule) -> None:
    """Raises ValueError if the server moves to clients' models, and clients do not send back what they were broadcast.

    Args:
      spec: before transforms wrap the method.
    """
    describe = lambda tree: (jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)])
    for group, shapes in zip(spec.groups, spec.shapes.groups, strict=True):
        if schedule.mixes_models and describe(shapes.sent) != describe(shapes.out.uplink):
            raise ValueError(
                f"schedule {schedule.name!r} mixes the server's model with a client's; clients of {builder_name(group.build)} do "
                "not send back what they were broadcast, with its changes; 'fedbuff' needs a delta only"
            )


def _find_ring_leaves(spec: SimulationSpec) -> tuple[bool, ...]:
    """Returns which leaves of the method's server state some broadcast depends on."""
    arrays, number = spec.abstract_arrays, jax.ShapeDtypeStruct((), np.int32)
    in_ring: list[bool] = []
    for g, shapes in enumerate(spec.shapes.groups):
        leaves, structure = jax.tree.flatten(unwrap(shapes.server))

        def broadcast(leaves: list[Any], arrays: DeviceArrays, i: Array, g: int = g, structure: Any = structure) -> PyTree:
            server = spec.shapes.groups[g].server._replace(inner=structure.unflatten(leaves), memory=())
            return unwrap(spec.algorithm(g, arrays, i).broadcast(server, i))

        used = _find_used(jax.make_jaxpr(broadcast)(leaves, arrays, number).jaxpr)[: len(leaves)]
        in_ring = used if not in_ring else [a or b for a, b in zip(in_ring, used, strict=True)]
    return tuple(in_ring)


def _find_used(jaxpr: Any) -> list[bool]:
    """Returns which inputs of a jaxpr its outputs may depend on."""
    used = {id(v) for v in jaxpr.outvars}
    for eqn in reversed(jaxpr.eqns):
        if any(id(v) in used for v in eqn.outvars):
            used |= {id(v) for v in eqn.invars}
    return [id(v) in used for v in jaxpr.invars]


# inside the program


def init_ring(spec: SimulationSpec, server: PyTree) -> PyTree:
    """Returns the ring before round 1: leaves [S, ...], the first broadcast in slot 0; `()` without schedule."""
    if spec.asynchrony is None:
        return ()
    slots = spec.asynchrony.slots
    return [jnp.zeros((slots, *x.shape), x.dtype).at[0].set(x) for x in _ring_leaves(spec.asynchrony, server)]


def push_broadcast(spec: SimulationSpec, arrays: DeviceArrays, state: State, server: PyTree) -> PyTree:
    """Returns the ring after a round that made `server`."""
    if spec.asynchrony is None:
        return ()
    target = arrays.arrivals.target[state.round - arrays.arrivals.first]
    return [ring.at[target].set(x) for ring, x in zip(state.ring, _ring_leaves(spec.asynchrony, server), strict=True)]


def _ring_leaves(asynchrony: Asynchrony, server: PyTree) -> list[Array]:
    pairs = zip(jax.tree.leaves(unwrap(server)), asynchrony.in_ring, strict=True)
    return [leaf for leaf, in_ring in pairs if in_ring]


def read_ids(arrays: DeviceArrays, round_num: Array) -> Array:
    """Returns the clients [K] whose updates a round takes."""
    return jnp.asarray(arrays.arrivals.ids)[round_num - arrays.arrivals.first]


def read_arrivals(spec: SimulationSpec, arrays: DeviceArrays, round_num: Array, ids: Array) -> Any:
    """Returns the arrivals of a round's clients `ids` [C], `ClientArrival` with leaves [C]; `()` without schedule."""
    if spec.asynchrony is None:
        return ()
    window = jax.tree.map(jnp.asarray, arrays.arrivals)
    row = round_num - window.first
    place = jnp.argmax(window.ids[row][None] == ids[:, None], 1)
    return ClientArrival(window.staleness[row][place], window.slots[row][place], window.weight[row][place])


def rewind_server(
    spec: SimulationSpec,
    algorithm: Algorithm,
    arrays: DeviceArrays,
    server: PyTree,
    ring: PyTree,
    arrival: ClientArrival,
    i: Array,
) -> PyTree:
    """Returns the server as it was at client i's download, with the weight of its update."""
    assert spec.asynchrony is not None
    leaves, structure = jax.tree.flatten(server.inner)
    newest = _ring_leaves(spec.asynchrony, server)
    # A branch is not fused with what reads its result, so the ring may change in place after the clients.
    past = iter(jax.lax.cond(arrival.staleness > 0, lambda: [leaf[arrival.slot] for leaf in ring], lambda: newest))
    inner = structure.unflatten([next(past) if used else x for x, used in zip(leaves, spec.asynchrony.in_ring, strict=True)])
    rewound, gap = server._replace(inner=inner), ()
    if spec.asynchrony.schedule.mixes_models:
        then, now = (unwrap(algorithm.broadcast(version, i)) for version in (rewound, server))
        gap = jax.tree.map(jnp.subtract, then, now)
        if arrays.settings is not None and arrays.settings.rank is not None:  # a client changes nothing in what it lacks
            gap = truncate_adapters(gap, jnp.asarray(arrays.settings.rank)[i])
    memory = list(server.memory)
    memory[spec.asynchrony.memory] = Stale(arrival.weight, gap)
    return rewound._replace(memory=tuple(memory))


# on the host


def step_facts(spec: SimulationSpec, key_data: Any, round_num: int, record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of a round by the schedule: staleness of the updates that came, dropped ones, seconds.

    Args:
      round_num: from 1.
      record: the raw record.
    """
    assert spec.asynchrony is not None
    steps = spec.asynchrony.read_steps(key_data, max(round_num - 2, 0), min(round_num, 2))
    step, before = steps[-1], steps[0].seconds if round_num > 1 else 0.0
    staleness = step.staleness[np.isin(step.ids, np.asarray(record["ids"]))]
    facts: dict[str, float] = {}
    if len(staleness):
        facts |= {"staleness": float(staleness.mean()), "max_staleness": int(staleness.max())}
    if spec.asynchrony.schedule.max_staleness is not None:
        facts["too_stale"] = step.dropped
    if spec.client_seconds is not None:
        facts["simulated_seconds"] = step.seconds - before
    return facts
