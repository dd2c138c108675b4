"""Runs a config in a work directory, resumes it, or loads its state.

A directory of somebody else imports nothing that its config names: it must not choose what runs here.
"""

import contextlib
import functools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from fedjax_core import code_fingerprint, distributed, nn, registry
from fedjax_core.data import federated_data, row_readers
from fedjax_core.engine.simulator import Simulator, State
from fedjax_core.experiment import lookup, python_overrides, run_facts
from fedjax_core.experiment.build_simulator import build
from fedjax_core.experiment.device_options import describe_devices
from fedjax_core.experiment.ledger import make_ledger
from fedjax_core.experiment.resolve_config import ResolvedConfig, complete_config, resolve
from fedjax_core.experiment.run_header import opening_lines
from fedjax_core.experiment.schema import Config, IncompleteConfig, find_group, list_unknown_fields
from fedjax_core.run import Finished, RunSettings, check_inputs, check_processes, digest_inputs, restore_state, run, starts_afresh
from fedjax_core.run.early_stopping import SELECTED, find_selected_round
from fedjax_core.storage import signature
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import lists_to_tuples, read_json
from fedjax_core.storage.workdir import BEGUN_HERE, CHECKPOINTS, CONFIG, DATA, RUN, RUN_SCHEMA

_CONFIG_SCHEMA = {"method": dict, "models": list, "data": dict, "evaluation": dict, "plan": dict}  # of config.json, for `load`
_RUN_SCHEMA = RUN_SCHEMA | {"partition": {"hash": str}, "privacy?": {"noise_multiplier?": float}}
log = logging.getLogger("fedjax_core")
COMPILATION_CACHE = os.path.join("~", ".cache", "fedjax_core", "jax")  # where commands keep compiled programs


def execute(
    config: Config,
    workdir: str,
    progress: bool | None = None,
    *,
    data: federated_data.FederatedData | None = None,
    console: Callable[[str], None] | None = None,
    callbacks: Sequence[Any] = (),
    fresh: bool = False,
    draws: bool = True,
    **replaced: Any,
) -> Finished:
    """Builds and runs a config in a work directory, or resumes it there.

    Args:
      config: see `configs/base.py`.
      workdir: a new directory, or one that holds this run, or one without a checkpoint, in which
        this run then begins.
      progress: True: a bar; False: neither a bar nor lines; None: a bar on a terminal or in a
        notebook, lines elsewhere and where a console is given.
      data: used in place of the config's. A resumed run needs the data that it began with.
      console: takes lines of text (label table, scores at the end); None: standard error.
      callbacks: beside those of the config: see `fedjax_core/run/callbacks.py`.
      fresh: deletes the run that the directory holds, whichever it is, and begins there.
      draws: whether the run draws its figures at the end.
      **replaced: method, model, loss, scores in place of the config's, see `python_overrides.apply_overrides`.

    Returns:
      The final state, the summary, the plots and the history; see `fedjax_core.run.run`, also for
      what it raises.

    Raises:
      CodeExited: the user's own code, such as a loss, called `sys.exit()`.
    """
    workdir = os.path.expanduser(workdir)
    with code_fingerprint.contain_exits():
        config = python_overrides.apply_overrides(config, **replaced)
        resolved = resolve(config)
        check_processes("config", {**resolved.config, "--fresh": fresh})
        constructors = lookup.find_callbacks(resolved.fields["callbacks"])  # checked before data are read
        noise = read_recorded_privacy(config, workdir, fresh)
        simulator = build(config, data, noise=noise, resolved=resolved)
        run_settings = make_run_settings(
            resolved,
            simulator,
            noise,
            data is not None,
            callbacks=constructors + tuple(callbacks),
            fresh=fresh,
            draws=draws,
            progress=progress,
            console=console,
        )
        try:
            return run(simulator, workdir, resolved.config, run_settings)
        finally:
            simulator.release()  # frees device memory now; garbage collection may come later


