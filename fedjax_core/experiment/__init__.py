"""From a config to a simulation, and to a run: what the command lines and the notebooks share.

`resolve` finds and checks all that a config names, `build` makes a simulation of it, `execute` runs
it in a work directory, and `load` reads a run.
"""

from fedjax_core.experiment.build_model import begun_from, build_network, scaling_of, spell_network
from fedjax_core.experiment.build_simulator import build
from fedjax_core.experiment.build_task import dataset, name_inputs, prepared
from fedjax_core.experiment.input_normalization import scale, scaling
from fedjax_core.experiment.lookup import LOSSES, NORMALISATIONS, OPTIMIZERS, SCORES, builder, load_config, method, names
from fedjax_core.experiment.python_overrides import switch
from fedjax_core.experiment.resolve_config import STATISTICS, TASKS, Asked, check, complete_config, resolve
from fedjax_core.experiment.run_experiment import PROGRAMS, execute, keep_programs, load, use_all_cores
from fedjax_core.experiment.schema import Config
from fedjax_core.experiment.sweep import Run, alike, execute_all, lanes_of

__all__ = [
    "LOSSES",
    "NORMALISATIONS",
    "OPTIMIZERS",
    "PROGRAMS",
    "SCORES",
    "STATISTICS",
    "TASKS",
    "Asked",
    "Config",
    "Run",
    "alike",
    "begun_from",
    "build",
    "build_network",
    "builder",
    "check",
    "complete_config",
    "dataset",
    "execute",
    "execute_all",
    "keep_programs",
    "lanes_of",
    "load",
    "load_config",
    "method",
    "name_inputs",
    "names",
    "prepared",
    "resolve",
    "scale",
    "scaling",
    "scaling_of",
    "spell_network",
    "switch",
    "use_all_cores",
]
