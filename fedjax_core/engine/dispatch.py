"""A simulation compiled for one plan: its jitted functions, and how rounds are dispatched.

Several rounds are one program where all arrays are on the devices; else rounds are dispatched one after another. A raw
record is what a round's program returns, on the host (`rounds.flatten_record`).
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import distributed
from fedjax_core.algorithm import PyTree
from fedjax_core.engine import client_loop, client_view, evaluation_step, heap, rounds, score_batches, unseen_clients
from fedjax_core.engine.client_state.manager import ClientStates, OffloadedStates
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.data_feed.streaming import DataFeed
from fedjax_core.engine.sharding import mesh as meshes
from fedjax_core.engine.sharding.data_placement import memory_limit
from fedjax_core.engine.sharding.model_parallel import Layout, make_layout
from fedjax_core.engine.simulation_spec import SimulationSpec, State

BLOCK_BYTES = 2**26  # of the states of one block of scored clients, and the sums of their scores
MIN_BLOCK = 64  # clients, where states or data are not on the devices

LEVEL = "xla_backend_optimization_level"  # of LLVM: 3 unless XLA_FLAGS has another

jax.monitoring.register_event_duration_secs_listener(heap.trim_after_compiling)


class Programs(NamedTuple):
    """Jitted functions, compiled when they are first called; of a list, one per group.

    Attributes:
      init_state, prepare_clients, draw_cohorts: of `rounds`.
      run_resident_rounds, run_scored_round: `rounds.run_resident_rounds`, the latter with scores
        right after local training; both consume the state.
      run_offloaded_round: `rounds.run_round`, by whether it scores.
      init_server_sums, score_server: of `evaluation_step`, by `evaluation_step.SOURCES`.
      score_clients: of `evaluation_step`.
      add_up_shards: of `client_loop`.
      score_unseen: of `unseen_clients`.
      view, predict: `client_view.view_client`, `client_view.predict`.
    """

    init_state: Any
    prepare_clients: Sequence[Any]
    draw_cohorts: Any
    run_resident_rounds: Any
    run_scored_round: Any
    run_offloaded_round: dict[bool, Any]
    init_server_sums: dict[str, Any]
    score_server: dict[str, Any]
    add_up_shards: Any
    score_clients: Sequence[Any]
    score_unseen: Sequence[Any]
    view: Sequence[Any]
    predict: Sequence[Any]


def jit_programs(spec: SimulationSpec, layout: Layout) -> Programs:
    """Returns the programs of a simulation under its plan, with the results' shardings of `layout`."""
    everywhere, by_client = meshes.replicated(spec.mesh), meshes.client_sharded(spec.mesh)
    groups = range(len(spec.groups))
    of_rounds = everywhere if spec.plan.model == 1 else (layout.state, everywhere)
    of_offloaded = layout.state, layout.client_rows, everywhere

    def jit(function, *fixed, out: Any = everywhere, fixed_names: dict[str, Any] | None = None, **options):
        bound = functools.partial(function, spec, *fixed, **(fixed_names or {}))
        return jax.jit(bound, out_shardings=out, **options)

    def jit_rounds(scored: bool):
        return jit(rounds.run_resident_rounds, out=of_rounds, fixed_names={"scored": scored}, donate_argnums=1)

    return Programs(
        init_state=jit(rounds.init_state, out=layout.state, compiler_options=start_options(spec)),
        prepare_clients=[jit(rounds.prepare_clients, g, out=layout.client_blocks[g]) for g in groups],
        draw_cohorts=jit(rounds.draw_cohorts),
        run_resident_rounds=jit_rounds(False),
        run_scored_round=jit_rounds(True),
        run_offloaded_round={
            scored: jit(rounds.run_round, out=of_offloaded, fixed_names={"scored": scored}) for scored in (False, True)
        },
        init_server_sums={
            source: jit(evaluation_step.init_server_sums, out=by_client, fixed_names={"source": source})
            for source in evaluation_step.SOURCES
        },
        score_server={
            source: jit(evaluation_step.score_server, out=by_client, fixed_names={"source": source})
            for source in evaluation_step.SOURCES
        },
        add_up_shards=jax.jit(
            functools.partial(client_loop.add_up_shards, plan=spec.plan, mesh=spec.mesh), out_shardings=everywhere
        ),
        score_clients=[jit(evaluation_step.score_clients, g) for g in groups],
        score_unseen=[jit(unseen_clients.score_unseen, g) for g in groups],
        view=[jit(client_view.view_client, g, out=layout.view, static_argnums=6) for g in groups],
        predict=[jit(client_view.predict, g, static_argnums=2) for g in groups],
    )


