"""Reads the fields of a config, and checks their types and ranges. `configs/base.py` documents each
field.

What a field names is found by `lookup.py`.
"""

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from ml_collections import ConfigDict

from fedjax_core import option_types
from fedjax_core.devices.client_values import SETTINGS
from fedjax_core.engine.sharding.data_placement import PLACES
from fedjax_core.engine.simulation_spec import SCOPES
from fedjax_core.option_types import AtLeastOne, BelowOne, Fraction, Part, People, PositiveFraction, Seed, one_of
from fedjax_core.privacy import ACCOUNTANTS, MAX_MULTIPLIER, budget
from fedjax_core.run import early_stopping
from fedjax_core.uplink import compression

Config = Any  # an ml_collections.ConfigDict as configs/base.py makes it; type checkers do not know its fields
Noise = Annotated[float, option_types.Limit(f"in (0, {MAX_MULTIPLIER:g}]", lambda v: 0 < v <= MAX_MULTIPLIER)]
Pixels = Annotated[int, option_types.Limit("in [1, 4096]", lambda v: 1 <= v <= 4096)]


def or_none(wanted: Any) -> Any:
    """Returns the annotation with None; outside of annotations type checkers know no `|` of an
    alias."""
    return wanted | None


FIELDS: dict[str, Any] = {
    "seed": Seed,
    "rounds": AtLeastOne,
    "dropout": BelowOne,
    "drop_last": bool | None,
    "data.source": str,
    "data.dir": str | None,
    "data.size": or_none(Pixels),
    "data.examples": or_none(AtLeastOne),
    "data.clients": or_none(AtLeastOne),
    "data.partition": str,
    "data.seed": Seed,
    "data.long_tail": or_none(option_types.FloatFromOne),
    "data.test_split": or_none(Annotated[str, one_of("proportional", "matched", "all", "partition", "merged")]),
    "data.test_examples": or_none(AtLeastOne),
    "data.validation": or_none(Part),
    "data.unseen_clients": or_none(Part),
    "task": str,
    "cohort.fraction": or_none(PositiveFraction),
    "cohort.size": or_none(AtLeastOne),
    "models": Sequence[str],
    "weights": str | Sequence[str | None] | None,
    "train": str,
    "adapter": str | None,
    "normalise": str,
    "public": str | None,
    "statistics": str,
    "augment": str | None,
    "loss": str | None,
    "regularizers": Sequence[str],
    "optimizer.name": str,
    "optimizer.sharpness": str | None,
    "evaluation.every": AtLeastOne,
    "evaluation.scopes": Sequence[Annotated[str, one_of(*SCOPES)]],
    "evaluation.batch": or_none(AtLeastOne),
    "evaluation.clients": or_none(AtLeastOne),
    "evaluation.newcomer_updates": or_none(AtLeastOne),
    "evaluation.last_k": AtLeastOne,
    "evaluation.select": str | None,
    "evaluation.patience": or_none(AtLeastOne),
    "evaluation.until": or_none(
        Annotated[
            str,
            option_types.Limit(
                "of the form 'test/global/accuracy >= 0.97'", lambda v: early_stopping.parse_target_score(v) is not None
            ),
        ]
    ),
    "evaluation.targets": Sequence[Fraction],
    "evaluation.scores": Sequence[str] | None,
    "plan.chunk": or_none(AtLeastOne),
    "plan.devices": or_none(AtLeastOne),
    "plan.model": or_none(AtLeastOne),
    "plan.lanes": or_none(AtLeastOne),
    "plan.data": or_none(Annotated[str, one_of(*PLACES)]),
    "plan.hold": Annotated[str, one_of(*PLACES)],
    "callbacks": Sequence[str],
    "profile": bool,
    "checkpoint.seconds": option_types.NonNegative,
    "checkpoint.keep": AtLeastOne,
    "adversary.attack": str | None,
    "adversary.fraction": or_none(PositiveFraction),
    "compression.uplink": str | None,
    "compression.downlink": or_none(Annotated[str, one_of(*compression.DOWNLINK_DTYPES)]),
    "aggregation.rule": str | None,
    "aggregation.not_finite": or_none(Annotated[str, one_of("leave_out", "end")]),
    "cohort.sampling": str | None,
    **{f"clients.{name}": or_none((AtLeastOne if is_int else option_types.Positive) | str) for name, is_int in SETTINGS.items()},
    "devices.profile": str | None,
    "devices.availability": str | None,
    "devices.deadline": or_none(option_types.Positive),
    "devices.late": or_none(Annotated[str, one_of("drop", "partial")]),
    "devices.wait_for": or_none(Part),
    "devices.server_seconds": or_none(option_types.NonNegative),
    "schedule": str | None,
    "privacy.mechanism": str | None,
    "privacy.level": or_none(Annotated[str, one_of(*budget.LEVELS)]),
    "privacy.clip": or_none(option_types.Positive),
    "privacy.noise": or_none(Noise),
    "privacy.epsilon": or_none(option_types.Positive),
    "privacy.delta": or_none(option_types.OpenFraction),
    "privacy.cohort": or_none(People),
    "privacy.population": or_none(People),
    "privacy.min_separation": or_none(AtLeastOne),
    "privacy.participations": or_none(AtLeastOne),
    "privacy.accountant": or_none(Annotated[str, one_of(*ACCOUNTANTS)]),
    "method.name": str,
}
DEFAULTS: dict[str, Any] = {  # of fields that an older config may lack
    **{f"evaluation.{name}": None for name in ("scores", "newcomer_updates", "select", "patience", "until")},
    "callbacks": (),
    "drop_last": None,
    "loss": None,
    "regularizers": (),
    "optimizer.sharpness": None,
    **{f"plan.{name}": None for name in ("data", "model", "lanes")},
    **{f"data.{name}": None for name in ("validation", "unseen_clients")},
    **{f"adversary.{name}": None for name in ("attack", "fraction")},
    **{f"compression.{name}": None for name in ("uplink", "downlink")},
    **{f"aggregation.{name}": None for name in ("rule", "not_finite")},
    "cohort.sampling": None,
    **{f"devices.{name}": None for name in ("profile", "availability", "deadline", "late", "wait_for", "server_seconds")},
    "schedule": None,
    **{f"clients.{name}": None for name in SETTINGS},
    **{f"privacy.{name}": None for name in ("mechanism", *budget.SETTINGS)},
}
OPTIONAL_GROUPS = {field.partition(".")[0] for field in DEFAULTS if "." in field} - {
    field.partition(".")[0] for field in FIELDS if field not in DEFAULTS
}  # groups that an older config may lack as a whole
TUPLES = {  # fields that hold several values, never one alone
    field
    for field, wanted in FIELDS.items()
    if any(get_origin(each) is Sequence for each in (wanted, *get_args(wanted)))
    and option_types.describe_mismatch("", wanted) is not None
}
WITH_OPTIONS = ("method", "optimizer")  # groups that hold options beside their fields
_GROUPS = {field.partition(".")[0] for field in FIELDS if "." in field}


