"""Released code of methods that PFLlib lacks and ours train from the same weights on the same data.

python -m tests.benchmarks.peers.released_equality CHECKOUTS [CASE ...]

CHECKOUTS is a folder with clones, each by its name, of woodenchild95/FL-Simulator,
KarhouTam/FL-bench, TsingZ0/HtFLlib, JYWa/FedNova, Divyansh03/FedExP, gaoliang13/FedDC,
geehokim/FedACG, google/fedjax, litian96/fair_flearn and jichan3751/ifca. The environment has torch,
omegaconf and pandas beside our packages; what else they import is a stub. Servers and clients run
unchanged, but for the loop around FedNova's optimizer and FedACG's parts, for constants of FedExP's
script, and for the network of fair_flearn, which is written for TensorFlow 1.
Data, network, batches and output are those of `pfllib_equality`. Where clients are drawn, all take
our draw.
"""

import collections
import contextlib
import copy
import functools
import importlib
import io
import os
import pickle
import random
import shutil
import sys
import tempfile
import threading
import types
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import optax
import torch
from torch.nn.utils import parameters_to_vector

from fedjax_core.algorithm import PyTree
from fedjax_core.data import sources
from fedjax_core.training import aggregators
from tests.benchmarks.peers import pfllib_equality as pfllib
from tests.benchmarks.peers.pfllib_equality import EPOCHS, NAME, RATE, ROUNDS, SIZES, WIDTH, Ours, Peer, extend

DRAWN = {"cohort.size": 3}  # clients of a round
DECAYS = {"optimizer.decay": 0.9, "optimizer.weight_decay": 0.001}  # of the rate in each round, and of the weights
FEDEXP = {"optimizer.lr": RATE * 0.998, "optimizer.decay": 0.998, "optimizer.weight_decay": 1e-4}  # fixed by it
FEDEXP_STEPS = 20  # likewise
PUBLIC = 60  # public examples
UNEVEN = (1, 2, 3, 4, 5)  # local epochs of FedNova's clients
STUBS = (  # imported, and not needed
    "IPython", "IPython.core", "IPython.core.debugger", "h5py", "haiku", "hydra", "hydra.core", "hydra.core.hydra_config",
    "matplotlib", "matplotlib.pyplot", "pynvml", "ray", "ray.actor", "sqlitedict", "tensorboardX", "tensorflow",
    "torch.utils.tensorboard", "torchsummary", "torchvision", "torchvision.datasets", "torchvision.io",
    "torchvision.io.image", "torchvision.models", "torchvision.transforms", "torchvision.utils", "ujson", "visdom",
)  # fmt: skip
NOTHING: Mapping[str, pfllib.Change] = types.MappingProxyType({})
EDITS: dict[str, str] = {}  # of FedExP's and FedDC's scripts, while departures are taken back


class Case(NamedTuple):
    """Code beside our method.

    Attributes:
      code: folder of the clone, below CHECKOUTS.
      run: returns an object with `global_model` and `clients`, each with a `model`.
      method: ours.
      peer: with the arguments of both.
    """

    code: str
    run: Callable[[Peer, Ours], Any]
    method: str
    peer: Peer


class Network(torch.nn.Module):
    """Base and head."""

    def __init__(self, params: PyTree):
        """Initializes the network with our parameters."""
        super().__init__()
        self.base, self.head = pfllib.make_parts(params)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits."""
        return self.head(self.base(x))


class Settings(Namespace):
    """A config for FedACG."""

    @classmethod
    def of(cls, tree: Any) -> Any:
        """Returns a config of nested dictionaries."""
        return cls(**{name: cls.of(value) for name, value in tree.items()}) if isinstance(tree, dict) else tree

    def get(self, name: str) -> Any:
        """Returns an entry; None: there is none."""
        return vars(self).get(name)


class Encoder(Network):
    """A network for FedACG."""

    num_layers = 0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns logits, by name."""
        return {"logit": super().forward(x)}


