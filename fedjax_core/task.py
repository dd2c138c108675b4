"""What a method trains: a network as pure functions, and its task."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from fedjax_core.algorithm import Array, Net, PyTree

# Hint in errors about a network without a head.
HEAD_HINT = "give its module a method body(x) that returns features [B, D], and a linear `head` for them"
Axes = tuple[tuple[str, int], ...]  # (end of an array's path, axis from its end), such as ("mlp/up/kernel", -1)


class Model(NamedTuple):
    """A network as pure functions over a `Net`.

    `params` is a nested dict whose entry "head" holds the classifier; all other entries are the
    body.

    Attributes:
      init: key -> Net.
      apply: (net, x, key=None, train=False, mask=None) -> ({"logits": [B, K], "features": [B, D]},
        stats). Examples outside of `mask` [B] never enter batch statistics. In evaluation `stats`
        are unchanged. With intermediates=True outputs also have "intermediates", hidden layers by
        name (possibly {}).
      features: same arguments -> ([B, D], stats); the body alone.
      head: (net, features [B, D]) -> logits [B, K].
      full_net: net -> the Net of the whole network, with its frozen entries (`make_partial_task`).
      model_axes: the axis of each array that is sharded where several devices hold a network
        together (`plan.model`); see `find_model_axis`.
      unaugmented: for a network with augmentation, (the network without it, (inputs, key, train) ->
        augmented inputs), for a method that changes augmented inputs; else None.
      is_episodic: whether logits are of the classes of an episode (`training/few_shot.py`), not of
        all K.
      flattened: arrays whose inputs are a flattened image [H, W, C], by the ends of their paths, each
        with C, in a network of which narrower ones may be cut (`training/width_windows.py`); None:
        it does not declare so.
      vocabulary: V, the number of token ids that the network embeds; None: it embeds none, or does
        not declare it. `check_tokens` raises for other ids.
      takes_classes: whether `params` may have a further entry "classes", a mask [K]: the network then
        predicts among these classes alone.
    """

    init: Callable[[Array], Net]
    apply: Callable[..., tuple[dict[str, PyTree], PyTree]]
    features: Callable[..., tuple[Array, PyTree]]
    head: Callable[[Net, Array], Array]
    name: str = "model"
    full_net: Callable[[Net], Net] = lambda net: net
    model_axes: Axes = ()
    unaugmented: tuple["Model", Callable[..., Array]] | None = None
    is_episodic: bool = False
    vocabulary: int | None = None
    flattened: Axes | None = None
    takes_classes: bool = False


def map_inputs(model: Model, view: Callable[[PyTree, Array | None, bool], PyTree]) -> Model:
    """Returns the network of `view(x, key, train)` in place of its inputs x."""

    def apply(net, x, key=None, train=False, mask=None, **more):
        return model.apply(net, view(x, key, train), key, train=train, mask=mask, **more)

    def features(net, x, key=None, train=False, mask=None):
        return model.features(net, view(x, key, train), key, train=train, mask=mask)

    return model._replace(apply=apply, features=features)


def check_tokens(tokens: PyTree, vocabulary: int, model: str, mask: PyTree | None = None, where: str = "") -> None:
    """Raises for token ids that an embedding does not have; JAX would read its last row instead.

    Args:
      tokens: ids of any shape; traced ones are not checked.
      model: the network's name.
      mask: ids to check, of the same shape; None: all.
      where: prefix of the message, such as "test: ".
    """
    if isinstance(tokens, Tracer) or isinstance(mask, Tracer):
        return
    ids = np.asarray(tokens)
    if mask is not None:
        ids = ids[np.asarray(mask, bool)]
    elif ids.size:  # read repeated axes once, such as those of mock data
        ids = ids[tuple(slice(1) if stride == 0 else slice(None) for stride in ids.strides)]
    low, high = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
    if low >= 0 and high < vocabulary:
        return
    wrong = high if high >= vocabulary else low
    raise ValueError(f"{where}token id {wrong}: {model} embeds {vocabulary} tokens, ids 0 to {vocabulary - 1}")


def find_model_axis(path: str, axes: Axes) -> int | None:
    """Returns the axis of an array, from its end, by the longest of `axes` that its path ends with; None: none.

    >>> find_model_axis("params/layers/mlp/up/kernel", (("kernel", -1), ("mlp/up/kernel", -2)))
    -2
    """
    matches = [(len(end), axis) for end, axis in axes if f"/{path}".endswith(f"/{end}")]
    return max(matches)[1] if matches else None


def count_parameters(tree: PyTree) -> int:
    """Returns the number of elements in a tree of arrays, or of shapes as `jax.eval_shape` gives."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def feature_size(model: Model) -> int:
    """Returns D, the number of a model's features: the inputs of its head; ValueError unless that is one linear layer."""
    head = jax.eval_shape(model.init, jax.random.key(0)).params["head"]
    if "kernel" not in head:
        raise ValueError(f"model {model.name!r} has a head of {', '.join(head)}; it must be one linear layer, with a kernel [D, K]")
    return head["kernel"].shape[0]


