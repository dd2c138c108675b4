"""More released code beside ours: narrow networks, prototypes, edges, prompts, distillation.

python -m tests.benchmarks.peers.authors_equality CHECKOUTS [CASE ...]

As `released_equality`, with clones of diaoenmao's HeteroFL (as HeteroFL), AIoT-MLSys-Lab/FedRolex,
Yutong-Dai/FedNH, LuminLiu/HierFL, NVlabs/PerAda, skynbe/FedRCL, hwang52/FedSKC, hkgdifyu/pFedPT,
FLAIR-Community/Fling (pFedSD), KarhouTam/FL-bench (FedMD), ChanYunHin/FedHe, rong-dai/DisPFL
(D-PSGD) and zhuangdizhu/FedGen. Networks are ours, written in the form that the code wants. Loops
over rounds are ours where a function below says so.
"""

import contextlib
import copy
import functools
import importlib
import itertools
import sys
import types
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import optax
import torch

from fedjax_core.algorithm import PyTree
from fedjax_core.training import local_training, losses
from methods import pfedpt
from tests.benchmarks.peers import pfllib_equality as pfllib
from tests.benchmarks.peers import released_equality as released
from tests.benchmarks.peers.pfllib_equality import EPOCHS, NAME, RATE, ROUNDS, SIZES, WIDTH, Ours, Peer
from tests.benchmarks.peers.released_equality import DRAWN, PARAMS, Case, change, hold, make_result, read_data, stay

NARROW = {"models": (f"mlp(widths=({WIDTH},))", f"mlp(widths=({WIDTH // 2},))"), "optimizer.clip": 1.0}  # clients take turns
RATES = [1.0 - i % 2 / 2 for i in range(len(SIZES))]  # of their widths
EDGES = 2
HIDDEN = 24  # of FedGen's generator
DISTILLED = 5  # steps of PerAda's distillation
RAMP = 4  # rounds over which the weight of FedSKC's contrast rises
PAD = 2  # of pFedPT
FRAME = pfedpt.frame_indices((8, 8, 1), PAD)[:2]
PUBLIC = {"public": "npz(path='public')"}


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
    return mock.patch.dict(sys.modules, modules)


def make_config(**settings: Any) -> dict[str, Any]:
    """Returns a configuration of HeteroFL's and FedRolex's code."""
    fixed = {
        "control": {}, "num_users": len(SIZES), "model_split_mode": "fix", "global_model_rate": 1.0, "classes_size": 10,
        "device": "cpu", "norm": "none", "scale": True, "mask": True, "optimizer_name": "SGD", "momentum": 0.0, "weight_decay": 0.0,
        "num_epochs": {"local": EPOCHS, "global": ROUNDS}, "log_interval": 1.0, "metric_name": {"train": {"Local": []}},
        "frac": 1.0,
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
        "FedNH_client_adv_prototype_agg": False, "client_lr_scheduler": "diminishing", "client_lr": RATE,
        "lr_decay_per_round": 1.0,
        "optimizer": "SGD", "sgd_momentum": 0.0, "sgd_weight_decay": 0.0, "num_epochs": EPOCHS, "global_seed": 0,
    }  # fmt: skip
    settings = {
        "learning_rate": 1.0, "lr_decay_per_round": 1.0, "num_classes": 10, "FedNH_server_adv_prototype_agg": False,
        "participate_ratio": len(ours.cohorts[0]) / len(SIZES), "drop_ratio": 0.0, "test_every": 1, "num_rounds": ROUNDS,
        "use_tqdm": False, "split_testset": True, "strategy": "FedNH", "dataset": "", "partition": "iid-equal-size",
        "num_clients": len(SIZES),
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


def import_stubbed(*names: str) -> list[types.ModuleType]:
    """Imports modules of a clone, with stubs in place of what is not installed."""
    stubs = {"torch.utils.tensorboard": mock.MagicMock()}
    try:
        while True:
            sys.modules.update(stubs)
            try:
                return [importlib.import_module(name) for name in names]
            except ModuleNotFoundError as error:
                if error.name is None or error.name in stubs:
                    raise
                stubs[error.name] = mock.MagicMock()
    finally:
        for name in stubs:
            del sys.modules[name]


@contextlib.contextmanager
def use_processor() -> Iterator[None]:
    """Makes all that is sent to an accelerator stay."""
    with (
        mock.patch.object(torch.Tensor, "to", stay(torch.Tensor.to)),
        mock.patch.object(torch.nn.Module, "to", stay(torch.nn.Module.to)),
        mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor),
    ):
        yield