class Learner:
    """A network for fair_flearn."""

    size = flops = 0

    def __init__(self, params: PyTree, rate: float):
        """Initializes the network with our parameters."""
        self.network, self.rate = Network(params), rate

    def get_params(self) -> list[np.ndarray]:
        """Returns copies of the weights."""
        return [parameter.detach().numpy().copy() for parameter in self.network.parameters()]

    def set_params(self, arrays: list[np.ndarray]) -> None:
        """Sets the weights."""
        for parameter, array in zip(self.network.parameters(), arrays, strict=True):
            parameter.data = torch.tensor(array, dtype=torch.float32)

    def find_gradient(self, x: Any, y: Any) -> tuple[float, list[torch.Tensor]]:
        """Returns the mean loss and its gradient."""
        loss = torch.nn.functional.cross_entropy(self.network(torch.tensor(np.array(x))), torch.tensor(np.array(y)))
        return loss.item(), list(torch.autograd.grad(loss, list(self.network.parameters())))

    def get_loss(self, data: Any) -> float:
        """Returns the mean loss."""
        return self.find_gradient(data["x"], data["y"])[0]

    def solve_sgd(self, batch: Any) -> tuple[list[np.ndarray], float, list[np.ndarray]]:
        """Returns gradient, loss and weights."""
        loss, gradient = self.find_gradient(*batch)
        return [part.numpy() for part in gradient], loss, self.get_params()

    def solve_inner(self, data: Any, epochs: int, batch_size: int) -> tuple[list[np.ndarray], int]:
        """Trains by full batches; returns weights and cost."""
        del batch_size
        for _ in range(epochs):
            for parameter, part in zip(self.network.parameters(), self.find_gradient(data["x"], data["y"])[1], strict=True):
                parameter.data -= self.rate * part
        return self.get_params(), 0

    def test(self, data: Any) -> tuple[int, float]:
        """Returns no scores."""
        return 0, self.get_loss(data)

    def close(self) -> None:
        """Does nothing."""


@contextlib.contextmanager
def import_from(folder: Path) -> Iterator[None]:
    """Imports modules of a clone, and forgets them at the end."""
    names = {path.stem for path in folder.iterdir()}
    with mock.patch.object(sys, "path", [str(folder), *sys.path]):
        yield
    for name in [name for name in sys.modules if name.split(".")[0] in names]:
        del sys.modules[name]


