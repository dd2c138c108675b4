"""Profiles of the clients' devices, from a named distribution or a file.

A profile of one's own is a function in a module or file, which a config names by its place
(`registry.py`), or an entry point of the group `fedjax_core.device_profiles`. It takes `draws`
(`ClientDraws`) and options, and returns `DeviceProfiles`.
"""

import csv
import math
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_core import registry
from fedjax_core.option_types import BelowOne, NonNegative, Positive, shorten

Range = tuple[Positive, Positive]
MEBIBIT = 2**20 / 8  # bytes


class DeviceProfiles(NamedTuple):
    """Speed, bandwidth and reliability of each client's device: arrays [N] of float64.

    Attributes:
      examples_per_second: of plain training (forward and backward) of the client's network.
      down, up: bandwidth in bytes/s; infinity: transfers take no time.
      latency: s, once a round.
      memory: in bytes; infinity: unknown.
      failure: probability to fail in a round.
    """

    examples_per_second: np.ndarray
    down: np.ndarray
    up: np.ndarray
    latency: np.ndarray
    memory: np.ndarray
    failure: np.ndarray


# default, allowed values in words, values -> whether they are allowed
LIMITS: dict[str, tuple[float, str, Callable[[Any], Any]]] = {
    "examples_per_second": (math.nan, "a finite positive number", lambda v: (v > 0) & (v < math.inf)),
    "down": (math.inf, "a positive number", lambda v: v > 0),
    "up": (math.inf, "a positive number", lambda v: v > 0),
    "latency": (0.0, "a finite number of at least 0", lambda v: (v >= 0) & (v < math.inf)),
    "memory": (math.inf, "a positive number", lambda v: v > 0),
    "failure": (0.0, "in [0, 1)", lambda v: (v >= 0) & (v < 1)),
}


class ClientDraws(NamedTuple):
    """Random numbers of clients: a client's depend on the seed, their name and its id alone.

    Attributes:
      population: N.
      seed: the data seed.
    """

    population: int
    seed: int

    def uniform(self, name: str) -> np.ndarray:
        """Returns [N] numbers in (0, 1); of a smaller population they are the first of these."""
        return np.maximum(self._generator(name).random(self.population), 2.0**-54)

    def normal(self, name: str) -> np.ndarray:
        """Returns [N] standard normal numbers, likewise."""
        return self._generator(name).standard_normal(self.population)

    def _generator(self, name: str) -> np.random.Generator:
        entropy = np.random.SeedSequence([self.seed, zlib.crc32(f"devices/{name}".encode())])
        return np.random.Generator(np.random.Philox(entropy))


def draw_profiles(found: registry.ResolvedSpec, population: int, seed: int) -> DeviceProfiles:
    """Returns the profiles of N clients by a resolved spec.

    Args:
      found: from `find_profile`.
      population: N.
      seed: the data seed.

    Raises:
      TypeError: a function from outside returned something else.
      ValueError: a value is not allowed; or a file is wrong, says where.
      OSError: a file cannot be read.
    """
    profiles = found(draws=ClientDraws(population, seed))
    if not isinstance(profiles, DeviceProfiles):
        raise TypeError(f"devices.profile={found.spec!r} must return a DeviceProfiles, it returned {shorten(profiles)}")
    arrays = {name: np.asarray(values, np.float64) for name, values in profiles._asdict().items()}
    for name, values in arrays.items():
        if values.shape != (population,):
            raise ValueError(f"devices.profile={found.spec!r}: {name} has shape {list(values.shape)}, not [{population}]")
        _, allowed, holds = LIMITS[name]
        if wrong := np.flatnonzero(~holds(values)).tolist():
            value = values[wrong[0]]
            raise ValueError(f"devices.profile={found.spec!r}: {name} of client {wrong[0]} is {value}, it must be {allowed}")
    return DeviceProfiles(**arrays)


def find_profile(spec: str) -> registry.ResolvedSpec:
    """Returns the distribution of a spec, its options checked."""
    return registry.resolve_spec("device profile", spec, PROFILES, given=GIVEN, field="devices.profile")


def constant(
    *,
    draws: ClientDraws,
    examples_per_second: Positive,
    down: Positive | None = None,
    up: Positive | None = None,
    latency: NonNegative = 0.0,
    memory: Positive | None = None,
    failure: BelowOne = 0.0,
) -> DeviceProfiles:
    """Gives all clients the same device.

    Args:
      draws: of the clients.
      examples_per_second: of plain training.
      down, up: bandwidth in bytes/s; None: transfers take no time.
      latency: s, once a round.
      memory: in bytes; None: unknown.
      failure: probability to fail in a round.
    """
    return _fill(draws, examples_per_second, down, up, latency, memory, failure)


