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
from fedjax_core.run.loop import Outcome, run, run_seeds
from fedjax_core.run.settings import Finished, Interrupted, RunSettings
from fedjax_core.run.signals import StopRequest

__all__ = [
    "MAY_DIFFER",
    "CallbackFailed",
    "Ended",
    "Finished",
    "Interrupted",
    "Outcome",
    "RunSettings",
    "Started",
    "StopRequest",
    "check_inputs",
    "digest_inputs",
    "is_begun_anew",
    "recorded_plan",
    "restored",
    "run",
    "run_seeds",
]
