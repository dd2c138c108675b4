"""Evaluates a simulation: dispatches programs block by block of clients, and names the scores.

`simulation_spec.Evaluation` says what the names mean.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_core import distributed
from fedjax_core.algorithm import PyTree
from fedjax_core.engine import divergence, evaluation_step, unseen_clients
from fedjax_core.engine.dispatch import CompiledPlan
from fedjax_core.engine.divergence import Diverged
from fedjax_core.engine.simulation_spec import SimulationSpec, State
from fedjax_core.training.metrics import METRIC_NAMES, finalize_metrics, metric_sums_bytes, nbytes

SCORED_EXAMPLES = {"own": "its own test examples", "validation": "its validation examples", "all": "the test set"}  # by scope
UNSEEN_TABLES = ("unseen_index", "unseen_test_index")
TRAINING_TABLES = ("index", "unseen_index")  # of examples that models are trained on before they are scored
INTERVAL_SECONDS = 0.5  # after which an evaluation can be stopped, if a client, or a batch, takes no longer
Pairs = dict[str, tuple[np.ndarray, np.ndarray]]  # by score, sums and weights
Watch = Callable[[str, int, int], None]  # (what is scored, how much is done, of how much); may raise to stop


class EvaluationResult(NamedTuple):
    """The scores of an evaluation.

    Attributes:
      by_client: the values of single clients behind them; None without scopes "own", "all" and "unseen".
    """

    metrics: dict[str, float]
    by_client: evaluation_step.ClientScores | None


def ignore_progress(what: str, done: int, total: int) -> None:
    """Does nothing."""
    del what, done, total


def evaluate(compiled: CompiledPlan, state: State, watch: Watch) -> EvaluationResult:
    """Returns all scores of the configured scopes except "post_local"."""
    spec, round_num, scopes = compiled.spec, int(jax.device_get(state.round)), set(compiled.spec.evaluation.scopes)
    metrics, by_client = {}, None
    if scores_server(spec):
        metrics |= _evaluate_server(compiled, state, round_num, watch)
    if scopes & {"own", "all"}:
        of_clients, by_client = _evaluate_clients(compiled, state, round_num, watch)
        metrics |= of_clients
    if "unseen" in scopes:
        of_unseen, unseen = _evaluate_unseen(compiled, state, round_num, watch, metrics)
        metrics |= of_unseen
        by_client = unseen if by_client is None else evaluation_step.concatenate_clients(by_client, unseen)
    own_scores = {name for group in spec.groups for name in group.task.scores}
    divergence.warn_of_nan(metrics, own_scores, round_num)
    return EvaluationResult(metrics, by_client)


def _evaluate_clients(
    compiled: CompiledPlan, state: State, round_num: int, watch: Watch
) -> tuple[dict[str, float], evaluation_step.ClientScores]:
    """Scores clients on their own examples and on the test set, as far as the scopes ask for these."""
    spec, ids = compiled.spec, compiled.spec.scored_clients()
    metrics, values = {}, {}
    for scope, models in score_clients(compiled, state, watch).items():
        divergence.raise_if_scores_diverged(models, ids, SCORED_EXAMPLES[scope], round_num, spec.data.train.y)
        for model, score in models.items():
            prefix = f"validation/{model}/own" if scope == "validation" else f"test/{model}/{scope}"
            metrics |= evaluation_step.client_statistics(prefix, score)
            values |= _client_values(prefix, score)
    return metrics, evaluation_step.ClientScores(ids, spec.host_arrays.test_size[ids], values)


def _evaluate_unseen(
    compiled: CompiledPlan, state: State, round_num: int, watch: Watch, population_metrics: dict[str, float]
) -> tuple[dict[str, float], evaluation_step.ClientScores]:
    """Scores unseen clients on their own test examples, and compares them with the population."""
    spec = compiled.spec
    assert spec.data.unseen is not None
    metrics, values = {}, {}
    models = score_unseen(compiled, state, watch)
    where = "its test examples, as one that never trained,"
    divergence.raise_if_scores_diverged(models, spec.data.unseen.ids, where, round_num, spec.data.train.y)
    for model, score in models.items():
        metrics |= evaluation_step.client_statistics(f"test/{model}/unseen", score)
        values |= _client_values(f"test/{model}/unseen", score)
    if not spec.abstract_algorithm(0).pooled:  # its one client has no mean over clients
        metrics |= unseen_clients.participation_gaps(population_metrics | metrics, models, METRIC_NAMES[spec.targets][0])
    examples = spec.host_arrays.unseen_test_size
    return metrics, evaluation_step.ClientScores(spec.population + np.arange(len(examples)), examples, values)


def _client_values(prefix: str, score: Pairs) -> dict[str, np.ndarray]:
    return {f"{prefix}/{metric}": values for metric, values in evaluation_step.divide_by_weights(score).items()}


def scores_server(spec: SimulationSpec) -> bool:
    """Returns whether the server's model is scored."""
    return "global" in spec.evaluation.scopes and "global" in spec.abstract_algorithm(0).predict


