"""Participation in a round by the clients' devices: who comes back in time, and how long it takes.

The seconds of a client's round are the same in every round, and are known before any. So a program
compares ranks, and seconds are only computed on the host, from a record's client ids.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, ClientSettings
from fedjax_core.devices import ClientDevices
from fedjax_core.devices.client_values import LARGEST
from fedjax_core.devices.durations import client_seconds, list_awaited
from fedjax_core.engine import client_sampling
from fedjax_core.engine.client_work import measure_work
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays, Participation
from fedjax_core.engine.simulation_spec import SimulationSpec
from fedjax_core.engine.streams import stream_key


def add_client_devices(spec: SimulationSpec, devices: ClientDevices) -> SimulationSpec:
    """Returns the simulation with clients' devices; `spec` has the shapes of all messages.

    Raises:
      ValueError: no client's round ends before the deadline; the server waits for more clients than
        a cohort has; a policy needs a profile.
    """
    if devices.profiles is None:
        if devices.deadline is not None or devices.wait_for is not None:
            raise ValueError("devices.deadline and devices.wait_for need devices.profile, by which clients take time")
        if devices.seconds is not None:
            raise ValueError("clients.seconds needs devices.profile, by which clients take time")
    if devices.is_partial and devices.deadline is None:
        raise ValueError("devices.late='partial' needs devices.deadline")
    wanted: dict[str, Any] = {}
    seconds = None
    if devices.profiles is not None:
        spec, seconds, is_late = count_client_seconds(spec, devices)
        has_examples = np.asarray(spec.host_arrays.size) > 0
        if is_late[has_examples].all():
            raise _too_short(devices, float(seconds[has_examples].min()))
        if np.any(devices.profiles.failure):
            wanted["failure"] = devices.profiles.failure.astype(np.float32)
        if is_late.any() or devices.deadline is not None:
            wanted["is_late"] = is_late
        if devices.wait_for is not None:
            wanted["rank"] = np.argsort(np.argsort(seconds, kind="stable")).astype(np.int32)
            wanted["awaited"] = list_awaited(devices.wait_for, spec.sampler.size, spec.sampler.slots)
        if "seconds" in spec.sampler.needs:
            wanted["seconds"] = seconds.astype(np.float32)
    if devices.availability is not None:
        wanted["availability"] = devices.availability.arrays
        ids = jnp.zeros(3, jnp.int32)
        shape = jax.eval_shape(devices.availability.is_available, devices.availability.arrays, jnp.int32(0), ids)
        if shape.shape not in ((), (3,)) or shape.dtype != bool:
            raise TypeError(f"devices.availability must give a bool [C] of ids [C]; of 3 it gives {shape.dtype}{list(shape.shape)}")
    arrays = spec.host_arrays._replace(participation=Participation(**wanted) if wanted else None)
    return dataclasses.replace(spec, client_devices=devices, client_seconds=seconds, host_arrays=arrays)


def _too_short(devices: ClientDevices, fastest: float) -> ValueError:
    """Returns the error where no client has time for its part of a round."""
    if devices.seconds is not None:
        return ValueError(f"clients.seconds: no client has time for a local step; the fastest needs {fastest:.4g} s")
    ends = "first step ends" if devices.is_partial else "round ends"
    return ValueError(f"devices.deadline={devices.deadline:g} s is before the fastest client's {ends}, {fastest:.4g} s")


def count_client_seconds(spec: SimulationSpec, devices: ClientDevices) -> tuple[SimulationSpec, np.ndarray, np.ndarray]:
    """Returns the seconds of each client's round [N], and whether these are too many.

    Clients with a budget of seconds get the local steps that fit into it; of those that would miss a
    deadline, with `is_partial`, the share that does. A client for which not one step fits is late.

    Returns:
      (the simulation with these steps and shares; seconds; [N] bool whose uplink comes too late).
    """
    assert devices.profiles is not None
    down, up = np.zeros(spec.population), np.zeros(spec.population)
    for g, (group, shapes) in enumerate(zip(spec.groups, spec.shapes.groups, strict=True)):
        down[group.clients], up[group.clients] = (spec.count_bytes(g, tree) for tree in shapes.wire)
    of_work = functools.partial(client_seconds, devices.profiles, down=down, up=up)
    has_examples, is_late = np.asarray(spec.host_arrays.size) > 0, np.zeros(spec.population, bool)
    if devices.seconds is not None:
        work = measure_work(_with_settings(spec, steps=np.ones(spec.population, np.int32)))
        before = of_work(work.fixed + work.shared)
        steps = work.count_steps(_divide(devices.seconds - before, of_work(work.fixed + work.shared + work.own) - before))
        is_late = has_examples & (steps < 1)
        if (most := steps.max()) >= LARGEST:
            raise ValueError(f"clients.seconds: a client takes {most:.3g} local steps in its budget; at most 2**24 are counted")
        spec = _with_settings(spec, steps=np.maximum(steps, 1).astype(np.int32))
    seconds = of_work(measure_work(spec).total())
    if devices.seconds is not None:
        seconds = np.where(is_late, seconds, np.minimum(seconds, devices.seconds))  # where rounding exceeds it
    if devices.deadline is None:
        return spec, seconds, is_late
    if devices.is_partial and (is_slow := seconds > devices.deadline).any():
        work = measure_work(_with_settings(spec, share=np.ones(spec.population, np.float32)))
        before, planned = of_work(work.fixed), np.maximum(work.count_steps(work.longest), 1)
        fitting = work.count_steps(work.longest * _divide(devices.deadline - before, seconds - before))
        steps = np.maximum(fitting, 1)
        taken = of_work(work.total(_divide(work.count_epochs(steps), work.longest)))
        taken = np.where(fitting < 1, taken, np.minimum(taken, devices.deadline))
        seconds = np.where(is_slow, taken, seconds)
        share = np.where(is_slow, (steps + 0.25) / planned, 1)  # of which float32 rounds down to the steps
        spec = _with_settings(spec, share=np.minimum(share, 1).astype(np.float32))
    return spec, seconds, is_late | (seconds > devices.deadline)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns a / b; 0 where b is 0."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


def _with_settings(spec: SimulationSpec, **changed: np.ndarray) -> SimulationSpec:
    """Returns the simulation with other settings by client."""
    settings = (spec.host_arrays.settings or ClientSettings())._replace(**changed)
    return dataclasses.replace(spec, host_arrays=spec.host_arrays._replace(settings=settings))


def least_memory(spec: SimulationSpec) -> np.ndarray:
    """Returns [N] bytes that a client cannot do without: what it receives, keeps between rounds and sends.

    A message counts as it is transmitted or as the method reads it, whichever is smaller: what is
    for scores alone is not transmitted.
    """
    least = np.zeros(spec.population)
    for g, (group, shapes) in enumerate(zip(spec.groups, spec.shapes.groups, strict=True)):
        count = functools.partial(spec.count_bytes, g)
        messages = zip(shapes.wire, (shapes.sent, shapes.out.uplink), strict=True)
        least[group.clients] = count(shapes.client) + sum(np.minimum(*map(count, pair)) for pair in messages)
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
    assert arrays.participation is not None
    of_clients = arrays.participation
    availability = spec.client_devices.availability
    at = lambda ids: jnp.minimum(ids, spec.population - 1)

    def comes_back(ids: Array) -> Array:
        i = at(ids)
        mask = (ids < spec.population) & (arrays.size[i] > 0)
        if spec.dropout:
            mask &= client_sampling.draw_stays(stream_key(key_data, "dropout", round_num), ids, spec.dropout)
        if of_clients.failure is not None:
            draw_key = stream_key(key_data, "failure", round_num)
            mask &= client_sampling.draw_stays(draw_key, ids, jnp.asarray(of_clients.failure)[i])
        if availability is not None:
            mask &= availability.is_available(of_clients.availability, round_num, i)
        if of_clients.is_late is not None:
            mask &= ~jnp.asarray(of_clients.is_late)[i]
        return mask

    if of_clients.awaited is None:
        return comes_back
    ranks = jnp.where(comes_back(ids), jnp.asarray(of_clients.rank)[at(ids)], spec.population)
    last = jnp.sort(ranks)[jnp.asarray(of_clients.awaited)[count_sampled(spec, arrays, ids)] - 1]
    return lambda ids: comes_back(ids) & (jnp.asarray(of_clients.rank)[at(ids)] <= last)


def count_sampled(spec: SimulationSpec, arrays: DeviceArrays, ids: Array) -> Array:
    """Returns how many clients with examples were sampled for a round, whether they came back or not.

    Args:
      ids: [C] the cohort; N in empty slots.
    """
    return jnp.sum((ids < spec.population) & (arrays.size[jnp.minimum(ids, spec.population - 1)] > 0))


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
        awaited, of_clients = int(record["sampled"]), spec.host_arrays.participation
        if of_clients is not None and of_clients.awaited is not None:
            awaited = min(awaited, int(of_clients.awaited[awaited]))
        last = last if len(ids) >= awaited else float(devices.deadline)
    return {"simulated_seconds": last + devices.server_seconds}
