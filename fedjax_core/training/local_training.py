"""Local training: the one loop that clients and server-side training share.

A method brings a loss (a proximal term is a term of it) and an optax chain (a control variate is a link of it):

    trained = fit(loss, optimizer(task.round), epochs=5, batch=64)(net, data, key)

Several phases are several calls. Cached features are a `ClientData` whose arrays are the features. What a method writes beside the
loop is found here too: which leaves are trained (`parts.py`), minibatches and passes over rows (`rows.py`), optimisers
(`optimizers.py`).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Array, ClientData, Net, PyTree, targets_of
from fedjax_core.task import Model, Task
from fedjax_core.training import losses, metrics
from fedjax_core.training.batching import Batch, accumulate, batches, class_means, class_sums, each, in_order, received, steps, take
from fedjax_core.training.optimizers import Optimizer, adam, annealed, mean_gradient, proximal, sgd
from fedjax_core.training.param_partition import join, part, record_training, split, under

__all__ = [
    "Aux",
    "Batch",
    "Fitted",
    "Loss",
    "Optimizer",
    "accumulate",
    "adam",
    "annealed",
    "class_means",
    "class_sums",
    "classified",
    "cross_entropy",
    "each",
    "finetune",
    "fit",
    "full_step",
    "join",
    "mean_gradient",
    "of_labels",
    "part",
    "proximal",
    "received",
    "risk",
    "sgd",
    "split",
    "steps",
    "supervised",
    "take",
    "under",
]


class Aux(NamedTuple):
    """What a loss returns beside its value: the net's new `stats`, and `sums`, a pytree that `fit` adds up over the steps."""

    stats: PyTree
    sums: PyTree


class Fitted(NamedTuple):
    """What `fit` returns.

    Attributes:
      net: the trained network.
      optimizer: the optimiser's final state.
      sums: the loss's `Aux.sums`, added up over all local steps.
    """

    net: Net
    optimizer: PyTree
    sums: PyTree


Loss = Callable[..., tuple[Array, Aux]]  # net, batch, key -> value, Aux; a fourth argument is what `each_epoch` found


def of_labels(task: Task) -> losses.OfLabels:
    """The loss of targets that a task is trained by: the one that fits them (`losses.of_targets`), of classes cross-entropy, or the
    user's own (`config.loss`).

    The latter raises TypeError where it gives something else than one real number."""
    return losses.of_targets if task.loss is None else functools.partial(_one_number, task.loss)


def _one_number(loss: losses.OfLabels, logits: Array, y: Array, mask: Array) -> Array:
    value = loss(logits, y, mask)
    if getattr(value, "shape", None) == () and jnp.issubdtype(value.dtype, jnp.floating):
        return value
    name = getattr(getattr(loss, "func", loss), "__name__", "of the config")
    shown = f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
    raise TypeError(f"loss {name!r} must return the mean over the rows in the mask, a float32[], it returned {shown}")


def supervised(task: Task) -> Loss:
    """The plain loss: that of the network's outputs and the targets; sums: "loss", and of classes and tokens "accuracy", over the
    examples seen."""
    return cross_entropy(task.model, of_labels(task))


def cross_entropy(model: Model, of_labels: losses.OfLabels = losses.cross_entropy) -> Loss:
    """Mean cross-entropy, or another loss of logits and labels; sums: "loss" and "accuracy" over the examples seen."""

    def loss(net: Net, batch: Batch, key: Array) -> tuple[Array, Aux]:
        outputs, stats = model.apply(net, batch.x, key, train=True, mask=batch.mask)
        value, sums = risk(outputs, batch, of_labels)
        return value, Aux(stats, sums)

    return loss


def risk(
    outputs: dict[str, PyTree], batch: Batch, of_labels: losses.OfLabels = losses.cross_entropy
) -> tuple[Array, dict[str, metrics.Pair]]:
    """Mean cross-entropy of a model's outputs, or another loss of logits and labels, and the sums that go with it.

    The targets are `batch.y`, or the outputs' own "targets" where a model reads them from its inputs, as one that writes text does.
    """
    batch = batch._replace(y=outputs.get("targets", batch.y))
    value = of_labels(outputs["logits"], batch.y, batch.mask)
    return value, classified(value, outputs["logits"], batch)


