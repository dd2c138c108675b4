"""Numbers by client, such as its local epochs, from a named distribution or a file.

A client's number depends on the data seed and its id alone. Tiers are those of the profile `tiers`
with the same weights: a client of the first tier of devices is in the first tier of settings.

A distribution of one's own is a function in a module or file, which a config names by its place
(`registry.py`). It takes `draws` (`ClientDraws`), `name` (of the setting) and options, and returns
an array [N].
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedjax_core import registry
from fedjax_core.devices.profiles import ClientDraws, draw_tier, read_csv_table
from fedjax_core.option_types import Positive, check_value, is_number, shorten

# whether it is an int, of each setting
SETTINGS: dict[str, bool] = {"epochs": True, "steps": True, "seconds": False, "batch": True, "lr": False, "rank": True}
LARGEST = 2**24  # float32 counts so far


def draw_values(found: registry.ResolvedSpec | float, name: str, population: int, seed: int, most: int | None = None) -> np.ndarray:
    """Returns [N] a setting's value for each client, int32 or float64.

    Args:
      found: from `find_values`.
      name: of the setting, one of `SETTINGS`.
      population: N.
      seed: the data seed.
      most: the largest that is allowed, of the network; None: there is no such.

    Raises:
      TypeError: a function from outside returned something else.
      ValueError: a value is not allowed; or a file is wrong, says where.
      OSError: a file cannot be read.
    """
    if not isinstance(found, registry.ResolvedSpec):
        return _check_values(name, repr(found), np.full(population, found), most)
    values = np.asarray(found(draws=ClientDraws(population, seed), name=name))
    if values.shape != (population,) or values.dtype.kind not in "iuf":
        raise TypeError(
            f"clients.{name}={found.spec!r} must return {population} numbers, one for each client, it returned "
            f"{values.dtype}{list(values.shape)}"
        )
    return _check_values(name, repr(found.spec), values, most)


def _check_values(name: str, spec: str, values: np.ndarray, most: int | None) -> np.ndarray:
    wrong = ~((values > 0) & (values < LARGEST) & (values <= (LARGEST if most is None else most))) | (
        SETTINGS[name] & (values != np.floor(values))
    )
    if wrong.any():
        client = int(np.flatnonzero(wrong)[0])
        limit = "below 2**24" if most is None else f"at most the network's {most}"
        allowed = "an int of at least 1" if SETTINGS[name] else "a positive number"
        raise ValueError(f"clients.{name}={spec}: client {client} has {values[client]}, it must be {allowed}, {limit}")
    return values.astype(np.int32 if SETTINGS[name] else np.float64)


def find_values(name: str, value: float | str) -> registry.ResolvedSpec | float:
    """Returns the distribution of a spec, its options checked; a number is that of all clients."""
    if not isinstance(value, str) and is_number(value):
        return value
    return registry.resolve_spec(f"clients.{name}", str(value), VALUES, given=GIVEN, field=f"clients.{name}")


def uniform(*, draws: ClientDraws, name: str, low: Positive, high: Positive) -> np.ndarray:
    """Draws uniformly from `low` to `high`; ints with both ends.

    Args:
      draws: of the clients.
      name: of the setting.
      low, high: least and largest value.
    """
    if low > high:
        raise ValueError(f"clients.{name}: low={low} must be at most high={high}")
    share = draws.uniform(f"clients/{name}")
    if not SETTINGS[name]:
        return low + (high - low) * share
    for end, value in (("low", low), ("high", high)):
        check_value(f"clients.{name}: {end}", value, int)
    return low + np.floor((high - low + 1) * share)


def tiers(*, draws: ClientDraws, name: str, weights: tuple[Positive, ...], values: tuple[Positive, ...]) -> np.ndarray:
    """Draws each client's tier; all clients of a tier have one value.

    Args:
      draws: of the clients.
      name: of the setting.
      weights: of the tiers, whose shares of the clients are proportional to them.
      values: of the tiers.
    """
    if len(values) != len(weights):
        raise ValueError(f"clients.{name}: values={shorten(values)} must be one for each of the {len(weights)} tiers")
    return np.asarray(values)[draw_tier(draws, weights, field=f"clients.{name}")]


def from_csv(*, draws: ClientDraws, name: str, path: str) -> np.ndarray:
    """Reads the setting's column of a CSV file: a line for each client that trains, in the order of
    their ids.

    Its first line names the columns, each a setting, so that one file may have several.

    Args:
      draws: of the clients; nothing is drawn.
      name: of the setting.
      path: of the file.
    """
    file = Path(path).expanduser()
    what = f"clients.{name}: {file}"
    names, lines = read_csv_table(file, what, name, SETTINGS, draws.population)
    column, values = names.index(name), np.zeros(draws.population)
    for client, (number, line) in enumerate(lines):
        try:
            values[client] = float(line[column])
        except ValueError:
            raise ValueError(f"{what}, line {number}, column {name!r}: {line[column]!r} must be a number") from None
    return values


VALUES: dict[str, Callable[..., np.ndarray]] = {"uniform": uniform, "tiers": tiers, "from_csv": from_csv}
GIVEN = ("draws", "name")
