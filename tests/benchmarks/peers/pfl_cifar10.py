"""pfl-research's CIFAR-10 benchmark, IID, without privacy; `tests/benchmarks/cifar10.py` has data.

50 of 1,000 users a round, one epoch of batches of 10 at a rate of 0.1, equal weights, pixels
normalised by channel, torch's initial weights. DIR/metrics.jsonl gets a line every tenth round:
round, cumulative seconds of training, accuracy and loss on the test set. The same command resumes.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.restore_training import RestoreTrainingCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional as F

from tests.benchmarks.peers import torch_models
from tests.benchmarks.peers.pfl_simulation import Trained


class CNN(torch_models.CNN):
    """The CNN with a separate dropout rate after the dense layer."""

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2).flatten(1)
        x = F.relu(self.dense(F.dropout(x, 0.25, self.training)))
        return self.head(F.dropout(x, 0.5, self.training))


class Records(TrainingProcessCallback):
    """Evaluates every tenth round and writes a record."""

    def __init__(self, file, x, y, every=10):
        self.file, self.x, self.y, self.every = file, x, y, every
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        self.seconds, self.last = (found[-1]["seconds"], found[-1]["round"]) if found else (0.0, 0)

    def on_train_begin(self, *, model):
        self.began = time.perf_counter()
        return Metrics()

    @torch.no_grad()
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        done = central_iteration + 1
        if done % self.every or done <= self.last:
            return False, Metrics()
        self.seconds += time.perf_counter() - self.began
        network = model.pytorch_model.network.eval()
        out = torch.cat([network(x) for x in self.x.split(1000)])
        line = {
            "round": done,
            "seconds": round(self.seconds, 1),
            "accuracy": (out.argmax(1) == self.y).double().mean().item(),
            "loss": F.cross_entropy(out, self.y).item(),
        }
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.began = time.perf_counter()
        return False, Metrics()


def main(data, directory, rounds):
    """Trains or resumes."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - pfl draws from it
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    arrays = np.load(data)
    x, x_test = (torch.from_numpy(arrays[name].transpose(0, 3, 1, 2).astype(np.float32)) for name in ("x", "x_test"))
    mean, deviation = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    y, y_test = (torch.from_numpy(arrays[name].astype(np.int64)) for name in ("y", "y_test"))
    index = torch.from_numpy(arrays["index"].astype(np.int64))

    network = Trained(CNN((32, 32, 3), 10))
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
    users = FederatedDataset(
        lambda i: Dataset(raw_data=(x[index[i]], y[index[i]]), user_id=str(i)),
        get_user_sampler("minimize_reuse", list(range(len(index)))),
    )
    directory.mkdir(parents=True, exist_ok=True)
    algorithm = FederatedAveraging()
    algorithm.run(
        NNAlgorithmParams(central_num_iterations=rounds, evaluation_frequency=10**9, train_cohort_size=50, val_cohort_size=None),
        SimulatedBackend(training_data=users, val_data=None),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=10),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[
            Records(directory / "metrics.jsonl", x_test, y_test),
            RestoreTrainingCallback([model, algorithm], str((directory / "checkpoint").absolute())),
        ],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=1500)
    said = parser.parse_args()
    main(said.data, said.directory, said.rounds)
