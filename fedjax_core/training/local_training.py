"""Local training: the one loop that clients and server-side training share.

A method brings a loss (a proximal term is a term of it) and an optax chain (a control variate is a
part of it):

    trained = fit(loss, optimizer(task.round_num), epochs=5, batch=64)(net, data, key)

Several phases are several calls. Cached features are `extra` arrays. This module also exports what
methods use of `param_partition.py`, `batching.py` and `optimizers.py`.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Array, ClientData, Net, PyTree, targets_of
from fedjax_core.task import Model, Task
from fedjax_core.training import losses, metrics, optimizers, private_gradient
from fedjax_core.training.batching import (
    Batch,
    EpochsByClient,
    cap_batch_size,
    class_counts,
    class_means,
    class_sums,
    client_rate,
    divide_class_sums,
    gather_batch,
    loop_over_batches,
    map_examples,
    num_epochs,
    num_steps,
    own_batch_size,
    plan_steps,
    planned_epochs,
    sequential_batches,
    shuffle_slots,
    shuffled_batches,
    sum_over_batches,
    uplinks_as_examples,
)
from fedjax_core.training.optimizers import (
    SHARPNESS,
    Optimizer,
    adam,
    add_proximal_term,
    find_ascent,
    measure_steps,
    require_linear,
    require_plain,
    sgd,
    sharpen,
    sharpness_aware,
    track_mean_gradient,
)
from fedjax_core.training.param_partition import entries_filter, join_params, part_filter, record_training, split_params

__all__ = [
    "SHARPNESS",
    "Aux",
    "Batch",
    "EpochsByClient",
    "FitResult",
    "LossFn",
    "Optimizer",
    "adam",
    "add_proximal_term",
    "class_counts",
    "class_means",
    "class_sums",
    "client_rate",
    "divide_class_sums",
    "entries_filter",
    "evaluation_loss",
    "finetune",
    "fit",
    "full_batch_step",
    "gather_batch",
    "join_params",
    "label_loss",
    "loss_and_metrics",
    "loss_metrics",
    "map_examples",
    "mean_loss",
    "measure_steps",
    "model_loss",
    "num_epochs",
    "num_steps",
    "own_batch_size",
    "part_filter",
    "planned_epochs",
    "require_linear",
    "require_plain",
    "sgd",
    "sharpen",
    "sharpness_aware",
    "shuffle_slots",
    "split_params",
    "sum_over_batches",
    "supervised_loss",
    "track_mean_gradient",
    "uplinks_as_examples",
]


class Aux(NamedTuple):
    """Outputs of a loss beside its value.

    Attributes:
      stats: the network's new batch statistics.
      sums: pytree that `fit` sums over the steps, usually metrics as (sum, weight) pairs.
    """

    stats: PyTree
    sums: PyTree


class FitResult(NamedTuple):
    """Result of `fit`.

    Attributes:
      net: the trained network.
      optimizer_state: the optimizer's final state.
      sums: `Aux.sums`, summed over all local steps.
    """

    net: Net
    optimizer_state: PyTree
    sums: PyTree


LossFn = Callable[..., tuple[Array, Aux]]  # net, batch, key -> value, Aux; with `epoch_inputs` also its arrays


def label_loss(task: Task) -> losses.LabelLoss:
    """Returns the loss of outputs and targets: the targets' default, or the user's (`config.loss`).

    The user's raises TypeError (when traced) unless it returns one real number.
    """
    return losses.target_loss if task.loss is None else functools.partial(_checked_loss, task.loss)


def _checked_loss(loss: losses.LabelLoss, logits: Array, y: Array, mask: Array) -> Array:
    name = getattr(getattr(loss, "func", loss), "__name__", "of the config")
    return losses.check_number(loss(logits, y, mask), f"loss {name!r} must return the mean over the examples in the mask")


def supervised_loss(task: Task) -> LossFn:
    """Returns the plain loss of the task's network and targets; for the metrics see `loss_metrics`."""
    return model_loss(task.model, label_loss(task))


def model_loss(model: Model, label_loss: losses.LabelLoss = losses.cross_entropy) -> LossFn:
    """Returns the loss of a model: by default the mean cross-entropy; for the metrics see `loss_metrics`."""

    def loss(net: Net, batch: Batch, key: Array) -> tuple[Array, Aux]:
        outputs, stats = model.apply(net, batch.x, key, train=True, mask=batch.mask)
        value, sums = loss_and_metrics(outputs, batch, label_loss)
        return value, Aux(stats, sums)

    return loss


