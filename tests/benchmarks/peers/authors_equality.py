"""Authors' code of methods with narrow networks, prototypes, edges, generators or public data beside ours.

python -m tests.benchmarks.peers.authors_equality CHECKOUTS [CASE ...]

As `released_equality`, with clones of diaoenmao's HeteroFL (as HeteroFL), AIoT-MLSys-Lab/FedRolex,
Yutong-Dai/FedNH, LuminLiu/HierFL, KarhouTam/FL-bench and TsingZ0/PFLlib. Networks are ours, written in the
form that the code wants; the loops over rounds of FedRolex and HierFL are ours.
"""

import contextlib
import copy
import functools
import importlib
import sys
import types
from argparse import Namespace
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import torch

from fedjax_core.algorithm import PyTree
from tests.benchmarks.peers import pfllib_equality as pfllib
from tests.benchmarks.peers import released_equality as released
from tests.benchmarks.peers.pfllib_equality import EPOCHS, RATE, ROUNDS, SIZES, WIDTH, Ours, Peer, extend
from tests.benchmarks.peers.released_equality import DRAWN, PARAMS, Case, change, hold, make_result, read_data, stay

NARROW = {"models": (f"mlp(widths=({WIDTH},))", f"mlp(widths=({WIDTH // 2},))"), "optimizer.clip": 1.0}  # clients take turns
RATES = [1.0 - i % 2 / 2 for i in range(len(SIZES))]  # of their widths
EDGES = 2


class Batches:
    """A loader of one batch, all examples of a client."""

    def __init__(self, x: np.ndarray, y: np.ndarray):
        """Keeps a client's data."""
        self.dataset = list(zip(map(torch.tensor, x), torch.tensor(y), strict=True))

    def __iter__(self) -> Iterator[dict[str, list[torch.Tensor]]]:
        """Yields images and labels, to be stacked by the code."""
        yield {"img": [x for x, _ in self.dataset], "label": [y for _, y in self.dataset]}


def stub(**modules: Any) -> contextlib.AbstractContextManager:
    """Returns a context with these modules."""
    return mock.patch.dict(sys.modules, {name.replace("_dot_", "."): module for name, module in modules.items()})


def make_config(**settings: Any) -> dict[str, Any]:
    """Returns a configuration of HeteroFL's and FedRolex's code."""
    fixed = {
        "control": {}, "num_users": len(SIZES), "model_split_mode": "fix", "global_model_rate": 1.0, "classes_size": 10,
        "device": "cpu", "norm": "none", "scale": True, "mask": True, "optimizer_name": "SGD", "momentum": 0.0, "weight_decay": 0.0,
        "num_epochs": {"local": EPOCHS, "global": ROUNDS}, "log_interval": 1.0, "metric_name": {"train": {"Local": []}}, "frac": 1.0,
        "model_tag": "", "model_name": "conv", "data_shape": (1, 8, 8), "world_size": 1,
    }  # fmt: skip
    return fixed | settings


def list_labels() -> list[list[int]]:
    """Returns the classes of each client."""
    return [np.unique(labels).tolist() for labels in read_data("train")[1]]


def run_heterofl(peer: Peer, ours: Ours) -> Namespace:
    """Runs HeteroFL."""
    cfg = make_config(frac=len(ours.cohorts[0]) / len(SIZES))
    silent = {name: mock.MagicMock() for name in ("data", "logger", "metrics")}
    with stub(config=types.SimpleNamespace(cfg=cfg), **silent), mock.patch.object(sys, "argv", ["main"]):
        script, fed, models, modules = map(importlib.import_module, ("train_classifier_fed", "fed", "models", "modules"))
    make_narrow = functools.partial(write_network, models.Conv, modules.Scaler)
    network = make_narrow(1.0)
    pfllib.set_parameters(network, ours.network)
    clients = [Batches(*pair) for pair in zip(*read_data("train"), strict=True)]
    federation, labels = fed.Federation(network.state_dict(), RATES, list_labels()), list_labels()
    optimizer = script.make_optimizer(network, RATE)
    draws = [torch.tensor([*cohort, *set(range(len(SIZES))) - set(cohort.tolist())]) for cohort in ours.cohorts]
    with (
        mock.patch.object(models, "conv", make_narrow),
        mock.patch.object(script, "SplitDataset", lambda dataset, i: clients[i]),
        mock.patch.object(script, "make_data_loader", lambda parts: parts),
        mock.patch("torch.randperm", side_effect=draws),
    ):
        for epoch in range(ROUNDS):
            script.train(None, range(len(SIZES)), labels, federation, network, optimizer, mock.MagicMock(), epoch)
    return make_result(network)


