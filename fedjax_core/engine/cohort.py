"""Who takes part: sampling, dropout, and where the clients' states are kept."""

import math
import mmap
import sys

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, PyTree


def number(cohort: int | float | None, population: int) -> int:
    """C from a setting: an int is a number of clients, a float in (0, 1] a fraction of them (rounded, at least one).

    Raises:
      ValueError: out of range.

    Example:
      >>> number(0.4, 20), number(7, 20), number(None, 20)
      (8, 7, 20)
    """
    if cohort is None:
        return population
    if isinstance(cohort, float) and 0 < cohort <= 1:
        return max(1, round(cohort * population))
    if isinstance(cohort, int) and not isinstance(cohort, bool) and 1 <= cohort <= population:
        return cohort
    raise ValueError(
        f"cohort={cohort!r} is neither a number of clients between 1 and the population's {population} nor a fraction in (0, 1]"
    )


def sample(key: Array, population: int, size: int) -> Array:
    """A uniformly random set of `size` clients out of `population`, without replacement; [size] ids in no special order.

    The time depends on `size` alone when it is small beside the population (Floyd's algorithm), else on the population.
    """
    if size == population:
        return jnp.arange(population, dtype=jnp.int32)
    if size * size > population:
        return jax.random.permutation(key, population)[:size].astype(jnp.int32)

    def draw(i, chosen):
        top = population - size + i
        candidate = jax.random.randint(jax.random.fold_in(key, i), (), 0, top + 1)
        return chosen.at[i].set(jnp.where(jnp.any(chosen == candidate), top, candidate))

    return jax.lax.fori_loop(0, size, draw, jnp.full((size,), -1, jnp.int32))


def stays(key: Array, ids: Array, dropout: float) -> Array:
    """[C] bool: which clients do not drop out; each drops with probability `dropout`, drawn by its id."""
    draw = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i)))(ids)
    return draw >= dropout


def members(ids: Array, group: np.ndarray, population: int, places: int) -> Array:
    """The cohort's clients of one group.

    Args:
      ids: [C] the cohort.
      group: [n] the clients of the group.
      population: N.
      places: at least min(C, n).

    Returns:
      [places] ids, those of the group first, then N for empty places.
    """
    belongs = jnp.zeros(population, bool).at[group].set(True)[ids]
    first = jnp.where(belongs, ids, population)[jnp.argsort(~belongs, stable=True)]
    return jnp.pad(first, (0, max(0, places - len(ids))), constant_values=population)[:places]


def gather(store: PyTree, places: Array) -> PyTree:
    """Rows of a store with leaves [n, ...]; places beyond n read the last row."""
    return jax.tree.map(lambda x: jnp.take(x, places, axis=0, mode="clip"), store)


def scatter(store: PyTree, places: Array, rows: PyTree) -> PyTree:
    """Writes rows back; places beyond n are dropped."""
    return jax.tree.map(lambda x, r: x.at[places].set(r, mode="drop"), store, rows)


class HostStore:
    """Client states on the host, for populations that do not fit the device. Untouched clients cost nothing.

    Attributes:
      rows: leaves [n, ...], NumPy; a row counts only if it is touched.
      touched: [n] bool.
    """

    def __init__(self, n: int, like: PyTree):
        self.rows = jax.tree.map(lambda s: _zeros((n, *s.shape), s.dtype), like)
        self.touched = np.zeros(n, bool)

    def read(self, places: np.ndarray) -> tuple[PyTree, np.ndarray]:
        """(rows, touched) at the given places; those beyond n read the last row."""
        places = np.minimum(places, len(self.touched) - 1)
        return jax.tree.map(lambda x: x[places], self.rows), self.touched[places]

    def write(self, places: np.ndarray, rows: PyTree, there: np.ndarray) -> None:
        """Writes the rows [C, ...] of the clients that were there [C]."""
        chosen = places[there]
        for x, new in zip(jax.tree.leaves(self.rows), jax.tree.leaves(rows), strict=True):
            x[chosen] = new[there]
        self.touched[chosen] = True

    def packed(self) -> PyTree:
        """What a checkpoint keeps: the touched rows and their places."""
        places = np.flatnonzero(self.touched).astype(np.int32)
        return {"places": places, "rows": jax.tree.map(lambda x: x[places], self.rows)}

    def unpack(self, packed: PyTree) -> None:
        """The inverse of `packed`."""
        self.touched[:] = False
        there = np.ones(len(packed["places"]), bool)
        self.write(np.asarray(packed["places"]), jax.tree.map(np.asarray, packed["rows"]), there)


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros whose pages cost nothing until they are written, even if there are more of them than memory."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if sys.platform != "linux" or not size:
        return np.zeros(shape, dtype)
    unreserved = getattr(mmap, "MAP_NORESERVE", 0x4000)  # or the kernel refuses at once what could never be filled
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | unreserved)
    return np.frombuffer(memory, dtype).reshape(shape)
