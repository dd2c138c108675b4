"""Settings that are allowed, and do nothing or less than one would think: attacks and rules in cohorts of the config's size,
statistics that stay as they began, privacy of data that were counted before. Each is said in a line before a run."""

import logging
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from fedjax_core import by_name, values
from fedjax_core.engine import cohort as cohorts
from fedjax_core.experiment.asked import Asked
from fedjax_core.task import Model
from fedjax_core.uplink import attacks, rules

SCALED = ("diabetes",)  # sources that divide targets by what all training rows say
log = logging.getLogger("fedjax_core")


def say(asked: Asked, population: int, attackers: int, fresh: Mapping[str, Model], has_offset: bool = False) -> None:
    """Warns of what the functions below find.

    Args:
      asked: the config.
      population: N.
      attackers: how many of these attack.
      fresh: by spec, networks that begin from no file.
      has_offset: whether something was taken off inputs or targets that lie far from 0 (`federated.centre`).
    """
    size = cohorts.number(asked.cohort, population)
    there = max(1, round(size * (1 - asked.dropout)))
    found = (*of_attack(asked, there, population, attackers), *of_rule(asked.rule, there), *of_statistics(asked.statistics, fresh))
    for line in (*found, *of_source(asked), *of_offset(asked, has_offset)):
        log.warning("%s", line)


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
    takes = by_name.parameters(source.function)[0]
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


def of_rule(rule: Sequence[by_name.Found], there: int) -> list[str]:
    """Rules whose `attackers` is less than one client of those that are there."""
    said = []
    for found in rule:
        takes = by_name.parameters(found.function)[0]
        if found.origin != by_name.BUILT_IN or "attackers" not in takes:
            continue
        share = found.options.get("attackers", takes["attackers"].default)
        if share > 0 and int(rules.counts(jnp.ones(there, bool), share)[1]) == 0:
            what = f"attackers={share:g} of the {there} clients of a round is less than one, so {found.name} withstands none"
            said.append(f"aggregation.rule={values.short(' | '.join(one.spec for one in rule))}: {what}")
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
