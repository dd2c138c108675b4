"""Writes the first lines of a run: what is trained, on which data, by which clients and how. They
fit a terminal."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import jax

from fedjax_core import registry
from fedjax_core.algorithm import Net
from fedjax_core.engine.simulation_spec import Group
from fedjax_core.engine.simulator import Simulator
from fedjax_core.experiment import config_warnings
from fedjax_core.experiment.resolve_config import ResolvedConfig
from fedjax_core.experiment.schema import options_of, without_none
from fedjax_core.privacy import ExampleLedger, PrivacyLedger
from fedjax_core.storage.json_files import flatten
from fedjax_core.task import count_parameters

COLUMNS = 80
LABEL = 9  # columns of the label of a line, as in the closing table
TRAINING_OPTIONS = ("epochs", "batch")  # options of methods that the line "training" has


def opening_lines(
    resolved: ResolvedConfig,
    simulator: Simulator,
    private: PrivacyLedger | ExampleLedger | None = None,
    *,
    given_data: bool = False,
) -> list[str]:
    """Returns the first lines of a run, of at most `COLUMNS` characters each.

    Args:
      given_data: whether the data were given, so that the config does not say how they were
        divided.
    """
    fields, data = resolved.fields, simulator.spec.data
    sizes = f"{len(data.train.y):,} to train on, {len(data.test.y):,} to test on"
    shape = "x".join(map(str, getattr(data.train.x, "shape", ())[1:])) or "texts"
    targets = f"{data.classes} {simulator.spec.targets}"
    is_sampled = resolved.cohort is not None and simulator.spec.sampler.size < simulator.spec.population
    cohort = f"{simulator.spec.sampler.size} in a round" if is_sampled else "all in every round"
    if simulator.spec.asynchrony is not None:
        cohort = f"{simulator.spec.asynchrony.sampler.size} train at once, {simulator.spec.sampler.size} updates a round"
    sampling = "" if resolved.sampling == "fixed" else f", {resolved.sampling} cohorts"
    partition = "" if given_data else f" by {fields['data.partition']}"
    clients = f"{simulator.spec.population}{partition}, {cohort}{sampling}"
    scored = f"{resolved.run.rounds} rounds, scored every {resolved.run.eval_every}"
    training = [_with_options(fields["optimizer.name"], options_of(fields, "optimizer")), *_training_options(resolved)]
    training += [] if fields["optimizer.sharpness"] is None else [f"steps of {fields['optimizer.sharpness']}"]
    training += [f"with {spec}" for spec in fields["regularizers"]]
    training += ["full batches only"] if fields["drop_last"] else []
    lines = {
        "method": _with_options(resolved.method.spec, _method_options(resolved)),
        "network": "; ".join(_network(group, simulator.spec.population) for group in simulator.spec.bound_groups)
        + _weights(resolved),
        "data": f"{data.name}, {shape}, {targets}: {sizes}",
        "clients": "1, which holds all data" if simulator.spec.population == 1 else clients,
        "training": ", ".join(training) + f"; {scored}",
        "devices": _devices(simulator),
        "time": _time(resolved),
        "attack": _attack(resolved),
        "uplink": _uplink(resolved),
        "noise": _noise(simulator, private),
        "scores": "; ".join(config_warnings.check_evaluation(resolved, simulator.spec)),
    }
    return [line for label, text in lines.items() if text for line in _wrapped(label, text)]


def _wrapped(label: str, text: str) -> list[str]:
    indent = " " * LABEL
    return textwrap.wrap(f"{label:{LABEL}}{text}", COLUMNS, subsequent_indent=indent, break_on_hyphens=False)


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    return f"{name} ({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else name


def _method_options(resolved: ResolvedConfig) -> dict[str, Any]:
    """Returns the method's options that the config sets, but for `TRAINING_OPTIONS`; if they are
    many, only those that differ from the defaults."""
    takes = registry.read_parameters(resolved.method.function)[0]
    options = {key: value for key, value in resolved.method.options.items() if key not in TRAINING_OPTIONS}
    if len(_with_options(resolved.method.spec, _flatten(options))) > 2 * (COLUMNS - LABEL):
        options = {key: value for key, value in options.items() if key not in takes or takes[key].default != value}
    return _flatten(options)


def _flatten(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options by dotted name; of a group that is off only that it is."""
    is_off = {key: isinstance(value, Mapping) and value.get("on") is False for key, value in options.items()}
    flat = flatten({key: {"on": False} if is_off[key] else value for key, value in options.items()})
    return {key: value for key, value in flat.items() if value is not None and value != {}}


def _training_options(resolved: ResolvedConfig) -> list[str]:
    options = without_none({name: resolved.method.option(name) for name in TRAINING_OPTIONS})
    return [f"{name}={value}" for name, value in options.items()]


def _network(group: Group, population: int) -> str:
    """Returns a network's name, the number of its parameters, and how many clients have it where
    there are other networks."""
    trained, frozen = count_trained(group), count_frozen(group)
    name = group.name.partition(": ")[2] or group.name
    parts = f"{trained:,} parameters" if not frozen else f"{trained:,} parameters trained beside {frozen:,} frozen"
    clients = f" of {len(group.clients)} clients" if len(group.clients) < population else ""
    return f"{name}{clients}: {parts}"


