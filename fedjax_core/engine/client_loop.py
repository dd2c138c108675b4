"""The client loop: maps a client's work over many clients as a plan says.

A `Plan` says how many clients train at once on a device (`chunk`; 1: one after another), over how many devices the
clients are spread, and how many of these hold one network together (`model`, see `model_parallel.py`). Contributions
to a sum are added up inside the loop, so memory does not grow with the number of clients; everything else is
stacked. All plans compute the same numbers up to rounding.
"""

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.engine.sharding.mesh import AXIS, Plan

EVERYWHERE, SHARDED = PartitionSpec(), PartitionSpec(AXIS)


def choose_plan(
    cohort: int,
    *,
    chunk: int | None = None,
    devices: int | None = None,
    model: int = 1,
    among: Sequence[Any] | None = None,
) -> Plan:
    """Returns the plan for a cohort; arguments that are None are chosen by backend.

    On a CPU clients train one after another: vmapping convolutions over clients makes them grouped, which is several
    times slower. On an accelerator all train at once; `Simulator` halves the chunk if they do not fit its memory.

    Args:
      chunk: clients at once on one device; None: 1 on a CPU, all on an accelerator.
      devices: None: all, but no more than `model` for each client of the cohort; with several processes all.
      among: the devices to choose from, such as a topology's; None: those that jax sees.

    Raises:
      ValueError: chunk, devices or model is out of range; model does not divide the devices, or those of a process;
        a process would have no device.
    """
    available = list(jax.devices() if among is None else among)
    processes = jax.process_count() if among is None else len({device.process_index for device in available})
    if devices is not None and not 1 <= devices <= len(available):
        raise ValueError(f"plan.devices={devices} is not between 1 and {len(available)}, the devices that jax sees")
    most = len(available) if devices is None else devices
    if model < 1 or most % model:
        allowed = ", ".join(str(m) for m in range(1, most + 1) if most % m == 0)
        raise ValueError(f"plan.model={model} does not divide the {most} devices; allowed: {allowed}")
    if devices is not None and processes > 1:
        used = {device.process_index for device in available[:devices]}
        if len(used) < processes:
            raise ValueError(
                f"plan.devices={devices} leaves {processes - len(used)} of {processes} processes without a device; "
                f"leave it out to take all {len(available)}"
            )
    if model > 1 and processes > 1:
        _check_processes(model, available[:most])
    if devices is None:
        devices = most if processes > 1 else min(most // model, cohort) * model
    clients_per_part = -(-cohort // (devices // model))
    if chunk is None:
        chunk = 1 if (jax.default_backend() if among is None else among[0].platform) == "cpu" else clients_per_part
    if chunk < 1:
        raise ValueError(f"plan.chunk={chunk} must be at least 1")
    return Plan(min(chunk, clients_per_part), devices, model)


def _check_processes(model: int, devices: Sequence[Any]) -> None:
    """Raises ValueError if `model` does not divide the devices of each process."""
    counts = collections.Counter(device.process_index for device in devices)
    common = math.gcd(*counts.values())
    if common % model:
        process = next(process for process, count in sorted(counts.items()) if count % model)
        allowed = ", ".join(str(m) for m in range(1, common + 1) if common % m == 0)
        raise ValueError(
            f"plan.model={model}: devices of one process hold a network together, and process {process} has "
            f"{counts[process]}; allowed: {allowed}"
        )


ClientFn = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]  # (shared, one client's entry) -> (added, stacked)


def arrange(examples: Array, plan: Plan, by_size: bool = False) -> Array:
    """Orders clients so that a chunk holds clients of similar size and devices get equal work.

    Chunks are dealt to the devices in turns, largest first. In each turn every device gets one chunk, and the device
    with the least work so far gets the largest of them.

    Args:
      examples: [n] work of each client, n a multiple of chunk * shards.
      by_size: order by size even where clients train one after another.

    Returns:
      [n] indices; device d has those at [d * n / shards, (d + 1) * n / shards).
    """
    if plan.client_shards == 1 and (plan.chunk == len(examples) or (plan.chunk == 1 and not by_size)):
        return jnp.arange(len(examples))
    order = jnp.argsort(-examples, stable=True)
    if plan.client_shards == 1:
        return order
    chunks = order.reshape(-1, plan.client_shards, plan.chunk)

    def deal(work: Array, chunks: Array) -> tuple[Array, Array]:
        devices = jnp.argsort(work, stable=True)
        dealt = chunks[jnp.argsort(devices)]  # the k-th chunk to the k-th device of these
        return work + examples[dealt[:, 0]], dealt

    _, dealt = jax.lax.scan(deal, jnp.zeros(plan.client_shards, examples.dtype), chunks)
    return dealt.swapaxes(0, 1).reshape(-1)


def arrange_on_host(examples: np.ndarray, plan: Plan) -> np.ndarray:
    """Returns `arrange` of a host array, as a host array."""
    if plan.client_shards == 1 and plan.chunk in (1, len(examples)):
        return np.arange(len(examples))
    return np.asarray(jax.device_get(_arrange(jax.device_put(examples), plan)))


_arrange = jax.jit(arrange, static_argnums=1)


def map_clients(
    fn: ClientFn, shared: PyTree, mapped: PyTree, *, plan: Plan, mesh: Mesh, in_specs: PyTree = EVERYWHERE
) -> tuple[PyTree, PyTree]:
    """Maps `fn` over clients. With `plan.model` the compiler shards what is computed with sharded networks.

    Args:
      shared: what all clients read; never mapped.
      mapped: leaves [n, ...], n a multiple of plan.chunk * plan.client_shards.
      in_specs: PartitionSpecs of `shared`, a prefix; where it is sharded by clients, a device's clients read its own
        shard.

    Returns:
      (sum of `added` over the clients, `stacked` with leaves [n, ...]).
    """

    def on_device(shared, mapped):
        n = jax.tree.leaves(mapped)[0].shape[0]
        run_chunk = _map_chunk(fn, shared, plan.chunk)
        if n == plan.chunk:
            total, stacked = run_chunk(mapped)
        else:
            chunks = _chunks(mapped, plan.chunk)
            shapes = jax.eval_shape(run_chunk, jax.tree.map(lambda x: x[0], chunks))[0]
            zero = jax.tree.map(lambda s: jnp.zeros(s.shape, _sum_dtype(s.dtype)), shapes)

            def body(total, entries):
                added, stacked = run_chunk(entries)
                return jax.tree.map(lambda t, x: t + x.astype(t.dtype), total, added), stacked

            total, stacked = jax.lax.scan(body, zero, chunks)
            total = jax.tree.map(lambda t, s: t.astype(s.dtype), total, shapes)
            stacked = jax.tree.map(lambda x: x.reshape(n, *x.shape[2:]), stacked)
        return (jax.lax.psum(total, AXIS) if plan.client_shards > 1 else total), stacked

    if plan.client_shards == 1:
        return on_device(shared, mapped)
    return _shard_over_clients(on_device, mesh, (in_specs, SHARDED), (EVERYWHERE, SHARDED))(shared, mapped)


def map_chunk_range(
    fn: ClientFn,
    shared: PyTree,
    mapped: PyTree,
    sums: PyTree,
    bounds: PyTree,
    *,
    plan: Plan,
    mesh: Mesh,
    in_specs: PyTree = EVERYWHERE,
) -> tuple[PyTree, PyTree]:
    """Maps `fn` over some of each device's chunks.

    All ranges one after another give the bits of all chunks at once, and the numbers of
    `map_clients` up to rounding.

    Args:
      fn, shared, mapped, plan, mesh, in_specs: as in `map_clients`.
      sums: leaves [shards, ...], each device's sums so far (`init_sums`, `add_up_shards`).
      bounds: (first, last), [] each: the chunks from `first` to before `last`.

    Returns:
      (the sums with what these chunks added, `stacked` with leaves [n, ...], zeros for the other chunks).
    """

    def on_device(shared, mapped, sums, bounds):
        run_chunk, chunks = _map_chunk(fn, shared, plan.chunk), _chunks(mapped, plan.chunk)
        number = jax.tree.leaves(chunks)[0].shape[0]
        shapes = jax.eval_shape(run_chunk, jax.tree.map(lambda x: x[0], chunks))[1]
        zeros = jax.tree.map(lambda s: jnp.zeros((number, *s.shape), s.dtype), shapes)

        def body(i, carry):
            sums, results = carry
            added, stacked = run_chunk(jax.tree.map(lambda x: x[i], chunks))
            sums = jax.tree.map(lambda t, x: t + x.astype(t.dtype), sums, added)
            return sums, jax.tree.map(lambda all_, new: all_.at[i].set(new), results, stacked)

        first, last = bounds
        sums = jax.tree.map(lambda x: x[0], sums)
        sums, results = jax.lax.fori_loop(first, last, body, (sums, zeros))
        results = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), results)
        return jax.tree.map(lambda x: x[None], sums), results

    if plan.client_shards == 1:
        return on_device(shared, mapped, sums, bounds)
    inputs = in_specs, SHARDED, SHARDED, EVERYWHERE
    return _shard_over_clients(on_device, mesh, inputs, (SHARDED, SHARDED))(shared, mapped, sums, bounds)


