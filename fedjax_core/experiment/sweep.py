"""Several runs, each in a directory of its own: those that differ in their seed and in numbers alone train together, in lanes.

What must be the same for all lanes of a program splits them by itself: settings that are no numbers, by the configs; numbers that a
method or an optimiser looks at in Python, or hands to what takes plain ones alone, by building it and tracing its programs.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine import aot
from fedjax_core.engine.client_loop import Plan
from fedjax_core.engine.vmapped_runs import Lanes, reason
from fedjax_core.experiment.build_model import drawn_by_seed
from fedjax_core.experiment.build_simulator import build
from fedjax_core.experiment.build_task import dataset
from fedjax_core.experiment.numbers import METHOD, OPTIMIZER, Differs, Values, by_lane
from fedjax_core.experiment.resolve_config import Config, check, complete_config, resolve
from fedjax_core.experiment.run_experiment import execute, recorded_noise, settings
from fedjax_core.run import Finished, Interrupted, Outcome, Stop, recorded_plan, run_in_lanes, steps
from fedjax_core.storage.json_files import plain

Say = Callable[[str], None]


class Recorded(NamedTuple):
    """What directories of runs have, and one program has in common for all its lanes.

    Attributes:
      noise: what run.json says of privacy, so that noise is not found anew; None: nothing.
      plan: how clients are mapped; None: `client_loop.choose`.
    """

    noise: Mapping[str, Any] | None = None
    plan: Plan | None = None


NEW = Recorded()


class Run(NamedTuple):
    """One of several.

    Attributes:
      config: see `configs/base.py`.
      workdir: a new directory, or one that holds this run.
      console: takes what is said; None: standard error.
      fresh: deletes what the directory holds of a run, and begins there.
    """

    config: Config
    workdir: str
    console: Say | None = None
    fresh: bool = False


def execute_all(
    runs: Sequence[Run], progress: bool | None = None, *, data: FederatedData | None = None, say: Say = lambda text: None
) -> list[Outcome]:
    """Runs configs in their directories, or resumes them there: `plan.lanes` of them at once, as far as one program can have them.

    Args:
      runs: in the order in which they begin.
      progress: see `execute`; where lanes have lines, each is told by its own console. Give False where bars of several would write
        over each other.
      data: in place of the configs', which they must be.
      say: is told what does not go in lanes, and why.

    Returns:
      As many outcomes, in their order: what `execute` returns or raises. After an interruption those that had not begun are
      interrupted, too.
    """
    runs = [one._replace(workdir=os.path.expanduser(one.workdir)) for one in runs]
    ended: dict[int, Outcome] = {}
    for found in _each(runs, progress, data, say):
        ended |= found
        if any(isinstance(one, Interrupted) or (isinstance(one, Finished) and one.stopped) for one in found.values()):
            break
    return [ended.get(i, Interrupted("before it began; the same command begins with it")) for i in range(len(runs))]


def _each(runs: Sequence[Run], progress: bool | None, data: FederatedData | None, say: Say) -> Iterator[dict[int, Outcome]]:
    """Outcomes by place, of one run after the other, or of the lanes of one program after those of another."""
    for each in alike([one.config for one in runs]):
        asked = each if len(each) > 1 else []
        wrong: dict[int, Outcome] = {i: error for i in asked if (error := _wrong(runs[i].config)) is not None}
        if wrong:
            yield wrong
        if not (each := [i for i in each if i not in wrong]):
            continue
        try:
            of_data = dataset(runs[each[0]].config) if data is None and len(each) > 1 else data
            recorded = _recorded(runs, each, of_data, say)
        except Exception as error:
            yield dict.fromkeys(each, error)
            continue
        for there, places in recorded:
            for some, lanes in _split([runs[i].config for i in places], of_data, say, there):
                mine = [places[i] for i in some]
                if isinstance(lanes, Exception):
                    yield dict.fromkeys(mine, lanes)
                elif lanes is not None:
                    yield dict(zip(mine, _in_lanes([runs[i] for i in mine], lanes, progress, there.noise), strict=True))
                else:
                    yield from ({i: _alone(runs[i], progress, of_data)} for i in mine)


def _wrong(config: Config) -> Exception | None:
    """What is wrong with a config: of lanes the first one's alone is built."""
    try:
        check(config)
    except Exception as error:
        return error
    return None


