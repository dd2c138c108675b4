"""Mixing matrices of decentralized averaging: who averages with whom, and with which weights.

W[i, j] is the weight of client j's model in client i's next one. All matrices are doubly stochastic
and connected, so that repeated mixing tends to the mean of all models.

  topology     neighbours of client i                    weights
  ring         i - 1, i + 1                              1/3 each, and its own
  torus        4 in a grid of a x b, as square as can    1/5 each, and its own
               be, whose borders meet
  exponential  i + 2^s, for all 2^s < N                  equal, and its own; directed
  one_peer     i + 2^(round mod log2 N), N power of 2    1/2, and its own 1/2; directed
  random       `degree` others: a random regular graph   Metropolis
  full         all                                       1/N
  graph        those of a file of 0 and 1, symmetric     Metropolis
  matrix       those of a file of weights                the file's

Metropolis weights are 1 / (1 + max(d_i, d_j)) for degrees d, and the rest of the row is its own.
Neighbours that coincide, as in a ring of two, add their weights.
"""

import functools
from pathlib import Path

import numpy as np

from fedjax_core.registry import check_choice

TOPOLOGIES = ("ring", "torus", "exponential", "one_peer", "random", "full", "graph", "matrix")
DIRECTED = ("exponential", "one_peer")  # whose links go one way
OWN_GRAPHS = ("graph", "matrix")  # of a file, where numbers of neighbours may differ
TOLERANCE = 1e-5  # of sums of rows and columns


def make_mixing_matrices(topology: str, clients: int, *, degree: int = 4, seed: int = 0, file: str | None = None) -> np.ndarray:
    """Returns the matrices [P, N, N] float32 of P rounds, which repeat; P is 1 but for "one_peer".

    Args:
      topology: one of `TOPOLOGIES`.
      clients: N.
      degree: of "random", in [1, N).
      seed: of "random".
      file: of "graph" and "matrix": .npy, or numbers separated by commas.

    Raises:
      ValueError: the clients do not fit the topology; a matrix of the file has another size, is not
        doubly stochastic, or not connected.
    """
    check_choice("topology", topology, TOPOLOGIES)
    if (file is None) == (topology in OWN_GRAPHS):
        needs = "needs a file" if file is None else "takes no file; 'graph' and 'matrix' do"
        raise ValueError(f"topology={topology!r} {needs}, matrix={file!r}")
    if file is None:
        return _make_named(topology, clients, degree, seed)
    what, matrix = f"matrix={file!r}", _read_matrix(file, clients)
    if topology == "graph":
        matrix = _metropolis_weights(matrix, what)
    _check_doubly_stochastic(matrix, what)
    _check_connected(matrix, what)
    return matrix[None].astype(np.float32)


def mean_degree(matrices: np.ndarray) -> float:
    """Returns how many neighbours a client has, mean over clients and rounds."""
    periods, clients, _ = matrices.shape
    return float(np.count_nonzero(matrices * (1 - np.eye(clients))) / (periods * clients))


@functools.cache
def _make_named(topology: str, n: int, degree: int, seed: int) -> np.ndarray:
    ids = np.arange(n)
    powers = [2**s for s in range(n.bit_length()) if 2**s < n]
    if topology == "one_peer":
        if n & (n - 1):
            raise ValueError(f"topology='one_peer' needs a number of clients that is a power of 2, not {n}")
        matrices = [_mean_of_permutations([ids, (ids + power) % n]) for power in powers] or [np.ones((1, 1))]
    elif topology == "random":
        matrices = [_metropolis_weights(_draw_regular_graph(n, degree, seed), "topology='random'")]
    elif topology == "full":
        matrices = [np.full((n, n), 1 / n)]
    else:
        others = {
            "ring": lambda: [(ids + 1) % n, (ids - 1) % n],
            "torus": lambda: _torus_neighbours(n),
            "exponential": lambda: [(ids + power) % n for power in powers],
        }
        matrices = [_mean_of_permutations([ids, *others[topology]()])]
    result = np.stack(matrices).astype(np.float32)
    result.flags.writeable = False
    return result


def _mean_of_permutations(neighbours: list[np.ndarray]) -> np.ndarray:
    """Returns the matrix [N, N] that gives equal weights to some permutations [N] of the clients."""
    n = len(neighbours[0])
    matrix = np.zeros((n, n))
    for permutation in neighbours:
        matrix[np.arange(n), permutation] += 1 / len(neighbours)
    return matrix


def _torus_neighbours(n: int) -> list[np.ndarray]:
    height = next((a for a in range(int(n**0.5), 1, -1) if n % a == 0), None)
    if height is None:
        raise ValueError(f"topology='torus' needs a number of clients a * b with a and b at least 2, not {n}")
    grid = np.arange(n).reshape(height, -1)
    return [np.roll(grid, shift, axis).reshape(-1) for axis in (0, 1) for shift in (1, -1)]


