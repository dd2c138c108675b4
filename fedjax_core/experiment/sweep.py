"""Several runs, each in a directory of its own. Seeds of one config train together in one program,
if `plan.lanes` says so; all other runs go one after another."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine.client_loop import Plan
from fedjax_core.engine.divergence import Diverged
from fedjax_core.engine.vmapped_runs import VmappedSeeds, find_vmap_obstacle
from fedjax_core.experiment.build_model import has_random_frozen_arrays
from fedjax_core.experiment.build_simulator import build
from fedjax_core.experiment.build_task import dataset
from fedjax_core.experiment.resolve_config import check_config, complete_config, resolve
from fedjax_core.experiment.run_experiment import execute, make_run_settings, read_recorded_privacy
from fedjax_core.experiment.schema import Config
from fedjax_core.run import Finished, Interrupted, Outcome, read_recorded_plan, run_seeds
from fedjax_core.storage.json_files import to_json_values

Say = Callable[[str], None]


class Run(NamedTuple):
    """One of several runs.

    Attributes:
      workdir: a new directory, or one that holds this run.
      console: takes lines of text; None: standard error.
      fresh: deletes the run that the directory holds, and begins there.
      draws: see `execute`.
    """

    config: Config
    workdir: str
    console: Say | None = None
    fresh: bool = False
    draws: bool = True


class _Batch(NamedTuple):
    """Runs that train together.

    Attributes:
      noise: the privacy that their directories record; None: they record none.
      plan: the plan that their directories record; None: `client_loop.choose_plan`.
    """

    indices: list[int]
    noise: Mapping[str, Any] | None = None
    plan: Plan | None = None


def execute_all(
    runs: Sequence[Run],
    progress: bool | None = None,
    *,
    data: FederatedData | None = None,
    say: Say = lambda text: None,
) -> list[Outcome]:
    """Runs configs in their directories, or resumes them there.

    `plan.lanes` seeds of one config train at once, in one program. All else goes one after another.

    Args:
      progress: see `execute`. Give False where the bars of several runs would overwrite each other.
      data: the data of all configs, already read; None: they are read here.
      say: takes a line about runs that cannot train together, and why.

    Returns:
      An outcome of each run, in their order: what `execute` returns or raises. After an
      interruption, runs that had not begun are interrupted too.
    """
    runs = [run._replace(workdir=os.path.expanduser(run.workdir)) for run in runs]
    outcomes: dict[int, Outcome] = {}
    for new in _run_in_turn(runs, progress, data, say):
        outcomes |= new
        if any(map(_is_interrupted, new.values())):
            break
    not_begun = Interrupted("before it began; the same command begins with it")
    return [outcomes.get(i, not_begun) for i in range(len(runs))]


def _is_interrupted(outcome: Outcome) -> bool:
    return isinstance(outcome, Interrupted) or (isinstance(outcome, Finished) and outcome.stopped)


def _run_in_turn(runs: Sequence[Run], progress: bool | None, data: FederatedData | None, say: Say) -> Iterator[dict[int, Outcome]]:
    """Yields the outcomes, by index, of one run or of runs that trained together."""
    apart = [run for run in runs if seeds_at_once(run.config) > 1 and _draws_frozen_arrays(run.config)]
    if len(apart) > 1:
        lanes = seeds_at_once(apart[0].config)
        say(f"plan.lanes={lanes}: runs go one after another, because each seed draws the frozen parts of its network")
    for group in group_seeds([run.config for run in runs]):
        if len(group) == 1:
            yield {group[0]: _execute(runs[group[0]], progress, data)}
            continue
        errors: dict[int, Outcome] = {i: error for i in group if (error := _find_error(runs[i].config)) is not None}
        yield errors
        group = [i for i in group if i not in errors]
        try:
            group_data = dataset(runs[group[0]].config) if data is None and group else data
            batches = _split_by_record(runs, group, say)
        except Exception as error:
            _raise_if_others_wait(error)
            yield dict.fromkeys(group, error)
            continue
        for batch in batches:
            yield from _run_batch(runs, batch, progress, group_data, say)


def _find_error(config: Config) -> Exception | None:
    """Returns what is wrong with a config; of runs that train together only the first is built."""
    try:
        check_config(config)
    except Exception as error:
        _raise_if_others_wait(error)
        return error
    return None


def _split_by_record(runs: Sequence[Run], group: list[int], say: Say) -> list[_Batch]:
    """Returns batches of runs whose directories record the same privacy and plan. New runs join the first.

    Privacy may differ in its last digits, and plans by the memory that there was.
    """
    batches: dict[str, _Batch] = {}
    new: list[int] = []
    for i in group:
        run = runs[i]
        noise = read_recorded_privacy(run.config, run.workdir, run.fresh)
        plan = None if resolve(run.config).has_plan else read_recorded_plan(run.workdir, complete_config(run.config), run.fresh)
        if noise is None and plan is None:
            new.append(i)
        else:
            key = json.dumps([noise, plan], sort_keys=True)
            batches.setdefault(key, _Batch([], noise, plan)).indices.append(i)
    if len(batches) > 1:
        plans = ", ".join(str(batch.plan) for batch in batches.values())
        say(f"{len(group)} runs train in {len(batches)} programs: their directories have other plans or privacy ({plans})")
    first, *others = batches.values() or [_Batch([])]
    return [first._replace(indices=sorted(first.indices + new)), *others]


def _run_batch(
    runs: Sequence[Run], batch: _Batch, progress: bool | None, data: FederatedData | None, say: Say
) -> Iterator[dict[int, Outcome]]:
    """Runs a batch, at most `plan.lanes` at once. Yields outcomes by index."""
    most, why = seeds_at_once(runs[batch.indices[0]].config) if batch.indices else 1, ""
    for begin in range(0, len(batch.indices), most):
        indices = batch.indices[begin : begin + most]
        configs, vmapped = [runs[i].config for i in indices], None
        if len(indices) > 1 and not why:
            try:
                simulator = build(configs[0], data, noise=batch.noise)
                if batch.plan is not None and batch.plan != simulator.spec.plan:
                    simulator.use_plan(batch.plan)
            except Exception as error:
                _raise_if_others_wait(error)
                yield dict.fromkeys(indices, error)
                continue
            why = find_vmap_obstacle(simulator) or ("profile=True traces one" if configs[0].profile else "")
            if why:
                say(f"plan.lanes={most}: runs go one after another, because {why}")
            else:
                vmapped = VmappedSeeds(simulator, len(indices))
        if vmapped is None:
            yield from ({i: _execute(runs[i], progress, data)} for i in indices)
        else:
            together = [runs[i] for i in indices]
            outcomes = _run_together(together, vmapped, progress, batch.noise)
            yield dict(zip(indices, outcomes, strict=True))


def _execute(run: Run, progress: bool | None, data: FederatedData | None) -> Outcome:
    try:
        return execute(run.config, run.workdir, progress, data=data, console=run.console, fresh=run.fresh, draws=run.draws)
    except (Diverged, Interrupted) as error:  # all processes raise these together
        return error
    except Exception as error:
        _raise_if_others_wait(error)
        return error


def _raise_if_others_wait(error: Exception) -> None:
    """Raises an error of one of several processes: the others may wait for this one, which must not begin the next run."""
    if jax.process_count() > 1:
        raise error


def _run_together(
    runs: Sequence[Run], vmapped: VmappedSeeds, progress: bool | None, noise: Mapping[str, Any] | None
) -> list[Outcome]:
    seed_runs = []
    try:
        for run, replica in zip(runs, vmapped.replicas, strict=True):
            resolved = resolve(run.config)
            more = {"progress": progress, "console": run.console, "fresh": run.fresh, "draws": run.draws}
            seed_runs.append((replica, run.workdir, resolved.config, make_run_settings(resolved, replica, noise, **more)))
        return run_seeds(seed_runs, vmapped)
    finally:
        vmapped.release()


def group_seeds(configs: Sequence[Config]) -> list[list[int]]:
    """Groups configs that differ in their seed alone, if `plan.lanes` is more than one.

    Returns:
      Lists of indices, in the order of the first of each.
    """
    groups: dict[str, list[int]] = {}
    for i, config in enumerate(configs):
        key = _make_seedless_key(config) if seeds_at_once(config) > 1 else str(i)
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def seeds_at_once(config: Config) -> int:
    """Returns how many seeds of a config train at once."""
    return config.plan.get("lanes") or 1


def _make_seedless_key(config: Config) -> str:
    """Returns a key that seeds which share a program have in common."""
    fields = to_json_values(config.to_dict())
    if not _draws_frozen_arrays(config):
        del fields["seed"]
    return json.dumps(fields, sort_keys=True)


def _draws_frozen_arrays(config: Config) -> bool:
    """Returns whether frozen parts of a network depend on the seed."""
    try:
        return has_random_frozen_arrays(resolve(config))
    except Exception:  # which `check_config` reports for each run
        return False