class IncompleteConfig(ValueError):
    """An object that should be a config is none, or lacks fields."""


def check_complete(config: Any, name: str = "the config") -> None:
    """Checks that a config has all fields but those of `DEFAULTS`, and no unknown one."""
    advice = "begin with one that has all, such as configs.fedavg.get_config(), and change that"
    if config is None:
        raise IncompleteConfig(f"{name} is None; get_config() must return a config")
    if not isinstance(config, ConfigDict):
        raise IncompleteConfig(f"{name} is a {type(config).__name__}, it must be an ml_collections.ConfigDict; {advice}")
    if unknown := list_unknown_fields(config):
        hint = option_types.did_you_mean(unknown[0], [*FIELDS, *_GROUPS])
        raise ValueError(f"{name} sets {unknown[0]!r}, and there is no such field; fedjax-core list fields shows all.{hint}")
    missing = [field for field in FIELDS if field not in DEFAULTS and not has_field(config, field)]
    if missing:
        more = f", nor {len(missing) - 1} others" if len(missing) > 1 else ""
        raise IncompleteConfig(f"{name} has no field {missing[0]!r}{more}; {advice}")


def list_unknown_fields(config: Mapping[str, Any] | ConfigDict, above: str = "") -> list[str]:
    """Returns the dotted names of a config's fields that `FIELDS` does not have, outside of `WITH_OPTIONS`."""
    unknown = []
    for field, value in ((f"{above}{name}", config[name]) for name in config):
        if field in _GROUPS and isinstance(value, Mapping | ConfigDict):
            unknown += [] if field in WITH_OPTIONS else list_unknown_fields(value, f"{field}.")
        elif field not in FIELDS and field not in _GROUPS:
            unknown.append(field)
    return unknown


def has_field(config: Any, field: str) -> bool:
    """Returns whether a config has a field of this dotted name."""
    for name in field.split("."):
        if not isinstance(config, Mapping | ConfigDict) or name not in config:
            return False
        config = config[name]
    return True


def find_group(config: Any, field: str) -> tuple[Any, str]:
    """Returns the group of a config that holds a field, given by its dotted name, and the field's name in it."""
    *above, last = field.split(".")
    return functools.reduce(operator.getitem, above, config), last


def check_fraction_counts(config: Config, fraction: float | None) -> None:
    """Checks that no number of clients hides the fraction that a command line or a table sets."""
    if fraction is not None and (size := config.cohort.size) is not None:
        raise ValueError(f"cohort.fraction={fraction} has no effect beside cohort.size={size}; set cohort.size=None, too")


def read_fields(config: Config) -> dict[str, Any]:
    """Returns all fields of a config by dotted name, each of an allowed type and in its range.

    Options of the method and of the optimizer that are not None are fields too, such as
    "method.mu"; they are not checked here.

    Raises:
      ValueError: a field is not allowed; the message has its name, its value and what is allowed.
        Or there is no such field, or the config lacks one (`IncompleteConfig`).
    """
    check_complete(config)
    fields = {}
    for field, wanted in FIELDS.items():
        *above, last = field.split(".")
        group = config
        for name in above:
            group = group.get(name, {}) if field in DEFAULTS else getattr(group, name)
        value = group.get(last, DEFAULTS[field]) if field in DEFAULTS else getattr(group, last)
        fields[field] = option_types.check_value(field, value, wanted)
    for group in WITH_OPTIONS:
        fields |= {f"{group}.{name}": value for name, value in without_none(getattr(config, group).to_dict()).items()}
    return fields


def options_of(fields: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Returns the options of a group of `WITH_OPTIONS` by name: its fields but for those of `FIELDS`."""
    options = {field.removeprefix(f"{group}."): value for field, value in fields.items() if field.startswith(f"{group}.")}
    return {name: value for name, value in options.items() if f"{group}.{name}" not in FIELDS}


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