def make_sets(part: str = "train") -> list[torch.utils.data.TensorDataset]:
    """Returns the data of each client."""
    return [torch.utils.data.TensorDataset(*map(torch.tensor, pair)) for pair in zip(*read_data(part), strict=True)]


def make_loader(data: Any) -> torch.utils.data.DataLoader:
    """Returns a loader of one batch."""
    return torch.utils.data.DataLoader(data, len(data))


def average(states: list[dict[str, torch.Tensor]], weights: Any) -> dict[str, torch.Tensor]:
    """Returns the weighted mean of networks."""
    shares = np.asarray(weights) / np.sum(weights)
    return {name: sum(float(w) * state[name] for w, state in zip(shares, states, strict=True)) for name in states[0]}


@contextlib.contextmanager
def damp_adam() -> Iterator[None]:
    """Raises both Adams' epsilon, without which rounding decides the sign of steps along gradients near 0."""
    ours, theirs = optax.scale_by_adam, torch.optim.Adam
    with (
        mock.patch("optax.scale_by_adam", lambda b1=0.9, b2=0.999, *_: ours(b1, b2, 0.001)),
        mock.patch("torch.optim.Adam", lambda *args, **kw: theirs(*args, **kw | {"eps": 0.001})),
    ):
        yield


def run_perada(peer: Peer, ours: Ours) -> Namespace:
    """Runs PerAda; validation never stops the distillation, whose last student is taken."""
    names = ("optim.our", "aggregation.distillation", "aggregation.averaging")
    module, distillation, averaging = import_stubbed(*names)
    loaders, tests = (
        [{"dataloader": make_loader(data), "indices": data} for data in make_sets(part)] for part in ("train", "test")
    )
    public, everyone = make_loader(released.read_public()), list(range(len(SIZES)))
    arguments = {
        "net": "fix_adapter", "lr": RATE, "num_epochs": EPOCHS, "load_checkpoint": None, "dataset": NAME, "aggregation": "kd",
        "kd_max_round": 3, "kd_eval_batches_freq": DISTILLED, "early_stopping_server_batches": DISTILLED + 1,
        "total_n_server_pseudo_batches": DISTILLED, "kd_KL_temperature": 1, "kd_lr": 0.01, "kd_dataset": "", "log_online": False,
        "nologging": True, "eval_every": 1, "clients_per_round": len(ours.cohorts[0]),
    }  # fmt: skip

    class Adapter(torch.nn.Module):
        """The network, by a name that is trained."""

        def __init__(self):
            super().__init__()
            self.adapter = released.Network(ours.network)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.adapter(x)

    modules = dict(zip(names[1:], (distillation, averaging), strict=True))  # imported when they are needed
    with (
        use_processor(),
        mock.patch.object(distillation, "test", side_effect=((0.0, score) for score in itertools.count())),
        mock.patch.dict(sys.modules, modules),
    ):
        server = module.Our(
            Namespace(**arguments | peer.arguments), {"train_users": everyone, "test_users": everyone}, loaders, tests,
            Adapter(), public, tests[0]["dataloader"], tests[0]["dataloader"],
        )  # fmt: skip
        with mock.patch.object(server, "sample_clients", side_effect=list(ours.cohorts)):
            for round_num in range(ROUNDS):
                server.run_one_round(round_num)
    return make_result(server.global_model, server.personalized_model_list)