def _evaluate_server(compiled: CompiledPlan, state: State, round_num: int, watch: Watch) -> dict[str, float]:
    """Scores the server's model on the test set and on all validation examples; scores without weight are left out."""
    spec, metrics = compiled.spec, {}
    for source in ("test", *(["validation"] if spec.has_validation else [])):
        sums = score_server(compiled, state, source, watch)
        for name, (total, weight) in finalize_metrics(spec.targets, sums, spec.groups[0].task.scores).items():
            if weight > 0:
                metrics[f"{source}/global/{name}"] = float(total / weight)
    if not math.isfinite(metrics.get("test/global/loss", 0.0)):
        advice = divergence.advice_for(spec.host_arrays.train.y)
        raise Diverged(f"round {round_num}: the loss of the server's model on the test set is not finite; {advice}")
    return metrics


def score_server(compiled: CompiledPlan, state: State, source: str, watch: Watch = ignore_progress) -> Pairs:
    """Scores the server's model on the "test" examples, or all "validation" examples."""
    feed, programs, spec = compiled.feed, compiled.programs, compiled.spec
    split, name = {"test": "test", "validation": "train"}[source], f"batches of {source} examples"
    given = compiled.device_arrays, state.server, state.round
    if split not in feed.streamed:
        sums, number = programs.init_server_sums[source](*given), _count_batches(spec, source)
        for bounds in _chunk_bounds(compiled, name, number, lambda done: watch(name, done, number)):
            sums = jax.block_until_ready(programs.score_server[source](*given, sums, bounds))
        return jax.device_get(programs.add_up_shards(sums))
    which = None if source == "test" else spec.host_arrays.validation_rows
    batches = feed.server_batches(split, which, server_batch(spec, source), spec.plan.client_shards)
    number, sums = compiled.put(np.int32(batches.num_examples)), None
    init, program = programs.init_server_sums["streamed"], programs.score_server["streamed"]
    for block_num, (examples, first) in enumerate(batches):
        block, before = (examples, first, number), block_num * batches.batches_per_block
        sums = init(*given, block) if sums is None else sums
        report = lambda done, before=before: watch(name, min(before + done, batches.batches_per_device), batches.batches_per_device)
        for bounds in _chunk_bounds(compiled, name, batches.batches_per_block, report):
            sums = jax.block_until_ready(program(*given, sums, bounds, block))
    return jax.device_get(programs.add_up_shards(sums))


def server_batch(spec: SimulationSpec, source: str) -> int:
    """Returns how many "test" or "validation" examples the server's model scores at once."""
    return spec.batches.test if source == "test" else spec.batches.validation_rows


