"""Compiling in other processes, one program at a time and within a time, and keeping what was found."""

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

from fedjax_core import code_fingerprint, experiment, registry
from fedjax_core.commands.plans import device_targets
from fedjax_core.data import memory
from fedjax_core.experiment.mock_data import Counts
from fedjax_core.language import mock_instructions as language
from fedjax_core.own_packages import HOME
from fedjax_core.storage.json_files import plain, read_json, write_json

KEPT = os.path.join("~", ".cache", "fedjax_core", "plan")
_NOT_COMPILED = ("seed", "rounds", "checkpoint", "callbacks", "profile", "data.dir")  # fields of which no program depends
_NOT_COMPILED += tuple(f"evaluation.{name}" for name in ("every", "last_k", "select", "patience", "until", "targets"))
_COMPILED = ("JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_DEFAULT_PRNG_IMPL", "JAX_THREEFRY_PARTITIONABLE")
_COMPILED += ("JAX_NUMPY_DTYPE_PROMOTION", "LIBTPU_INIT_ARGS")  # of the environment, what programs depend on
_HERE = ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS")
_HERE += ("XLA_PYTHON_CLIENT_MEM_FRACTION", "NVIDIA_TF32_OVERRIDE")  # and of what is here
_ASKED = """import json, jax
first = jax.local_devices()[0]
print(json.dumps([first.platform, first.device_kind, jax.device_count(), (first.memory_stats() or {}).get("bytes_limit")]))"""
_FORM = {"about": dict, "there": [str], "programs": {str: {"fits": (bool, type(None)), "limit_s?": int}}}
_OVERHEAD = 120  # seconds that a process may take beside compiling, to import and to end


class Job(NamedTuple):
    """What one process is asked for.

    Attributes:
      config: whole, as plain values.
      target: to compile for.
      parts: which of `aot.PARTS`.
      counts: of the data.
      seconds: that one program may take.
    """

    config: dict[str, Any]
    target: device_targets.Target
    parts: tuple[str, ...]
    counts: Counts
    seconds: int


def with_chunk(job: Job, chunk: int, parts: tuple[str, ...] | None = None) -> Job:
    """The same with so many clients at once."""
    config = {**job.config, "plan": {**job.config["plan"], "chunk": chunk}}
    return job._replace(config=config, parts=job.parts if parts is None else parts)