def make_run_settings(
    resolved: ResolvedConfig,
    simulator: Simulator,
    noise: Mapping[str, Any] | None = None,
    given_data: bool = False,
    **more: Any,
) -> RunSettings:
    """Returns the settings of a config's run.

    Args:
      noise: what run.json records of the privacy, as `build` takes it.
      given_data: whether the data are others than the config's.
      **more: fields of `RunSettings` that the config has not, or in place of the config's.
    """
    privacy = make_ledger(resolved, simulator.spec, noise)
    facts = {"convolution": nn.describe_conv()} | run_facts.describe_adversary(resolved, simulator.spec.population)
    facts |= {} if privacy is None else {"privacy": privacy.facts() | run_facts.keep_recorded_accountant(resolved, noise)}
    facts |= (
        run_facts.list_file_digests(resolved)
        | run_facts.list_code_digests(resolved.lookups)
        | run_facts.list_given_digests(resolved)
    )
    from_config: dict[str, Any] = {
        **resolved.run._asdict(),
        "seed": resolved.seed,
        "run_facts": facts | describe_devices(simulator.spec),
        "privacy": privacy,
        "header": functools.partial(opening_lines, resolved, simulator, privacy, given_data=given_data),
        "is_plan_chosen": resolved.has_plan,
        "callbacks": tuple(resolved.fields["callbacks"]),
        "names_code": names_code(resolved),
    }
    return RunSettings(**from_config | more)


def read_recorded_privacy(config: Config, workdir: str | os.PathLike, fresh: bool) -> dict[str, Any] | None:
    """Returns what the directory's run.json records of the privacy; process 0 reads it.

    None: the directory holds no run to resume, or the config has no privacy. A file that cannot be
    read is an error of the run itself.
    """
    if config.get("privacy", {}).get("mechanism") is None:
        return None
    recorded = None
    if jax.process_index() == 0:
        with contextlib.suppress(OSError, ValueError):
            if not starts_afresh(workdir, complete_config(config), fresh):
                recorded = read_json(Path(workdir) / RUN, _RUN_SCHEMA).get("privacy")
    return distributed.broadcast_from_process_0(recorded)


def load(
    workdir: str | os.PathLike,
    done: int | None = None,
    data: federated_data.FederatedData | None = None,
    *,
    trust: bool = False,
    **replaced: Any,
) -> tuple[Config, Simulator, State]:
    """Builds the simulation of a run and restores its state. The directory is only read.

    Args:
      workdir: of a run, finished or not.
      done: the round to restore; None: the selected one, if the run selects one, else the last one
        that has a checkpoint.
      data: in place of the config's, for a run that was given its data.
      trust: whether modules and files that the directory's config names may be imported, although
        no signature shows that this user began the run (`storage/signature.py`).
      **replaced: method, model, loss, scores, for a run that was given them and whose config has
        "given:...".

    Raises:
      ValueError: the directory has no such checkpoint, or no longer that of the selected round, or
        its data are no longer the config's; or a file has another form; or its config names code
        that must not be imported.
      OSError: the directory holds no run, or cannot be read.
    """
    folder = Path(workdir).expanduser()
    saved_config, recorded = read_json(folder / CONFIG, _CONFIG_SCHEMA), read_json(folder / RUN, _RUN_SCHEMA)
    with guard_imports(folder, saved_config, recorded, trust):
        config: Config = ConfigDict(lists_to_tuples(saved_config))
        _drop_unknown_fields(config, folder / CONFIG)
        config = python_overrides.apply_overrides(config, **replaced)
        checkpoints, done = _find_checkpoint(folder, config, done)
        if (config.plan.devices or 1) > jax.device_count():
            config.plan.devices = None
        if (config.plan.devices or jax.device_count()) % (config.plan.get("model") or 1):
            config.plan.model = None
        try:
            resolved = resolve(config)
            simulator = build(config, data, noise=recorded.get("privacy"), accounted=False, resolved=resolved)
        except IncompleteConfig as error:
            raise ValueError(f"{folder / CONFIG}: {error}; another version of the code wrote it") from None
        before, now = recorded["partition"]["hash"], simulator.spec.data.partition_hash
        if before != now:
            what = f"{folder} was run on other data: its partition hash is {before[:12]}, now it is {now[:12]}"
            hint = "" if data is not None else "; of a run on data= given in Python, only Python can read them: load(..., data=...)"
            raise ValueError(what + hint)
        check_inputs(folder, recorded.get(DATA, {}), digest_inputs(simulator) if DATA in recorded else {})
        _compare_files(folder, recorded, resolved)
        return config, simulator, restore_state(simulator, checkpoints, done)


