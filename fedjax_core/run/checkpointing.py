"""What a run's directory says of earlier starts: taken up again, or refused. Process 0 reads; the others are told."""

import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_core import distributed
from fedjax_core.data import digest as contents
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine import client_loop
from fedjax_core.engine.simulator import Simulation, State
from fedjax_core.reporting import label_tables, reporter
from fedjax_core.storage import digests, renewal
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import CHECKPOINTS, CONFIG, DATA, RECORDED, RUN, WorkDir, compare_configs, differences

MAY_DIFFER = (
    "rounds",
    "plan",
    "checkpoint",
    "evaluation.every",
    "evaluation.batch",
    "evaluation.targets",
    "evaluation.last_k",
    "evaluation.patience",
    "evaluation.until",
    "profile",
    "callbacks",
)  # on resume
_HOLD = {"plan?": ({"hold?": (str, type(None))}, type(None))}  # of a config, what `same_hold` reads


def opened(directory: str | Path, config: Mapping[str, Any], fresh: bool = False) -> WorkDir:
    """The directory, by process 0 first; begun anew where `is_begun_anew`."""
    if jax.process_index() == 0:
        begin_anew = functools.partial(is_begun_anew, directory, config, fresh)
        workdir = WorkDir.open(directory, config, may_differ=MAY_DIFFER, should_begin_anew=begin_anew)
        distributed.wait("run directory")
        return workdir
    distributed.wait("run directory")
    return WorkDir.open(directory, config, may_differ=MAY_DIFFER)


def is_begun_anew(directory: str | os.PathLike, config: Mapping[str, Any], fresh: bool = False) -> bool:
    """Returns whether a run takes up nothing of what the directory holds.

    So it is where it was asked to begin anew (`fresh`); and where there is neither a checkpoint nor the summary of a run that is
    over, and the config is another one, or cannot be read.

    Raises:
      OSError: a file or folder of it cannot be read.
    """
    folder = Path(directory)
    if fresh or not (folder / CONFIG).exists():
        return True
    if not _is_free(folder):
        return False
    try:
        return bool(compare_configs(read_json(folder / CONFIG, dict), config, MAY_DIFFER)[1])
    except ValueError:
        return True


def _is_free(folder: Path) -> bool:
    """Returns whether nothing would be lost if another run began there."""
    if Checkpoints(folder / CHECKPOINTS).latest() is not None:
        return False
    if not (folder / reporter.SUMMARY).exists():
        return True
    try:
        return reporter.ENDED not in read_json(folder / reporter.SUMMARY, {"facts": dict})["facts"]
    except ValueError:
        return False


def take_up_records(simulation: Simulation, workdir: WorkDir, record: Mapping[str, Any]) -> None:
    """Compares data and settings with those of the directory. Where they are others, and nothing would be lost, it is begun anew.

    Raises:
      ValueError: the directory, or another process, has other data or settings.
    """
    now = digest_inputs(simulation)
    try:
        same_data(simulation, workdir, now)
        same_settings(workdir, record)
    except ValueError:
        if not distributed.said(_is_free(workdir.path)):
            raise
        workdir.begin_anew()
        same_data(simulation, workdir, now)
        same_settings(workdir, record)
    if _recorded(workdir, DATA) is None:  # it is new, or an earlier version began it
        workdir.record(DATA, now)


def same_data(simulation: Simulation, workdir: WorkDir, inputs: Mapping[str, Any]) -> None:
    """Raises ValueError if the directory, or another process, has other data; `inputs`: what `digest_inputs` gives."""
    data = simulation.data
    distributed.alike("the data", data.partition_hash)
    for digest in filter(None, (inputs["digest"], inputs.get("public"))):
        distributed.alike("the data", digest.removeprefix(contents.PREFIX))
    before, recorded = _recorded(workdir, "partition"), _recorded(workdir, DATA)
    if before is not None and before["hash"] != data.partition_hash:
        found, wanted = before["hash"][:12], data.partition_hash[:12]
        raise ValueError(f"{workdir.path} holds a run on other data: its partition hash is {found}, this one's {wanted}")
    check_inputs(workdir.path, recorded or {}, inputs)
    if before is None:
        _record_data(data, workdir)


def digest_inputs(simulation: Simulation) -> dict[str, Any]:
    """Returns what run.json says of a simulation's inputs and targets: a digest, of which large arrays a sample alone was read, and
    if there are public examples their digest.

    Raises:
      OSError: a file that holds rows cannot be read.
    """
    found, public = contents.digest_data(simulation.data), simulation.groups[0].task.public
    several = {"digest": found.digest, "sampled": found.sampled}
    if public:
        several["public"] = contents.digest_examples("public", public).digest
    return several


