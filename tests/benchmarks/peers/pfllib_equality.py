"""PFLlib's own code and ours train from the same weights on the same files, and are compared.

python -m tests.benchmarks.peers.pfllib_equality CHECKOUT [METHOD ...]

CHECKOUT is a clone of TsingZ0/PFLlib, whose servers and clients run unchanged, evaluation included.
The environment has torch, h5py and matplotlib beside our packages. Digits are divided among clients
of different sizes and written in PFLlib's format, which both sides read; the network is an MLP; a
batch has all examples of its client, so that the order of batches is the same. Where PFLlib departs
from a method's paper, it is run again with the departure taken back.

Prints a line of JSON for each run: the largest difference of a weight of the server or a client
after all rounds, and the largest change that training made.
"""

import argparse
import contextlib
import copy
import importlib
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import torch

from fedjax_core import experiment
from fedjax_core.algorithm import PyTree
from fedjax_core.data import sources

ROUNDS, EPOCHS, RATE, WIDTH = 5, 3, 0.1, 32
SIZES = (40, 55, 70, 85, 100)  # training examples of the clients
TEST = 20  # test examples of each
NAME = "peer"  # of the data set
BASE = {  # PFLlib's arguments for all methods
    "algorithm": "peer", "dataset": NAME, "device": "cpu", "save_folder_name": "items", "num_classes": 10,
    "batch_size": max(SIZES), "local_learning_rate": RATE, "local_epochs": EPOCHS, "few_shot": 0,
    "learning_rate_decay": False, "learning_rate_decay_gamma": 1.0, "global_rounds": ROUNDS - 1,  # it trains one more
    "num_clients": len(SIZES), "join_ratio": 1.0, "random_join_ratio": False, "time_select": False, "goal": "test",
    "time_threthold": 1e9, "top_cnt": 100, "auto_break": False, "eval_gap": 1, "client_drop_rate": 0.0,
    "train_slow_rate": 0.0, "send_slow_rate": 0.0, "dlg_eval": False, "dlg_gap": 100, "batch_num_per_client": 2,
    "num_new_clients": 0, "fine_tuning_epoch_new": 0,
}  # fmt: skip


class Peer(NamedTuple):
    """A method of PFLlib beside ours.

    Attributes:
      module: below flcore.servers.
      name: of the server's class.
      arguments: of its own.
      options: of our method.
      server: whether the servers' networks are compared.
      client: our clients' networks, of their states; None: none are compared.
      attribute: PFLlib's client's network.
      repair: the departure from the paper, and a context in which it is taken back.
    """

    module: str
    name: str
    arguments: dict[str, Any]
    options: dict[str, Any]
    server: bool = True
    client: Callable[[PyTree], PyTree] | None = None
    attribute: str = "model"
    repair: tuple[str, Callable[[], contextlib.AbstractContextManager]] | None = None


def square_norms() -> contextlib.AbstractContextManager:
    """Squares norms in the loss of FedDyn's clients."""
    return mock.patch("torch.norm", lambda vector, p: vector @ vector)


@contextlib.contextmanager
def collect_after_training() -> Iterator[None]:
    """Makes FedProto's clients call their `collect_protos`, which takes features of the trained network."""
    client = importlib.import_module("flcore.clients.clientproto").clientProto
    train = client.train

    def train_and_collect(self):
        train(self)
        self.collect_protos()

    with mock.patch.object(client, "train", train_and_collect):
        yield


PEERS = {
    "fedavg": Peer("serveravg", "FedAvg", {}, {}),
    "fedprox": Peer("serverprox", "FedProx", {"mu": 0.5}, {"mu": 0.5}),
    "scaffold": Peer("serverscaffold", "SCAFFOLD", {"server_learning_rate": 0.5}, {"server_lr": 0.5}),
    "feddyn": Peer(
        "serverdyn",
        "FedDyn",
        {"alpha": 1.0},
        {"alpha": 1.0},
        repair=("the regulariser is the norm, not its square", square_norms),
    ),
    "ditto": Peer(
        "serverditto",
        "Ditto",
        {"mu": 0.5, "plocal_epochs": EPOCHS},
        {"lam": 0.5},
        client=lambda client: client.params,
        attribute="model_per",
    ),
    "fedala": Peer(
        "serverala",
        "FedALA",
        {"eta": 1.0, "rand_percent": 100, "layer_idx": 2},
        {"mix_lr": 1.0, "fraction": 1.0, "first_limit": 1000},
        client=lambda client: client.local.params,
    ),
    "fedproto": Peer(
        "serverproto",
        "FedProto",
        {"lamda": 1.0},
        {"lam": 1.0, "weights": "uniform"},
        server=False,
        client=lambda client: client.params,
        repair=("prototypes average the features of all epochs, as the network changed", collect_after_training),
    ),
}


