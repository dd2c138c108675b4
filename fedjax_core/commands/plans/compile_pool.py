"""Compiles programs in other processes, one at a time and within a time limit, and caches the results."""

import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_core import code_fingerprint, experiment
from fedjax_core.commands.plans import device_targets
from fedjax_core.data import row_readers
from fedjax_core.experiment import input_files
from fedjax_core.experiment.mock_data import Counts
from fedjax_core.language import clip_task
from fedjax_core.language.instruction_task import Spec, find_model_folder
from fedjax_core.language.load_pretrained import CONFIG, TOKENIZER, is_gguf
from fedjax_core.nn import kernels
from fedjax_core.own_packages import HOME
from fedjax_core.storage.json_files import lists_to_tuples, read_json, to_json_values, write_json

CACHE_DIR = os.path.join("~", ".cache", "fedjax_core", "plan")
_NOT_COMPILED = ("seed", "rounds", "checkpoint", "callbacks", "profile", "data.dir")  # fields of which no program depends
_NOT_COMPILED += tuple(f"evaluation.{name}" for name in ("every", "last_k", "select", "patience", "until", "targets"))
_COMPILER_VARIABLES = (  # of the environment, what programs depend on
    *("JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_DEFAULT_PRNG_IMPL", "JAX_THREEFRY_PARTITIONABLE"),
    *("JAX_NUMPY_DTYPE_PROMOTION", "LIBTPU_INIT_ARGS", kernels.VARIABLE),
)
_LOCAL_VARIABLES = (  # and what local devices do
    *("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS"),
    *("XLA_PYTHON_CLIENT_MEM_FRACTION", "NVIDIA_TF32_OVERRIDE"),
)
_DEVICE_QUERY = """import json, jax
first = jax.local_devices()[0]
print(json.dumps([first.platform, first.device_kind, jax.device_count(), (first.memory_stats() or {}).get("bytes_limit")]))"""
_FORM = {"about": dict, "names": [str], "programs": {str: {"fits": (bool, type(None)), "limit_s?": int}}}
_OVERHEAD = 120  # seconds that a process may take beside compiling, to import and to end


class Job(NamedTuple):
    """The request to one process.

    Attributes:
      config: whole, as plain values.
      parts: which of `aot.PARTS`.
      seconds: that one program may take.
    """

    config: dict[str, Any]
    target: device_targets.Target
    parts: tuple[str, ...]
    counts: Counts
    seconds: int


def with_chunk(job: Job, chunk: int) -> Job:
    """Returns the job with another `plan.chunk`."""
    return job._replace(config={**job.config, "plan": {**job.config["plan"], "chunk": chunk}})


def compile_programs(job: Job, folder: str | os.PathLike | None, fresh: bool = False) -> dict[str, Any]:
    """Returns {"about": ..., "programs": {name: ...}}, see `compile_worker.py`; a program that
    failed to compile has "fits": None.

    Raises:
      ValueError: the config cannot be built; one line.
    """
    with tempfile.TemporaryDirectory(prefix="fedjax-plan-") as temporary:
        file = Path(temporary) / "programs.json"
        if folder is not None:
            root = Path(folder).expanduser()
            root.mkdir(parents=True, exist_ok=True)
            file = root / f"{cache_key(job)}.json"
        report = {} if fresh or not file.is_file() else _drop_timed_out(_read_cache(file), job.seconds)
        while report.get("names") is None or set(report["names"]) - set(report["programs"]):
            report = _compile_next(job, report, file)
        return report


def _read_cache(file: Path) -> dict[str, Any]:
    """Reads what an earlier process wrote; empty, to compile again, if the file is damaged."""
    try:
        return read_json(file, _FORM)
    except ValueError:
        return {}


def _drop_timed_out(report: dict[str, Any], seconds: int) -> dict[str, Any]:
    """Drops programs that failed with a shorter limit than today's."""
    programs = report.get("programs", {})
    return report | {
        "programs": {name: program for name, program in programs.items() if program.get("limit_s", seconds) >= seconds}
    }


def _compile_next(job: Job, report: dict[str, Any], file: Path) -> dict[str, Any]:
    """Compiles more in a process of its own, which writes to `file`; returns all results."""
    is_local = job.target.name == device_targets.HERE
    request = {"config": job.config, "counts": job.counts._asdict(), "target": list(job.target), "parts": list(job.parts)}
    request |= {"done": report.get("programs", {}), "seconds": job.seconds, "out": str(file), "cores": is_local}
    environment = dict(os.environ) | ({} if is_local else device_targets.ENVIRONMENT)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH", "")]))
    if not report:
        file.unlink(missing_ok=True)
    command, text = [sys.executable, "-m", "fedjax_core.commands.plans.compile_worker"], json.dumps(to_json_values(request))
    try:
        ended = subprocess.run(
            command, input=text, text=True, capture_output=True, env=environment, check=False, timeout=_process_limit(job.seconds)
        )
        status, stderr = ended.returncode, ended.stderr
    except subprocess.TimeoutExpired as error:
        status, stderr = None, str(error)
    new_report = read_json(file) if file.is_file() else {"programs": {}}
    failure = _describe_failure(status, stderr, job.seconds)
    if "error" in new_report and "names" in report:  # what was compiled before stays
        new_report, failure = report, new_report["error"]
    if "error" in new_report or "names" not in new_report:
        file.unlink(missing_ok=True)
        why = f"{job.target.name}: {failure}, before anything was compiled"
        raise ValueError(new_report.get("error", why))
    remaining = [name for name in new_report["names"] if name not in new_report["programs"]]
    if remaining and (
        status is not None or set(new_report["programs"]) == set(request["done"])
    ):  # else it had much to do, and another goes on
        new_report["programs"][remaining[0]] = {"fits": None, "says": failure, "limit_s": job.seconds}
        write_json(file, new_report)
    return new_report


