"""What a run reads from its directory when it starts again, and the checkpoints that it writes.

Process 0 reads the directory and broadcasts the result.
"""

import functools
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_core import distributed
from fedjax_core.atomic_files import TEMPORARY, digest_bytes
from fedjax_core.data import digest as contents
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine import client_loop
from fedjax_core.engine.simulator import Simulator, State
from fedjax_core.reporting import label_tables
from fedjax_core.reporting import reporter as report
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.client_state_files import choose_parts_to_rewrite
from fedjax_core.storage.json_files import read_json, to_json_values
from fedjax_core.storage.workdir import (
    CHECKPOINTS,
    CONFIG,
    DATA,
    INCIDENTAL,
    RUN,
    RUN_SCHEMA,
    WorkDir,
    compare_configs,
    diff_configs,
)

MAY_DIFFER = (  # fields of a config that a resumed run may change
    *(*INCIDENTAL, "rounds"),
    *(f"evaluation.{field}" for field in ("every", "batch", "patience", "until")),
)
SHARING_SECONDS = 5.0  # until a file that process 0 has made must be seen by the others
_HOLD_SCHEMA = {"plan?": ({"hold?": (str, type(None))}, type(None))}  # of config.json, for `check_same_hold`


def open_workdir(directory: str | Path, config: Mapping[str, Any], fresh: bool) -> WorkDir:
    """Opens the directory, by process 0 first; begins it anew where `starts_afresh`."""
    should_restart = functools.partial(starts_afresh, directory, config, fresh)
    open_here = lambda: WorkDir.open(directory, config, may_differ=MAY_DIFFER, should_restart=should_restart)
    if jax.process_count() == 1:
        return open_here()
    is_first = jax.process_index() == 0
    workdir = distributed.all_or_none("open the run directory", lambda: open_here() if is_first else None)
    try:
        _check_shared(Path(directory), is_first)
        return open_here() if workdir is None else workdir
    except BaseException:
        if workdir is not None:
            workdir.close()
        raise


def _check_shared(directory: Path, is_first: bool) -> None:
    """Raises ValueError in all processes if one does not see the directory of process 0, which has opened it: it could not
    resume there, nor write its client states."""
    mark = directory / distributed.broadcast_from_process_0(f"{TEMPORARY}{secrets.token_hex(8)}")
    distributed.all_or_none("write to the run directory", mark.touch if is_first else lambda: None)
    end = time.monotonic() + SHARING_SECONDS
    while not (is_seen := mark.exists()) and time.monotonic() < end:
        time.sleep(0.1)
    others = np.flatnonzero(distributed.allgather([not is_seen]))
    if is_first:
        mark.unlink(missing_ok=True)
    if len(others):
        raise ValueError(
            f"{directory} of process {others[0]} is not that of process 0; all processes need the same work directory, "
            "on a file system that they share"
        )


def starts_afresh(directory: str | os.PathLike, config: Mapping[str, Any], fresh: bool = False) -> bool:
    """Returns whether a run starts from nothing rather than from the directory.

    It does so if `fresh`; if there is no run; and if the run has neither a checkpoint nor a
    finished summary, and its config is unreadable or differs from `config`.
    """
    folder = Path(directory)
    if fresh or not (folder / CONFIG).exists():
        return True
    if not _is_disposable(folder):
        return False
    try:
        return bool(compare_configs(read_json(folder / CONFIG, dict), config, MAY_DIFFER)[1])
    except ValueError:
        return True


def count_finished_rounds(directory: str | os.PathLike) -> int | None:
    """Returns the rounds of a directory's run if it is over, as far as its summary tells."""
    try:
        ended = _read_finished(Path(directory), {"rounds": int})
    except ValueError:
        return None
    return None if ended is None else ended["rounds"]