def write_network(base: type[torch.nn.Module], scaler: type[torch.nn.Module], model_rate: float) -> torch.nn.Module:
    """Returns an MLP in HeteroFL's form, whose loss is its own."""
    network, width = base((1, 8, 8), [1], 10), int(WIDTH * model_rate)
    hidden = [torch.nn.Flatten(), torch.nn.Linear(64, width), scaler(model_rate), torch.nn.ReLU()]
    network.blocks = torch.nn.Sequential(*hidden, torch.nn.Linear(width, 10))
    return network


def run_fedrolex(peer: Peer, ours: Ours) -> Namespace:
    """Runs FedRolex's server and clients on a loop of ours."""
    cfg = make_config(active_user=len(ours.cohorts[0]), overlap=None, weighting="avg")
    ray = mock.MagicMock(get=lambda x: x, put=lambda x: x, remote=lambda **_: lambda kind: kind)
    silent = {name: mock.MagicMock() for name in ("data", "logger", "metrics")}
    server_module = importlib.import_module("resnet_server")
    with stub(config=types.SimpleNamespace(cfg=cfg), ray=ray, **silent):
        client_module, models, modules = map(importlib.import_module, ("resnet_client", "models", "modules"))

    class Dense(torch.nn.Linear):
        """A dense layer in place of a convolution."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.flatten(1))[..., None, None]

    class Narrow(models.resnet.ResNet):
        """A ResNet without blocks, whose loss is its own."""

        def __init__(self, model_rate: float, **_: Any):
            torch.nn.Module.__init__(self)
            width = int(WIDTH * model_rate)
            self.cfg, self.conv1, self.linear = cfg, Dense(64, width), torch.nn.Linear(width, 10)
            self.layer1 = self.layer2 = self.layer3 = self.layer4 = self.n4 = torch.nn.Identity()
            self.scaler = modules.Scaler(model_rate)

    network = Narrow(1.0)
    pfllib.set_parameters(network, ours.network)
    data = [Batches(*pair) for pair in zip(*read_data("train"), strict=True)]
    given = {"dataset": None, "split": range(len(SIZES)), "label_split": list_labels()}
    with (
        mock.patch.object(server_module, "ray", ray),
        mock.patch.object(client_module, "ray", ray),
        mock.patch.object(client_module.resnet, "resnet18", Narrow),
        mock.patch.object(client_module, "SplitDataset", lambda dataset, i: data[i]),
        mock.patch.object(client_module, "make_data_loader", lambda parts: parts),
        mock.patch.object(torch.Tensor, "to", stay(torch.Tensor.to)),
        mock.patch.object(torch.nn.Module, "to", stay(torch.nn.Module.to)),
        mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor),
    ):
        server = server_module.ResnetServerRoll(network, RATES, given, cfg)
        for cohort in ours.cohorts:
            clients = [client_module.ResnetClient("", [cfg]) for _ in cohort]
            remote = [Namespace(update=Namespace(remote=client.update)) for client in clients]
            others = [*set(range(len(SIZES))) - set(cohort.tolist())]
            with mock.patch("torch.randperm", return_value=torch.tensor([*cohort, *others])):
                _, index, ids = server.broadcast(remote, RATE)
            server.step([client.step(0, 1, 0.0) for client in clients], index, ids)
    return make_result(server.global_model)


def turn_back(server: Any, *_: Any) -> None:
    """Turns FedRolex's window the other way."""
    server.rounds -= 2