def _describe_failure(status: int | None, stderr: str, seconds: int) -> str:
    if status is None:
        return f"its process did not end in {_process_limit(seconds)} s, though no program may take more than {seconds} s (--limit)"
    if hasattr(signal, "SIGALRM") and status == -signal.SIGALRM:
        return f"not compiled in {seconds} s (--limit)"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return f"the compiler ended its process ({status}): {lines[-1][:200] if lines else 'no message'}"


def _process_limit(seconds: int) -> int:
    """Returns the seconds that a process may take with all its programs."""
    return 20 * seconds + _OVERHEAD


@functools.cache
def describe_local_devices() -> tuple[Any, ...]:
    """Returns what the local devices are; another process asks, which initializes them."""
    environment = dict(os.environ) | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    ended = subprocess.run([sys.executable, "-c", _DEVICE_QUERY], text=True, capture_output=True, env=environment, check=False)
    if ended.returncode:
        raise ValueError(f"{device_targets.HERE}: {_describe_failure(ended.returncode, ended.stderr, 0)}")
    cores = row_readers.machine_cores()  # of a CPU each core is a device
    return *json.loads(ended.stdout.splitlines()[-1]), cores, row_readers.machine_memory()


def cache_key(job: Job) -> str:
    """Returns a digest of all that a result depends on.

    That is the compiled part of the config, target, local devices, size of the data, versions,
    environment and sources.
    """
    config = json.loads(json.dumps(to_json_values(job.config)))
    has_mechanism = (config.get("privacy") or {}).get("mechanism") is not None  # noise by a tree keeps log2(rounds) vectors
    for field in _NOT_COMPILED:
        if field == "rounds" and has_mechanism:
            continue
        *above, last = field.split(".")
        group = config
        for name in above:
            group = group.get(name, {})
        group.pop(last, None)
    is_here = job.target.name == device_targets.HERE
    versions = {name: _version(name) for name in ("jax", "jaxlib", "libtpu", "flax", "optax")}
    plugins = [point.dist for point in metadata.entry_points(group="jax_plugins") if point.dist]
    versions |= {plugin.name: plugin.version for plugin in plugins}
    flags = {name: os.environ.get(name) for name in (*_COMPILER_VARIABLES, *(_LOCAL_VARIABLES if is_here else ()))}
    devices = describe_local_devices() if is_here else None
    parts = [config, job.target.name, devices, list(job.parts), list(job.counts), versions, flags]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    for file in source_files(job.config):
        stamp = f"{file.stat().st_size} {file.stat().st_mtime_ns}"  # of a file with all weights
        digest.update(stamp.encode() if is_gguf(file) else file.read_bytes())
    return digest.hexdigest()[:32]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def source_files(config: dict[str, Any]) -> Sequence[Path]:
    """Returns files that decide what is compiled: library, methods, what a config names from outside, a language model's
    config.json or GGUF file, a CLIP's tokenizer, which decides how long texts are, settings of clients and devices, and
    files of the method.
    """
    from ml_collections import ConfigDict

    resolved = experiment.resolve(ConfigDict(lists_to_tuples(config)))
    lookups = resolved.lookups
    files = {place.file for place in code_fingerprint.find_sources(lookups)} | set(code_fingerprint.find_own_files(lookups))
    of_texts = [network.resolved() for network in resolved.networks if network.resolved.function is Spec]
    places = [find_model_folder(spec) for spec in of_texts]
    files |= {file.resolve() for place in places if (file := place if is_gguf(place) else place / CONFIG).is_file()}
    of_clip = [network.resolved() for network in resolved.networks if network.resolved.function is clip_task.Spec]
    folders = [Path(spec.folder).expanduser() for spec in of_clip if spec.folder is not None]
    files |= {file.resolve() for folder in folders for name in (CONFIG, TOKENIZER) if (file := folder / name).is_file()}
    files |= {file.resolve() for file in input_files.existing_option_files(resolved)}
    for package in ("fedjax_core", "methods"):
        files |= {file for file in (HOME / package).rglob("*.py") if "reporting" not in file.parts}
    return sorted(files)
