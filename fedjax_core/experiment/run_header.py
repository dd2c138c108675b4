"""The first lines of a run: what is trained on what, by whom and how, in short lines that fit a terminal."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import jax

from fedjax_core import registry
from fedjax_core.algorithm import PyTree
from fedjax_core.engine.simulation_spec import Group
from fedjax_core.engine.simulator import Simulation
from fedjax_core.experiment import config_warnings
from fedjax_core.experiment.method_registry import without_none
from fedjax_core.experiment.resolve_config import Asked
from fedjax_core.privacy import Spent

COLUMNS = 80
LABEL = 9  # columns of what stands before a line, as in the closing table
OF_TRAINING = ("epochs", "batch")  # options of methods that the line of training has


def opening_lines(
    asked: Asked, config: Any, simulation: Simulation, private: Spent | None = None, *, given_data: bool = False
) -> list[str]:
    """Returns what a run says first, of at most `COLUMNS` each.

    Args:
      asked: the config, resolved.
      config: the same, for the optimiser's options.
      simulation: made of it.
      private: what rounds cost in privacy; None: nothing.
      given_data: whether its data were given, so that the config does not say how they were divided.
    """
    said, data = asked.said, simulation.spec.data
    rows = f"{len(data.train.y):,} to train on, {len(data.test.y):,} to test on"
    shape = "x".join(map(str, getattr(data.train.x, "shape", ())[1:])) or "texts"
    of_kind = f"{data.classes} {simulation.spec.targets}"
    drawn = asked.cohort is not None and simulation.spec.cohort < simulation.spec.population
    who = f"{simulation.spec.cohort} in a round" if drawn else "all in every round"
    sampling = "" if asked.sampling == "fixed" else f", {asked.sampling} cohorts"
    divided = "" if given_data else f" by {said['data.partition']}"
    clients = (
        "1, which holds all data" if simulation.spec.population == 1 else f"{simulation.spec.population}{divided}, {who}{sampling}"
    )
    scored = f"{said['rounds']} rounds, scored every {said['evaluation.every']}"
    lines = {
        "method": _named(asked.method.spec, _options(asked)),
        "network": "; ".join(_network(group, simulation.spec.population) for group in simulation.spec.bound_groups) + _begun(asked),
        "data": f"{data.name}, rows of {shape}, {of_kind}: {rows}",
        "clients": clients,
        "training": ", ".join([_named(*_optimizer(config)), *_of_training(asked)]) + f"; {scored}",
        "devices": _devices(simulation),
        "attack": _attack(asked),
        "uplink": _uplink(asked),
        "noise": _noise(simulation, private),
        "scores": "; ".join(config_warnings.of_evaluation(asked)),
    }
    return [line for label, text in lines.items() if text for line in _wrapped(label, text)]


def _wrapped(label: str, text: str) -> list[str]:
    indent = " " * LABEL
    return textwrap.wrap(f"{label:{LABEL}}{text}", COLUMNS, subsequent_indent=indent, break_on_hyphens=False)


def _named(name: str, options: Mapping[str, Any]) -> str:
    given = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return f"{name} ({given})" if given else name


def _options(asked: Asked) -> dict[str, Any]:
    """Returns the method's options that the config gives, but for those of `OF_TRAINING`; where they are many, those alone that are
    not its defaults."""
    takes = registry.parameters(asked.method.function)[0]
    given = {key: value for key, value in asked.method.options.items() if key not in OF_TRAINING}
    if len(_named(asked.method.spec, _flat(given))) <= 2 * (COLUMNS - LABEL):
        return _flat(given)
    return _flat({key: value for key, value in given.items() if key not in takes or takes[key].default != value})


def _flat(options: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Returns options by dotted name, without what is not given, and of a part that is off that alone."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            off = value.get("on") is False
            found |= _flat({"on": False} if off else value, f"{above}{key}.")
        elif value is not None:
            found[f"{above}{key}"] = value
    return found


def _of_training(asked: Asked) -> list[str]:
    takes = registry.parameters(asked.method.function)[0]
    values = {name: asked.method.options.get(name, takes[name].default if name in takes else None) for name in OF_TRAINING}
    return [f"{name}={value}" for name, value in values.items() if value is not None]


def _optimizer(config: Any) -> tuple[str, dict[str, Any]]:
    options = without_none(config.optimizer.to_dict())
    return options.pop("name"), options


def _network(group: Group, population: int) -> str:
    """Returns a network's name, the number of its parameters, and whose it is where there are others."""
    trained, frozen = trained_parameters(group), _numbers(group.task.frozen)
    name = group.name.partition(": ")[2] or group.name
    parts = f"{trained:,} parameters" if not frozen else f"{trained:,} parameters trained beside {frozen:,} frozen"
    whose = f" of {len(group.clients)} clients" if len(group.clients) < population else ""
    return f"{name}{whose}: {parts}"