def _read_finished(folder: Path, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Reads the summary of a run that is over, with such fields; None if there is none. ValueError: it is damaged."""
    summary = folder / report.SUMMARY
    if not summary.exists():
        return None
    ended = read_json(summary, {"facts": dict, **fields})
    return ended if report.ENDED in ended["facts"] else None


def _is_disposable(folder: Path) -> bool:
    """Returns whether another run may start in a directory without losing a result."""
    if Checkpoints(folder / CHECKPOINTS).latest() is not None:
        return False
    try:
        return _read_finished(folder, {}) is None
    except ValueError:
        return False


def check_processes(what: str, values: Mapping[str, Any]) -> None:
    """Compares values with those of process 0: processes with others would train another method, or wait for each other.

    Args:
      what: for the message, such as "config".
      values: by name.

    Raises:
      ValueError: in all processes, if one has other values, but for rounding; its own message names them.
    """
    if jax.process_count() == 1:
        return
    first = distributed.broadcast_from_process_0(to_json_values(values))
    differences = diff_configs(first, _ignore_rounding(values, first), ("in process 0", "here"))
    if len(others := np.flatnonzero(distributed.allgather([bool(differences)]))):
        other = jax.process_index() if differences else others[0]
        listed = "; ".join(f"{field}: {text}" for field, text in differences.items()) or "its own message says which"
        raise ValueError(
            f"the {what} of process {other} has other values than that of process 0 ({listed}); all processes need the same config "
            "and files"
        )


def check_records(simulator: Simulator, workdir: WorkDir, record: Mapping[str, Any]) -> None:
    """Compares data and settings with the directory's. If they differ and nothing would be lost,
    the run starts from nothing.

    Raises:
      ValueError: the directory, or another process, has other data or settings.
    """
    check_processes("run", record)
    inputs = digest_inputs(simulator)
    try:
        _check_data(simulator, workdir, inputs)
        check_settings(workdir, record)
    except ValueError:
        if not distributed.broadcast_from_process_0(_is_disposable(workdir.path)):
            raise
        workdir.restart()
        _check_data(simulator, workdir, inputs)
        check_settings(workdir, record)
    if _read_record(workdir, DATA) is None:  # a new run, or one of an earlier version
        workdir.record(DATA, inputs)


def _check_data(simulator: Simulator, workdir: WorkDir, inputs: Mapping[str, Any]) -> None:
    """Raises ValueError if the directory, or another process, has other data; `inputs`: from
    `digest_inputs`.
    """
    data = simulator.spec.data
    distributed.assert_equal_across_processes("the data", data.partition_hash)
    for digest in filter(None, (inputs["digest"], inputs.get("public"))):
        distributed.assert_equal_across_processes("the data", digest.removeprefix(contents.PREFIX))
    recorded = _read_record(workdir, "partition")
    check_partition(workdir.path, recorded, data.partition_hash)
    check_inputs(workdir.path, _read_record(workdir, DATA) or {}, inputs)
    if recorded is None:
        _record_data(data, workdir)


def digest_inputs(simulator: Simulator) -> dict[str, Any]:
    """Returns the digests of inputs, targets and public examples for run.json; of large arrays a
    sample is read.
    """
    data, public = contents.digest_data(simulator.spec.data), simulator.spec.bound_groups[0].task.public
    digests = {"digest": data.digest, "sampled": data.sampled}
    return digests | ({"public": contents.digest_examples("public", public).digest} if public else {})


def check_inputs(directory: str | Path, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises ValueError if the digests of inputs and targets are not those of a run.

    Args:
      recorded: from its run.json.
      now: from `digest_inputs`; public examples are compared if both have them.
    """
    for field, what in (("digest", "inputs or targets"), ("public", "public examples")):
        digests = [entry.get(field, "") for entry in (recorded, now)]
        if all(digest.startswith(contents.PREFIX) for digest in digests) and digests[0] != digests[1]:
            old, new = (digest.removeprefix(contents.PREFIX)[:12] for digest in digests)
            raise ValueError(
                f"{directory} holds a run on other data: the digest of its {what} is {old}, this one's {new}; "
                "give the data back that it began with, or take another directory"
            )


def check_partition(directory: str | Path, recorded: Mapping[str, Any] | None, now: str) -> None:
    """Raises ValueError if the hash of the partition is not that of a run, whose run.json may have none."""
    if recorded is not None and recorded["hash"] != now:
        old, new = recorded["hash"][:12], now[:12]
        raise ValueError(f"{directory} holds a run on other data: its partition hash is {old}, this one's {new}")


def _record_data(data: FederatedData, workdir: WorkDir) -> None:
    """Records the label tables of clients."""
    total = data.clients + (0 if data.unseen is None else len(data.unseen.ids))
    tables = [(np.arange(data.clients), {"train": data.label_table, "test": data.test_label_table})]
    if data.unseen is not None:
        ids = data.unseen.ids
        unseen = {"train": data.unseen.label_table, "test": data.unseen.test_label_table}
        others = np.setdiff1d(np.arange(total), ids)
        is_pooled = len(others) != data.clients  # one client stands for the others
        tables = [(tables[0][0] if is_pooled else others, tables[0][1]), (ids, unseen)]
        entry = {"clients": ids.tolist()} if len(ids) <= label_tables.READABLE else {}
        workdir.record("unseen", entry | _short_names(data.unseen.names) | label_tables.summarize_tables(unseen))
    if workdir.writer and total > label_tables.READABLE:
        label_tables.write_label_table(workdir.path, data.columns, tables, data.names_of_all)
    entry = {"hash": data.partition_hash, "class_names": list(data.columns)} | _short_names(data.client_names)
    workdir.record("partition", entry | label_tables.summarize_tables(tables[0][1]))


def _short_names(names: Sequence[str]) -> dict[str, list[str]]:
    """Returns the entry of run.json with clients' names, if they are few."""
    return {"client_names": list(names)} if 0 < len(names) <= label_tables.READABLE else {}


def check_settings(workdir: WorkDir, settings: Mapping[str, Any]) -> None:
    """Raises ValueError if settings are not those in run.json; records those that are missing.

    Long lists of ints, such as attackers' ids, are recorded as a digest. Runs of earlier versions
    may have the list, or a digest of other lists.
    """
    for name, value in settings.items():
        recorded = _read_record(workdir, name)
        if recorded is None:
            workdir.record(name, _shorten_lists(value, int))
            continue
        old, new = _shorten_lists(recorded), _shorten_lists(_ignore_rounding(value, recorded))
        if differences := diff_configs({name: old}, {name: new}):
            listed = "; ".join(f"{field}: {text}" for field, text in differences.items())
            raise ValueError(f"{workdir.path} holds a run with other {name} ({listed}); take another directory")


def _ignore_rounding(value: Any, recorded: Any) -> Any:
    """Returns a value with recorded floats in place of those that differ by rounding, as on another
    machine.
    """
    if isinstance(value, Mapping) and isinstance(recorded, Mapping):
        return {key: _ignore_rounding(child, recorded.get(key)) for key, child in value.items()}
    is_close = isinstance(value, float) and isinstance(recorded, float) and math.isclose(value, recorded)
    return recorded if is_close else value


def _shorten_lists(value: Any, kind: type = object) -> Any:
    """Returns a mapping with long lists of one type replaced by their length and a digest; other
    values unchanged.
    """
    if not isinstance(value, Mapping):
        return value

    def shorten(child: Any) -> Any:
        is_long = isinstance(child, list) and len(child) > label_tables.READABLE
        if not is_long or not all(isinstance(item, kind) for item in child):
            return child
        return {"number": len(child), "digest": digest_bytes(json.dumps(child).encode())}

    return {key: shorten(child) for key, child in value.items()}


def _read_record(workdir: WorkDir, name: str) -> Any:
    """Returns a record of run.json, read by process 0."""
    return _read_in_process_0(f"read what {RUN} says of the {name}", lambda: workdir.get_record(name))


def _read_in_process_0(what: str, read: Callable[[], Any]) -> Any:
    """Returns the JSON value that `read` gives in process 0; if it fails there, all processes raise.

    Args:
      what: for the others' message, such as "read run.json".
    """
    read_here = lambda: read() if jax.process_index() == 0 else None
    return distributed.broadcast_from_process_0(distributed.all_or_none(what, read_here))


def _plan(recorded: Mapping[str, int]) -> client_loop.Plan:
    return client_loop.Plan(recorded["chunk"], recorded["devices"], recorded.get("model", 1))


def restore_plan(simulator: Simulator, workdir: WorkDir, is_chosen: bool, reporter: report.Reporter) -> None:
    """Applies the directory's plan, unless the user has chosen one or there are too few devices.

    Several processes apply its chunk only and use all their devices: the first of these might leave
    a process without one.
    """
    recorded = _read_record(workdir, "plan")
    if recorded is None:
        record_plan(simulator, workdir)
        return
    plan, current, processes = _plan(recorded), simulator.spec.plan, jax.process_count()
    if plan == current:
        return
    if is_chosen:
        why = "as asked"
    elif processes > 1:
        slots = simulator.spec.sampler.slots
        adapted = client_loop.choose_plan(slots, chunk=plan.chunk, devices=current.devices, model=current.model)
        if adapted != current:
            simulator.use_plan(adapted)
        why = f"there are {jax.device_count()} devices of {processes} processes"
    elif plan.devices > jax.device_count():
        why = f"there are {jax.device_count()} devices"
    else:
        simulator.use_plan(plan)
        return
    if plan != simulator.spec.plan:
        reporter.say(f"the client loop's plan was {plan}, it is {simulator.spec.plan} now ({why}); results agree to rounding")


def read_recorded_plan(directory: str | Path, config: Mapping[str, Any], fresh: bool = False) -> client_loop.Plan | None:
    """Returns the plan that a run in a directory would resume with, unless the user chooses one.

    None if there is none, it needs more devices, or it cannot be read: the run itself reports that.
    """
    try:
        if starts_afresh(directory, config, fresh):
            return None
        recorded = read_json(Path(directory) / RUN, RUN_SCHEMA).get("plan")
    except (OSError, ValueError):
        return None
    return None if recorded is None or recorded["devices"] > jax.device_count() else _plan(recorded)


def record_plan(simulator: Simulator, workdir: WorkDir) -> None:
    """Records the plan if it has changed."""
    if workdir.writer and workdir.get_record("plan") != simulator.spec.plan._asdict():
        workdir.record("plan", simulator.spec.plan._asdict())


def record_placement(simulator: Simulator, workdir: WorkDir, reporter: report.Reporter) -> None:
    """Records where data and client states are stored, and reports data that are not on the
    devices.
    """
    placement = simulator.spec.placement
    workdir.record("placement", {"data": placement.where, "hold": simulator.spec.hold})
    if placement.where != "device":
        several = "; every round takes them all, so each device has them several times over"
        reporter.say(
            f"examples are on the {placement.where} ({placement.why or 'as asked'}), and reach the devices round by round"
            + (several if simulator.spec.population == 1 else "")
        )


def restore_state(simulator: Simulator, checkpoints: Checkpoints, done: int) -> State:
    """Returns the state of a simulation after round `done`, from the checkpoint of its run.

    Raises:
      ValueError: the checkpoint does not match the simulation, is damaged, or lacks a part.
      OSError: it cannot be read.
    """
    numbers = checkpoints.part_numbers(done)
    saved, record = checkpoints.restore(done, simulator.abstract_snapshot())
    state = simulator.from_host(saved, lambda wanted: zip(numbers or (), checkpoints.read_parts(done, wanted), strict=True))
    if (actual := _count_touched(simulator)) != (expected := record.get("touched", actual)):
        reason = f"its parts have states of {sum(actual)} clients, {sum(expected)} were written: one is missing"
        raise checkpoints.unusable_error(done, reason)
    return state


def _count_touched(simulator: Simulator) -> list[int]:
    """Returns the number of offloaded client states per group; [] if they are on the devices."""
    offloaded = simulator.offloaded_states
    return [] if offloaded is None else offloaded.touched_counts()


def save_checkpoint(simulator: Simulator, checkpoints: Checkpoints, state: State, done: int, before: int) -> None:
    """Writes the checkpoint of round `done`.

    Of client states off the devices it writes those that changed since the checkpoint of round
    `before`, and rewrites some others (`choose_parts_to_rewrite`). With several processes each
    writes the states that it holds.
    """
    offloaded = simulator.offloaded_states
    record: dict[str, Any] = {"touched": _count_touched(simulator)}
    if offloaded is None:
        checkpoints.save(done, simulator.to_host(state), record)
        return
    earlier = _read_in_process_0("read the checkpoint before this one", lambda: _read_parts_record(checkpoints, before))
    live = {} if earlier is None else offloaded.live_bytes()
    rewritten, record["paid"], linked = None, 0, {}  # everything is written
    if earlier is not None and live.keys() <= set(earlier["numbers"]):
        rewritten, record["paid"] = choose_parts_to_rewrite(
            live, offloaded.changed_bytes(), earlier["paid"], offloaded.max_part_bytes
        )
        dropped = set(earlier["numbers"]) - (live.keys() - set(rewritten))
        linked = {"earlier_round": before, "dropped": dropped}
    parts = offloaded.plan_parts(rewritten)
    first = checkpoints.save(done, simulator.to_host(state), record, offloaded.read_parts(parts), **linked)
    offloaded.mark_saved(parts, first)


def _read_parts_record(checkpoints: Checkpoints, done: int) -> dict[str, Any] | None:
    """Returns the numbers of a checkpoint's parts and what was paid for the oldest; None if it has
    no parts.
    """
    numbers = checkpoints.part_numbers(done)
    return None if numbers is None else {"numbers": numbers, "paid": checkpoints.read_record(done).get("paid", 0)}


def save_selected(simulator: Simulator, checkpoints: Checkpoints, state: State, done: int, of: Checkpoints) -> None:
    """Writes a checkpoint of round `done`, with links to the client states of that round's
    checkpoint in `of`, if there is one.
    """
    offloaded, record = simulator.offloaded_states, {"touched": _count_touched(simulator)}
    if offloaded is None:
        checkpoints.save(done, simulator.to_host(state), record)
        return
    is_saved = _read_in_process_0("read the checkpoint of this round", lambda: of.part_numbers(done) is not None)
    parts = () if is_saved else offloaded.read_parts(offloaded.plan_parts(None))
    earlier_round = done if is_saved else None
    checkpoints.save(done, simulator.to_host(state), record, parts, earlier_round, earlier_in=of)


def check_same_hold(simulator: Simulator, directory: str | Path) -> None:
    """Checks that the run in a directory keeps client states where this one does, because
    checkpoints differ.

    Raises:
      ValueError: one run keeps them on the devices and the other does not, or run.json or
        config.json is malformed.
    """

    def read() -> str | None:
        schemas = {Path(directory) / RUN: RUN_SCHEMA, Path(directory) / CONFIG: _HOLD_SCHEMA}
        records, config = [read_json(file, schema) if file.exists() else {} for file, schema in schemas.items()]
        return records.get("placement", {}).get("hold") or (config.get("plan") or {}).get("hold")

    hold = _read_in_process_0(f"read {directory}", read)
    if hold is not None and (hold == "device") != (simulator.spec.hold == "device"):
        raise ValueError(f"plan.hold={simulator.spec.hold!r}: {directory} holds a run with plan.hold={hold!r}; resume it with that")