def init_sums(fn: ClientFn, shared: PyTree, mapped: PyTree, plan: Plan) -> PyTree:
    """Returns the sums [shards, ...] with which `map_chunk_range` begins: zeros."""
    added, _ = jax.eval_shape(fn, shared, jax.tree.map(lambda x: x[0], mapped))
    return jax.tree.map(lambda s: jnp.zeros((plan.client_shards, *s.shape), _sum_dtype(s.dtype)), added)


def _map_chunk(fn: ClientFn, shared: PyTree, size: int) -> Callable[[PyTree], PyTree]:
    """Returns (entries of a chunk) -> (sum of `added`, `stacked` with leaves [size, ...])."""

    def run_chunk(entries: PyTree) -> tuple[PyTree, PyTree]:
        if size == 1:  # no vmap over one: it would turn every matmul and convolution into its batched form
            added, stacked = fn(shared, jax.tree.map(lambda x: x[0], entries))
            return added, jax.tree.map(lambda x: jnp.asarray(x)[None], stacked)
        added, stacked = jax.vmap(fn, in_axes=(None, 0))(shared, entries)
        return jax.tree.map(lambda x: jnp.sum(x, 0, dtype=_sum_dtype(x.dtype)).astype(x.dtype), added), stacked

    return jax.jit(run_chunk, inline=True)  # one trace for its shapes and its use


def _chunks(mapped: PyTree, size: int) -> PyTree:
    """Reshapes leaves [n, ...] to [n / size, size, ...]."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // size, size, *x.shape[1:]), mapped)


def _sum_dtype(dtype: Any) -> Any:
    """Returns the dtype of a sum; a bfloat16 sum of some hundred equal numbers would stop growing."""
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.inexact) else dtype


def add_up_shards(shards: PyTree, plan: Plan, mesh: Mesh) -> PyTree:
    """Adds up leaves [shards, ...] of the devices, as `map_clients` does."""
    if plan.client_shards == 1:
        return jax.tree.map(lambda x: x[0], shards)
    total = lambda shards: jax.lax.psum(jax.tree.map(lambda x: x[0], shards), AXIS)
    return _shard_over_clients(total, mesh, SHARDED, EVERYWHERE)(shards)


def _shard_over_clients(fn: Callable[..., PyTree], mesh: Mesh, in_specs: PyTree, out_specs: PyTree) -> Callable[..., PyTree]:
    """Maps `fn` over the shards of the clients axis; along other axes of the mesh the compiler shards."""
    manual: dict[str, Any] = {} if mesh.axis_names == (AXIS,) else {"axis_names": {AXIS}}
    return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False, **manual)
