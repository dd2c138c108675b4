"""A simulation's scores, evaluated: programs are dispatched block by block of clients, and what they add up gets its names."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_core import distributed
from fedjax_core.algorithm import PyTree, targets_of
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine import divergence, evaluation_step, unseen_clients
from fedjax_core.engine.data_feed.streaming import Streamed
from fedjax_core.engine.divergence import Diverged
from fedjax_core.engine.federation import Federation, Held, State
from fedjax_core.engine.planned import Fitting, Planned
from fedjax_core.training import metrics

ROWS = {"own": "its own test rows", "validation": "its validation rows", "all": "the test set"}  # what a scope is scored on
UNSEEN_TABLES = ("unseen_index", "unseen_test_index")
TRAINED = ("index", "unseen_index")  # of the tables of rows, those that models are made by before they are scored
PIECE_SECONDS = 0.5  # that an evaluation goes on before it can be stopped, if a client, or a batch, takes no longer
Pairs = dict[str, tuple[np.ndarray, np.ndarray]]  # by score, sums and weights
Watch = Callable[[str, int, int], None]  # is told what is scored, how much of it is done and of how much; may raise to stop it


def unwatched(what: str, done: int, of: int) -> None:
    """Lets an evaluation go on, and says nothing of it."""
    del what, done, of


def evaluated(
    at: Planned, fitting: Fitting, state: State, data: FederatedData, watch: Watch = unwatched
) -> tuple[dict[str, float], evaluation_step.ByClient | None]:
    """All scores of the configured scopes but "post_local", and the values of single clients that they are made of: None without
    scopes "own", "all" and "unseen".

    What `watch` raises, which is told of every piece of the work, ends it.

    Raises:
      Diverged: a loss is not finite; says whose.
    """
    scopes, number = at.fed.evaluation.scopes, int(jax.device_get(state.round))
    found, by_client = {}, None
    if "global" in scopes and "global" in at.method(0).predict:
        found |= _of_server(at, state, number, watch)
    if {"own", "all"} & set(scopes):
        ids = scored_clients(at.fed)
        by_client = evaluation_step.ByClient(ids, at.arrays.host.test_size[ids], {})
        for scope, models in fitting(lambda at: of_clients(at, state, watch)).items():
            divergence.scores(models, ids, ROWS[scope], number, data.train.y)
            for model, score in models.items():
                place = f"validation/{model}/own" if scope == "validation" else f"test/{model}/{scope}"
                found |= evaluation_step.statistics(place, score)
                by_client.scores.update({f"{place}/{metric}": values for metric, values in evaluation_step.each(score).items()})
    if "unseen" in scopes:
        assert data.unseen is not None
        models = fitting(lambda at: of_unseen(at, state, watch))
        divergence.scores(models, data.unseen.ids, "its test rows, as one that never trained,", number, data.train.y)
        own = {}
        for model, score in models.items():
            found |= evaluation_step.statistics(f"test/{model}/unseen", score)
            own |= {f"test/{model}/unseen/{metric}": values for metric, values in evaluation_step.each(score).items()}
        rows = at.arrays.host.unseen_test_size
        theirs = evaluation_step.ByClient(at.fed.population + np.arange(len(rows)), rows, own)
        by_client = theirs if by_client is None else evaluation_step.joined(by_client, theirs)
        found |= unseen_clients.gaps(found, list(models), metrics.METRIC_NAMES[targets_of(at.arrays.host.train.y)][0])
    divergence.warn_of_nan(found, {name for group in at.fed.groups for name in group.task.scores}, number)
    return found, by_client


def _of_server(at: Planned, state: State, number: int, watch: Watch) -> dict[str, float]:
    """The server's model on the test set, and on all validation rows; what has no weight there is left out."""
    found, targets = {}, targets_of(at.arrays.host.train.y)
    for rows in ("test", *(["validation"] if validated(at.arrays.host) else [])):
        sums = of_server(at, state, rows, watch)
        for name, pair in metrics.finalize_metrics(targets, sums, at.fed.groups[0].task.scores).items():
            if pair[1] > 0:
                found[f"{rows}/global/{name}"] = float(pair[0] / pair[1])
    if not math.isfinite(found.get("test/global/loss", 0.0)):
        advice = divergence.advice_for(at.arrays.host.train.y)
        raise Diverged(f"round {number}: the loss of the server's model on the test set is not finite; {advice}")
    return found