def distillation_loss(model: Model, temperature: float = 1.0) -> LossFn:
    """Returns the loss of a student whose batch's y are a teacher's logits [B, K]; sums are of `losses.distillation`."""

    def loss(net: Net, batch: Batch, key: Array) -> tuple[Array, Aux]:
        outputs, stats = model.apply(net, batch.x, key, train=True, mask=batch.mask)
        value = losses.distillation(outputs["logits"], batch.y, batch.mask, temperature)
        examples = jnp.sum(batch.mask, dtype=value.dtype)
        return value, Aux(stats, (value * examples, examples))

    return loss


def loss_and_metrics(
    outputs: dict[str, PyTree], batch: Batch, label_loss: losses.LabelLoss = losses.cross_entropy
) -> tuple[Array, dict[str, metrics.Pair]]:
    """Returns the loss of a model's outputs, and its metrics (`loss_metrics`).

    The targets are `batch.y`, or the outputs' "targets" for a model that reads them from its
    inputs, as one that generates text does.
    """
    batch = batch._replace(y=outputs.get("targets", batch.y))
    value = label_loss(outputs["logits"], batch.y, batch.mask)
    return value, loss_metrics(value, outputs["logits"], batch)


def loss_metrics(value: Array, logits: Array, batch: Batch) -> dict[str, metrics.Pair]:
    """Returns "loss", and "accuracy" of logits [B, K] for classes and tokens, of a mean loss.

    The loss is weighted by the number of examples that have a target: of tokens, one that is not negative.
    """
    kind = targets_of(batch.y)
    counted = jnp.any(losses.target_mask(batch.y, batch.mask), 1) if kind == "tokens" else batch.mask
    examples = jnp.sum(counted, dtype=jnp.float32)
    sums = {"loss": (value * examples, examples)}
    if kind in ("labels", "numbers"):
        return sums
    return sums | {"accuracy": metrics.accuracy(logits, batch.y, batch.mask)}


def evaluation_loss(task: Task) -> Callable[[Net, Batch], metrics.Pair]:
    """Returns (net, batch) -> the loss of its examples in evaluation mode, as (sum, number of them)."""
    model, loss = task.model, label_loss(task)

    def sum_loss(net: Net, batch: Batch) -> metrics.Pair:
        outputs, _ = model.apply(net, batch.x, mask=batch.mask)
        return loss_and_metrics(outputs, batch, loss)[1]["loss"]

    return sum_loss


def mean_loss(task: Task, batch: int) -> Callable[[Net, ClientData], Array]:
    """Returns (net, data) -> [] mean loss over all of a client's training examples, in evaluation mode."""
    sum_loss = evaluation_loss(task)

    def compute_mean(net: Net, data: ClientData) -> Array:
        total, number = sum_over_batches(lambda b: sum_loss(net, b), data, batch=batch)
        return total / jnp.maximum(number, 1)

    return compute_mean