def read_data(part: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns images and labels of each client."""
    files = [np.load(f"../dataset/{NAME}/{part}/{i}.npz", allow_pickle=True)["data"].item() for i in range(len(SIZES))]
    return [file["x"] for file in files], [file["y"].astype(np.int64) for file in files]


def read_public() -> torch.utils.data.TensorDataset:
    """Returns public images and labels."""
    with np.load("../dataset/public.npz") as file:
        x = file["train_features"].reshape(-1, 1, 8, 8)
        return torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(file["train_labels"]))


def write_public(path: Path) -> None:
    """Writes a public set, digits of the test set, in the form of our source `npz`."""
    digits = sources.load("digits").test
    columns = {"features": digits.x[:PUBLIC].astype(np.float32) / 255, "labels": digits.y[:PUBLIC]}
    np.savez(path, **{f"{part}_{key}": column for part in ("train", "test") for key, column in columns.items()})


def make_result(network: Any = None, models: Any = ()) -> Namespace:
    """Returns a server and its clients, as `pfllib_equality` compares them."""
    return Namespace(global_model=network, clients=[Namespace(model=model) for model in models])


def hold(arrays: Any) -> torch.nn.Module:
    """Returns a module with these parameters."""
    return torch.nn.ParameterList([torch.as_tensor(array) for array in arrays])


def run_fl_simulator(peer: Peer, ours: Ours) -> Namespace:
    """Runs FL-Simulator."""
    (x, y), (test_x, test_y), network = read_data("train"), read_data("test"), Network(ours.network)
    arguments = {
        "dataset": "mnist", "active_ratio": 1.0, "total_client": len(SIZES), "comm_rounds": ROUNDS, "local_epochs": EPOCHS,
        "batchsize": max(SIZES), "weight_decay": DECAYS["optimizer.weight_decay"], "local_learning_rate": RATE,
        "global_learning_rate": 1.0, "lr_decay": DECAYS["optimizer.decay"], "seed": 0, "out_file": "out", "non_iid": False,
        "use_RI": False, "method": peer.name,
    }  # fmt: skip
    server = getattr(importlib.import_module("server"), peer.name)(
        device="cpu",
        model_func=lambda: copy.deepcopy(network),
        init_model=network,
        init_par_list=parameters_to_vector(network.parameters()).detach().clone(),
        datasets=Namespace(client_x=x, client_y=y, test_x=np.concatenate(test_x), test_y=np.concatenate(test_y)),
        method=peer.name,
        args=Namespace(**arguments | peer.arguments),
    )
    with mock.patch.object(server, "_activate_clients_", lambda t: ours.cohorts[t]):
        server.train()
    return make_result(server.server_model)


def run_fl_bench(peer: Peer, ours: Ours) -> Namespace:
    """Runs FL-bench."""
    omegaconf, functional, models = map(importlib.import_module, ("omegaconf", "src.utils.functional", "src.utils.models"))
    datasets, fedavg = map(importlib.import_module, ("data.utils.datasets", "src.server.fedavg"))
    server_class = getattr(importlib.import_module(f"src.server.{peer.module}"), peer.name)
    parts = [read_data(part) for part in ("train", "test")]
    x, y = (torch.tensor(np.concatenate([array for part in parts for array in part[i]])) for i in (0, 1))
    ends = np.cumsum([len(labels) for _, ys in parts for labels in ys])
    train, test = np.array_split(np.array(np.split(np.arange(len(y)), ends[:-1]), dtype=object), 2)
    everyone = list(range(len(SIZES)))
    folder = Path("data") / NAME
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "args.json").write_text('{"split": "sample"}')
    indices = [{"train": train[i], "val": [], "test": test[i]} for i in everyone]
    separation = {"train": everyone, "val": everyone, "test": everyone, "total": len(SIZES)}
    (folder / "partition.pkl").write_bytes(pickle.dumps({"data_indices": indices, "separation": separation}))
    network = models.DecoupledModel()
    network.base, network.classifier = pfllib.make_parts(ours.network)
    common = {
        "global_epoch": ROUNDS, "local_epoch": EPOCHS, "batch_size": max(SIZES), "join_ratio": 1.0, "use_cuda": False,
        "save_log": False, "save_learning_curve_plot": False, "save_metrics": False, "test": {"client": {"interval": 1}},
    }  # fmt: skip
    given = {
        "dataset": {"name": NAME},
        "model": {"name": NAME},
        "optimizer": {"lr": peer.fields.get("optimizer.lr", RATE)},
        "common": common,
    }
    config = omegaconf.DictConfig(given | {peer.module: peer.arguments})
    with (
        mock.patch.dict(models.MODELS, {NAME: lambda **_: network}),
        mock.patch.dict(datasets.DATASETS, {NAME: lambda **_: datasets.BaseDataset(x, y, list(range(10)))}),
        mock.patch.dict(datasets.DATASETS, public=lambda **_: read_public()),
        mock.patch.object(fedavg, "FLBENCH_ROOT", Path.cwd()),
    ):
        server = server_class(functional.parse_args(config, peer.module, server_class.get_hyperparams))
        if peer.own:
            for params, weights in zip(server.clients_personal_model_params.values(), ours.before["clients"], strict=True):
                torch.nn.utils.vector_to_parameters(torch.tensor(weights), network.parameters())
                params.update(copy.deepcopy(network.state_dict()))
        server.client_sample_stream = [cohort.tolist() for cohort in ours.cohorts]
        server.train()
    personal = [hold(params.values()) for params in server.clients_personal_model_params.values()]
    return make_result(hold(server.public_model_params.values()), personal)


def run_htfllib(peer: Peer, ours: Ours) -> Namespace:
    """Runs HtFLlib."""
    clientbase = importlib.import_module("flcore.clients.clientbase")
    server_class = getattr(importlib.import_module(f"flcore.servers.{peer.module}"), peer.name)
    shutil.rmtree(pfllib.BASE["save_folder_name"], ignore_errors=True)  # what the last run left
    arguments = pfllib.BASE | {"models_folder_name": "", "feature_dim": WIDTH} | peer.arguments
    with (
        mock.patch.object(clientbase, "BaseHeadSplit", return_value=Network(ours.network)),
        mock.patch("torch.load", functools.partial(torch.load, weights_only=False)),
        pfllib.take_full_batches(),
    ):
        server = server_class(Namespace(**arguments), 0)
        load = lambda role, name: clientbase.load_item(role, name, server.save_folder_name)
        generator = load("Server", "TGP")
        pfllib.set_parameters(generator, view_generator(ours.first.server))
        clientbase.save_item(generator, "Server", "TGP", server.save_folder_name)
        cohorts = [[server.clients[i] for i in cohort] for cohort in ours.cohorts]
        with mock.patch.object(server, "select_clients", side_effect=cohorts):
            server.train()
        return make_result(load("Server", "TGP"), [load(client.role, "model") for client in server.clients])


def run_fednova(peer: Peer, ours: Ours) -> Namespace:
    """Runs FedNova's optimizer, a client in each thread."""
    optimizer_class = importlib.import_module("distoptim").FedNova
    barrier, own, sent = threading.Barrier(len(SIZES), timeout=60), threading.local(), [torch.zeros(())] * len(SIZES)

    def all_reduce(tensor: torch.Tensor, op: Any = None) -> None:
        del op
        sent[own.rank] = tensor.clone()
        barrier.wait()
        total = torch.stack(sent).sum(0)
        barrier.wait()
        tensor.copy_(total)

    def train(rank: int, x: np.ndarray, y: np.ndarray) -> torch.nn.Module:
        own.rank, network = rank, Network(ours.network)
        optimizer = optimizer_class(network.parameters(), ratio=SIZES[rank] / sum(SIZES), lr=RATE, **peer.arguments)
        for _ in range(ROUNDS):
            for _ in range(UNEVEN[rank]):
                torch.nn.functional.cross_entropy(network(torch.tensor(x)), torch.tensor(y)).backward()
                optimizer.step()
                optimizer.zero_grad()
            optimizer.average()
        return network

    with (
        mock.patch("torch.distributed.all_reduce", all_reduce),
        mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor),
        futures.ThreadPoolExecutor(len(SIZES)) as pool,
    ):
        return make_result(next(iter(pool.map(train, range(len(SIZES)), *read_data("train")))))


