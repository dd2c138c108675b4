"""How the processes of a run find each other: by an address that is given, or as the cluster that has started them says.

What a cluster says is read by `jax.distributed`: Slurm, Open MPI, Cloud TPU, Kubernetes (with the package `kubernetes`).
"""

import re

import jax

SILENT = 30  # seconds without a sign of life after which a process counts as dead, and the others end
LONGEST = 160  # characters of what jax says of a process that is lost
ADVICE = "give --coordinator=HOST:PORT, --processes and --process in place of --distributed"

OUT_OF_REACH = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|socket closed|heartbeat|coordination service|UNAVAILABLE", re.I
)


def lost_partner(error: BaseException) -> str:
    """Returns what to say of an error that comes of another process's end; "" of another error, or where there is one process."""
    if not isinstance(error, jax.errors.JaxRuntimeError) or not OUT_OF_REACH.search(str(error)) or jax.process_count() == 1:
        return ""
    first = str(error).strip().partition("\n")[0]
    return (
        "another process of this run has ended, or is out of reach; its own last line says why. The same command in all processes "
        f"goes on from the last checkpoint ({first[:LONGEST]})"
    )


def check(distributed: bool, coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Whether flags of several processes hold together.

    Raises:
      ValueError: they do not.
    """
    given = [value is not None for value in (coordinator, processes, process)]
    if distributed and any(given):
        raise ValueError("--distributed finds the other processes by itself; leave out --coordinator, --processes and --process")
    if any(given) and not all(given):
        raise ValueError("give --coordinator, --processes and --process together, or none of them")
    if processes is not None and process is not None and not 0 <= process < processes:
        raise ValueError(f"--process={process} of --processes={processes}: must lie in [0, {processes - 1}]")


def join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Joins the other processes, before jax has made a device; waits until all are there.

    Args:
      coordinator: host:port of process 0; None: what the cluster says, of all three.
      processes: how many there are.
      process: which one this is.

    Raises:
      ValueError: no cluster that says so, or one that jax cannot read; one line.
      OSError: the others cannot be reached; one line.
    """
    try:
        jax.distributed.initialize(coordinator, processes, process, heartbeat_timeout_seconds=SILENT)
    except RuntimeError as error:
        said = " ".join(str(error).split())
        raise OSError(f"the processes did not find each other{f' at {coordinator}' if coordinator else ''}: {said}") from error
    except Exception as error:  # jax's detection of a cluster raises whatever the cluster's packages do
        if coordinator is not None:
            raise
        if isinstance(error, ValueError | KeyError):
            what = "found no Slurm, Open MPI, Cloud TPU or Kubernetes that started this process"
        else:
            what = f"cannot read what the cluster says of this process: {type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"--distributed {what}; {ADVICE}") from error
