"""A run: rounds, evaluations, checkpoints, callbacks and records in one directory, which resumes it.

`loop.py` has the loop of rounds.
"""

from fedjax_core.run.callbacks import CallbackFailed, Ended, Started
from fedjax_core.run.checkpointing import (
    MAY_DIFFER,
    check_inputs,
    check_partition,
    check_processes,
    digest_inputs,
    read_recorded_plan,
    restore_state,
    starts_afresh,
)
from fedjax_core.run.loop import Outcome, run, run_seeds
from fedjax_core.run.settings import Finished, Interrupted, RunSettings

__all__ = [
    "MAY_DIFFER",
    "CallbackFailed",
    "Ended",
    "Finished",
    "Interrupted",
    "Outcome",
    "RunSettings",
    "Started",
    "check_inputs",
    "check_partition",
    "check_processes",
    "digest_inputs",
    "read_recorded_plan",
    "restore_state",
    "run",
    "run_seeds",
    "starts_afresh",
]