def compiled(job: Job, folder: str | os.PathLike | None, fresh: bool = False) -> dict[str, Any]:
    """What is found: {"about": ..., "programs": {name: ...}}, see
    `compile_worker.py`; one that could not be compiled has "fits": None.

    Args:
      job: what is asked for.
      folder: where results are kept; None: nowhere.
      fresh: whether to compile what is there already.

    Raises:
      ValueError: the config cannot be built; one line.
      OSError: results cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="fedjax-plan-") as temporary:
        place = Path(temporary) / "found.json"
        if folder is not None:
            root = Path(folder).expanduser()
            root.mkdir(parents=True, exist_ok=True)
            place = root / f"{key(job)}.json"
        found = {} if fresh or not place.is_file() else _worth(_kept(place), job.seconds)
        while found.get("there") is None or set(found["there"]) - set(found["programs"]):
            found = _further(job, found, place)
        return found


def _kept(place: Path) -> dict[str, Any]:
    """What an earlier process found; nothing, so that it is compiled anew, where the file is damaged."""
    try:
        return read_json(place, _FORM)
    except ValueError:
        return {}


def _worth(found: dict[str, Any], seconds: int) -> dict[str, Any]:
    """Without programs that now have more time than they had."""
    programs = found.get("programs", {})
    return found | {"programs": {name: one for name, one in programs.items() if one.get("limit_s", seconds) >= seconds}}


def _further(job: Job, found: dict[str, Any], place: Path) -> dict[str, Any]:
    """What is found, with at least one program more; it is written to `place` as it comes."""
    here = job.target.name == device_targets.HERE
    asked = {"config": job.config, "counts": job.counts._asdict(), "target": list(job.target), "parts": list(job.parts)}
    asked |= {"done": found.get("programs", {}), "seconds": job.seconds, "out": str(place), "cores": here}
    environment = dict(os.environ) | ({} if here else device_targets.ENVIRONMENT)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH", "")]))
    if not found:
        place.unlink(missing_ok=True)
    command, text = [sys.executable, "-m", "fedjax_core.commands.plans.compile_worker"], json.dumps(plain(asked))
    try:
        ended = subprocess.run(
            command, input=text, text=True, capture_output=True, env=environment, check=False, timeout=_longest(job.seconds)
        )
        status, said = ended.returncode, ended.stderr
    except subprocess.TimeoutExpired as error:
        status, said = None, str(error)
    new = read_json(place) if place.is_file() else {"programs": {}}
    says = _why(status, said, job.seconds)
    if "error" in new and "there" in found:  # what was compiled before stays
        new, says = found, new["error"]
    if "error" in new or "there" not in new:
        place.unlink(missing_ok=True)
        why = f"{job.target.name}: {says}, before anything was compiled"
        raise ValueError(new.get("error", why))
    left = [name for name in new["there"] if name not in new["programs"]]
    if left and (status is not None or set(new["programs"]) == set(asked["done"])):  # else it had much to do, and another goes on
        new["programs"][left[0]] = {"fits": None, "says": says, "limit_s": job.seconds}
        write_json(place, new)
    return new


def _why(status: int | None, said: str, seconds: int) -> str:
    if status is None:
        return f"its process did not end in {_longest(seconds)} s, though no program may take more than {seconds} s (--limit)"
    if status == -signal.SIGALRM:
        return f"not compiled in {seconds} s (--limit)"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"the compiler ended its process ({status}): {lines[-1][:200] if lines else 'it said nothing'}"


def _longest(seconds: int) -> int:
    """Seconds that a process may take with all its programs."""
    return 20 * seconds + _OVERHEAD


@functools.cache
def here() -> tuple[Any, ...]:
    """What the devices here are, by a process of its own: this one keeps off them.

    Raises:
      ValueError: jax finds none; one line.
    """
    environment = dict(os.environ) | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    ended = subprocess.run([sys.executable, "-c", _ASKED], text=True, capture_output=True, env=environment, check=False)
    if ended.returncode:
        raise ValueError(f"{device_targets.HERE}: {_why(ended.returncode, ended.stderr, 0)}")
    affinity = getattr(os, "sched_getaffinity", None)  # of a CPU each core is a device
    cores = len(affinity(0)) if affinity else os.cpu_count()
    return *json.loads(ended.stdout.splitlines()[-1]), cores, memory.there()


def key(job: Job) -> str:
    """A digest of all that a result depends on: what of the config is compiled, target, devices that are here, data's size,
    versions, environment, and sources."""
    config = json.loads(json.dumps(plain(job.config)))
    for field in _NOT_COMPILED:
        *above, last = field.split(".")
        place = config
        for name in above:
            place = place.get(name, {})
        place.pop(last, None)
    is_here = job.target.name == device_targets.HERE
    versions = {name: _version(name) for name in ("jax", "jaxlib", "libtpu", "flax", "optax")}
    plugins = [point.dist for point in metadata.entry_points(group="jax_plugins") if point.dist]
    versions |= {plugin.name: plugin.version for plugin in plugins}
    flags = {name: os.environ.get(name) for name in (*_COMPILED, *(_HERE if is_here else ()))}
    devices = here() if is_here else None
    said = [config, job.target.name, devices, list(job.parts), list(job.counts), versions, flags]
    digest = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode())
    for file in sources(job.config):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def sources(config: dict[str, Any]) -> Sequence[Path]:
    """Files with what is compiled: the library, the methods, what a config names from outside, a language model's config.json."""
    from ml_collections import ConfigDict

    from fedjax_core.experiment.run_experiment import tuples

    with registry.noting() as named:
        asked = experiment.resolve(ConfigDict(tuples(config)))
    found = {place.file for place in code_fingerprint.behind(named)} | set(code_fingerprint.files(named))
    of_texts = [one.found() for one in asked.networks if one.found.function is language.Spec]
    found |= {file.resolve() for file in map(language.described_in, of_texts) if file.is_file()}
    for package in ("fedjax_core", "methods"):
        found |= {file for file in (HOME / package).rglob("*.py") if "reporting" not in file.parts}
    return sorted(found)