def _recorded(runs: Sequence[Run], places: list[int], data: FederatedData | None, say: Say) -> list[tuple[Recorded, list[int]]]:
    """Places of runs by what their directories have and they take up again; new ones go with some that have it."""
    if len(places) == 1:
        return [(NEW, places)]
    noises: dict[str, tuple[Mapping[str, Any] | None, list[int]]] = {}
    for i in places:
        noise = recorded_noise(runs[i].config, runs[i].workdir, runs[i].fresh)
        noises.setdefault(json.dumps(noise, sort_keys=True), (noise, []))[1].append(i)
    _, new = noises.pop("null", (None, []))
    groups = [(noise, sorted(mine + (new if n == 0 else []))) for n, (noise, mine) in enumerate(noises.values())] or [(None, new)]
    if len(groups) > 1:
        say(f"{len(places)} runs are {len(groups)} groups of lanes: their directories have other privacy")
    found = [(noise, plan, mine) for noise, each in groups for plan, mine in _by_plan(runs, each, data, say, noise).items()]
    return [(Recorded(noise, plan), mine) for noise, plan, mine in sorted(found, key=lambda one: one[2])]


def _by_plan(
    runs: Sequence[Run], places: list[int], data: FederatedData | None, say: Say, noise: Mapping[str, Any] | None
) -> dict[Plan | None, list[int]]:
    """Places of runs by the plan that their directories have; None: the one that is chosen now."""
    config = runs[places[0]].config
    if len(places) == 1 or resolve(config).has_plan:
        return {None: places}
    found: dict[Plan | None, list[int]] = {}
    for i in places:
        found.setdefault(recorded_plan(runs[i].workdir, complete_config(runs[i].config), runs[i].fresh), []).append(i)
    if None in found and len(found) > 1 and (now := build(config, data, noise=noise).plan) in found:
        found[None] = sorted(found[None] + found.pop(now))
    found = dict(sorted(found.items(), key=lambda one: one[1]))
    if len(found) > 1:
        plans = ", ".join("a new one" if plan is None else str(plan) for plan in found)
        say(f"{len(places)} runs are {len(found)} groups of lanes: their directories have other plans ({plans})")
    return found


def _alone(one: Run, progress: bool | None, data: FederatedData | None) -> Outcome:
    try:
        return execute(one.config, one.workdir, progress, data=data, console=one.console, fresh=one.fresh)
    except (Exception, Interrupted) as error:
        return error


def _in_lanes(runs: Sequence[Run], lanes: Lanes, progress: bool | None, noise: Mapping[str, Any] | None) -> list[Outcome]:
    going = []
    try:
        with Stop() as stop:
            for one, lane in zip(runs, lanes.each, strict=True):
                told = settings(one.config, lane, noise) | {"progress": progress, "console": one.console, "stop": stop}
                told["fresh"] = one.fresh
                going.append(steps(lane, one.workdir, complete_config(one.config), **told))
            return run_in_lanes(going, lanes)
    finally:
        lanes.release()


def alike(configs: Sequence[Config]) -> list[list[int]]:
    """Places of configs that differ in their seed and in numbers alone, in the order of the first of each; alone where
    `plan.lanes` does not say more than one."""
    found: dict[str, list[int]] = {}
    for i, config in enumerate(configs):
        found.setdefault(common(config) if lanes_of(config) > 1 else str(i), []).append(i)
    return list(found.values())


def lanes_of(config: Config) -> int:
    """How many lanes a config asks for."""
    return config.plan.get("lanes") or 1


def common(config: Config) -> str:
    """What lanes of one program must have in common, as far as configs tell."""
    fields = plain(config.to_dict())
    try:
        drawn = drawn_by_seed(resolve(config))
    except Exception:  # which `_wrong` reports
        drawn = False
    if not drawn:
        del fields["seed"]
    for field in _numbers(config):
        part, _, option = field.partition(".")
        fields[part][option] = "its own"
    return json.dumps(fields, sort_keys=True)