def lognormal(
    *,
    draws: ClientDraws,
    examples_per_second: Positive,
    sigma: NonNegative = 0.5,
    down: Positive | None = None,
    up: Positive | None = None,
    bandwidth_sigma: NonNegative = 0.0,
    latency: NonNegative = 0.0,
    memory: Positive | None = None,
    failure: BelowOne = 0.0,
) -> DeviceProfiles:
    """Draws speeds and bandwidths from log-normal distributions.

    Arguments as those of `constant`.

    Args:
      draws: of the clients.
      examples_per_second: median.
      sigma: standard deviation of the logarithm of the speed.
      down, up: medians.
      bandwidth_sigma: likewise of the bandwidth; `down` and `up` of a client have one factor.
      latency, memory, failure: of all clients.
    """
    speed = examples_per_second * np.exp(sigma * draws.normal("speed"))
    factor = np.exp(bandwidth_sigma * draws.normal("bandwidth"))
    bandwidths = [None if width is None else width * factor for width in (down, up)]
    return _fill(draws, speed, *bandwidths, latency, memory, failure)


def uniform(
    *,
    draws: ClientDraws,
    examples_per_second: Range,
    down: Range | None = None,
    up: Range | None = None,
    latency: tuple[NonNegative, NonNegative] = (0.0, 0.0),
    memory: Positive | None = None,
    failure: BelowOne = 0.0,
) -> DeviceProfiles:
    """Draws speeds, bandwidths and latencies uniformly between two numbers (lowest, highest), each
    by itself.

    Arguments as those of `constant`.
    """
    ranges = {"examples_per_second": examples_per_second, "down": down, "up": up, "latency": latency}
    drawn = {}
    for name, bounds in ranges.items():
        if bounds is not None and bounds[0] > bounds[1]:
            raise ValueError(f"devices.profile: {name}={bounds} must be (lowest, highest)")
        drawn[name] = None if bounds is None else bounds[0] + (bounds[1] - bounds[0]) * draws.uniform(name)
    return _fill(draws, *drawn.values(), memory, failure)


def exponential(
    *,
    draws: ClientDraws,
    examples_per_second: Positive,
    down: Positive | None = None,
    up: Positive | None = None,
    latency: NonNegative = 0.0,
    memory: Positive | None = None,
    failure: BelowOne = 0.0,
) -> DeviceProfiles:
    """Draws the seconds that an example takes from an exponential distribution.

    Arguments as those of `constant`.

    Args:
      draws: of the clients.
      examples_per_second: 1 over the mean of these seconds.
      down, up, latency, memory, failure: of all clients.
    """
    return _fill(draws, examples_per_second / -np.log(draws.uniform("speed")), down, up, latency, memory, failure)


def half_normal(
    *,
    draws: ClientDraws,
    examples_per_second: Positive,
    sigma: NonNegative = 1.0,
    down: Positive | None = None,
    up: Positive | None = None,
    latency: NonNegative = 0.0,
    memory: Positive | None = None,
    failure: BelowOne = 0.0,
) -> DeviceProfiles:
    """Draws how many times as long as the fastest device an example takes: 1 + |N(0, sigma^2)|.

    Arguments as those of `constant`.

    Args:
      draws: of the clients.
      examples_per_second: of the fastest device.
      sigma: see above.
      down, up, latency, memory, failure: of all clients.
    """
    slowdown = 1 + np.abs(sigma * draws.normal("speed"))
    return _fill(draws, examples_per_second / slowdown, down, up, latency, memory, failure)


def tiers(
    *,
    draws: ClientDraws,
    weights: tuple[Positive, ...],
    examples_per_second: Positive | tuple[Positive, ...],
    down: Positive | tuple[Positive, ...] | None = None,
    up: Positive | tuple[Positive, ...] | None = None,
    latency: NonNegative | tuple[NonNegative, ...] = 0.0,
    memory: Positive | tuple[Positive, ...] | None = None,
    failure: BelowOne | tuple[BelowOne, ...] = 0.0,
) -> DeviceProfiles:
    """Draws each client's tier; all devices of a tier are equal.

    Arguments as those of `constant`.

    Args:
      draws: of the clients.
      weights: of the tiers, whose shares of the clients are proportional to them.
      examples_per_second: of each tier, or one number for all, as everything below.
      down, up, latency, memory, failure: likewise.
    """
    tier = draw_tier(draws, weights)
    values = {
        "examples_per_second": examples_per_second,
        "down": down,
        "up": up,
        "latency": latency,
        "memory": memory,
        "failure": failure,
    }
    for name, value in values.items():
        if isinstance(value, tuple | list):
            if len(value) != len(weights):
                raise ValueError(
                    f"devices.profile: {name}={shorten(value)} must be one number, or one for each of the {len(weights)} tiers"
                )
            values[name] = np.asarray(value, float)[tier]
    return _fill(draws, *values.values())


