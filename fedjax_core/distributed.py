"""The processes of one run: how they join, and what they decide together.

Clocks, files, caches, memory and signals differ between processes. Each of the functions `broadcast_from_process_0` to
`barrier` must be called by all processes, in the same order; with one process they do nothing.

Processes find each other by a given address, or as `jax.distributed` reads it from the cluster that started them:
Slurm, Open MPI, Cloud TPU, Kubernetes (with the package `kubernetes`).
"""

import contextlib
import errno
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

JOIN_TIMEOUT = 300.0  # seconds until all processes must have joined
JOIN_REPORT = 20.0  # seconds after which a process says that it waits for the others
EXIT_GRACE = 2.0  # seconds that process 0 leaves the others for an error of their own: jax aborts them when it is gone
HEARTBEAT_TIMEOUT = 30  # seconds without a heartbeat after which a process counts as dead, and the others end
MAX_QUOTED = 160  # characters of jax's message about a lost process
ADDRESS = re.compile(r"(?:\[[^\s\[\]/]+\]|[^\s:\[\]/]+):(\d{1,5})", re.ASCII)  # host:port, IPv6 in brackets
DEVICE_IDS = "JAX_LOCAL_DEVICE_IDS"  # a variable that jax reads: which devices are this process's
ADVICE = "give --coordinator=HOST:PORT, --processes and --process in place of --distributed"
LOST_PROCESS = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|socket closed|heartbeat|coordination service|UNAVAILABLE", re.I
)
STATUS = re.compile(r"[A-Z_]+: ")  # begins a message of the runtime; from a compiled program's first call it is a ValueError
Result = TypeVar("Result")
_log = logging.getLogger("fedjax_core")
_process: int | None = None  # the number of this process, once it has joined others