def _numbers(config: Config) -> dict[str, float]:
    """By dotted field, what a config has of numbers that lanes may have of their own."""
    parts = {METHOD: config.method, OPTIMIZER: config.optimizer}
    return {f"{part}{name}": value for part, of in parts.items() for name, value in of.items() if isinstance(value, float)}


def differing(configs: Sequence[Config]) -> Values:
    """The numbers in which configs that are `alike` differ."""
    each = [_numbers(config) for config in configs]
    values = {field: tuple(one[field] for one in each) for field in each[0]}
    return {field: found for field, found in values.items() if len(set(found)) > 1}


def _split(
    configs: Sequence[Config], data: FederatedData | None, say: Say, recorded: Recorded = NEW
) -> Iterator[tuple[list[int], Any]]:
    """(places of configs, their `Lanes`) of `alike` configs; None in place of lanes: one after the other; or why none can be.

    Args:
      configs: at least one.
      data: see `execute_all`.
      say: likewise.
      recorded: of all of them.
    """
    if len(configs) == 1:
        yield [0], None
        return
    most = lanes_of(configs[0])
    for group, lanes in _groups(configs, list(range(len(configs))), data, say, recorded):
        why = lanes if isinstance(lanes, str) else ""
        if why:
            say(f"plan.lanes={most}: runs go one after the other, for {why}")
        for begin in range(0, len(group), most):
            some = group[begin : begin + most]
            if len(some) == 1 or why:
                yield some, None
                continue
            if lanes is None or some != group:
                try:
                    lanes = _made([configs[i] for i in some], data, recorded)
                except Exception as error:
                    yield some, error
                    continue
            if isinstance(lanes, str):
                why = lanes
                say(f"plan.lanes={most}: runs go one after the other, for {why}")
            yield some, None if why else lanes


def _groups(
    configs: Sequence[Config], places: list[int], data: FederatedData | None, say: Say, recorded: Recorded
) -> Iterator[tuple[list[int], Any]]:
    """(places of what one program can have; its lanes, or why it has none, where that is known already)."""
    mine = [configs[i] for i in places]
    values = differing(mine)
    if len(places) == 1 or not values:
        yield places, None
        return
    try:
        tried = _tried(mine, data, values, recorded)
    except Differs as error:
        found, why = error.found, str(error)
    except Exception as error:
        bad = [field for field, each in values.items() if _fails(mine, data, {field: each}, recorded)] or list(values)
        found = tuple(zip(*(values[field] for field in bad), strict=True))
        why = f"{', '.join(bad)} must be plain: {' '.join(str(error).split())[:160]}"
    else:
        yield places, tried
        return
    groups: dict[Any, list[int]] = {}
    for place, label in zip(places, found, strict=True):
        groups.setdefault(label, []).append(place)
    say(f"{len(places)} runs that differ in {', '.join(values)} are {len(groups)} groups of lanes ({why})")
    for group in groups.values():
        yield from _groups(configs, group, data, say, recorded)


def _fails(configs: Sequence[Config], data: FederatedData | None, values: Values, recorded: Recorded) -> bool:
    try:
        _tried(configs, data, values, recorded)
    except Exception:
        return True
    return False


def _made(configs: Sequence[Config], data: FederatedData | None, recorded: Recorded, values: Values | None = None) -> Lanes | str:
    """Lanes of configs, with nothing on a device; or why they go one after the other."""
    values = differing(configs) if values is None else values
    made = build(configs[0], data, noise=recorded.noise, by_lane=by_lane(configs[0], values) if values else None)
    if recorded.plan is not None and recorded.plan != made.plan:
        made.use(recorded.plan)
    why = reason(made) or ("profile=True traces one" if configs[0].profile else "")
    return why or Lanes(made, len(configs), numbered=bool(values))


def _tried(configs: Sequence[Config], data: FederatedData | None, values: Values, recorded: Recorded) -> Lanes | str:
    """As `_made`, with programs that are traced: raises what that does."""
    lanes = _made(configs, data, recorded, values)
    if isinstance(lanes, Lanes):
        lanes.traced()
        for traced in aot.programs(lanes.each[0], (aot.START, aot.EVALUATION)).values():
            traced()
    return lanes
