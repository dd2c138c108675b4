"""BlazeFL's FedAvg: `python -m tests.benchmarks.peers.blazefl_simulation '{"workload": "a"}'`.

One thread per core, its recommended mode, in a Python without the GIL; or, with "serial", its loop
over clients with all of torch's threads. A batch is cut out of the client's tensors by one index,
which is faster than the loader of its examples.
"""

import json
import os
import sys
from importlib import metadata

import torch
from blazefl.contrib import FedAvgBaseClientTrainer, FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from tests.benchmarks import protocol
from tests.benchmarks.peers import torch_models
from tests.benchmarks.workloads import SEED, WORKLOADS, Workload


class Data:
    """The clients' data, in BlazeFL's form."""

    def __init__(self, workload: Workload):
        x, y = torch_models.tensors(workload)
        self.clients = [TensorDataset(x[rows], y[rows]) for rows in torch.from_numpy(workload.index())]

    def get_dataloader(self, type_, cid, batch_size, generator) -> DataLoader:
        """Returns the batches of a client, in an order that `generator` draws."""
        del type_
        batches = BatchSampler(RandomSampler(self.clients[cid], generator=generator), batch_size, drop_last=False)
        return DataLoader(self.clients[cid], sampler=batches, batch_size=None)


class Models:
    """The workload's network, in BlazeFL's form."""

    def __init__(self, workload: Workload):
        self.workload = workload

    def select_model(self, model_name) -> torch.nn.Module:
        """Returns a new network."""
        del model_name
        return torch_models.build(self.workload)


def main(options):
    """Warms up and serves."""
    workload = WORKLOADS[options["workload"]]
    cores = len(os.sched_getaffinity(0))
    torch.manual_seed(SEED)
    torch.set_num_threads(cores if options.get("serial") else 1)
    common = dict(model_selector=Models(workload), model_name="", dataset=Data(workload), device="cpu", seed=SEED)
    common |= dict(num_clients=workload.population, batch_size=workload.batch)
    server = FedAvgBaseServerHandler(global_round=10**9, sample_ratio=workload.cohort / workload.population, **common)
    assert server.num_clients_per_round == workload.cohort
    common |= dict(epochs=workload.epochs, lr=workload.lr)
    if options.get("serial"):
        trainer = FedAvgBaseClientTrainer(**common)
    else:
        assert not sys._is_gil_enabled(), "BlazeFL's threads need a Python without the GIL"
        trainer = FedAvgThreadPoolClientTrainer(num_parallels=cores, **common)

    def run(rounds):
        for _ in range(rounds):
            trainer.local_process(server.downlink_package(), server.sample_clients())
            for update in trainer.uplink_package():
                server.load(update)

    run(workload.rounds)
    versions = {name: metadata.version(name) for name in ("blazefl", "torch")}
    protocol.serve(run, versions=versions, python=sys.version.split()[0])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