def start_options(spec: SimulationSpec) -> dict[str, int]:
    """Returns the compiler's options for what runs once.

    On CPUs level 3 unrolls the draws of small arrays: an initialization of two convolutions takes ten seconds.
    """
    is_on_cpus = spec.mesh.devices.flat[0].platform == "cpu"
    return {LEVEL: 2} if is_on_cpus and LEVEL not in os.environ.get("XLA_FLAGS", "") else {}


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledPlan:
    """A simulation under one plan: its programs, what they read, and the client states that they change.

    Attributes:
      fits: of True (rounds that are scored) and False (others), those whose program has run once, and so fits the devices.
      pace: by program of an evaluation, the seconds that a chunk of each device last took.
    """

    spec: SimulationSpec
    layout: Layout
    programs: Programs
    feed: DataFeed
    states: ClientStates
    fits: set[bool] = dataclasses.field(default_factory=set)
    pace: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def device_arrays(self) -> DeviceArrays:
        """What is on the devices all the time; put there when first needed."""
        return self.feed.on_device

    def put(self, tree: PyTree) -> PyTree:
        """Puts host values on the plan's devices."""
        return meshes.put(tree, self.spec.mesh)

    def make_blocks(self, g: int, clients: np.ndarray, nobody: int, work: np.ndarray, client_bytes: int = 0) -> list[np.ndarray]:
        """Splits clients into blocks of one size, dealt to the devices by their work.

        Args:
          nobody: the id of an empty slot.
          work: [nobody] of every client, such as its examples.
          client_bytes: memory that one client takes; a block takes at most BLOCK_BYTES, or has one
            chunk for each device.

        Returns:
          Ids, padded with `nobody`: one block if states and data are on the devices, else about a cohort each; more
          where these take more than BLOCK_BYTES.
        """
        is_resident = not self.spec.is_offloaded and not self.feed.streamed
        most = len(clients) if is_resident else min(len(clients), max(self.spec.sampler.size, MIN_BLOCK))
        most = min(most, max(1, BLOCK_BYTES // max(1, client_bytes)))
        plan = self.spec.plan_of(g)
        size = plan.slots(most)
        ids = np.full(-(-len(clients) // size) * size, nobody, np.int32)
        ids[: len(clients)] = clients
        work = np.append(work, 0).astype(np.int32)
        return [block[client_loop.arrange_on_host(work[block], plan)] for block in ids.reshape(-1, size)]

    def as_replica(self) -> "CompiledPlan":
        """Returns the same for one of several runs, with programs and arrays in common."""
        return dataclasses.replace(self, feed=self.feed.as_replica(), fits=set())

    def close(self) -> None:
        """Stops preparing coming rounds; client states of past rounds are written."""
        try:
            self.feed.close()
        finally:
            self.states.close()


def compile_for_plan(
    spec: SimulationSpec,
    plan: meshes.Plan,
    offloaded: OffloadedStates | None = None,
) -> CompiledPlan:
    """Returns the simulation under a plan; its programs are compiled when they are first called.

    Args:
      offloaded: client states that were offloaded under another plan.
    """
    mesh = meshes.make_mesh(plan, spec.devices)
    platform = mesh.devices.flat[0].platform
    convolves = score_batches.has_convolution([(shapes.server, shapes.client) for shapes in spec.shapes.groups])
    batches = score_batches.choose_batches(spec.evaluation, spec.host_arrays, plan, platform, convolves)
    spec = dataclasses.replace(spec, plan=plan, mesh=mesh, batches=batches)
    layout = make_layout(spec)
    programs = jit_programs(spec, layout)
    feed = DataFeed(spec, layout.arrays, functools.partial(draw_cohorts, spec, programs))
    return CompiledPlan(spec, layout, programs, feed, ClientStates(spec, layout, offloaded))


def add_arrivals(spec: SimulationSpec, arrays: DeviceArrays, key_data: Any, round_num: Any) -> DeviceArrays:
    """Returns the arrays with the arrivals of the rounds after `round_num`, of as many as a dispatch may have."""
    if spec.asynchrony is None:
        return arrays
    window = spec.asynchrony.read_window(key_data, int(jax.device_get(round_num)), spec.rounds_per_dispatch)
    return arrays._replace(arrivals=meshes.put(window, spec.mesh))


def draw_cohorts(spec: SimulationSpec, programs: Programs, arrays: DeviceArrays, key_data: Any, round_num: Any) -> rounds.Drawn:
    """Returns a round's draw, on the devices."""
    return programs.draw_cohorts(add_arrivals(spec, arrays, key_data, round_num), key_data, round_num)


@jax.jit
def _copy(tree: PyTree) -> PyTree:
    """Copies all leaves in one program."""
    return jax.tree.map(jnp.copy, tree)


def init_state(compiled: CompiledPlan, seed: int) -> State:
    """Returns the state before round 1, without `prepare`."""
    key_data = compiled.put(jax.random.key_data(jax.random.key(seed)))
    state = compiled.programs.init_state(compiled.device_arrays, key_data)
    if compiled.spec.is_offloaded:
        compiled.states.replace_offloaded(compiled.states.make_untouched(_copy(state.server)), state)
    return state


def prepare_group(compiled: CompiledPlan, state: State, g: int) -> State:
    """Returns the state after `prepare` of group g's clients."""
    spec = compiled.spec
    blocks = compiled.make_blocks(g, spec.groups[g].clients, spec.population, spec.host_arrays.size)
    block_arrays = compiled.feed.for_blocks(blocks, ["index"])
    for ids, arrays in zip(blocks, block_arrays, strict=True):
        slots, clients, *_ = compiled.states.read(state, g, ids)
        clients = compiled.programs.prepare_clients[g](arrays, state.server, state.key, compiled.put(ids), clients)
        state = compiled.states.write(state, g, slots, clients)
    return state


def dispatch_rounds(compiled: CompiledPlan, state: State, num_rounds: int, scored: bool) -> tuple[State, list[PyTree]]:
    """Runs the next rounds, at most `num_rounds`, and at most `spec.rounds_per_dispatch` in one program.

    The state is consumed, except where the program runs for the first time or states are offloaded: then it survives an
    error, for a smaller chunk to take over.

    Args:
      num_rounds: the most to run; one, where `scored`.
      scored: whether the round scores clients right after their training.

    Returns:
      (state after some rounds, a raw record of each).
    """
    if compiled.spec.is_offloaded:
        return _dispatch_offloaded_round(compiled, state, scored)
    if not compiled.feed.streamed:
        arrays = add_arrivals(compiled.spec, compiled.device_arrays, state.key, state.round)
        state, record = _run_program(compiled, arrays, state, num_rounds, scored)
        return state, split_record(jax.device_get(record), num_rounds, scored)
    key, done = jax.device_get(state.key), int(jax.device_get(state.round))
    records: list[PyTree] = []
    for round_num in range(done, done + (num_rounds if scored in compiled.fits else 1)):
        arrays = add_arrivals(compiled.spec, compiled.feed.for_round(key, round_num, scored), key, round_num)
        state, record = _run_program(compiled, arrays, state, 1, scored)  # dispatched while the round before it trains
        records[-1:] = [jax.device_get(earlier) for earlier in records[-1:]]  # at most two rounds are dispatched
        records.append(record)
    return state, [of_round for record in jax.device_get(records) for of_round in split_record(record, 1, scored)]


def _run_program(compiled: CompiledPlan, arrays: DeviceArrays, state: State, num_rounds: int, scored: bool) -> tuple[State, PyTree]:
    """Runs rounds on resident states in one program; the first time on a copy, to the end."""
    program = compiled.programs.run_scored_round if scored else compiled.programs.run_resident_rounds
    number = compiled.put(np.int32(num_rounds))
    if scored in compiled.fits:
        return program(arrays, state, number)
    if compiled.spec.plan.chunk > 1:
        reason = out_of_memory_reason(compiled, program, (arrays, state, number))
        if distributed.any_process(reason is not None):
            raise MemoryError(reason or "the round does not fit the memory of a device of another process")
    state, record = program(arrays, _copy(state), number)
    record = jax.device_get(record)
    compiled.fits.add(scored)
    return state, record


def split_record(record: PyTree, num_rounds: int, scored: bool) -> list[PyTree]:
    """Returns the raw records of the first rounds of a dispatch."""
    return [record] if scored else [jax.tree.map(lambda x, i=i: x[i], record) for i in range(num_rounds)]


def _dispatch_offloaded_round(compiled: CompiledPlan, state: State, scored: bool) -> tuple[State, list[PyTree]]:
    """Runs one round on offloaded client states."""
    resident, programs, mesh = compiled.device_arrays, compiled.programs, compiled.spec.mesh

    def draw(key: np.ndarray, round_num: int) -> rounds.Drawn:
        return draw_cohorts(compiled.spec, programs, resident, compiled.put(key), compiled.put(np.int32(round_num)))

    compiled.states.check_owner(state)
    exchange, initial = compiled.states.exchange(draw)
    key, round_num = np.asarray(jax.device_get(state.key)), int(jax.device_get(state.round))
    coming = exchange.get(key, round_num)
    touched = meshes.put(coming.touched, mesh, meshes.client_sharded(mesh))
    arrays = add_arrivals(compiled.spec, compiled.feed.for_round(key, round_num, scored), key, round_num)
    following = draw(key, round_num + 1)  # before the round: a device runs one program after another
    program = programs.run_offloaded_round[scored]
    state, clients, record = program(arrays, state, coming.drawn, coming.states, initial, touched)
    exchange.prefetch(key, round_num + 1, following)
    record = jax.device_get(record)
    exchange.put_async(coming, clients)
    compiled.states.mark_round(key, round_num + 1)
    return state, [record]


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error is a lack of memory, of a device or of the host."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)


def out_of_memory_reason(compiled: CompiledPlan, program: Any, arguments: tuple) -> str | None:
    """Returns why a program does not fit this process's devices; None if it does, or if they do not tell."""
    limit = memory_limit(compiled.spec.mesh)
    if not limit:
        return None
    prefetched = compiled.feed.prefetch_bytes(arguments[0])
    return too_large_reason(program.lower(*arguments).compile(), limit, prefetched)


def too_large_reason(program: jax.stages.Compiled, limit: int, beside: int) -> str | None:
    """Returns why a program, with `beside` bytes of other arrays, does not fit a device of `limit` bytes; None if it does.

    It judges by the compiler's memory analysis.
    """
    analysis = program.memory_analysis()
    if analysis is None:
        return None
    need = analysis.temp_size_in_bytes + analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    need += beside - analysis.alias_size_in_bytes
    return None if need <= 0.95 * limit else f"it needs {need / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB"
