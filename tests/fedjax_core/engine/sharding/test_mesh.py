"""Arrays on the devices of a mesh."""

import jax
import numpy as np

from fedjax_core.engine.sharding import data_placement
from fedjax_core.engine.sharding import mesh as meshes
from fedjax_core.engine.sharding.mesh import Plan


def test_cpu_devices_share_one_copy_of_a_large_array():
    mesh = meshes.make_mesh(Plan(1, 2))
    space = np.arange(2**18 + 1, dtype=np.float32)
    given = {"large": space[1:].reshape(512, 512), "small": np.arange(3)}
    there = meshes.put(data_placement.make_shareable(given, mesh), mesh)
    np.testing.assert_array_equal(there["large"], given["large"])
    np.testing.assert_array_equal(there["small"], given["small"])
    shards = [shard.data for shard in there["large"].addressable_shards]
    assert len({shard.unsafe_buffer_pointer() for shard in shards}) == 1
    assert {shard.devices().pop() for shard in shards} == set(jax.devices()[:2])
    before = np.array(given["large"])
    space[:] = -1
    np.testing.assert_array_equal(there["large"], before)


def test_one_device_takes_the_array_itself():
    array = np.zeros(2**18, np.float32)
    assert data_placement.make_shareable(array, meshes.make_mesh(Plan(1, 1))) is array