def edge(
    *,
    draws: ClientDraws,
    examples_per_second: Positive,
    latency: NonNegative = 0.0,
    memory: Positive | None = None,
    failure: BelowOne = 0.0,
) -> DeviceProfiles:
    """Draws the boards and networks of AFL-Lib's preset, also in APPFL: a third of the clients each.

    A Jetson TX2, a Jetson Nano (1.8125 times as slow) or a Raspberry Pi (11.625 times as slow);
    and Wi-Fi of 150 to 600 Mibit/s, 4G of 20 to 100 or 5G of 50 to 1000, uniformly, both ways.

    Arguments as those of `constant`.

    Args:
      draws: of the clients.
      examples_per_second: of the TX2.
      latency, memory, failure: of all clients.
    """
    slowdown = np.array([1, 1.8125, 11.625])[draw_tier(draws, (1, 1, 1), "board")]
    low, high = np.array([[150, 600], [20, 100], [50, 1000]])[draw_tier(draws, (1, 1, 1), "network")].T
    bandwidth = MEBIBIT * (low + (high - low) * draws.uniform("bandwidth"))
    return _fill(draws, examples_per_second / slowdown, bandwidth, bandwidth, latency, memory, failure)


def from_csv(*, draws: ClientDraws, path: str) -> DeviceProfiles:
    """Reads a CSV file: a line for each client that trains, in the order of their ids.

    Its first line names the columns: examples_per_second, and any of down, up (bytes/s), latency
    (s), memory (bytes) and failure. An empty cell is the default of `constant`.

    Args:
      draws: of the clients; nothing is drawn.
      path: of the file.
    """
    file = Path(path).expanduser()
    what = f"devices.profile: {file}"
    names, lines = read_csv_table(file, what, "examples_per_second", LIMITS, draws.population)
    columns = {name: np.full(draws.population, LIMITS[name][0]) for name in LIMITS}
    for client, (number, line) in enumerate(lines):
        for name, cell in zip(names, line, strict=True):
            columns[name][client] = _parse_cell(cell, name, f"{what}, line {number}, column {name!r}")
    return DeviceProfiles(**columns)


def read_csv_table(
    file: Path, what: str, required: str, allowed: Iterable[str], population: int
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Returns the names of columns of a CSV file, and (number, cells) of the line of each client.

    Args:
      file: its first line names the columns, each of the others is of a client, by id.
      what: how messages begin.
      required: a column that it must have.
      allowed: names of columns.
      population: N.

    Raises:
      ValueError: it is not such a file; says where.
    """
    lines = read_csv_lines(file, what)
    names = [name.strip() for name in lines[0][1]] if lines else []
    for name in names:
        registry.check_choice(f"column in line 1 of {file}", name, allowed)
    if required not in names or len(set(names)) < len(names):
        others = ", ".join(name for name in allowed if name != required)
        raise ValueError(f"{what}, line 1: the columns must be {required} and any of {others}, once each")
    if len(lines) - 1 != population:
        raise ValueError(f"{what} has {len(lines) - 1} lines after the first, one for each client; {population} clients train")
    for number, line in lines[1:]:
        if len(line) != len(names):
            raise ValueError(f"{what}, line {number}: it has {len(line)} cells, line 1 has {len(names)}")
    return names, lines[1:]


def read_csv_lines(file: Path, what: str) -> list[tuple[int, list[str]]]:
    """Returns (number from 1, cells) of each line of a CSV file that is not empty.

    Raises:
      ValueError: there is no such file, or it is no CSV file; the message begins with `what`.
    """
    try:
        lines = list(csv.reader(file.read_text(encoding="utf-8-sig").splitlines(), skipinitialspace=True, strict=True))
    except FileNotFoundError:
        raise ValueError(f"{what}: there is no such file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{what} is not a CSV file: {error}") from None
    return [(number, line) for number, line in enumerate(lines, 1) if line]


def _parse_cell(cell: str, name: str, where: str) -> float:
    """Returns the number in a cell of a column, or the column's default where the cell is empty."""
    default, allowed, holds = LIMITS[name]
    try:
        value = float(cell) if cell.strip() else default
    except ValueError:
        value = math.nan
    if not holds(value):
        raise ValueError(f"{where}: {cell!r} must be {allowed}")
    return value


def draw_tier(draws: ClientDraws, weights: tuple[float, ...], name: str = "tier", field: str = "devices.profile") -> np.ndarray:
    """Returns [N] each client's tier, whose shares are proportional to `weights`."""
    if not weights:
        raise ValueError(f"{field}: weights=() must have one number for each tier, at least one")
    ends = np.cumsum(weights) / np.sum(weights)
    return np.minimum(np.searchsorted(ends, draws.uniform(name), side="right"), len(weights) - 1)


def _fill(draws: ClientDraws, *values: float | np.ndarray | None) -> DeviceProfiles:
    """Returns profiles whose fields have values of all clients, of each one, or (None) infinity."""
    fields = (np.inf if value is None else value for value in values)
    return DeviceProfiles(*(np.broadcast_to(np.asarray(value, float), (draws.population,)) for value in fields))


PROFILES: dict[str, Callable[..., DeviceProfiles]] = {
    "constant": constant,
    "lognormal": lognormal,
    "uniform": uniform,
    "exponential": exponential,
    "half_normal": half_normal,
    "tiers": tiers,
    "edge": edge,
    "from_csv": from_csv,
}
GIVEN = ("draws",)