@dataclasses.dataclass(frozen=True, eq=False)
class PeerGroup:
    """Clients with one architecture, as known to every method.

    Attributes:
      network: () -> their network.
    """

    network: Callable[[], Model]
    clients: Sequence[int] | np.ndarray

    @functools.cached_property
    def model(self) -> Model:
        """The network, for its shapes only: its arrays would become constants of a program."""
        return self.network()

    @functools.cached_property
    def shapes(self) -> Net:
        """Shapes of the network's `Net`."""
        return jax.eval_shape(self.model.init, jax.random.key(0))

    @property
    def feature_size(self) -> int:
        """D, the number of the network's features."""
        return self.shapes.params["head"]["kernel"].shape[0]


@dataclasses.dataclass(frozen=True)
class Task:
    """A network, its classes, and the population that trains it.

    `frozen` and `public` are arguments of the jitted round, inside of which `bind` binds them
    again. Closed over, a large backbone would become a constant of the compiled program.

    Attributes:
      network: frozen arrays -> Model.
      classes: K; for targets that are no classes, the number of outputs (`algorithm.TARGETS`).
      population: N, the number of clients (of all architectures).
      frozen: arrays that all clients share and none trains, such as a pre-trained backbone; `()` if
        none.
      public: Examples that all clients share (FedMD's public set); `()` if none.
      shape: of one example's x; None if unknown (few methods need it).
      round_num: index of the current round, from 0; a traced scalar inside a round.
      groups: all clients by architecture, in the engine's order; empty outside of a simulation.
      group: index of this network's clients in `groups`.
      scores: further metrics by name: (outputs, x, y, mask [B]) -> (sum, weight), or an object with
        `finalize` (`training/scores.py`).
      loss: (logits [B, K], y [B], mask [B]) -> mean over the examples in `mask`, used in every
        method's loss; None: the default of the targets, cross-entropy for classes
        (`local_training.label_loss`). "train/loss" is this loss; scores named loss stay the default.
    """

    network: Callable[[PyTree], Model]
    classes: int
    population: int
    frozen: PyTree = ()
    public: PyTree = ()
    shape: tuple[int, ...] | None = None
    round_num: Array | int = 0
    groups: tuple[PeerGroup, ...] = ()
    group: int = 0
    scores: Mapping[str, Callable[..., PyTree]] = dataclasses.field(default_factory=dict, hash=False)
    loss: Callable[[Array, Array, Array], Array] | None = None

    @property
    def model(self) -> Model:
        """The network, with the frozen arrays."""
        return self.network(self.frozen)

    @property
    def peers(self) -> tuple[PeerGroup, ...]:
        """`groups`; outside of a simulation, one group of all clients."""
        return self.groups or (PeerGroup(lambda: self.model, np.arange(self.population)),)

    @property
    def feature_sizes(self) -> np.ndarray:
        """[N], each client's number of features."""
        widths = np.zeros(self.population, np.int32)
        for peers in self.peers:
            widths[np.asarray(peers.clients)] = peers.feature_size
        return widths

    @property
    def bound_arrays(self) -> tuple[PyTree, PyTree]:
        """(frozen, public), which `bind` takes."""
        return self.frozen, self.public

    def bind(self, arrays: tuple[PyTree, PyTree], round_num: Array | int) -> "Task":
        """Returns the task with other (traced) arrays, as `bound_arrays` has them, and another round."""
        frozen, public = arrays
        return dataclasses.replace(self, frozen=frozen, public=public, round_num=round_num)

    def wrap_model(self, wrap: Callable[[Model], Model]) -> "Task":
        """Returns the task with a wrapped network, such as one whose inputs are augmented."""
        inner = self.network  # a closure over `self` would keep the task's arrays alive
        return dataclasses.replace(self, network=lambda frozen: wrap(inner(frozen)))