def classified(value: Array, logits: Array, batch: Batch) -> dict[str, metrics.Pair]:
    """The sums that a loss of targets reports: its mean `value` over the batch, and of classes and tokens the accuracy of `logits`
    [B, K]."""
    examples = jnp.sum(batch.mask, dtype=jnp.float32)
    sums = {"loss": (value * examples, examples)}
    if targets_of(batch.y) in ("labels", "numbers"):
        return sums
    return sums | {"accuracy": metrics.accuracy(logits, batch.y, batch.mask)}


def fit(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    *,
    epochs: int,
    batch: int,
    trainable: Callable[[tuple], bool] | None = None,
    each_epoch: Callable[[Net, ClientData, Array | int], PyTree] | None = None,
) -> Callable[..., Fitted]:
    """Epochs of shuffled minibatches over one client's data.

    A short last batch is kept and weighed as it is. The shuffle draws one number per row from (key, epoch, row's place), so
    padding is invisible, and the loop runs ceil(size / batch) steps with a traced bound: a small client costs only its own. Where
    the data have a `draw` (`few_shot.py`), there are as many steps, and each step's minibatch is drawn with a key of its own.

    Args:
      loss: (net, batch, key) -> (value, Aux).
      optimizer: any optax transformation; it sees the trainable leaves only.
      epochs: passes over the client's data; 0 trains nothing.
      batch: B, or fewer if no client has so many rows.
      trainable: path of a leaf in `net.params` (a tuple of jax.tree_util keys) -> whether it is trained; None: all are.
        Frozen leaves are returned as they came, bit for bit, and no gradient is taken for them.
      each_epoch: (net, data, epoch from 0) -> arrays that the loss gets as its fourth argument, made before each epoch.

    Returns:
      (net, data, key, beside=()) -> Fitted. `beside`: leaves [M, ...], one for each of the client's rows as they lie, such as what
      `each` gives; minibatches have theirs. The optimiser is told `progress`, the part of all its steps that is done.

    Raises:
      ValueError: epochs < 0 or batch < 1, or nothing is trainable; (when traced) something beside rows that are drawn.
    """
    if epochs < 0 or batch < 1:
        raise ValueError(f"epochs={epochs}, batch={batch}: epochs must be at least 0 and batch at least 1")

    stepped = optax.with_extra_args_support(optimizer)

    def run(net: Net, data: ClientData, key: Array, beside: PyTree = ()) -> Fitted:
        if data.draw is not None and jax.tree.leaves(beside):
            raise ValueError("beside: minibatches that are drawn (episodes) have nothing beside their rows")
        trained, frozen = split(net.params, trainable)
        rows = data.index.shape[0]
        b = max(1, min(batch, rows))
        places = jnp.arange(-(-rows // b) * b)
        index = jnp.pad(data.index, (0, len(places) - rows))

        def before(trained, stats, e):
            return () if each_epoch is None else (each_epoch(Net(join(trained, frozen), stats), data, e),)

        def gradient(trained, stats, minibatch, key, *known):
            def of_trained(trained):
                return loss(Net(join(trained, frozen), stats), minibatch, key, *known)

            return jax.grad(of_trained, has_aux=True)(trained)

        gradient = jax.jit(gradient, inline=True)  # one trace for its shapes and its use

        def shuffled(key):
            draws = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), dtype=jnp.uint32))(places)
            draws = jnp.where(places < data.size, draws, jnp.uint32(0xFFFFFFFF))
            return jnp.argsort(draws, stable=True)  # padding last: it ties with no real row that stands before it

        def minibatch(order, i):
            if data.draw is not None:
                return data.draw(data, jax.random.fold_in(order, i))
            start = i * b
            places = jax.lax.dynamic_slice_in_dim(order, start, b)
            found = take(data.arrays, index[places], start + jnp.arange(b) < data.size)
            return found._replace(beside=jax.tree.map(lambda a: a[places], beside))

        def step(i, carry, e, order, key, known):
            trained, stats, state, sums = carry
            grads, aux = gradient(trained, stats, minibatch(order, i), jax.random.fold_in(key, i), *known)
            updates, state = stepped.update(grads, state, trained, progress=(e + i / steps(data, batch)) / epochs)
            return optax.apply_updates(trained, updates), aux.stats, state, jax.tree.map(jnp.add, sums, aux.sums)

        def epoch(e, carry):
            shuffle, draws = jax.random.split(jax.random.fold_in(key, e))
            order = shuffled(shuffle) if data.draw is None else shuffle
            trained, stats, *_ = carry
            known = before(trained, stats, e)
            return batches(steps(data, batch), b, lambda i, carry: step(i, carry, e, order, draws, known), carry)

        first = jax.eval_shape(minibatch, places if data.draw is None else key, 0)
        known = jax.eval_shape(before, trained, net.stats, 0)
        aux = jax.eval_shape(gradient, trained, net.stats, first, key, *known)[1]
        sums = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), aux.sums)
        carry = trained, net.stats, optimizer.init(trained), sums
        carry = epoch(0, carry) if epochs == 1 else jax.lax.fori_loop(0, epochs, epoch, carry)
        begun, (trained, stats, state, sums) = trained, carry
        record_training(begun, trained, trains=epochs > 0)
        return Fitted(Net(join(trained, frozen), stats), state, sums)

    return run


