"""What a federated method is: two state machines, and two messages between them.

The server has an `init` and an `update`, so has a client; a downlink (`broadcast`) and an uplink run between them. All are
pure functions and whatever a method keeps or sends is a pytree, so nothing in the library asks "is it stateful?".

    server  --broadcast-->  sent  --client_update-->  uplink  --collect-->  collected  --server_update-->  server
                                        |   ^
                                        v   |
                                    client state

Shape letters, everywhere in the code: `N` clients exist, `C` of them form the round's cohort, `S` local steps, `B` batch,
`K` classes, `D` features, `M` examples of the largest client, `P` public examples. A leading `[C]` means one per client.

Define the state classes of a method at module level: a NamedTuple made inside a builder is a new pytree type at every
build, which retraces the round and cannot be restored from a checkpoint.
"""

import enum
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
Array = jax.Array


class Net(NamedTuple):
    """One network's arrays.

    Attributes:
      params: what is trained.
      stats: running mean and variance of batch normalisation; `()` or an empty dict if there are none.
    """

    params: PyTree
    stats: PyTree = ()


def is_net(x: object) -> bool:
    """Returns whether `x` is a network, as a leaf of a tree."""
    return isinstance(x, Net)


def find_nets(tree: PyTree) -> list[Net]:
    """Returns the networks in a tree, in its order."""
    return [x for x in jax.tree.leaves(tree, is_leaf=is_net) if is_net(x)]


class Examples(NamedTuple):
    """Inputs with targets. `x`: leaves [R, ...]; `y`: targets of one of `TARGETS`, or of a kind of the method's own."""

    x: PyTree
    y: PyTree


def select_examples(tree: PyTree, index: np.ndarray) -> PyTree:
    """Returns some of the examples in leaves [R, ...], on the host."""
    return jax.tree.map(lambda x: np.asarray(x)[index], tree)


TARGETS = {  # the kind of an example's target: what an array of them is
    "classes": "one class of each row, [rows] integers",
    "labels": "several labels of each row, [rows, K] booleans",
    "numbers": "real numbers, [rows, D] floats",
    "tokens": "a token for each place of a text, [rows, T] integers, negative where none counts",
}

PER_ROW = ("classes", "labels", "numbers")  # with features [B, D]; those of texts are [B, T, D]


def targets_of(y: Any) -> str:
    """Returns which of `TARGETS` an array of targets is, by its dtype and its axes.

    >>> import numpy as np
    >>> targets_of(np.zeros((4,), np.int32)), targets_of(np.zeros((4, 3), bool))
    ('classes', 'labels')

    Raises:
      TypeError: it is none of them.
    """
    if y.ndim == 1 and jnp.issubdtype(y.dtype, jnp.integer):
        return "classes"
    kinds = {jnp.bool_: "labels", jnp.floating: "numbers", jnp.signedinteger: "tokens"}
    for kind, name in kinds.items():
        if y.ndim == 2 and jnp.issubdtype(y.dtype, kind):
            return name
    raise TypeError(f"targets {y.dtype}{list(y.shape)} are none of: {'; '.join(TARGETS.values())}")


@jax.tree_util.register_static
class Remainder(enum.Enum):
    """Treatment of a last minibatch that is not full, in local training; a pytree without leaves."""

    KEEP = enum.auto()
    DROP = enum.auto()


class ClientSettings(NamedTuple):
    """Settings of local training by client; leaves [] of one client.

    None: that of the method, as for all clients.

    Attributes:
      epochs: passes over its data, in place of the method's option `epochs`.
      steps: local steps, in place of these passes.
      batch: examples in a minibatch, at most as many as the method's.
      rate: factor of the optimizer's learning rate.
      share: of the local steps, that the client takes before its time is over.
      rank: of its adapter (`training/client_ranks.py`).
    """

    epochs: Array | None = None
    steps: Array | None = None
    batch: Array | None = None
    rate: Array | None = None
    share: Array | None = None
    rank: Array | None = None


class ClientData(NamedTuple):
    """One client's view of the data.

    Attributes:
      arrays: Examples with leaves [R, ...]: the whole data set, on the device once, shared by all clients, never mapped.
      index: [M] this client's examples, padded to the population's largest client; the padding may be any valid index.
      size: [] how many of them are real.
      draw: (data, key) -> a minibatch, in place of shuffled ones; hashable, and a pytree without leaves. None: shuffled.
      remainder: what training does with a last minibatch that is not full.
      settings: of its local training; None: those of all clients.
      privacy: of single examples in local training (`training/private_gradient.py`), likewise hashable; None: not private.
    """

    arrays: PyTree
    index: Array
    size: Array
    draw: Callable | None = None
    remainder: Remainder = Remainder.KEEP
    settings: ClientSettings | None = None
    privacy: Any = None


class Cohort(NamedTuple):
    """What is known about the round's clients before training; leaves [C] at the server, [] inside the client loop.

    Attributes:
      ids: which clients, in [0, N); N marks an empty slot.
      examples: their number of training examples; 0 for a client that dropped out, has no data, or for an empty slot.
    """

    ids: Array
    examples: Array


