"""Where client states are kept."""

import errno
import os
import sys
import tempfile

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.engine.client_state import stores
from fedjax_core.engine.client_state.stores import DiskStore


class StoreTest(chex.TestCase):
    def test_gather_and_scatter(self):
        store = {"a": jnp.arange(8.0).reshape(4, 2), "b": jnp.arange(4)}
        places = jnp.asarray([2, 4, 0])  # 4 lies outside
        rows = stores.gather(store, places)
        np.testing.assert_array_equal(rows["b"], [2, 3, 0])
        new = stores.scatter(store, places, jax.tree.map(lambda x: x + 10, rows))
        np.testing.assert_array_equal(new["b"], [10, 1, 12, 3])
        np.testing.assert_array_equal(new["a"], [[10, 11], [2, 3], [14, 15], [6, 7]])

    def test_on_the_host_only_what_came_is_written(self):
        like = {"a": jax.ShapeDtypeStruct((2,), jnp.float32), "b": jax.ShapeDtypeStruct((), jnp.int32)}
        store = stores.HostStore(5, like)
        rows = {"a": np.arange(8, dtype=np.float32).reshape(4, 2) + 1, "b": np.array([7, 8, 9, 10], np.int32)}
        store.write(np.array([4, 5, 1, 2]), rows, np.array([True, False, True, False]))  # 5 lies outside
        np.testing.assert_array_equal(store.touched, [False, True, False, False, True])
        read, touched = store.read(np.array([1, 0, 4, 5]))
        np.testing.assert_array_equal(touched[:3], [True, False, True])
        np.testing.assert_array_equal(read["b"][[0, 2]], [9, 7])
        np.testing.assert_array_equal(read["a"][[0, 2]], [[5, 6], [1, 2]])

    @pytest.mark.skipif(sys.platform != "linux", reason="only there pages are reserved without memory")
    def test_states_of_more_clients_than_memory_holds(self):
        store = stores.HostStore(100_000, {"w": jax.ShapeDtypeStruct((784, 200, 2), jnp.float32)})  # 125 GB, were they all touched
        rows = {"w": np.ones((2, 784, 200, 2), np.float32)}
        store.write(np.array([99_999, 7]), rows, np.array([True, True]))
        read, touched = store.read(np.array([7, 50_000]))
        np.testing.assert_array_equal(touched, [True, False])
        np.testing.assert_array_equal(read["w"][0], 1)


def test_what_a_disk_gives_in_pieces_is_read_whole_and_what_it_does_not_give_is_said(monkeypatch):
    store = DiskStore(4, {"a": jax.ShapeDtypeStruct((5,), jnp.int32)})
    rows, plain = {"a": np.arange(10, dtype=np.int32).reshape(2, 5)}, os.preadv
    store.write(np.array([3, 1]), rows, np.array([True, True]))
    monkeypatch.setattr(os, "preadv", lambda handle, into, at: plain(handle, [into[0][:7]], at))
    np.testing.assert_array_equal(store.read(np.array([3, 1]))[0]["a"], rows["a"])

    def fails(handle, into, at):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for broken in (fails, lambda handle, into, at: 0):
        monkeypatch.setattr(os, "preadv", broken)
        with pytest.raises(OSError, match=rf"cannot read client states that are kept in {tempfile.gettempdir()}: "):
            store.read(np.array([3]))
