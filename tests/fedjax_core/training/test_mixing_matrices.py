"""Mixing matrices: their numbers, and files that are none."""

import numpy as np
import pytest

from fedjax_core.training.mixing_matrices import make_mixing_matrices, mean_degree

CASES = [(name, n) for name in ("ring", "torus", "exponential", "random", "full") for n in (6, 9, 16, 20)]


@pytest.mark.parametrize(("topology", "clients"), CASES)
def test_matrices_are_doubly_stochastic_and_mix(topology, clients):
    (w,) = make_mixing_matrices(topology, clients, degree=4)
    assert w.min() >= 0
    np.testing.assert_allclose([w.sum(0), w.sum(1)], 1, atol=1e-6)
    assert np.linalg.svd(w - 1 / clients, compute_uv=False)[0] < 0.999
    if topology != "exponential":
        np.testing.assert_array_equal(w, w.T)


@pytest.mark.parametrize(
    ("topology", "second"), [("ring", (1 + 2 * np.cos(np.pi / 8)) / 3), ("torus", 0.6), ("exponential", 0.6), ("full", 0)]
)
def test_second_singular_values_of_sixteen_clients(topology, second):
    (w,) = make_mixing_matrices(topology, 16)
    np.testing.assert_allclose(np.linalg.svd(w, compute_uv=False)[1], second, atol=1e-6)


def test_links_go_to_the_clients_that_are_said():
    hop = lambda power: np.roll(np.eye(8), power, 1)  # client i has the model of i + power
    np.testing.assert_array_equal(make_mixing_matrices("one_peer", 8), [(np.eye(8) + hop(p)) / 2 for p in (1, 2, 4)])
    np.testing.assert_array_equal(make_mixing_matrices("exponential", 8), [(np.eye(8) + hop(1) + hop(2) + hop(4)) / 4])


def test_neighbours_that_coincide_add_their_weights():
    np.testing.assert_allclose(make_mixing_matrices("ring", 2)[0], [[1 / 3, 2 / 3], [2 / 3, 1 / 3]], atol=1e-6)
    np.testing.assert_allclose(make_mixing_matrices("torus", 4)[0][0], [1 / 5, 2 / 5, 2 / 5, 0], atol=1e-6)
    assert mean_degree(make_mixing_matrices("ring", 2)) == 1
    assert mean_degree(make_mixing_matrices("one_peer", 16)) == 1


@pytest.mark.parametrize(("clients", "degree"), [(20, 4), (20, 3), (7, 6), (6, 2), (2, 1)])
def test_random_graphs_are_regular_and_follow_their_seed(clients, degree):
    (w,) = make_mixing_matrices("random", clients, degree=degree, seed=1)
    assert np.count_nonzero(w - np.diag(np.diag(w)), 1).tolist() == [degree] * clients
    np.testing.assert_allclose(w[w > 0], 1 / (1 + degree), atol=1e-6)
    np.testing.assert_array_equal(w, make_mixing_matrices("random", clients, degree=degree, seed=1)[0])
    for other in range(20):  # of six clients with two neighbours each, a seventh of the graphs are two circles
        assert np.linalg.matrix_power(make_mixing_matrices("random", clients, degree=degree, seed=other)[0], clients).min() > 0
    if clients == 20:
        assert np.any(w != make_mixing_matrices("random", clients, degree=degree, seed=2)[0])


def test_a_graph_of_a_file_has_metropolis_weights(tmp_path):
    """A star with a tail: 1 and 2 know 0; 3 knows 2. That 0 knows itself is not read."""
    (tmp_path / "graph.csv").write_text("1,1,1,0\n1,0,0,0\n1,0,0,1\n0,0,1,0\n")
    (w,) = make_mixing_matrices("graph", 4, file=str(tmp_path / "graph.csv"))
    third = 1 / 3
    expected = [[third, third, third, 0], [third, 2 * third, 0, 0], [third, 0, third, third], [0, 0, third, 2 * third]]
    np.testing.assert_allclose(w, expected, atol=1e-6)
    assert mean_degree(w[None]) == 1.5


def test_weights_of_a_file(tmp_path):
    w = np.roll(np.eye(5), 1, 1) * 0.75 + np.eye(5) * 0.25
    np.save(tmp_path / "w.npy", w)
    np.testing.assert_array_equal(make_mixing_matrices("matrix", 5, file=str(tmp_path / "w.npy"))[0], w.astype(np.float32))


@pytest.mark.parametrize(
    ("topology", "matrix", "message"),
    [
        ("matrix", [[0.5, 0.5, 0], [0.5, 0.5, 0]], r"is \[2, 3\], 2 clients need \[2, 2\]$"),
        ("matrix", [[0.5, 0.4], [0.5, 0.5]], "is not doubly stochastic: row 0 sums to 0.9, not to 1$"),
        ("matrix", [[0.5, 0.5], [1, 0]], "is not doubly stochastic: column 0 sums to 1.5, not to 1$"),
        ("matrix", [[1.5, -0.5], [-0.5, 1.5]], "must have finite weights of at least 0$"),
        ("matrix", np.eye(3), "is not connected: it has 3 parts, with clients 0 and 1 in different ones$"),
        ("graph", np.eye(2), "is not connected: it has 2 parts, with clients 0 and 1 in different ones$"),
        ("graph", [[0, 1], [0, 0]], "must be symmetric and have only 0 and 1, since it is a graph$"),
    ],
)
def test_a_matrix_that_is_none_is_one_error(tmp_path, topology, matrix, message):
    file = str(tmp_path / "w.npy")
    np.save(file, np.asarray(matrix, float))
    with pytest.raises(ValueError, match=r"^matrix='.*w.npy' " + message):
        make_mixing_matrices(topology, len(matrix), file=file)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "w.csv").write_text("0,one\n")
    with pytest.raises(ValueError, match=r"there is no such file$"):
        make_mixing_matrices("matrix", 2, file=str(tmp_path / "none.csv"))
    with pytest.raises(ValueError, match="is not a file of numbers"):
        make_mixing_matrices("matrix", 2, file=str(tmp_path / "w.csv"))
    (tmp_path / "w.npy").touch()
    with pytest.raises(ValueError, match="is not a file of numbers"):
        make_mixing_matrices("matrix", 2, file=str(tmp_path / "w.npy"))
    with pytest.raises(ValueError, match=r"w' has no suffix; a file of numbers is called .npy, .csv or .txt$"):
        make_mixing_matrices("matrix", 2, file=str(tmp_path / "w"))


@pytest.mark.parametrize(
    ("topology", "clients", "message"),
    [
        ("torus", 7, "^topology='torus' needs a number of clients a [*] b with a and b at least 2, not 7$"),
        ("one_peer", 12, "^topology='one_peer' needs a number of clients that is a power of 2, not 12$"),
        ("random", 4, r"^degree=4 of topology='random' must be in \[2, 3\] for 4 clients, and even for an odd"),
    ],
)
def test_numbers_of_clients_that_do_not_fit(topology, clients, message):
    with pytest.raises(ValueError, match=message):
        make_mixing_matrices(topology, clients)


def test_pairs_of_clients_are_not_connected():
    with pytest.raises(ValueError, match=r"^degree=1 of topology='random' must be in \[2, 3\] for 4 clients"):
        make_mixing_matrices("random", 4, degree=1)
