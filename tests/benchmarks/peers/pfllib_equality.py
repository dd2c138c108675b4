"""PFLlib's own code and ours train from the same weights on the same files, and are compared.

python -m tests.benchmarks.peers.pfllib_equality CHECKOUT [METHOD ...]

CHECKOUT is a clone of TsingZ0/PFLlib, whose servers and clients run unchanged, evaluation included.
The environment has torch, h5py, matplotlib, scikit-learn and, for FedPAC, cvxpy beside our packages.
Digits are divided among clients of different sizes and written in PFLlib's format, which both sides
read; the network is an MLP; a batch has all examples of its client, so that the order of batches is
the same. What a method draws beyond batches is fixed on both sides. Where PFLlib departs from a
method's paper, it is run again with these departures taken back.

Prints a line of JSON for each run: the largest difference of a weight of the server and of the
clients after all rounds, and the largest change that training made.
"""

import argparse
import collections
import contextlib
import copy
import functools
import importlib
import io
import json
import os
import pkgutil
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch.func import functional_call

from fedjax_core import experiment
from fedjax_core.algorithm import PyTree
from fedjax_core.data import sources
from fedjax_core.engine.simulator import Simulator
from fedjax_core.training import local_training

ROUNDS, EPOCHS, RATE, WIDTH = 5, 3, 0.1, 32
SIZES = (40, 55, 70, 85, 100)  # training examples of the clients
TEST = 20  # test examples of each
NOISE = 16  # of FedGen's generator
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
LAYERS = (
    "embedding",
    "dense1",
    "norm1",
    "projection",
    "hidden",
    "out",
    "head",
    "gate",
    "linear",
    "kernel",
    "scale",
    "bias",
)  # in torch's order

Change = Callable[[], contextlib.AbstractContextManager]


class Peer(NamedTuple):
    """A method of PFLlib beside ours.

    Attributes:
      module: below flcore.servers.
      name: of the server's class.
      arguments: of its own.
      options: of our method.
      server: weights of our server, of its state; None: none are compared.
      client: those of a client, of what it is sent and its own state; None: none are compared.
      peer_server, peer_client: PFLlib's, of its objects.
      fields: of our config.
      network: the initial network, of our first state; None: that of FedAvg.
      model: our network; None: an MLP.
      rounds: of ours.
      own: whether clients start from networks of their own.
      prepare: readies PFLlib's server, given our first state.
      fix: a context in which neither side draws anything.
      finish: what PFLlib's server does after the last round.
      departures: PFLlib's from the paper, or from ours where that is open, each with a context in
        which it is taken back.
    """

    module: str
    name: str
    arguments: dict[str, Any]
    options: dict[str, Any]
    server: Callable[[Any], PyTree] | None = lambda server: server.net.params
    client: Callable[[Any, Any], PyTree] | None = None
    peer_server: Callable[[Any], torch.nn.Module] = lambda server: server.global_model
    peer_client: Callable[[Any], torch.nn.Module] = lambda client: client.model
    fields: Mapping[str, Any] = MappingProxyType({})
    network: Callable[[Any], PyTree] | None = None
    model: type[nnx.Module] | None = None
    rounds: int = ROUNDS
    own: bool = False
    prepare: Callable[[Any, Any], None] | None = None
    fix: Change = contextlib.nullcontext
    finish: Callable[[Any], None] = lambda server: None
    departures: Mapping[str, Change] = MappingProxyType({})