def _compare_files(folder: Path, recorded: Mapping[str, Any], resolved: ResolvedConfig) -> None:
    """Raises ValueError if a run had other weights, and warns if it had other code of the user's."""
    if changed := run_facts.list_changed(recorded, run_facts.list_file_digests(resolved)):
        raise ValueError(f"{folder} was run with other contents of {', '.join(changed)}; give the files back that it began with")
    code = run_facts.list_code_digests(resolved.lookups) | run_facts.list_given_digests(resolved)
    if changed := run_facts.list_changed(recorded, code):
        log.warning("%s was run with another version of %s; today's code is used", folder, ", ".join(changed))


def _find_checkpoint(folder: Path, config: Config, done: int | None) -> tuple[Checkpoints, int]:
    """Returns the checkpoints of which one is restored, and its round; `done` as `load` takes it."""
    checkpoints = Checkpoints(folder / CHECKPOINTS, beside=folder / SELECTED)
    selected = Checkpoints(folder / SELECTED, beside=folder / CHECKPOINTS)
    chosen = selected.latest() if config.evaluation.get("select") else None
    if chosen is not None and done in (None, chosen):
        return selected, chosen
    if done is None and config.evaluation.get("select"):
        done = find_selected_round(folder, checkpoints)
    done = checkpoints.latest() if done is None else done
    if done is None:
        raise ValueError(f"{folder} has no checkpoint yet; let the run go on until it has one")
    return checkpoints, done


def _drop_unknown_fields(config: Config, file: Path) -> None:
    """Deletes fields that this version does not have, and warns of each."""
    for field in list_unknown_fields(config):
        group, name = find_group(config, field)
        del group[name]
        log.warning("%s has a field %s, which another version of the code wrote; it is left out", file, field)


def cache_compiled_programs(directory: str) -> None:
    """Caches compiled programs in a directory, also small ones, of which a start has many; '' for
    nowhere."""
    if directory:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def use_all_cores() -> None:
    """Gives jax one CPU device per core, over which clients are spread. Call it before anything
    touches a device.

    Its pool gets a thread more than there are devices, where `NPROC` does not say how many: a decomposition of
    several matrices waits in one thread for others, and if one waited on each device, none would be left.
    """
    cores = row_readers.machine_cores()
    forced = re.search(r"xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    if not forced and jax.config.values["jax_num_cpu_devices"] < 1:
        jax.config.update("jax_num_cpu_devices", cores)
    devices = int(forced[1]) if forced else jax.config.values["jax_num_cpu_devices"]
    os.environ.setdefault("NPROC", str(max(cores, devices) + 1))  # the name that XLA reads


@contextlib.contextmanager
def guard_imports(folder: Path, config: Mapping[str, Any], recorded: Mapping[str, Any], trust: bool) -> Iterator[None]:
    """Refuses to import what a directory's config names, unless it is trusted or began here."""
    signed = recorded.get(BEGUN_HERE, {}).get("signature")
    if trust or (signed is not None and signature.is_signed_here(config, signed)):
        yield
        return
    why = f"{folder / CONFIG} names it, and nothing says that you began this run here"
    with registry.refuse_imports(f"{why}; --trust (in Python trust=True) lets it be imported"):
        yield


def names_code(resolved: ResolvedConfig) -> bool:
    """Returns whether a config or its callbacks name code from outside."""
    callbacks = lookup.find_callbacks(resolved.fields["callbacks"])
    return resolved.imports_code or any(registry.is_imported(callback.origin) for callback in callbacks)
