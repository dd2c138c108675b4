"""Adapters: small trainable matrices beside the frozen kernels of a network.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen. LoRA: Low-Rank Adaptation of Large Language
Models. ICLR 2022. https://arxiv.org/abs/2106.09685
He, Zhou, Ma, Berg-Kirkpatrick, Neubig. Towards a Unified View of Parameter-Efficient Transfer
Learning. ICLR 2022. https://arxiv.org/abs/2110.04366

  lora(rank=8, alpha=16.0, dropout=0.05, targets=("query", "value"))           x W + alpha / rank dropout(x) A B
  bottleneck(rank=8, scale=1.0, dropout=0.0, targets=("query", "value"))       x W + scale relu(dropout(x) A) B, in parallel

  paper    here        meaning
  W_0      base        [in, out] a frozen kernel, in memory once and never sent
  A, B     "a", "b"    [in, rank] uniform within 1 / sqrt(in) (Kaiming with sqrt 5); [rank, out] zero, so
                       that training starts from the base

A network must use its kernels as `x @ kernel` (`language/models/transformer.py`, `nn/vit.py`),
since a `Kernel` replaces the array. A target is the name of the entry above "kernel", or of the
part of a kernel that holds several side by side.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import Algorithm, Array, Net, PyTree
from fedjax_core.option_types import AtLeastOne, BelowOne, Positive, check_arguments
from fedjax_core.task import TRAINABLE_PARTS, Axes, Model, Task, find_model_axis
from fedjax_core.training.aggregators import append_axes
from fedjax_core.training.metrics import nbytes

STACKED = ("layers", "blocks")  # entries of params whose leaves have a leading axis [depth]
PACKED = {"qkv": ("query", "key", "value")}  # kernels [in, parts, ...], by name
JOINED = {"out": 2}  # kernels with several input axes, and how many
ENTRY, CORRECTION = "adapter", "correction"  # entries of params: what is trained; what is added to the base
_STREAM, _DROPOUT = 0x6C6F7261, 0x64726F70
_EXACT = jax.lax.Precision.HIGHEST


class AdapterConfig(NamedTuple):
    """Configuration of an adapter, scale * f(dropout(x) a) b; f is ReLU in a bottleneck, else the identity."""

    rank: int
    scale: float
    dropout: float
    targets: tuple[str, ...]
    bottleneck: bool = False


def lora(
    rank: AtLeastOne = 8, alpha: Positive = 16.0, dropout: BelowOne = 0.05, targets: Sequence[str] = ("query", "value")
) -> AdapterConfig:
    """Returns low-rank updates; raises ValueError for an option out of range."""
    check_arguments(lora, rank=rank, alpha=alpha, dropout=dropout)
    return AdapterConfig(rank, alpha / rank, dropout, _as_tuple(targets))


def bottleneck(
    rank: AtLeastOne = 8, scale: Positive = 1.0, dropout: BelowOne = 0.0, targets: Sequence[str] = ("query", "value")
) -> AdapterConfig:
    """Returns parallel two-layer perceptrons, which cannot be merged; ValueError as `lora`."""
    check_arguments(bottleneck, rank=rank, scale=scale, dropout=dropout)
    return AdapterConfig(rank, scale, dropout, _as_tuple(targets), True)


ADAPTERS: dict[str, Callable[..., AdapterConfig]] = {"lora": lora, "bottleneck": bottleneck}


def _as_tuple(targets: Sequence[str]) -> tuple[str, ...]:
    if not targets:
        raise ValueError(f"adapter: targets={targets} must not be empty")
    return (targets,) if isinstance(targets, str) else tuple(targets)


def parse(spec: str) -> AdapterConfig:
    """Parses the adapter of a config, such as "lora(rank=4)"; raises for an unknown one."""
    name, options = registry.parse_spec(spec)
    registry.check_choice("adapter", name, ADAPTERS)
    return registry.call_checked(f"adapter {name!r}", ADAPTERS[name], {}, options)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("base", "updates"), meta_fields=("parts", "kind", "dropout_window")
)
@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel with an adapter, used as `x @ kernel`.

    Attributes:
      base: [in, out]; leaves have a leading axis [depth] while layers are stacked.
      updates: by part, {"a": [in, rank], "b": [rank, out / parts]}, and "key" with dropout.
      parts: names of the kernels side by side in the base; ("",) for one.
      kind: the adapter's configuration.
      dropout_window: (T, first): dropout is drawn for x [B, T, in], of which x has the positions
        from `first` on; None: x has all.
    """

    base: Array
    updates: dict[str, dict[str, Array]]
    parts: tuple[str, ...]
    kind: AdapterConfig
    dropout_window: tuple[int, int] | None = None

    def __rmatmul__(self, x: Array) -> Array:
        """Returns x @ kernel, [..., in] -> [..., out]."""
        y = (x @ self.base).astype(x.dtype)  # a corrected base may be wider
        shape = (*y.shape[:-1], y.shape[-1] // len(self.parts))
        each = [self._update(x, self.updates[part]) if part in self.updates else jnp.zeros(shape, y.dtype) for part in self.parts]
        return y + (each[0] if len(each) == 1 else jnp.concatenate(each, -1)).astype(y.dtype)

    def _update(self, x: Array, own: dict[str, Array]) -> Array:
        x = x.astype(own["a"].dtype)
        if "key" in own:
            keep, (t, first) = 1 - self.kind.dropout, self.dropout_window or (x.shape[-2], 0)
            kept = jax.random.bernoulli(own["key"], keep, (*x.shape[:-2], t, x.shape[-1]))
            x = jnp.where(kept[..., first : first + x.shape[-2], :], x / keep, 0)
        low = x @ own["a"]
        return self.kind.scale * ((jax.nn.relu(low) if self.kind.bottleneck else low) @ own["b"])


def with_dropout_window(params: PyTree, places: int, first: int) -> PyTree:
    """Makes adapters draw dropout for `places` positions of a text, of which they see those from `first` on."""
    replace = lambda leaf: dataclasses.replace(leaf, dropout_window=(places, first)) if isinstance(leaf, Kernel) else leaf
    return jax.tree.map(replace, params, is_leaf=lambda leaf: isinstance(leaf, Kernel))


class Site(NamedTuple):
    """A kernel, or part of one, that an adapter updates.

    Attributes:
      path: of the kernel in params.
      part: one of its `parts`.
      parts: see `Kernel`.
      stack: () or (depth,).
      inputs, outputs: of the update.
    """

    path: tuple[str, ...]
    part: str
    parts: tuple[str, ...]
    stack: tuple[int, ...]
    inputs: int
    outputs: int

    @property
    def place(self) -> tuple[str, ...]:
        """Path of the adapter's arrays in what is trained."""
        return self.path[:-1] + ((self.part,) if self.part else ())


def find_sites(shapes: PyTree, targets: Sequence[str], name: str = "the network") -> list[Site]:
    """Finds the kernels that are targets; the ValueError for an unknown one lists all."""
    all_sites = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        names = tuple(step.key for step in path)
        if len(names) < 2 or names[-1] != "kernel" or names[0] == "head":
            continue
        stack = leaf.shape[: int(names[0] in STACKED)]
        shape, parts = leaf.shape[len(stack) :], PACKED.get(names[-2], ("",))
        joined = JOINED.get(names[-2], 1) if len(shape) > 2 else 1
        inputs, outputs = math.prod(shape[:joined]), math.prod(shape[joined:]) // len(parts)
        if len(shape) == joined + 1 or len(parts) > 1:
            all_sites += [Site(names, part, parts, stack, inputs, outputs) for part in parts]
    names = list(dict.fromkeys(site.part or site.path[-2] for site in all_sites))
    for target in targets:
        registry.check_choice(f"adapter target of {name}", target, names)
    return [site for site in all_sites if (site.part or site.path[-2]) in targets]


class Adapter(NamedTuple):
    """An adapter of one network, as pure functions.

    Attributes:
      init: key -> what is trained, nested like the parameters.
      wrap: (params, trained, key) -> params with `Kernel`s; the key draws dropout, None: no
        dropout.
      merge: (params, trained) -> params with equivalent plain kernels; ValueError for a bottleneck.
      correct: (params, products) -> params with kernels W_0 + scale * product, products as by
        `multiply_factors`, at least as exact as these; None: the same params. ValueError for a
        bottleneck.
    """

    init: Callable[[Array], PyTree]
    wrap: Callable[[PyTree, PyTree, Array | None], PyTree]
    merge: Callable[[PyTree, PyTree], PyTree]
    correct: Callable[[PyTree, PyTree | None], PyTree]


def make_adapter(kind: AdapterConfig, shapes: PyTree, name: str = "the network") -> Adapter:
    """Builds an adapter for a network with these params; ValueError if it lacks a target."""
    where = find_sites(shapes, kind.targets, name)

    def init(key: Array) -> PyTree:
        trained: dict[str, Any] = {}
        for i, site in enumerate(where):
            a = jax.random.uniform(jax.random.fold_in(key, i), (*site.stack, site.inputs, kind.rank), minval=-1)
            arrays = {"a": a / site.inputs**0.5, "b": jnp.zeros((*site.stack, kind.rank, site.outputs))}
            trained = _put(trained, site.place, arrays)
        return trained

    def wrap(params: PyTree, trained: PyTree, key: Array | None = None) -> PyTree:
        for path in dict.fromkeys(site.path for site in where):
            own_sites = {i: site for i, site in enumerate(where) if site.path == path}
            updates, base = {}, _get(params, path)
            for i, site in own_sites.items():
                updates[site.part] = dict(_get(trained, site.place))
                if key is not None and kind.dropout:
                    own = jax.random.fold_in(jax.random.fold_in(key, _DROPOUT), i)
                    updates[site.part]["key"] = jax.random.split(own, site.stack) if site.stack else own
            site = next(iter(own_sites.values()))
            base = base.reshape(*site.stack, site.inputs, site.outputs * len(site.parts))
            params = _put(params, path, Kernel(base, updates, site.parts, kind))
        return params

    def merge(params: PyTree, trained: PyTree) -> PyTree:
        merged = correct(params, multiply_factors(trained))
        for path in dict.fromkeys(site.path for site in where):
            merged = _put(merged, path, _get(merged, path).astype(_get(params, path).dtype))
        return merged

    def correct(params: PyTree, products: PyTree | None) -> PyTree:
        if products is None:
            return params
        if kind.bottleneck:
            raise ValueError("adapter: a bottleneck is not linear, so it cannot be merged into the kernels; lora can")
        for site in where:
            base, update = _get(params, site.path), kind.scale * _get(products, site.place)
            flat = jnp.asarray(base).reshape(*site.stack, site.inputs, len(site.parts), site.outputs)
            part = site.parts.index(site.part)
            flat = flat.astype(jnp.promote_types(base.dtype, update.dtype)).at[..., part, :].add(update)
            params = _put(params, site.path, flat.reshape(base.shape))
        return params

    return Adapter(init, wrap, merge, correct)


def _axes(where: Sequence[Site], shapes: PyTree, of_model: Axes) -> Axes:
    """Returns the sharded axes of an adapter: "a" beside a kernel sharded by inputs, "b" by outputs, and of a correction."""
    axes = []
    for site in where:
        axis, number = find_model_axis("/".join(site.path), of_model), len(_get(shapes, site.path).shape) - len(site.stack)
        if axis is not None and -axis <= number:
            inputs = number + axis < (JOINED.get(site.path[-2], 1) if number > 2 else 1)
            axes.append(("/".join((ENTRY, *site.place, "a" if inputs else "b")), -2 if inputs else -1))
            axes.append(("/".join((CORRECTION, *site.place)), -2 if inputs else -1))
    return tuple(axes)


def mix_adapters(one: PyTree, other: PyTree, weight: float) -> PyTree:
    """Returns `weight` times one update and 1 - `weight` times the other, of both ranks."""
    if one.keys() == {"a", "b"}:
        b = jnp.concatenate([weight * one["b"], (1 - weight) * other["b"]], -2)
        return {"a": jnp.concatenate([one["a"], other["a"]], -1), "b": b}
    return {name: mix_adapters(part, other[name], weight) for name, part in one.items()}


def find_rank_axis(path: tuple, leaf: Any) -> int | None:
    """Returns an array's axis of the rank, from its end; None: not an adapter's array, by path and shape."""
    names = [step.key for step in path if isinstance(step, jax.tree_util.DictKey)]
    if len(leaf.shape) < 2 or ENTRY not in names[:-1] or getattr(path[-1], "key", None) not in ("a", "b"):
        return None
    return -1 if names[-1] == "a" else -2


def find_ranks(tree: PyTree) -> set[int]:
    """Returns the ranks of all adapters in a tree of arrays or shapes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {leaf.shape[axis] for path, leaf in leaves if (axis := find_rank_axis(path, leaf)) is not None}


def truncate_adapters(tree: PyTree, rank: Array | int) -> PyTree:
    """Returns a tree whose adapters have zeros beyond `rank` columns of "a" and rows of "b"."""

    def truncate(path, leaf):
        axis = find_rank_axis(path, leaf)
        if axis is None:
            return leaf
        is_kept = jnp.arange(leaf.shape[axis]) < rank
        return jnp.where(is_kept if axis == -1 else is_kept[:, None], leaf, 0)

    return jax.tree_util.tree_map_with_path(truncate, tree)


def _map_updates(function: Callable[[dict[str, Array]], Any], adapter: PyTree) -> PyTree:
    """Returns function({"a": ..., "b": ...}) for each kernel of an adapter."""
    return jax.tree.map(function, adapter, is_leaf=_is_pair)


def multiply_factors(adapter: PyTree) -> PyTree:
    """Returns the product A B of each kernel, [in, out], without the scale; a leading [depth] stays."""
    return _map_updates(lambda own: jnp.matmul(own["a"], own["b"], precision=_EXACT), adapter)


def sum_products(adapters: PyTree, weights: Array) -> PyTree:
    """Returns sum_i w_i A_i B_i of each kernel, as one product of stacked factors.

    Args:
      adapters: of C clients, leaves [C, ...].
      weights: [C]; an adapter of weight 0 may be anything, NaN too.
    """

    def multiply(own: dict[str, Array]) -> Array:
        w = append_axes(weights, own["a"])
        a, b = (jnp.where(w != 0, own[name], 0) for name in ("a", "b"))
        return jnp.einsum("c...ir,c...ro->...io", w * a, b, precision=_EXACT)

    return _map_updates(multiply, adapters)


def check_has_adapter(task: Task, method: str, is_linear: bool = False) -> None:
    """Raises ValueError for a task without an adapter, and with `is_linear` for one that is a bottleneck."""
    net = jax.eval_shape(task.model.init, jax.random.key(0))
    if ENTRY not in net.params:
        raise ValueError(f"{method} needs a network with an adapter; set config.adapter, such as 'lora(rank=8)'")
    if is_linear:
        jax.eval_shape(task.model.full_net, net)


def list_factors(adapter: PyTree) -> list[dict[str, Array]]:
    """Returns {"a": [..., in, rank], "b": [..., rank, out]} of each kernel of an adapter."""
    return jax.tree.leaves(adapter, is_leaf=_is_pair)


def _is_pair(node: Any) -> bool:
    return isinstance(node, dict) and node.keys() == {"a", "b"}


def product_norm(adapter: PyTree) -> Array:
    """Returns the Frobenius norm [] of the products A B of all kernels, without building them."""
    square = jnp.zeros(())
    for own in list_factors(adapter):
        a, b = own["a"].astype(jnp.float32), own["b"].astype(jnp.float32)
        grams = jnp.matmul(a.mT, a, precision=_EXACT), jnp.matmul(b, b.mT, precision=_EXACT)
        square += jnp.sum(grams[0] * grams[1])  # tr(A^T A B B^T)
    return jnp.sqrt(jnp.maximum(square, 0))


def compress_products(adapters: PyTree, weights: Array) -> PyTree:
    """Returns the adapter nearest to sum_i w_i A_i B_i of each kernel, by singular values.

    "a" has the left singular vectors, signed so that the largest entry of each is positive, and "b"
    the right ones times singular values, which fall. So an adapter of fewer columns and rows is the
    nearest one of its rank. No [in, out] matrix is built: singular values are those of a matrix
    with a row for each of all clients' columns.

    Args:
      adapters: of C clients, leaves [C, ..., in, rank] and [C, ..., rank, out].
      weights: [C]; an adapter of weight 0 may be anything, NaN too.
    """

    def compress(own: dict[str, Array]) -> dict[str, Array]:
        w = append_axes(weights, own["a"])
        a, b = (jnp.where(w != 0, own[name].astype(jnp.float32), 0) for name in ("a", "b"))
        wide_a, wide_b = _join_clients(w * a), _join_clients(b.mT)  # [..., in, C rank], [..., out, C rank]
        (q_a, r_a), (q_b, r_b) = jnp.linalg.qr(wide_a), jnp.linalg.qr(wide_b)
        u, s, vt = jnp.linalg.svd(jnp.matmul(r_a, r_b.mT, precision=_EXACT), full_matrices=False)
        rank = own["a"].shape[-1]
        left = jnp.matmul(q_a, u, precision=_EXACT)[..., :rank]
        right = jnp.matmul(s[..., None] * vt, q_b.mT, precision=_EXACT)[..., :rank, :]
        largest = jnp.take_along_axis(left, jnp.argmax(jnp.abs(left), -2, keepdims=True), -2)
        sign = jnp.where(largest < 0, -1.0, 1.0)
        missing = rank - left.shape[-1]  # of a kernel with fewer inputs or outputs
        pad = lambda x, axis: jnp.pad(x, [(0, missing if i == x.ndim + axis else 0) for i in range(x.ndim)])
        return {
            "a": pad(left * sign, -1).astype(own["a"].dtype),
            "b": pad(right * sign.mT, -2).astype(own["b"].dtype),
        }

    return _map_updates(compress, adapters)


def _join_clients(x: Array) -> Array:
    """Returns the clients' columns [C, ..., n, rank] side by side, [..., n, C rank]."""
    x = jnp.moveaxis(x, 0, -2)
    return x.reshape(*x.shape[:-2], -1)


def count_bytes(tree: PyTree, ranks: np.ndarray) -> np.ndarray:
    """Returns the bytes [n] of a tree of arrays or shapes for clients of these ranks [n]."""
    total = np.zeros(len(ranks))
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        axis = find_rank_axis(path, leaf)
        total += nbytes(leaf) if axis is None else nbytes(leaf) / leaf.shape[axis] * ranks
    return total


def is_a(path: tuple) -> bool:
    """Returns whether a leaf of params, by its path, is an adapter's array "a"."""
    return path[0].key == ENTRY and path[-1].key == "a"


def select_a(net: Net) -> Net:
    """Selects the adapter's arrays "a", for `split_net`."""
    params = jax.tree_util.tree_map_with_path(lambda path, _: is_a(path), net.params)
    return Net(params, jax.tree.map(lambda _: False, net.stats))


def with_zero_correction(net: Net) -> Net:
    """Adds the entry "correction": what a method adds to the products A B, zero at first.

    It has one leaf [in, out] for each adapted kernel, at the path of its factors. The network then has the kernels
    W_0 + scale (correction + A B), while its frozen arrays stay as they are.
    """
    zeros = _map_updates(lambda own: jnp.zeros((*own["a"].shape[:-1], own["b"].shape[-1]), own["a"].dtype), net.params[ENTRY])
    return net._replace(params=net.params | {CORRECTION: zeros})


def is_not_correction(path: tuple) -> bool:
    """Returns whether a leaf of params, by its path, is trained beside the entry "correction"."""
    return path[0].key != CORRECTION


def start_correction(method: Algorithm) -> Algorithm:
    """Returns the method whose server's `net` has the entry "correction", zero at first."""

    def server_init(key):
        server = method.server_init(key)
        return server._replace(net=with_zero_correction(server.net))

    return method._replace(server_init=server_init)


def _get(tree: PyTree, path: Sequence[str]) -> Any:
    return functools.reduce(lambda node, name: node[name], path, tree)


def _put(tree: PyTree, path: Sequence[str], value: Any) -> PyTree:
    """Returns the nested dict with another value at a path; dicts along the path are copied."""
    name, *rest = path
    return tree | {name: _put(tree.get(name, {}), rest, value) if rest else value}


def adapter_task(
    model: Model,
    arrays: Net,
    kind: AdapterConfig,
    trained: str | Sequence[str] = (),
    *,
    classes: int,
    population: int,
    public: PyTree = (),
    shape: tuple[int, ...] | None = None,
) -> Task:
    """Builds a task that trains an adapter of a network, and optionally whole entries.

    A `Net` has the entry "adapter" and those entries only, so methods keep, send and average
    nothing else. The rest is `frozen`: in memory once for all clients, and in evaluation mode
    except for the adapter's dropout. `Model.full_net` merges the adapter. A method may add the entry
    "correction" (`with_zero_correction`).

    Args:
      model: the whole network.
      arrays: params by entry, and stats; trained entries that are missing are drawn by
        `model.init`.
      trained: names of entries, such as ("head",); or "head", "prompts" as in
        `TRAINABLE_PARTS`.
      shape: of one example's x; None: whether the network can have adapters is not checked.

    Raises:
      ValueError: the network has no such target or entry, `arrays` lack a frozen entry, or the
        network does not use its kernels as x @ kernel.
    """
    entries = (TRAINABLE_PARTS.get(trained) or (trained,)) if isinstance(trained, str) else tuple(trained)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    for name in entries:
        registry.check_choice(f"entry to train of {model.name}", name, shapes.params)
    if missing := [name for name in shapes.params if name not in arrays.params and name not in entries]:
        raise ValueError(f"adapter: {model.name} needs frozen arrays for {', '.join(missing)}")
    frozen_shapes = {name: entry for name, entry in shapes.params.items() if name not in entries}
    own = make_adapter(kind, frozen_shapes, model.name)
    axes = model.model_axes + _axes(find_sites(frozen_shapes, kind.targets), frozen_shapes, model.model_axes)

    def network(frozen: Net) -> Model:
        def init(key):
            fresh = model.init(key).params if any(name not in frozen.params for name in entries) else {}
            whole = {name: frozen.params[name] if name in frozen.params else fresh[name] for name in entries}
            return Net(whole | {ENTRY: own.init(jax.random.fold_in(key, _STREAM))}, {})

        def join(net):
            params = frozen.params | {name: net.params[name] for name in entries if name in net.params}
            return own.correct(params, net.params.get(CORRECTION))

        def run(net, key, train):
            return Net(own.wrap(join(net), net.params[ENTRY], key if train else None), frozen.stats)

        def apply(net, x, key=None, train=False, mask=None, **more):
            return model.apply(run(net, key, train), x, mask=mask, **more)[0], net.stats

        def features(net, x, key=None, train=False, mask=None):
            return model.features(run(net, key, train), x, mask=mask)[0], net.stats

        def whole(net):
            return Net(own.merge(join(net), net.params[ENTRY]), frozen.stats)

        head = lambda net, z: model.head(Net(join(net), {}), z)
        return Model(init, apply, features, head, model.name, whole, axes, vocabulary=model.vocabulary)

    task = Task(network, classes, population, arrays, public, shape)
    if shape is not None:
        _check_uses_kernels(task, shape)
    return task


def _check_uses_kernels(task: Task, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless the task's network uses its kernels as x @ kernel; `shape` is of one example's x."""
    net = jax.eval_shape(task.model.init, jax.random.key(0))

    def traced(dtype: type) -> None:
        x = jax.ShapeDtypeStruct((1, *shape), dtype)  # traced: NumPy's own x @ kernel would not reach an adapter
        jax.eval_shape(lambda net, frozen, x: task.network(frozen).apply(net, x), net, task.frozen, x)

    try:
        traced(np.float32)
    except (TypeError, ValueError) as error:
        try:
            traced(np.int32)  # a network that embeds token ids reads nothing else
        except (TypeError, ValueError):
            if not isinstance(error, TypeError):
                raise error from None
            raise ValueError(
                f"adapter: {task.model.name} does not use its kernels as x @ kernel, as vit and language models do"
            ) from error
