"""One measurement in a separate process: prints a line of JSON.

python -m tests.benchmarks.accelerator.steps '{"what": "rate", "dtype": "tf32"}'
python -m tests.benchmarks.accelerator.steps '{"what": "rounds", "workload": "p7", "dtype": "bfloat16", "chunk": 10}'
"""

import dataclasses
import importlib
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from configs.tables.base import Column, Measure, Row, Table
from fedjax_core import experiment
from fedjax_core.commands import tables
from fedjax_core.engine.simulator import Simulator
from fedjax_core.experiment import build_simulator, mock_data
from tests.benchmarks import ours
from tests.benchmarks.accelerator import llama
from tests.benchmarks.workloads import WORKLOADS, Workload

REPEATS = 5


def rate(toy: bool, dtype: str) -> dict[str, Any]:
    """Measures a large matrix product. Exits if jax sees no accelerator."""
    if jax.default_backend() == "cpu" and not toy:
        raise ValueError("jax sees no accelerator here; --toy tries the pieces on a CPU")
    return {"dtype": dtype, "gflops": ours.matmul_rate(dtype) / 1e9}


def rounds(toy: bool, workload: str, dtype: str = "float32", **settings: Any) -> dict[str, Any]:
    """Measures a workload of the benchmarks."""
    of = small(WORKLOADS[workload]) if toy else WORKLOADS[workload]
    found = timed(ours.build(of, dtype=dtype, **settings), of.rounds, toy)
    return {"workload": workload, "title": of.title, "dtype": dtype, **settings, "gflop": of.flop / 1e9} | found


def small(workload: Workload) -> Workload:
    """Returns a workload at toy size: two of four clients with eight examples each."""
    models: dict[str, dict[str, Any]] = {
        "c10": {"model": "cnn", "shape": (8, 8, 1), "options": {"widths": (2,), "dense": (4,), "dropout": 0.25}},
    }
    made = models.get(workload.name, {"model": "mlp", "shape": (8,), "options": {"widths": (4,)}})
    return dataclasses.replace(workload, **made, classes=3, population=4, cohort=2, examples=8, batch=4, rounds=1, rows=None)


def config(toy: bool, config: str, repeats: int = 2) -> dict[str, Any]:
    """Measures a config's paper variant on mock data of the same size."""
    made = experiment_config(config, "smoke" if toy else "paper")
    if toy:
        made.models, made.plan.devices, made.data.clients = ("mlp(widths=(4,))",), 1, 4
    simulation = build_simulator.build(made, pipeline=mock_data.mock_pipeline(experiment.resolve(made)))
    return {"config": config, "published_rounds": made.rounds} | timed(simulation, 1, toy, repeats)


def experiment_config(name: str, variant: str) -> Any:
    """Returns a built-in config."""
    return importlib.import_module(f"configs.{name}").get_config(variant)


def lanes(toy: bool, lanes: int, folder: str) -> dict[str, Any]:
    """Measures eight seeds of FedAvg on digits, some at once in one program."""
    made = experiment_config("fedavg", "smoke" if toy else "small")
    if "lanes" not in made.plan:
        return {"lanes": lanes, "says": "there is no config.plan.lanes here"}
    changes = {"plan.lanes": lanes, **({"plan.devices": 1, "rounds": 1, "evaluation.every": 1, "data.clients": 4} if toy else {})}
    table = Table(
        title="Lanes",
        rows=(Row("FedAvg", lambda variant: experiment_config("fedavg", variant)),),
        columns=(Column("digits", {"models": ("mlp(widths=(4,))",)} if toy else {}),),
        measures=(Measure("global", ("test/global/accuracy",)),),
        seeds=tuple(range(2 if toy else 8)),
        changes=changes,
    )
    shutil.rmtree(folder, ignore_errors=True)  # left by an ended call: its finished runs would take no time
    began = time.perf_counter()
    outcome = tables.run(table, folder, "smoke" if toy else "small", progress=False, say=lambda text: None)
    if outcome.failures:
        raise ValueError("; ".join(outcome.failures.values()))
    seconds, runs = time.perf_counter() - began, list(outcome.results.values())
    means = [run.values["global"] for run in runs]
    return {"lanes": lanes, "runs": len(runs), "seconds": seconds, "in_rounds": sum(run.seconds for run in runs), "scores": means}


def fedit(toy: bool, folder: str, chunk: int, batch: int) -> dict[str, Any]:
    """Measures FedIT in FedOA's setting, with a random network."""
    simulation, tokens, parameters = llama.simulation(folder, chunk, batch, toy)
    found = timed(simulation, 1, toy, 2)
    per_second = tokens / statistics.median(found["seconds"])
    return {"chunk": chunk, "batch": batch, "parameters": parameters, "tokens": tokens, "tokens_per_second": per_second} | found


def timed(simulation: Simulator, number: int, toy: bool, repeats: int = REPEATS) -> dict[str, Any]:
    """Returns seconds per round, compile time, the plan that fits, and device memory."""
    ours.Compiling.seconds, began = 0.0, time.perf_counter()
    state = simulation.init(0)
    state, _ = simulation.run_rounds(state, number)
    first, compiled, seconds = time.perf_counter() - began, ours.Compiling.seconds, []
    for _ in range(1 if toy else repeats):
        start = time.perf_counter()
        state, records = simulation.run_rounds(state, number)
        jax.block_until_ready(state)
        seconds.append((time.perf_counter() - start) / number)
    simulation.release()
    loss = float(records[-1].get("train/loss", np.nan))
    found = {
        "seconds": seconds,
        "first_seconds": first,
        "compile_seconds": compiled,
        "plan": simulation.spec.plan._asdict(),
        "loss": loss,
    }
    return found | {"memory": {name: value for name, value in _memory().items() if name in ("peak_bytes_in_use", "bytes_limit")}}


def _memory() -> dict[str, int]:
    return jax.local_devices()[0].memory_stats() or {}


WHAT: dict[str, Callable[..., dict[str, Any]]] = {
    "rate": rate,
    "rounds": rounds,
    "config": config,
    "lanes": lanes,
    "fedit": fedit,
}


def main(arguments: Sequence[str]) -> int:
    """Runs the measurement given as JSON; prints a line of JSON with the device."""
    options = json.loads(arguments[0])
    what, cache = options.pop("what"), options.pop("cache", experiment.COMPILATION_CACHE)
    ours.set_up(dtype=options.get("dtype", "tf32"))
    if cache:
        experiment.cache_compiled_programs(cache)
    try:
        found = WHAT[what](**options)
    except (ValueError, TypeError, OSError, jax.errors.JaxRuntimeError) as error:
        sys.stderr.write(f"{' '.join(str(error).split())[:400]}\n")
        return 1
    device = jax.devices()[0]
    line = {"what": what, **found, "device": device.device_kind, "devices": jax.device_count(), "jax": jax.__version__}
    sys.stdout.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
