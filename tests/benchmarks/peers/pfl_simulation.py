"""pfl-research's simulated backend, one process: `python -m tests.benchmarks.peers.pfl_simulation '{"workload": "a"}'`."""

import json
import os
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.version import __version__
from torch.nn import functional as F

from tests.benchmarks import protocol
from tests.benchmarks.peers import torch_models
from tests.benchmarks.workloads import SEED, WORKLOADS


class Trained(torch.nn.Module):
    """A network in pfl's interface."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def loss(self, x, y):
        """Returns the mean cross-entropy."""
        self.train()
        return F.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        """Returns the metrics of an evaluation; only the warm-up round has one."""
        self.eval()
        return {"loss": Weighted(F.cross_entropy(self.network(x), y, reduction="sum").item(), len(y))}


class Turns(TrainingProcessCallback):
    """Lets the benchmark decide when the next rounds run."""

    def __init__(self, warm_up, **ready):
        self.left, self.ready, self.gate = warm_up, ready, protocol.Gate()
        self.asked = None

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Counts, reports, waits."""
        self.left -= 1
        if self.left:
            return False, Metrics()
        if self.asked is None:
            self.gate.say(ready=True, **self.ready)
            self.asked = iter(self.gate)
        else:
            self.gate.say(seconds=(time.perf_counter() - self.start) / self.rounds)
        self.rounds = self.left = next(self.asked, 0)
        self.start = time.perf_counter()
        return not self.rounds, Metrics()


def main(options):
    """Warms up and serves."""
    workload = WORKLOADS[options["workload"]]
    torch.manual_seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 - pfl draws from it
    torch.set_num_threads(options.get("threads") or len(os.sched_getaffinity(0)))
    x, y = torch_models.tensors(workload)
    index = torch.from_numpy(workload.index())

    def client(i):
        rows = index[i][torch.randperm(workload.examples)]
        return Dataset(raw_data=(x[rows], y[rows]), user_id=str(i))

    network = Trained(torch_models.build(workload))
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
    clients = FederatedDataset(client, get_user_sampler("minimize_reuse", list(range(workload.population))))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**9, evaluation_frequency=10**9, train_cohort_size=workload.cohort, val_cohort_size=None
        ),
        SimulatedBackend(training_data=clients, val_data=None),
        model,
        NNTrainHyperParams(local_num_epochs=workload.epochs, local_learning_rate=workload.lr, local_batch_size=workload.batch),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[
            Turns(
                max(2, workload.rounds),
                versions={"pfl": __version__, "torch": torch.__version__},
                threads=torch.get_num_threads(),
            )
        ],
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