class Ones(dict):
    """Counts that stay 1."""

    def __getitem__(self, name: str) -> torch.Tensor:
        """Returns ones like the array."""
        return torch.ones_like(super().__getitem__(name))


def count_once(server: Any, *_: Any) -> None:
    """Keeps FedRolex's counts of updates at 1."""
    server.tmp_counts = Ones(server.tmp_counts)


def run_fednh(peer: Peer, ours: Ours) -> Namespace:
    """Runs FedNH."""
    with stub(PIL=mock.MagicMock(), wandb=mock.MagicMock(), tqdm=mock.MagicMock()):
        strategy, parent, cnn = map(
            importlib.import_module, ("src.flbase.strategies.FedNH", "src.flbase.strategies.FedUH", "src.flbase.models.CNN")
        )

    class PeerNH(cnn.ResNetModNH):
        """Our network, with its own classifier."""

        def __init__(self, config: dict[str, Any]):
            torch.nn.Module.__init__(self)
            self.config, self.return_embedding, self.activation = config, False, None
            params = {name: part for name, part in ours.network.items() if name != "scale"}
            self.backbone = pfllib.make_parts(params | {"head": {"kernel": np.zeros((WIDTH, 10)), "bias": np.zeros(10)}})[0]
            self.backbone.activation = None
            self.prototype = torch.nn.Parameter(torch.zeros(10, WIDTH))
            self.scaling = torch.nn.Parameter(torch.tensor([20.0]))

    class Set(torch.utils.data.TensorDataset):
        """Data with labels."""

        targets = property(lambda self: self.tensors[1])

    sets = [[Set(*map(torch.tensor, pair)) for pair in zip(*read_data(part), strict=True)] for part in ("train", "test")]
    config = {
        "model": "Peer", "num_classes": 10, "batch_size": max(SIZES), "FedNH_head_init": "orthogonal", "FedNH_fix_scaling": False,
        "FedNH_client_adv_prototype_agg": False, "client_lr_scheduler": "diminishing", "client_lr": RATE, "lr_decay_per_round": 1.0,
        "optimizer": "SGD", "sgd_momentum": 0.0, "sgd_weight_decay": 0.0, "num_epochs": EPOCHS, "global_seed": 0,
    }  # fmt: skip
    settings = {
        "learning_rate": 1.0, "lr_decay_per_round": 1.0, "num_classes": 10, "FedNH_server_adv_prototype_agg": False,
        "participate_ratio": len(ours.cohorts[0]) / len(SIZES), "drop_ratio": 0.0, "test_every": 1, "num_rounds": ROUNDS,
        "use_tqdm": False, "split_testset": True, "strategy": "FedNH", "dataset": "", "partition": "iid-equal-size", "num_clients": len(SIZES),
    }  # fmt: skip
    with mock.patch.object(parent, "PeerNH", PeerNH, create=True):
        ce = torch.nn.CrossEntropyLoss()
        make_client = lambda i: strategy.FedNHClient(ce, sets[0][i], sets[1][i], config, i, "cpu")
        fake = {
            "client_cstr": strategy.FedNHClient, "server_side_criterion": ce, "global_trainset": sets[0][0],
            "global_testset": sets[1][0], "server_side_client_config": config, "server_side_client_device": "cpu",
        }  # fmt: skip
        server = strategy.FedNHServer(settings | peer.arguments, dict(enumerate(map(make_client, range(len(SIZES))))), [], **fake)
    server.server_model_state_dict["prototype"].copy_(torch.tensor(np.asarray(ours.first.server.prototypes)))
    with mock.patch.object(server, "select_clients", side_effect=list(ours.cohorts)):
        server.run(global_seed=0, use_wandb=False, filename="best.pt")
    state = server.server_model_state_dict
    names = ["backbone.dense1.weight", "backbone.dense1.bias", "prototype", "scaling"]
    return make_result(hold([state[name] for name in names]))


