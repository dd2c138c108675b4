"""A run: rounds, scores, checkpoints, callbacks and records in one directory, from wherever it was left."""

from fedjax_core.run.callbacks import CallbackFailed, Ended, Started
from fedjax_core.run.directory import MAY_DIFFER, restored
from fedjax_core.run.loop import Finished, Interrupted, run

__all__ = ["MAY_DIFFER", "CallbackFailed", "Ended", "Finished", "Interrupted", "Started", "restored", "run"]
