"""What a method works on: a network as pure functions, and what surrounds it."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from fedjax_core.algorithm import Array, Net, PyTree

TO_ADD = "give its module a method body(x) that returns features [B, D], and a linear `head` for them"  # to a network without
Axes = tuple[tuple[str, int], ...]  # (end of an array's path, axis from its end), such as ("mlp/up/kernel", -1)


class Model(NamedTuple):
    """A network as pure functions over a `Net`.

    `params` is a nested dict whose entry "head" holds the classifier; all other entries are the body.

    Attributes:
      init: key -> Net.
      apply: (net, x, key=None, train=False, mask=None) -> ({"logits": [B, K], "features": [B, D]}, stats). `mask` [B] says
        which rows are real; the others never enter batch statistics. In evaluation `stats` are the net's own, unchanged.
        With intermediates=True outputs gain "intermediates": hidden layers by name, {} where they have none.
      features: same arguments -> ([B, D], stats); the body alone.
      head: (net, features [B, D]) -> logits [B, K].
      name: what error messages and tables call it.
      whole: net -> the Net of the whole network, with what is frozen (`part_of`) beside it.
      model_axes: which axis of which array is divided where several devices hold a network together (`plan.model`); `axis_of`.
      behind: of a network that is augmented: (the network without, (inputs, key, train) -> inputs), for a method that changes
        inputs behind the augmentation; else None.
      episodic: whether logits are of the classes of an episode (`training/few_shot.py`), not of all K.
      vocabulary: V, where x is token ids that the network embeds, of which it has V; None: it embeds none, or
        does not say so. `check_tokens` refuses others.
    """

    init: Callable[[Array], Net]
    apply: Callable[..., tuple[dict[str, PyTree], PyTree]]
    features: Callable[..., tuple[Array, PyTree]]
    head: Callable[[Net, Array], Array]
    name: str = "model"
    whole: Callable[[Net], Net] = lambda net: net
    model_axes: Axes = ()
    behind: tuple["Model", Callable[..., Array]] | None = None
    episodic: bool = False
    vocabulary: int | None = None


def check_tokens(tokens: PyTree, vocabulary: int, model: str, mask: PyTree | None = None, where: str = "") -> None:
    """Refuses token ids that an embedding does not have: JAX would read its last row for each of them.

    Args:
      tokens: ids of any shape. Of traced ones nothing is known, and nothing is said.
      vocabulary: V, how many tokens are embedded.
      model: the network's name.
      mask: which of them count, of the same shape; None: all.
      where: the message's beginning, such as "test: ".

    Raises:
      ValueError: an id that counts is negative, or not below V.
    """
    if isinstance(tokens, Tracer) or isinstance(mask, Tracer):
        return
    ids = np.asarray(tokens)
    if mask is not None:
        ids = ids[np.asarray(mask, bool)]
    elif ids.size:  # of an array that repeats along an axis, such as a stand-in's, once
        ids = ids[tuple(slice(1) if stride == 0 else slice(None) for stride in ids.strides)]
    low, high = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
    if low >= 0 and high < vocabulary:
        return
    wrong = high if high >= vocabulary else low
    raise ValueError(f"{where}token id {wrong}: {model} embeds {vocabulary} tokens, ids 0 to {vocabulary - 1}")


def axis_of(path: str, axes: Axes) -> int | None:
    """The axis of an array, from its end, by the longest of `axes` that its path ends with; None: there is none, it stays whole.

    >>> axis_of("params/layers/mlp/up/kernel", (("kernel", -1), ("mlp/up/kernel", -2)))
    -2
    """
    found = [(len(end), axis) for end, axis in axes if f"/{path}".endswith(f"/{end}")]
    return max(found)[1] if found else None


def width(model: Model) -> int:
    """D, the number of a model's features: the rows of its head's kernel."""
    return jax.eval_shape(model.init, jax.random.key(0)).params["head"]["kernel"].shape[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Peers:
    """Clients with one architecture, as every method may know them.

    Attributes:
      network: () -> their network.
      clients: their ids.
    """

    network: Callable[[], Model]
    clients: Sequence[int] | np.ndarray

    @functools.cached_property
    def model(self) -> Model:
        """For its shapes only, since its arrays would become constants of a program."""
        return self.network()

    @functools.cached_property
    def shapes(self) -> Net:
        """Of the network's `Net`."""
        return jax.eval_shape(self.model.init, jax.random.key(0))

    @property
    def width(self) -> int:
        """D."""
        return self.shapes.params["head"]["kernel"].shape[0]


