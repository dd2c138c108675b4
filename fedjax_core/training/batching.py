"""One client's rows: minibatches of them, and passes over them in which nothing is trained."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array, ClientData, Cohort, Examples, PyTree


class Batch(NamedTuple):
    """One minibatch. `x`: leaves [B, ...]; `y`: [B]; `mask`: [B], False for the padding of a short last batch.

    `beside`: leaves [B, ...], what `fit` was given beside the rows; `()` if nothing.
    """

    x: PyTree
    y: PyTree
    mask: Array
    beside: PyTree = ()


def take(arrays: PyTree, rows: Array, mask: Array) -> Batch:
    """The minibatch at the given rows [B] of Examples `arrays`."""
    x, y = jax.tree.map(lambda a: a[rows], arrays)
    return Batch(x, y, mask)


def batches(number: Array, size: int, body: Callable[[Array, PyTree], PyTree], carry: PyTree) -> PyTree:
    """`lax.fori_loop` over minibatches of `size` of one client's rows, as many as there are.

    The loop has a name in what is compiled, `batches_of_<size>`, by which a plan knows how often it runs: the program does not.
    """
    with jax.named_scope(f"batches_of_{size}"):
        return jax.lax.fori_loop(0, number, body, carry)


def steps(data: ClientData, batch: int) -> Array:
    """[] local steps in an epoch, as `fit` does them."""
    b = max(1, min(batch, data.index.shape[0]))
    return -(-data.size // b)


def in_order(data: ClientData, batch: int) -> tuple[int, Callable[[Array], Batch]]:
    """B, and the minibatch number i of one client's rows in the order in which they lie."""
    rows = data.index.shape[0]
    b = max(1, min(batch, rows))
    index = jnp.pad(data.index, (0, -rows % b))

    def minibatch(i):
        here = i * b + jnp.arange(b)
        return take(data.arrays, index[here], here < data.size)

    return b, minibatch


def accumulate(of: Callable[[Batch], PyTree], data: ClientData, *, batch: int) -> PyTree:
    """Sums over one client's rows, in minibatches and in the order in which they lie; nothing is trained.

    Args:
      of: Batch -> pytree of sums over the rows in its mask.
      data: the client's.
      batch: rows at once, or fewer if no client has so many.

    Returns:
      The total of `of`; zeros for a client without rows.
    """
    b, minibatch = in_order(data, batch)
    part = jax.jit(lambda i: of(minibatch(i)), inline=True)  # one trace for its shapes and its use
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(part, jnp.int32(0)))
    return batches(-(-data.size // b), b, lambda i, total: jax.tree.map(jnp.add, total, part(i)), zeros)


def each(of: Callable[[Batch], PyTree], data: ClientData, *, batch: int) -> PyTree:
    """What `of` makes of each of one client's rows, such as features that are used more than once; nothing is trained.

    Args:
      of: Batch -> leaves [B, ...].
      data: the client's.
      batch: rows at once, or fewer if no client has so many.

    Returns:
      Leaves [M, ...], in the order of `data.index`; the rows past `data.size` hold anything.
    """
    rows, (b, minibatch) = data.index.shape[0], in_order(data, batch)
    part = jax.jit(lambda i: of(minibatch(i)), inline=True)  # one trace for its shapes and its use
    places = -(-rows // b) * b
    out = jax.tree.map(lambda s: jnp.zeros((places, *s.shape[1:]), s.dtype), jax.eval_shape(part, jnp.int32(0)))
    write = lambda i, out: jax.tree.map(lambda o, p: jax.lax.dynamic_update_slice_in_dim(o, p, i * b, 0), out, part(i))
    out = batches(-(-data.size // b), b, write, out)
    return jax.tree.map(lambda o: o[:rows], out)


def class_sums(values: Array, y: Array, mask: Array, classes: int) -> tuple[Array, Array]:
    """Sums of `values` [B, D] by class, and how many rows each has: [K, D] and [K]."""
    of_class = jax.nn.one_hot(y, classes, dtype=values.dtype) * mask[:, None]
    return of_class.T @ jnp.where(mask[:, None], values, 0), jnp.sum(of_class, 0)


def class_means(of: Callable[[Batch], Array], data: ClientData, *, classes: int, batch: int) -> tuple[Array, Array]:
    """Mean of `of` (Batch -> [B, D]) over each class of one client's rows: [K, D], and their numbers [K]; zero for no rows."""
    total, count = accumulate(lambda batch: class_sums(of(batch), batch.y, batch.mask, classes), data, batch=batch)
    return total / jnp.maximum(count, 1)[:, None], count


def received(cohort: Cohort, means: Array, counts: Array) -> ClientData:
    """What a cohort sent for each class, as examples of these classes to train on at the server.

    They stand in the order of the clients' ids, so that `fit` on them notices neither the cohort's order nor its empty places.

    Args:
      cohort: leaves [C].
      means: [C, K, D] an example of each class; those of absent clients and of classes with count 0 may hold anything.
      counts: [C, K], 0 for a class that a client does not have.

    Returns:
      Data with arrays of C * K rows.
    """
    c, k, d = means.shape
    sent = (cohort.examples > 0)[:, None] & (counts > 0)
    order = jnp.argsort(jnp.where(sent, cohort.ids[:, None], jnp.iinfo(jnp.int32).max).reshape(-1), stable=True)
    x = jnp.where(sent[..., None], means, 0).reshape(c * k, d)
    return ClientData(Examples(x, jnp.tile(jnp.arange(k), c)), order, jnp.sum(sent))
