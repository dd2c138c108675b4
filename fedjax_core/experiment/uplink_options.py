"""Builds the transforms of uplinks that a config names."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_core import option_types, registry
from fedjax_core.data import poisoning
from fedjax_core.engine import client_sampling
from fedjax_core.experiment.lookup import NORMALISATIONS
from fedjax_core.privacy import INTEGER_SUMS, PrivacyConfig, PrivacyLedger, build_privacy_config, missing_settings
from fedjax_core.registry import ResolvedSpec
from fedjax_core.uplink import (
    UplinkTransform,
    attacks,
    compression,
    dp_matrix_mechanism,
    dp_mechanisms,
    order_transforms,
    robust_aggregation,
    secure_sum,
)
from fedjax_core.uplink.layout import LEAVE_OUT


class Adversary(NamedTuple):
    """The attack of a config."""

    attacks: list[ResolvedSpec]
    fraction: float

    def client_ids(self, population: int, seed: int) -> np.ndarray:
        """Returns the sorted ids of the attackers."""
        return attacks.draw_attackers(population, self.fraction, seed)


def parse_transforms(fields: Mapping[str, Any]) -> tuple[UplinkTransform, ...]:
    """Returns the config's compression and rule, in the order of a message."""
    parsers = {
        "compression.uplink": compression.parse_compressor,
        "compression.downlink": compression.compress_broadcast,
        "aggregation.rule": robust_aggregation.parse_rule,
    }
    return order_transforms([parse(fields[name]) for name, parse in parsers.items() if fields[name] is not None])


def should_leave_out(fields: Mapping[str, Any]) -> bool:
    """Returns whether clients with non-finite results are left out; by default, with a rule or privacy."""
    not_finite = fields["aggregation.not_finite"]
    is_secure_sum = _is_secure_sum(fields)
    if fields["privacy.level"] == "example" or is_secure_sum:
        if not_finite == "leave_out":
            why = (
                f"the noise of privacy.mechanism={fields['privacy.mechanism']!r} needs all clients of a round"
                if is_secure_sum
                else "it decides by exact losses who counts, which privacy.level='example' does not cover"
            )
            raise ValueError(f"{LEAVE_OUT}: {why}; what leaves a client is finite in any case: leave the field out")
        return False
    if not_finite is None:
        return bool(fields["aggregation.rule"] or fields["privacy.mechanism"])
    return not_finite == "leave_out"


def _is_secure_sum(fields: Mapping[str, Any]) -> bool:
    return str(fields["privacy.mechanism"]).partition("(")[0] in INTEGER_SUMS


def parse_adversary(fields: Mapping[str, Any]) -> Adversary | None:
    """Returns who attacks, and how; None without attack."""
    attack, fraction = fields["adversary.attack"], fields["adversary.fraction"]
    given = f"adversary.attack={option_types.shorten(attack)}"
    if (attack is None) != (fraction is None):
        raise ValueError(f"{given}, adversary.fraction={fraction}: set both, such as 'sign_flip' and 0.2, or neither")
    if attack is None:
        return None
    specs = attacks.find_attacks(attack, poisoning.POISONS)
    if any(spec.function is attacks.not_finite for spec in specs):
        field = "privacy.level" if fields["privacy.level"] == "example" else "privacy.mechanism"
        if field == "privacy.level" or _is_secure_sum(fields):
            what = f"{field}={fields[field]!r}"
            raise ValueError(f"{given} cannot be combined with {what}: a client that is not finite ends such a run")
        if not should_leave_out(fields):
            raise ValueError(f"{given} ends the run at once; set {LEAVE_OUT}")
    return Adversary(specs, fraction)


def build_attacks(
    adversary: Adversary | None, client_ids: Sequence[int] | np.ndarray
) -> tuple[list[poisoning.Poison], list[UplinkTransform]]:
    """Returns how attackers change their data, and how they change their uplinks."""
    poisons, triggers, transforms = [], [], []
    specs, crafted = [] if adversary is None else adversary.attacks, None
    for spec in specs:
        attack: Any = spec()
        if isinstance(attack, poisoning.Poison):
            poisons.append(attack)
            triggers += [spec.spec] if attack.trigger is not None else []
        elif any((callable(attack), isinstance(attack, attacks.Crafted))):
            transforms.append(attacks.make_attack(spec.name, attack, client_ids))
            crafted = spec if isinstance(attack, attacks.Crafted) else crafted
        else:
            expected = (
                "a function (array, key) -> array, a fedjax_core.uplink.attacks.Crafted or a fedjax_core.data.poisoning.Poison"
            )
            raise TypeError(f"attack {spec.name!r} must return {expected}, it returned {option_types.shorten(attack)}")
    if len(triggers) > 1:
        raise ValueError(f"adversary.attack has two backdoors, {' and '.join(triggers[:2])}; only one can be scored: give one")
    if crafted is not None and len(specs) > 1:
        other = next(spec for spec in specs if spec is not crafted)
        what = f"{crafted.spec} replaces all that an attacker sends, so {other.spec} has no effect"
        raise ValueError(f"adversary.attack: {what}; give one of them")
    return poisons, transforms