def _count_batches(spec: SimulationSpec, source: str) -> int:
    """Returns how many batches of resident examples each device scores with the server's model."""
    arrays = spec.host_arrays
    if source == "test" and spec.episodes is not None:
        number = len(arrays.tests[0])
    else:
        size = len(arrays.test.y if source == "test" else arrays.validation_rows)
        number = -(-size // max(1, min(server_batch(spec, source), size)))
    return -(-number // spec.plan.client_shards)


def _chunk_bounds(
    compiled: CompiledPlan, name: str, number: int, report: Callable[[int], None]
) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Splits a program's chunks into ranges that take about INTERVAL_SECONDS.

    Args:
      number: of its chunks, of each device.
      report: called after each range with how many chunks are done; may raise to stop.

    Yields:
      Bounds for `client_loop.map_chunk_range`; the caller waits for its result.
    """
    first, pace = 0, compiled.pace
    while first < number:
        most = INTERVAL_SECONDS / max(pace[name], 1e-9) if name in pace else 1
        last = distributed.broadcast_from_process_0(min(number, first + max(1, int(min(most, number)))))
        start = time.monotonic()
        yield compiled.put((np.int32(first), np.int32(last)))
        pace[name] = (time.monotonic() - start) / (last - first)
        report(last)
        first = last


def score_clients(compiled: CompiledPlan, state: State, watch: Watch = ignore_progress) -> dict[str, dict[str, Pairs]]:
    """Scores clients by scope ("own", "all", "validation" if they have such examples), by model.

    Returns:
      Pairs [E], in the order of `spec.scored_clients`.
    """
    scores_of_blocks, ids, spec = [], [], compiled.spec
    for g in range(len(spec.groups)):

        def read_inputs(block: np.ndarray, g: int = g) -> tuple:
            _, clients, touched, initial = compiled.states.read(state, g, block)
            return state, initial, compiled.put(block), clients, touched

        program, blocks, tables = compiled.programs.score_clients[g], client_blocks(compiled, g), client_tables(spec, g)
        scored = _score_blocks(compiled, g, "clients", program, blocks, tables, spec.population, read_inputs, watch)
        for block_ids, scopes in scored:
            scores_of_blocks.append({scope: _finish(spec, g, models) for scope, models in scopes.items()})
            ids.append(block_ids)
    scopes = list(scores_of_blocks[0])
    return {scope: evaluation_step.sort_by_client([scores[scope] for scores in scores_of_blocks], ids) for scope in scopes}


def score_unseen(compiled: CompiledPlan, state: State, watch: Watch = ignore_progress) -> dict[str, Pairs]:
    """Scores the unseen clients by model: pairs [E], in the order of `data.unseen`."""
    scores_of_blocks, ids, spec = [], [], compiled.spec

    def read_inputs(block: np.ndarray) -> tuple:
        return state.server, state.round, state.key, compiled.put(block)

    for g in range(len(spec.groups)):
        program, blocks, number = compiled.programs.score_unseen[g], unseen_blocks(compiled, g), len(spec.host_arrays.unseen_size)
        scored = _score_blocks(compiled, g, "unseen clients", program, blocks, UNSEEN_TABLES, number, read_inputs, watch)
        for block_ids, models in scored:
            scores_of_blocks.append(_finish(spec, g, models))
            ids.append(block_ids)
    return evaluation_step.sort_by_client(scores_of_blocks, ids)


def _score_blocks(
    compiled: CompiledPlan,
    g: int,
    who: str,
    program: Any,
    blocks: Sequence[np.ndarray],
    tables: Sequence[str],
    nobody: int,
    read_inputs: Callable[[np.ndarray], tuple],
    watch: Watch,
) -> Iterator[tuple[np.ndarray, PyTree]]:
    """Runs a program of group g's clients block by block, and each block in ranges of its chunks.

    Args:
      who: the clients, for `watch`.
      blocks: ids [E] of each.
      tables: that the program reads.
      nobody: the id of an empty slot.
      read_inputs: a block -> the program's inputs between its arrays and its bounds.

    Yields:
      (ids of a block, their scores).
    """
    if not blocks:
        return
    plan, name = compiled.spec.plan_of(g), compiled.spec.label(who, g)
    size, step, total = len(blocks[0]), plan.chunk * plan.client_shards, sum(int((block < nobody).sum()) for block in blocks)
    for number, (block, arrays) in enumerate(zip(blocks, compiled.feed.for_blocks(blocks, tables), strict=True)):
        inputs = read_inputs(block)
        report = lambda done, number=number: watch(name, min(number * size + done * step, total), total)
        scores = None
        for bounds in _chunk_bounds(compiled, name, size // step, report):
            of_range = jax.device_get(program(arrays, *inputs, bounds))  # other clients have zeros
            scores = of_range if scores is None else jax.tree.map(np.add, scores, of_range)
        is_real = block < nobody
        yield block[is_real], jax.tree.map(lambda x, keep=is_real: x[keep], scores)


def client_blocks(compiled: CompiledPlan, g: int) -> list[np.ndarray]:
    """Returns group g's scored clients in blocks (`CompiledPlan.make_blocks`); none if there are no such clients."""
    spec = compiled.spec
    ids = np.asarray(spec.groups[g].clients)
    ids = ids[np.isin(ids, spec.scored_clients())]
    if not len(ids):
        return []
    work = _client_work(spec, client_tables(spec, g), spec.population)
    return compiled.make_blocks(g, ids, spec.population, work, sums_bytes(spec, g) + nbytes(spec.shapes.groups[g].client))


def unseen_blocks(compiled: CompiledPlan, g: int) -> list[np.ndarray]:
    """Returns the unseen clients with group g's network in blocks; none if there are no such clients."""
    spec, number = compiled.spec, len(compiled.spec.host_arrays.unseen_size)
    ids = unseen_clients.unseen_members(spec, g, number)
    if not len(ids):
        return []
    work = _client_work(spec, UNSEEN_TABLES, number)
    return compiled.make_blocks(g, ids, number, work, sums_bytes(spec, g))


def _client_work(spec: SimulationSpec, names: Sequence[str], number: int) -> np.ndarray:
    """Returns the examples of each of `number` clients by these tables; those trained on count thrice."""
    tables = [(3 if name in TRAINING_TABLES else 1, getattr(spec.host_arrays, name)) for name in names]
    return sum((times * np.asarray(table.size) for times, table in tables), np.zeros(number, np.int64))


def client_tables(spec: SimulationSpec, g: int) -> Sequence[str]:
    """Returns the index tables by which clients of group g are scored."""
    is_needed = {
        "index": spec.abstract_algorithm(g).personalise is not None,
        "validation_index": spec.has_validation,
        "test_index": "own" in spec.evaluation.scopes,
    }
    return [name for name, needed in is_needed.items() if needed]


def _finish(spec: SimulationSpec, g: int, models: dict[str, PyTree]) -> dict[str, Pairs]:
    """Returns the scores of each model of group g, from what the programs have added up."""
    own = spec.groups[g].task.scores
    return {model: finalize_metrics(spec.targets, sums, own) for model, sums in models.items()}


def sums_bytes(spec: SimulationSpec, g: int) -> int:
    """Returns the bytes of the sums behind the scores of one client of group g."""
    model_bytes = metric_sums_bytes(spec.host_arrays.train.y) + spec.score_bytes[g]
    return len(spec.abstract_algorithm(g).predict) * len(SCORED_EXAMPLES) * model_bytes


def list_scores(spec: SimulationSpec) -> list[str]:
    """Returns the names of all scores that `evaluate` gives."""
    return list_test_scores(spec) + list_validation_scores(spec)


def list_validation_scores(spec: SimulationSpec) -> list[str]:
    """Returns the names of the scores on validation examples that `evaluate` gives; none without such examples."""
    if not spec.has_validation:
        return []
    models, names = _models_and_scores(spec)
    prefixes = [f"validation/{model}/own" for model in models] if {"own", "all"} & set(spec.evaluation.scopes) else []
    return _server_score_names(spec, "validation", names) + _statistic_names(prefixes, names)


def list_test_scores(spec: SimulationSpec) -> list[str]:
    """Returns the names of the scores on test examples that `evaluate` gives."""
    models, names = _models_and_scores(spec)
    scopes = [scope for scope in ("own", "all", "unseen") if scope in spec.evaluation.scopes]
    pairs = [(m, scope) for m in models for scope in scopes if (m, scope) != ("global", "all")]  # scope "global" has it
    has_gap = {"own", "unseen"} <= set(scopes) and not spec.abstract_algorithm(0).pooled
    gaps = [f"test/{model}/gap/{names[0]}" for model in models] if has_gap else []
    clients = _statistic_names([f"test/{model}/{scope}" for model, scope in pairs], names)
    return _server_score_names(spec, "test", names) + clients + gaps


def _statistic_names(prefixes: Sequence[str], names: Sequence[str]) -> list[str]:
    return [f"{prefix}/{name}/{s}" for prefix in prefixes for name in names for s in evaluation_step.CLIENT_STATISTICS]


def _server_score_names(spec: SimulationSpec, source: str, names: Sequence[str]) -> list[str]:
    return [f"{source}/global/{name}" for name in names] if scores_server(spec) else []


def _models_and_scores(spec: SimulationSpec) -> tuple[list[str], list[str]]:
    """Returns the models that clients are scored with, and the scores: those that all groups have."""
    of_groups = [(*METRIC_NAMES[spec.targets], *group.task.scores) for group in spec.groups]
    names = [name for name in of_groups[0] if all(name in others for others in of_groups)]
    models = [spec.abstract_algorithm(g).predict for g in range(len(spec.groups))]
    return [model for model in models[0] if all(model in others for others in models)], names
