"""A simulation: one method on one federated data set.

    simulator = Simulator(build_spec(groups, data, cohort=0.4))
    state = simulator.init(seed=0)
    state, metrics = simulator.run_rounds(state, 10)
    scores = simulator.evaluate(state).metrics

Random draws come from (seed, stream, round, client id): a client's draw depends on neither its slot in the cohort, nor
its group, nor the plan.

`build_spec` (`build_spec.py`) validates what a simulation is made of, a `SimulationSpec`; nothing is compiled there.
`Simulator` holds the `CompiledPlan` of a specification: its programs, the arrays that they read and the client states that
they change (`dispatch.py`). If the devices lack memory, it compiles another plan with smaller chunks.
"""

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np

from fedjax_core import distributed, option_types, registry
from fedjax_core.algorithm import PyTree
from fedjax_core.engine import (
    asynchronous,
    dispatch,
    divergence,
    evaluation,
    participation,
    rounds,
)
from fedjax_core.engine.build_spec import build_spec
from fedjax_core.engine.client_state.manager import OffloadedStates
from fedjax_core.engine.client_view import ClientView, Holdings, check_inputs
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.dispatch import CompiledPlan
from fedjax_core.engine.divergence import Diverged
from fedjax_core.engine.evaluation import EvaluationResult
from fedjax_core.engine.sharding import mesh as meshes
from fedjax_core.engine.simulation_spec import (
    Build,
    Evaluation,
    Group,
    SimulationSpec,
    State,
    one_group,
)

__all__ = ["Build", "Diverged", "Evaluation", "EvaluationResult", "Group", "SimulationSpec", "Simulator", "State"]
__all__ += ["ClientView", "build_spec", "one_group"]
Result = TypeVar("Result")
ReadParts = Callable[..., Iterable[tuple[int, Mapping[str, np.ndarray]]]]
log = logging.getLogger("fedjax_core")


def check_state(state: State, own: State) -> None:
    """Raises ValueError if a state was consumed by `run_rounds`, whose rounds write over its arrays, or is not a simulation's own.

    Args:
      own: the shapes of the simulation's own states.
    """
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)):
        raise ValueError(
            "this state was consumed by run_rounds, which writes over it: use the state that run_rounds returned; "
            "to keep this one too, give run_rounds a copy, jax.tree.map(jax.numpy.copy, state)"
        )
    if jax.tree.structure(state) != jax.tree.structure(own):
        raise ValueError("this state is not one of this simulation: it has other entries, as of another method or network")
    for (path, leaf), like in zip(jax.tree.leaves_with_path(state), jax.tree.leaves(own), strict=True):
        if np.shape(leaf) != like.shape:
            where = f"state{jax.tree_util.keystr(path)}"
            raise ValueError(
                f"this state is not one of this simulation: {where} has the shape {np.shape(leaf)}, must be {like.shape}"
            )