def check_process_flags(distributed: bool, coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Raises ValueError if the flags of several processes contradict each other."""
    is_given = [value is not None for value in (coordinator, processes, process)]
    if distributed and any(is_given):
        raise ValueError("--distributed finds the other processes by itself; leave out --coordinator, --processes and --process")
    if any(is_given) and not all(is_given):
        raise ValueError("give --coordinator, --processes and --process together, or none of them")
    if coordinator is None or processes is None or process is None:
        return
    if not (match := ADDRESS.fullmatch(coordinator)) or not 1 <= int(match[1]) <= 65_535:  # jax would wait, or end by a signal
        raise ValueError(f"--coordinator={coordinator} must be HOST:PORT, with a port in [1, 65535], such as host0:8476")
    if processes < 1:
        raise ValueError(f"--processes={processes} must be at least 1")
    if not 0 <= process < processes:
        raise ValueError(f"--process={process} of --processes={processes}: must lie in [0, {processes - 1}]")


def join_processes(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Joins the other processes, before jax has made a device; waits until all are there.

    Args:
      coordinator: host:port of process 0; None: the cluster tells all three.

    Raises:
      ValueError: no cluster that tells, or one that jax cannot read, or a variable that is no list of devices, or another
        number of processes than process 0 has; one line.
      OSError: the others cannot be reached; one line.
    """
    ids = os.environ.get(DEVICE_IDS) or "0"
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", ids, re.ASCII):
        raise ValueError(f"the variable {DEVICE_IDS}={ids} must be numbers of devices with commas between, such as 0,1,2,3")
    jax.config.update("jax_enable_preemption_service", False)  # its handler of SIGTERM ends nothing; a run has its own
    address = f" at {coordinator}" if coordinator else ""
    later = int(JOIN_TIMEOUT) + 60  # than `_watch_joining` ends this process
    try:
        with _watch_joining(processes, process, address):
            jax.distributed.initialize(
                coordinator, processes, process, initialization_timeout=later, heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT
            )
        global _process
        _process = jax.process_index() if process is None else process
    except RuntimeError as error:
        raise OSError(f"the processes did not find each other{address}: {_one_line(error)}") from error
    except Exception as error:  # jax's detection of a cluster raises whatever the cluster's packages do
        if coordinator is not None:
            raise
        if isinstance(error, ValueError | KeyError):
            what = "found no Slurm, Open MPI, Cloud TPU or Kubernetes that started this process"
        else:
            what = f"cannot read what the cluster says of this process: {type(error).__name__}: {_one_line(error)}"
        raise ValueError(f"--distributed {what}; {ADVICE}") from error
    given = allgather([processes or jax.process_count()])[:, 0]  # jax goes on with the number of process 0
    if len(others := np.flatnonzero(given != given[0])):
        both = f"--processes={given[others[0]]} of process {others[0]}, --processes={given[0]} of process 0"
        raise ValueError(f"{both}: all processes need the same number")


@contextlib.contextmanager
def _watch_joining(processes: int | None, process: int | None, address: str) -> Iterator[None]:
    """Reports a long wait for the other processes, and ends this one after `JOIN_TIMEOUT`, or at once by Ctrl-C.

    Inside of jax, Python would see Ctrl-C after the wait, and jax ends a wait that is too long by a signal.
    """
    has_joined, who = threading.Event(), f"the {processes} processes" if processes else "the processes"
    causes = "one has not started, or process 0 has another address, or cannot be reached"
    if processes:
        causes += f", or two have the same --process or other --processes (this one: --process={process}, --processes={processes})"

    def watch() -> None:
        if has_joined.wait(JOIN_REPORT):
            return
        _log.warning("waiting until %s have found each other%s, up to %.0f s: perhaps %s", who, address, JOIN_TIMEOUT, causes)
        if has_joined.wait(JOIN_TIMEOUT - JOIN_REPORT):
            return
        sys.stderr.write(f"error: {who} did not find each other{address} in {JOIN_TIMEOUT:.0f} s: {causes}\n")
        _exit_at_once(1)

    threading.Thread(target=watch, daemon=True).start()
    is_main = threading.current_thread() is threading.main_thread()
    is_interruptible = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        has_joined.set()
        if is_interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def exit_if_joined(status: int) -> None:
    """Ends one of several joined processes at once: jax's own end waits for the others, which may wait for this one."""
    if jax.distributed.is_initialized():
        time.sleep(EXIT_GRACE if _process == 0 else 0)
        _exit_at_once(status)


def _exit_at_once(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def explain_lost_process(error: BaseException) -> str:
    """Returns a message for an error that another process's end caused; "" for another error, or with one process."""
    is_of_jax = isinstance(error, jax.errors.JaxRuntimeError) or (type(error) is ValueError and STATUS.match(str(error)))
    is_lost = is_of_jax and LOST_PROCESS.search(str(error))
    if not is_lost or jax.process_count() == 1:
        return ""
    first = str(error).strip().partition("\n")[0]
    return (
        "another process of this run has ended, or is out of reach; its own last line says why. The same command in "
        f"all processes goes on from the last checkpoint ({first[:MAX_QUOTED]})"
    )


def advise_joining() -> str:
    """Returns what to add to an error of processes that a cluster started together, and that run apart; "" if it started one."""
    numbers = {name: os.environ.get(name, "1") for name in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")}
    return "".join(f"; {name}={n}: processes of one run need --distributed" for name, n in numbers.items() if n != "1")


def broadcast_from_process_0(value: Any) -> Any:
    """Returns the JSON value of process 0, whatever the others have."""
    if jax.process_count() == 1:
        return value
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    sent = text if jax.process_index() == 0 else np.zeros(length, np.uint8)
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(sent), np.uint8).tobytes())


def allgather(numbers: Sequence[int]) -> np.ndarray:
    """Returns [processes, n] the numbers of every process, in their order."""
    own = np.asarray(numbers, np.int32)
    return own[None] if jax.process_count() == 1 else np.asarray(multihost_utils.process_allgather(own))


def any_process(fact: bool) -> bool:
    """Returns whether it is true in any process."""
    return bool(allgather([fact]).any())


def assert_equal_across_processes(what: str, digest: str) -> None:
    """Raises ValueError in all processes if one has another digest than process 0.

    Args:
      what: for the message, such as "the data".
      digest: hexadecimal, of what must be the same.
    """
    digests = allgather([int(digest[i : i + 7], 16) for i in range(0, 28, 7)])
    if len(others := np.flatnonzero((digests != digests[0]).any(1))):
        raise ValueError(f"{what} of process {others[0]} are not those of process 0; all processes need the same config and files")


def all_or_none(what: str, step: Callable[[], Result]) -> Result:
    """Runs a step in all processes; if it fails in one it fails in all.

    Args:
      what: for the others' message, such as "write their parts of a checkpoint".
      step: the step.

    Raises:
      Whatever the step raised; OSError if it did so in another process.
    """
    result: Any = None
    try:
        result, failure = step(), None
    except BaseException as error:
        failure = error
    failed = np.flatnonzero(allgather([failure is not None]))
    if failure is not None:
        raise failure
    if len(failed):
        raise OSError(errno.EIO, f"process {failed[0]} could not {what}")
    return result
