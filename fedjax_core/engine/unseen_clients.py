"""Scores of unseen clients, if a method has models for them. Nothing of these clients reaches the server."""

from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, Array, ClientData, ClientSettings, PyTree
from fedjax_core.engine import client_loop, evaluation_step
from fedjax_core.engine.data_feed import cohort_buffer
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.simulation_spec import Evaluation, Group, SimulationSpec
from fedjax_core.engine.streams import stream_key
from fedjax_core.uplink.wrapped_method import WrappedBroadcast


def find_skip_reason(groups: Sequence[Group]) -> str:
    """Returns why a method has no models for unseen clients; "" if it has."""
    answers = [group.build(group.task).init_unseen for group in groups]
    return next((answer for answer in answers if isinstance(answer, str)), "")


def add_unseen_scope(evaluation: Evaluation, skip_reason: str, has_unseen: bool) -> Evaluation:
    """Adds the scope "unseen" if clients are unseen and the method has models for them.

    Raises:
      ValueError: the scope is given, but no client is unseen or the method has no models for them.
    """
    is_given = "unseen" in evaluation.scopes
    if is_given and not has_unseen:
        raise ValueError("evaluation.scopes has 'unseen', but no client is unseen; set data.unseen_clients, such as 0.2")
    if is_given and skip_reason:
        raise ValueError(f"evaluation.scopes has 'unseen', but {skip_reason}")
    if is_given or not has_unseen or skip_reason:
        return evaluation
    return evaluation._replace(scopes=(*evaluation.scopes, "unseen"))


def unseen_members(spec: SimulationSpec, g: int, number: int) -> np.ndarray:
    """Returns which of `number` unseen clients have group g's network: they take turns among the groups."""
    turns = [group.turns or (h,) for h, group in enumerate(spec.groups)]
    turn = np.arange(number, dtype=np.int32) % sum(map(len, turns))
    return np.flatnonzero(np.isin(turn, turns[g])).astype(np.int32)


def score_unseen(
    spec: SimulationSpec,
    g: int,
    arrays: DeviceArrays,
    server: PyTree,
    round_num: Array,
    key_data: Array,
    indices: Array,
    bounds: tuple[Array, Array],
):
    """Scores unseen clients that have group g's network on their own test examples.

    Args:
      indices: [E] which unseen clients; beyond the last one: empty slots.
      bounds: the chunks that are done (`client_loop.map_chunk_range`); other clients get zeros.

    Returns:
      {predictor: {"accuracy", "loss"}: pairs [E]}.
    """
    number = len(arrays.unseen_size)

    def score_client(shared, index):
        arrays, server, round_num, key_data = shared
        algorithm = spec.algorithm(g, arrays, round_num)
        is_active, index = index < number, jnp.minimum(index, number - 1)
        train_size = jnp.where(is_active, arrays.unseen_size[index], 0)
        settings = arrays.settings
        if settings is not None:  # the method's own batch size, stored last
            settings = ClientSettings(batch=None if settings.batch is None else jnp.asarray(settings.batch)[spec.population])
        data = ClientData(
            arrays.train, arrays.unseen_index[index], train_size, spec.episodes, settings=settings, privacy=spec.example_privacy
        )
        plain, personal = make_unseen_holdings(spec, g, algorithm, server, key_data, round_num, index, data)
        test_size = jnp.where(is_active, arrays.unseen_test_size[index], 0)
        models = evaluation_step.bind_predictors(algorithm, plain, personal)
        return (), evaluation_step.score_examples(
            spec, g, models, arrays.test, arrays.unseen_test_index[index], test_size, spec.batches.unseen
        )

    shared = arrays, server, round_num, key_data
    plan, in_specs = spec.plan_of(g), cohort_buffer.shared_input_specs(shared)
    return client_loop.map_chunk_range(score_client, shared, indices, (), bounds, plan=plan, mesh=spec.mesh, in_specs=in_specs)[1]


def make_unseen_holdings(
    spec: SimulationSpec,
    g: int,
    algorithm: Algorithm,
    server: PyTree,
    key_data: Array,
    round_num: Array,
    index: Array,
    data: ClientData,
):
    """Returns (sent, client state) of an unseen client as it arrives, and after the method's own steps.

    These are local updates that send nothing, if clients keep something that a model of theirs reads, then
    `personalise`. The client's id is beyond the population's, for draws of its own. It is sent what a client with its
    network is sent, and is never an attacker.
    """
    i = spec.population + index
    sent = algorithm.broadcast(server, jnp.int32(spec.groups[g].clients[0]))
    if isinstance(sent, WrappedBroadcast):
        sent = sent._replace(id=i)
    client = algorithm.client_init(stream_key(key_data, "init", 0), server, i)
    plain = sent, client
    if callable(algorithm.init_unseen):
        client = algorithm.init_unseen(sent, client)
    if set(algorithm.predict) == {"global"}:
        return plain, plain
    if jax.tree.leaves(client):
        draw = jax.random.fold_in(stream_key(key_data, "unseen", round_num), i)

        def update(n, client):
            return algorithm.client_update(sent, client, data, jax.random.fold_in(draw, n)).state

        client = jax.lax.fori_loop(0, spec.evaluation.updates, update, client)
    if algorithm.personalise is None:
        return plain, (sent, client)
    draw = jax.random.fold_in(stream_key(key_data, "personalise", round_num), i)
    return plain, algorithm.personalise(sent, client, data, draw)


def participation_gaps(metrics: Mapping[str, float], models: Iterable[str], score: str) -> dict[str, float]:
    """Returns by model the participation gap: the mean score of the population minus that of unseen clients."""
    gaps = {}
    for name in models:
        own, unseen = (metrics.get(f"test/{name}/{scope}/{score}/mean") for scope in ("own", "unseen"))
        if own is not None and unseen is not None:
            gaps[f"test/{name}/gap/{score}"] = own - unseen
    return gaps