@dataclasses.dataclass(frozen=True)
class Task:
    """A network, its classes, and the population that trains it.

    Attributes:
      network: frozen arrays -> Model.
      classes: K; where targets are no classes, how many numbers a network gives for each of them (`algorithm.TARGETS`).
      population: N, the number of clients that exist (of all architectures).
      frozen: arrays that everyone holds and nobody trains, such as a pre-trained backbone; `()` if none.
      public: Examples that everybody holds (FedMD's public set); `()` if none.
      shape: of one example's x; None if it is not told (few methods ask).
      round: index of the current round, from 0; a traced scalar inside a round.
      groups: all clients by architecture, in the engine's order; empty outside of a simulation.
      group: the place of this network's clients among them.
      scores: by name, what is scored beside accuracy and loss: (outputs, x, y, mask [B]) -> (sum, weight), or
        an object with `finalize` (`training/scores.py`).
      loss: of targets, in place of the one that fits them in every method's loss: (logits [B, K], y [B], mask [B]) -> the mean over
        the rows in `mask`; None: of classes cross-entropy (`local_training.of_labels`). The score named "loss" is the fitting one
        always.

    `frozen` and `public` travel as arguments of the jitted round and are bound again inside it (`bind`): closed over, a large
    backbone would be printed into the compiled program as a constant.
    """

    network: Callable[[PyTree], Model]
    classes: int
    population: int
    frozen: PyTree = ()
    public: PyTree = ()
    shape: tuple[int, ...] | None = None
    round: Array | int = 0
    groups: tuple[Peers, ...] = ()
    group: int = 0
    scores: Mapping[str, Callable[..., PyTree]] = dataclasses.field(default_factory=dict, hash=False)
    loss: Callable[[Array, Array, Array], Array] | None = None

    @property
    def model(self) -> Model:
        return self.network(self.frozen)

    @property
    def peers(self) -> tuple[Peers, ...]:
        """`groups`, or outside of a simulation everybody with this network."""
        return self.groups or (Peers(lambda: self.model, np.arange(self.population)),)

    @property
    def widths(self) -> np.ndarray:
        """[N] each client's number of features."""
        found = np.zeros(self.population, np.int32)
        for peers in self.peers:
            found[np.asarray(peers.clients)] = peers.width
        return found

    @property
    def held(self) -> tuple[PyTree, PyTree]:
        """What `bind` takes back."""
        return self.frozen, self.public

    def bind(self, held: tuple[PyTree, PyTree], round: Array | int) -> "Task":  # noqa: A002
        """The same task over other (traced) arrays, at a given round."""
        return dataclasses.replace(self, frozen=held[0], public=held[1], round=round)

    def wrapped(self, wrap: Callable[[Model], Model]) -> "Task":
        """The same task over the wrapped network, such as one whose inputs are augmented."""
        inner = self.network  # the task itself would be held with its arrays wherever the network is
        return dataclasses.replace(self, network=lambda frozen: wrap(inner(frozen)))


def needs_logits(task: Task, method: str) -> None:
    """Raises ValueError for networks whose logits are not of all K classes, of which a method would exchange means."""
    if task.model.episodic:
        raise ValueError(
            f"{method} exchanges mean logits of classes, which a prototypical network does not have; with episodes choose a "
            "method, or an option of it, that reads features"
        )


