"""Checks a config's own scores and loss before anything is trained: by shapes, and on a few random examples."""

import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import option_types
from fedjax_core.algorithm import PyTree, targets_of
from fedjax_core.engine import contracts, evaluation_step
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.simulation_spec import SimulationSpec
from fedjax_core.training import metrics
from fedjax_core.training.batching import Batch, gather_batch

log = logging.getLogger("fedjax_core")
EXAMPLES, PADDING = 6, 2
FEATURES = 5  # of an example that a regularizer is tried on
MAX_DRAWN = 2**22  # of examples that are drawn
Inputs = tuple[PyTree, PyTree, PyTree]  # outputs, x and y of examples


def check_scores(spec: SimulationSpec) -> tuple[int, ...]:
    """Checks the scores of all groups' tasks.

    Returns:
      Per group, bytes of the sums of scores with `finalize`, of one model.

    Raises:
      TypeError: a score does not return what it must (`contracts.check_score`), or its `finalize`
        no number.
      ValueError: a score fails, is not finite, has sums that depend on the number of examples or do not
        add up over batches, or counts examples outside of its mask.
    """
    return tuple(_check_group(spec, g) for g in range(len(spec.groups)))


def check_losses(spec: SimulationSpec) -> None:
    """Checks the losses of labels that are not the library's own, and warns of one that is a sum over the batch.

    Raises:
      ValueError: a loss counts examples outside of its mask.
    """
    for g, group in enumerate(spec.groups):
        loss = group.task.loss
        if loss is None or _is_ours(loss) or spec.episodes is not None:
            continue
        arrays = spec.abstract_arrays
        batch, of_all = _outputs(spec, g, arrays, EXAMPLES + PADDING)
        logits = next((outputs["logits"] for outputs in of_all.values() if "logits" in outputs), None)
        y = batch.y if logits is None else next(iter(of_all.values())).get("targets", batch.y)
        if logits is not None and math.prod(logits.shape) <= MAX_DRAWN:
            rng = np.random.default_rng(0)
            given = (_draw(rng, logits), _draw_targets(rng, y, group.task.classes))
            _check_padding("loss", loss, given)
            _warn_of_sum(loss, given)


def check_regularizer(regularizer: Callable) -> None:
    """Raises ValueError if a term of features that is not the library's own counts examples outside of its mask."""
    if not _is_ours(regularizer):
        features = np.random.default_rng(0).normal(size=(EXAMPLES + PADDING, FEATURES)).astype(np.float32)
        _check_padding("regularizer", regularizer, (features,))


def _check_padding(what: str, function: Callable, given: tuple[np.ndarray, ...]) -> None:
    """Raises ValueError if a function of examples and their mask [B] counts those outside of it."""
    try:
        with_padding = float(jax.jit(function)(*given, np.arange(EXAMPLES + PADDING) < EXAMPLES))
        without = float(jax.jit(function)(*(leaf[:EXAMPLES] for leaf in given), np.ones(EXAMPLES, bool)))
    except Exception:  # training says what is wrong, with the arrays that it has
        return
    if not np.isclose(with_padding, without, rtol=1e-2, atol=1e-3, equal_nan=True):
        name = getattr(metrics.unwrap_score(function), "__name__", function)
        shapes = ", ".join(str(list(leaf.shape)) for leaf in given)
        raise ValueError(
            f"{what} {name!r} counts examples outside of `mask`, which pad a batch and may hold anything; return "
            f"losses.masked_mean(values, mask), with one value per example; it was given {shapes} and a mask [{EXAMPLES + PADDING}]"
        )


def _warn_of_sum(loss: Callable, given: tuple[np.ndarray, ...]) -> None:
    """Warns of a loss that is twice as large where each example is there twice."""
    of_all = lambda examples: float(jax.jit(loss)(*examples, np.ones(len(examples[0]), bool)))
    try:
        once, twice = of_all(given), of_all(tuple(np.concatenate([leaf, leaf]) for leaf in given))
    except Exception:  # training says what is wrong, with the arrays that it has
        return
    if np.isclose(twice, 2 * once, rtol=1e-2) and not np.isclose(twice, once, rtol=1e-2, atol=1e-3):
        name = getattr(metrics.unwrap_score(loss), "__name__", loss)
        what = "loss %r returns a sum over the minibatch, so that steps grow with its size; return losses.masked_mean(values, mask)"
        log.warning(what, name)