def stay(to: Callable) -> Callable:
    """Returns torch's `to` that stays on the processor."""
    return lambda self, *args, **kwargs: self if args == ("cuda",) else to(self, *args, **kwargs)


def run_fedexp(peer: Peer, ours: Ours) -> Namespace:
    """Runs FedExP's script."""
    data, models = types.ModuleType("util_data"), types.ModuleType("util_models")
    sets = [torch.utils.data.TensorDataset(*map(torch.tensor, pair)) for pair in zip(*read_data("train"), strict=True)]
    data.get_dataset = lambda *_: (sets, sets[0])
    models.get_model = lambda *_: Network(ours.network)
    general = importlib.import_module("util_general")
    options = {
        "seed": 0, "algorithm": peer.name, "dataset": "EMNIST", "model": "", "num_clients": len(SIZES),
        "num_participating_clients": len(SIZES), "num_rounds": ROUNDS - 1, "alpha": 0.0,
    }  # fmt: skip
    path = Path(general.__file__).with_name("main.py")
    source, script = path.read_text(), {"__name__": "__main__"}
    for old, new in (peer.arguments | EDITS).items():
        assert old in source
        source = source.replace(old, new)
    whole = torch.utils.data.DataLoader
    with (
        mock.patch.dict(sys.modules, util_data=data, util_models=models),
        mock.patch.object(sys, "argv", [path.name, *(f"--{name}={value}" for name, value in options.items())]),
        mock.patch.object(general, "DataLoader", lambda dataset, **_: whole(dataset, batch_size=len(dataset))),
        mock.patch.object(torch.Tensor, "to", stay(torch.Tensor.to)),
        mock.patch.object(torch.nn.Module, "to", stay(torch.nn.Module.to)),
    ):
        exec(compile(source, path, "exec"), script)
    return make_result(script["net_glob"])


def run_feddc(peer: Peer, ours: Ours) -> Namespace:
    """Runs FedDC."""
    (x, y), (test_x, test_y), network = read_data("train"), read_data("test"), Network(ours.network)
    module = importlib.import_module("utils_methods_FedDC")
    source = Path(str(module.__file__)).read_text()
    for old, new in EDITS.items():
        assert old in source
        source = source.replace(old, new)
    exec(compile(source, str(module.__file__), "exec"), vars(module))
    arguments = {
        "data_obj": Namespace(
            n_client=len(SIZES), clnt_x=x, clnt_y=y, tst_x=np.concatenate(test_x), tst_y=np.concatenate(test_y), name=NAME,
            dataset="mnist",
        ),
        "act_prob": 0.5, "n_minibatch": EPOCHS, "learning_rate": RATE, "batch_size": max(SIZES), "epoch": EPOCHS,
        "com_amount": ROUNDS, "print_per": EPOCHS, "weight_decay": DECAYS["optimizer.weight_decay"],
        "model_func": lambda: copy.deepcopy(network), "init_model": network, "sch_step": 1, "sch_gamma": 1,
        "save_period": ROUNDS, "lr_decay_per_round": DECAYS["optimizer.decay"],
    }  # fmt: skip
    draws = [1.0 - np.isin(range(len(SIZES)), cohort) for cohort in ours.cohorts]
    with mock.patch.object(np.random, "uniform", side_effect=draws):
        _, (model,), *_ = module.train_FedDC(**arguments | peer.arguments)
    return make_result(model)