def count_trained(group: Group) -> int:
    """Returns the number of trained parameters of a network."""
    return count_parameters(jax.eval_shape(group.task.model.init, jax.random.key(0)).params)


def count_frozen(group: Group) -> int:
    """Returns the number of a network's parameters that are not trained.

    Trained ones may be in `task.frozen`, too: there they are what training starts from.
    """
    if not isinstance(group.task.frozen, Net):
        return 0
    trained = jax.eval_shape(group.task.model.init, jax.random.key(0)).params
    return count_parameters({name: entry for name, entry in group.task.frozen.params.items() if name not in trained})


def _weights(resolved: ResolvedConfig) -> str:
    texts = {"from": resolved.fields["weights"], "adapter": resolved.fields["adapter"], "train": resolved.train}
    return "".join(f"; {key} {value}" for key, value in texts.items() if value not in (None, "all"))


def _devices(simulator: Simulator) -> str:
    plan, first = simulator.spec.plan, simulator.spec.mesh.devices.flat[0]
    kind = getattr(first, "device_kind", first.platform)
    processes = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    held = f", {plan.model} of them hold a network together" if plan.model > 1 else ""
    clients = "1 client" if plan.chunk == 1 else f"{plan.chunk} clients"
    return f"{plan.devices} ({kind}){processes}{held}; {clients} at once{'' if plan.devices == 1 else ' on each'}"


def _time(resolved: ResolvedConfig) -> str:
    """Returns the clients' devices, for whom the server waits, and settings by client."""
    options = resolved.client_devices
    own = [f"{name} of each client {getattr(spec, 'spec', spec)}" for name, spec in resolved.clients.specs.items()]
    parts = [] if resolved.schedule is None else [f"asynchronous by {resolved.fields['schedule']}"]
    if options is None:
        return "; ".join([*parts, *own])
    parts += [] if options.profile is None else [f"devices by {options.profile.spec}"]
    parts += [] if options.availability is None else [f"available by {options.availability.spec}"]
    if options.deadline is not None:
        late = ", until which late clients train" if options.late == "partial" else ""
        parts.append(f"deadline {options.deadline:g} s{late}")
    if options.wait_for is not None:
        share = f"{100 * options.wait_for:g} %" if options.wait_for < 1 else f"{options.wait_for}"
        parts.append(f"the first {share} of a cohort count")
    return "; ".join(parts + own)


def _attack(resolved: ResolvedConfig) -> str:
    if resolved.adversary is None:
        return ""
    return f"{resolved.fields['adversary.attack']} by {100 * resolved.adversary.fraction:g} % of the clients"


def _uplink(resolved: ResolvedConfig) -> str:
    """Returns the transforms of the uplink but for attacks and privacy, which have lines of their
    own."""
    fields = {"rule": "aggregation.rule", "compressed by": "compression.uplink", "sent down as": "compression.downlink"}
    parts = [f"{word} {resolved.fields[field]}" for word, field in fields.items() if resolved.fields[field] is not None]
    if resolved.leave_out:
        parts.append("clients that send NaN are left out")
    if resolved.dropout:
        parts.append(f"{100 * resolved.dropout:g} % of the cohort do not come back")
    return "; ".join(parts)


def _noise(simulator: Simulator, private: PrivacyLedger | ExampleLedger | None) -> str:
    """Returns a warning where the noise of privacy is longer than the mean of clipped deltas can
    be, with a remedy; else "".

    Noise that is correlated over rounds is not considered: it cancels in their sum.
    """
    if not isinstance(private, PrivacyLedger) or private.strategy is not None:
        return ""
    numbers = max(count_trained(group) for group in simulator.spec.bound_groups)
    if private.release.sampling != "local":
        needed, ratio = noise_to_signal(private.noise, numbers, private.release.cohort)
        field, more = (
            ("privacy.cohort", " (and a privacy.population to draw them from)") if private.arithmetic is None else ("a cohort", "")
        )
        helps = f"{field} of {needed:,} or more clients{more}"
    else:
        noise = private.noise * (math.sqrt(2) if private.release.noise == "laplace" else 1)
        needed, ratio = noise_to_signal(noise, numbers, simulator.spec.sampler.size, local=True)
        helps = f"cohorts of {needed:,} or more clients, or a central mechanism such as 'gaussian'"
    if ratio <= 1:
        return ""
    return f"a round's is {ratio:.3g} times as long as the mean of clipped deltas can be; {helps} or fewer parameters would help"


def noise_to_signal(noise: float, numbers: int, cohort: int, local: bool = False) -> tuple[int, float]:
    """Returns (the cohort with which both are as long; the length of a round's noise over that of
    the mean of clipped deltas).

    Args:
      noise: its deviation over the clip.
      numbers: D, of a delta.
      cohort: clients whose mean it is.
      local: whether each client has noise of its own; else their sum has it once.
    """
    length = noise * math.sqrt(numbers)
    return (math.ceil(length**2), length / math.sqrt(cohort)) if local else (math.ceil(length), length / cohort)
