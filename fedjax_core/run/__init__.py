"""A run: rounds, evaluations, checkpoints, callbacks and records in one directory, which resumes it.

`loop.py` has the loop of rounds.
"""

from fedjax_core.run.callbacks import CallbackFailed, Ended, Started
from fedjax_core.run.checkpointing import (
    MAY_DIFFER,
    check_inputs,
    digest_inputs,
    is_begun_anew,
    recorded_plan,
    restored,
)
from fedjax_core.run.loop import Outcome, SeedRun, run, run_seeds
from fedjax_core.run.signals import Stop
from fedjax_core.run.training_run import Finished, Interrupted, RunSettings

__all__ = [
    "MAY_DIFFER",
    "CallbackFailed",
    "Ended",
    "Finished",
    "Interrupted",
    "Outcome",
    "RunSettings",
    "SeedRun",
    "Started",
    "Stop",
    "check_inputs",
    "digest_inputs",
    "is_begun_anew",
    "recorded_plan",
    "restored",
    "run",
    "run_seeds",
]