def write_data(folder: Path) -> None:
    """Writes digits in PFLlib's form; a client has mostly three classes."""
    digits, rng = sources.load("digits"), np.random.default_rng(0)
    x, y = np.concatenate([digits.train.x, digits.test.x]), np.concatenate([digits.train.y, digits.test.y])
    x = x.reshape(len(x), 1, 8, 8).astype(np.float32) / np.max(x)
    free = np.ones(len(y), bool)
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
    for client, size in enumerate(SIZES):
        odds = np.where((y - 2 * client) % 10 < 3, 10.0, 1.0) * free
        index = rng.choice(len(y), size + TEST, replace=False, p=odds / odds.sum())
        free[index] = False
        for part, rows in (("train", index[:size]), ("test", index[size:])):
            np.savez(folder / part / f"{client}.npz", data=np.array({"x": x[rows], "y": y[rows]}, dtype=object))


def run_ours(method: str, folder: Path) -> tuple[PyTree, Any]:
    """Returns our initial network's parameters and the state after all rounds."""
    config = importlib.import_module(f"configs.{method}").get_config("smoke")
    config.data.update(source=f"pfllib:{NAME}", dir=str(folder), partition="natural", clients=len(SIZES))
    config.update(models=(f"mlp(widths=({WIDTH},))",), normalise="unit", rounds=ROUNDS)
    config.optimizer.lr, config.cohort.fraction = RATE, 1.0
    config.method.update(epochs=EPOCHS, batch=max(SIZES), **PEERS[method].options)
    simulator = experiment.build(config)
    peer, state = PEERS[method], simulator.init(seed=0)
    first = state.server.net.params if peer.client is None else jax.tree.map(lambda leaf: leaf[0], peer.client(state.clients[0]))
    first = jax.device_get(first)  # the rounds reuse its memory
    return first, simulator.run_rounds(state, ROUNDS)[0]


def make_network(params: PyTree) -> torch.nn.Module:
    """Returns the network with our parameters, split into PFLlib's base and head."""
    models = importlib.import_module("flcore.trainmodel.models")
    layers = [torch.nn.Linear(64, WIDTH), torch.nn.Linear(WIDTH, 10)]
    with torch.no_grad():
        for layer, name in zip(layers, ("dense1", "head"), strict=True):
            layer.weight.copy_(torch.tensor(np.array(params[name]["kernel"]).T))
            layer.bias.copy_(torch.tensor(np.array(params[name]["bias"])))
    return models.BaseHeadSplit(torch.nn.Sequential(torch.nn.Flatten(), layers[0], torch.nn.ReLU()), layers[1])


def flatten_ours(params: PyTree) -> np.ndarray:
    """Returns a network's weights in torch's order."""
    arrays = [params[name][leaf] for name in ("dense1", "head") for leaf in ("kernel", "bias")]
    return np.concatenate([np.asarray(array).T.ravel() for array in arrays])


def flatten_peer(network: torch.nn.Module) -> np.ndarray:
    """Returns a network's weights."""
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in network.parameters()])


def run_peer(peer: Peer, first: PyTree) -> Any:
    """Returns PFLlib's server after all rounds; it writes its results into the parent folder."""
    server_class = getattr(importlib.import_module(f"flcore.servers.{peer.module}"), peer.name)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        server = server_class(argparse.Namespace(**BASE | peer.arguments, model=copy.deepcopy(make_network(first))), 0)
        for client in server.clients:
            client.batch_size = client.train_samples
        server.train()
    return server


def compare(method: str, state: Any, first: PyTree, server: Any) -> dict[str, float]:
    """Returns the largest difference of a weight of server and clients, and the largest change in training."""
    peer, pairs = PEERS[method], []
    if peer.server:
        pairs.append((flatten_ours(state.server.net.params), flatten_peer(server.global_model)))
    if peer.client is not None:
        networks = jax.device_get(peer.client(state.clients[0]))
        for i, client in enumerate(server.clients):
            own = jax.tree.map(lambda leaf, i=i: leaf[i], networks)
            pairs.append((flatten_ours(own), flatten_peer(getattr(client, peer.attribute))))
    start = flatten_ours(first)
    return {
        "difference": float(np.max([np.max(np.abs(ours - theirs)) for ours, theirs in pairs])),
        "change": float(np.max([np.max(np.abs(ours - start)) for ours, _ in pairs])),
    }


def main(checkout: str, *methods: str) -> None:
    """Compares methods, by default all."""
    sys.path.insert(0, str(Path(checkout).resolve() / "system"))
    with tempfile.TemporaryDirectory() as scratch:
        write_data(Path(scratch) / "dataset" / NAME)
        (Path(scratch) / "system").mkdir()
        os.chdir(Path(scratch) / "system")  # PFLlib's paths are relative to it
        for method in methods or PEERS:
            first, state = run_ours(method, Path(scratch) / "dataset")
            peer = PEERS[method]
            for departure, context in (("", contextlib.nullcontext), *([peer.repair] if peer.repair else [])):
                with context():
                    server = run_peer(peer, first)
                line = {"method": method, "taken back": departure} | compare(method, state, first, server)
                print(json.dumps(line), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