def _check_group(spec: SimulationSpec, g: int) -> int:
    """Checks the scores of one group's task; returns the bytes of its sums."""
    scores_of_task = spec.groups[g].task.scores
    own = {name: score for name, score in scores_of_task.items() if metrics.finalizer(score) is not None or not _is_ours(score)}
    if not own:  # those of instructions and of backdoors are means, and no network is traced for them
        return 0
    sizes = dict.fromkeys(own, 0)
    arrays = spec.abstract_arrays
    (batch, of_all), (smaller, of_fewer) = (_outputs(spec, g, arrays, number) for number in (EXAMPLES + PADDING, EXAMPLES))
    seen = []
    for predictor, outputs in of_all.items():
        if (shape := jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), outputs)) in seen:
            continue  # what another model gives as well
        seen.append(shape)
        for name, score in own.items():
            sums = _sums(name, score, outputs, batch)
            if metrics.finalizer(score) is not None:
                sizes[name] = max(sizes[name], metrics.nbytes(sums))
            if spec.episodes is not None or _is_ours(score):
                continue
            fewer = _sums(name, score, of_fewer[predictor], smaller)
            if _shapes(sums) != _shapes(fewer):
                what = f"score {name!r} of evaluation.scores returns sums whose shapes depend on the number of examples"
                raise ValueError(f"{what}: {_shapes(sums)} of {EXAMPLES + PADDING}, {_shapes(fewer)} of {EXAMPLES}")
            like = (outputs, batch.x, batch.y), (of_fewer[predictor], smaller.x, smaller.y)
            if sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(like[0])) <= MAX_DRAWN:
                _try(name, score, like, spec.groups[g].task.classes)
    return sum(sizes.values())


def _is_ours(score: Callable) -> bool:
    """Returns whether a score or a loss is the library's own."""
    return str(getattr(metrics.unwrap_score(score), "__module__", "")).startswith("fedjax_core.")


def _outputs(spec: SimulationSpec, g: int, arrays: DeviceArrays, number: int) -> tuple[Batch, dict[str, PyTree]]:
    """Returns the shapes of a batch of test examples, or of an episode, and of all predictions."""
    shape = spec.shapes.groups[g]
    local = shape.out.after_training(shape.sent)

    def make_batch(arrays: DeviceArrays) -> Batch:
        if spec.episodes is not None:
            return evaluation_step.whole_test_batches(spec, arrays, 1)[1](jnp.int32(0))
        examples = arrays.test if len(jax.tree.leaves(arrays.test.y)[0]) else arrays.train
        return gather_batch(examples, jnp.zeros(number, jnp.int32), jnp.ones(number, bool))

    def predict_all(arrays: DeviceArrays, local: tuple[PyTree, PyTree], x: PyTree) -> dict[str, PyTree]:
        sent, client = local
        predictors = spec.algorithm(g, arrays, 0).predict
        return {name: predict(sent, client, x) for name, predict in predictors.items()}

    batch = jax.eval_shape(make_batch, arrays)
    return batch, jax.eval_shape(predict_all, arrays, local, batch.x)


def _sums(name: str, score: Callable, outputs: PyTree, batch: Batch) -> PyTree:
    """Returns the shapes of what a score gives."""

    def compute(*examples: PyTree) -> PyTree:
        try:
            result = score(*examples)
        except Exception as error:  # somebody else's code
            raise _explain(f"score {name!r} of evaluation.scores", "raised", error) from error
        return contracts.check_score(name, score, result)

    return jax.eval_shape(compute, outputs, batch.x, batch.y, batch.mask)


