"""Scores, as pure functions that the simulator compiles, and their statistics over clients."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_core.algorithm import Algorithm, Array, ClientData, Examples, PyTree
from fedjax_core.engine import client_loop, contracts
from fedjax_core.engine.client_state import stores
from fedjax_core.engine.data_feed import cohort_buffer
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.sharding.mesh import Plan
from fedjax_core.engine.simulation_spec import SimulationSpec, State
from fedjax_core.engine.streams import stream_key
from fedjax_core.training import local_training, metrics
from fedjax_core.training.batching import sequential_batches
from fedjax_core.training.few_shot import make_episode_batch

SOURCES = ("test", "validation", "streamed")  # that the server's model is scored on
CLIENT_STATISTICS = ("mean", "weighted", "lowest", "highest")
Batches = tuple[Any, Callable[[Array], local_training.Batch]]  # how many there are, and each by its number
Models = dict[str, Callable[[PyTree], dict[str, Array]]]  # by name: x -> outputs


class ClientScores(NamedTuple):
    """Scores of single clients, of one evaluation.

    Attributes:
      ids: [E] ascending; unseen clients follow the population, N, N + 1, ...
      rows: [E] each client's number of test examples.
      scores: by name without a statistic, such as "test/personal/own/accuracy", [E]; NaN of a client without examples.
    """

    ids: np.ndarray
    rows: np.ndarray
    scores: dict[str, np.ndarray]


def init_server_sums(
    spec: SimulationSpec, arrays: DeviceArrays, server: PyTree, round_num: Array, block: PyTree = (), *, source: str
) -> PyTree:
    """Returns the zeros [parts, ...] with which `score_server` begins: pairs by name."""
    return client_loop.init_sums(*_server_batches(spec, arrays, server, round_num, block, source), _server_plan(spec))


def score_server(
    spec: SimulationSpec,
    arrays: DeviceArrays,
    server: PyTree,
    round_num: Array,
    sums: PyTree,
    bounds: tuple[Array, Array],
    block: PyTree = (),
    *,
    source: str,
) -> PyTree:
    """Adds the scores of the server's model on some batches to `sums`.

    Batches are spread over devices as clients are.

    Args:
      sums, bounds: as `client_loop.map_chunk_range` takes them.
      block: of streamed examples, (examples [n * B], index [n] of each batch's first one, how many there are in all).
      source: "test", "validation": all such examples; "streamed": those of `block`.
    """
    score_batch, shared, entries = _server_batches(spec, arrays, server, round_num, block, source)
    plan = _server_plan(spec)
    return client_loop.map_chunk_range(score_batch, shared, entries, sums, bounds, plan=plan, mesh=spec.mesh)[0]


def _server_batches(spec: SimulationSpec, arrays: DeviceArrays, server: PyTree, round_num: Array, block: PyTree, source: str):
    """Returns (a batch's scores, what all batches read, their entries [n])."""
    own = spec.groups[0].task.scores

    def score(arrays, server, round_num, x, y, mask):
        algorithm = spec.algorithm(0, arrays, round_num)
        outputs = algorithm.predict["global"](algorithm.broadcast(server, jnp.int32(0)), (), x)
        return _score_outputs(outputs, x, y, mask, own, spec.center), ()

    if source == "streamed":
        examples, first, number = block
        b = len(jax.tree.leaves(examples.y)[0]) // len(first)

        def score_streamed(shared, entry):
            (arrays, server, round_num, examples, number), (i, first) = shared, entry
            offsets = jnp.arange(b)
            x, y, mask, _ = local_training.gather_batch(examples, i * b + offsets, first + offsets < number)
            return score(arrays, server, round_num, x, y, mask)

        return score_streamed, (arrays, server, round_num, examples, number), (jnp.arange(len(first)), first)

    def make_batches(arrays: DeviceArrays) -> Batches:
        if source == "test":
            return whole_test_batches(spec, arrays, spec.batches.test)
        examples = arrays.validation_rows
        return _batches(arrays.train, examples, len(examples), spec.batches.validation_rows)

    number = make_batches(arrays)[0]

    def score_resident(shared, i):
        arrays, server, round_num = shared
        x, y, mask, _ = make_batches(arrays)[1](jnp.minimum(i, number - 1))
        return score(arrays, server, round_num, x, y, mask & (i < number))

    return score_resident, (arrays, server, round_num), jnp.arange(_server_plan(spec).slots(number))


def _server_plan(spec: SimulationSpec) -> Plan:
    """Returns the plan for batches of the server's model: one after another."""
    return spec.plan._replace(chunk=1)


def score_clients(
    spec: SimulationSpec,
    g: int,
    arrays: DeviceArrays,
    state: State,
    initial: PyTree,
    ids: Array,
    client_states: PyTree,
    touched: Array,
    bounds: tuple[Array, Array],
):
    """Scores group g's clients `ids` [E].

    Args:
      bounds: the chunks that are done (`client_loop.map_chunk_range`); other clients get zeros.

    Returns:
      {scope: {predictor: {score: (sums [E, ...], weights [E])}}}. Scopes are "own" and "all" as configured, and "validation" if
      there are such examples. "all" is without the predictor "global".
    """
    if spec.is_offloaded:
        client_states = stores.init_untouched(spec, g, arrays, initial, state.key, ids, client_states, touched)

    def score_client(shared, entry):
        (arrays, _, round_num, _), (i, client) = shared, entry
        algorithm = spec.algorithm(g, arrays, round_num)
        is_active = i < spec.population
        i = jnp.minimum(i, spec.population - 1)
        train_size = jnp.where(is_active, arrays.size[i], 0)
        plain, personal = make_holdings(spec, algorithm, shared, i, client, train_size)
        models = bind_predictors(algorithm, plain, personal)
        scores = {}
        if "own" in spec.evaluation.scopes:
            scores["own"] = score_own_test(spec, g, arrays, i, is_active, models)
        if len(arrays.validation_rows):
            index, size = arrays.validation_index[i], jnp.where(is_active, arrays.validation_size[i], 0)
            batch = spec.batches.validation
            scores["validation"] = score_examples(spec, g, models, arrays.train, index, size, batch)
        models.pop("global", None)  # on the whole test set it is the same for all clients: scope "global" has it
        if "all" in spec.evaluation.scopes and models:
            number, batch = whole_test_batches(spec, arrays, spec.batches.all)
            scores["all"] = _score_batches(spec, g, models, (jnp.where(is_active, number, 0), batch))
        return (), scores

    shared = arrays, state.server, state.round, state.key
    plan, in_specs = spec.plan_of(g), cohort_buffer.shared_input_specs(shared)
    entries = ids, client_states
    return client_loop.map_chunk_range(score_client, shared, entries, (), bounds, plan=plan, mesh=spec.mesh, in_specs=in_specs)[1]


def score_own_test(spec: SimulationSpec, g: int, arrays: DeviceArrays, i: Array, is_active: Array, models: Models):
    """Scores client i's models on its own test examples, on none of them unless it is active."""
    size = jnp.where(is_active, arrays.test_size[i], 0)
    return score_examples(spec, g, models, arrays.test, arrays.test_index[i], size, spec.batches.own)


def score_examples(spec: SimulationSpec, g: int, models: Models, examples: Examples, index: Array, size: Array, batch: int):
    """Scores group g's models on the first `size` of the examples `index` [M], `batch` of them at once."""
    return _score_batches(spec, g, models, _batches(examples, index, size, batch))


def make_holdings(spec: SimulationSpec, algorithm: Algorithm, shared, i: Array, client: PyTree, train_size: Array):
    """Returns (sent, client state) of client i as they are, and personalised.

    `shared`: (arrays, server, round_num, key data).
    """
    arrays, server, round_num, key_data = shared
    plain = algorithm.broadcast(server, i), client
    if algorithm.personalise is None:
        return plain, plain
    data = spec.client_data(arrays, i, train_size)
    draw = jax.random.fold_in(stream_key(key_data, "personalise", round_num), i)
    return plain, algorithm.personalise(*plain, data, draw)


def bind_predictors(algorithm: Algorithm, plain: tuple[PyTree, PyTree], personal: tuple[PyTree, PyTree]) -> Models:
    """Returns the method's predictors: "global" as broadcast, the others with the personalised (sent, client)."""

    def bind(name, predict):
        sent, client = plain if name == "global" else personal
        return lambda x: predict(sent, client, x)

    return {name: bind(name, predict) for name, predict in algorithm.predict.items()}


def divide_by_weights(scores: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns by metric each client's value [E], from sums and weights [E]; NaN of a client without examples."""
    return {
        metric: np.divide(total, weight, out=np.full(np.shape(total), np.nan, np.float32), where=weight > 0)
        for metric, (total, weight) in scores.items()
    }


def concatenate_clients(first: ClientScores, second: ClientScores) -> ClientScores:
    """Joins two sets of clients; the second's ids are higher. A score that one of them lacks is NaN there."""

    def join(name: str) -> np.ndarray:
        parts = (part.scores.get(name, np.full(len(part.ids), np.nan, np.float32)) for part in (first, second))
        return np.concatenate([*parts])

    ids, rows = (np.concatenate(pair) for pair in zip(first[:2], second[:2], strict=True))
    return ClientScores(ids, rows, {name: join(name) for name in dict.fromkeys([*first.scores, *second.scores])})


def sort_by_client(blocks: list[dict[str, PyTree]], ids: list[np.ndarray]) -> dict[str, PyTree]:
    """Joins the scores of blocks of clients, ordered by id, of the models that all blocks have.

    Args:
      blocks: {predictor: {"loss", "accuracy"}: pairs [E]}, with an E of each block's own.
    """
    models = [name for name in blocks[0] if all(name in block for block in blocks)]
    shared = [{name: block[name] for name in models} for block in blocks]
    order = np.argsort(np.concatenate(ids))
    return jax.tree.map(lambda *x: np.concatenate(x)[order], *shared)


def client_statistics(prefix: str, scores: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Returns statistics over clients with examples: unweighted mean, mean weighted by examples, lowest, highest."""
    statistics = {}
    for metric, (total, weight) in scores.items():
        mask = weight > 0
        if not mask.any():
            continue
        values = total[mask] / weight[mask]
        statistics[f"{prefix}/{metric}/mean"] = float(values.mean())
        statistics[f"{prefix}/{metric}/weighted"] = float(total[mask].sum() / weight[mask].sum())
        statistics[f"{prefix}/{metric}/lowest"] = float(values.min())
        statistics[f"{prefix}/{metric}/highest"] = float(values.max())
    return statistics


def _batches(examples: Examples, index: Array, size: Any, b: int) -> Batches:
    """Returns the first `size` of the examples `index` [M] in batches of `b`."""
    b, batch = sequential_batches(ClientData(examples, index, size), b)
    return -(-size // b), batch


def whole_test_batches(spec: SimulationSpec, arrays: DeviceArrays, batch: int) -> Batches:
    """Returns the whole test set, `batch` examples at once, or the test episodes."""
    if spec.episodes is None:
        n = len(jax.tree.leaves(arrays.test.y)[0])
        return _batches(arrays.test, jnp.arange(n, dtype=jnp.int32), n, batch)
    support, query = arrays.tests
    real = jnp.ones(support.shape[1:], bool), jnp.ones(query.shape[1:], bool)
    return len(support), lambda i: make_episode_batch(arrays.test, support[i], query[i], *real)


def _score_batches(spec: SimulationSpec, g: int, models: Models, batches: Batches):
    """Scores models on test batches: {predictor: {what `metrics.metric_sums` names, and the task's own}: pairs}."""
    (number, batch), own = batches, spec.groups[g].task.scores

    def score(i):
        x, y, mask, _ = batch(i)
        return {name: _score_outputs(predict(x), x, y, mask, own, spec.center) for name, predict in models.items()}

    score = jax.jit(score, inline=True)  # traced once, for shapes and for use
    zeros = optax.tree.zeros_like(jax.eval_shape(score, jnp.int32(0)))
    return jax.lax.fori_loop(0, number, lambda i, sums: jax.tree.map(jnp.add, sums, score(i)), zeros)


def _score_outputs(
    outputs: dict[str, Array],
    x: PyTree,
    y: Array,
    mask: Array,
    own: Mapping[str, Callable[..., metrics.Pair]],
    center: np.ndarray | float,
) -> dict[str, metrics.Pair]:
    """Returns the scores of the targets' kind, such as accuracy and loss, and a task's own."""
    pairs = metrics.metric_sums(outputs["logits"], outputs.get("targets", y), mask, center)
    more = {name: contracts.check_score(name, score, score(outputs, x, y, mask)) for name, score in own.items()}
    for name, score in own.items():
        if metrics.finalizer(score) is not None:
            more[name] = more[name], pairs["loss"][1]
    return pairs | more
