"""What a config puts between clients and server: attacks, compression, a rule, privacy; found by name and checked."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_core import option_types, registry
from fedjax_core.data import poisoning
from fedjax_core.experiment.lookup import NORMALISATIONS
from fedjax_core.privacy import Privacy, missing_settings
from fedjax_core.privacy import asked as privacy_asked
from fedjax_core.registry import Found
from fedjax_core.uplink import Link, attacks, compression, dp_mechanisms, order, robust_aggregation


class Adversary(NamedTuple):
    """Who attacks, and how.

    Attributes:
      attacks: one after another: poisons of data, and changes of what is sent.
      fraction: of the clients.
    """

    attacks: list[Found]
    fraction: float


def links(said: Mapping[str, Any]) -> tuple[Link, ...]:
    """What uplinks pass through, in its order."""
    parsers = {
        "compression.uplink": compression.parse,
        "compression.downlink": compression.down,
        "aggregation.rule": robust_aggregation.parse,
    }
    return order([parse(said[field]) for field, parse in parsers.items() if said[field] is not None])


def leaves_out(said: Mapping[str, Any]) -> bool:
    """Whether clients that send something not finite are left out: as the config says, else where there is a rule or privacy."""
    asked = said["aggregation.not_finite"]
    return bool(said["aggregation.rule"] or said["privacy.mechanism"]) if asked is None else asked == "leave_out"


def adversary(said: Mapping[str, Any]) -> Adversary | None:
    """Who attacks, and how; None: nobody does."""
    attack, fraction = said["adversary.attack"], said["adversary.fraction"]
    if (attack is None) != (fraction is None):
        found = f"adversary.attack={option_types.short(attack)}, adversary.fraction={fraction}"
        raise ValueError(f"{found}: give both, such as 'sign_flip' and 0.2, or none")
    if attack is None:
        return None
    found = attacks.find(attack, poisoning.POISONS)
    if any(one.function is attacks.not_finite for one in found) and not leaves_out(said):
        raise ValueError(
            f"adversary.attack={option_types.short(attack)} ends the run at once; set aggregation.not_finite='leave_out', or a rule"
        )
    return Adversary(found, fraction)


def rule(said: Mapping[str, Any]) -> tuple[Found, ...]:
    """The rule that takes the place of the mean, behind what stands before it; () for none."""
    return () if said["aggregation.rule"] is None else tuple(robust_aggregation.found(said["aggregation.rule"]))


def private(said: Mapping[str, Any], texts: bool, weights: str | None = None) -> tuple[Found | None, Privacy | None]:
    """The mechanism, and how much of it.

    Args:
      said: all fields by dotted name.
      texts: whether the data are texts, which are not normalised.
      weights: how the method weighs clients; None: it does not say.

    Raises:
      ValueError: something is missing, all of it in one message, or does not go together.
    """
    spec = said["privacy.mechanism"]
    if spec is None:
        return None, privacy_asked(said, None)
    if registry.IMPORT_PATH.fullmatch(registry.parse(spec, "privacy.mechanism")[0]):
        names = ", ".join(dp_mechanisms.MECHANISMS)
        raise ValueError(f"privacy.mechanism={spec!r}: only those whose privacy can be accounted for are allowed: {names}")
    found = registry.find("mechanism", spec, dp_mechanisms.MECHANISMS, given=dp_mechanisms.GIVEN, field="privacy.mechanism")
    if said["aggregation.rule"] not in (None, "mean") and not found.name.startswith("local"):
        raise ValueError(
            f"privacy.mechanism={spec!r} and aggregation.rule={said['aggregation.rule']!r} each say how uplinks become one, and of "
            "a rule's result nobody knows how far one client moves it; choose one of them"
        )
    own_scale = NORMALISATIONS.get(said["normalise"], ()) is None and not texts
    if lacking := missing_settings(said, found.name):
        others = [f"normalise={said['normalise']!r} changed to 'half' or 'unit'"] if own_scale else []
        others += ["method.weights='uniform', so that clients count alike"] if weights == "samples" else []
        raise ValueError(f"privacy.mechanism={spec!r} needs {'; '.join([*lacking, *others])}")
    if own_scale:
        names = ", ".join(repr(name) for name, scaling in NORMALISATIONS.items() if scaling is not None)
        raise ValueError(
            f"privacy.mechanism={spec!r} and normalise={said['normalise']!r}: mean and deviation of all clients' rows would come "
            f"without noise, which no epsilon is told of; set normalise to one of {names}"
        )
    return found, privacy_asked(said, found.name, found.options)
