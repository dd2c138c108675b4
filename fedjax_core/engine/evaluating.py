"""A simulation's scores, evaluated: programs are dispatched block by block of clients, and what they add up gets its names."""

import math
from collections.abc import Sequence

import jax
import numpy as np

from fedjax_core.algorithm import PyTree, targets_of
from fedjax_core.data.federated import FederatedData
from fedjax_core.engine import faults, parallel, scores, unseen
from fedjax_core.engine.faults import Diverged
from fedjax_core.engine.federation import Federation, Held, State
from fedjax_core.engine.planned import Fitting, Planned
from fedjax_core.engine.rows import Streamed
from fedjax_core.learning import scored

ROWS = {"own": "its own test rows", "validation": "its validation rows", "all": "the test set"}  # what a scope is scored on
UNSEEN_TABLES = ("unseen_index", "unseen_test_index")
Pairs = dict[str, tuple[np.ndarray, np.ndarray]]  # by score, sums and weights


def evaluated(at: Planned, fitting: Fitting, state: State, data: FederatedData) -> tuple[dict[str, float], scores.ByClient | None]:
    """All scores of the configured scopes but "post_local", and the values of single clients that they are made of: None without
    scopes "own", "all" and "unseen".

    Raises:
      Diverged: a loss is not finite; says whose.
    """
    scopes, number = at.fed.evaluation.scopes, int(jax.device_get(state.round))
    found, by_client = {}, None
    if "global" in scopes and "global" in at.method(0).predict:
        found |= _of_server(at, state, number)
    if {"own", "all"} & set(scopes):
        ids = scored_clients(at.fed)
        by_client = scores.ByClient(ids, at.arrays.host.test_size[ids], {})
        for scope, models in fitting(lambda at: of_clients(at, state)).items():
            faults.scores(models, ids, ROWS[scope], number, data.train.y)
            for model, score in models.items():
                place = f"validation/{model}/own" if scope == "validation" else f"test/{model}/{scope}"
                found |= scores.statistics(place, score)
                by_client.scores.update({f"{place}/{metric}": values for metric, values in scores.each(score).items()})
    if "unseen" in scopes:
        assert data.unseen is not None
        models = fitting(lambda at: of_unseen(at, state))
        faults.scores(models, data.unseen.ids, "its test rows, as one that never trained,", number, data.train.y)
        own = {}
        for model, score in models.items():
            found |= scores.statistics(f"test/{model}/unseen", score)
            own |= {f"test/{model}/unseen/{metric}": values for metric, values in scores.each(score).items()}
        rows = at.arrays.host.unseen_test_size
        theirs = scores.ByClient(at.fed.population + np.arange(len(rows)), rows, own)
        by_client = theirs if by_client is None else scores.joined(by_client, theirs)
        found |= unseen.gaps(found, list(models), scored.NAMES[targets_of(at.arrays.host.train.y)][0])
    faults.warn_of_nan(found, {name for group in at.fed.groups for name in group.task.scores}, number)
    return found, by_client


def _of_server(at: Planned, state: State, number: int) -> dict[str, float]:
    """The server's model on the test set, and on all validation rows; what has no weight there is left out."""
    found, targets = {}, targets_of(at.arrays.host.train.y)
    for rows in ("test", *(["validation"] if validated(at.arrays.host) else [])):
        for name, pair in scored.finished(targets, of_server(at, state, rows), at.fed.groups[0].task.scores).items():
            if pair[1] > 0:
                found[f"{rows}/global/{name}"] = float(pair[0] / pair[1])
    if not math.isfinite(found.get("test/global/loss", 0.0)):
        advice = faults.advice_for(at.arrays.host.train.y)
        raise Diverged(f"round {number}: the loss of the server's model on the test set is not finite; {advice}")
    return found


def of_server(at: Planned, state: State, rows: str) -> Pairs:
    """The server's model on the "test" rows, or all "validation" rows."""
    part, supply, evaluation = {"test": "test", "validation": "train"}[rows], at.arrays.supply, at.fed.evaluation
    if part not in supply.streamed:
        return jax.device_get(at.programs.of_server[rows](at.arrays.held, state.server, state.round))
    assert isinstance(supply, Streamed)
    which = None if rows == "test" else at.arrays.host.validation_rows
    batches = supply.batches(part, which, evaluation.batch, at.fed.plan.parts)
    held, number = at.arrays.held, at.put(np.int32(batches.number))
    found = [jax.device_get(at.programs.of_batches(held, state.server, state.round, *block, number)) for block in batches]
    totals = parallel.place(batches.totals(found), at.fed.mesh, parallel.spread(at.fed.mesh))
    return jax.device_get(at.programs.summed(totals))


def validated(host: Held) -> bool:
    """Whether clients have validation rows."""
    return len(host.validation_rows) > 0


def scored_clients(fed: Federation) -> np.ndarray:
    """Ids of the clients that are scored, sorted."""
    number = fed.evaluation.clients
    if number is None or number >= fed.population:
        return np.arange(fed.population)
    return np.sort(np.random.default_rng(0).permutation(fed.population)[:number])


def of_clients(at: Planned, state: State) -> dict[str, dict[str, Pairs]]:
    """By scope ("own", "all", and "validation" where there are such rows), by model: pairs [E], in the order of
    `scored_clients`."""
    wanted = scored_clients(at.fed)
    parts, ids = [], []
    for g, group in enumerate(at.fed.groups):
        mine = np.asarray(group.clients)[np.isin(group.clients, wanted)]
        if not len(mine):
            continue
        blocks = at.blocks(g, mine, at.fed.population, sums_bytes(at, g))
        for block, held in zip(blocks, at.arrays.supply.of_blocks(at.arrays.held, blocks, tables(at, g)), strict=True):
            _, rows, touched, initial = at.states.read(state, g, block)
            found = jax.device_get(at.programs.of_clients[g](held, state, initial, at.put(block), rows, touched))
            real = block < at.fed.population
            of_block = jax.tree.map(lambda x, real=real: x[real], found)
            parts.append({scope: _finished(at, g, models) for scope, models in of_block.items()})
            ids.append(block[real])
    return {scope: scores.in_order([part[scope] for part in parts], ids) for scope in parts[0]}


def of_unseen(at: Planned, state: State) -> dict[str, Pairs]:
    """By model: pairs [E] of the unseen clients, in their order."""
    parts, found, number = [], [], len(at.arrays.host.unseen_size)
    for g in range(len(at.fed.groups)):
        mine = unseen.members(at.fed, g, number)
        if not len(mine):
            continue
        blocks = at.blocks(g, mine, number, sums_bytes(at, g))
        for block, held in zip(blocks, at.arrays.supply.of_blocks(at.arrays.held, blocks, UNSEEN_TABLES), strict=True):
            sums = at.programs.of_unseen[g](held, state.server, state.round, state.key, at.put(block))
            real = block < number
            parts.append(_finished(at, g, jax.tree.map(lambda x, real=real: x[real], jax.device_get(sums))))
            found.append(block[real])
    return scores.in_order(parts, found)


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
    return {model: scored.finished(targets, sums, own) for model, sums in models.items()}


def sums_bytes(at: Planned, g: int) -> int:
    """Of what a client of group g's scores are made of."""
    each = scored.sums_bytes(at.arrays.host.train.y) + at.fed.score_bytes[g]
    return len(at.method(g).predict) * len(ROWS) * each
