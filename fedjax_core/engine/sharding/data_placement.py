"""Where the data are stored, and what accelerators' makers publish of them: peak FLOP/s, bandwidth, memory."""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_core import distributed, registry
from fedjax_core.algorithm import PyTree
from fedjax_core.data import row_readers
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.lazy_array import LazyArray

PLACES = ("device", "host", "disk")
DATA_SHARE = 0.5  # of a device's memory, and of this machine's, that data may take by default
SHARED_FROM = 2**20  # bytes of an array, from which one copy for all CPU devices pays
_TPU, _NVIDIA = "https://docs.cloud.google.com/tpu/docs", "https://www.nvidia.com/en-us/data-center"


class DeviceSpec(NamedTuple):
    """One device as jax counts them; of TPU v2 and v3 that is half a chip.

    Attributes:
      flops: peak dense FLOP/s of bfloat16 matrix products. A TPU computes float32 products that way unless a precision
        is asked for; on a GPU they are slower.
      bandwidth: peak bytes/s between the device and its memory.
      memory: bytes that programs can use, as the compiler counts them; of GPUs the published size.
      source: of flops and bandwidth.
    """

    flops: float
    bandwidth: float
    memory: int
    source: str


def _gib(size: float) -> int:
    return int(size * 2**30)


DEVICE_SPECS = {  # by `device.device_kind`
    "TPU v2": DeviceSpec(23e12, 350e9, _gib(7.48), f"{_TPU}/v2"),
    "TPU v3": DeviceSpec(61.5e12, 450e9, _gib(15.48), f"{_TPU}/v3"),
    "TPU v4": DeviceSpec(275e12, 1200e9, _gib(30.75), f"{_TPU}/v4"),
    "TPU v5 lite": DeviceSpec(197e12, 819e9, _gib(15.75), f"{_TPU}/v5e"),
    "TPU v5": DeviceSpec(459e12, 2765e9, _gib(95.73), f"{_TPU}/v5p"),
    "TPU v6 lite": DeviceSpec(918e12, 1638e9, _gib(31.24), f"{_TPU}/v6e"),
    "NVIDIA A100-SXM4-40GB": DeviceSpec(312e12, 1555e9, 40 * 10**9, f"{_NVIDIA}/a100"),
    "NVIDIA A100-SXM4-80GB": DeviceSpec(312e12, 2039e9, 80 * 10**9, f"{_NVIDIA}/a100"),
    "NVIDIA H100 80GB HBM3": DeviceSpec(989e12, 3350e9, 80 * 10**9, f"{_NVIDIA}/h100"),
    "NVIDIA H200": DeviceSpec(989e12, 4800e9, 141 * 10**9, f"{_NVIDIA}/h200"),
}


def device_spec(device: Any) -> DeviceSpec | None:
    """Returns what is published of a device; None of one that is not in the table, such as a CPU."""
    return DEVICE_SPECS.get(device.device_kind)


class Placement(NamedTuple):
    """Where the data are stored.

    Attributes:
      where: one of `PLACES`.
      why: a sentence, where it was chosen here.
    """

    where: str
    why: str


def memory_limit(mesh: Mesh) -> int | None:
    """Returns the bytes of a device's memory; None where the device does not tell, as on a CPU."""
    return (mesh.local_devices[0].memory_stats() or {}).get("bytes_limit")


def choose_placement(place: str | None, data: FederatedData, mesh: Mesh) -> Placement:
    """Returns the place for a population's arrays.

    Args:
      place: one of `PLACES`; None: "device" if they fit into half of one device's memory (of CPU devices, which share one
        copy, the machine's); else "host", or "disk" if they are memory-mapped files.
    """
    if place is not None:
        return Placement(registry.check_choice("plan.data", place, PLACES), "")
    leaves = [leaf for leaf in jax.tree.leaves((data.train, data.test)) if isinstance(leaf, np.ndarray)]
    needed, available = sum(leaf.nbytes for leaf in leaves), _device_memory(mesh)
    where = "device" if needed <= DATA_SHARE * available else "host"
    if where == "host" and any(row_readers.locate_in_file(leaf) for leaf in leaves):
        where = "disk"
    why = f"{row_readers.format_bytes(needed)} of examples, a device has {row_readers.format_bytes(available)}"
    return Placement(*distributed.broadcast_from_process_0([where, why]))


def _device_memory(mesh: Mesh) -> float:
    """Returns the bytes of a device's memory.

    Of a device that is only compiled for they are those published, of one that does not tell the machine's.
    """
    first = mesh.devices.flat[0]
    if first in jax.devices():
        return memory_limit(mesh) or row_readers.machine_memory()
    published = device_spec(first)
    return row_readers.machine_memory() if published is None else published.memory


def open_data(placement: Placement, data: FederatedData) -> tuple[FederatedData, dict[str, row_readers.ExampleReader]]:
    """Returns the data, stored as `placement` says, and readers of their splits if they are streamed."""
    if placement.where == "device":
        return data, {}
    make_reader = row_readers.open_in_memory if placement.where == "host" else row_readers.open_on_disk
    readers = {part: make_reader(getattr(data, part)) for part in ("train", "test")}
    return dataclasses.replace(data, **{part: reader.like for part, reader in readers.items()}), readers


def make_shareable(tree: PyTree, mesh: Mesh) -> PyTree:
    """Returns host arrays of which several CPU devices need one copy; as they are on other devices.

    Large arrays are copied to where `mesh.put` shares them, so that later changes of the originals do
    not reach the devices. Deferred arrays stay.
    """
    if mesh.size == 1 or mesh.devices.flat[0].platform != "cpu":
        return tree
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, LazyArray) else _align(np.asarray(leaf)), tree)


def _align(array: np.ndarray) -> np.ndarray:
    """Returns a copy of a large array that CPU devices use without further ones; a small one as it is."""
    if array.nbytes < SHARED_FROM:
        return array
    aligned = row_readers.allocate_aligned(array.shape, array.dtype)
    aligned[...] = array
    return aligned
