"""Flower's simulation engine (Ray): `python -m tests.benchmarks.peers.flower_simulation '{"workload": "a"}'`.

One actor per core, each with one torch thread.
"""

import functools
import json
import os
import sys
import time
from importlib import metadata

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from tests.benchmarks import protocol
from tests.benchmarks.peers import torch_models
from tests.benchmarks.workloads import SEED, WORKLOADS


@functools.cache
def held(name: str):
    """Returns the data that an actor keeps: (workload, network, x, y, index)."""
    torch.set_num_threads(1)
    workload = WORKLOADS[name]
    return workload, torch_models.build(workload), *torch_models.tensors(workload), torch.from_numpy(workload.index())


def train(message: Message, context: Context) -> Message:
    """Runs one client's round."""
    workload, model, x, y, index = held(message.content["config"]["workload"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    rows = index[int(context.node_config["partition-id"])]
    torch_models.train(model, x, y, torch_models.shuffled(rows, workload), workload.lr)
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": workload.examples})}
    return Message(content=RecordDict(content), reply_to=message)


class Turns(FedAvg):
    """Flower's FedAvg; lets the benchmark decide when the next rounds run."""

    def __init__(self, gate, warm_up, ready, **options):
        super().__init__(**options)
        self.left, self.gate, self.ready, self.asked = warm_up + 1, gate, ready, None

    def configure_train(self, *arguments, **options):
        """Waits for the benchmark; Flower calls it at the start of each round."""
        self.left -= 1
        if not self.left:
            if self.asked is None:
                self.gate.say(ready=True, **self.ready)
                self.asked = iter(self.gate)
            else:
                self.gate.say(seconds=(time.perf_counter() - self.start) / self.rounds)
            self.rounds = self.left = next(self.asked, 0)
            if not self.rounds:
                os._exit(0)
            self.start = time.perf_counter()
        return super().configure_train(*arguments, **options)

    def aggregate_train(self, server_round, replies):
        """Aggregates as Flower does, but a failed client fails the benchmark."""
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed:
            print(f"clients failed: {failed[0]}", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(1)
        return super().aggregate_train(server_round, replies)


def main(options):
    """Warms up and serves."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    gate = protocol.Gate()
    workload = WORKLOADS[options["workload"]]
    torch.manual_seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002
    cores = len(os.sched_getaffinity(0))
    versions = {name: metadata.version(name) for name in ("flwr", "ray", "torch")}
    server, client = ServerApp(), ClientApp()
    client.train()(train)

    @server.main()
    def _(grid: Grid, context: Context) -> None:
        strategy = Turns(
            gate,
            workload.rounds,
            {"versions": versions, "actors": cores},
            fraction_train=workload.cohort / workload.population,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.population,
            fraction_evaluate=0.0,
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(torch_models.build(workload).state_dict()),
            num_rounds=10**9,
            train_config=ConfigRecord({"workload": workload.name}),
        )

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=workload.population,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": cores}},
    )


if __name__ == "__main__":
    from tests.benchmarks.peers import flower_simulation  # so that actors import `train` by name

    flower_simulation.main(json.loads(sys.argv[1]))