def of_server(at: Planned, state: State, rows: str, watch: Watch = unwatched) -> Pairs:
    """The server's model on the "test" rows, or all "validation" rows."""
    part, supply, programs = {"test": "test", "validation": "train"}[rows], at.arrays.supply, at.programs
    given, name = (at.arrays.held, state.server, state.round), f"batches of {rows} rows"
    if part not in supply.streamed:
        sums, number = programs.begin_server[rows](*given), _batches(at, rows)
        for bounds in _pieces(at, name, number, lambda done: watch(name, done, number)):
            sums = jax.block_until_ready(programs.of_server[rows](*given, sums, bounds))
        return jax.device_get(programs.summed(sums))
    assert isinstance(supply, Streamed)
    which = None if rows == "test" else at.arrays.host.validation_rows
    batches = supply.batches(part, which, batch_of(at, rows), at.fed.plan.parts)
    rows_in_all, sums = at.put(np.int32(batches.number)), None
    for number, block in enumerate(batches):
        sums = programs.begin_batches(*given, *block, rows_in_all) if sums is None else sums
        before = number * batches.at_once
        tell = lambda done, before=before: watch(name, min(before + done, batches.each), batches.each)
        for bounds in _pieces(at, name, batches.at_once, tell):
            sums = jax.block_until_ready(programs.of_batches(*given, *block, rows_in_all, sums, bounds))
    return jax.device_get(programs.summed(sums))


def batch_of(at: Planned, rows: str) -> int:
    """Rows at once, of the server's model on "test" or "validation" rows."""
    return at.fed.batches.test if rows == "test" else at.fed.batches.validation_rows