def _try(name: str, score: Callable, like: tuple[Inputs, Inputs], classes: int) -> None:
    """Checks a score on random examples: more of them, outside of the mask, must change nothing, and halves must add up.

    Args:
      like: (outputs, x, y) of EXAMPLES + PADDING examples and of EXAMPLES, as shapes.
    """
    more, fewer = like
    rng = np.random.default_rng(0)
    outputs, x = jax.tree.map(functools.partial(_draw, rng), more[:2])
    given = outputs, x, _draw_targets(rng, more[2], classes)
    first = jax.tree.map(lambda leaf, part: leaf if leaf.shape == part.shape else leaf[:EXAMPLES], given, fewer)
    places, of_mask = np.arange(EXAMPLES + PADDING), jax.jit(score)
    with_padding = of_mask(*given, places < EXAMPLES)
    halves = [of_mask(*given, mask) for mask in (places < EXAMPLES // 2, (places >= EXAMPLES // 2) & (places < EXAMPLES))]
    result = jax.jit(score)(*first, np.ones(EXAMPLES, bool))
    sums = jax.device_get(contracts.check_score(name, score, result))
    as_numbers = lambda tree: [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(jax.device_get(tree))]
    what = f"score {name!r} of evaluation.scores"
    close = functools.partial(np.allclose, rtol=1e-2, atol=1e-3, equal_nan=True)
    if not all(map(close, as_numbers(result), as_numbers(with_padding))):
        raise ValueError(
            f"{what} counts examples outside of `mask`, which pad a batch and may hold anything; take jnp.where(mask, values, 0) "
            "for a sum, and jnp.sum(mask) for a weight"
        )
    is_finite = all(np.isfinite(leaf).all() for leaf in as_numbers(result))
    if not is_finite and targets_of(more[2]) != "numbers":  # of which a network may give positive ones alone
        raise ValueError(f"{what} is not finite for logits drawn at random: {option_types.shorten(as_numbers(result))}")
    added = [sum(parts) for parts in zip(*map(as_numbers, halves), strict=True)]
    if is_finite and not all(map(close, as_numbers(result), added)):
        whole, of_halves = option_types.shorten(as_numbers(result)), option_types.shorten(added)
        raise ValueError(
            f"{what} does not add up over batches: of {EXAMPLES} examples it returns {whole}, of two halves of them in all "
            f"{of_halves}; return sums over examples, which are divided later: a mean is (sum, weight), anything else has a "
            "function `finalize`"
        )
    if metrics.finalizer(score) is not None and is_finite:
        _try_finalize(what, metrics.unwrap_score(score), sums)


def _try_finalize(what: str, score: Any, sums: PyTree) -> None:
    """Checks that `finalize` makes a number of sums, or [E] numbers of those of several clients."""
    for leading in [(), (2,)] if getattr(score, "vectorized", False) else [()]:
        given = jax.tree.map(lambda leaf, leading=leading: np.broadcast_to(leaf, (*leading, *np.shape(leaf))), sums)
        try:
            with np.errstate(all="ignore"):
                value = score.finalize(given)
        except Exception as error:  # somebody else's code
            raise _explain(what, "finalize raised", error) from error
        array = np.asarray(value)
        if array.shape != leading or array.dtype.kind not in "fiu":
            wants = "[E] numbers of sums [E, ...]" if leading else "a number"
            raise TypeError(f"{what}: finalize must return {wants}, it returned {option_types.shorten(value)}")


def _draw(rng: np.random.Generator, like: Any) -> np.ndarray:
    """Returns floats from the standard normal distribution, integers and truth values of 0."""
    drawn = rng.normal(size=like.shape) if jnp.issubdtype(like.dtype, jnp.floating) else np.zeros(like.shape)
    return drawn.astype(like.dtype)


def _draw_targets(rng: np.random.Generator, like: Any, classes: int) -> np.ndarray:
    """Returns targets of the kind that these are."""
    if jnp.issubdtype(like.dtype, jnp.floating):
        return _draw(rng, like)
    most = 2 if targets_of(like) == "labels" else classes
    return rng.integers(most, size=like.shape).astype(like.dtype)


def _shapes(tree: PyTree) -> list[list[int]]:
    return [list(leaf.shape) for leaf in jax.tree.leaves(tree)]


def _explain(what: str, raised: str, error: Exception) -> ValueError:
    """Returns an error of one line for one that somebody else's code raised."""
    return ValueError(f"{what}: {raised} {type(error).__name__}: {' '.join(str(error).split())}")
