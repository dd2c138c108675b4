"""Availability of clients: those that can be reached in a round.

Whether a client can be reached depends on the data seed, the round and the client's id alone, so
methods and training seeds are compared under the same availability. It is computed for the clients
of a cohort, inside of the compiled round: there is no table of all clients and rounds, but for one
that is read from a file.

Availability of one's own is a function in a module or file, which a config names by its place
(`registry.py`), or an entry point of the group `fedjax_core.availabilities`. It takes `draws`
(`ClientDraws`) and options, and returns an `Availability`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import Array, PyTree
from fedjax_core.devices.profiles import ClientDraws, read_csv_lines
from fedjax_core.option_types import AtLeastOne, FloatFromOne, Fraction, shorten

STREAM = 0x646576  # of keys, beside those that are made of the training seed


class Availability(NamedTuple):
    """The clients that can be reached in a round.

    Attributes:
      arrays: that all rounds read; an argument of the round's program.
      is_available: (arrays, round from 0, ids [C] below N) -> [C] bool; traced.
    """

    arrays: PyTree
    is_available: Callable[[PyTree, Array, Array], Array]


def make_availability(found: registry.ResolvedSpec, population: int, seed: int) -> Availability | None:
    """Returns the availability of N clients by a resolved spec; None: always.

    Args:
      found: from `find_availability`.
      population: N.
      seed: the data seed.

    Raises:
      TypeError: a function from outside returned something else.
      ValueError: a value is not allowed; or a file is wrong, says where.
      OSError: a file cannot be read.
    """
    availability: Any = found(draws=ClientDraws(population, seed))
    if not isinstance(availability, Availability | None):
        raise TypeError(
            f"devices.availability={found.spec!r} must return an Availability or None, it returned {shorten(availability)}"
        )
    return availability


def find_availability(spec: str) -> registry.ResolvedSpec:
    """Returns the availability of a spec, its options checked."""
    return registry.resolve_spec("availability", spec, AVAILABILITIES, given=("draws",), field="devices.availability")


def always(*, draws: ClientDraws) -> None:
    """Reaches all clients in all rounds."""
    del draws


def daily(
    *, draws: ClientDraws, mean: Fraction = 0.5, amplitude: Fraction = 0.4, period: AtLeastOne = 24, spread: Fraction = 1.0
) -> Availability:
    """Reaches client i in round r with probability mean + amplitude sin(2 pi (r / period + phase)), within [0, 1].

    Args:
      draws: of the clients.
      mean: probability, over a day.
      amplitude: largest difference from it.
      period: rounds in a day.
      spread: of the clients' phases, in days: each has its own in [0, spread); 0: all have one.
    """

    def is_available(arrays: PyTree, round_num: Array, ids: Array) -> Array:
        phase = (round_num % period) / period + jnp.asarray(arrays["phase"])[ids]
        share = mean + amplitude * jnp.sin(2 * jnp.pi * phase)
        return _draw(arrays["key"], round_num, ids)[0] < share

    phase = (spread * draws.uniform("phase")).astype(np.float32)
    return Availability({"key": _key_data(draws), "phase": phase}, is_available)


def markov(*, draws: ClientDraws, on: FloatFromOne = 10.0, off: FloatFromOne = 10.0) -> Availability:
    """Reaches each client for a random number of rounds in turn, and then not: a Markov chain of two states.

    In each round a client that can be reached is lost with probability 1 / on, one that cannot comes
    back with probability 1 / off. Round 1 has the chain's own shares.

    Args:
      draws: of the clients.
      on: mean number of rounds in which a client can be reached, one after another.
      off: mean number of rounds in which it cannot; 1 / on + 1 / off must be at most 1.
    """
    renewal = 1 / on + 1 / off
    if renewal > 1:
        raise ValueError(f"devices.availability: on={on:g}, off={off:g}: 1 / on + 1 / off must be at most 1, such as on=4, off=2")

    def is_available(arrays: PyTree, round_num: Array, ids: Array) -> Array:
        """Looks for the last round in which a client's state was drawn anew.

        A chain with these probabilities draws its state anew from its long-run shares with
        probability `renewal` in each round, and else keeps it.
        """

        def look(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            r, is_known, state = carry
            renewed, value = _draw(arrays["key"], r, ids)
            is_new = ~is_known & ((renewed < renewal) | (r == 0))
            return r - 1, is_known | is_new, jnp.where(is_new, value < on / (on + off), state)

        none = jnp.zeros(ids.shape, bool)
        is_unknown = lambda carry: (carry[0] >= 0) & ~jnp.all(carry[1])
        return jax.lax.while_loop(is_unknown, look, (jnp.asarray(round_num, jnp.int32), none, none))[2]

    return Availability({"key": _key_data(draws)}, is_available)


def trace(*, draws: ClientDraws, path: str) -> Availability:
    """Reads a CSV file: a line for each client that trains, in the order of their ids, a column for each round.

    A cell is 1 where the client can be reached and 0 where it cannot. After its last column the
    trace begins again. There is no line of names.

    Args:
      draws: of the clients; nothing is drawn.
      path: of the file.
    """
    table = _read_trace(Path(path).expanduser(), draws.population)
    return Availability(
        {"table": table}, lambda arrays, round_num, ids: jnp.asarray(arrays["table"])[ids, round_num % table.shape[1]]
    )


def _read_trace(file: Path, population: int) -> np.ndarray:
    """Returns [N, rounds] bool."""
    what = f"devices.availability: {file}"
    rows = read_csv_lines(file, what)
    if len(rows) != population:
        raise ValueError(f"{what} has {len(rows)} lines, one for each client; {population} clients train")
    table = np.zeros((population, len(rows[0][1])), bool)
    for client, (number, line) in enumerate(rows):
        if len(line) != table.shape[1]:
            raise ValueError(f"{what}, line {number}: it has {len(line)} cells, line {rows[0][0]} has {table.shape[1]}")
        for column, cell in enumerate(line):
            if cell.strip() not in ("0", "1"):
                raise ValueError(f"{what}, line {number}, column {column + 1}: {cell!r} must be 0 or 1")
            table[client, column] = cell.strip() == "1"
    return table


def _key_data(draws: ClientDraws) -> np.ndarray:
    return np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.key(draws.seed), STREAM)))


def _draw(key_data: Array, round_num: Array, ids: Array) -> Array:
    """Returns two numbers in [0, 1) for each client [2, C] in a round."""
    key = jax.random.fold_in(jax.random.wrap_key_data(key_data), round_num)
    return jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i), (2,)))(ids).T


AVAILABILITIES: dict[str, Callable[..., Availability | None]] = {
    "always": always,
    "daily": daily,
    "markov": markov,
    "trace": trace,
}