def fit(
    loss: LossFn,
    optimizer: optax.GradientTransformation,
    *,
    epochs: int,
    batch: int,
    trainable: Callable[[tuple], bool] | None = None,
    epoch_inputs: Callable[[Net, ClientData, Array | int], PyTree] | None = None,
) -> Callable[..., FitResult]:
    """Returns a function that trains for epochs of shuffled minibatches over one client's data.

    A short last batch is kept, unless `data.remainder` drops it. The shuffle draws one number per
    example from (key, epoch, slot), so it does not depend on padding. The loop takes ceil(size /
    batch) steps with a traced bound, so a small client costs only its own steps. Where the data
    have a `draw` (`few_shot.py`), there are as many steps, and each step's minibatch is drawn with
    a key of its own. A client with settings of its own (`ClientData.settings`) takes its own number
    of steps on minibatches of its own size, in B slots of which the others are masked. Where the data
    have a `privacy` (`private_gradient.py`), each step's gradient is clipped by examples and has noise.

    Args:
      loss: (net, batch, key) -> (value, Aux).
      optimizer: optax transformation of the trainable leaves.
      epochs: passes over the client's data; 0 trains nothing.
      batch: B, or fewer if no client has as many examples.
      trainable: path of a leaf in `net.params` (a tuple of jax.tree_util keys) -> whether it is
        trained; None: all are. Frozen leaves are returned bit for bit, and no gradient is taken for
        them.
      epoch_inputs: (net, data, epoch from 0) -> arrays, computed before each epoch, that the loss
        gets as its fourth argument.

    Returns:
      (net, data, key, extra=()) -> FitResult. `extra`: leaves [M, ...], one entry for each of the
      client's examples in stored order, such as `map_examples` returns; `Batch.extra` has the
      minibatch's. The optimizer gets `progress`, the fraction of its steps that is done, and `rate`,
      the client's factor of the learning rate.

    Raises:
      ValueError: epochs < 0 or batch < 1, or nothing is trainable; (when traced) `extra` is given
        for data that draw their minibatches, or `data.remainder` is DROP and no client fills a batch.
    """
    _check_fit(optimizer, epochs, batch)
    stepped = optax.with_extra_args_support(optimizer)

    def run(net: Net, data: ClientData, key: Array, extra: PyTree = ()) -> FitResult:
        if data.privacy is None:
            return train(net, data, key, extra)
        private_gradient.check_training(data, net.stats, extra=extra, epoch_inputs=epoch_inputs)
        trained = private_gradient.mark_fit(train, epochs, cap_batch_size(data, batch))(net, data, key)
        return trained._replace(sums=private_gradient.mark_exact(trained.sums))

    def train(net: Net, data: ClientData, key: Array, extra: PyTree = ()) -> FitResult:
        b, slots, minibatch = shuffled_batches(data, batch, extra)
        trained, frozen = split_params(net.params, trainable)
        plan = plan_steps(data, epochs, batch)
        planned = int(epochs) if plan is None else plan.epochs

        def compute_inputs(trained, stats, e):
            return () if epoch_inputs is None else (epoch_inputs(Net(join_params(trained, frozen), stats), data, e),)

        if data.privacy is not None:
            private_gradient.check_optimizer(find_ascent(jax.eval_shape(optimizer.init, trained)))
        gradient = _make_gradient(loss, frozen, data, b)
        draws_minibatches = data.draw is not None or data.privacy is not None

        def step(i, carry, e, order, key, inputs):
            trained, stats, state, sums = carry
            given = minibatch(order, i), jax.random.fold_in(key, i), *inputs
            grads, aux = gradient(trained, stats, *given)
            grads = sharpen(lambda top: gradient(top, stats, *given)[0], trained, grads, state)
            inputs_of_step = {"progress": (e + i / num_steps(data, batch)) / planned, "rate": client_rate(data)}
            updates, state = stepped.update(grads, state, trained, **inputs_of_step)
            return optax.apply_updates(trained, updates), aux.stats, state, jax.tree.map(jnp.add, sums, aux.sums)

        def epoch(e, carry):
            order_key, step_key = jax.random.split(jax.random.fold_in(key, e))
            order = order_key if draws_minibatches else shuffle_slots(order_key, slots, data.size)
            trained, stats, *_ = carry
            inputs = compute_inputs(trained, stats, e)
            steps = num_steps(data, batch)
            steps = steps if plan is None else jnp.minimum(steps, plan.total - e * steps)
            return loop_over_batches(steps, b, lambda i, carry: step(i, carry, e, order, step_key, inputs), carry)

        first = jax.eval_shape(minibatch, key if draws_minibatches else slots, 0)
        inputs = jax.eval_shape(compute_inputs, trained, net.stats, 0)
        aux = jax.eval_shape(gradient, trained, net.stats, first, key, *inputs)[1]
        sums = optax.tree.zeros_like(aux.sums)
        state = optimizer.init(trained)
        optimizers.warn_of_step_schedule(state)
        carry = trained, net.stats, state, sums
        if plan is not None:
            with jax.named_scope(plan.name):
                carry = jax.lax.fori_loop(0, plan.begun, epoch, carry)
        else:
            carry = epoch(0, carry) if epochs == 1 else jax.lax.fori_loop(0, int(epochs), epoch, carry)
        initial, (trained, stats, state, sums) = trained, carry
        record_training(initial, trained, trains=epochs > 0)
        return FitResult(Net(join_params(trained, frozen), stats), state, sums)

    return run


