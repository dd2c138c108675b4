"""Batches of texts cut to their longest one, for `make_option_scorer` and `make_writer`."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, Net, PyTree
from fedjax_core.task import Model
from fedjax_core.training import adapters

BATCH = 16  # examples at once, for which widths are chosen
MULTIPLE = 16  # of which widths are
MAX_RELATIVE_WORK = 0.85  # another width, which is another program to compile, must leave no more than this part of the work


@jax.custom_batching.custom_vmap
def _common(number: Array) -> Array:
    """Returns the number; under vmap the largest, unbatched, so that a switch on it stays a switch."""
    return number


@_common.def_vmap
def _(size: int, batched: list[bool], number: Array) -> tuple[Array, bool]:
    del size
    return _common(jnp.max(number, 0) if batched[0] else number), False


def with_length_buckets(model: Model, widths: Sequence[int], side: str = "right") -> Model:
    """Runs a model on batches that are cut to the smallest width that holds their longest text.

    Results are those of whole batches, to rounding: padding is not looked at, and dropout of an
    adapter is drawn as for the whole width. Clients that train at once, under vmap, share the
    widest width that one of them needs. Programs have one branch for each width. A gradient keeps
    what its backward pass needs of each of them, of which all but one are zeros; what is frozen is
    not copied.

    Args:
      model: `make_option_scorer` or `make_writer`; x has "tokens" and "mask" [B, T].
      widths: numbers of tokens; those that are not below T, or have no room for x's answers, are
        never taken, T always may be.
      side: of the padding, "right", or "left" as in `build_generation_data`.
    """
    if not widths:
        return model

    def at_width(call: Callable[..., Any], net: Net, x: PyTree, key: Array | None, mask: Array | None) -> Any:
        t, answer = x["tokens"].shape[1], x["answer"].shape[1] if "answer" in x else 0
        some = [*sorted({width for width in widths if answer < width < t}), t]
        if len(some) == 1:
            return call(net, x, key, mask)
        is_used = jnp.any(drop_padding(x, mask)["mask"], 0)
        needed = jnp.max(jnp.where(is_used, jnp.arange(t) + 1 if side == "right" else t - jnp.arange(t), 0))

        def branch(width: int):
            first = 0 if side == "right" else t - width
            cut = lambda leaf: leaf[:, first : first + width]

            def run(net, x, key, mask):
                net = net._replace(params=adapters.with_dropout_window(net.params, t, first))
                return call(net, x | {name: cut(x[name]) for name in ("tokens", "mask", "segments") if name in x}, key, mask)

            return run

        number = sum((needed > width).astype(jnp.int32) for width in some[:-1])
        return jax.lax.switch(_common(number), [branch(width) for width in some], net, x, key, mask)

    def apply(net: Net, x: PyTree, key=None, train=False, mask=None, intermediates=False):
        call = lambda net, x, key, mask: model.apply(net, x, key, train=train, mask=mask, intermediates=intermediates)
        return at_width(call, net, x, key, mask)

    def features(net: Net, x: PyTree, key: Array | None = None, train: bool = False, mask: Array | None = None):
        return at_width(lambda net, x, key, mask: model.features(net, x, key, train=train, mask=mask), net, x, key, mask)

    return model._replace(apply=apply, features=features)


def choose_widths(lengths: Sequence[np.ndarray], longest: int, most: int = 2) -> tuple[int, ...]:
    """Chooses the widths below the longest with the least expected work, for `with_length_buckets`.

    Args:
      lengths: tokens of the texts from which batches are drawn, an array for each client or test
        set.
      longest: T, to which batches can always be as wide.
      most: widths, T among them; on CPU a third one costs a gradient of long texts a sixth, for
        zeros in place of its residuals.

    Returns:
      Ascending; () where T alone is as good.
    """
    some = np.arange(MULTIPLE, longest, MULTIPLE)
    nonempty = [client_lengths for client_lengths in lengths if len(client_lengths)]
    if not nonempty or not len(some):
        return ()
    fits = [[np.mean(client_lengths <= width) ** BATCH for width in some] for client_lengths in nonempty]  # how often a batch fits
    fit = np.average(fits, 0, [len(client_lengths) for client_lengths in nonempty])

    def work(chosen: tuple[int, ...]) -> float:
        parts = np.diff([0.0, *(fit[i] for i in chosen), 1.0])
        return float(parts @ [*(some[i] for i in chosen), longest])

    best: tuple[int, ...] = ()
    for number in range(1, most):
        best_of_number = min(itertools.combinations(range(len(some)), number), key=work, default=())
        best = best_of_number if best_of_number and work(best_of_number) < MAX_RELATIVE_WORK * work(best) else best
    return tuple(int(some[i]) for i in best)


def drop_padding(x: PyTree, mask: Array | None) -> PyTree:
    """Removes the tokens and answers of examples outside `mask` [B]."""
    if mask is None:
        return x
    return x | {name: x[name] & mask[:, None] for name in ("mask", "answer") if name in x}
