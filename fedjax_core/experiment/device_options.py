"""Reads the fields of a config about clients' devices."""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_core.devices import ClientDevices, Schedule, draw_profiles, make_availability, parse_schedule
from fedjax_core.devices.availability import find_availability
from fedjax_core.devices.profiles import find_profile
from fedjax_core.engine.participation import least_memory
from fedjax_core.engine.simulation_spec import SimulationSpec
from fedjax_core.registry import ResolvedSpec
from fedjax_core.uplink import compression

NEED_PROFILE = ("deadline", "late", "wait_for", "server_seconds")


class DeviceOptions(NamedTuple):
    """The fields of a config about clients' devices; see `ClientDevices`.

    Attributes:
      late: what becomes of clients that would come back after the deadline: "drop" or "partial".
    """

    profile: ResolvedSpec | None
    availability: ResolvedSpec | None
    deadline: float | None
    late: str
    wait_for: int | float | None
    server_seconds: float


def parse_devices(fields: Mapping[str, Any]) -> DeviceOptions | None:
    """Returns the options of clients' devices; None where the config has none.

    Raises:
      ValueError, TypeError: a name or an option does not exist, a value is not allowed, or fields
        do not go together; the message names the field.
    """
    given = {name: fields[f"devices.{name}"] for name in DeviceOptions._fields}
    if all(value is None for value in given.values()):
        return None
    if given["profile"] is None:
        for name in NEED_PROFILE:
            if given[name] is not None:
                raise ValueError(f"devices.{name}={given[name]!r} needs devices.profile, by which clients take time")
    if given["late"] is not None and given["deadline"] is None:
        raise ValueError(f"devices.late={given['late']!r} needs devices.deadline")
    options = DeviceOptions(
        None if given["profile"] is None else find_profile(given["profile"]),
        None if given["availability"] is None else find_availability(given["availability"]),
        given["deadline"],
        given["late"] or "drop",
        given["wait_for"],
        given["server_seconds"] or 0.0,
    )
    if fields["privacy.mechanism"] is not None:
        for name in ("availability", "deadline", "wait_for"):
            if given[name] is not None:
                raise _private_error(f"devices.{name}={given[name]!r}", fields)
    return options


def _private_error(what: str, fields: Mapping[str, Any]) -> ValueError:
    mechanism = fields["privacy.mechanism"]
    return ValueError(
        f"{what} and privacy.mechanism={mechanism!r}: epsilon is computed for clients that come back whenever they are sampled, "
        "whatever their data and devices are; only dropout is allowed for"
    )


def find_schedule(fields: Mapping[str, Any]) -> Schedule | None:
    """Returns the asynchronous schedule of a config; None where rounds are synchronous.

    Raises:
      ValueError, TypeError: as `parse_schedule`; or privacy or a weighted vote goes with it.
    """
    spec, mechanism = fields["schedule"], fields["privacy.mechanism"]
    if spec is None:
        return None
    if mechanism is not None:
        raise ValueError(
            f"schedule={spec!r} and privacy.mechanism={mechanism!r}: epsilon is computed for the cohorts of synchronous rounds; "
            "who is in a buffer depends on the clients' speeds"
        )
    schedule, uplink = parse_schedule(spec), fields["compression.uplink"]
    if schedule.has_weights and uplink is not None and compression.parse_compressor(uplink).reduce is not None:
        raise ValueError(
            f"schedule={spec!r} and compression.uplink={uplink!r}: the schedule weights deltas, and a vote has no weight; "
            "fedbuff(staleness='constant', server_lr=1) weights nothing"
        )
    return schedule


def make_client_devices(
    options: DeviceOptions | None, population: int, seed: int, fields: Mapping[str, Any], seconds: np.ndarray | None
) -> ClientDevices | None:
    """Returns the clients' devices; None without.

    Args:
      options: from `parse_devices`.
      population: N.
      seed: the data seed.
      fields: all fields of the config by dotted name.
      seconds: [N] the clients' budgets; None: they have none.

    Raises:
      ValueError, TypeError, OSError: as `draw_profiles` and `make_availability`; privacy with
        devices that fail.
    """
    if options is None:
        return None
    profiles = None if options.profile is None else draw_profiles(options.profile, population, seed)
    if profiles is not None and profiles.failure.any() and fields["privacy.mechanism"] is not None:
        raise _private_error("devices.profile with failures", fields)
    availability = None if options.availability is None else make_availability(options.availability, population, seed)
    policies = options.deadline, options.wait_for, options.server_seconds
    return ClientDevices(profiles, availability, *policies, options.late == "partial", seconds)


def describe_devices(spec: SimulationSpec) -> dict[str, Any]:
    """Returns digests of clients' devices and settings for run.json, which a resumed run must have.

    Those of an asynchronous run include the time that each client takes, from which its order of arrivals is drawn again.
    """
    devices, facts = spec.client_devices, {}
    if devices is not None and devices.profiles is not None:
        facts["profiles"] = _digest(devices.profiles)
    if devices is not None and devices.availability is not None:
        facts["availability"] = _digest(devices.availability.arrays)
    if spec.host_arrays.settings is not None:
        facts["settings"] = _digest(spec.host_arrays.settings)
    described: dict[str, Any] = {"devices": facts} if facts else {}
    if spec.asynchrony is not None and spec.client_seconds is not None:
        described["arrivals"] = {"client_seconds": _digest(np.char.mod("%.6e", spec.client_seconds))}
    return described


def _digest(tree: Any) -> str:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def check_devices(spec: SimulationSpec) -> list[str]:
    """Returns warnings of clients that never finish in time, and of those whose memory is too small."""
    devices, seconds, lines = spec.client_devices, spec.client_seconds, []
    if devices is None or devices.profiles is None or seconds is None:
        return lines
    for field, limit in ((f"devices.deadline={devices.deadline}", devices.deadline), ("clients.seconds", devices.seconds)):
        if limit is not None and (late := int(np.sum(seconds > limit))):
            lines.append(
                f"{field}: the rounds of {late} of {spec.population} clients take longer (at most {seconds.max():.4g} s), so "
                "they never count"
            )
    least = least_memory(spec)
    if small := int(np.sum(devices.profiles.memory < least)):
        lines.append(
            f"devices.profile: {small} of {spec.population} clients have less memory (at least {devices.profiles.memory.min():.4g} "
            f"bytes) than what they receive, keep and send takes, {least.max():.4g} bytes; they train nevertheless"
        )
    return lines