def run_fedacg(peer: Peer, ours: Ours) -> Namespace:
    """Runs FedACG's server and clients."""
    with mock.patch.dict(
        sys.modules, {name: mock.MagicMock() for name in ("datasets", "datasets.cifar", "models", "tabulate", "torchmetrics")}
    ):
        servers, clients = map(importlib.import_module, ("servers.base", "clients.base_client"))
    args = Settings.of(
        {
            "batch_size": max(SIZES), "num_workers": 0, "pin_memory": False, "use_amp": False,
            "dataset": {"name": NAME, "num_instances": 0},
            "optimizer": {"momentum": 0.0, "wd": DECAYS["optimizer.weight_decay"]},
            "trainer": {"local_lr_decay": DECAYS["optimizer.decay"], "local_epochs": EPOCHS},
        }
        | peer.arguments
    )  # fmt: skip
    data = [torch.utils.data.TensorDataset(*map(torch.tensor, pair)) for pair in zip(*read_data("train"), strict=True)]
    for dataset in data:
        vars(dataset)["class_dict"] = collections.Counter(dataset.tensors[1].tolist())
    network, server = Encoder(ours.network), servers.ServerM(args)
    server.set_momentum(network)
    members = [clients.Client(args, i, copy.deepcopy(network)) for i in range(len(SIZES))]
    for r, cohort in enumerate(ours.cohorts):
        network = server.FedACG_lookahead(network)
        sent, trained = network.state_dict(), []
        for i in cohort.tolist():
            members[i].setup(sent, "cpu", data[i], RATE * DECAYS["optimizer.decay"] ** r, r, None)
            trained.append(members[i].local_train(r)[0])
        weights = {key: [state[key] for state in trained] for key in sent}
        deltas = {key: [state[key] - sent[key] for state in trained] for key in sent}
        network.load_state_dict(server.aggregate(weights, deltas, cohort, None, None))
    return make_result(network)


def run_fedjax(peer: Peer, ours: Ours) -> Namespace:
    """Runs an algorithm of FedJAX, each of whose batches has all examples of its client."""
    fedjax, module = importlib.import_module("fedjax"), importlib.import_module(f"fedjax.algorithms.{peer.module}")

    def find_losses(params: PyTree, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        del key
        hidden = jax.nn.relu(batch["x"].reshape(len(batch["x"]), -1) @ params["dense1"]["kernel"] + params["dense1"]["bias"])
        logits = hidden @ params["head"]["kernel"] + params["head"]["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])

    name, arguments = peer.arguments["optimizer"]
    algorithm = getattr(module, peer.name)(
        find_losses,
        getattr(fedjax.optimizers, name)(**arguments),
        fedjax.ShuffleRepeatBatchHParams(batch_size=max(SIZES), num_epochs=EPOCHS),
        fedjax.PaddedBatchHParams(batch_size=max(SIZES)),
        1.0,
    )
    data = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in zip(*read_data("train"), strict=True)]
    repeat = fedjax.ClientDataset.shuffle_repeat_batch
    take_all = lambda client, hparams: repeat(client, hparams.replace(batch_size=len(client)))
    state = algorithm.init(jax.tree.map(jax.numpy.asarray, ours.network))
    with mock.patch.object(fedjax.ClientDataset, "shuffle_repeat_batch", take_all):
        for cohort in ours.cohorts:
            state, _ = algorithm.apply(state, [(b"%d" % i, data[i], jax.random.key(0)) for i in cohort.tolist()])
    return make_result(hold(pfllib.list_arrays(state.params)))


def run_fair_flearn(peer: Peer, ours: Ours) -> Namespace:
    """Runs a trainer of fair_flearn."""
    data = [
        dict(enumerate({"x": list(x), "y": list(y)} for x, y in zip(*read_data(part), strict=True))) for part in ("train", "test")
    ]
    params = {
        "learning_rate": RATE, "num_rounds": ROUNDS - 1, "num_epochs": EPOCHS, "batch_size": max(SIZES), "eval_every": 1,
        "log_interval": 1000, "clients_per_round": DRAWN["cohort.size"], "sampling": 1, "data_partition_seed": 0, "seed": 0,
        "model_params": (), "q": 0,
    }  # fmt: skip
    trainer = importlib.import_module(f"flearn.trainers.{peer.module}")
    learner = lambda *_: Learner(ours.network, RATE)
    server = trainer.Server(params | peer.arguments, learner, (list(data[0]), [], *data))
    draws = [(cohort, np.array(server.clients)[cohort]) for cohort in ours.cohorts]
    with mock.patch.object(server, "select_clients", side_effect=draws):
        server.train()
    return make_result(hold(getattr(server, peer.name)))


def run_ifca(peer: Peer, ours: Ours) -> Namespace:
    """Runs IFCA's experiment with MNIST, on our data and networks."""
    x, y = read_data("train")
    config = {"m": len(SIZES), "m_test": len(SIZES), "tau": EPOCHS, "num_epochs": ROUNDS, "lr": RATE} | peer.arguments
    run = importlib.import_module("train_cluster_mnist").TrainMNISTCluster(config | {"m": config["p"]})  # wants a multiple
    run.config = config
    run.models = [Network(jax.tree.map(lambda p, j=j: p[j], ours.network)) for j in range(config["p"])]
    run.dataset = {part: {"cluster_assign": np.zeros(len(SIZES))} for part in ("train", "test")}
    run.criterion, run.lr, run.result_fname, run.checkpoint_fname = torch.nn.CrossEntropyLoss(), None, "ifca", "ifca.pt"
    with mock.patch.object(run, "load_data", lambda i, train=True: (torch.tensor(x[i]), torch.tensor(y[i]))):
        run.run()
    chosen = pickle.loads(Path("ifca").read_bytes())[-1]["train"]["cluster_assign"]
    return make_result(models=[run.models[j] for j in chosen])


def view_generator(server: Any) -> PyTree:
    """Returns the weights of FedTGP's server."""
    return server.generator | {"embedding": server.generator["embedding"].T}


def count_steps(server: Any, *_: Any) -> None:
    """Gives a server of FL-Simulator the local steps of all its clients."""
    server.local_iteration = EPOCHS


def start_at_square(server: Any, *_: Any) -> None:
    """Starts the second moments of FL-Simulator's FedAdam at the square of epsilon."""
    server.v += server.args.epsilon**2


def start_all_at_square(optimizer: Any, *_: Any, **__: Any) -> None:
    """Starts the second moments of FL-bench's FedOpt at the square of tau."""
    for moment in optimizer.velocities:
        moment += optimizer.tau**2


def keep_rate(optimizer: torch.optim.Optimizer, **_: Any) -> Any:
    """Returns a schedule that keeps the rate."""
    return torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)


