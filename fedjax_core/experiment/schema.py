"""What the fields of a config may hold, beside the names that `asked` finds: `configs/base.py` says what each is for."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from ml_collections import ConfigDict

from fedjax_core import option_types
from fedjax_core.engine.client_sampling import SAMPLINGS
from fedjax_core.engine.sharding.data_placement import PLACES
from fedjax_core.engine.simulation_spec import SCOPES
from fedjax_core.option_types import AtLeastOne, BelowOne, Fraction, Part, PositiveFraction, Seed, one_of
from fedjax_core.privacy import ACCOUNTANTS
from fedjax_core.privacy.budget import ALONE
from fedjax_core.run import early_stopping
from fedjax_core.uplink import compression

Below = Annotated[float, option_types.Limit("in (0, 1)", lambda v: 0 < v < 1)]
Pixels = Annotated[int, option_types.Limit("in [1, 4096]", lambda v: 1 <= v <= 4096)]


def or_none(wanted: Any) -> Any:
    """The annotation, or None; type checkers know no `|` of an alias outside of annotations."""
    return wanted | None


FIELDS: dict[str, Any] = {
    "seed": Seed,
    "rounds": AtLeastOne,
    "dropout": BelowOne,
    "data.source": str,
    "data.dir": str | None,
    "data.size": or_none(Pixels),
    "data.examples": or_none(AtLeastOne),
    "data.clients": or_none(AtLeastOne),
    "data.partition": str,
    "data.seed": Seed,
    "data.long_tail": or_none(Annotated[float, option_types.Limit("at least 1", lambda v: v >= 1)]),
    "data.test_split": or_none(Annotated[str, one_of("proportional", "matched", "all", "partition")]),
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
    "optimizer.name": str,
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
            str, option_types.Limit("of the form 'test/global/accuracy >= 0.97'", lambda v: early_stopping.parse(v) is not None)
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
    "compression.downlink": or_none(Annotated[str, one_of(*compression.DOWN)]),
    "aggregation.rule": str | None,
    "aggregation.not_finite": or_none(Annotated[str, one_of("leave_out", "end")]),
    "cohort.sampling": or_none(Annotated[str, one_of(*SAMPLINGS)]),
    "privacy.mechanism": str | None,
    "privacy.clip": or_none(option_types.Positive),
    "privacy.noise": or_none(option_types.Positive),
    "privacy.epsilon": or_none(option_types.Positive),
    "privacy.delta": or_none(Below),
    "privacy.cohort": or_none(AtLeastOne),
    "privacy.population": or_none(AtLeastOne),
    "privacy.min_separation": or_none(AtLeastOne),
    "privacy.participations": or_none(AtLeastOne),
    "privacy.accountant": or_none(Annotated[str, one_of(*ACCOUNTANTS)]),
    "method.name": str,
}
MAY_LACK: dict[str, Any] = {
    "evaluation.scores": None,
    "callbacks": (),
    "loss": None,
    "plan.data": None,
    "plan.model": None,
    "plan.lanes": None,
    "data.validation": None,
    "data.unseen_clients": None,
    "evaluation.newcomer_updates": None,
    "evaluation.select": None,
    "evaluation.patience": None,
    "evaluation.until": None,
    "adversary.attack": None,
    "adversary.fraction": None,
    "compression.uplink": None,
    "compression.downlink": None,
    "aggregation.rule": None,
    "aggregation.not_finite": None,
    "cohort.sampling": None,
    **{f"privacy.{name}": None for name in ("mechanism", *ALONE)},
}  # in configs that were written before there was such a field
MAY_LACK_GROUPS = {field.partition(".")[0] for field in MAY_LACK if "." in field} - {
    field.partition(".")[0] for field in FIELDS if field not in MAY_LACK
}  # of which such configs have none


class Incomplete(ValueError):
    """What should be a config is none, or lacks fields."""


def check_complete(config: Any, name: str = "the config") -> None:
    """Raises Incomplete unless a config, which messages call by its name, has all fields that it may not lack."""
    begin = "begin with one that has all, such as configs.fedavg.get_config(), and change that"
    if config is None:
        raise Incomplete(f"{name} is None; get_config() must return a config")
    if not isinstance(config, ConfigDict):
        raise Incomplete(f"{name} is a {type(config).__name__}, it must be an ml_collections.ConfigDict; {begin}")
    missing = [field for field in FIELDS if field not in MAY_LACK and not _has(config, field)]
    if missing:
        more = f", nor {len(missing) - 1} others" if len(missing) > 1 else ""
        raise Incomplete(f"{name} has no field {missing[0]!r}{more}; {begin}")


def _has(config: Any, field: str) -> bool:
    """Whether a config has a field of this dotted name."""
    for name in field.split("."):
        if not isinstance(config, Mapping | ConfigDict) or name not in config:
            return False
        config = config[name]
    return True


def check(config: Any) -> dict[str, Any]:
    """All fields by dotted name, each of an allowed type and in its range.

    Raises:
      ValueError: one is not; the message has the field, its value and what is allowed. The config lacks a field (`Incomplete`).
    """
    check_complete(config)
    found = {}
    for field, wanted in FIELDS.items():
        *above, last = field.split(".")
        place = config
        for name in above:
            place = place.get(name, {}) if field in MAY_LACK else getattr(place, name)
        value = place.get(last, MAY_LACK[field]) if field in MAY_LACK else getattr(place, last)
        found[field] = option_types.check(field, value, wanted)
    return found
