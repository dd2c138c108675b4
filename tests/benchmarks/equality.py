"""The engine and the bare torch loop compute the same average from equal weights and batches.

The engine's batches are read off a simulation with the same seed and a "network" whose weights are
a step counter and, per example, the step in which it was used. Then torch trains on them, from the
same weights.
"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Examples, Net
from fedjax_core.data import federated_data
from fedjax_core.engine import simulator
from fedjax_core.task import Model, make_task
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from tests.benchmarks import ours
from tests.benchmarks.workloads import WORKLOADS, Workload

TOLERANCE = 1e-4
GENTLE = 0.001  # rate for networks with batch normalisation: at 0.05, torch differs more from torch in float64 than from ours


def batches(workload: Workload, data: federated_data.FederatedData) -> dict[int, np.ndarray]:
    """Returns client -> [steps, B] indices of round 1 of seed 0 (one epoch, equal batches)."""
    rows = len(data.train.y)
    spied = dataclasses.replace(data, train=Examples(np.arange(rows, dtype=np.int32), data.train.y))

    def init(key):
        del key
        return Net({"head": {"step": jnp.zeros(()), "seen": jnp.zeros(rows)}})

    def loss(net, batch, key):
        del key
        counter = net.params["head"]
        step = jax.lax.stop_gradient(counter["step"]) + 1  # plain SGD with rate 1 makes steps of minus the gradient
        value = -counter["step"] - step * jnp.sum(jnp.where(batch.mask, counter["seen"][batch.x], 0))
        return value, local_training.Aux(net.stats, {})

    model = Model(init, lambda *_, **__: ({}, ()), lambda *_, **__: (None, ()), lambda *_: None, "spy")
    task = make_task(model, classes=workload.classes, population=workload.population)

    def build(task):
        return fedavg(task, optimizer=local_training.sgd(1.0), epochs=workload.epochs, batch=workload.batch, loss=loss)._replace(
            predict={}
        )

    spy = simulator.Simulator(
        simulator.build_spec(simulator.one_group(build, task, workload.population), spied, cohort=workload.cohort)
    )
    state, _ = spy.run_rounds(spy.init(seed=0), 1)
    seen = np.rint(np.asarray(state.server.net.params["head"]["seen"]) * workload.cohort).astype(int)
    found = {}
    for client, index in enumerate(workload.index()):
        steps = seen[index]
        if steps.any():
            found[client] = np.stack([index[steps == s + 1] for s in range(workload.steps)])
    if len(found) != workload.cohort:
        raise AssertionError(f"the spy saw {len(found)} clients, not {workload.cohort}")
    return found


def named(part: str, net: Net) -> dict[str, np.ndarray]:
    """Returns leaves by "part/path"."""
    leaves = jax.tree_util.tree_leaves_with_path((net.params, net.stats))
    return {"/".join([part, *(key.key for key in path[1:])]): np.asarray(leaf) for path, leaf in leaves}


def check(name: str, python: Path, scratch: Path) -> dict[str, Any]:
    """Compares one workload of FedAvg without dropout.

    Args:
      name: the workload.
      python: the interpreter of torch's environment.
      scratch: a directory.

    Returns: "difference": the largest one of an averaged weight; "change": the largest change in
    the round.
    """
    workload = WORKLOADS[name]
    if workload.model.startswith("resnet"):
        workload = dataclasses.replace(workload, lr=GENTLE)
    real = ours.build(workload)
    state = real.init(seed=0)
    before = jax.device_get(state.server.net)
    state, _ = real.run_rounds(state, 1)
    arrays = named("before", before) | named("after", jax.device_get(state.server.net))
    arrays |= {f"batches/{client:06d}": rows for client, rows in batches(workload, real.spec.data).items()}
    scratch.mkdir(parents=True, exist_ok=True)
    file = scratch / f"equality_{name}.npz"
    np.savez(file, **arrays)
    options = json.dumps({"workload": name, "check": str(file), "lr": workload.lr})
    command = [str(python), "-m", "tests.benchmarks.peers.torch_loop", options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return {"workload": name, **json.loads(done.stdout.splitlines()[-1])}


if __name__ == "__main__":
    ours.set_up()
    for name in sys.argv[2:]:
        print(json.dumps(check(name, Path(sys.argv[1]), Path("build/benchmarks"))))  # noqa: T201