def _batches(at: Planned, rows: str) -> int:
    """How many batches of resident rows each device has of the server's model."""
    host = at.arrays.host
    if rows == "test" and at.fed.episodes is not None:
        number = len(host.tests[0])
    else:
        size = len(host.test.y if rows == "test" else host.validation_rows)
        number = -(-size // max(1, min(batch_of(at, rows), size)))
    return -(-number // at.fed.plan.parts)


def _pieces(at: Planned, name: str, number: int, tell: Callable[[int], None]) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Cuts a program's chunks into pieces that take PIECE_SECONDS or so.

    Args:
      at: the plan, which remembers how long chunks took.
      name: of the program.
      number: of its chunks, of each device.
      tell: is told after each piece how many are done; may raise to stop it.

    Yields:
      Bounds for `client_loop.map_part`; whoever takes them waits for what they give.
    """
    first = 0
    while first < number:
        most = PIECE_SECONDS / max(at.pace[name], 1e-9) if name in at.pace else 1
        last = distributed.said(min(number, first + max(1, int(min(most, number)))))
        start = time.monotonic()
        yield at.put((np.int32(first), np.int32(last)))
        at.pace[name] = (time.monotonic() - start) / (last - first)
        tell(last)
        first = last


def validated(host: Held) -> bool:
    """Whether clients have validation rows."""
    return len(host.validation_rows) > 0


def scored_clients(fed: Federation) -> np.ndarray:
    """Ids of the clients that are scored, sorted."""
    number = fed.evaluation.clients
    if number is None or number >= fed.population:
        return np.arange(fed.population)
    return np.sort(np.random.default_rng(0).permutation(fed.population)[:number])


def of_clients(at: Planned, state: State, watch: Watch = unwatched) -> dict[str, dict[str, Pairs]]:
    """By scope ("own", "all", and "validation" where there are such rows), by model: pairs [E], in the order of
    `scored_clients`."""
    parts, ids = [], []
    for g in range(len(at.fed.groups)):
        blocks = client_blocks(at, g)
        if not blocks:
            continue
        for number, (block, held) in enumerate(
            zip(blocks, at.arrays.supply.of_blocks(at.arrays.held, blocks, tables(at, g)), strict=True)
        ):
            _, rows, touched, initial = at.states.read(state, g, block)
            given = held, state, initial, at.put(block), rows, touched
            found = _in_pieces(at, g, "clients", at.programs.of_clients[g], given, (number, blocks), watch)
            real = block < at.fed.population
            of_block = jax.tree.map(lambda x, real=real: x[real], found)
            parts.append({scope: _finished(at, g, models) for scope, models in of_block.items()})
            ids.append(block[real])
    return {scope: evaluation_step.in_order([part[scope] for part in parts], ids) for scope in parts[0]}


def of_unseen(at: Planned, state: State, watch: Watch = unwatched) -> dict[str, Pairs]:
    """By model: pairs [E] of the unseen clients, in their order."""
    parts, ids, population = [], [], len(at.arrays.host.unseen_size)
    for g in range(len(at.fed.groups)):
        blocks = unseen_blocks(at, g)
        if not blocks:
            continue
        for number, (block, held) in enumerate(
            zip(blocks, at.arrays.supply.of_blocks(at.arrays.held, blocks, UNSEEN_TABLES), strict=True)
        ):
            given = held, state.server, state.round, state.key, at.put(block)
            found = _in_pieces(at, g, "unseen clients", at.programs.of_unseen[g], given, (number, blocks), watch)
            real = block < population
            parts.append(_finished(at, g, jax.tree.map(lambda x, real=real: x[real], found)))
            ids.append(block[real])
    return evaluation_step.in_order(parts, ids)


def _in_pieces(
    at: Planned, g: int, who: str, program: Any, given: tuple, place: tuple[int, list[np.ndarray]], watch: Watch
) -> dict[str, Any]:
    """What a program of group g's clients gives, done piece by piece. `place`: the number of its block, of these."""
    (block, blocks), plan = place, at.fed.plan_of(g)
    size, each = len(blocks[0]), plan.chunk * plan.parts
    name = who if len(at.fed.groups) == 1 else f"{who} with network {at.fed.groups[g].name}"
    found = None
    tell = lambda done: watch(name, block * size + done * each, size * len(blocks))
    for bounds in _pieces(at, name, size // each, tell):
        piece = jax.device_get(program(*given, bounds))
        found = piece if found is None else jax.tree.map(np.add, found, piece)  # each has zeros where the others have numbers
    assert found is not None
    return found


def client_blocks(at: Planned, g: int) -> list[np.ndarray]:
    """Group g's clients that are scored, in blocks (`Planned.blocks`); none if there are no such clients."""
    mine = np.asarray(at.fed.groups[g].clients)
    mine = mine[np.isin(mine, scored_clients(at.fed))]
    return (
        at.blocks(g, mine, at.fed.population, _work(at, tables(at, g), at.fed.population), sums_bytes(at, g)) if len(mine) else []
    )


def unseen_blocks(at: Planned, g: int) -> list[np.ndarray]:
    """The unseen clients that have group g's network, in blocks (`Planned.blocks`); none if there are no such clients."""
    population = len(at.arrays.host.unseen_size)
    mine = unseen_clients.members(at.fed, g, population)
    return at.blocks(g, mine, population, _work(at, UNSEEN_TABLES, population), sums_bytes(at, g)) if len(mine) else []


def _work(at: Planned, names: Sequence[str], number: int) -> np.ndarray:
    """Rows of each of so many clients by these tables; those to train on count thrice, for there are gradients to be taken."""
    tables = [(3 if name in TRAINED else 1, getattr(at.arrays.host, name)) for name in names]
    return sum((times * np.asarray(table.size) for times, table in tables), np.zeros(number, np.int64))


def tables(at: Planned, g: int) -> Sequence[str]:
    """The tables of rows by which clients of group g are scored."""
    wanted = {
        "index": at.method(g).personalise is not None,
        "validation_index": validated(at.arrays.host),
        "test_index": "own" in at.fed.evaluation.scopes,
    }
    return [name for name, needed in wanted.items() if needed]


def _finished(at: Planned, g: int, models: dict[str, PyTree]) -> dict[str, Pairs]:
    """The scores of each model of group g, of what the programs have added up."""
    targets, own = targets_of(at.arrays.host.train.y), at.fed.groups[g].task.scores
    return {model: metrics.finalize_metrics(targets, sums, own) for model, sums in models.items()}


def sums_bytes(at: Planned, g: int) -> int:
    """Of what a client of group g's scores are made of."""
    each = metrics.metric_sums_bytes(at.arrays.host.train.y) + at.fed.score_bytes[g]
    return len(at.method(g).predict) * len(ROWS) * each
