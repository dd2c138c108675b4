"""A run: rounds, scores, checkpoints, callbacks and records in one directory, from wherever it was left."""

from fedjax_core.run.callbacks import CallbackFailed, Ended, Started
from fedjax_core.run.checkpointing import MAY_DIFFER, check_inputs, digest_inputs, is_begun_anew, recorded_plan, restored
from fedjax_core.run.driving import Outcome, run, run_in_lanes
from fedjax_core.run.loop import Finished, Interrupted, steps
from fedjax_core.run.signals import Stop

__all__ = [
    "MAY_DIFFER",
    "CallbackFailed",
    "Ended",
    "Finished",
    "Interrupted",
    "Outcome",
    "Started",
    "Stop",
    "check_inputs",
    "digest_inputs",
    "is_begun_anew",
    "recorded_plan",
    "restored",
    "run",
    "run_in_lanes",
    "steps",
]
