"""The smallest federation that shows everything: eight unequal clients, a network of two layers, a second architecture."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Examples, Net
from fedjax_core.data import federated, sources
from fedjax_core.engine import parallel, simulation
from fedjax_core.learning import lora, training
from fedjax_core.nn.project import projected
from fedjax_core.task import Model, Task, of_model, part_of
from methods.centralized import centralized
from methods.ditto import ditto
from methods.fedamp import fedamp
from methods.fedavg import fedavg
from methods.fedavg_ft import fedavg_ft
from methods.fedavg_linear import fedavg_linear
from methods.fedbabu import fedbabu
from methods.fedbn import fedbn
from methods.fedcac import fedcac
from methods.fedgen import fedgen
from methods.fedgh import fedgh
from methods.fedhe import fedhe
from methods.fedhpl import fedhpl
from methods.fedit import fedit
from methods.fedlora import fedlora
from methods.fedmd import fedmd
from methods.fednh import fednh
from methods.fedoa import fedoa
from methods.fedopt import fedopt
from methods.fedper import fedper
from methods.fedpft import fedpft
from methods.fedproto import fedproto
from methods.fedproto_g import fedproto_g
from methods.fedprox import fedprox
from methods.fedrcl import fedrcl
from methods.fedrep import fedrep
from methods.fedrod import fedrod
from methods.fedsdr import fedsdr
from methods.fedskc import fedskc
from methods.fedtgp import fedtgp
from methods.local import local
from methods.moon import moon
from methods.perada import perada
from methods.pfedgate import pfedgate
from methods.pfedme import pfedme
from methods.pfedpg import pfedpg
from methods.pfedpt import pfedpt
from methods.pfedsd import pfedsd
from methods.scaffold import scaffold

CLIENTS, CLASSES, INPUTS, BATCH = 8, 3, 5, 4
PUBLIC, PROMPTS = 7, 2  # rows of a public set; prompts of a network that has them
SIZES = (9, 4, 1, 7, 6, 2, 8, 5)  # unequal, some short last batches, one with a single example

# Every method, with arguments that make each of its terms count. A newcomer adds a line.
METHODS: dict[str, Any] = {
    "fedavg": functools.partial(fedavg, epochs=2, batch=BATCH),
    "fedavg_uniform": functools.partial(fedavg, epochs=2, batch=BATCH, weights="uniform"),
    "scaffold": functools.partial(scaffold, epochs=2, batch=BATCH),
    "local": functools.partial(local, epochs=2, batch=BATCH),
    "centralized": functools.partial(centralized, epochs=2, batch=BATCH),
    "fedhe": functools.partial(fedhe, epochs=2, batch=BATCH),
    "fedhe_mixed": functools.partial(fedhe, epochs=2, batch=BATCH),
    "fedhpl": functools.partial(fedhpl, temperature=2.0, epochs=2, batch=BATCH),
    "fedhpl_mixed": functools.partial(
        fedhpl, average=("prompts", "head"), denominator="local", compress=False, temperature=2.0, epochs=2, batch=BATCH
    ),
    "fedpft": functools.partial(fedpft, prompts=3, transform_epochs=2, batch=BATCH),
    "fedpft_con": functools.partial(
        fedpft,
        prompts=3,
        transform_epochs=2,
        batch=BATCH,
        contrast={"on": True, "prompts": 2, "queue": 6, "size": 4, "augment": ""},
    ),
    "fedskc": functools.partial(fedskc, epochs=2, batch=BATCH),
    "fedskc_printed": functools.partial(fedskc, epochs=2, batch=BATCH, variant="printed"),
    "fedskc_released": functools.partial(fedskc, epochs=2, batch=BATCH, variant="released", lcl={"ramp": 2}),
    "fedper": functools.partial(fedper, epochs=2, batch=BATCH),
    "fedrep": functools.partial(fedrep, head_epochs=2, body_epochs=1, batch=BATCH, finetune_epochs=1),
    "fedbn": functools.partial(fedbn, epochs=2, batch=BATCH),
    "fedrod": functools.partial(fedrod, epochs=2, batch=BATCH),
    "fedamp": functools.partial(fedamp, alpha=0.1, sigma=0.5, rho=0.7, epochs=2, batch=BATCH),
    "pfedsd": functools.partial(pfedsd, lam=0.5, temperature=2.0, epochs=2, batch=BATCH),
    "pfedgate": functools.partial(pfedgate, sparsity=0.5, epochs=2, batch=BATCH),
    "fedcac": functools.partial(fedcac, tau=0.4, beta=4, epochs=2, batch=BATCH),
    "pfedpt": functools.partial(pfedpt, pad=1, prompt_epochs=1, prompt_lr=0.3, epochs=2, batch=BATCH),
    "fedavg_linear": functools.partial(fedavg_linear, epochs=2, batch=BATCH),
    "fedbabu": functools.partial(fedbabu, epochs=2, batch=BATCH, finetune_epochs=1, finetune_rate=0.5),
    "ditto": functools.partial(ditto, lam=0.7, epochs=2, personal_epochs=1, batch=BATCH),
    "fedavg_ft": functools.partial(fedavg_ft, epochs=2, batch=BATCH, finetune_epochs=1, finetune_rate=0.5),
    "fedprox": functools.partial(fedprox, epochs=2, batch=BATCH, mu=1.0),
    "fedopt": functools.partial(fedopt, epochs=2, batch=BATCH),
    "moon": functools.partial(moon, epochs=2, batch=BATCH, mu=1.0, projection=4),
    "fedproto": functools.partial(fedproto, epochs=2, batch=BATCH),
    "fedproto_g": functools.partial(fedproto_g, epochs=2, batch=BATCH),
    "fednh": functools.partial(fednh, epochs=2, batch=BATCH, rho=0.5, scale=4.0),
    "fedrcl": functools.partial(fedrcl, epochs=2, batch=BATCH, tau=0.5, lam=0.2, contrast=0.8, beta=1.5),
    "fedtgp": functools.partial(fedtgp, lam=1.0, margin=0.5, server_epochs=3, server_batch=4, epochs=2, batch=BATCH),
    "fedgh": functools.partial(fedgh, projection=4, server_lr=0.1, server_epochs=2, server_batch=4, epochs=2, batch=BATCH),
    "fedgen": functools.partial(fedgen, noise=3, hidden=4, generator_batch=6, generator_steps=3, epochs=2, batch=BATCH),
    "fedgen_official": functools.partial(
        fedgen, variant="official", noise=3, hidden=4, generator_batch=6, generator_steps=3, epochs=2, batch=BATCH
    ),
    "fedmd": functools.partial(
        fedmd, align=4, digest_epochs=2, digest_batch=3, epochs=2, batch=BATCH, public_epochs=1, private_epochs=1
    ),
    "pfedpg": functools.partial(pfedpg, heads=2, inner=4, server_lr=0.5, epochs=2, batch=BATCH),
    "fedit": functools.partial(fedit, epochs=2, batch=BATCH),
    "fedlora": functools.partial(fedlora, epochs=2, finetune_epochs=1, batch=BATCH),
    "fedoa": functools.partial(fedoa, lam=0.7, epochs=2, batch=BATCH),
    "fedoa_lora": functools.partial(fedoa, lam=0.7, epochs=2, batch=BATCH, variant="released", reading={"micro": 3}),
    "fedsdr": functools.partial(fedsdr, lam=0.7, epochs=2, batch=BATCH),
    "perada": functools.partial(perada, lam=0.35, epochs=2, batch=BATCH, distil={"on": True, "epochs": 2, "batch": 4, "lr": 0.01}),
    "pfedme": functools.partial(pfedme, lam=2.0, inner_steps=2, outer_lr=0.3, epochs=2, batch=BATCH),
}
MIXED = {"local", "fedhe_mixed", "fedhpl_mixed", "fedtgp", "fedgh", "fedgen", "fedmd"}  # these run with two architectures


def model(hidden: int = 6, statistics: bool = True, outputs: int = CLASSES) -> Model:
    """tanh(x A + a) B + b, behind a normalisation whose running mean is carried along (`statistics`)."""

    def init(key):
        a, b = jax.random.split(key)
        params = {
            "body": {"kernel": jax.random.normal(a, (INPUTS, hidden)) * 0.5, "bias": jnp.zeros(hidden)},
            "head": {"kernel": jax.random.normal(b, (hidden, outputs)) * 0.5, "bias": jnp.zeros(outputs)},
        }
        return Net(params, {"mean": jnp.zeros(INPUTS)} if statistics else {})

    def features(net, x, key=None, train=False, mask=None):
        stats = net.stats
        if statistics:
            if train:
                weight = jnp.ones(len(x)) if mask is None else mask.astype(x.dtype)
                mean = jnp.sum(jnp.where(weight[:, None] > 0, x, 0), 0) / jnp.maximum(jnp.sum(weight), 1)
                stats = {"mean": 0.9 * stats["mean"] + 0.1 * mean}
            else:
                mean = stats["mean"]
            x = x - mean[None]
        body = net.params["body"]
        return jnp.tanh(x @ body["kernel"] + body["bias"][None]), stats

    def head(net, z):
        return z @ net.params["head"]["kernel"] + net.params["head"]["bias"][None]

    def apply(net, x, key=None, train=False, mask=None, intermediates=False):
        z, stats = features(net, x, key, train, mask)
        return {"logits": head(net, z), "features": z} | ({"intermediates": {}} if intermediates else {}), stats

    return Model(init, apply, features, head, f"toy{hidden}")


@functools.cache
def data() -> federated.FederatedData:
    """Eight clients of SIZES rows; classes are shifted Gaussians; the last client misses a class."""
    rng = np.random.default_rng(7)
    n = sum(SIZES)
    y = np.concatenate([np.arange(n) % CLASSES, np.arange(30) % CLASSES]).astype(np.int32)
    x = (rng.normal(size=(n + 30, INPUTS)) + np.eye(CLASSES, INPUTS)[y] * 2).astype(np.float32)
    ends = np.cumsum(SIZES)
    rows = [np.arange(end - size, end) for size, end in zip(SIZES, ends, strict=True)]
    rows[-1] = rows[-1][y[rows[-1]] != 0]
    test = [np.arange(30)[i::CLIENTS] for i in range(CLIENTS)]
    names = tuple("abc")
    dataset = sources.Dataset("toy", Examples(x[:n], y[:n]), Examples(x[n:], y[n:]), names)
    return federated.from_index(dataset, rows, test)


def task(hidden: int = 6, statistics: bool = True) -> Task:
    return of_model(model(hidden, statistics), classes=CLASSES, population=CLIENTS, shape=(INPUTS,))


def task_with_public(hidden: int = 6, statistics: bool = True) -> Task:
    """With a public set of PUBLIC rows in two classes of its own, which the network has outputs for."""
    rng = np.random.default_rng(8)
    y = (np.arange(PUBLIC) % 2).astype(np.int32)
    x = (rng.normal(size=(PUBLIC, INPUTS)) - np.eye(2, INPUTS)[y] * 2).astype(np.float32)
    both = model(hidden, statistics, CLASSES + 2)
    return of_model(both, classes=CLASSES, population=CLIENTS, public=Examples(x, y), shape=(INPUTS,))


def prompted(hidden: int = 6, statistics: bool = True) -> Model:
    """The network with prompts: features are the mean of those of x and of x + p for each of PROMPTS prompts p."""
    plain = model(hidden, statistics)

    def init(key):
        net = plain.init(key)
        return net._replace(params=net.params | {"prompts": jax.random.normal(jax.random.fold_in(key, 1), (PROMPTS, INPUTS)) * 0.5})

    def features(net, x, key=None, train=False, mask=None):
        stats = plain.features(net, x, key, train, mask)[1]
        shifts = jnp.concatenate([jnp.zeros((1, INPUTS)), net.params["prompts"]])
        each = jax.vmap(lambda p: plain.features(net, x + p[None], key, train, mask)[0])(shifts)
        return jnp.mean(each, 0), stats

    def apply(net, x, key=None, train=False, mask=None):
        z, stats = features(net, x, key, train, mask)
        return {"logits": plain.head(net, z), "features": z}, stats

    return Model(init, apply, features, plain.head, f"prompted{hidden}")


def task_with_prompts(hidden: int = 6, statistics: bool = True) -> Task:
    """Without statistics: by its own mean a batch would be without any prompt that all of it has."""
    del statistics
    return of_model(prompted(hidden, False), classes=CLASSES, population=CLIENTS, shape=(INPUTS,))


def task_in_part(hidden: int = 6, statistics: bool = True) -> Task:
    """Prompts and head over a frozen body, whose normalisation has seen something."""
    net = model(hidden, statistics).init(jax.random.key(3))
    frozen = Net({"body": net.params["body"]}, jax.tree.map(lambda x: x + 0.5, net.stats))
    return part_of(prompted(hidden, statistics), frozen, "prompts", classes=CLASSES, population=CLIENTS, shape=(INPUTS,))


def task_alike(hidden: int = 6, statistics: bool = True) -> Task:
    """Whatever the network, with six features: those of the wide one are projected."""
    made = model(hidden, statistics)
    made = made if hidden == 6 else projected(made, CLASSES, 6, hidden=False)
    return of_model(made, classes=CLASSES, population=CLIENTS, shape=(INPUTS,))


def task_adapted(hidden: int = 6, statistics: bool = True, dropout: float = 0.2) -> Task:
    """LoRA with dropout over a frozen body, and the head."""
    net, kind = model(hidden, statistics).init(jax.random.key(3)), lora.lora(rank=2, dropout=dropout, targets=("body",))
    settings = {"classes": CLASSES, "population": CLIENTS, "shape": (INPUTS,)}
    return lora.adapted(model(hidden, statistics), net, kind, "head", **settings)


TASKS = {  # of methods that need another one
    "fedoa_lora": task_adapted,
    "perada": task_with_public,
    "fedtgp": task_alike,
    "fedgen": task_alike,
    "fedhpl": task_in_part,
    "fedhpl_mixed": task_in_part,
    "fedmd": task_with_public,
    "pfedpg": task_with_prompts,
}


def groups(build, mixed: bool = False, statistics: bool = True, task=task) -> list[simulation.Group]:
    if not mixed:
        return simulation.one_group(build, task(statistics=statistics), CLIENTS)
    return [
        simulation.Group("narrow", build, task(6, statistics), np.arange(0, CLIENTS, 2)),
        simulation.Group("wide", build, task(7, statistics), np.arange(1, CLIENTS, 2)),
    ]


def simulate(name: str, *, plan=(1, 1), optimizer=None, mixed=None, statistics=True, **settings) -> simulation.Simulation:
    """A simulation of one of METHODS on the toy federation."""
    build = functools.partial(METHODS[name], optimizer=optimizer or training.sgd(0.1, momentum=0.5))
    mixed = name in MIXED if mixed is None else mixed
    settings = {"cohort": 5, "dispatch": 2} | settings
    return simulation.Simulation(
        groups(build, mixed, statistics, TASKS.get(name, task)), settings.pop("data", data()), plan=parallel.Plan(*plan), **settings
    )


def pad(sim: simulation.Simulation) -> None:
    """Gives every client three more rows that do not count."""
    index = np.pad(sim._held_on_host.index, ((0, 0), (0, 3)), constant_values=1)
    sim._held_on_host = sim._held_on_host._replace(index=index)
    sim.use(sim.plan)


@functools.cache
def reference(name: str) -> tuple[simulation.Simulation, Any, Any]:
    """(simulation, host copy of the state before, and after two rounds) one client after another; compiled once for all tests."""
    sim = simulate(name)
    state = sim.init(0)
    before = jax.device_get(state)
    state, _ = sim.rounds(state, 2)
    return sim, before, jax.device_get(state)