def require_class_logits(task: Task, method: str) -> None:
    """Raises ValueError for a network whose logits are not of all K classes, where a method averages logits."""
    if task.model.is_episodic:
        raise ValueError(
            f"{method} exchanges mean logits of classes, which a prototypical network does not have; with episodes use a "
            "method, or an option of it, that exchanges features"
        )


def require_common_feature_size(task: Task, method: str) -> int:
    """Returns D, for a method whose clients exchange features.

    Raises:
      ValueError: the networks differ in D.
    """
    if len({peers.feature_size for peers in task.peers}) > 1:
        listed = ", ".join(sorted({f"{peers.model.name} has {peers.feature_size}" for peers in task.peers}))
        raise ValueError(
            f"models differ in their number of features: {listed}; {method} exchanges features, so all need the same number "
            "(option features=512 of ResNets, widths of others; fedgh can project them)"
        )
    return feature_size(task.model)


def make_task(model: Model, *, classes: int, population: int, public: PyTree = (), shape: tuple[int, ...] | None = None) -> Task:
    """Builds a task that trains the whole network."""
    return Task(lambda frozen: model, classes, population, public=public, shape=shape)


TRAINABLE_PARTS: dict[str, tuple[str, ...] | None] = {"all": None, "prompts": ("prompts", "head"), "head": ("head",)}


def make_partial_task(
    model: Model,
    arrays: Net,
    trained: str | Sequence[str],
    *,
    classes: int,
    population: int,
    public: PyTree = (),
    shape: tuple[int, ...] | None = None,
) -> Task:
    """Builds a task that starts from given arrays, and trains all or some entries of a network.

    Where only some are trained, the `Net` has no other entries, so methods keep, send and average
    nothing else. The others are `frozen`: in memory once for all clients, and in evaluation mode,
    without dropout and with the running statistics of batch normalization.

    Args:
      arrays: params by entry, and stats; trained entries that are missing are drawn by
        `model.init`.
      trained: "all"; "prompts" (the entries "prompts" and "head"); "head"; or names of entries.

    Raises:
      ValueError: the network has no such entry, or `arrays` lack a frozen entry or the statistics.
    """
    entries = TRAINABLE_PARTS.get(trained) if isinstance(trained, str) else tuple(trained)
    if isinstance(trained, str) and trained not in TRAINABLE_PARTS:
        raise ValueError(f"train={trained!r} is not one of {', '.join(map(repr, TRAINABLE_PARTS))}")
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    for name in entries or ():
        if name not in shapes.params:
            hint = f"; {HEAD_HINT}" if name == "head" else ""
            raise ValueError(f"train={trained!r}: {model.name} has no entry {name!r}, only {', '.join(shapes.params)}{hint}")
    chosen = tuple(shapes.params) if entries is None else entries
    if missing := [name for name in shapes.params if name not in chosen and name not in arrays.params]:
        raise ValueError(f"train={trained!r}: {model.name} needs frozen arrays for {', '.join(missing)}")
    if not jax.tree.leaves(shapes.stats):
        arrays = arrays._replace(stats=shapes.stats)
    elif entries is not None and jax.tree.structure(arrays.stats) != jax.tree.structure(shapes.stats):
        raise ValueError(f"train={trained!r}: {model.name} needs frozen statistics beside its params")

    def network(frozen: Net) -> Model:
        def init(key):
            fresh = model.init(key)
            params = {name: frozen.params[name] if name in frozen.params else fresh.params[name] for name in chosen}
            return Net(params, {} if entries is not None else frozen.stats if jax.tree.leaves(frozen.stats) else fresh.stats)

        more = {"model_axes": model.model_axes, "vocabulary": model.vocabulary, "takes_classes": model.takes_classes}
        if entries is None:
            return Model(init, model.apply, model.features, model.head, model.name, **more)

        def whole(net):
            return Net(dict(frozen.params) | net.params, frozen.stats)

        def apply(net, x, key=None, train=False, mask=None, **more):
            return model.apply(whole(net), x, key, mask=mask, **more)[0], net.stats

        def features(net, x, key=None, train=False, mask=None):
            return model.features(whole(net), x, key, mask=mask)[0], net.stats

        head = lambda net, z: model.head(whole(net), z)
        return Model(init, apply, features, head, model.name, whole, **more)

    return Task(network, classes, population, arrays, public, shape)
