"""Minibatches of one client's examples, and passes over them in which nothing is trained."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Array, ClientData, Cohort, Examples, PyTree, Remainder

_LOOP = re.compile(r"(?:(batches)_of|(micro_batches)|(own|\d+)_epochs_by)_(\d+)\)*(?:/while)?$")


class Batch(NamedTuple):
    """One minibatch.

    Attributes:
      x: leaves [B, ...].
      y: [B] or [B, ...].
      mask: [B], False for the padding of a short last batch.
      extra: leaves [B, ...], extra arrays that `fit` was given for each example; `()` if none.
    """

    x: PyTree
    y: PyTree
    mask: Array
    extra: PyTree = ()


def gather_batch(arrays: PyTree, index: Array, mask: Array) -> Batch:
    """Gathers the minibatch at `index` [B] from the Examples `arrays`."""
    x, y = jax.tree.map(lambda a: a[index], arrays)
    return Batch(x, y, mask)


def draw_bits(key: Array, numbers: Array) -> Array:
    """Returns a uint32 for each number, drawn from (key, number) whatever the other numbers are."""
    return jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), dtype=jnp.uint32))(numbers)


def shuffle_slots(key: Array, slots: Array, size: Array) -> Array:
    """Returns `slots`, 0, 1, ..., in an order drawn for each slot on its own, padding (`size` and above) last."""
    draws = jnp.where(slots < size, draw_bits(key, slots), jnp.uint32(0xFFFFFFFF))
    return jnp.argsort(draws, stable=True)  # padding last, also where an example draws the largest number


def loop_over_batches(number: Array, size: int, body: Callable[[Array, PyTree], PyTree], carry: PyTree) -> PyTree:
    """Runs `lax.fori_loop` over `number` minibatches of `size` examples.

    A plan reads its trip count from its name in the compiled program, `batches_of_<size>`.
    """
    with jax.named_scope(f"batches_of_{size}"):
        return jax.lax.fori_loop(0, number, body, carry)


def loop_over_micro_batches(number: Array, expected: int, body: Callable, carry: PyTree) -> PyTree:
    """Returns `carry` after `body(i, carry)` for each part of a minibatch, `expected` of them on average."""
    with jax.named_scope(f"micro_batches_{expected}"):
        return jax.lax.fori_loop(0, number, body, carry)


class Loop(NamedTuple):
    """A loop of local training, as its name in a program says.

    Attributes:
      kind: "batches" of `loop_over_batches`; "micro_batches" of `loop_over_micro_batches`; "epochs", where the number of
        steps differs by client (`plan_steps`).
      size: examples in a minibatch; of "micro_batches", their expected number.
      epochs: of "epochs"; None where these differ.
    """

    kind: str
    size: int
    epochs: int | None = None


def parse_loop(name: str) -> Loop | None:
    """Returns the loop of local training that has this name in a program; None for others.

    >>> parse_loop("jit(rounds)/while/body/batches_of_20/while")
    Loop(kind='batches', size=20, epochs=None)
    >>> parse_loop("jit(rounds)/batches_of_20/while/body/micro_batches_2/while")
    Loop(kind='micro_batches', size=2, epochs=None)
    >>> parse_loop("vmap(5_epochs_by_20)/while"), parse_loop("own_epochs_by_20")
    (Loop(kind='epochs', size=20, epochs=5), Loop(kind='epochs', size=20, epochs=None))
    >>> parse_loop("jit(rounds)/while")
    """
    match = _LOOP.search(name)
    if match is None:
        return None
    epochs = match[3]
    return Loop(match[1] or match[2] or "epochs", int(match[4]), None if epochs in (None, "own") else int(epochs))


def num_steps(data: ClientData, batch: int) -> Array:
    """Returns the number [] of local steps that `fit` takes in an epoch."""
    size = own_batch_size(data, batch)
    if data.remainder is Remainder.DROP:  # a method that trains on a part of the data takes one step at least
        return jnp.maximum(data.size // size, jnp.minimum(data.size, 1))
    return -(-data.size // size)


def own_batch_size(data: ClientData, batch: int) -> Array | int:
    """Returns the examples in a client's full minibatch: at most `batch`, or its own number."""
    size = cap_batch_size(data, batch)
    return size if data.settings is None or data.settings.batch is None else jnp.clip(data.settings.batch, 1, size)


