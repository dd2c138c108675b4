"""A simulation's programs, lowered for devices that need not be there: nothing is put on them or run."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.stages import Traced

from fedjax_core.algorithm import PyTree
from fedjax_core.engine import evaluation
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.dispatch import CompiledPlan
from fedjax_core.engine.sharding.mesh import client_sharded, replicated
from fedjax_core.engine.simulation_spec import State
from fedjax_core.engine.simulator import Simulator

START, ROUND, EVALUATION = PARTS = ("start", "round", "evaluation")
SCORED_ROUND = f"{EVALUATION}: scored round"
Traces = dict[str, Callable[[], Traced]]


def trace_programs(simulation: Simulator, parts: tuple[str, ...] = PARTS) -> Traces:
    """Returns what a run dispatches, by name ("round", "evaluation: server" ...), each traced when it is called.

    Args:
      simulation: on any devices, such as a topology's (`experiment.build(devices=...)`).
    """
    tracer = _Tracer(simulation.compiled)
    traces: Traces = {}
    for part, add in ((START, tracer.add_start), (ROUND, tracer.add_round), (EVALUATION, tracer.add_evaluation)):
        if part in parts:
            add(traces)
    return traces


def resident_shapes(compiled: CompiledPlan) -> tuple[DeviceArrays, State]:
    """Returns what is on the devices all the time, as shapes with their shardings."""
    key_data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    arrays = _abstract(compiled.feed.on_host, compiled.layout.arrays)
    state = jax.eval_shape(compiled.programs.init_state, arrays, key_data)
    return arrays, _abstract(state, compiled.layout.state)


class _Tracer:
    """Traces the programs of a simulation under its plan on abstract arguments."""

    def __init__(self, compiled: CompiledPlan):
        self.compiled, self.spec, self.programs = compiled, compiled.spec, compiled.programs
        self.replicated, self.by_client = replicated(self.spec.mesh), client_sharded(self.spec.mesh)
        self.number = self.abstract(np.int32(0))
        self.key_data = self.abstract(jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))))
        self.arrays, self.state = resident_shapes(compiled)
        self.initial = self.state.server if self.spec.is_offloaded else ()

    def abstract(self, tree: PyTree, shardings: Any = None) -> PyTree:
        return _abstract(tree, self.replicated if shardings is None else shardings)

    def client_states(self, g: int, number: int) -> tuple[PyTree, Any]:
        """Returns the states of `number` clients of group g, and whether they were touched."""
        client = self.spec.shapes.groups[g].client
        states = jax.tree.map(lambda s: jax.ShapeDtypeStruct((number, *s.shape), s.dtype), client)
        sharding = self.compiled.layout.client_blocks[g]
        return self.abstract(states, sharding), self.abstract(np.zeros(number, bool))

    def program_arrays(self, tables: Sequence[str], blocks: Sequence[np.ndarray] | None = None) -> DeviceArrays:
        """Returns what a round, or a program about these blocks of clients, reads."""
        return self.arrays._replace(**self.compiled.feed.abstract_buffers(tables, blocks))

    def add_start(self, traces: Traces) -> None:
        traces[START] = lambda: self.programs.init_state.trace(self.arrays, self.key_data)
        for g, group in enumerate(self.spec.groups):
            if self.spec.abstract_algorithm(g).prepare is None:
                continue
            blocks = self.compiled.make_blocks(g, group.clients, self.spec.population, self.spec.host_arrays.size)

            def trace(g: int = g, blocks: list[np.ndarray] = blocks) -> Traced:
                arrays, ids = self.program_arrays(("index",), blocks), self.abstract(blocks[0])
                states, _ = self.client_states(g, len(blocks[0]))
                program = self.programs.prepare_clients[g]
                return program.trace(arrays, self.state.server, self.key_data, ids, states)

            traces[self.spec.label(f"{START}: prepare", g)] = trace

    def add_round(self, traces: Traces) -> None:
        arrays = self.program_arrays(("index",))
        if not self.spec.is_offloaded:
            traces[ROUND] = lambda: self.programs.run_resident_rounds.trace(arrays, self.state, self.number)
            return
        drawn = jax.eval_shape(self.programs.draw_cohorts, self.arrays, self.key_data, self.number)
        cohorts = [self.client_states(g, len(cohort.ids)) for g, (cohort, _) in enumerate(drawn)]
        states = self.abstract([states for states, _ in cohorts], self.compiled.layout.client_rows)
        touched = self.abstract([touched for _, touched in cohorts], self.by_client)
        given = arrays, self.state, self.abstract(drawn), states, self.initial, touched
        traces[ROUND] = lambda: self.programs.run_offloaded_round[False].trace(*given)

    def add_evaluation(self, traces: Traces) -> None:
        spec, scopes, bounds = self.spec, self.spec.evaluation.scopes, (self.number, self.number)
        if evaluation.scores_server(spec):
            for source in ("test", "validation") if spec.has_validation else ("test",):
                name = f"{EVALUATION}: server{', validation rows' if source == 'validation' else ''}"
                traces[name] = self.make_server_trace(source)
        for g in range(len(spec.groups)):
            if {"own", "all"} & set(scopes) and (blocks := evaluation.client_blocks(self.compiled, g)):

                def trace_clients(g: int = g, blocks: list[np.ndarray] = blocks) -> Traced:
                    arrays = self.program_arrays(evaluation.client_tables(spec, g), blocks)
                    ids, states = self.abstract(blocks[0]), self.client_states(g, len(blocks[0]))
                    program = self.programs.score_clients[g]
                    return program.trace(arrays, self.state, self.initial, ids, *states, bounds)

                traces[self.spec.label(f"{EVALUATION}: clients", g)] = trace_clients
        for g in range(len(spec.groups)):
            if "unseen" in scopes and (blocks := evaluation.unseen_blocks(self.compiled, g)):

                def trace_unseen(g: int = g, blocks: list[np.ndarray] = blocks) -> Traced:
                    arrays = self.program_arrays(evaluation.UNSEEN_TABLES, blocks)
                    given = self.state.server, self.number, self.key_data, self.abstract(blocks[0])
                    return self.programs.score_unseen[g].trace(arrays, *given, bounds)

                traces[self.spec.label(f"{EVALUATION}: unseen clients", g)] = trace_unseen
        if "post_local" in scopes and not spec.is_offloaded:
            arrays = self.program_arrays(("index", "test_index"))
            traces[SCORED_ROUND] = lambda: self.programs.run_scored_round.trace(arrays, self.state, self.number)

    def make_server_trace(self, source: str) -> Callable[[], Traced]:
        """Returns what traces the scores of the server's model on "test" or "validation" examples."""
        spec, feed = self.spec, self.compiled.feed
        split, which = ("test", None) if source == "test" else ("train", spec.host_arrays.validation_rows)
        given, block, kind = (self.arrays, self.state.server, self.number), (), source
        if split in feed.streamed:
            batches = feed.server_batches(split, which, evaluation.server_batch(spec, source), spec.plan.client_shards)
            number, kind = batches.batches_per_block * batches.devices, "streamed"
            of_block = lambda x: jax.ShapeDtypeStruct((number * batches.batch, *x.shape[1:]), x.dtype)
            examples = self.abstract(jax.tree.map(of_block, spec.readers[split].like))
            block = examples, self.abstract(np.zeros(number, np.int32)), self.number

        def trace() -> Traced:
            sums = self.abstract(jax.eval_shape(self.programs.init_server_sums[kind], *given, block), self.by_client)
            return self.programs.score_server[kind].trace(*given, sums, (self.number, self.number), block)

        return trace


def _abstract(tree: PyTree, shardings: Any) -> PyTree:
    """Returns the shapes of a tree with shardings, of which `shardings` is a prefix."""
    shape = lambda x, sharding: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=sharding)
    return jax.tree.map(shape, tree, jax.tree.broadcast(shardings, tree))
