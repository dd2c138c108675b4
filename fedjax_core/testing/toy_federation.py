"""A toy federation: eight clients of unequal sizes, a two-layer network, and tasks of several kinds."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Examples, Net
from fedjax_core.data import federated_data, sources
from fedjax_core.nn.projection_head import with_projection
from fedjax_core.task import Model, Task, make_partial_task, make_task
from fedjax_core.training import adapters

CLIENTS, CLASSES, INPUTS = 8, 3, 5
PUBLIC, PROMPTS = 7, 2  # examples of the public set; prompts of a prompted network
SIZES = (9, 4, 1, 7, 6, 2, 8, 5)  # with short last batches, and one single example


def model(hidden: int = 6, statistics: bool = True, outputs: int = CLASSES) -> Model:
    """Builds tanh(x A + a) B + b, after a normalization with a running mean (`statistics`)."""

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

    return Model(init, apply, features, head, f"toy{hidden}", flattened=())


@functools.cache
def data() -> federated_data.FederatedData:
    """Builds the data: eight clients of SIZES examples, classes are shifted Gaussians, the last client lacks one."""
    rng = np.random.default_rng(7)
    n = sum(SIZES)
    y = np.concatenate([np.arange(n) % CLASSES, np.arange(30) % CLASSES]).astype(np.int32)
    x = (rng.normal(size=(n + 30, INPUTS)) + np.eye(CLASSES, INPUTS)[y] * 2).astype(np.float32)
    rows = np.split(np.arange(n), np.cumsum(SIZES)[:-1])
    rows[-1] = rows[-1][y[rows[-1]] != 0]
    test = [np.arange(30)[i::CLIENTS] for i in range(CLIENTS)]
    names = tuple("abc")
    dataset = sources.Dataset("toy", Examples(x[:n], y[:n]), Examples(x[n:], y[n:]), names)
    return federated_data.from_index(dataset, rows, test)


def task(hidden: int = 6, statistics: bool = True) -> Task:
    """Builds the plain task."""
    return make_task(model(hidden, statistics), classes=CLASSES, population=CLIENTS, shape=(INPUTS,))


def task_with_public(hidden: int = 6, statistics: bool = True) -> Task:
    """Builds a task with PUBLIC public examples of two further classes, for which the network has outputs."""
    rng = np.random.default_rng(8)
    y = (np.arange(PUBLIC) % 2).astype(np.int32)
    x = (rng.normal(size=(PUBLIC, INPUTS)) - np.eye(2, INPUTS)[y] * 2).astype(np.float32)
    both = model(hidden, statistics, CLASSES + 2)
    return make_task(both, classes=CLASSES, population=CLIENTS, public=Examples(x, y), shape=(INPUTS,))


def prompted(hidden: int = 6, statistics: bool = True) -> Model:
    """Builds a network with prompts p: features are the mean over those of x and of each x + p."""
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
    """Builds a task with prompts, without statistics: a batch's own mean would cancel a prompt that all share."""
    del statistics
    return make_task(prompted(hidden, False), classes=CLASSES, population=CLIENTS, shape=(INPUTS,))


def task_in_part(hidden: int = 6, statistics: bool = True) -> Task:
    """Builds a task of prompts and head over a frozen body, whose running mean is not zero."""
    net = model(hidden, statistics).init(jax.random.key(3))
    frozen = Net({"body": net.params["body"]}, jax.tree.map(lambda x: x + 0.5, net.stats))
    return make_partial_task(prompted(hidden, statistics), frozen, "prompts", classes=CLASSES, population=CLIENTS, shape=(INPUTS,))


def task_alike(hidden: int = 6, statistics: bool = True) -> Task:
    """Builds a task with six features for either network: those of the wide one are projected."""
    plain = model(hidden, statistics)
    network = plain if hidden == 6 else with_projection(plain, CLASSES, 6, hidden=False)
    return make_task(network, classes=CLASSES, population=CLIENTS, shape=(INPUTS,))


def task_adapted(hidden: int = 6, statistics: bool = True, dropout: float = 0.2, **options: Any) -> Task:
    """Builds a task of LoRA with dropout over a frozen body, and the head; `options` are LoRA's."""
    kind = adapters.lora(**({"rank": 2, "dropout": dropout, "targets": ("body",)} | options))
    net = model(hidden, statistics).init(jax.random.key(3))
    settings = {"classes": CLASSES, "population": CLIENTS, "shape": (INPUTS,)}
    return adapters.adapter_task(model(hidden, statistics), net, kind, "head", **settings)
