"""Scores, as pure functions that the simulation compiles; and what is said of them on the host."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, Array, Examples, PyTree, targets_of
from fedjax_core.engine import client_loop, contracts
from fedjax_core.engine.client_state import host_store
from fedjax_core.engine.data_feed import cohort_buffer
from fedjax_core.engine.federation import Federation, Held, State, key
from fedjax_core.training import local_training, metrics
from fedjax_core.training.few_shot import assemble


class ByClient(NamedTuple):
    """Scores of single clients, of one evaluation.

    Attributes:
      ids: [E] ascending; unseen clients follow the population, N, N + 1, ...
      rows: [E] how many test rows each has of its own.
      scores: by name without a statistic, such as "test/personal/own/accuracy", [E]; NaN of a client without rows for it.
    """

    ids: np.ndarray
    rows: np.ndarray
    scores: dict[str, np.ndarray]


ROWS = ("test", "validation")  # of the server's model: the whole test set, all validation rows
Batches = tuple[Any, Callable[[Array], local_training.Batch]]  # how many there are, and each by its number


def begin_server(fed: Federation, held: Held, server: PyTree, round: Array, rows: str = "test") -> PyTree:  # noqa: A002
    """Zeros [parts, ...] for `of_server` to begin with: pairs by name."""
    return client_loop.no_sums(*_server_batches(fed, held, server, round, rows), _one_by_one(fed))


def of_server(
    fed: Federation,
    held: Held,
    server: PyTree,
    round: Array,  # noqa: A002
    sums: PyTree,
    bounds: tuple[Array, Array],
    rows: str = "test",
) -> PyTree:
    """Adds the scores of the server's model on some batches of the whole test set, or of all validation rows, to `sums`.

    Batches are spread over devices as clients are. `sums`, `bounds`: as `client_loop.map_part` takes them.
    """
    one, shared, numbers = _server_batches(fed, held, server, round, rows)
    return client_loop.map_part(one, shared, numbers, sums, bounds, plan=_one_by_one(fed), on=fed.mesh)[0]


def _server_batches(fed: Federation, held: Held, server: PyTree, round: Array, rows: str):  # noqa: A002
    """(a batch's scores, what all batches read, their numbers [n]), for `client_loop.map_part`."""

    def whole(held: Held) -> Batches:
        return _whole_test(fed, held, fed.batches.test) if rows == "test" else _validation(fed, held)

    number, own = whole(held)[0], fed.groups[0].task.scores

    def one(shared, i):
        held, server, round = shared  # noqa: A001
        algorithm = fed.algorithm(0, held, round)
        x, y, mask, _ = whole(held)[1](jnp.minimum(i, number - 1))
        outputs = algorithm.predict["global"](algorithm.broadcast(server, jnp.int32(0)), (), x)
        return _pairs(outputs, x, y, mask & (i < number), own, fed.center), ()

    return one, (held, server, round), jnp.arange(client_loop.slots(number, _one_by_one(fed)))


def begin_batches(fed: Federation, held: Held, server: PyTree, round: Array, rows: Examples, first: Array, number: Array):  # noqa: A002
    """Zeros [parts, ...] for `of_batches` to begin with: pairs by name."""
    return client_loop.no_sums(*_streamed_batches(fed, held, server, round, rows, first, number), _one_by_one(fed))


def of_batches(
    fed: Federation,
    held: Held,
    server: PyTree,
    round: Array,  # noqa: A002
    rows: Examples,
    first: Array,
    number: Array,
    sums: PyTree,
    bounds: tuple[Array, Array],
) -> PyTree:
    """As `of_server`, on batches of `rows` [n * B], which lie at `first` [n] among all `number` rows."""
    one, shared, entries = _streamed_batches(fed, held, server, round, rows, first, number)
    return client_loop.map_part(one, shared, entries, sums, bounds, plan=_one_by_one(fed), on=fed.mesh)[0]


def _streamed_batches(fed: Federation, held: Held, server: PyTree, round: Array, rows: Examples, first: Array, number: Array):  # noqa: A002
    """As `_server_batches`."""
    b, own = len(jax.tree.leaves(rows.y)[0]) // len(first), fed.groups[0].task.scores

    def one(shared, entry):
        (held, server, round, rows, number), (at, first) = shared, entry  # noqa: A001
        algorithm = fed.algorithm(0, held, round)
        places = jnp.arange(b)
        x, y, mask, _ = local_training.take(rows, at * b + places, first + places < number)
        outputs = algorithm.predict["global"](algorithm.broadcast(server, jnp.int32(0)), (), x)
        return _pairs(outputs, x, y, mask, own, fed.center), ()

    return one, (held, server, round, rows, number), (jnp.arange(len(first)), first)


def _one_by_one(fed: Federation) -> client_loop.Plan:
    """The plan for batches of the server's model."""
    return fed.plan._replace(chunk=1)


def of_clients(
    fed: Federation,
    g: int,
    held: Held,
    state: State,
    initial: PyTree,
    ids: Array,
    rows: PyTree,
    touched: Array,
    bounds: tuple[Array, Array],
):
    """Scores of group g's clients `ids` [E]: {"own": {predictor: {"loss", "accuracy"}: pairs [E]}, "all": ...}.

    Zeros for clients that are not in the chunks that `bounds` says (`client_loop.map_part`).
    """
    if fed.on_host:
        rows = host_store.begun(fed, g, held, initial, state.key, ids, rows, touched)

    def one(shared, entry):
        (held, _, round, _), (i, client) = shared, entry  # noqa: A001
        algorithm = fed.algorithm(g, held, round)
        there = i < fed.population
        i = jnp.minimum(i, fed.population - 1)
        plain, personal = holdings(fed, algorithm, shared, i, client, jnp.where(there, held.size[i], 0))
        models = predictors(algorithm, plain, personal)
        found = {}
        if "own" in fed.evaluation.scopes:
            found["own"] = of_own_rows(fed, g, held, i, there, models)
        if len(held.validation_rows):
            size = jnp.where(there, held.validation_size[i], 0)
            found["validation"] = of_rows(fed, g, models, held.train, held.validation_index[i], size, fed.batches.validation)
        models.pop("global", None)  # on the whole test set it is the same for all clients: scope "global" has it
        if "all" in fed.evaluation.scopes and models:
            number, batch = _whole_test(fed, held, fed.batches.all)
            found["all"] = _score(fed, g, models, (jnp.where(there, number, 0), batch))
        return (), found

    shared = held, state.server, state.round, state.key
    plan, lies = fed.plan_of(g), cohort_buffer.lies(shared)
    return client_loop.map_part(one, shared, (ids, rows), (), bounds, plan=plan, on=fed.mesh, lies=lies)[1]


def of_own_rows(fed: Federation, g: int, held: Held, i: Array, there: Array, models: dict[str, Callable]):
    """Client i's scores on its own test rows, of none of them unless it is there."""
    size = jnp.where(there, held.test_size[i], 0)
    return of_rows(fed, g, models, held.test, held.test_index[i], size, fed.batches.own)


def of_rows(fed: Federation, g: int, models: dict[str, Callable], of: Examples, index: Array, size: Array, batch: int):
    """Scores of group g's models on the first `size` of the rows `index` [M], `batch` of them at once."""
    return _score(fed, g, models, _batches(of, index, size, batch))


def holdings(fed: Federation, algorithm: Algorithm, shared, i: Array, client: PyTree, examples: Array):
    """(sent, client state) of client i as they are, and personalised. `shared`: (held, server, round, key data)."""
    held, server, round, of_run = shared  # noqa: A001
    plain = algorithm.broadcast(server, i), client
    if algorithm.personalise is None:
        return plain, plain
    data = fed.rows_of(held, i, examples)
    return plain, algorithm.personalise(*plain, data, jax.random.fold_in(key(of_run, "personalise", round), i))


def predictors(algorithm: Algorithm, plain: tuple[PyTree, PyTree], personal: tuple[PyTree, PyTree]) -> dict[str, Callable]:
    """The method's predictors as x -> outputs: "global" as broadcast, the others with the personalised (sent, client)."""

    def bound(name, predict):
        sent, client = plain if name == "global" else personal
        return lambda x: predict(sent, client, x)

    return {name: bound(name, predict) for name, predict in algorithm.predict.items()}


def each(scores: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """By metric, each client's value [E]; NaN of one without examples. `scores`: sums and weights [E]."""
    return {
        metric: np.divide(total, weight, out=np.full(np.shape(total), np.nan, np.float32), where=weight > 0)
        for metric, (total, weight) in scores.items()
    }


def joined(one: ByClient, other: ByClient) -> ByClient:
    """Of two sets of clients, the other's ids being higher."""

    def filled(name: str) -> np.ndarray:
        parts = (of.scores.get(name, np.full(len(of.ids), np.nan, np.float32)) for of in (one, other))
        return np.concatenate([*parts])

    ids, rows = (np.concatenate(pair) for pair in zip(one[:2], other[:2], strict=True))
    return ByClient(ids, rows, {name: filled(name) for name in dict.fromkeys([*one.scores, *other.scores])})


def in_order(blocks: list[dict[str, PyTree]], ids: list[np.ndarray]) -> dict[str, PyTree]:
    """Scores of blocks of clients together, in the order of the clients, of the models that all blocks have.

    Args:
      blocks: {predictor: {"loss", "accuracy"}: pairs [E]}, E of each block's own.
      ids: [E] of each.
    """
    models = [name for name in blocks[0] if all(name in block for block in blocks)]
    alike = [{name: block[name] for name in models} for block in blocks]
    order = np.argsort(np.concatenate(ids))
    return jax.tree.map(lambda *x: np.concatenate(x)[order], *alike)


STATISTICS = ("mean", "weighted", "lowest", "highest")


def statistics(prefix: str, scores: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Over clients with at least one test example: unweighted mean, mean by examples, lowest, highest."""
    flat = {}
    for metric, (total, weight) in scores.items():
        there = weight > 0
        if not there.any():
            continue
        each = total[there] / weight[there]
        flat[f"{prefix}/{metric}/mean"] = float(each.mean())
        flat[f"{prefix}/{metric}/weighted"] = float(total[there].sum() / weight[there].sum())
        flat[f"{prefix}/{metric}/lowest"] = float(each.min())
        flat[f"{prefix}/{metric}/highest"] = float(each.max())
    return flat


def _batches(test: Examples, index: Array, size: Array | int, b: int) -> Batches:
    """The first `size` of the test rows `index` [M], `b` at once."""
    rows = index.shape[0]
    b = max(1, min(b, rows))
    index = jnp.pad(index, (0, -rows % b))

    def batch(i):
        at = i * b + jnp.arange(b)
        return local_training.take(test, index[at], at < size)

    return -(-size // b), batch


def _validation(fed: Federation, held: Held) -> Batches:
    """All validation rows."""
    number = len(held.validation_rows)
    return _batches(held.train, held.validation_rows, number, fed.batches.validation_rows)


def _whole_test(fed: Federation, held: Held, batch: int) -> Batches:
    """The whole test set, `batch` rows at once, or the test episodes."""
    if fed.episodes is None:
        n = len(jax.tree.leaves(held.test.y)[0])
        return _batches(held.test, jnp.arange(n, dtype=jnp.int32), n, batch)
    support, query = held.tests
    real = jnp.ones(support.shape[1:], bool), jnp.ones(query.shape[1:], bool)
    return len(support), lambda i: assemble(held.test, support[i], query[i], *real)


def _score(fed: Federation, g: int, models: dict[str, Callable], batches: Batches):
    """Predictors (x -> outputs) on test batches: {predictor: {what `metrics.metric_sums` names, and the task's}: pairs}."""
    (number, batch), own = batches, fed.groups[g].task.scores
    no_means = [name for name, score in own.items() if metrics.finalizer(score) is not None]

    def found(i):
        x, y, mask, _ = batch(i)
        return {name: _pairs(predict(x), x, y, mask, own, fed.center) for name, predict in models.items()}

    def add(i, sums):
        return jax.tree.map(jnp.add, sums, found(i))

    if targets_of(jax.eval_shape(batch, jnp.int32(0)).y) in ("classes", "tokens"):
        pair = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32)
        zero = {name: dict.fromkeys(("accuracy", "loss", *own), pair) for name in models}
        for name, like in (jax.eval_shape(found, jnp.int32(0)) if no_means else {}).items():
            zero[name] |= {score: _zeros(like[score]) for score in no_means}
    else:
        zero = _zeros(jax.eval_shape(found, jnp.int32(0)))
    return jax.lax.fori_loop(0, number, add, zero)


def _zeros(like: PyTree) -> PyTree:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like)


def _pairs(
    outputs: dict[str, Array],
    x: PyTree,
    y: Array,
    mask: Array,
    own: Mapping[str, Callable[..., metrics.Pair]],
    center: np.ndarray | float,
) -> dict[str, metrics.Pair]:
    """The scores of the targets' kind, such as accuracy and loss, and a task's own."""
    found = metrics.metric_sums(outputs["logits"], outputs.get("targets", y), mask, center)
    more = {name: contracts.scored(name, score, score(outputs, x, y, mask)) for name, score in own.items()}
    for name, score in own.items():
        if metrics.finalizer(score) is not None:
            more[name] = more[name], found["loss"][1]
    return found | more