def find_rules(fields: Mapping[str, Any]) -> tuple[ResolvedSpec, ...]:
    """Returns the specifications of the rule and those before it; () without a rule."""
    text = fields["aggregation.rule"]
    return () if text is None else tuple(robust_aggregation.find_rules(text))


def parse_privacy(fields: Mapping[str, Any], texts: bool, weights: str | None) -> tuple[ResolvedSpec | None, PrivacyConfig | None]:
    """Returns the mechanism and its settings.

    Args:
      texts: whether the data are texts, which are not normalised.
      weights: how the method weights clients; None: unknown.

    Raises:
      ValueError: settings are missing, all named in one message, or exclude each other.
    """
    text = fields["privacy.mechanism"]
    if text is None:
        return None, build_privacy_config(fields, None)
    given = f"privacy.mechanism={text!r}"
    if registry.IMPORT_PATH.fullmatch(registry.parse_spec(text, "privacy.mechanism")[0]):
        names = ", ".join(dp_mechanisms.MECHANISMS)
        raise ValueError(f"{given}: only mechanisms with an accountant are allowed: {names}")
    spec = registry.resolve_spec("mechanism", text, dp_mechanisms.MECHANISMS, given=dp_mechanisms.GIVEN, field="privacy.mechanism")
    aggregation, normalise = fields["aggregation.rule"], fields["normalise"]
    is_central = not spec.name.startswith("local") and fields["privacy.level"] != "example"
    if aggregation not in (None, "mean") and is_central:
        raise ValueError(
            f"{given} and aggregation.rule={aggregation!r} each replace the mean of uplinks, and the result of a rule has no "
            "known sensitivity; choose one of them"
        )
    if spec.name in INTEGER_SUMS:
        _check_secure_sum(fields, given)
    scales_by_data = NORMALISATIONS.get(normalise, ()) is None and not texts
    if missing := missing_settings(fields, spec.name):
        missing += [f"normalise={normalise!r} changed to 'half' or 'unit'"] if scales_by_data else []
        counts_clients = weights == "samples" and fields["privacy.level"] != "example"
        missing += ["method.weights='uniform', so that clients count alike"] if counts_clients else []
        raise ValueError(f"{given} needs {'; '.join(missing)}")
    if scales_by_data:
        names = ", ".join(repr(name) for name, scaling in NORMALISATIONS.items() if scaling is not None)
        raise ValueError(
            f"{given} and normalise={normalise!r}: mean and deviation of all clients' examples would be used without "
            f"noise, and epsilon would not include them; set normalise to one of {names}"
        )
    return spec, build_privacy_config(fields, spec.name, spec.options)


def _check_secure_sum(fields: Mapping[str, Any], given: str) -> None:
    """Raises ValueError for settings by which a part of a cohort's noise is missing, or packed twice."""
    for field in ("dropout", "devices.availability", "devices.deadline", "devices.wait_for"):
        if fields[field]:
            raise ValueError(
                f"{given} and {field}={fields[field]!r}: the noise of clients that do not come back is missing in the sum"
            )
    if fields["compression.uplink"] is not None:
        raise ValueError(f"{given} has a code of its own, of so many bits a number; set compression.uplink to None")


def account_privacy(
    privacy: PrivacyConfig | None,
    cohort: int | float | None,
    population: int,
    sampling: str,
    calibrate: bool = True,
    recorded: Mapping[str, Any] | None = None,
    parameters: int = 1,
) -> PrivacyLedger | None:
    """Returns what rounds cost in privacy of clients; None without it.

    Args:
      calibrate, recorded, parameters: see `PrivacyConfig.make_ledger`.
    """
    if privacy is None or privacy.level == "example":
        return None
    sampler = client_sampling.make_sampler(sampling, cohort, population)
    # a sampler of one's own may leave places empty, by exact losses
    takes_all = sampler.size == population and type(sampler) in client_sampling.SAMPLERS.values()
    return privacy.make_ledger(sampler.size, population, sampler.accounting, calibrate, recorded, parameters, takes_all)


def build_mechanism(
    mechanism: ResolvedSpec | None, spent: PrivacyLedger | None, cohort_size: int, dropout: float
) -> list[UplinkTransform]:
    """Returns the transform that makes the noise; none without privacy.

    Sums are divided by the number of clients that are expected to return: dropouts are drawn, so it
    is as public as the cohort's size. Epsilon is computed as if nobody dropped out.
    """
    if mechanism is None or spent is None:
        return []
    real = spent.release.cohort if spent.release.sampling != "local" else cohort_size
    settings = spent.clip, spent.noise, cohort_size * (1 - dropout), real * (1 - dropout)
    if spent.release.arithmetic is not None:
        return [secure_sum.make_mechanism(spent.release.arithmetic._replace(multiplier=spent.noise))]
    if spent.strategy is not None:
        return [dp_matrix_mechanism.make_mechanism(*settings, spent.strategy)]
    return [mechanism.function(*settings, **mechanism.options)]