class Simulator:
    """One method on one federated data set."""

    def __init__(self, spec: SimulationSpec):
        """Compiles nothing, and puts nothing on a device; `spec` is from `build_spec`."""
        self.compiled, self._known_outliers = dispatch.compile_for_plan(spec, spec.plan), set()
        self._shapes: State | None = None  # of its states, once known

    @property
    def spec(self) -> SimulationSpec:
        """What the simulation is made of, under the current plan; its chunk is smaller than given if that did not fit."""
        return self.compiled.spec

    def init(self, seed: int) -> State:
        """Returns the state before round 1: the server's, every client's, and `prepare` done if the method has it.

        Args:
          seed: of all draws, in [0, 2**32).
        """
        state = dispatch.init_state(self.compiled, option_types.check_value("seed", seed, option_types.Seed))
        for g in range(len(self.spec.groups)):
            if self.spec.abstract_algorithm(g).prepare is not None:
                before = state  # bound now: it may run again, with smaller chunks, if memory is short
                state = self._retry_on_oom(lambda compiled, g=g, before=before: dispatch.prepare_group(compiled, before, g))
        self._shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        return state

    def run_rounds(self, state: State, n: int, scored: bool = False) -> tuple[State, list[dict[str, float]]]:
        """Runs n rounds; the given state is consumed.

        Args:
          state: from `init`, `run_rounds` or a checkpoint.
          scored: whether the last of them also scores the clients' models right after local training (scope "post_local").

        Returns:
          (state, metrics of each round).

        Raises:
          Diverged: something was not finite; says what, of which clients or of the server, in which round.
          ValueError: the state is consumed or another simulation's; client states are off the devices, and those of another state.
        """
        self._check_state(state)
        metrics: list[dict[str, float]] = []
        while len(metrics) < n:
            is_scored = scored and len(metrics) == n - 1
            most = 1 if is_scored else min(self.spec.rounds_per_dispatch, n - len(metrics) - bool(scored))
            state, records = self._dispatch(state, most, is_scored)
            metrics += self.flatten_records(state, records)
        return state, metrics

    def _dispatch(self, state: State, n: int, scored: bool) -> tuple[State, list[PyTree]]:
        """Runs at most n rounds, with smaller chunks if they do not fit the devices."""
        if scored in self.compiled.fits and not self.spec.is_offloaded:  # it consumes the state: no second try
            return dispatch.dispatch_rounds(self.compiled, state, n, scored)
        return self._retry_on_oom(lambda compiled: dispatch.dispatch_rounds(compiled, state, n, scored))

    def flatten_records(self, state: State, records: Sequence[PyTree]) -> list[dict[str, float]]:
        """Returns the metrics of rounds from their raw records; `state` is that after the last."""
        spec, metrics, done = self.spec, [], int(jax.device_get(state.round))
        for round_num, record in enumerate(records, done - len(records) + 1):
            if spec.asynchrony is None:
                facts = participation.round_time(spec, record)
            else:
                facts = asynchronous.step_facts(spec, state.key, round_num, record)
            metrics.append(rounds.flatten_record(spec, record, round_num) | facts)
            outliers = divergence.find_outliers(record["ids"], record["checks"])
            divergence.warn_of_outliers(outliers, round_num, self._known_outliers)
        return metrics

    def evaluate(self, state: State, watch: evaluation.Watch = evaluation.ignore_progress) -> EvaluationResult:
        """Returns all scores of the configured scopes except "post_local"; names as in `Evaluation`.

        Args:
          watch: called with what is scored, how much of it is done and of how much, about twice a second; what it
            raises ends the evaluation.

        Raises:
          Diverged: a loss is not finite; says whose.
          ValueError: the state is consumed or another simulation's.
        """
        self._check_state(state)
        return self._retry_on_oom(lambda compiled: evaluation.evaluate(compiled, state, watch))

    def client_scores(self, state: State) -> dict[str, PyTree]:
        """Returns scores of clients, in the order of `spec.scored_clients`, as NumPy pairs (sums [E], weights [E]).

        They are {"own": {predictor: {"loss", "accuracy"}}, "all": ..., "validation": ... if clients have such examples}.
        """
        self._check_state(state)
        return self._retry_on_oom(lambda compiled: evaluation.score_clients(compiled, state))

    def past_cohorts(self, state: State) -> list[np.ndarray]:
        """Returns who participated in each round before this state: sorted ids of clients, without those that dropped out.

        They are drawn again, so they are those of any state of the same seed.

        Raises:
          ValueError: the sampler is adaptive, so that a cohort follows from the state of its round; the state is consumed or
            another simulation's.
        """
        self._check_state(state)
        spec, compiled, cohorts = self.spec, self.compiled, []
        if spec.sampler.is_adaptive:
            raise ValueError(
                "cohort.sampling: past cohorts of this sampler cannot be drawn again, since they follow from the state of their "
                "round, which is gone; those of samplers that do not learn can"
            )
        for done in range(int(jax.device_get(state.round))):
            drawn = dispatch.draw_cohorts(spec, compiled.programs, compiled.device_arrays, state.key, compiled.put(np.int32(done)))
            of_groups = [cohort.ids[cohort.examples > 0] for cohort, _ in jax.device_get(drawn)]
            cohorts.append(np.sort(np.concatenate(of_groups)))
        return cohorts

    def client_view(self, state: State, client: int, *, trained: bool = False) -> ClientView:
        """Returns what one client holds, and its models: for analyses, outside of rounds.

        Args:
          trained: True: what the client would hold right after its local training in the coming round.

        Raises:
          ValueError: there is no such client; the state is consumed or another simulation's.
        """
        self._check_state(state)
        compiled, spec = self.compiled, self.spec
        if not 0 <= client < spec.population:
            raise ValueError(f"client {client} is not one of 0 ... {spec.population - 1}")
        g = next(g for g, group in enumerate(spec.groups) if client in group.clients)
        ids = np.array([client], np.int32)
        _, states, touched, initial = compiled.states.read(state, g, ids)
        arrays = compiled.feed.for_client(client)
        view = compiled.programs.view[g]
        plain, personal = view(arrays, state, initial, compiled.put(ids), states, touched, trained)
        by_model = {name: plain if name == "global" else personal for name in spec.abstract_algorithm(g).predict}
        round_num = compiled.put(jax.device_get(state.round))  # a copy: rounds that follow consume the state, not the view
        task, examples = spec.groups[g].task.bind(compiled.device_arrays.tasks[g], round_num), spec.data.train.x

        def predict(name: str, holds: Holdings, x: PyTree, arrays: DeviceArrays | None = None):
            registry.check_choice("model", name, by_model)
            if hasattr(examples, "dtype"):
                check_inputs(x, examples.shape[1:], examples.dtype, spec.data.x_offset)
            compiled = self.compiled  # by now it may be another plan's
            arrays = compiled.device_arrays if arrays is None else arrays
            return compiled.programs.predict[g](arrays, round_num, name, holds, x)

        return ClientView(client, task, by_model, predict)

    @property
    def offloaded_states(self) -> OffloadedStates | None:
        """Client states on the host or the disk, those of the newest state; None if the devices have them."""
        return self.compiled.states.offloaded

    def to_host(self, state: State) -> PyTree:
        """Returns everything that a checkpoint must keep, as host arrays, but offloaded client states, which have `read_parts`.

        Raises:
          ValueError: the state is consumed or another simulation's; offloaded client states are those of another state.
        """
        self._check_state(state)
        self.compiled.states.check_owner(state)
        offloaded, saved = self.offloaded_states, {"state": meshes.fetch(state)}
        return saved if offloaded is None else saved | {"initial": meshes.fetch(offloaded.initial)}

    def abstract_snapshot(self) -> PyTree:
        """Returns the structure of `to_host`, as NumPy arrays, to restore into."""
        state = self._own_shapes()
        saved = {"state": state} | ({"initial": state.server} if self.spec.is_offloaded else {})
        return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), saved)

    def from_host(self, saved: PyTree, read_parts: ReadParts | None = None) -> State:
        """Restores what `to_host` returned, on this simulation's devices, whatever the earlier ones were.

        Args:
          read_parts: (part -> names of its arrays to read) -> (number, arrays) of parts of offloaded client states, which
            `OffloadedStates.read_parts` returned.

        Raises:
          ValueError: client states are off the devices, and `read_parts` is None.
        """
        compiled, mesh = self.compiled, self.spec.mesh
        if self.spec.is_offloaded:
            if read_parts is None:
                raise ValueError(f"hold={self.spec.hold!r}: `to_host` has no client states; give read_parts")
            offloaded = compiled.states.make_untouched(meshes.put(saved["initial"], mesh, compiled.layout.server))
            take_parts = lambda: [offloaded.load_part(*part) for part in read_parts(offloaded.wanted_arrays)]
            distributed.all_or_none("read its client states", take_parts)
            offloaded.mark_saved()
            compiled.states.replace_offloaded(offloaded, saved["state"])
        return meshes.put(saved["state"], mesh, compiled.layout.state)

    def _own_shapes(self) -> State:
        if self._shapes is not None:
            return self._shapes
        key_data = jax.random.key_data(jax.random.key(0))
        self._shapes = shapes = jax.eval_shape(self.compiled.programs.init_state, self.spec.host_arrays, key_data)
        return shapes

    def _check_state(self, state: State) -> None:
        check_state(state, self._own_shapes())

    def use_plan(self, plan: meshes.Plan) -> None:
        """Compiles for another plan, with the same client states; the data move to its devices when first needed."""
        self.release()
        self.compiled = dispatch.compile_for_plan(self.spec, plan, self.offloaded_states)

    def as_replica(self) -> "Simulator":
        """Returns a replica for one of several seeds (`vmapped_runs.py`), which shares programs and data."""
        replica = copy.copy(self)
        replica.compiled, replica._known_outliers = self.compiled.as_replica(), set()
        return replica

    def close(self) -> None:
        """Stops preparing coming rounds; client states of past rounds are written."""
        self.compiled.close()

    def release(self) -> None:
        """Takes the data, and frozen and public arrays, off the devices, until they are needed again."""
        try:
            self.close()
        finally:
            self.compiled.feed.release()

    def _retry_on_oom(self, work: Callable[[CompiledPlan], Result]) -> Result:
        """Returns `work(self.compiled)`; if a device lacks memory, halves the plan's chunk and tries again.

        A `MemoryError` is raised by all processes together. One that only this process's devices raised ends a run of
        several processes: the others would wait for a round that never comes.

        Raises:
          Whatever `work` raised, if it is no lack of memory or the chunk is 1 already.
          ValueError: a device of this process lacks memory, and there are other processes.
        """
        while True:
            try:
                return work(self.compiled)
            except (jax.errors.JaxRuntimeError, MemoryError) as error:
                plan, is_known_to_all = self.spec.plan, isinstance(error, MemoryError)
                if plan.chunk == 1 or not dispatch.is_out_of_memory(error):
                    raise
                reason = str(error).splitlines()[0]
                if jax.process_count() > 1 and not is_known_to_all:
                    raise ValueError(
                        f"{plan.chunk} clients at once do not fit a device of process {jax.process_index()}; set "
                        f"plan.chunk lower ({reason})"
                    ) from None
            smaller = plan._replace(chunk=-(-plan.chunk // 2))
            log.warning("%d clients at once do not fit (%s); trying %d", plan.chunk, reason, smaller.chunk)
            self.use_plan(smaller)
