"""States of clients get from their keepers to the devices that train them, and back, whole or divided."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.engine import client_loop
from fedjax_core.engine.client_state.multi_process import StateShards
from fedjax_core.engine.client_state.offload import PrefetchedRound, find_returning_clients
from fedjax_core.engine.client_state.stores import HostStore
from fedjax_core.engine.sharding import mesh as meshes
from fedjax_core.engine.sharding import model_parallel

D, N = 4, 60
LIKE = {
    "w": jax.ShapeDtypeStruct((4,), jnp.bfloat16),
    "b": jax.ShapeDtypeStruct((), bool),
    "no": jax.ShapeDtypeStruct((0,), jnp.int8),
}


@pytest.fixture(scope="module", params=[1, 2], ids=["whole", "divided"])
def shares(request):
    """Each place is one device, or two that have a half of every "w"."""
    if request.param == 1:
        return StateShards(meshes.make_mesh(client_loop.Plan(1, D)))
    mesh = meshes.make_mesh(client_loop.Plan(1, 2 * D, 2))
    return StateShards(mesh, model_parallel.shardings(LIKE, (("w", -1),), mesh, client_loop.AXIS))


def rows(numbers) -> dict:
    numbers = np.asarray(numbers)
    w = np.stack([numbers, -numbers, numbers / 2, numbers + 1], 1).astype(jnp.bfloat16)
    return {"w": w, "b": numbers % 2 == 1, "no": np.zeros((len(numbers), 0), np.int8)}


def full() -> HostStore:
    store = HostStore(N, LIKE)
    store.write(np.arange(N), rows(np.arange(N)), np.ones(N, bool))
    return store


COHORTS = {
    "random": np.random.default_rng(0).permutation(N)[:16],
    "all of one keeper": np.arange(16) * D % N,  # of 16 places 15 are different; the last is nobody's
    "some are nobody": np.array([7, N, 3, N, N, 58, 0, 1]),
}


@pytest.mark.parametrize("name", COHORTS)
def test_there_and_back(shares, name):
    places, store = COHORTS[name].copy(), full()
    if name == "all of one keeper":
        places[15] = N
    route, real = shares.make_route(places, N), places < N
    assert (route.keeper[real] == places[real] % D).all()
    arrived = shares.send_to_trainers(shares.put(shares.read(store.read, route)), route)
    assert arrived["w"].addressable_shards[0].data.shape == (len(places) // D, 4 * D // shares.mesh.size)
    there = jax.device_get(arrived)
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[real], there), rows(places[real]))
    left = jax.device_put(rows(places + 100), meshes.client_sharded(shares.mesh))
    found = shares.split_by_keeper(shares.return_to_keepers(left, route), route)
    assert len(found) == D
    for d, (position, mine) in enumerate(found):
        kept = position >= 0
        assert (places[position[kept]] % D == d).all()
        chex.assert_trees_all_equal(jax.tree.map(lambda x, kept=kept: x[kept], mine), rows(places[position[kept]] + 100))
    assert sorted(np.concatenate([position[position >= 0] for position, _ in found])) == np.flatnonzero(real).tolist()


def test_what_the_round_before_has_left_is_newer(shares):
    store, before, now = full(), np.array([5, 9, N, 2, 11, 30, 44, 7]), np.array([2, 5, 6, 44, N, 1, 30, 3])
    there = np.array([1, 1, 0, 1, 1, 1, 0, 1], bool)  # 44 did not come back
    routes = [shares.make_route(places, N) for places in (before, now)]
    left = jax.device_put(rows(before + 100), meshes.client_sharded(shares.mesh))
    last = PrefetchedRound(0, (), [before], [there], [], [])
    ((at, both),) = find_returning_clients(PrefetchedRound(1, (), [now], [], [], []), last)
    sent = shares.put(shares.read(store.read, routes[1]))
    newest = shares.patch_newest(sent, routes[1], shares.return_to_keepers(left, routes[0]), routes[0], at, both)
    found = jax.device_get(shares.send_to_trainers(newest, routes[1]))
    wanted, real = np.where(np.isin(now, [5, 2, 30]), now + 100, now), now < N
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[real], found), rows(wanted[real]))


def test_outside_of_rounds_any_number_is_brought(shares):
    store = full()
    found = shares.fetch_states(store.read, np.array([17]), N)
    chex.assert_trees_all_equal(jax.device_get(found), rows([17]))


def test_methods_without_states(shares):
    shares = StateShards(shares.mesh, ())
    store, places = HostStore(N, ()), np.arange(8)
    route = shares.make_route(places, N)
    rows = shares.send_to_trainers(shares.put(shares.read(store.read, route)), route)
    assert rows == ()
    assert [mine for _, mine in shares.split_by_keeper(shares.return_to_keepers(rows, route), route)] == [()] * D