class Normed(nnx.Module):
    """The MLP with batch normalization."""

    def __init__(self, classes: int, input_shape: tuple[int, ...], *, rngs: nnx.Rngs):
        """Initializes the network."""
        self.dense1 = nnx.Linear(int(np.prod(input_shape)), WIDTH, rngs=rngs)
        self.norm1 = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, classes, rngs=rngs)

    def body(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Returns features."""
        return nnx.relu(self.norm1(self.dense1(x.reshape(len(x), -1)), mask=None if mask is None else mask[:, None]))


@contextlib.contextmanager
def extend(target: str, before: Callable = lambda *_: None, after: Callable = lambda *_: None) -> Iterator[None]:
    """Calls functions of the same arguments before and after a method."""
    original = pkgutil.resolve_name(target)

    def extended(*args, **kwargs):
        before(*args)
        result = original(*args, **kwargs)
        after(*args)
        return result

    with mock.patch(target, extended):
        yield


def change(target: str, before: Callable = lambda *_: None, after: Callable = lambda *_: None) -> Change:
    """Returns `extend` of these arguments, of a method below flcore, to be entered later."""
    return functools.partial(extend, f"flcore.{target}", before, after)


def join_parts(sent: Any, own: Any) -> PyTree:
    """Returns the weights of a network in two parts."""
    return local_training.join_params(own, sent).params


def send_models(server: Any) -> None:
    """Sends PFLlib's clients the newest model."""
    server.send_models()


def send_and_adapt(server: Any) -> None:
    """Sends the newest model of Per-FedAvg, which clients adapt."""
    server.send_models()
    for client in server.clients:
        client.train_one_step()


def square_norms() -> contextlib.AbstractContextManager:
    """Squares norms in the loss of FedDyn's clients."""
    return mock.patch("torch.norm", lambda vector, p: vector @ vector)


def hold_teachers(client: Any, *_: Any) -> None:
    """Makes a client of FML teach by the mean divergence of an example, without a gradient for the teacher."""
    client.KL = lambda log_q, p: torch.nn.functional.kl_div(log_q, p.detach(), reduction="batchmean")


def train_as_printed(client: Any) -> None:
    """Trains a client of APFL by the paper's three steps."""
    own = dict(client.model_per.named_parameters())
    for epoch in range(client.local_epochs):
        for x, y in client.load_train_data():
            shared = {name: p.detach() for name, p in client.model.named_parameters()}
            mixed = {name: client.alpha * own[name] + (1 - client.alpha) * shared[name] for name in own}
            client.loss(functional_call(client.model, mixed, (x,)), y).backward()  # by v: alpha times that by the mixture
            slope = sum(torch.sum((own[name] - shared[name]) * own[name].grad) for name in own) / client.alpha
            client.loss(client.model(x), y).backward()
            for optimizer in (client.optimizer, client.optimizer_per):
                optimizer.step()
                optimizer.zero_grad()
            if epoch == 0:
                client.alpha = float(np.clip(client.alpha - client.learning_rate * float(slope), 0, 1))


def pull_to_clouds(client: Any, *_: Any) -> None:
    """Adds the pull to a FedAMP client's gradients."""

    def pull(*_: Any) -> None:
        for own, cloud in zip(client.model.parameters(), client.client_u.parameters(), strict=True):
            own.grad += client.lamda / client.alphaK * (own.data - cloud.data)

    client.optimizer.register_step_pre_hook(pull)


def renew_head(server: Any) -> None:
    """Gives FedGH's server a head of its own."""
    server.head = copy.deepcopy(server.head)
    server.opt_h = torch.optim.SGD(server.head.parameters(), lr=server.server_learning_rate)


def calibrate_by_client(server: Any) -> None:
    """Gives FedLC's clients the counts of their own classes."""
    for client in server.clients:
        client.calibration = server.args.tau * client.sample_per_class[None] ** (-1 / 4)


def clear_heads(server: Any) -> None:
    """Sets FedROD's personal heads to zero."""
    for client in server.clients:
        for parameter in client.head.parameters():
            parameter.data.zero_()


def weight_prototypes(server: Any) -> None:
    """Scales FedPAC's prototypes, so that their uniform mean is that weighted by examples."""
    counts = [
        collections.Counter(y.item() for _, ys in server.clients[i].load_train_data() for y in ys) for i in server.uploaded_ids
    ]
    for own, means in zip(counts, server.uploaded_protos, strict=True):
        for label in means:
            present = [count[label] for count in counts if count[label]]
            means[label] = means[label] * own[label] * len(present) / sum(present)


def order_statistics(server: Any) -> None:
    """Puts FedPAC's statistics in the order of its heads."""
    server.Vars, server.Hs = ([getattr(server.clients[i], name) for i in server.uploaded_ids] for name in ("V", "h"))


def copy_heads(server: Any) -> None:
    """Copies FedPAC's heads before they are mixed."""
    server.uploaded_heads = copy.deepcopy(server.uploaded_heads)


def set_gates(server: Any, state: Any) -> None:
    """Gives FedCP's clients our gate."""
    for client in server.clients:
        set_parameters(client.model.gate.cs, state.server.gate)


def set_contexts(server: Any) -> None:
    """Sets the context of FedCP's clients by their heads."""
    for client in server.clients:
        client.set_head_g(client.model.head_g)


def shorten_calibrations(server: Any, state: Any) -> None:
    """Cuts the calibration of FedLC's clients to their batches."""
    del state
    for client in server.clients:
        client.calibration = client.calibration[: client.batch_size]


def set_generator(server: Any, state: Any) -> None:
    """Gives FedGen's server our generator."""
    params = state.server.generator.params
    hidden, out = ([part["kernel"].T, part["bias"]] for part in (params["hidden"], params["out"]))
    for parameter, array in zip(
        server.generative_model.parameters(), [*hidden, params["scale"], params["bias"], *out], strict=True
    ):
        parameter.data = torch.tensor(np.ascontiguousarray(array))


def train_plainly_first() -> contextlib.AbstractContextManager:
    """Makes FedGen's clients train without generated features in the first round."""
    client_class = pkgutil.resolve_name("flcore.clients.clientgen.clientGen")
    train, plain = client_class.train, pkgutil.resolve_name("flcore.clients.clientavg.clientAVG.train")
    return mock.patch.object(
        client_class, "train", lambda client: (train if client.train_time_cost["num_rounds"] else plain)(client)
    )


@contextlib.contextmanager
def draw_once(is_of_labels: Callable[[Any], bool] = lambda pool: len(pool) == sum(SIZES)) -> Iterator[None]:
    """Gives both sides of FedGen the same labels and noise in each step; `is_of_labels` tells what NumPy draws labels from."""
    rng = np.random.default_rng(0)
    labels, noise = rng.integers(0, 10, max(SIZES)), rng.random((max(SIZES), NOISE), np.float32)
    choose, uniform, rand = np.random.choice, jax.random.uniform, torch.rand
    with (
        mock.patch("numpy.random.choice", lambda a, *args, **kw: labels if is_of_labels(a) else choose(a, *args, **kw)),
        mock.patch(
            "torch.rand", lambda shape, **kw: torch.tensor(noise[: shape[0]]) if shape[1:] == noise.shape[1:] else rand(shape, **kw)
        ),
        mock.patch("jax.random.categorical", return_value=jnp.asarray(labels)),
        mock.patch(
            "jax.random.uniform",
            lambda key, shape, *args, **kw: jnp.asarray(noise) if shape == noise.shape else uniform(key, shape, *args, **kw),
        ),
    ):
        yield


@contextlib.contextmanager
def adapt_to_all() -> Iterator[None]:
    """Makes both minibatches of a step of Per-FedAvg all examples of the client."""
    load = pkgutil.resolve_name("flcore.clients.clientperavg.clientPerAvg.load_train_data")

    def load_repeated(client, size):
        return [[torch.cat([part] * (size // client.batch_size)) for part in pair] for pair in load(client, client.batch_size)]

    with (
        mock.patch("flcore.clients.clientperavg.clientPerAvg.load_train_data", load_repeated),
        mock.patch.object(local_training, "own_batch_size", lambda data, batch: data.size),
        mock.patch("jax.random.randint", lambda key, shape, low, high: jnp.arange(*shape)),
    ):
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
        departures={"the regulariser is the norm, not its square": square_norms},
    ),
    "moon": Peer(
        "servermoon",
        "MOON",
        {"mu": 5.0, "tau": 0.5},
        {"mu": 5.0, "tau": 0.5, "projection": 16},
        server=lambda server: server.params,
        network=lambda state: state.server.params,
    ),
    "fedntd": Peer("serverntd", "FedNTD", {"beta": 0.5, "tau": 2.0}, {"beta": 0.5, "tau": 2.0, "weights": "uniform"}),
    "fedlc": Peer(
        "serverlc",
        "FedLC",
        {"tau": 1.0},
        {"variant": "fedlc", "tau": 1.0},
        prepare=shorten_calibrations,
        departures={
            "logits are shifted by the counts of all clients, not the client's": change(
                "servers.serverlc.FedLC.train", calibrate_by_client
            )
        },
    ),
    "local": Peer("serverlocal", "Local", {}, {}, server=None, client=lambda sent, own: own.params),
    "fedper": Peer("serverper", "FedPer", {}, {}, lambda server: server.params, join_parts, finish=send_models),
    "fedrep": Peer(
        "serverrep",
        "FedRep",
        {"plocal_epochs": 2},
        {"head_epochs": 2, "body_epochs": EPOCHS},
        server=lambda server: server.params,
        client=join_parts,
        finish=send_models,
    ),
    "fedbn": Peer(
        "serverbn",
        "FedBN",
        {},
        {},
        server=lambda server: server.params,
        client=join_parts,
        peer_server=lambda server: torch.nn.ModuleList([server.global_model.base.dense1, server.global_model.head]),
        model=Normed,
        finish=send_models,
    ),
    "lg_fedavg": Peer(
        "serverlg",
        "LG_FedAvg",
        {},
        {"shared": ("head",), "weights": "samples"},
        server=lambda server: server.params,
        client=join_parts,
        finish=send_models,
    ),
    "fedbabu": Peer(
        "serverbabu",
        "FedBABU",
        {"fine_tuning_epochs": 2},
        {"finetune_epochs": 2, "finetune_rate": 1.0},
        server=lambda server: server.params,
        client=join_parts,
        departures={
            "clients fine-tune what they last trained, not the server's body": change(
                "servers.serverbabu.FedBABU.aggregate_parameters", after=send_models
            )
        },
    ),
    "ditto": Peer(
        "serverditto",
        "Ditto",
        {"mu": 0.5, "plocal_epochs": EPOCHS},
        {"lam": 0.5},
        client=lambda sent, own: own.params,
        peer_client=lambda client: client.model_per,
    ),
    "apfl": Peer(
        "serverapfl",
        "APFL",
        {"alpha": 0.5},
        {"alpha": 0.5, "alpha_lr": RATE},
        client=lambda sent, own: own.v.params,
        peer_client=lambda client: client.model_per,
        departures={
            "v trains by its own loss and is replaced by the mixture, alpha moves in every step and decays": functools.partial(
                mock.patch, "flcore.clients.clientapfl.clientAPFL.train", train_as_printed
            )
        },
    ),
    "fml": Peer(
        "serverfml",
        "FML",
        {"alpha": 0.3, "beta": 0.6},
        {"alpha": 0.3, "beta": 0.6},
        client=lambda sent, own: own.params,
        departures={
            "teachers have gradients, and KL is divided by the number of classes": change(
                "clients.clientfml.clientFML.__init__", after=hold_teachers
            )
        },
    ),
    "pfedme": Peer(
        "serverpFedMe",
        "pFedMe",
        {"lamda": 2.0, "K": 4, "p_learning_rate": RATE, "local_learning_rate": 0.3, "beta": 0.8},
        {"lam": 2.0, "inner_steps": 4, "outer_lr": 0.3, "beta": 0.8, "weights": "samples"},
        client=lambda sent, own: own.params,
        peer_client=lambda client: client.theta,
        fields={"optimizer.weight_decay": 0.001},
        fix=change(
            "clients.clientpFedMe.clientpFedMe.update_parameters",
            lambda client, net, _: setattr(client, "theta", copy.deepcopy(net)),
        ),
    ),
    "per_fedavg": Peer(
        "serverperavg",
        "PerAvg",
        {},
        {"alpha": RATE, "epochs": 2 * EPOCHS, "weights": "samples"},  # a round of PFLlib's trains twice
        client=lambda sent, own: sent.params,
        fix=adapt_to_all,
        finish=send_and_adapt,
    ),
    "fedala": Peer(
        "serverala",
        "FedALA",
        {"eta": 1.0, "rand_percent": 100, "layer_idx": 2},
        {"mix_lr": 1.0, "fraction": 1.0, "first_limit": 1000},
        client=lambda sent, own: own.local.params,
        finish=send_models,
    ),
    "fedamp": Peer(
        "serveramp",
        "FedAMP",
        {"alphaK": 0.2, "sigma": 1.0, "lamda": 0.1},
        {"alpha": 0.2, "sigma": 1.0, "rho": 0.5},
        server=None,
        client=lambda sent, own: own.params,
        departures={"the pull has no gradient": change("clients.clientamp.clientAMP.__init__", after=pull_to_clouds)},
    ),
    "fedfomo": Peer(
        "serverfomo",
        "FedFomo",
        {"M": len(SIZES)},
        {"models": len(SIZES), "epsilon": 0.0},
        server=None,
        client=lambda sent, own: own.params,
        fix=functools.partial(mock.patch.object, local_training, "shuffle_slots", lambda key, slots, size: slots),
        departures={
            "models are compared with that before the client's last training": change(
                "clients.clientfomo.clientFomo.aggregate_parameters",
                lambda client, _: client.clone_model(client.model, client.old_model),
            )
        },
    ),
    "fedrod": Peer(
        "serverrod",
        "FedROD",
        {},
        {},
        server=lambda server: server.params,
        client=lambda sent, own: {"head": own},
        peer_client=lambda client: client.head,
        departures={"personal heads start as copies of the generic one": change("servers.serverrod.FedROD.train", clear_heads)},
    ),
    "fedcac": Peer(
        "servercac",
        "FedCAC",
        {"tau": 0.5, "beta": 7},
        {"tau": 0.5, "beta": 7},
        server=lambda server: server.shared,
        client=lambda sent, own: sent,
        departures={
            "after the first round critical parameters return to their initial values": change(
                "servers.servercac.FedCAC.send_models",
                lambda server: (
                    server.epoch == 0 and server.clients[0].local_mask is not None and server.get_customized_global_models()
                ),
            )
        },
    ),
    "fedpac": Peer(
        "serverpac",
        "FedPAC",
        {"lamda": 1.0},
        {"lam": 1.0},
        server=lambda server: server.body.params,
        client=lambda sent, own: join_parts(sent.head, sent.body),
        finish=send_models,
        departures={
            "heads and statistics are in different orders": change(
                "servers.serverpac.FedPAC.aggregate_and_send_heads", order_statistics
            ),
            "clients' heads are mixed of those already mixed": change(
                "servers.serverpac.FedPAC.aggregate_and_send_heads", copy_heads
            ),
            "prototypes count equally": change("servers.serverpac.FedPAC.receive_protos", after=weight_prototypes),
        },
    ),
    "dbe": Peer(
        "serverdbe",
        "FedDBE",
        {"kl_weight": 2.0, "momentum": 0.5},
        {"kappa": 2.0, "momentum": 0.5},
        client=lambda sent, own: {"bias": own},
        peer_client=lambda client: torch.nn.ParameterList([client.client_mean]),
        rounds=ROUNDS + 1,  # the first finds the consensus, as PFLlib's constructor
    ),
    "fedcp": Peer(
        "servercp",
        "FedCP",
        {"lamda": 2.0},
        {"lam": 2.0, "gumbel": False},
        server=lambda server: server.net.params | {"gate": server.gate},
        client=lambda sent, own: {"head": own},
        peer_server=lambda server: torch.nn.ModuleList([server.global_modules, server.head, server.cs]),
        peer_client=lambda client: client.model.model.head,
        prepare=set_gates,
        fix=functools.partial(mock.patch, "torch.nn.functional.gumbel_softmax", lambda x, dim, **_: x.softmax(dim)),
        departures={"the first context is random": change("servers.servercp.FedCP.train", set_contexts)},
    ),
    "fedproto": Peer(
        "serverproto",
        "FedProto",
        {"lamda": 1.0},
        {"lam": 1.0, "weights": "uniform"},
        server=None,
        client=lambda sent, own: own.params,
        departures={
            "prototypes average the features of all epochs, as the network changed": change(
                "clients.clientproto.clientProto.train", after=lambda client: client.collect_protos()
            )
        },
    ),
    "fedgen": Peer(
        "servergen",
        "FedGen",
        {
            "noise_dim": NOISE,
            "hidden_dim": 24,
            "generator_learning_rate": 0.005,
            "server_epochs": 20,
            "localize_feature_extractor": True,
        },
        {"noise": NOISE, "hidden": 24, "generator_batch": max(SIZES), "generator_steps": 20},
        server=lambda server: {"out": server.generator.params["out"], "head": server.head},
        client=lambda sent, own: own.params | {"head": sent.head},
        peer_server=lambda server: torch.nn.ModuleList([server.generative_model.fc, server.global_model]),
        own=True,
        prepare=set_generator,
        fix=draw_once,
        finish=send_models,
        departures={"features are generated in the first round too": train_plainly_first},
    ),
    "fedgh": Peer(
        "servergh",
        "FedGH",
        {"server_learning_rate": 0.5},
        {"server_lr": 0.5, "server_batch": 10 * len(SIZES)},
        server=lambda server: {"head": server},
        client=lambda sent, own: own.params,
        peer_server=lambda server: server.head,
        departures={"the server's head is that of client 0, which trains it": change("servers.servergh.FedGH.train", renew_head)},
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


def build_ours(method: str, peer: Peer, folder: Path) -> Simulator:
    """Returns our simulator."""
    config = importlib.import_module(f"configs.{method}").get_config("smoke")
    config.data.update(source=f"pfllib:{NAME}", dir=str(folder), partition="natural", clients=len(SIZES))
    config.update(models=(f"mlp(widths=({WIDTH},))",), normalise="unit", rounds=ROUNDS)
    config.optimizer.lr, config.cohort.fraction = RATE, 1.0
    epochs = {"epochs": EPOCHS} if "epochs" in config.method else {}
    config.method.update({"batch": max(SIZES)} | epochs | peer.options)
    config.update_from_flattened_dict(peer.fields)
    return experiment.build(config, model=peer.model)


def list_arrays(tree: PyTree) -> list[np.ndarray]:
    """Returns a network's weights in torch's order and shapes."""
    if not isinstance(tree, dict):
        return [] if tree is None else [np.ascontiguousarray(np.asarray(tree).T)]
    return [array for name in sorted(tree, key=LAYERS.index) for array in list_arrays(tree[name])]


def flatten_ours(peer: Peer, simulator: Simulator, state: Any) -> dict[str, list[np.ndarray]]:
    """Returns the weights of server and clients."""
    trees = {}
    if peer.server is not None:
        trees["server"] = [peer.server(state.server)]
    if peer.client is not None:
        views = [simulator.client_view(state, i).holds for i in range(len(SIZES))]
        trees["clients"] = [peer.client(*next(held for name, held in holds.items() if name != "global")) for holds in views]
    return {who: [np.concatenate([a.ravel() for a in list_arrays(tree)]) for tree in nets] for who, nets in trees.items()}


def flatten_peer(network: torch.nn.Module) -> np.ndarray:
    """Returns a network's weights."""
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in network.parameters()])


class Ours(NamedTuple):
    """A run of ours.

    Attributes:
      network: parameters of the initial network.
      first: the first state.
      before, after: weights of server and clients at the start, and after all rounds.
      cohorts: clients of each round.
    """

    network: PyTree
    first: Any
    before: dict[str, list[np.ndarray]]
    after: dict[str, list[np.ndarray]]
    cohorts: list[np.ndarray]


def run_ours(method: str, peer: Peer, folder: Path) -> Ours:
    """Runs ours."""
    simulator = build_ours(method, peer, folder)
    state = simulator.init(seed=0)
    first = jax.device_get(state)  # the rounds reuse its memory
    if peer.network is None:
        plain = build_ours("fedavg", peer._replace(options={}, fields={}), folder)
        network = jax.device_get(plain.init(seed=0).server.net.params)
    else:
        network = peer.network(first)
    before = flatten_ours(peer, simulator, state)
    state, _ = simulator.run_rounds(state, peer.rounds)
    return Ours(network, first, before, flatten_ours(peer, simulator, state), simulator.past_cohorts(state))


def make_parts(params: PyTree) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Returns base and head of the network with our parameters."""
    projection = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, len(params["head"]["kernel"]))]
    base = {"flatten": torch.nn.Flatten(), "dense1": torch.nn.Linear(64, WIDTH)}
    base |= {"bn": torch.nn.BatchNorm1d(WIDTH)} if "norm1" in params else {}
    base |= {"relu": torch.nn.ReLU()}
    base |= {"projection": torch.nn.Sequential(*projection)} if "projection" in params else {}
    parts = torch.nn.Sequential(collections.OrderedDict(base)), torch.nn.Linear(len(params["head"]["kernel"]), 10)
    set_parameters(torch.nn.ModuleList(parts), params)
    return parts


def set_parameters(module: torch.nn.Module, params: PyTree) -> None:
    """Gives a module our parameters."""
    for parameter, array in zip(module.parameters(), list_arrays(params), strict=True):
        parameter.data = torch.tensor(array)


def take_full_batches() -> contextlib.AbstractContextManager:
    """Makes a batch of PFLlib's clients all their examples."""
    return extend(
        "flcore.clients.clientbase.Client.__init__", after=lambda client, *_: vars(client).update(batch_size=client.train_samples)
    )


def run_peer(peer: Peer, ours: Ours) -> Any:
    """Returns PFLlib's server after all rounds; it writes its results into the parent folder."""
    models = importlib.import_module("flcore.trainmodel.models")
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    server_class = getattr(importlib.import_module(f"flcore.servers.{peer.module}"), peer.name)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"), take_full_batches():
        server = server_class(argparse.Namespace(**BASE | peer.arguments, model=models.BaseHeadSplit(*make_parts(ours.network))), 0)
        for client in server.clients:
            client.batch_size = round(client.train_samples)  # FedFomo's train on fewer
        if peer.own:
            for client, weights in zip(server.clients, ours.before["clients"], strict=True):
                torch.nn.utils.vector_to_parameters(torch.tensor(weights), client.model.parameters())
        if peer.prepare is not None:
            peer.prepare(server, ours.first)
        server.train()
        peer.finish(server)
    return server


def compare(peer: Peer, ours: Ours, server: Any) -> dict[str, float]:
    """Returns the largest difference of a weight of server and clients, and the largest change in training."""
    nets = {"server": [peer.peer_server(server)] if "server" in ours.after else [], "clients": []}
    if "clients" in ours.after:
        nets["clients"] = [peer.peer_client(client) for client in server.clients]
    line = {}
    for who, weights in ours.after.items():
        theirs = [flatten_peer(net) for net in nets[who]]
        for name, others in (("difference", theirs), ("change", ours.before[who])):
            line[f"{who} {name}"] = max(float(np.max(np.abs(a - b))) for a, b in zip(weights, others, strict=True))
    return line


def compare_all(name: str, peer: Peer, ours: Ours, run: Callable[[Peer, Ours], Any]) -> None:
    """Prints the comparison with another's server, as it is and with all departures taken back."""
    for departures in ({}, peer.departures) if peer.departures else ({},):
        with contextlib.ExitStack() as stack:
            for take_back in departures.values():
                stack.enter_context(take_back())
            line = {"method": name, "taken back": list(departures)} | compare(peer, ours, run(peer, ours))
        print(json.dumps(line), flush=True)  # noqa: T201


def main(checkout: str, *methods: str) -> None:
    """Compares methods, by default all."""
    sys.path.insert(0, str(Path(checkout).resolve() / "system"))
    with tempfile.TemporaryDirectory() as scratch:
        write_data(Path(scratch) / "dataset" / NAME)
        (Path(scratch) / "system").mkdir()
        os.chdir(Path(scratch) / "system")  # PFLlib's paths are relative to it
        for method in methods or PEERS:
            peer = PEERS[method]
            with peer.fix():
                compare_all(method, peer, run_ours(method, peer, Path(scratch) / "dataset"), run_peer)


if __name__ == "__main__":
    main(*sys.argv[1:])