def run_fedrcl(peer: Peer, ours: Ours) -> Namespace:
    """Runs FedRCL's clients and its server's mean on a loop of ours."""
    omegaconf = importlib.import_module("omegaconf")
    clients, servers = import_stubbed("clients.rcl_client", "servers.base")

    class Levels(released.Network):
        """The network with its features, the one level."""

        num_layers = 1

        def forward(self, x: torch.Tensor, no_relu: bool) -> dict[str, torch.Tensor]:
            features = self.base(x)
            return {"layer0": features, "logit": self.head(features)}

    client = omegaconf.OmegaConf.load(f"{sys.path[0]}/configs/client/fedrcl.yaml")
    settings = {
        "batch_size": max(SIZES), "num_workers": 0, "pin_memory": False, "use_amp": False,
        "optimizer": {"momentum": 0.0, "wd": 0.0},
        "trainer": {"local_epochs": EPOCHS, "local_lr_decay": 1.0, "global_rounds": ROUNDS},
        "dataset": {"num_instances": 0, "name": ""},
    }  # fmt: skip
    args, network, sets = omegaconf.OmegaConf.create(settings | {"client": client}), Levels(ours.network), make_sets()
    for data in sets:
        data.dataset = Namespace(classes=list(range(10)))
        data.class_dict = dict(zip(*(part.tolist() for part in torch.unique(data.tensors[1], return_counts=True)), strict=True))
    with use_processor():
        for round_num, cohort in enumerate(ours.cohorts):
            trained = []
            for i in cohort:
                client = clients.RCLClient(args, i, copy.deepcopy(network))
                client.setup(network.state_dict(), "cpu", sets[i], round_num, RATE, None)
                trained.append(client.local_train(round_num)[0])
            lists = {name: [state[name] for state in trained] for name in trained[0]}
            network.load_state_dict(servers.Server(args).aggregate(lists, None, cohort, None, None))
    return make_result(network)


def run_pfedsd(peer: Peer, ours: Ours) -> Namespace:
    """Runs Fling's clients of pFedSD on a loop of ours."""
    module, template = import_stubbed("fling.component.client.pfedsd_client", "fling.component.client.client_template")
    learn = {
        "batch_size": max(SIZES),
        "local_eps": EPOCHS,
        "optimizer": {"name": "sgd", "lr": RATE},
        "device": "cpu",
    } | peer.arguments
    args = Namespace(client=Namespace(val_frac=0), learn=Namespace(**learn))
    keyed = [[{"input": x, "class_id": y} for x, y in data] for data in make_sets()]
    network = released.Network(ours.network)
    with mock.patch.object(template, "get_model", return_value=network):
        clients = [module.pFedSDClient(args, i, data) for i, data in enumerate(keyed)]
    for cohort in ours.cohorts:
        for i in cohort:
            clients[i].model, clients[i].device = copy.deepcopy(network), "cpu"
            clients[i].train(RATE)
        network.load_state_dict(average([clients[i].model.state_dict() for i in cohort], np.array(SIZES)[cohort]))
    first = released.Network(ours.network)  # of clients that never took part
    return make_result(network, [first if client.local_model_pre is None else client.local_model_pre for client in clients])