def drop_nesterov(server: Any, *_: Any) -> None:
    """Takes Nesterov's step from FL-bench's FedAvgM."""
    server.global_optmizer.param_groups[0]["nesterov"] = False


@contextlib.contextmanager
def split_by_id() -> Iterator[None]:
    """Makes FL-bench's CFL split a cluster into ids of clients."""
    server_class = importlib.import_module("src.server.cfl").CFLServer
    split = server_class.cluster_clients

    def split_ids(server, similarities):
        ids = next(ids for ids in server.client_clusters if np.array_equal(server.similarity_matrix[ids][:, ids], similarities))
        return [np.array(ids)[part] for part in split(server, similarities)]

    with mock.patch.object(server_class, "cluster_clients", split_ids):
        yield


def edit(old: str, new: str) -> pfllib.Change:
    """Returns a change of a script, to be entered later."""
    return functools.partial(mock.patch.dict, EDITS, {old: new})


def change(target: str, after: Callable) -> pfllib.Change:
    """Returns `extend` of these arguments, to be entered later."""
    return functools.partial(extend, target, after=after)


def take_simulator(
    name: str, method: str, arguments: dict[str, Any], options: dict[str, Any], departures: Mapping[str, pfllib.Change] = NOTHING
) -> Case:
    """Returns a case of FL-Simulator, where some clients take part in a round."""
    peer = Peer("", name, arguments, options, fields=DRAWN | DECAYS, departures=departures)
    return Case("FL-Simulator", run_fl_simulator, method, peer)


def take_mime_lite(base: str, name: str, arguments: dict[str, float], options: dict[str, Any]) -> Case:
    """Returns a case of FedJAX's MimeLite with this optimizer of FedJAX."""
    options = {"base": base, "weights": "samples"} | options
    peer = Peer("mime_lite", "mime_lite", {"optimizer": (name, arguments)}, options, fields=DRAWN)
    return Case("fedjax", run_fedjax, "mime_lite", peer)


def take_fedavgm(server: str, departures: Mapping[str, pfllib.Change] = NOTHING) -> Case:
    """Returns a case of FL-bench's FedAvgM, with one of our momenta."""
    options = {"server": server, "b1": 0.5, "weights": "samples"}
    peer = Peer("fedavgm", "FedAvgMServer", {"server_momentum": 0.5}, options, fields=DRAWN, departures=departures)
    return Case("FL-bench", run_fl_bench, "fedopt", peer)