def _check_fit(optimizer: object, epochs: int, batch: int) -> None:
    """Raises ValueError or TypeError for what `fit` cannot train with."""
    if epochs < 0 or batch < 1:
        raise ValueError(f"epochs={epochs}, batch={batch}: epochs must be at least 0 and batch at least 1")
    if not isinstance(optimizer, optax.GradientTransformation):
        hint = "function: a method's optimizer is one of the round, so give optimizer(task.round_num)"
        what = hint if callable(optimizer) else type(optimizer).__name__
        raise TypeError(f"fit: optimizer must be an optax.GradientTransformation, it is a {what}")


def _make_gradient(loss: LossFn, frozen: PyTree, data: ClientData, batch: int) -> Callable[..., tuple[PyTree, Aux]]:
    """Returns (trained, stats, minibatch, key, *inputs) -> (gradient, Aux), private where the data are."""

    def gradient(trained, stats, minibatch, key, *inputs):
        def loss_of_trained(trained):
            return loss(Net(join_params(trained, frozen), stats), minibatch, key, *inputs)

        return jax.grad(loss_of_trained, has_aux=True)(trained)

    if data.privacy is not None:
        gradient = data.privacy.make_gradient(gradient, data, batch)
    return jax.jit(gradient, inline=True)  # traced once, for shapes and for use


def full_batch_step(loss: LossFn, optimizer: optax.GradientTransformation, *, batch: int) -> Callable[..., FitResult]:
    """Returns a function that takes one step by the gradient of a client's mean loss.

    The gradient is accumulated over minibatches, each with the weight of its metric "accuracy"
    (numbers of examples, or of the answers' tokens), or else of "loss". For `model_loss` it is the
    gradient of the mean over all examples, or over the tokens of all answers. Batch statistics are
    each minibatch's.

    Args:
      loss: (net, batch, key) -> (value, Aux), where value is a mean with that weight.
      optimizer: as in `fit`.
      batch: examples at once, or fewer if no client has as many.

    Returns:
      (net, data, key) -> FitResult.

    Raises:
      ValueError: batch < 1; (when traced) the optimizer is sharpness-aware.
    """
    if batch < 1:
        raise ValueError(f"batch={batch} must be at least 1")
    weight = lambda sums: sums.get("accuracy", sums["loss"])[1]

    def run(net: Net, data: ClientData, key: Array) -> FitResult:
        b, minibatch = sequential_batches(data, batch)

        def batch_loss(params, stats, i):
            return loss(Net(params, stats), minibatch(i), jax.random.fold_in(key, i))

        gradient = jax.jit(jax.grad(batch_loss, has_aux=True), inline=True)  # traced once, for shapes and for use

        def add(i, carry):
            stats, total, sums = carry
            grads, aux = gradient(net.params, stats, i)
            grads = jax.tree.map(lambda g: weight(aux.sums).astype(g.dtype) * g, grads)
            return aux.stats, *jax.tree.map(jnp.add, (total, sums), (grads, aux.sums))

        shapes = jax.eval_shape(gradient, net.params, net.stats, jnp.int32(0))
        zeros = optax.tree.zeros_like((shapes[0], shapes[1].sums))
        stats, total, sums = loop_over_batches(-(-data.size // b), b, add, (net.stats, *zeros))
        grads = jax.tree.map(lambda g: g / jnp.maximum(weight(sums), 1).astype(g.dtype), total)
        stepped, initial = optax.with_extra_args_support(optimizer), optimizer.init(net.params)
        if find_ascent(initial) is not None:
            raise ValueError("optimizer.sharpness: steps on all of a client's examples cannot be sharpness-aware")
        updates, state = stepped.update(grads, initial, net.params, progress=jnp.float32(0), rate=client_rate(data))
        trained = optax.apply_updates(net.params, updates)
        record_training(net.params, trained)
        return FitResult(Net(trained, stats), state, sums)

    return run


def finetune(
    loss: LossFn,
    optimizer: optax.GradientTransformation,
    *,
    epochs: int,
    batch: int,
    rate: float = 1.0,
    trainable: Callable[[tuple], bool] | None = None,
) -> Callable[[Net, ClientData, Array], FitResult] | None:
    """Returns `fit` for fine-tuning before evaluation, its steps scaled by `rate`; None for 0 epochs.

    Raises:
      ValueError: as `fit`; epochs is negative or rate not positive.
    """
    if not (epochs >= 0 and rate > 0):
        raise ValueError(f"finetune_epochs={epochs} must be at least 0, finetune_rate={rate} positive")
    slower = optax.chain(optimizer, optax.scale(rate))
    return fit(loss, slower, epochs=epochs, batch=batch, trainable=trainable) if epochs else None