class EpochsByClient(int):
    """A method's option `epochs` where clients have their own: the number of those without any.

    In training only `fit` and the functions below read the epochs of `ClientSettings`. Arithmetic with it raises TypeError:
    it would be wrong.
    """

    def _refuse(self, other: object) -> Any:
        del other
        raise TypeError("epochs differ by client: a method that computes with them takes `local_training.planned_epochs`")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __truediv__ = __rtruediv__ = _refuse


class LocalSteps(NamedTuple):
    """Steps of one `fit` of a client that has its own number of them.

    Attributes:
      epochs: that it plans; a fraction where it plans steps.
      total: [] steps that it takes.
      begun: [] epochs that it begins.
      name: of the loop over them (`parse_loop`).
    """

    epochs: Array | int
    total: Array
    begun: Array
    name: str


def plan_steps(data: ClientData, epochs: int, batch: int) -> LocalSteps | None:
    """Returns the steps of `fit` by the client's settings; None: those of all clients."""
    settings = data.settings
    if settings is None:
        return None
    steps, size, is_own = num_steps(data, batch), cap_batch_size(data, batch), isinstance(epochs, EpochsByClient)
    planned, total, name = int(epochs), int(epochs) * steps, f"{int(epochs)}_epochs_by_{size}"
    if is_own and settings.epochs is not None:
        planned, total, name = settings.epochs, settings.epochs * steps, f"own_epochs_by_{size}"
    elif is_own and settings.steps is not None:
        total = jnp.where(steps > 0, settings.steps, 0)
        planned, name = total / jnp.maximum(steps, 1), f"own_epochs_by_{size}"
    elif settings.share is None:
        return None
    if settings.share is not None:
        total = jnp.floor(total * settings.share).astype(total.dtype)
    return LocalSteps(planned, total, -(-total // jnp.maximum(steps, 1)), name)


def planned_epochs(data: ClientData, epochs: int, batch: int) -> Array | int:
    """Returns the epochs that `fit` plans over a client's data; a fraction for a number of steps."""
    plan = plan_steps(data, epochs, batch)
    return int(epochs) if plan is None else plan.epochs


def num_epochs(data: ClientData, epochs: int, batch: int) -> Array | int:
    """Returns the epochs that `fit` begins over a client's data."""
    plan = plan_steps(data, epochs, batch)
    return int(epochs) if plan is None else plan.begun


def client_rate(data: ClientData) -> Array | float:
    """Returns the client's factor of the learning rate, which optimizers get as `rate`."""
    return 1.0 if data.settings is None or data.settings.rate is None else data.settings.rate


def sequential_batches(data: ClientData, batch: int) -> tuple[int, Callable[[Array], Batch]]:
    """Returns B, and a function i -> the i-th minibatch of the examples in stored order."""
    size = cap_batch_size(data, batch)
    index = jnp.pad(data.index, (0, -data.index.shape[0] % size))

    def minibatch(i):
        slots = i * size + jnp.arange(size)
        return gather_batch(data.arrays, index[slots], slots < data.size)

    return size, minibatch


def shuffled_batches(data: ClientData, batch: int, extra: PyTree) -> tuple[int, Array, Callable[[Array, Array], Batch]]:
    """Returns B, the slots to shuffle, and a function (order, i) -> the i-th minibatch of an epoch.

    `order` is the shuffled slots. Where the data draw their minibatches, it is the epoch's key.

    Args:
      extra: leaves [M, ...], one entry for each example, of which a minibatch has its own.

    Raises:
      ValueError: `extra` is given for data that draw their minibatches, or `data.remainder` is DROP
        and no client fills a batch.
    """
    if data.draw is not None and jax.tree.leaves(extra):
        raise ValueError("extra: data that draw their minibatches (episodes) cannot have arrays beside the examples")
    capacity = data.index.shape[0]
    b, own = cap_batch_size(data, batch), own_batch_size(data, batch)
    if b < batch and data.remainder is Remainder.DROP:
        raise ValueError(f"drop_last: no client has the {batch} examples of a batch; the largest has {capacity}")
    slots = jnp.arange(-(-capacity // b) * b if isinstance(own, int) else capacity + b)
    index = jnp.pad(data.index, (0, len(slots) - capacity))

    def minibatch(order, i):
        if data.privacy is not None:
            return data.privacy.draw(data, jax.random.fold_in(order, i), b)
        if data.draw is not None:
            return data.draw(data, jax.random.fold_in(order, i))
        start = i * own
        chosen = jax.lax.dynamic_slice_in_dim(order, start, b)
        rows, mask = index[chosen], start + jnp.arange(b) < data.size
        gathered = gather_batch(data.arrays, rows, mask if isinstance(own, int) else mask & (jnp.arange(b) < own))
        return gathered._replace(extra=jax.tree.map(lambda a: a[chosen], extra))

    return b, slots, minibatch


def cap_batch_size(data: ClientData, batch: int) -> int:
    """Returns the slots of a minibatch: `batch`, or as many as the largest client has examples."""
    return max(1, min(batch, data.index.shape[0]))


def sum_over_batches(fn: Callable[[Batch], PyTree], data: ClientData, *, batch: int) -> PyTree:
    """Sums `fn` (Batch -> sums over its mask) over minibatches of at most `batch` examples."""
    b, minibatch = sequential_batches(data, batch)
    sums = jax.jit(lambda i: fn(minibatch(i)), inline=True)  # traced once, for shapes and for use
    zeros = optax.tree.zeros_like(jax.eval_shape(sums, jnp.int32(0)))
    return loop_over_batches(-(-data.size // b), b, lambda i, total: jax.tree.map(jnp.add, total, sums(i)), zeros)


def map_examples(fn: Callable[[Batch], PyTree], data: ClientData, *, batch: int) -> PyTree:
    """Maps `fn` (Batch -> leaves [B, ...]) over one client's examples; nothing is trained.

    Returns:
      Leaves [M, ...] in the order of `data.index`; entries past `data.size` may be anything.
    """
    b, minibatch = sequential_batches(data, batch)
    outputs = jax.jit(lambda i: fn(minibatch(i)), inline=True)  # traced once, for shapes and for use
    number = data.index.shape[0]
    shapes = jax.eval_shape(outputs, jnp.int32(0))
    buffer = jax.tree.map(lambda s: jnp.zeros((-(-number // b) * b, *s.shape[1:]), s.dtype), shapes)

    def write(i, buffer):
        update = lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, i * b, 0)
        return jax.tree.map(update, buffer, outputs(i))

    return jax.tree.map(lambda leaf: leaf[:number], loop_over_batches(-(-data.size // b), b, write, buffer))


def class_sums(values: Array, y: Array, mask: Array, classes: int) -> tuple[Array, Array]:
    """Returns the sums [K, D] of `values` [B, D] by class, and the numbers of examples [K], float32 or wider.

    A bfloat16 sum of some hundred equal numbers would stop growing.
    """
    values = values.astype(jnp.promote_types(values.dtype, jnp.float32))
    one_hot = jax.nn.one_hot(y, classes, dtype=values.dtype) * mask[:, None]
    return one_hot.T @ jnp.where(mask[:, None], values, 0), jnp.sum(one_hot, 0)


def divide_class_sums(total: Array, count: Array) -> tuple[Array, Array]:
    """Returns the means [K, D] of sums by class, and the numbers of examples [K]; zero for a class without examples."""
    return total / jnp.maximum(count, 1)[:, None], count


def class_counts(data: ClientData, *, classes: int, batch: int) -> Array:
    """Returns one client's numbers of examples [K] by class."""
    return sum_over_batches(lambda b: jnp.sum(jax.nn.one_hot(b.y, classes) * b.mask[:, None], 0), data, batch=batch)


def class_means(fn: Callable[[Batch], Array], data: ClientData, *, classes: int, batch: int) -> tuple[Array, Array]:
    """Returns the means [K, D] of `fn` (Batch -> [B, D]) by class, and the numbers of examples [K].

    The mean of a class without examples is zero.
    """
    total, count = sum_over_batches(lambda batch: class_sums(fn(batch), batch.y, batch.mask, classes), data, batch=batch)
    return divide_class_sums(total, count)


def uplinks_as_examples(cohort: Cohort, means: Array, counts: Array) -> ClientData:
    """Returns the class means that a cohort sent, as C * K examples to train on at the server.

    They are ordered by client id, so that `fit` depends neither on the cohort's order nor on empty
    slots. For absent clients and counts [C, K] of 0 the means [C, K, D] may be anything.
    """
    c, k, d = means.shape
    is_sent = (cohort.examples > 0)[:, None] & (counts > 0)
    order = jnp.argsort(jnp.where(is_sent, cohort.ids[:, None], jnp.iinfo(jnp.int32).max).reshape(-1), stable=True)
    x = jnp.where(is_sent[..., None], means, 0).reshape(c * k, d)
    return ClientData(Examples(x, jnp.tile(jnp.arange(k), c)), order, jnp.sum(is_sent))
