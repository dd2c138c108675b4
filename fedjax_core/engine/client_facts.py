"""Facts about clients that samplers draw by, and what a sampler needs of a simulation."""

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, Cohort, PyTree
from fedjax_core.engine import client_loop, evaluation_step
from fedjax_core.engine.client_sampler import NEEDS, ClientFacts
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.simulation_spec import SimulationSpec, State
from fedjax_core.engine.streams import stream_key

log = logging.getLogger("fedjax_core")
NUMBER_BYTES = 4  # of a polled client's answer


def check_sampler(spec: SimulationSpec, sampling: str) -> SimulationSpec:
    """Returns the simulation with the bytes of polled clients, if it has what its sampler needs.

    Args:
      spec: the simulation.
      sampling: the sampler's spec.

    Raises:
      ValueError: it has not, or draws of an adaptive sampler would have to be known rounds ahead.
    """
    sampler, devices = spec.sampler, spec.client_devices
    given = f"cohort.sampling={sampling!r}"
    if unknown := [need for need in sampler.needs if need not in NEEDS]:
        raise ValueError(f"{given} needs {unknown[0]!r}, which is not one of {', '.join(NEEDS)}")
    if "seconds" in sampler.needs and (devices is None or devices.profiles is None):
        raise ValueError(f"{given} draws by the seconds of clients' rounds; set devices.profile")
    if "availability" in sampler.needs and (devices is None or devices.availability is None):
        raise ValueError(f"{given} draws clients that can be reached; set devices.availability")
    if not sampler.is_adaptive:
        _warn_of_same_draws(spec, given)
        return spec
    for field, where in (("plan.hold", spec.hold), ("plan.data", spec.placement.where)):
        if where != "device":
            raise ValueError(
                f"{given} and {field}={where!r}: cohorts must be known a few rounds ahead there, and this sampler's follow from "
                f"the round before; set {field}='device'"
            )
    if "losses" in sampler.needs:
        _check_losses(spec, given)
    if sampler.has_update and any("loss" not in shapes.out.metrics for shapes in spec.shapes.groups):
        raise ValueError(f"{given} learns from training losses, and the method reports no metric 'loss' of its clients")
    down, up = spec.shapes.down, spec.shapes.up
    share = max(0, sampler.polled - sampler.size) / sampler.size
    down, up = down * (1 + share), up + NUMBER_BYTES * sampler.polled / sampler.size
    return dataclasses.replace(spec, shapes=spec.shapes._replace(down=down, up=up))


def _warn_of_same_draws(spec: SimulationSpec, given: str) -> None:
    """Warns if a sampler that is not the library's own draws the same clients in the first rounds."""
    sampler = spec.sampler
    if type(sampler).__module__.startswith("fedjax_core.") or sampler.size >= spec.population:
        return
    key = stream_key(jax.random.key_data(jax.random.key(0)), "cohort")
    arrays = spec.host_arrays

    @jax.jit  # traced, as in rounds: what NumPy draws is the same in all
    def draw(size: Array, participation: PyTree, round_num: Array) -> Array:
        facts = make_client_facts(spec, arrays._replace(size=size, participation=participation), round_num, None)
        return sampler.draw(key, round_num, facts, ())

    try:
        drawn = [np.sort(draw(arrays.size, arrays.participation, jnp.int32(r))) for r in range(3)]
    except Exception:  # rounds say what is wrong
        return
    if all(np.array_equal(drawn[0], ids) for ids in drawn[1:]):
        log.warning(
            "%s draws the same clients in rounds 1 to 3, from a key that is the same in all rounds; a draw of a round's own is "
            "by jax.random.fold_in(key, round_num)",
            given,
        )


def _check_losses(spec: SimulationSpec, given: str) -> None:
    """Raises ValueError where the server has no single model whose loss clients could compute."""
    if len(spec.groups) > 1:
        raise ValueError(f"{given} compares clients by losses of the server's model; the clients have {len(spec.groups)} networks")
    if "global" not in spec.abstract_algorithm(0).predict:
        raise ValueError(f"{given} compares clients by losses of the server's model; the method has none")
    if spec.episodes is not None:
        raise ValueError(f"{given} compares clients by losses of their examples; task='episodes' has none")


def make_client_facts(spec: SimulationSpec, arrays: DeviceArrays, round_num: Array, state: State | None) -> ClientFacts:
    """Returns the facts before a round; nothing is computed that the sampler does not ask for.

    Args:
      spec: the simulation.
      arrays: what all rounds read.
      round_num: rounds done.
      state: before the round, for losses; None: the sampler needs none.
    """
    participation = arrays.participation
    availability = None if spec.client_devices is None else spec.client_devices.availability

    def is_available(ids: Array) -> Array:
        reached = jnp.ones(ids.shape, bool)
        if participation is None:
            return reached
        if availability is not None:
            reached = availability.is_available(participation.availability, round_num, ids)
        late = participation.is_late
        return reached if late is None else reached & ~jnp.asarray(late)[ids]  # who is always late never comes back

    def compute_losses(ids: Array, examples: int | None, key: Array) -> Array:
        assert state is not None
        return _compute_losses(spec, arrays, state, ids, examples, key)

    seconds = None if participation is None else participation.seconds
    return ClientFacts(jnp.asarray(arrays.size), seconds, is_available, compute_losses)


def _compute_losses(
    spec: SimulationSpec, arrays: DeviceArrays, state: State, ids: Array, examples: int | None, key: Array
) -> Array:
    """Returns [n] mean losses, in evaluation mode; 0 for the id N and for clients without examples."""

    def compute(shared, i):
        arrays, server, round_num, key = shared
        is_active = i < spec.population
        i = jnp.minimum(i, spec.population - 1)
        index, size = arrays.index[i], jnp.where(is_active, arrays.size[i], 0)
        if examples is not None:
            slots = jax.random.randint(jax.random.fold_in(key, i), (examples,), 0, jnp.maximum(size, 1))
            index, size = index[slots], jnp.where(size > 0, examples, 0)
        algorithm = spec.algorithm(0, arrays, round_num)
        sent = algorithm.broadcast(server, i)
        models = {"global": lambda x: algorithm.predict["global"](sent, (), x)}
        scores = evaluation_step.score_examples(spec, 0, models, arrays.train, index, size, spec.batches.own)
        total, weight = scores["global"]["loss"]
        return (), total / jnp.maximum(weight, 1)

    plan = spec.plan._replace(chunk=min(spec.plan.chunk, -(-len(ids) // spec.plan.client_shards)))
    padded = jnp.pad(ids, (0, plan.slots(len(ids)) - len(ids)), constant_values=spec.population)
    shared = arrays, state.server, state.round, key
    return client_loop.map_clients(compute, shared, padded, plan=plan, mesh=spec.mesh)[1][: len(ids)]


def update_sampler(spec: SimulationSpec, arrays: DeviceArrays, state: State, cohort: Cohort, losses: Array) -> PyTree:
    """Returns what the sampler remembers after a round of the cohort [C].

    Args:
      spec: the simulation.
      arrays: what all rounds read.
      state: before the round.
      cohort: the round's.
      losses: [C] mean training losses; of a client whose loss is not finite nothing is learnt.
    """
    cohort = cohort._replace(examples=jnp.where(jnp.isfinite(losses), cohort.examples, 0))
    facts = make_client_facts(spec, arrays, state.round, state)
    return spec.sampler.update(state.sampler, facts, state.round, cohort, losses)