def run_fedskc(peer: Peer, ours: Ours) -> Namespace:
    """Runs FedSKC's clients and server on a loop of ours; images are not augmented, uninitialized memory is 0."""
    module = import_stubbed("main_fedskc")[0]

    class Paired(released.Network):
        """The network, which also returns features."""

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            features = self.base(x)
            return features, self.head(features)

    args = Namespace(
        device="cpu", data_name="cifar10", num_classes=10, in_channels=1, lr_local_training=RATE,
        batch_size_local_training=max(SIZES), num_epochs_local_training=EPOCHS,
    )  # fmt: skip
    sets, knowledge = make_sets(), {label: torch.zeros(10) for label in range(10)}
    with (
        mock.patch.object(module, "ResNet_cifar", side_effect=lambda **_: Paired(ours.network)),
        mock.patch.object(module, "args_parser", return_value=args),
        mock.patch.object(module, "transforms", mock.MagicMock(Compose=lambda _: lambda images: images)),
    ):
        server = module.Global(10, "cpu", args)
        for round_num, cohort in enumerate(ours.cohorts):
            before = copy.deepcopy(server.download_params())
            clients = [module.Local(sets[i], None, knowledge) for i in cohort]
            trained = [client.local_train(args, before, 100 // RAMP * (round_num + 1)) for client in clients]
            last, knowledge = knowledge, server.get_global_kn([own for _, own in trained])
            params = server.average_parameters([own for own, _ in trained], [len(sets[i]) for i in cohort])
            server.global_model.load_state_dict(server.period_review(params, before, knowledge, last) if round_num else params)
    return make_result(server.global_model)


def set_prompt(prompter: torch.nn.Module, frame: np.ndarray) -> None:
    """Gives pFedPT's prompter our frame."""
    image = np.zeros((8, 8), np.float32)
    image[FRAME] = frame * pfedpt.SCALE
    inside = slice(PAD, -PAD)
    parts = {"up": image[:PAD], "down": image[-PAD:], "left": image[inside, :PAD], "right": image[inside, -PAD:]}
    for name, part in parts.items():
        getattr(prompter, f"pad_{name}").data = torch.tensor(part)[None, None]


def read_prompt(prompter: torch.nn.Module) -> torch.Tensor:
    """Returns the frame of pFedPT's prompter in our form."""
    image = prompter(torch.zeros(1, 1, 8, 8))[0, 0]
    return image[FRAME] / pfedpt.SCALE


def run_pfedpt(peer: Peer, ours: Ours) -> Namespace:
    """Runs pFedPT, a fork of PFLlib; its prompts are in units of our pixels."""
    clientbase, serverbase = map(importlib.import_module, ("flcore.clients.clientbase", "flcore.servers.serverbase"))
    models, server_module = import_stubbed("flcore.trainmodel.models", "flcore.servers.serverpfedpt")
    data = {part: make_sets(part) for part in ("train", "test")}
    read = lambda dataset, i, args, is_train=True: data["train" if is_train else "test"][i]
    arguments = pfllib.BASE | {
        "local_steps": EPOCHS, "num_prompt": PAD, "privacy": False, "dp_sigma": 0.0, "learning_decay": 1.0,
        **{f"arv{i}": "" for i in range(7)},
    }  # fmt: skip
    network = models.LocalModel_pt(models.PadPrompter(1, PAD, 8, Namespace(device="cpu")), released.Network(ours.network))
    with mock.patch.object(clientbase, "read_client_data", read), mock.patch.object(serverbase, "read_client_data", read):
        server = server_module.PFedPT(Namespace(**arguments | peer.arguments, model=network), 0)
        for client, weights in zip(server.clients, ours.before["clients"], strict=True):
            client.batch_size = client.train_samples
            set_prompt(client.model.generator, weights)
        cohorts = [[server.clients[i] for i in cohort] for cohort in ours.cohorts]
        with contextlib.ExitStack() as stack:
            for name in ("save_results", "save_global_model", "save_client_model"):
                stack.enter_context(mock.patch.object(server, name))
            stack.enter_context(mock.patch.object(server, "evaluate", lambda acc=server.rs_test_acc: acc.append(0.0)))
            stack.enter_context(mock.patch.object(server, "select_clients", side_effect=cohorts))
            server.train()
    return make_result(server.global_model, [hold([read_prompt(client.model.generator)]) for client in server.clients])


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


def run_fedhe(peer: Peer, ours: Ours) -> Namespace:
    """Runs FedHe's clients and server on a loop of ours, in rounds; the step of a client, TensorFlow's there, is ours."""
    with mock.patch.object(sys, "argv", ["main"]):
        server_module, client_module = import_stubbed("modules.Server", "modules.Client")
    client_class, server_class = client_module.Client, server_module.Server

    def take_step(client: Any, x: np.ndarray, y: np.ndarray, taught: list[np.ndarray] | None, distillation: bool) -> np.ndarray:
        logits = client.model(torch.tensor(x))
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(y))
        if distillation:
            loss = loss + peer.arguments["alpha"] * torch.mean((logits - torch.tensor(np.stack(taught))) ** 2)
        optimizer = torch.optim.SGD(client.model.parameters(), RATE)
        loss.backward()
        optimizer.step()
        client.model.zero_grad()
        return logits.detach().numpy().copy()

    clients, server = [], server_class.__new__(server_class)
    for pair, weights in zip(zip(*read_data("train"), strict=True), ours.before["clients"], strict=True):
        client = client_class.__new__(client_class)
        client.model = released.Network(ours.network)
        torch.nn.utils.vector_to_parameters(torch.tensor(weights), client.model.parameters())
        batch = pair[0], np.eye(10, dtype=np.float32)[pair[1]]
        vars(client).update(
            dataset=Namespace(next_batch=lambda _, batch=batch: batch),
            batch_size=0, distorted_data=False, clients_training_epoch=EPOCHS,
            **{name: mock.MagicMock() for name in ("mean_loss", "accuracy", "distill_loss")},
        )  # fmt: skip
        clients.append(client)
    known: dict[int, np.ndarray] = {}
    with mock.patch.object(client_class, "train_step", take_step), mock.patch.object(client_module.np, "mean"):
        for cohort in ours.cohorts:
            received: dict[str, Any] = {}
            for i in cohort:
                sent = clients[i].training(0, 0, known, bool(known))[-1]
                server.collect_logits(received, sent)
            known = known | server.average_logits(received)
    logits = np.stack([known[j] for j in range(10)])
    return make_result(hold([np.ascontiguousarray(logits.T)]), [client.model for client in clients])


@contextlib.contextmanager
def draw_in_order() -> Iterator[None]:
    """Gives both sides of FedGen the same labels and noise in each step, and clients' examples the order of the data."""
    in_order = mock.patch.object(local_training, "shuffle_slots", lambda key, slots, size: slots)
    with damp_adam(), pfllib.draw_once(lambda pool: True), in_order:
        yield


def keep_rate(user: Any, *_: Any) -> None:
    """Keeps the learning rate of a client of FedGen."""
    user.lr_scheduler = mock.MagicMock()


class ColumnLoss(torch.nn.NLLLoss):
    """The negative log-likelihood of each example, [B, 1]."""

    def forward(self, log_probabilities: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns the losses."""
        return super().forward(log_probabilities, y)[:, None]


def weight_each_example(generator: Any) -> None:
    """Gives the losses of FedGen's generated examples the shape of their weights."""
    generator.crossentropy_loss = ColumnLoss(reduction="none")


def run_fedgen(peer: Peer, ours: Ours) -> Namespace:
    """Runs FedGen."""
    module, models, generator, settings = import_stubbed(
        "FLAlgorithms.servers.serverpFedGen",
        "FLAlgorithms.trainmodel.models",
        "FLAlgorithms.trainmodel.generator",
        "utils.model_config",
    )

    class Parted(models.Net):
        """Our network in the code's form."""

        def __init__(self):
            torch.nn.Module.__init__(self)
            base, head = pfllib.make_parts(ours.network)
            self.layers, self.output_dim = torch.nn.ModuleList([*base, head]), 10
            self.layer_names = [""] * len(self.layers)

    settings.GENERATORCONFIGS["mnist"] = HIDDEN, WIDTH, 1, 10, pfllib.NOISE
    teacher = generator.Generator("mnist", latent_layer_idx=-1)
    pfllib.set_generator(Namespace(generative_model=teacher), ours.first)
    sets = make_sets()
    arguments = Namespace(
        dataset="Mnist", algorithm="FedGen", num_glob_iters=ROUNDS, local_epochs=EPOCHS, batch_size=max(SIZES),
        gen_batch_size=max(SIZES), learning_rate=RATE, K=1, num_users=len(ours.cohorts[0]), beta=0.0, lamda=0.0,
        result_path="out", embedding=0, train=1,
    )  # fmt: skip

    def read_user(i: int, *_: Any, count_labels: bool = False, **__: Any) -> tuple[Any, ...]:
        return (i, sets[i], sets[i], {}) if count_labels else (i, sets[i], sets[i])

    with mock.patch.multiple(
        module,
        read_data=lambda _: (range(len(SIZES)), [], {}, {}, {}),
        read_user_data=read_user,
        aggregate_user_data=lambda *_: (None, None, list(range(10))),
        create_generative_model=lambda *_: teacher,
    ):
        server = module.FedGen(arguments, (Parted(), "cnn"), 0)
    for user in server.users:
        user.trainloader, user.iter_trainloader = user.trainloaderfull, iter(())
    draws = [([server.users[i] for i in cohort], cohort) for cohort in ours.cohorts]
    silent = dict.fromkeys(("evaluate", "save_results", "save_model"), mock.DEFAULT)
    with mock.patch.object(server, "select_users", side_effect=draws), mock.patch.multiple(server, **silent):
        server.train(arguments)
    network = server.model.layers
    fc, norm, _ = teacher.fc_layers
    return make_result(torch.nn.ModuleList([network[1], fc, teacher.representation_layer, network[-1], norm]))


def run_dpsgd(peer: Peer, ours: Ours) -> Namespace:
    """Runs DisPFL's D-PSGD, where clients mix and then train; it ends with another mixing."""
    api, trainer_module = import_stubbed("fedml_api.standalone.dpsgd.dpsgd_api", "fedml_api.standalone.dpsgd.my_model_trainer")
    arguments = {
        "client_num_in_total": len(SIZES), "client_num_per_round": 2, "comm_round": ROUNDS, "type": "epoch", "epochs": EPOCHS,
        "client_optimizer": "sgd", "lr": RATE, "lr_decay": 0.9, "momentum": 0.0, "wd": 0.001, "ci": 0,
    }  # fmt: skip
    trainer = trainer_module.MyModelTrainer(released.Network(ours.network))
    loaders = [dict(enumerate(map(make_loader, make_sets(part)))) for part in ("train", "test")]
    dataset = [0, 0, None, None, dict(enumerate(SIZES)), *loaders, 10]
    counted = ("count_communication_params", "count_training_flops_per_sample")
    with contextlib.ExitStack() as stack:
        for name in counted:
            stack.enter_context(mock.patch.object(trainer_module.MyModelTrainer, name, return_value=0, create=True))
        server = api.DPSGDAPI(dataset, "cpu", Namespace(**arguments | peer.arguments), trainer, mock.MagicMock())
        test = stack.enter_context(mock.patch.object(server, "_test_on_all_clients"))
        server.train()
    trained, networks = test.call_args.args[1], []
    for i in range(len(SIZES)):
        members = [*server._benefit_choose(ROUNDS, i, len(SIZES), 2, peer.arguments["cs"]), i]
        networks.append(hold(server._aggregate_func(i, len(SIZES), 2, members, trained).values()))
    return make_result(models=networks)


def make_zeros(outputs: int) -> PyTree:
    """Returns an MLP of zeros."""
    sizes = {"dense1": (64, WIDTH), "head": (WIDTH, outputs)}
    return {name: {"kernel": np.zeros(shape, np.float32), "bias": np.zeros(shape[1], np.float32)} for name, shape in sizes.items()}


def take_absolute(client: Any, *_: Any, **__: Any) -> None:
    """Makes FedMD's clients digest by the absolute difference."""
    client.mse_criterion = torch.nn.L1Loss()


def keep_trained(client: Any, *_: Any, **__: Any) -> None:
    """Makes FedMD's clients keep their networks."""
    client.personal_params_name = list(client.model.state_dict())


def clear_momentum(client: Any, *_: Any) -> None:
    """Clears the momentum of pFedPT's prompts."""
    client.poptimizer.state.clear()


def skip_first_digest() -> contextlib.AbstractContextManager:
    """Makes FedMD's clients digest nothing in the first round."""
    client_class = importlib.import_module("src.client.fedmd").FedMDClient
    digest, calls = client_class.digest, itertools.count()
    return mock.patch.object(client_class, "digest", lambda client: digest(client) if next(calls) >= len(SIZES) else None)


def take_fedmd(departures: Mapping[str, pfllib.Change], fix: pfllib.Change = contextlib.nullcontext) -> Case:
    """Returns a case of FL-bench's FedMD."""
    peer = Peer(
        "fedmd",
        "FedMDServer",
        {"digest_epoch": 2, "public_dataset": "public", "public_batch_size": released.PUBLIC, "public_batch_num": 1},
        {"digest_epochs": 2, "digest_batch": released.PUBLIC, "public_epochs": 0, "private_epochs": 0},
        server=None,
        client=lambda sent, own: own.params,
        fields=PUBLIC,
        network=lambda state: make_zeros(20),
        own=True,
        fix=fix,
        departures={"clients forget what they trained": change(FEDMD, keep_trained)} | departures,
    )
    return Case("FL-bench", released.run_fl_bench, "fedmd", peer)


FEDMD = "src.client.fedmd.FedMDClient.__init__"
CASES = {
    "heterofl": Case(
        "HeteroFL/src",
        run_heterofl,
        "heterofl",
        Peer("", "", {}, {}, fields=NARROW | DRAWN, network=lambda state: state.server.params, **PARAMS),
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
        Peer(
            "", "", {"period": 2}, {"edges": EDGES, "cloud_period": 2}, rounds=ROUNDS + 1, server=lambda server: server.cloud.params
        ),
    ),
    "perada": Case(
        "PerAda",
        run_perada,
        "perada",
        Peer(
            "",
            "",
            {"lmbda": 0.25},
            {"lam": 0.25, "distil": {"on": True, "rounds": 3, "epochs": DISTILLED, "lr": 0.01}},
            client=lambda sent, own: own.params,
            fields=PUBLIC | DRAWN,
            fix=damp_adam,
            network=lambda state: state.server.net.params,
        ),
    ),
    "fedrcl": Case("FedRCL", run_fedrcl, "fedrcl", Peer("", "", {}, {}, fields=DRAWN | {"optimizer.clip": 10.0})),
    "fedmd": take_fedmd(
        {
            "the squared difference of logits, not the absolute": change(FEDMD, take_absolute),
            "the first round digests initial networks, here up to the sign of rounding": skip_first_digest,
        }
    ),
    "fedmd_squared": take_fedmd({}, fix=functools.partial(mock.patch.object, losses, "absolute_error", losses.squared_error)),
    "pfedpt": Case(
        "pFedPT/system",
        run_pfedpt,
        "pfedpt",
        Peer(
            "",
            "",
            {"pt_learning_rate": 0.25, "plocal_steps": 2, "momentum": 0.5},  # in pixels, of which a unit of ours has half
            {"pad": PAD, "prompt_epochs": 2, "prompt_lr": 1.0, "prompt_momentum": 0.5},
            client=lambda sent, own: {"bias": own},
            fields=DRAWN,
            departures={"the momentum of prompts stays": change("flcore.clients.clientpt.clientPT.set_parameters", clear_momentum)},
            **PARAMS,
        ),
    ),
    "fedskc": Case(
        "FedSKC",
        run_fedskc,
        "fedskc",
        Peer(
            "",
            "",
            {},
            {"variant": "released", "lcl": {"ramp": RAMP}, "weights": "samples"},
            fields=DRAWN,
        ),
    ),
    "fedgen": Case(
        "FedGen",
        run_fedgen,
        "fedgen",
        Peer(
            "",
            "",
            {},
            {"variant": "official", "noise": pfllib.NOISE, "hidden": HIDDEN, "generator_batch": max(SIZES)},
            server=lambda server: server.body.params | {"head": server.head} | server.generator.params,
            fields=DRAWN,
            fix=draw_in_order,
            departures={
                "a head's losses of all examples are multiplied by the weights of all": change(
                    "FLAlgorithms.trainmodel.generator.Generator.init_loss_fn", after=weight_each_example
                ),
                "a client's rate falls by 0.99 in each round": change("FLAlgorithms.users.userbase.User.__init__", after=keep_rate),
            },
        ),
    ),
    "dfedavg": Case(
        "DisPFL",
        run_dpsgd,
        "dfedavg",
        Peer(
            "",
            "",
            {"cs": "ring"},
            {"topology": "ring"},
            server=None,
            client=lambda sent, own: sent.own.params,
            fields={"optimizer.clip": 10.0, "optimizer.decay": 0.9, "optimizer.weight_decay": 0.001},
        ),
    ),
    "fedhe": Case(
        "FedHe",
        run_fedhe,
        "fedhe",
        Peer(
            "",
            "",
            {"alpha": 0.5},
            {"alpha": 0.5},
            server=lambda server: {"bias": server.logits},
            client=lambda sent, own: own.params,
            fields=DRAWN,
            own=True,
        ),
    ),
    "pfedsd": Case(
        "Fling",
        run_pfedsd,
        "pfedsd",
        Peer(
            "",
            "",
            {"lamda": 0.5, "tau": 3.0},
            {"lam": 0.5, "temperature": 3.0},
            client=lambda sent, own: own.previous.params,
            fields=DRAWN,
        ),
    ),
}


if __name__ == "__main__":
    released.main(*sys.argv[1:], cases=CASES)