def view_prototypes(server: Any) -> PyTree:
    """Returns the weights of FedNH's server."""
    params = server.net.params
    return {name: part for name, part in params.items() if name != "scale"} | {
        "head": {"kernel": server.prototypes.T, "bias": params["scale"][None]}
    }


def run_hierfl(peer: Peer, ours: Ours) -> Namespace:
    """Runs HierFL's clients, edges and cloud on a loop of ours."""
    initialize = importlib.import_module("models.initialize_model")
    client_module, edge_module, cloud_module = map(importlib.import_module, ("client", "edge", "cloud"))
    network = released.Network(ours.network)
    model = lambda *_: initialize.MTL_Model(copy.deepcopy(network), None, RATE, 1.0, 1, 0.0, 0.0)
    loaders = [
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)), len(x))
        for x, y in zip(*read_data("train"), strict=True)
    ]
    with mock.patch.object(client_module, "initialize_model", model):
        clients = [client_module.Client(i, loader, None, Namespace(batch_size=0), "cpu") for i, loader in enumerate(loaders)]
    members = [[client for client in clients if client.id % EDGES == j] for j in range(EDGES)]
    edges = [edge_module.Edge(j, [client.id for client in part], network) for j, part in enumerate(members)]
    cloud = cloud_module.Cloud(network)
    for edge, part in zip(edges, members, strict=True):
        edge.shared_state_dict = copy.deepcopy(edge.shared_state_dict)
        edge.all_trainsample_num = sum(SIZES[client.id] for client in part)
    for round_num in range(ROUNDS + 1):
        for edge, part in zip(edges, members, strict=True):
            edge.refresh_edgeserver()
            for client in part:
                edge.client_register(client)
                edge.send_to_client(client)
                client.sync_with_edgeserver()
                client.local_update(EPOCHS, "cpu")
                client.send_to_edgeserver(edge)
            edge.aggregate(None)
        if (round_num + 1) % peer.arguments["period"] == 0:
            cloud.refresh_cloudserver()
            for edge in edges:
                cloud.edge_register(edge)
                edge.send_to_cloudserver(cloud)
            cloud.aggregate(None)
            for edge in edges:
                cloud.send_to_edge(edge)
    return make_result(hold(cloud.shared_state_dict.values()))


CASES = {
    "heterofl": Case(
        "HeteroFL/src", run_heterofl, "heterofl", Peer("", "", {}, {}, fields=NARROW | DRAWN, network=lambda state: state.server.params, **PARAMS)
    ),
    "fedrolex": Case(
        "FedRolex",
        run_fedrolex,
        "fedrolex",
        Peer(
            "",
            "",
            {},
            {},
            fields=NARROW | DRAWN,
            network=lambda state: state.server.params,
            departures={
                "the window moves down": change("resnet_server.ResnetServerRoll.step", turn_back),
                "biases and heads are weighted by earlier updates": change("resnet_server.ResnetServerRoll.__init__", count_once),
            },
            **PARAMS,
        ),
    ),
    "fednh": Case(
        "FedNH",
        run_fednh,
        "fednh",
        Peer(
            "",
            "",
            {"FedNH_smoothing": 0.9},
            {"rho": 0.9, "scale": 20.0},
            server=view_prototypes,
            fields=DRAWN | {"optimizer.clip": 10.0},
            network=lambda state: state.server.net.params,
        ),
    ),
    "hierfavg": Case(
        "HierFL",
        run_hierfl,
        "hierfavg",
        Peer("", "", {"period": 2}, {"edges": EDGES, "cloud_period": 2}, rounds=ROUNDS + 1, server=lambda server: server.cloud.params),
    ),
}


if __name__ == "__main__":
    released.main(*sys.argv[1:], cases=CASES)