def check_inputs(directory: str | Path, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compares inputs and targets with those of a run.

    Args:
      directory: of the run, for the message.
      recorded: what its run.json says of them, as `digest_inputs` gives it.
      now: what there is; without "public" public examples are not compared.

    Raises:
      ValueError: they are others.
    """
    for field, what in (("digest", "inputs or targets"), ("public", "public examples")):
        pair = [of.get(field, "") for of in (recorded, now)]
        if all(digest.startswith(contents.PREFIX) for digest in pair) and pair[0] != pair[1]:
            found, wanted = (digest.removeprefix(contents.PREFIX)[:12] for digest in pair)
            raise ValueError(
                f"{directory} holds a run on other data: the digest of its {what} is {found}, this one's {wanted}; "
                "give the data back that it began with, or take another directory"
            )


def _record_data(data: FederatedData, workdir: WorkDir) -> None:
    """Writes down who has how much of what."""
    number = data.clients + (0 if data.unseen is None else len(data.unseen.ids))
    everybody = [(np.arange(data.clients), {"train": data.label_table, "test": data.test_label_table})]
    if data.unseen is not None:
        ids, tables = data.unseen.ids, {"train": data.unseen.label_table, "test": data.unseen.test_label_table}
        everybody = [(np.setdiff1d(np.arange(number), ids), everybody[0][1]), (ids, tables)]
        known = {"clients": ids.tolist()} if len(ids) <= label_tables.READABLE else {}
        known |= _names(data.unseen.names)
        workdir.record("unseen", known | label_tables.of_run(tables))
    if workdir.writer and number > label_tables.READABLE:
        label_tables.write(workdir.path, data.columns, everybody, data.names_of_all)
    mine = {"hash": data.partition_hash, "class_names": list(data.columns)} | _names(data.client_names)
    workdir.record("partition", mine | label_tables.of_run(everybody[0][1]))


def _names(names: Sequence[str]) -> dict[str, list[str]]:
    """What run.json has of clients' names."""
    return {"client_names": list(names)} if 0 < len(names) <= label_tables.READABLE else {}


def same_settings(workdir: WorkDir, record: Mapping[str, Any]) -> None:
    """Raises ValueError if the directory has recorded something else: what differs. Of long lists of whole numbers, such as
    attackers' ids, it has a digest; of earlier runs it may have the list, or a digest of other lists."""
    for name, value in record.items():
        before = _recorded(workdir, name)
        if before is None:
            workdir.record(name, _readable(value, int))
        elif other := differences({name: _readable(before)}, {name: _readable(_rounded(value, before))}):
            found = "; ".join(f"{field}: {text}" for field, text in other.items())
            raise ValueError(f"{workdir.path} holds a run with other {name} ({found}); take another directory")


def _rounded(value: Any, before: Any) -> Any:
    """With numbers from before in place of those that differ from them by rounding, as another machine's do."""
    if isinstance(value, Mapping) and isinstance(before, Mapping):
        return {key: _rounded(each, before.get(key)) for key, each in value.items()}
    return before if isinstance(value, float) and isinstance(before, float) and math.isclose(value, before) else value


def _readable(value: Any, of: type = object) -> Any:
    """A mapping whose long lists, of such entries, are their number and a digest; what else there is as it is."""
    if not isinstance(value, Mapping):
        return value
    lists = {key: each for key, each in value.items() if isinstance(each, list) and len(each) > label_tables.READABLE}
    long = {key: each for key, each in lists.items() if all(isinstance(one, of) for one in each)}
    short = {key: {"number": len(each), "digest": digests.of_bytes(json.dumps(each).encode())} for key, each in long.items()}
    return {**value, **short}


def _recorded(workdir: WorkDir, name: str) -> Any:
    """What process 0 reads; if it cannot, all raise."""
    read = lambda: workdir.recorded(name) if workdir.writer else None
    return distributed.said(distributed.all_or_none(f"read what {RUN} says of the {name}", read))


def _plan(recorded: Mapping[str, int]) -> client_loop.Plan:
    return client_loop.Plan(recorded["chunk"], recorded["devices"], recorded.get("model", 1))


def take_up_plan(simulation: Simulation, workdir: WorkDir, chosen: bool, reporter: reporter.Reporter) -> None:
    """Gives the simulation the plan that the directory has, unless the user has chosen one or there are too few devices. Several
    processes take up its chunk alone, and all their devices: the first of them might leave a process without one."""
    before = _recorded(workdir, "plan")
    if before is None:
        record_plan(simulation, workdir)
        return
    plan = _plan(before)
    several = jax.process_count() > 1
    if several and not chosen and plan != simulation.plan:
        now = simulation.plan
        now = client_loop.choose(simulation.places, chunk=plan.chunk, devices=now.devices, model=now.model)
        if now != simulation.plan:
            simulation.use(now)
    if plan == simulation.plan:
        return
    if chosen or several or plan.devices > jax.device_count():
        there = f"there are {jax.device_count()} devices"
        why = "as asked" if chosen else f"{there} of {jax.process_count()} processes" if several else there
        reporter.say(f"the client loop's plan was {plan}, it is {simulation.plan} now ({why}); results agree to rounding")
    else:
        simulation.use(plan)


def recorded_plan(directory: str | Path, config: Mapping[str, Any], fresh: bool = False) -> client_loop.Plan | None:
    """The plan that a run there would take up, unless the user has chosen one; None: there is none, or too few devices. What cannot
    be read has none: the run itself says so."""
    try:
        if is_begun_anew(directory, config, fresh):
            return None
        before = read_json(Path(directory) / RUN, RECORDED).get("plan")
    except (OSError, ValueError):
        return None
    if before is None or before["devices"] > jax.device_count():
        return None
    return _plan(before)


def record_plan(simulation: Simulation, workdir: WorkDir) -> None:
    """Writes down the plan, if it is a new one."""
    if workdir.writer and workdir.recorded("plan") != simulation.plan._asdict():
        workdir.record("plan", simulation.plan._asdict())


def record_placement(simulation: Simulation, workdir: WorkDir, reporter: reporter.Reporter) -> None:
    """Writes down where data and client states lie, and says so if data are not on the devices."""
    placed = simulation.placed
    workdir.record("placement", {"data": placed.where, "hold": simulation.hold})
    if placed.where != "device":
        whole = "; every round takes them all, so each device has them several times over" if simulation.population == 1 else ""
        where = f"rows of data are on the {placed.where} ({placed.why or 'as asked'})"
        reporter.say(f"{where}, and reach the devices round by round{whole}")


def restored(simulation: Simulation, checkpoints: Checkpoints, done: int) -> State:
    """The state of a simulation after the round `done`, from the checkpoint that `run` left.

    Raises:
      ValueError: it is not that of the simulation, or damaged, or a part of it has vanished.
      OSError: it cannot be read.
    """
    numbers = checkpoints.numbers_of_parts(done)
    touched = None if numbers is not None else checkpoints.record(done)["touched"]
    saved, record = checkpoints.restore(done, simulation.like(touched))
    state = simulation.restore(saved, lambda wanted: zip(numbers or (), checkpoints.parts(done, wanted), strict=True))
    if numbers is not None and (found := simulation.touched()) != (wanted := record.get("touched", found)):
        raise checkpoints.unusable(
            done, f"its parts have states of {sum(found)} clients, {sum(wanted)} were written: one is missing"
        )
    return state


def save(simulation: Simulation, checkpoints: Checkpoints, state: State, done: int, before: int) -> None:
    """Writes the checkpoint of the round `done`; of client states off the devices what changed since the one of the round `before`,
    and a share of the rest (`renewal.py`: how much at most). Of several processes each writes what it keeps.
    """
    kept = simulation.kept
    record: dict[str, Any] = {"touched": simulation.touched()}
    if kept is None:
        checkpoints.save(done, simulation.without_clients(state), record)
        return
    read = lambda: _parts_of(checkpoints, before) if checkpoints.writer else None
    earlier = distributed.said(distributed.all_or_none("read the checkpoint before this one", read))
    live = {} if earlier is None else kept.live()
    if earlier is None or not live.keys() <= set(earlier["numbers"]):
        again, record["paid"], at = None, 0, {}
    else:
        again, record["paid"] = renewal.renewed(live, kept.changed(), earlier["paid"], kept.most)
        at = {"after": before, "without": set(earlier["numbers"]) - (live.keys() - set(again))}
    pieces = kept.pieces(again)
    first = checkpoints.save(done, simulation.without_clients(state), record, kept.parts(pieces), **at)
    kept.saved(pieces, first)


def _parts_of(checkpoints: Checkpoints, done: int) -> dict[str, Any] | None:
    """The numbers of a checkpoint's parts, and what was paid for the oldest of them; None if there is none, or it has no parts."""
    numbers = checkpoints.numbers_of_parts(done)
    return None if numbers is None else {"numbers": numbers, "paid": checkpoints.record(done).get("paid", 0)}


def save_beside(simulation: Simulation, checkpoints: Checkpoints, state: State, done: int, of: Checkpoints) -> None:
    """Writes a checkpoint of the round `done` beside the one that there is in `of`. Client states off the devices are that one's
    files; they are written if there is none."""
    kept, record = simulation.kept, {"touched": simulation.touched()}
    if kept is None:
        checkpoints.save(done, simulation.without_clients(state), record)
        return
    read = lambda: of.numbers_of_parts(done) is not None if of.writer else None
    there = distributed.said(distributed.all_or_none("read the checkpoint of this round", read))
    parts = () if there else kept.parts(kept.pieces(None))
    checkpoints.save(done, simulation.without_clients(state), record, parts, done if there else None, of=of)


def same_hold(simulation: Simulation, directory: str | Path) -> None:
    """Raises ValueError if the run there keeps client states on the devices and this one does not, or the reverse: their
    checkpoints differ; or if its run.json or config.json has another form."""

    def read() -> str | None:
        if jax.process_index():
            return None
        files = {Path(directory) / RUN: RECORDED, Path(directory) / CONFIG: _HOLD}
        chose, config = [read_json(file, form) if file.exists() else {} for file, form in files.items()]
        return chose.get("placement", {}).get("hold") or (config.get("plan") or {}).get("hold")

    before = distributed.said(distributed.all_or_none(f"read {directory}", read))
    if before is not None and (before == "device") != (simulation.hold == "device"):
        raise ValueError(f"plan.hold={simulation.hold!r}: {directory} holds a run with plan.hold={before!r}; resume it with that")
