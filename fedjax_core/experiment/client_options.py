"""Reads the fields of a config about settings of local training by client."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import optax

from fedjax_core import registry
from fedjax_core.algorithm import ClientSettings
from fedjax_core.devices.client_values import SETTINGS, draw_values, find_values
from fedjax_core.registry import ResolvedSpec
from fedjax_core.training import local_training, optimizers
from fedjax_core.training.adapters import ENTRY, AdapterConfig
from fedjax_core.training.client_ranks import with_client_ranks

SEND_MODELS = ("fedamp", "fedcac", "fedfomo")  # not their changes, which are 0 in what a client lacks
OF_EPOCHS = ("epochs", "steps", "seconds")  # each in place of the method's option `epochs`


class ClientOptions(NamedTuple):
    """The fields of a config about settings by client, and the method's own values.

    Attributes:
      specs: of the settings, by name: a distribution, or a number for all clients.
      epochs, batch: options of the method; None: it has no such option.
      lr: of the optimizer.
      rank: of the network's adapter; None: it has none.
      is_partial: whether clients stop early at a deadline.
    """

    specs: dict[str, ResolvedSpec | float]
    epochs: int | None
    batch: int | None
    lr: float | None
    rank: int | None
    is_partial: bool


def parse_clients(fields: Mapping[str, Any], method: ResolvedSpec, adapter: AdapterConfig | None) -> ClientOptions:
    """Returns the options of settings by client.

    Raises:
      ValueError, TypeError: a distribution or an option does not exist, a value is not allowed, the
        method or the optimizer has no such setting, or fields do not go together; the message names
        the field.
    """
    given = {name: fields[f"clients.{name}"] for name in SETTINGS if fields[f"clients.{name}"] is not None}
    specs = {name: find_values(name, value) for name, value in given.items()}
    takes, _ = registry.read_parameters(method.function)
    several = [f"clients.{name}={given[name]!r}" for name in OF_EPOCHS if name in given]
    if len(several) > 1:
        raise ValueError(f"{several[0]} and {several[1]}: a client has epochs, steps or seconds, one of them")
    for name, option in (*((name, "epochs") for name in OF_EPOCHS), ("batch", "batch")):
        if name in given and option not in takes:
            others = ", ".join(f"method.{other}" for other in takes if other.endswith(option))
            has = f"; it has {others}, which clients have in common" if others else ""
            raise ValueError(f"clients.{name}={given[name]!r}: method {method.name!r} has no option {option!r}{has}")
    if "batch" in given and fields["task"] != "classification":
        raise ValueError(f"clients.batch={given['batch']!r}: with task={fields['task']!r} a minibatch is an episode")
    if "lr" in given and "optimizer.lr" not in fields:
        raise ValueError(f"clients.lr={given['lr']!r} needs optimizer.lr, of which it is a multiple")
    if "rank" in given:
        _check_rank(given["rank"], fields, method, adapter)
    if "seconds" in given and fields["devices.profile"] is None:
        raise ValueError(f"clients.seconds={given['seconds']!r} needs devices.profile, by which clients take time")
    # of settings by client, privacy.level="example" refuses all but the learning rate
    if "seconds" in given and fields["privacy.mechanism"] is not None and fields["privacy.level"] != "example":
        mechanism = fields["privacy.mechanism"]
        raise ValueError(
            f"clients.seconds={given['seconds']!r} and privacy.mechanism={mechanism!r}: clients without time for a step do not "
            "come back, which epsilon is not computed for; clients.steps has no such clients"
        )
    is_partial = fields["devices.late"] == "partial"
    rank = None if adapter is None else adapter.rank
    return ClientOptions(specs, method.option("epochs"), method.option("batch"), fields.get("optimizer.lr"), rank, is_partial)


def _check_rank(rank: float | str, fields: Mapping[str, Any], method: ResolvedSpec, adapter: AdapterConfig | None) -> None:
    """Raises ValueError where clients cannot have ranks of their own."""
    given = f"clients.rank={rank!r}"
    if adapter is None:
        raise ValueError(f"{given} needs adapter, such as 'lora(rank=8)', of which clients train a part")
    if not isinstance(rank, str) and rank > adapter.rank:
        raise ValueError(f"{given} must be at most the rank of adapter={fields['adapter']!r}, {adapter.rank}")
    if method.origin == registry.BUILT_IN and method.name in SEND_MODELS:
        what = "whose clients send models: the server would mix zeros into what clients of smaller ranks lack"
        raise ValueError(f"{given} and method {method.name!r}, {what}")
    if method.origin == registry.BUILT_IN and method.name == "fedhpl" and ENTRY in (method.option("average") or ()):
        what = "the server would mix zeros into what clients of smaller ranks lack"
        raise ValueError(f"{given} and method.average={method.option('average')!r}: {what}; average other entries, such as 'head'")
    if fields["compression.uplink"] is not None:
        what = f"compression.uplink={fields['compression.uplink']!r}"
        raise ValueError(f"{given} and {what}: compressed uplinks have one size for all clients")
    if fields["aggregation.rule"] not in (None, "mean"):
        what = f"aggregation.rule={fields['aggregation.rule']!r}"
        raise ValueError(f"{given} and {what}: a rule takes the zeros in place of what clients lack for their changes; set 'mean'")
    if (fields["privacy.mechanism"] or "").startswith("local"):
        what = f"privacy.mechanism={fields['privacy.mechanism']!r}"
        raise ValueError(f"{given} and {what}: clients would send noise in place of what they lack; central mechanisms do not")


def with_client_rates(optimizer: local_training.Optimizer, options: ClientOptions) -> local_training.Optimizer:
    """Returns the optimizer, with a rate by client if the config has one."""
    if "lr" not in options.specs:
        return optimizer
    return lambda round_num: optax.chain(optimizer(round_num), optimizers.scale_by_client_rate())


def make_client_settings(options: ClientOptions, population: int, seed: int) -> tuple[ClientSettings | None, np.ndarray | None]:
    """Returns (settings by client, None without; [N] budgets of seconds, None without).

    Args:
      options: from `parse_clients`.
      population: N.
      seed: the data seed.

    Raises:
      ValueError, TypeError, OSError: as `draw_values`.
    """
    most = {"rank": options.rank}
    values: dict[str, Any] = {
        name: draw_values(spec, name, population, seed, most.get(name)) for name, spec in options.specs.items()
    }
    seconds = values.pop("seconds", None)
    if "batch" in values:
        assert options.batch is not None  # checked with the fields
        values["batch"] = np.append(values["batch"], np.int32(options.batch))
    if "lr" in values:
        values["rate"] = (values.pop("lr") / options.lr).astype(np.float32)
    return (ClientSettings(**values) if values else None), seconds


def bind_settings(make: Callable, options: ClientOptions, settings: ClientSettings | None, has_unseen: bool) -> Callable:
    """Returns a method (task -> Algorithm) whose options suit clients with settings of their own.

    Args:
      make: the method.
      options: from `parse_clients`.
      settings: by client.
      has_unseen: whether there are unseen clients, which have the method's settings.
    """
    changed: dict[str, Any] = {}
    if options.epochs is not None and (options.is_partial or not options.specs.keys().isdisjoint(OF_EPOCHS)):
        changed["epochs"] = local_training.EpochsByClient(options.epochs)
    if settings is not None and settings.batch is not None:
        changed["batch"] = int(np.max(settings.batch if has_unseen else settings.batch[:-1]))
    make = functools.partial(make, **changed) if changed else make
    if "rank" not in options.specs:
        return make
    assert options.rank is not None  # checked with the fields
    return with_client_ranks(make, options.rank)