class ClientOutput(NamedTuple):
    """What one client's round returns.

    Attributes:
      state: what the client keeps until it is next sampled; `()` if nothing.
      uplink: what it sends: deltas, class logits with counts, prototypes ...
      metrics: dict of (sum, weight) pairs, merged over the cohort (`metrics.py`).
      local: `(sent, client)` as held right after training: what post-local scores read. `None`: `(sent, state)`.
      wire: `(down, up)`, the packed arrays that are transmitted, whose bytes are counted; `None`: `(sent, uplink)`.
    """

    state: PyTree
    uplink: PyTree
    metrics: PyTree
    local: tuple[PyTree, PyTree] | None = None
    wire: tuple[PyTree, PyTree] | None = None

    def after_training(self, sent: PyTree) -> tuple[PyTree, PyTree]:
        """Returns `(sent, client)` as held right after training."""
        return (sent, self.state) if self.local is None else self.local


def _keep_part(part, client):
    del client
    return part


COMBINATIONS = ("add", "stack")  # of `Reduce.combine`
PAYLOADS = ("delta", "class means", "number", "")  # of `Reduce.payload`


class Reduce(NamedTuple):
    """How one part of the uplink crosses the client axis.

    Attributes:
      map: (part, Cohort entry) -> one client's contribution; runs inside the client loop.
      combine: "add": a running sum, memory O(1) in C; "stack": [C, ...].
      finalize: once, after the loop: what `server_update` gets.
      payload: what the part is, for uplink transforms (`uplink/`): "delta", a difference of which the server takes the mean
        with weights `weight_fn`; "class means", (values [K, ...], counts [K]) of which it takes the mean of each class;
        "number", beside a delta, such as its length; "": none of these.
      weight_fn: of a delta: one client's Cohort entry -> its weight.
    """

    map: Callable[[PyTree, Cohort], PyTree] = _keep_part
    combine: str = "stack"
    finalize: Callable[[PyTree], PyTree] = lambda joined: joined
    payload: str = ""
    weight_fn: Callable[[Cohort], Array] | None = None


def is_reduce(x: object) -> bool:
    """Returns whether `x` is a leaf of a method's `collect`."""
    return isinstance(x, Reduce)


class Algorithm(NamedTuple):
    """A federated method.

    Attributes:
      server_init: key -> server.
      client_update: sent, client, data, key -> ClientOutput; one client's round. The engine maps it over the cohort.
      server_update: server, collected, Cohort, key -> server, metrics. `collected` has the uplink's structure, each part as
        its `Reduce` left it.
      collect: tree prefix of the uplink whose leaves are `Reduce`s.
      predict: by name ("global", "personal", ...): (sent, client, x) -> {"logits": [B, K], "features": [B, D]}. A predictor
        named "global" must not read `client`: it is scored once, with the state of no client in particular.
      client_init: key, server, client id -> the state of a client that was never sampled. The key is `server_init`'s own, for all
        clients alike, so that `model.init(key)` is the common initialisation; fold in the id for a draw of the client's own.
      broadcast: server, client id -> sent, the only thing that a client ever sees of the server.
      prepare: sent, client, data, key -> client; every client once, before round 1 (FedMD's pre-training).
      personalise: sent, client, data, key -> (sent, client); before a personal score, then dropped (FedBABU, FedRep).
      init_unseen: sent, client -> client: the initial state of an unseen client, where that is not what `client_init` returns. The
        client then trains by `client_update` without sending anything, if the method has models beside "global" and client
        states, and is personalised. A string instead: why the method has no model for an unseen client.
      pooled: True for a method that trains on the union of all clients' data (Centralized). Nothing is sent.
      targets: which of `TARGETS` it can train on. A method that reads no class has all of them, `tuple(TARGETS)`. Others are
        refused before anything runs.
    """

    server_init: Callable[[Array], PyTree]
    client_update: Callable[[PyTree, PyTree, ClientData, Array], ClientOutput]
    server_update: Callable[[PyTree, PyTree, Cohort, Array], tuple[PyTree, PyTree]]
    collect: PyTree
    predict: dict[str, Callable[[PyTree, PyTree, PyTree], dict[str, Array]]]
    client_init: Callable[[Array, PyTree, Array], PyTree] = lambda key, server, client_id: ()
    broadcast: Callable[[PyTree, Array], PyTree] = lambda server, client_id: server
    prepare: Callable[[PyTree, PyTree, ClientData, Array], PyTree] | None = None
    personalise: Callable[[PyTree, PyTree, ClientData, Array], tuple[PyTree, PyTree]] | None = None
    init_unseen: Callable[[PyTree, PyTree], PyTree] | str | None = None
    pooled: bool = False
    targets: tuple[str, ...] = ("classes",)


def map_built(build: Callable[[Any], Algorithm], change: Callable[[Algorithm, Any], Algorithm]) -> Callable[[Any], Algorithm]:
    """Returns a method's builder whose algorithms are `change(algorithm, task)`; `builder_name` is the method's."""
    return functools.update_wrapper(lambda task: change(build(task), task), build)


def builder_name(build: Any) -> str:
    """Returns the name of the function behind a method's builder."""
    while isinstance(build, functools.partial) or hasattr(build, "__wrapped__"):
        build = build.func if isinstance(build, functools.partial) else build.__wrapped__
    return getattr(build, "__name__", "the method")
