"""The client loop: one function maps a client's work over many clients by a plan. The only place that chooses how.

A `Plan` says how many clients train at once on a device (`chunk`: 1 is one after another, the cohort's size is all at once), over
how many devices the clients are spread, and how many of these hold a network together (`model`, see `model_parallel.py`): devices
of one process. What clients contribute to a sum is added up inside the loop, so memory does not grow with their number;
everything else is stacked. All plans compute the same thing to rounding.
"""

import collections
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.lazy_array import Deferred

AXIS, MODEL = "clients", "model"
log = logging.getLogger("fedjax_core")
Result = TypeVar("Result")


class Plan(NamedTuple):
    """How clients are mapped.

    Attributes:
      chunk: clients that train at once on one device, as one vmap.
      devices: devices over which the clients are spread, in all processes together.
      model: devices that hold a network together.
    """

    chunk: int
    devices: int
    model: int = 1

    @property
    def parts(self) -> int:
        """Into how many parts the clients are divided."""
        return self.devices // self.model


def choose(
    cohort: int,
    *,
    chunk: int | None = None,
    devices: int | None = None,
    model: int = 1,
    among: Sequence[Any] | None = None,
) -> Plan:
    """The plan for a cohort; what is given is kept, the rest is chosen by backend.

    On CPU clients train one after another, each step at the speed of a plain one (vmapping convolutions over clients makes them
    grouped, which is several times slower). On an accelerator all train at once; see `with_smaller_chunks` if they do not fit.

    Args:
      cohort: C.
      chunk: clients at once on one device; None: by backend.
      devices: None: all that there are, but no more than the cohort has clients, `model` for each; on several processes all.
      model: devices that hold a network together.
      among: the devices that there are; None: those that jax sees. Others, such as those of a topology, can be compiled for.

    Returns:
      The plan.

    Raises:
      ValueError: chunk, devices or model below 1, more devices than there are, a number of them, or of a process's, that model
        does not divide, or one that leaves a process without a device.
    """
    there = jax.device_count() if among is None else len(among)
    processes = jax.process_count() if among is None else len({device.process_index for device in among})
    first = lambda number: (jax.devices() if among is None else among)[:number]
    if devices is not None and not 1 <= devices <= there:
        raise ValueError(f"plan.devices={devices} is not between 1 and {there}, the devices that jax sees")
    most = there if devices is None else devices
    if model < 1 or most % model:
        fits = ", ".join(str(m) for m in range(1, most + 1) if most % m == 0)
        raise ValueError(f"plan.model={model} does not divide the {most} devices; it may be {fits}")
    if devices is not None and processes > 1:
        used = {device.process_index for device in first(devices)}
        if len(used) < processes:
            text = f"plan.devices={devices} leaves {processes - len(used)} of {processes} processes without a device"
            raise ValueError(f"{text}; leave it out to take all {there}")
    if model > 1 and processes > 1:
        _check_processes(model, first(most))
    if devices is None:
        devices = there if processes > 1 else min(there // model, cohort) * model
    each = -(-cohort // (devices // model))
    if chunk is None:
        chunk = 1 if (jax.default_backend() if among is None else among[0].platform) == "cpu" else each
    if chunk < 1:
        raise ValueError(f"plan.chunk={chunk} must be at least 1")
    return Plan(min(chunk, each), devices, model)


def _check_processes(model: int, devices: Sequence[Any]) -> None:
    """Raises ValueError if `model` does not divide the devices of each process."""
    each = collections.Counter(device.process_index for device in devices)
    common = math.gcd(*each.values())
    if common % model:
        process = next(process for process, number in sorted(each.items()) if number % model)
        fits = ", ".join(str(m) for m in range(1, common + 1) if common % m == 0)
        what = f"plan.model={model}: devices of one process hold a network together, and process {process} has {each[process]}"
        raise ValueError(f"{what}; it may be {fits}")


def mesh(plan: Plan, among: Sequence[Any] | None = None) -> Mesh:
    """A mesh over the plan's devices, the first of those in `among`, or of those that jax sees. One axis has clients, a second
    one, where there is such, parts of networks: devices of one process."""
    devices = (jax.devices() if among is None else among)[: plan.devices]
    if plan.model == 1:
        return jax.make_mesh((plan.devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)
    axes, types = (AXIS, MODEL), (AxisType.Auto,) * 2
    if len({device.process_index for device in devices}) > 1:
        return Mesh(together_in_processes(devices).reshape(plan.parts, plan.model), axes, axis_types=types)
    return jax.make_mesh((plan.parts, plan.model), axes, axis_types=types, devices=devices)


def together_in_processes(devices: Sequence[Any]) -> np.ndarray:
    """The devices, those of a process one after another."""
    found = np.empty(len(devices), object)
    found[:] = sorted(devices, key=lambda device: device.process_index)  # which leaves each process's order as it is
    return found


def replicated(on: Mesh) -> NamedSharding:
    """The sharding of what every device holds whole."""
    return NamedSharding(on, PartitionSpec())


def spread(on: Mesh) -> NamedSharding:
    """The sharding of rows [n, ...] of clients: each device has its own."""
    return NamedSharding(on, PartitionSpec(AXIS))


def place(tree: PyTree, on: Mesh, at: PyTree = None) -> PyTree:
    """Puts host arrays whole on every device of the mesh, or as the shardings `at`, a prefix of the tree, divide them; in several
    processes, each must hold the same. What is deferred is read part by part."""
    at, (leaves, structure) = replicated(on) if at is None else at, jax.tree.flatten(tree)
    within = all(sharding.is_fully_addressable for sharding in jax.tree.leaves(at))
    if within and not any(isinstance(leaf, Deferred) for leaf in leaves):
        return jax.device_put(jax.tree.map(np.asarray, tree), at)
    each = jax.tree.leaves(jax.tree.map(lambda sharding, part: jax.tree.map(lambda _: sharding, part), at, tree))
    return structure.unflatten([_placed(leaf, sharding) for leaf, sharding in zip(leaves, each, strict=True)])


def _placed(leaf: Any, sharding: Any) -> Array:
    if isinstance(leaf, Deferred):
        return leaf.placed(sharding)
    array = np.asarray(leaf)
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    part = lambda index: np.asarray(array[index])  # of this process; nothing travels between them
    return jax.make_array_from_callback(array.shape, sharding, part)


def assembled(shapes: PyTree, on: Mesh, part: Callable[[int], Sequence[np.ndarray]]) -> PyTree:
    """Arrays [n, ...] that are divided as clients are; each process makes the parts of its own devices.

    Args:
      shapes: of the arrays.
      on: the mesh.
      part: d -> the leaves' d-th parts [n / D, ...].
    """
    leaves, structure = jax.tree.flatten(shapes)
    lies, parts = spread(on), on.shape[AXIS]

    def one(at: int, shape: Any) -> Array:
        each = shape.shape[0] // parts
        mine = lambda index: part((index[0].start or 0) // each)[at]
        return jax.make_array_from_callback(shape.shape, lies, mine, dtype=shape.dtype)

    return structure.unflatten([one(at, shape) for at, shape in enumerate(leaves)])


def fetched(tree: PyTree) -> PyTree:
    """`jax.device_get`, also of arrays that are divided over devices of each process, all of which hold the same.

    Raises:
      ValueError: this process has not all parts of an array.
    """
    return jax.device_get(jax.tree.map(_assembled, tree))


def _assembled(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return leaf
    whole, parts = np.empty(leaf.shape, leaf.dtype), {str(shard.index): shard for shard in leaf.addressable_shards}
    if sum(shard.data.size for shard in parts.values()) != whole.size:
        raise ValueError(f"process {jax.process_index()} has not all parts of an array {list(leaf.shape)}, {leaf.sharding}")
    for shard in parts.values():
        whole[shard.index] = np.asarray(shard.data)
    return whole


def slots(cohort: int, plan: Plan) -> int:
    """Places that `arrange` makes for a cohort of C: the next multiple of chunk * parts."""
    unit = plan.chunk * plan.parts
    return -(-cohort // unit) * unit


def arrange(examples: Array, plan: Plan, by_size: bool = False) -> Array:
    """An order of the clients under which chunks hold clients of like size and devices equal work.

    Chunks go to the devices in turns, from the largest on. In each turn every device gets one, and the device with
    least work so far the largest of them.

    Args:
      examples: [n] work of each client, n a multiple of chunk * parts.
      plan: the plan.
      by_size: largest first, also where they train one after another.

    Returns:
      [n] indices: part d stands at [d * n / parts, (d + 1) * n / parts).
    """
    if plan.parts == 1 and (plan.chunk == len(examples) or (plan.chunk == 1 and not by_size)):
        return jnp.arange(len(examples))
    order = jnp.argsort(-examples, stable=True)
    if plan.parts == 1:
        return order
    chunks = order.reshape(-1, plan.parts, plan.chunk)

    def deal(work: Array, chunks: Array) -> tuple[Array, Array]:
        devices = jnp.argsort(work, stable=True)
        dealt = chunks[jnp.argsort(devices)]  # the k-th chunk to the k-th device of these
        return work + examples[dealt[:, 0]], dealt

    _, dealt = jax.lax.scan(deal, jnp.zeros(plan.parts, examples.dtype), chunks)
    return dealt.swapaxes(0, 1).reshape(-1)


def arrange_on_host(examples: np.ndarray, plan: Plan) -> np.ndarray:
    """Returns what `arrange` does, of and as an array of the host."""
    if plan.parts == 1 and plan.chunk in (1, len(examples)):
        return np.arange(len(examples))
    return np.asarray(jax.device_get(_arrange(jax.device_put(examples), plan)))


_arrange = jax.jit(arrange, static_argnums=1)


def map_clients(
    fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    shared: PyTree,
    mapped: PyTree,
    *,
    plan: Plan,
    on: Mesh,
    lies: PyTree = None,
) -> tuple[PyTree, PyTree]:
    """Maps `fn` over clients. Where networks are divided, the compiler divides what is computed with them, by where they lie.

    Args:
      fn: (shared, one client's entry) -> (added, stacked).
      shared: what all clients read; never mapped.
      mapped: leaves [n, ...], n a multiple of plan.chunk * plan.parts.
      plan: how.
      on: the plan's mesh.
      lies: PartitionSpecs of what is shared, a prefix: where it is divided as clients are, a device's clients read its own part.
        None: all of it is whole on each device.

    Returns:
      (sum of `added` over the clients, `stacked` with leaves [n, ...]).
    """

    def on_device(shared, mapped):
        n = jax.tree.leaves(mapped)[0].shape[0]
        chunk_of = _chunk_of(fn, shared, plan.chunk)
        if n == plan.chunk:
            total, stacked = chunk_of(mapped)
        else:
            chunks = _chunks(mapped, plan.chunk)
            first = jax.tree.map(lambda x: x[0], chunks)
            shapes = jax.eval_shape(chunk_of, first)[0]
            zero = jax.tree.map(lambda s: jnp.zeros(s.shape, _of_sums(s.dtype)), shapes)

            def body(total, entries):
                added, stacked = chunk_of(entries)
                return jax.tree.map(lambda t, x: t + x.astype(t.dtype), total, added), stacked

            total, stacked = jax.lax.scan(body, zero, chunks)
            total = jax.tree.map(lambda t, s: t.astype(s.dtype), total, shapes)
            stacked = jax.tree.map(lambda x: x.reshape(n, *x.shape[2:]), stacked)
        return (jax.lax.psum(total, AXIS) if plan.parts > 1 else total), stacked

    if plan.parts == 1:
        return on_device(shared, mapped)
    everywhere, sharded = PartitionSpec(), PartitionSpec(AXIS)
    shares = everywhere if lies is None else lies
    return _over_clients(on_device, on, (shares, sharded), (everywhere, sharded))(shared, mapped)


def map_part(
    fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    shared: PyTree,
    mapped: PyTree,
    sums: PyTree,
    bounds: PyTree,
    *,
    plan: Plan,
    on: Mesh,
    lies: PyTree = None,
) -> tuple[PyTree, PyTree]:
    """Maps `fn` over some of each device's chunks.

    Part after part, all of them give the same as at once, to the bit, and what `map_clients` gives, to rounding.

    Args:
      fn, shared, mapped, plan, on, lies: as in `map_clients`.
      sums: leaves [parts, ...], what each device has added up so far; `summed` gives the sum of them.
      bounds: (first, last), [] each: the chunks from `first` on, before `last`.

    Returns:
      (the sums with what these chunks added, `stacked` with leaves [n, ...], zeros for the other chunks).
    """

    def on_device(shared, mapped, sums, bounds):
        chunk_of, chunks = _chunk_of(fn, shared, plan.chunk), _chunks(mapped, plan.chunk)
        number = jax.tree.leaves(chunks)[0].shape[0]
        shapes = jax.eval_shape(chunk_of, jax.tree.map(lambda x: x[0], chunks))[1]
        zeros = jax.tree.map(lambda s: jnp.zeros((number, *s.shape), s.dtype), shapes)

        def body(i, carry):
            sums, found = carry
            added, stacked = chunk_of(jax.tree.map(lambda x: x[i], chunks))
            sums = jax.tree.map(lambda t, x: t + x.astype(t.dtype), sums, added)
            return sums, jax.tree.map(lambda all_, new: all_.at[i].set(new), found, stacked)

        first, last = bounds
        sums, found = jax.lax.fori_loop(first, last, body, (jax.tree.map(lambda x: x[0], sums), zeros))
        return jax.tree.map(lambda x: x[None], sums), jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)

    if plan.parts == 1:
        return on_device(shared, mapped, sums, bounds)
    everywhere, sharded = PartitionSpec(), PartitionSpec(AXIS)
    inputs = everywhere if lies is None else lies, sharded, sharded, everywhere
    return _over_clients(on_device, on, inputs, (sharded, sharded))(shared, mapped, sums, bounds)


def no_sums(fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], shared: PyTree, mapped: PyTree, plan: Plan) -> PyTree:
    """Returns the sums [parts, ...] with which `map_part` begins: zeros."""
    added, _ = jax.eval_shape(fn, shared, jax.tree.map(lambda x: x[0], mapped))
    return jax.tree.map(lambda s: jnp.zeros((plan.parts, *s.shape), _of_sums(s.dtype)), added)


def _chunk_of(fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], shared: PyTree, size: int) -> Callable[[PyTree], PyTree]:
    """(entries of a chunk) -> (their sum, what they give, stacked)."""

    def of_chunk(entries: PyTree) -> tuple[PyTree, PyTree]:
        if size == 1:  # no vmap over one: it would turn every matmul and convolution into its batched form
            added, stacked = fn(shared, jax.tree.map(lambda x: x[0], entries))
            return added, jax.tree.map(lambda x: jnp.asarray(x)[None], stacked)
        added, stacked = jax.vmap(fn, in_axes=(None, 0))(shared, entries)
        return jax.tree.map(lambda x: jnp.sum(x, 0, dtype=_of_sums(x.dtype)).astype(x.dtype), added), stacked

    return jax.jit(of_chunk, inline=True)  # one trace for its shapes and its use


def _chunks(mapped: PyTree, size: int) -> PyTree:
    """Leaves [n, ...] as [n / size, size, ...]."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // size, size, *x.shape[1:]), mapped)


def _of_sums(dtype: Any) -> Any:
    """In which type numbers are added up: in bfloat16 the sum of some hundred of one size would not grow any more."""
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.inexact) else dtype


def summed(parts: PyTree, plan: Plan, on: Mesh) -> PyTree:
    """Sums of leaves [parts], by the devices themselves: as `map_clients` adds up what each of them has."""
    if plan.parts == 1:
        return jax.tree.map(lambda x: x[0], parts)
    total = lambda parts: jax.lax.psum(jax.tree.map(lambda x: x[0], parts), AXIS)
    return _over_clients(total, on, PartitionSpec(AXIS), PartitionSpec())(parts)


def _over_clients(fn: Callable[..., PyTree], on: Mesh, inputs: PyTree, outputs: PyTree) -> Callable[..., PyTree]:
    """`fn` on each part of the clients; along other axes of the mesh the compiler divides."""
    manual: dict[str, Any] = {} if on.axis_names == (AXIS,) else {"axis_names": {AXIS}}
    return jax.shard_map(fn, mesh=on, in_specs=inputs, out_specs=outputs, check_vma=False, **manual)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is a device's lack of memory."""
    return "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)


def memory_limit(on: Mesh) -> int | None:
    """Bytes of a device's memory; None where it does not tell, as on a CPU."""
    return (on.local_devices[0].memory_stats() or {}).get("bytes_limit")


def too_large(compiled: jax.stages.Compiled, limit: int, beside: int = 0) -> str | None:
    """Why a compiled program, with some bytes beside it, will not fit a device of `limit` bytes, by its own memory analysis. None
    if it fits."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    need = analysis.temp_size_in_bytes + analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    need += beside - analysis.alias_size_in_bytes
    return None if need <= 0.95 * limit else f"it needs {need / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB"


def with_smaller_chunks(attempt: Callable[[Plan], Result], plan: Plan) -> tuple[Result, Plan]:
    """Runs `attempt`; on lack of memory says so, halves the chunk and tries again.

    On several processes a device's lack of memory, which the others do not see, ends the run: they would wait for a round that
    never comes. A MemoryError is known to all of them.

    Args:
      attempt: plan -> result; must leave its inputs alive when it fails.
      plan: the first to try.

    Returns:
      (result, the plan that fitted).

    Raises:
      Whatever `attempt` raised, if it is not a lack of memory or the chunk is 1 already.
    """
    while True:
        try:
            return attempt(plan), plan
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            known = isinstance(error, MemoryError)
            if plan.chunk == 1 or not (known or out_of_memory(error)):
                raise
            if jax.process_count() > 1 and not known:
                text = f"{plan.chunk} clients at once do not fit a device of process {jax.process_index()}; set plan.chunk lower"
                raise ValueError(f"{text} ({str(error).splitlines()[0]})") from None
            smaller = plan._replace(chunk=-(-plan.chunk // 2))
            log.warning("%d clients at once do not fit (%s); trying %d", plan.chunk, str(error).splitlines()[0], smaller.chunk)
            plan = smaller