SECOND = "second moments start at 0"
STEPS = "the momentum divides by the steps of client 0, in fractions"
PARAMS = {"server": lambda server: server.params}
CASES = {
    "fedcm": take_simulator(
        "FedCM",
        "fedcm",
        {"alpha": 0.3, "global_learning_rate": 0.5},
        {"alpha": 0.3, "server_lr": 0.5},
        {STEPS: change("server.FedCM.FedCM.__init__", count_steps)},
    ),
    "fedsam": take_simulator("FedSAM", "fedsam", {"rho": 0.1}, {"rho": 0.1, "weights": "uniform"}),
    "mofedsam": take_simulator(
        "MoFedSAM",
        "fedsam",
        {"rho": 0.1, "alpha": 0.3},
        {"rho": 0.1, "beta": 0.3},
        {STEPS: change("server.MoFedSAM.MoFedSAM.__init__", count_steps)},
    ),
    "fedspeed": take_simulator("FedSpeed", "fedspeed", {"rho": 0.1, "lamb": 0.5}, {"rho": 0.1, "alpha": 0.5, "dual_mean": "all"}),
    "feddyn": take_simulator("FedDyn", "feddyn", {"lamb": 0.5}, {"alpha": 0.5}),
    "feddc": Case(
        "FedDC",
        run_feddc,
        "feddc",
        Peer(
            "",
            "",
            {"alpha_coef": 0.5},
            {"alpha": 0.5},
            fields=DRAWN | DECAYS,
            departures={
                "alpha and the mean direction are divided by a client's share of the examples": edit(
                    "weight_list / np.sum(weight_list) * n_clnt", "np.ones(n_clnt)"
                ),
                "directions are of the first round's rate": edit(
                    "1/n_minibatch/learning_rate", "1/n_minibatch/learning_rate/lr_decay_per_round**i"
                ),
            },
        ),
    ),
    "fedacg": Case(
        "FedACG",
        run_fedacg,
        "fedacg",
        Peer(
            "",
            "",
            {"server": {"momentum": 0.6, "FedACG": True}, "client": {"ce_loss": {"weight": 1}, "prox_loss": {"weight": 0.1}}},
            {"lam": 0.6, "beta": 0.2},
            fields=DRAWN | DECAYS,
            departures={
                "the rate falls in each local epoch too": functools.partial(
                    mock.patch.object, torch.optim.lr_scheduler, "LambdaLR", keep_rate
                )
            },
        ),
    ),
    "mime_lite_momentum": take_mime_lite("momentum", "sgd", {"learning_rate": RATE * 0.4, "momentum": 0.6}, {"b1": 0.6}),
    "mime_lite_adam": take_mime_lite(
        "adam", "adam", {"learning_rate": RATE, "b1": 0.6, "b2": 0.9, "eps": 0.1}, {"b1": 0.6, "b2": 0.9, "tau": 0.1}
    ),
    "fedadam": take_simulator(
        "FedAdam",
        "fedopt",
        {"beta1": 0.9, "beta2": 0.99, "epsilon": 0.01, "global_learning_rate": 0.1},
        {"server": "adam", "b1": 0.9, "b2": 0.99, "tau": 0.01, "server_lr": 0.1},
        {SECOND: change("server.FedAdam.FedAdam.__init__", start_at_square)},
    ),
    **{
        f"fed{server}_bench": Case(
            "FL-bench",
            run_fl_bench,
            "fedopt",
            Peer(
                "fedopt",
                "FedOptServer",
                {"type": server, "beta1": 0.9, "beta2": 0.99, "server_lr": 0.1, "tau": 0.01},
                {"server": server, "b1": 0.9, "b2": 0.99, "server_lr": 0.1, "tau": 0.01, "weights": "samples"},
                fields=DRAWN,
                departures={SECOND: change("src.server.fedopt.AdaptiveOptimizer.__init__", start_all_at_square)},
            ),
        )
        for server in ("adam", "yogi", "adagrad")
    },
    "fedavgm_bench": take_fedavgm(
        "momentum", {"momentum is Nesterov's": change("src.server.fedavgm.FedAvgMServer.__init__", drop_nesterov)}
    ),
    "fedavgm_nesterov": take_fedavgm("nesterov"),
    "cfl": Case(
        "FL-bench",
        run_fl_bench,
        "cfl",
        Peer(
            "cfl",
            "CFLServer",
            {"eps_1": 10.0, "eps_2": 0.0, "min_cluster_size": 2, "start_clustering_round": 0},
            {"mean_norm": 10.0, "client_norm": 0.0, "first_split": 0, "linkage": "complete"},
            server=None,
            client=lambda sent, own: sent.params,
            fields={"optimizer.lr": 1.0},
            departures={"parts of a cluster are places in it, taken for clients": split_by_id},
        ),
    ),
    "fedtgp": Case(
        "HtFLlib/system",
        run_htfllib,
        "fedtgp",
        Peer(
            "servertgp",
            "FedTGP",
            {"lamda": 2.0, "server_epochs": 10, "margin_threthold": 100.0},
            {"lam": 2.0, "server_lr": RATE, "server_epochs": 10, "server_batch": 10 * len(SIZES), "margin": 100.0},
            server=view_generator,
            client=lambda sent, own: own.params,
            fields=DRAWN,
            departures={
                "prototypes are of the model before training": change(
                    "flcore.clients.clienttgp.clientTGP.train", lambda client: client.collect_protos()
                )
            },
        ),
    ),
    "fednova_momentum": Case(
        "FedNova",
        run_fednova,
        "fednova",
        Peer(
            "",
            "",
            {"momentum": 0.5, "gmf": 0.5},
            {"server_momentum": 0.5},
            fields={"optimizer.momentum": 0.5, "clients.epochs": "from_csv(path='clients.csv')"},
        ),
    ),
    "fednova_proximal": Case(
        "FedNova",
        run_fednova,
        "fednova",
        Peer(
            "",
            "",
            {"mu": 0.5, "gmf": 0.0},
            {"mu": 0.5, "tau_eff": "mean_steps"},
            fields={"clients.epochs": "from_csv(path='clients.csv')"},
        ),
    ),
    "fedexp": Case(
        "FedExP",
        run_fedexp,
        "fedexp",
        Peer(
            "",
            "fedexp",
            {"epsilon_fedexp = 0.1": "epsilon_fedexp = 0.001"},
            {"eps": 0.001 * len(SIZES), "weights": "samples", "epochs": FEDEXP_STEPS},
            fields=FEDEXP,
            departures={"epsilon decays": edit("epsilon = decay*decay*epsilon", "epsilon = epsilon_algs[alg]")},
        ),
    ),
    "fedavgm_fedexp": Case(
        "FedExP",
        run_fedexp,
        "fedopt",
        Peer(
            "",
            "fedavgm",
            {"eta_l_fedavgm = 0.316": "eta_l_fedavgm = 0.1"},
            {"server": "momentum", "b1": 0.9, "weights": "samples", "epochs": FEDEXP_STEPS},
            fields=FEDEXP,
        ),
    ),
    "qfedavg": Case(
        "fair_flearn",
        run_fair_flearn,
        "qfedavg",
        Peer("qffedavg", "latest_model", {"q": 1.5}, {"q": 1.5}, fields=DRAWN, **PARAMS),
    ),
    "afl": Case(
        "fair_flearn",
        run_fair_flearn,
        "afl",
        Peer(
            "afl",
            "resulting_model",
            {"learning_rate_lambda": 0.1},
            {"ascent_lr": 0.1, "epochs": 1},
            server=lambda server: server.average.params,
        ),
    ),
    "ifca": Case(
        "ifca/mnist",
        run_ifca,
        "ifca",
        Peer(
            "",
            "",
            {"p": 2},
            {"clusters": 2},
            server=None,
            client=lambda sent, own: aggregators.take_row(sent, own).params,
            network=lambda state: state.server.params,
        ),
    ),
}


