"""XLA flags for tests: they cut compile time to a third, for programs that run for milliseconds."""

import os
from collections.abc import Mapping

import jaxlib

FLAGS = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",  # splitting a small program costs more than it gains
    "xla_disable_hlo_passes": "simplify-while-loops,while-loop-invariant-code-motion,while-loop-constant-sinking,"
    "tree_reduction_rewriter,"  # runs many times per program: a tenth of the time
    "hlo-verifier",  # checks the output of every XLA pass
}
KNOWN = ("0.10.", "0.11.", "0.12.")  # versions of jaxlib that were tried: XLA ends the process on an unknown flag
GONE = {"0.12.": "xla_cpu_use_fusion_emitters"}  # a flag that a version no longer has


def flags(environment: Mapping[str, str]) -> str:
    """Returns the XLA_FLAGS of an environment, with these added unless they are set."""
    given = environment.get("XLA_FLAGS", "")
    if environment.get("FEDJAX_TEST_OPTIMISED") or not jaxlib.__version__.startswith(KNOWN):
        return given
    gone = next((flag for version, flag in GONE.items() if jaxlib.__version__.startswith(version)), None)
    added = (f"--{name}={value}" for name, value in FLAGS.items() if name not in given and name != gone)
    return " ".join([given, *added]).strip()


def cache_variables() -> dict[str, str]:
    """Returns variables with which other processes share the session's compiled programs, small ones too."""
    cache = {"JAX_COMPILATION_CACHE_DIR": os.environ["FEDJAX_TEST_PROGRAMS"]}
    return cache | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