def full_step(loss: Loss, optimizer: optax.GradientTransformation, *, batch: int) -> Callable[..., Fitted]:
    """One step by the gradient of the mean loss over all of one client's rows, of which only a minibatch is in memory at once.

    Each minibatch counts by the weight of its "accuracy": its rows, or the tokens of its answers; without one by its rows. So for
    `cross_entropy` it is the gradient of the mean over all rows, or over the tokens of all answers. Batch statistics are each
    minibatch's own.

    Args:
      loss: (net, batch, key) -> (value, Aux), where value is a mean over that weight.
      optimizer: as in `fit`.
      batch: rows at once, or fewer if no client has so many.

    Returns:
      (net, data, key) -> Fitted.

    Raises:
      ValueError: batch < 1.
    """
    if batch < 1:
        raise ValueError(f"batch={batch} must be at least 1")
    weight = lambda sums: sums.get("accuracy", sums["loss"])[1]

    def run(net: Net, data: ClientData, key: Array) -> Fitted:
        b, minibatch = in_order(data, batch)

        def part(params, stats, i):
            value, aux = loss(Net(params, stats), minibatch(i), jax.random.fold_in(key, i))
            return value * weight(aux.sums), aux

        part = jax.jit(jax.grad(part, has_aux=True), inline=True)  # one trace for its shapes and its use

        def add(i, carry):
            stats, total, sums = carry
            grads, aux = part(net.params, stats, i)
            return aux.stats, *jax.tree.map(jnp.add, (total, sums), (grads, aux.sums))

        shapes = jax.eval_shape(part, net.params, net.stats, jnp.int32(0))
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (shapes[0], shapes[1].sums))
        stats, total, sums = batches(-(-data.size // b), b, add, (net.stats, *zeros))
        grads = jax.tree.map(lambda g: g / jnp.maximum(weight(sums), 1).astype(g.dtype), total)
        stepped = optax.with_extra_args_support(optimizer)
        updates, state = stepped.update(grads, optimizer.init(net.params), net.params, progress=jnp.float32(0))
        trained = optax.apply_updates(net.params, updates)
        record_training(net.params, trained)
        return Fitted(Net(trained, stats), state, sums)

    return run


def finetune(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    *,
    epochs: int,
    batch: int,
    rate: float = 1.0,
    trainable: Callable[[tuple], bool] | None = None,
) -> Callable[[Net, ClientData, Array], Fitted] | None:
    """`fit` before a client's model is scored, with steps of `rate` times the optimiser's; None for 0 epochs.

    Raises:
      ValueError: as `fit`; epochs is negative or rate not positive.
    """
    if not (epochs >= 0 and rate > 0):
        raise ValueError(f"finetune_epochs={epochs} must be at least 0, finetune_rate={rate} positive")
    slower = optax.chain(optimizer, optax.scale(rate))
    return fit(loss, slower, epochs=epochs, batch=batch, trainable=trainable) if epochs else None
