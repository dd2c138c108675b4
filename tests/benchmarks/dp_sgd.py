"""Cost of DP-SGD in local training: private rounds against plain ones, in turns, and their memory.

python -m tests.benchmarks --scale=dp_sgd --repeats=5
"""

import dataclasses
import os

import jax

from fedjax_core.engine import aot
from fedjax_core.engine.simulator import Simulator, build_spec, one_group
from fedjax_core.task import count_parameters
from fedjax_core.training.private_gradient import ExamplePrivacy
from tests.benchmarks import ours
from tests.benchmarks.turns import Contender, measure, table
from tests.benchmarks.workloads import WORKLOADS, Workload

CLIENTS = {"a": 20, "c": 1, "g": 1}  # of each workload's cohort: an MLP, a CNN, prompts of a frozen transformer
PRIVACIES = {"plain": None, "clipped": ExamplePrivacy(1.0, 0.0), "clipped and noisy": ExamplePrivacy(1.0, 1.0)}


def simulate(workload: Workload, privacy: ExamplePrivacy | None) -> Simulator:
    """Returns a workload as a simulation with or without privacy of examples."""
    plain = ours.build(workload)
    groups = one_group(ours.method(workload), ours.task_of(workload), workload.population)
    spec = build_spec(groups, ours.federation(workload), cohort=workload.cohort, plan=plain.spec.plan, example_privacy=privacy)
    return Simulator(spec)


def measure_memory(simulator: Simulator) -> float:
    """Returns the temporary MB of the compiled round."""
    (trace,) = aot.trace_programs(simulator, (aot.ROUND,)).values()
    return trace().lower().compile().memory_analysis().temp_size_in_bytes / 1e6


def costs(repeats: int) -> str:
    """Measures rounds, ratios to plain ones, and memory."""
    tables = []
    for name, cohort in CLIENTS.items():
        workload, before = dataclasses.replace(WORKLOADS[name], cohort=cohort), os.getloadavg()[0]
        contenders = [Contender(label, simulate(workload, privacy), 1) for label, privacy in PRIVACIES.items()]
        measure(contenders, repeats)
        memory = ", ".join(f"{each.name} {measure_memory(each.simulation):.1f}" for each in contenders)
        model = contenders[0].simulation.spec.bound_groups[0].task.model
        parameters = count_parameters(jax.eval_shape(model.init, jax.random.key(0)).params)
        title = f"**dp_sgd** {workload.title}; {cohort} clients a round; {parameters:,} trained parameters"
        tables.append(f"{table(title, contenders, before)}\n\nTemporary memory of a round, MB: {memory}.")
    return "\n\n".join(tables)
