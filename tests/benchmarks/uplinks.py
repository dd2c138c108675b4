"""Cost of rules, compressors and noise: rounds of FedAvg with each, against plain ones, in turns.

python -m tests.benchmarks --scale=uplinks --repeats=9
python -m tests.benchmarks --scale=uplinks_resnet8 --repeats=3
"""

import dataclasses
import os
import time
from collections.abc import Mapping

from fedjax_core.engine.simulator import Simulator, build_spec, one_group
from fedjax_core.privacy import cyclic_participation, matrix_factorization
from fedjax_core.uplink import UplinkTransform, compression, dp_matrix_mechanism, dp_mechanisms, robust_aggregation
from tests.benchmarks import ours
from tests.benchmarks.turns import Contender, measure, table
from tests.benchmarks.workloads import WORKLOADS, Workload

ROUNDS = 3
EPOCHS = 10  # local epochs of the second table
RULES = (
    *("mean", "median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median", "centred_clipping", "norm_bound"),
    "mixing | trimmed_mean",
)
OF_RESNET8 = ("median", "trimmed_mean", "krum", "bulyan")  # for a network with more computation per parameter
COMPRESSORS = ("bfloat16", "quantise(bits=4)", "top_k", "random_k", "power_sgd", "sign")


def links() -> dict[str, UplinkTransform | None]:
    """Returns the uplink transforms that are compared with plain FedAvg, which is first."""
    cohort = WORKLOADS["a"].cohort
    turns = cyclic_participation(1000, cohort, WORKLOADS["a"].population)
    noise = {"gaussian": dp_mechanisms.gaussian(1.0, 1.0, cohort, cohort)}
    for strategy in (
        matrix_factorization.tree(turns),
        matrix_factorization.banded(turns, bands=8),
        matrix_factorization.blt(turns, buffers=3),
    ):
        noise[strategy.name] = dp_matrix_mechanism.make_mechanism(1.0, 1.0, cohort, cohort, strategy)
    parsed = {text: robust_aggregation.parse_rule(text) for text in RULES} | {
        text: compression.parse_compressor(text) for text in COMPRESSORS
    }
    return {"FedAvg": None, **parsed, **noise}


def simulated(workload: Workload, link: UplinkTransform | None) -> Simulator:
    """Returns a workload as a simulation with equal weights."""
    plain = ours.build(workload)
    build = ours.method(workload, weights="uniform")
    groups = one_group(build, ours.task_of(workload), workload.population)
    data = ours.federation(workload)
    given = {} if link is None else {"links": [link], "leave_out": link.kind in ("rule", "privacy")}
    return Simulator(build_spec(groups, data, cohort=workload.cohort, plan=plain.spec.plan, **given))


def costs(repeats: int) -> str:
    """Measures rounds and ratios to plain FedAvg, on workload a and with more local epochs."""
    short = WORKLOADS["a"]
    long = dataclasses.replace(short, epochs=EPOCHS, title=f"{short.title}, {EPOCHS} epochs")
    return "\n\n".join(_costs(workload, links(), ROUNDS, repeats) for workload in (short, long))


def costs_resnet8(repeats: int) -> str:
    """Measures rules on ResNet-8 as in `costs`: 100 of 100 clients, one batch of 50 each."""
    title = "ResNet-8 (3x3 stem), 32x32x3, 100 of 100 clients x 50, batch 50"
    workload = dataclasses.replace(WORKLOADS["b4"], population=100, cohort=100, examples=50, batch=50, title=title)
    return _costs(workload, {"FedAvg": None} | {rule: robust_aggregation.parse_rule(rule) for rule in OF_RESNET8}, 1, repeats)


def _costs(workload: Workload, compared: Mapping[str, UplinkTransform | None], rounds: int, repeats: int) -> str:
    before, contenders = os.getloadavg()[0], []
    for name, link in compared.items():
        start = time.perf_counter()
        contender = Contender(name, simulated(workload, link), rounds)
        contender.state = contender.simulation.init(0)
        contender.turn()
        contender.setting_up = time.perf_counter() - start
        contenders.append(contender)
    measure(contenders, repeats)
    return table(f"**uplinks** {workload.title}; a round", contenders, before)