def main(checkouts: str, *names: str, cases: Mapping[str, Case] = CASES) -> None:
    """Compares these cases, by default all."""
    hydra = mock.MagicMock()
    hydra.HydraConfig.get.return_value.runtime.output_dir = "out"
    stubs = {name: mock.MagicMock() for name in STUBS} | {"hydra.core.hydra_config": hydra}
    importlib.import_module("torch._dynamo")  # looks at what the stubs lack
    folder = Path(checkouts).resolve()
    with tempfile.TemporaryDirectory() as scratch, mock.patch.dict(sys.modules, stubs):
        pfllib.write_data(Path(scratch) / "dataset" / NAME)
        write_public(Path(scratch) / "dataset" / "public.npz")
        (Path(scratch) / "system").mkdir()
        os.chdir(Path(scratch) / "system")  # HtFLlib's paths are relative to it
        Path("clients.csv").write_text("\n".join(["epochs", *map(str, UNEVEN)]) + "\n")
        for name in names or cases:
            case = cases[name]
            with case.peer.fix():
                ours = pfllib.run_ours(case.method, case.peer, Path(scratch) / "dataset")
                with import_from(folder / case.code):
                    pfllib.compare_all(name, case.peer, ours, functools.partial(run_quietly, case.run))


def run_quietly(run: Callable[[Peer, Ours], Any], peer: Peer, ours: Ours) -> Any:
    """Runs released code from fixed seeds, without its output."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(action="ignore"),
    ):
        return run(peer, ours)


if __name__ == "__main__":
    main(*sys.argv[1:])
