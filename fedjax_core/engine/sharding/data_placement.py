"""Where data lie: as asked, or where they fit."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_core import distributed, registry
from fedjax_core.data import row_readers
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine import chips, client_loop

PLACES = ("device", "host", "disk")
PART = 0.5  # of a device's memory, and of this machine's, that data may take without being asked for


class Placed(NamedTuple):
    """Where data lie.

    Attributes:
      where: one of `PLACES`.
      why: a sentence, where it was not asked for.
    """

    where: str
    why: str


def choose(asked: str | None, data: FederatedData, on: Mesh) -> Placed:
    """The place for a population's arrays.

    Args:
      asked: one of `PLACES`; None: on the devices if they fit into half of one's memory (of CPU devices, each of which has a copy,
        its part of the machine's); else on the host as they are, memory-mapped files on the disk.
      data: the arrays.
      on: the plan's devices.

    Raises:
      ValueError: there is no such place.
    """
    if asked is not None:
        return Placed(registry.choose("plan.data", asked, PLACES), "")
    leaves = [leaf for leaf in jax.tree.leaves((data.train, data.test)) if isinstance(leaf, np.ndarray)]
    needed = sum(leaf.nbytes for leaf in leaves)
    there = _memory(on)
    where = "device" if needed <= PART * there else "host"
    if where == "host" and any(row_readers.in_file(leaf) for leaf in leaves):
        where = "disk"
    size = f"{row_readers.format_bytes(needed)} of rows, a device has {row_readers.format_bytes(there)}"
    return Placed(*distributed.said([where, size]))


def _memory(on: Mesh) -> float:
    """Bytes of a device's memory; of one that is compiled for alone, as published; else the device's part of this machine's."""
    first = on.devices.flat[0]
    if first in jax.devices():
        return client_loop.memory_limit(on) or row_readers.machine_memory() / max(1, len(on.local_devices))
    chip = chips.of(first)
    return row_readers.machine_memory() if chip is None else chip.memory


def opened(placed: Placed, data: FederatedData) -> tuple[FederatedData, dict[str, row_readers.Reader]]:
    """The data, whose arrays lie there, and readers of "train" and "test"; none if all is on the devices.

    Raises:
      OSError: files cannot be opened or written.
    """
    if placed.where == "device":
        return data, {}
    opening = row_readers.in_memory if placed.where == "host" else row_readers.on_disk
    found = {part: opening(getattr(data, part)) for part in ("train", "test")}
    return dataclasses.replace(data, **{part: reader.like for part, reader in found.items()}), found
