"""Participation in a round by the clients' devices: who comes back in time, and how long it takes.

The seconds of a client's round are the same in every round, and are known before any. So a program
compares ranks, and seconds are only computed on the host, from a record's client ids.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, Cohort
from fedjax_core.devices import ClientDevices
from fedjax_core.devices.durations import client_seconds, count_awaited
from fedjax_core.engine import client_sampling
from fedjax_core.engine.client_work import count_client_examples
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.simulation_spec import SimulationSpec, stream_key
from fedjax_core.training import metrics


class Participation(NamedTuple):
    """Arrays of the clients' devices that a round's program reads; `()` for those that it does not need.

    Attributes:
      failure: [N] float32, probability to fail in a round.
      availability: `Availability.arrays`.
      is_late: [N] bool, whose rounds take longer than the deadline.
      rank: [N] int32, of the clients by the seconds of their rounds; by id where these are equal.
      seconds: [N] float32, of their rounds, for a sampler.
    """

    failure: Any = ()
    availability: Any = ()
    is_late: Any = ()
    rank: Any = ()
    seconds: Any = ()


def add_client_devices(spec: SimulationSpec, devices: ClientDevices) -> SimulationSpec:
    """Returns the simulation with clients' devices; `spec` has the shapes of all messages.

    Raises:
      ValueError: no client's round ends before the deadline; the server waits for more clients than
        a cohort has; a policy needs a profile.
    """
    if devices.profiles is None and (devices.deadline is not None or devices.wait_for is not None):
        raise ValueError("devices.deadline and devices.wait_for need devices.profile, by which clients take time")
    wanted: dict[str, Any] = {}
    seconds = None
    if devices.profiles is not None:
        seconds = count_client_seconds(spec, devices)
        fastest = float(seconds[np.asarray(spec.host_arrays.size) > 0].min())
        if devices.deadline is not None and devices.deadline < fastest:
            raise ValueError(f"devices.deadline={devices.deadline:g} s is before the fastest client's round ends, {fastest:.4g} s")
        if np.any(devices.profiles.failure):
            wanted["failure"] = devices.profiles.failure.astype(np.float32)
        if devices.deadline is not None:
            wanted["is_late"] = seconds > devices.deadline
        if devices.wait_for is not None:
            wanted["rank"] = np.argsort(np.argsort(seconds, kind="stable")).astype(np.int32)
        if "seconds" in spec.sampling.needs:
            wanted["seconds"] = seconds.astype(np.float32)
    if devices.availability is not None:
        wanted["availability"] = devices.availability.arrays
    arrays = spec.host_arrays._replace(participation=Participation(**wanted) if wanted else ())
    awaited = count_awaited(devices.wait_for, spec.sampling.size)
    return dataclasses.replace(spec, client_devices=devices, client_seconds=seconds, awaited=awaited, host_arrays=arrays)


def count_client_seconds(spec: SimulationSpec, devices: ClientDevices) -> np.ndarray:
    """Returns [N] the seconds of each client's round."""
    assert devices.profiles is not None
    down, up = np.zeros(spec.population), np.zeros(spec.population)
    for group, shapes in zip(spec.groups, spec.shapes.groups, strict=True):
        down[group.clients], up[group.clients] = (metrics.nbytes(tree) for tree in shapes.wire)
    return client_seconds(devices.profiles, count_client_examples(spec), down, up)


def least_memory(spec: SimulationSpec) -> np.ndarray:
    """Returns [N] bytes that a client cannot do without: what it receives, keeps between rounds and sends.

    A message counts as it is transmitted or as the method reads it, whichever is smaller: what is
    for scores alone is not transmitted.
    """
    least = np.zeros(spec.population)
    for group, shapes in zip(spec.groups, spec.shapes.groups, strict=True):
        messages = zip(shapes.wire, (shapes.sent, shapes.out.uplink), strict=True)
        least[group.clients] = metrics.nbytes(shapes.client) + sum(min(map(metrics.nbytes, pair)) for pair in messages)
    return least


def draw_returns(
    spec: SimulationSpec, arrays: DeviceArrays, key_data: Array, round_num: Array, ids: Array
) -> Callable[[Array], Array]:
    """Draws who comes back in time of a round's clients.

    A client comes back unless it drops out, cannot be reached, fails or is late; with
    `devices.wait_for`, only if it is among the first of these.

    Args:
      spec: the simulation.
      arrays: what all rounds read.
      key_data: the experiment's.
      round_num: from 0.
      ids: [C] the cohort; N in empty slots.

    Returns:
      Ids of the cohort -> [...] bool.
    """
    assert spec.client_devices is not None
    of_clients: Participation = arrays.participation
    availability = spec.client_devices.availability
    at = lambda ids: jnp.minimum(ids, spec.population - 1)

    def comes_back(ids: Array) -> Array:
        i = at(ids)
        mask = (ids < spec.population) & (arrays.size[i] > 0)
        if spec.dropout:
            mask &= client_sampling.draw_stays(stream_key(key_data, "dropout", round_num), ids, spec.dropout)
        if not isinstance(of_clients.failure, tuple):
            draw_key = stream_key(key_data, "failure", round_num)
            mask &= client_sampling.draw_stays(draw_key, ids, jnp.asarray(of_clients.failure)[i])
        if availability is not None:
            mask &= availability.is_available(of_clients.availability, round_num, i)
        if not isinstance(of_clients.is_late, tuple):
            mask &= ~jnp.asarray(of_clients.is_late)[i]
        return mask

    if spec.awaited is None:
        return comes_back
    ranks = jnp.where(comes_back(ids), jnp.asarray(of_clients.rank)[at(ids)], spec.population)
    last = jnp.sort(ranks)[spec.awaited - 1]
    return lambda ids: comes_back(ids) & (jnp.asarray(of_clients.rank)[at(ids)] <= last)


def count_sampled(spec: SimulationSpec, arrays: DeviceArrays, cohort: Cohort) -> Array:
    """Returns how many clients of a round were sampled, whether they came back or not."""
    return jnp.sum((cohort.ids < spec.population) & (arrays.size[jnp.minimum(cohort.ids, spec.population - 1)] > 0))


def round_time(spec: SimulationSpec, record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metric "simulated_seconds" of a round, from its raw record; {} without profiles.

    The round ends when the slowest client comes back, of those that come back in time. With a
    deadline, it ends there if fewer do than the server waits for.
    """
    seconds, devices = spec.client_seconds, spec.client_devices
    if seconds is None or devices is None:
        return {}
    ids = np.asarray(record["ids"])
    ids = ids[ids >= 0]
    last = float(seconds[ids].max(initial=0.0))
    if devices.deadline is not None:
        awaited = int(record["sampled"])
        awaited = awaited if spec.awaited is None else min(awaited, spec.awaited)
        last = last if len(ids) >= awaited else float(devices.deadline)
    return {"simulated_seconds": last + devices.server_seconds}