def common_width(task: Task, method: str) -> int:
    """D, where the clients of a method exchange features and must have equally many.

    Raises:
      ValueError: they do not; says which network has how many.
    """
    if len({peers.width for peers in task.peers}) > 1:
        listed = ", ".join(sorted({f"{peers.model.name} has {peers.width}" for peers in task.peers}))
        raise ValueError(
            f"models differ in their number of features: {listed}; {method} exchanges features, so all must have equally many "
            "(option features=512 of ResNets, widths of others; fedgh can project them)"
        )
    return width(task.model)


def of_model(model: Model, *, classes: int, population: int, public: PyTree = (), shape: tuple[int, ...] | None = None) -> Task:
    """A task whose network is trained whole.

    Args:
      model: the network.
      classes: K.
      population: N.
      public: Examples that everybody holds.
      shape: of one example's x.

    Returns:
      The task, with nothing frozen.
    """
    return Task(lambda frozen: model, classes, population, public=public, shape=shape)


PARTS: dict[str, tuple[str, ...] | None] = {"all": None, "prompts": ("prompts", "head"), "head": ("head",)}


def part_of(
    model: Model,
    arrays: Net,
    trained: str | Sequence[str],
    *,
    classes: int,
    population: int,
    public: PyTree = (),
    shape: tuple[int, ...] | None = None,
) -> Task:
    """A task that begins from given arrays, and trains all of a network or some of it.

    Of a network that is trained in part, the `Net` has the trained entries only: methods keep, send and average nothing else. The
    rest is `frozen`, once in memory however many clients share it, and runs in evaluation mode: no dropout, the running statistics
    of batch normalisation, which never move.

    Args:
      model: the whole network.
      arrays: params by entry, and stats; a trained entry begins from here if it is there, else as `model.init` draws it.
      trained: "all"; "prompts", which are the entries "prompts" and "head"; "head"; or names of entries.
      classes: K.
      population: N.
      public: Examples that everybody holds.
      shape: of one example's x.

    Returns:
      The task.

    Raises:
      ValueError: the network has no such entry, or `arrays` lack one that is not trained, or the statistics.
    """
    entries = PARTS.get(trained) if isinstance(trained, str) else tuple(trained)
    if isinstance(trained, str) and trained not in PARTS:
        raise ValueError(f"train={trained!r} is not one of {', '.join(map(repr, PARTS))}")
    there = jax.eval_shape(model.init, jax.random.key(0))
    for name in entries or ():
        if name not in there.params:
            add = f"; {TO_ADD}" if name == "head" else ""
            raise ValueError(f"train={trained!r}: {model.name} has no entry {name!r}, only {', '.join(there.params)}{add}")
    chosen = tuple(there.params) if entries is None else entries
    if missing := [name for name in there.params if name not in chosen and name not in arrays.params]:
        raise ValueError(f"train={trained!r}: {model.name} needs frozen arrays for {', '.join(missing)}")
    if not jax.tree.leaves(there.stats):
        arrays = arrays._replace(stats=there.stats)
    elif entries is not None and jax.tree.structure(arrays.stats) != jax.tree.structure(there.stats):
        raise ValueError(f"train={trained!r}: {model.name} needs frozen statistics beside its params")

    def network(frozen: Net) -> Model:
        def init(key):
            fresh = model.init(key)
            params = {name: frozen.params[name] if name in frozen.params else fresh.params[name] for name in chosen}
            return Net(params, {} if entries is not None else frozen.stats if jax.tree.leaves(frozen.stats) else fresh.stats)

        def whole(net):
            return net if entries is None else Net(dict(frozen.params) | net.params, frozen.stats)

        def apply(net, x, key=None, train=False, mask=None, **more):
            if entries is None:
                return model.apply(net, x, key, train=train, mask=mask, **more)
            return model.apply(whole(net), x, key, mask=mask, **more)[0], net.stats

        def features(net, x, key=None, train=False, mask=None):
            if entries is None:
                return model.features(net, x, key, train=train, mask=mask)
            return model.features(whole(net), x, key, mask=mask)[0], net.stats

        head = lambda net, z: model.head(whole(net), z)
        return Model(init, apply, features, head, model.name, whole, model.model_axes, vocabulary=model.vocabulary)

    return Task(network, classes, population, arrays, public, shape)
