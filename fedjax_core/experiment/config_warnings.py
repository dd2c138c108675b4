"""Settings that are allowed, and do nothing or less than one would think: attacks and rules in cohorts of the config's size,
statistics that stay as they began, privacy of data that were counted before, batches beyond all data, no evaluation. Each is said
in a line before a run."""

import logging
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from fedjax_core import option_types, registry
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.data.ragged_index import RowLists
from fedjax_core.engine import client_sampling as cohorts
from fedjax_core.experiment.resolve_config import Asked
from fedjax_core.task import Model
from fedjax_core.uplink import attacks, robust_aggregation

SCALED = ("diabetes",)  # sources that divide targets by what all training rows say
log = logging.getLogger("fedjax_core")


def say(asked: Asked, data: FederatedData, attackers: int, fresh: Mapping[str, Model]) -> None:
    """Warns of what the functions below find.

    Args:
      asked: the config.
      data: over its clients.
      attackers: how many of these attack.
      fresh: by spec, networks that begin from no file.
    """
    population = data.clients
    size = cohorts.number(asked.cohort, population)
    there = max(1, round(size * (1 - asked.dropout)))
    found = (*of_attack(asked, there, population, attackers), *of_rule(asked.rule, there), *of_statistics(asked.statistics, fresh))
    has_offset = data.x_offset is not None or data.y_offset is not None
    for line in (*found, *of_source(asked), *of_batch(asked, data), *of_offset(asked, has_offset)):
        log.warning("%s", line)


def of_batch(asked: Asked, data: FederatedData) -> list[str]:
    """Returns a line where a minibatch is larger than all clients' data together."""
    batch, rows = asked.method.options.get("batch"), RowLists.of(data.train_index)
    if not isinstance(batch, int) or batch <= rows.total:
        return []
    largest = int(rows.size.max())
    what = f"method.batch={batch} is more than the {rows.total} training rows of all clients, of whom one has at most {largest}"
    return [f"{what}: each takes one step an epoch, on all that it has"]


def of_evaluation(asked: Asked) -> list[str]:
    """Returns a line where nothing is scored, or the last round alone."""
    every, rounds = asked.said["evaluation.every"], asked.said["rounds"]
    if not asked.evaluation.scopes:
        return ["evaluation.scopes=() scores no model in any round; ('global',) scores the server's on the test set"]
    if every <= rounds:
        return []
    return [f"evaluation.every={every} is more than rounds={rounds}: only the last round is scored"]


def of_attack(asked: Asked, there: int, population: int, attackers: int) -> list[str]:
    """ALIE whose own choice of z is not above 0: it then sends the mean of the honest, or what is better for them."""
    m = round(there * attackers / population)
    found = [] if asked.adversary is None else asked.adversary.attacks
    chosen = [one for one in found if one.function is attacks.alie and one.options.get("z") is None]
    if not chosen or (z := float(attacks.largest_z(there, m))) > 1e-6:
        return []
    said = f"of {there} clients a round {m} attack, for which alie takes z = {round(z, 2) + 0.0:g}, which is no attack"
    return [f"adversary.attack: {said}; give it one, such as alie(z=1.0)"]


def of_source(asked: Asked) -> list[str]:
    """Privacy, and data whose words or scale are found in all clients' rows."""
    source = asked.data.source
    takes = registry.parameters(source.function)[0]
    counts = "words" in takes and source.options.get("words", takes["words"].default) is not None
    if asked.mechanism is None or not (counts or source.name in SCALED):
        return []
    what = "which words it tells apart" if counts else "the mean and deviation of its targets"
    return [f"data.source={source.spec!r}: {what} is found in all clients' training rows; epsilon says nothing of that"]


def of_offset(asked: Asked, has_offset: bool) -> list[str]:
    """Privacy, and data of which a median over all clients' rows was taken off."""
    if asked.mechanism is None or not has_offset:
        return []
    what = "what is taken off columns far from 0 is found in all clients' training rows"
    return [f"data.source={asked.data.source.spec!r}: {what}; epsilon says nothing of that"]


def of_rule(rule: Sequence[registry.Found], there: int) -> list[str]:
    """Rules whose `attackers` is less than one client of those that are there."""
    said = []
    for found in rule:
        takes = registry.parameters(found.function)[0]
        if found.origin != registry.BUILT_IN or "attackers" not in takes:
            continue
        share = found.options.get("attackers", takes["attackers"].default)
        if share > 0 and int(robust_aggregation.counts(jnp.ones(there, bool), share)[1]) == 0:
            what = f"attackers={share:g} of the {there} clients of a round is less than one, so {found.name} withstands none"
            said.append(f"aggregation.rule={option_types.short(' | '.join(one.spec for one in rule))}: {what}")
    return said


def of_statistics(mode: str, fresh: Mapping[str, Model]) -> list[str]:
    """Batch normalisation that is frozen in networks that begin from no file: it never normalises."""
    if mode != "freeze":
        return []
    running = {spec: jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)).stats) for spec, model in fresh.items()}
    why = "keeps mean 0 and variance 1, as it began; give weights, or statistics='average'"
    return [
        f"statistics='freeze': batch normalisation of {spec}, which has no weights, {why}" for spec, its in running.items() if its
    ]
