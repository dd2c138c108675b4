"""From a config to a simulation, and to a run: what the command lines and the notebooks share.

`resolve` finds and checks all that a config names, `build` makes a simulation of it, `execute` runs
it in a work directory, and `load` reads a run.
"""

from fedjax_core.experiment.build_model import scaling_of, spell_network
from fedjax_core.experiment.build_simulator import build
from fedjax_core.experiment.build_task import dataset, is_divided_by_columns, name_inputs, read_instructions, read_public
from fedjax_core.experiment.input_files import existing_input_files
from fedjax_core.experiment.input_normalization import compute_mean_and_std
from fedjax_core.experiment.lookup import (
    LOSSES,
    OPTIMIZERS,
    SCORES,
    load_config,
    method_builder,
    method_summaries,
    model_builder,
)
from fedjax_core.experiment.python_overrides import switch_method
from fedjax_core.experiment.resolve_config import STATISTICS, TASKS, ResolvedConfig, check_config, complete_config, resolve
from fedjax_core.experiment.run_experiment import COMPILATION_CACHE, cache_compiled_programs, execute, load, use_all_cores
from fedjax_core.experiment.run_facts import list_changed, list_code_digests
from fedjax_core.experiment.schema import Config
from fedjax_core.experiment.sweep import Run, execute_all, group_seeds, seeds_at_once

__all__ = [
    "COMPILATION_CACHE",
    "LOSSES",
    "OPTIMIZERS",
    "SCORES",
    "STATISTICS",
    "TASKS",
    "Config",
    "ResolvedConfig",
    "Run",
    "build",
    "cache_compiled_programs",
    "check_config",
    "complete_config",
    "compute_mean_and_std",
    "dataset",
    "execute",
    "execute_all",
    "existing_input_files",
    "group_seeds",
    "is_divided_by_columns",
    "list_changed",
    "list_code_digests",
    "load",
    "load_config",
    "method_builder",
    "method_summaries",
    "model_builder",
    "name_inputs",
    "read_instructions",
    "read_public",
    "resolve",
    "scaling_of",
    "seeds_at_once",
    "spell_network",
    "switch_method",
    "use_all_cores",
]
