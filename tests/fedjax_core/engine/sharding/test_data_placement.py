"""Where data lie if nobody says."""

import jax
import pytest

from fedjax_core.data import row_readers
from fedjax_core.engine import client_loop
from fedjax_core.engine.sharding import data_placement
from fedjax_core.engine.sharding import mesh as meshes
from tests import toy


@pytest.mark.parametrize(("times", "where"), [(2, "device"), (1.9, "host")])
@pytest.mark.parametrize("devices", [1, 8])
def test_the_devices_of_a_cpu_share_a_copy(monkeypatch, devices, times, where):
    data = toy.data()
    needed = sum(leaf.nbytes for leaf in jax.tree.leaves((data.train, data.test)))
    monkeypatch.setattr(row_readers, "machine_memory", lambda: times * needed)
    found = data_placement.choose_placement(None, data, meshes.make_mesh(client_loop.Plan(1, devices)))
    assert found.where == where
    assert found.why.endswith(f"a device has {row_readers.format_bytes(times * needed)}")