def _draw_regular_graph(n: int, degree: int, seed: int) -> np.ndarray:
    """Draws a connected graph [N, N] bool whose nodes all have `degree` neighbours.

    It begins with a circle, in which each node knows its nearest ones, and exchanges the ends of
    random pairs of links, 20 times as often as there are links.
    """
    if not 1 <= degree < n or degree * n % 2 or (degree == 1 and n > 2):
        raise ValueError(
            f"degree={degree} of topology='random' must be in [2, {n - 1}] for {n} clients, and even for an odd number of clients"
        )
    rng, ids = np.random.default_rng((seed, n, degree)), np.arange(n)
    steps = [*range(1, degree // 2 + 1)]
    links = [(int(i), int((i + step) % n)) for step in steps for i in ids]
    links += [(i, i + n // 2) for i in range(n // 2)] if degree % 2 else []
    while True:
        graph = np.zeros((n, n), bool)
        for a, b in links:
            graph[a, b] = graph[b, a] = True
        tries = 20 * len(links)
        for first, second, is_flipped in zip(*rng.integers(len(links), size=(2, tries)), rng.random(tries) < 0.5, strict=True):
            (a, b), (c, d) = links[first], links[second][:: -1 if is_flipped else 1]
            if len({a, b, c, d}) == 4 and not (graph[a, d] or graph[c, b]):
                for u, v, linked in ((a, b, False), (c, d, False), (a, d, True), (c, b, True)):
                    graph[u, v] = graph[v, u] = linked
                links[first], links[second] = (a, d), (c, b)
        if _find_components(graph)[0] == 1:
            return graph


def read_numbers(file: str, option: str) -> np.ndarray:
    """Reads a file of numbers that an option of a method names: .npy, or lines of numbers with commas.

    Raises:
      ValueError: the name has no suffix, by which runs know it for a file; there is no such file, or
        it holds something else.
    """
    path = Path(file).expanduser()
    if not path.suffix:
        raise ValueError(f"{option}={file!r} has no suffix; a file of numbers is called .npy, .csv or .txt")
    try:
        return np.asarray(np.load(path) if path.suffix == ".npy" else np.loadtxt(path, delimiter=",", ndmin=1), float)
    except FileNotFoundError:
        raise ValueError(f"{option}={file!r}: there is no such file") from None
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise ValueError(f"{option}={file!r} is not a file of numbers: {error}") from None


def _read_matrix(file: str, n: int) -> np.ndarray:
    matrix = read_numbers(file, "matrix")
    matrix = matrix.reshape(1, 1) if n == matrix.size == 1 else matrix
    if matrix.shape != (n, n):
        raise ValueError(f"matrix={file!r} is {list(matrix.shape)}, {n} clients need [{n}, {n}]")
    return matrix


def _metropolis_weights(graph: np.ndarray, what: str) -> np.ndarray:
    """Returns the weights [N, N] of a graph [N, N], which is symmetric; its diagonal is not read."""
    if not (np.isin(graph, (0, 1)).all() and np.array_equal(graph, graph.T)):
        raise ValueError(f"{what} must be symmetric and have only 0 and 1, since it is a graph")
    graph = np.asarray(graph, bool) & ~np.eye(len(graph), dtype=bool)
    degrees = np.sum(graph, 1)
    weights = graph / (1 + np.maximum(degrees[:, None], degrees[None]))
    return weights + np.diag(1 - np.sum(weights, 1))


def _check_doubly_stochastic(matrix: np.ndarray, what: str) -> None:
    if not (np.isfinite(matrix).all() and (matrix >= 0).all()):
        raise ValueError(f"{what} must have finite weights of at least 0")
    for axis, name in ((1, "row"), (0, "column")):
        sums = np.sum(matrix, axis)
        worst = int(np.argmax(np.abs(sums - 1)))
        if abs(sums[worst] - 1) > TOLERANCE:
            raise ValueError(f"{what} is not doubly stochastic: {name} {worst} sums to {sums[worst]:.6g}, not to 1")


def _check_connected(matrix: np.ndarray, what: str) -> None:
    parts, labels = _find_components(matrix > 0)
    if parts > 1:
        apart = int(np.argmax(labels != labels[0]))
        raise ValueError(f"{what} is not connected: it has {parts} parts, with clients 0 and {apart} in different ones")


def _find_components(graph: np.ndarray) -> tuple[int, np.ndarray]:
    """Returns the number of strongly connected components, and the component [N] of each client."""
    from scipy.sparse import csgraph  # here, since every run reads this module's names

    return csgraph.connected_components(graph, connection="strong")