def trained_parameters(group: Group) -> int:
    """Returns how many numbers of a network are trained."""
    return _numbers(jax.eval_shape(group.task.model.init, jax.random.key(0)).params)


def _numbers(tree: PyTree) -> int:
    return sum(math.prod(getattr(leaf, "shape", ())) for leaf in jax.tree.leaves(tree))


def _begun(asked: Asked) -> str:
    said = {"from": asked.said["weights"], "adapter": asked.said["adapter"], "train": asked.said["train"]}
    found = {key: value for key, value in said.items() if value not in (None, "all")}
    return "".join(f"; {key} {value}" for key, value in found.items())


def _devices(simulation: Simulation) -> str:
    plan, first = simulation.spec.plan, simulation.spec.mesh.devices.flat[0]
    kind = getattr(first, "device_kind", first.platform)
    processes = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    held = f", {plan.model} of them hold a network together" if plan.model > 1 else ""
    clients = "1 client" if plan.chunk == 1 else f"{plan.chunk} clients"
    return f"{plan.devices} ({kind}){processes}{held}; {clients} at once{'' if plan.devices == 1 else ' on each'}"


def _attack(asked: Asked) -> str:
    if asked.adversary is None:
        return ""
    return f"{asked.said['adversary.attack']} by {100 * asked.adversary.fraction:g} % of the clients"


def _uplink(asked: Asked) -> str:
    """Returns what uplinks pass through beside attacks and privacy, which have lines of their own."""
    fields = {"rule": "aggregation.rule", "compressed by": "compression.uplink", "sent down as": "compression.downlink"}
    parts = [f"{word} {asked.said[field]}" for word, field in fields.items() if asked.said[field] is not None]
    left = ["who sends NaN is left out"] if asked.leave_out else []
    dropped = [f"{100 * asked.dropout:g} % of the cohort do not come back"] if asked.dropout else []
    return "; ".join([*parts, *left, *dropped])


def _noise(simulation: Simulation, private: Spent | None) -> str:
    """Returns a word where the noise of privacy is longer than the mean of clipped deltas can be, and what helps; else "".

    Noise that is correlated over rounds is left out: it cancels in their sum.
    """
    if private is None or private.strategy is not None:
        return ""
    numbers = max(trained_parameters(group) for group in simulation.spec.bound_groups)
    if private.release.sampling != "local":
        needed, ratio = noise_to_signal(private.noise, numbers, private.release.cohort)
        helps = f"privacy.cohort of {needed:,} or more clients (and a privacy.population to draw them from)"
    else:
        noise = private.noise * (math.sqrt(2) if private.release.noise == "laplace" else 1)
        needed, ratio = noise_to_signal(noise, numbers, simulation.spec.cohort, local=True)
        helps = f"cohorts of {needed:,} or more clients, or a central mechanism such as 'gaussian'"
    if ratio <= 1:
        return ""
    return f"a round's is {ratio:.3g} times as long as the mean of clipped deltas can be; {helps} or fewer parameters would help"


def noise_to_signal(noise: float, numbers: int, cohort: int, local: bool = False) -> tuple[int, float]:
    """Returns (the cohort with which both are as long; the length of a round's noise over that of the mean of clipped deltas).

    Args:
      noise: its deviation over the clip.
      numbers: D, of a delta.
      cohort: clients whose mean it is.
      local: whether each client has noise of its own; else their sum has it once.
    """
    length = noise * math.sqrt(numbers)
    return (math.ceil(length**2), length / math.sqrt(cohort)) if local else (math.ceil(length), length / cohort)
