"""XLA's flags for tests: a third of the time to compile, for programs that run for milliseconds."""

from collections.abc import Mapping

import jaxlib

FLAGS = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",  # the parts of a small program cost more than they gain
    "xla_disable_hlo_passes": "simplify-while-loops,while-loop-invariant-code-motion,while-loop-constant-sinking,"
    "tree_reduction_rewriter,"  # run again and again for a program: a tenth of the time
    "hlo-verifier",  # looks for mistakes of XLA's own passes after each of them
}
KNOWN = ("0.10.", "0.11.")  # versions of jaxlib that have all of them: XLA ends the process at a flag that it does not know


def flags(environment: Mapping[str, str]) -> str:
    """XLA_FLAGS of an environment with these added, where nothing else is said of them."""
    given = environment.get("XLA_FLAGS", "")
    if environment.get("FEDJAX_TEST_OPTIMISED") or not jaxlib.__version__.startswith(KNOWN):
        return given
    return " ".join([given, *(f"--{name}={value}" for name, value in FLAGS.items() if name not in given)]).strip()
