"""Compression of what clients send, and of what they are sent.

    config.compression.uplink = "quantise(bits=4)"
    config.compression.uplink = "top_k(fraction=0.01)"       with error feedback, which the client keeps
    config.compression.downlink = "bfloat16"

A compressor packs arrays and unpacks them as the server does, inside the client loop: the bytes that a run reports are those of the
packed arrays, which are really made, also where an array is so small that it takes more. Counts of class means travel as they are.
With error feedback the client adds to its next delta what compression took from this one: Stich, Cordonnier, Jaggi. Sparsified SGD
with Memory. NeurIPS 2018; Karimireddy, Rebjock, Stich, Jaggi. Error Feedback Fixes SignSGD. ICML 2019. A client that is left out
keeps what it had.

A compressor from outside is a function in a module or file of its own, `path/to/file.py:name(option=...)`, or an entry point of the
group `fedjax_core.compressors`: it takes options and returns a `Compressor`.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_core import option_types, registry
from fedjax_core.algorithm import Array, PyTree
from fedjax_core.option_types import AtLeastOne, Positive, PositiveFraction
from fedjax_core.uplink.flatten import checked, of_vector, vector
from fedjax_core.uplink.packing import packed, unpacked
from fedjax_core.uplink.transform import Carried, Link, Passed, Reduction

Bits = Annotated[int, option_types.Limit("in [2, 8]", lambda v: 2 <= v <= 8)]
_START = 0x7067  # of PowerSGD's first factors


class Compressor(NamedTuple):
    """Of one array.

    Attributes:
      pack: (array, key, what the client keeps of it) -> (packed arrays, what it keeps).
      unpack: (packed arrays, shape of the array) -> array, float32.
      begin: shape of the array -> what a client keeps of it at first.
      whole: whether all deltas are taken as one vector, instead of array by array.
      feedback: whether the error is kept and added to the next one.
      reduction: in place of the weighted mean, for votes.
    """

    pack: Callable[[Array, Array, PyTree], tuple[PyTree, PyTree]]
    unpack: Callable[[PyTree, tuple[int, ...]], Array]
    begin: Callable[[tuple[int, ...]], PyTree] = lambda shape: ()
    whole: bool = False
    feedback: bool = False
    reduction: Reduction | None = None


def float16() -> Compressor:
    """Half precision; numbers beyond 65504 become infinite."""
    return _cast(jnp.float16)


def bfloat16() -> Compressor:
    """Eight bits of exponent and of significand."""
    return _cast(jnp.bfloat16)


def _cast(dtype) -> Compressor:
    return Compressor(lambda x, key, kept: (x.astype(dtype), kept), lambda x, shape: x.astype(jnp.float32))


def quantise(bits: Bits = 8, bucket: AtLeastOne = 512) -> Compressor:
    """Stochastic rounding, without bias, to 2 ** (bits - 1) - 1 levels on either side of zero; each bucket has a scale of its own.

    Alistarh, Grubic, Li, Tomioka, Vojnovic. QSGD. NeurIPS 2017; buckets are scaled by their maximum, as its experiments have it.
    """
    levels = 2 ** (bits - 1) - 1

    def pack(x, key, kept):
        rows = jnp.pad(x.reshape(-1), (0, -x.size % bucket)).reshape(-1, bucket)
        scale = jnp.max(jnp.abs(rows), 1)
        steps = rows / jnp.where(scale > 0, scale, 1)[:, None] * levels
        rounded = jnp.clip(jnp.floor(steps + jax.random.uniform(key, rows.shape)), -levels, levels)
        return (packed((rounded + levels).reshape(-1)[: x.size], bits), scale), kept

    def unpack(sent, shape):
        words, scale = sent
        number = math.prod(shape)
        codes = unpacked(words, bits, number).astype(jnp.float32) - levels
        return (codes * jnp.repeat(scale / levels, bucket)[:number]).reshape(shape)

    return Compressor(pack, unpack)


def top_k(fraction: PositiveFraction = 0.01, feedback: bool = True) -> Compressor:
    """The `fraction` of all entries with the largest magnitudes, with their places: Stich et al., NeurIPS 2018."""

    def pack(x, key, kept):
        del key
        row = x.reshape(-1)
        _, at = jax.lax.top_k(jnp.abs(row), _number(fraction, row.size))
        return (row[at], at.astype(_places(row.size))), kept

    return Compressor(pack, _scattered, whole=True, feedback=feedback)


def random_k(fraction: PositiveFraction = 0.01, feedback: bool = True) -> Compressor:
    """A random `fraction` of all entries, with the seed of their places; without feedback they are scaled up, against the bias.

    Konecny, McMahan, Yu, Richtarik, Suresh, Bacon. Federated Learning: Strategies for Improving Communication Efficiency. 2016.
    """

    def places(seed: Array, size: int) -> Array:
        drawn = jax.random.uniform(jax.random.wrap_key_data(seed), (size,))  # faster than to sort, above all on a CPU
        return jax.lax.top_k(drawn, _number(fraction, size))[1]

    def pack(x, key, kept):
        row, seed = x.reshape(-1), jax.random.key_data(key)
        up = 1 if feedback else row.size / _number(fraction, row.size)
        return (row[places(seed, row.size)] * up, seed), kept

    def unpack(sent, shape):
        taken, seed = sent
        return _scattered((taken, places(seed, math.prod(shape))), shape)

    return Compressor(pack, unpack, whole=True, feedback=feedback)


def _number(fraction: float, size: int) -> int:
    return max(1, round(fraction * size))


def _places(size: int):
    """The smallest type that numbers the places of a vector."""
    return jnp.uint16 if size <= 2**16 else jnp.uint32


def _scattered(sent: tuple[Array, Array], shape: tuple[int, ...]) -> Array:
    taken, at = sent
    return jnp.zeros(math.prod(shape)).at[at].set(taken).reshape(shape)


def _product(a: Array, b: Array) -> Array:
    """Of matrices, in full float32 on every device."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def power_sgd(rank: AtLeastOne = 2) -> Compressor:
    """Each matrix as the product of two of a low rank, by one step of the power method, from what the client sent the last time.

    Vogels, Karimireddy, Jaggi. PowerSGD. NeurIPS 2019, Algorithm 1, of each client alone, with its error feedback. A convolution's
    kernel is a matrix with its last axis; vectors, and matrices that would not become smaller, travel as they are.
    """

    def sides(shape: tuple[int, ...]) -> tuple[int, int] | None:
        n, m = math.prod(shape[:-1]), shape[-1] if shape else 1
        return (n, m) if len(shape) > 1 and rank * (n + m) < n * m else None

    def begin(shape):
        if sides(shape) is None:
            return ()
        return jax.random.normal(jax.random.key(_START), (shape[-1], rank))

    def pack(x, key, kept):
        del key
        if sides(x.shape) is None:
            return x, kept
        matrix = x.reshape(sides(x.shape))
        p, _ = jnp.linalg.qr(_product(matrix, kept))
        q = _product(matrix.T, p)
        return (p, q), jnp.where(jnp.any(q != 0), q, kept)

    def unpack(sent, shape):
        return sent if sides(shape) is None else _product(sent[0], sent[1].T).reshape(shape)

    return Compressor(pack, unpack, begin, feedback=True)


def sign(majority: bool = False, step: Positive = 1e-3) -> Compressor:
    """One bit an entry. Each array has its mean magnitude beside, and there is error feedback: Karimireddy et al., ICML 2019.

    Args:
      majority: the server takes a step of length `step` in each coordinate, as most clients vote, each with one vote, and there is
        neither magnitude nor feedback: Bernstein, Wang, Azizzadenesheli, Anandkumar. signSGD. ICML 2018. For an entry that is
        exactly 0 a client votes at random, so that what nobody trains does not drift to one side.
      step: of a majority.
    """

    def pack(x, key, kept):
        row = x.reshape(-1)
        bits = jnp.where(row == 0, jax.random.bernoulli(key, shape=row.shape), row > 0) if majority else row >= 0
        words = packed(bits.astype(jnp.uint8), 1)
        return (words if majority else (words, jnp.mean(jnp.abs(x)))), kept

    def unpack(sent, shape):
        words, scale = (sent, jnp.float32(1)) if majority else sent
        return ((unpacked(words, 1, math.prod(shape)).astype(jnp.float32) * 2 - 1) * scale).reshape(shape)

    def vote(row, weight, sender):
        del sender
        return jnp.where(weight > 0, jnp.sign(row), 0)

    def count(votes, memory, key):
        del key
        return step * jnp.sign(votes), memory, {}

    return Compressor(pack, unpack, feedback=not majority, reduction=Reduction(vote, "add", count) if majority else None)


COMPRESSORS: dict[str, Callable[..., Any]] = {
    "float16": float16,
    "bfloat16": bfloat16,
    "quantise": quantise,
    "top_k": top_k,
    "random_k": random_k,
    "power_sgd": power_sgd,
    "sign": sign,
}
DOWN = ("float16", "bfloat16")  # what is sent to clients has no key and no memory


def parse(text: str) -> Link:
    """A compression of uplinks by name.

    Args:
      text: "name(option=literal, ...)", names and options those of the functions in `COMPRESSORS`.

    Raises:
      ValueError, TypeError: an unknown name, option or value.
    """
    found = registry.find("compressor", text, COMPRESSORS, field="compression.uplink")
    if not isinstance(made := found(), Compressor):
        wants = "a fedjax_core.uplink.compression.Compressor"
        raise TypeError(f"compressor {found.name!r} must return {wants}, it returned {option_types.short(made)}")
    return link(found.name, made)


def down(name: str) -> Link:
    """A compression of what clients are sent, one of `DOWN`."""
    dtype = {"float16": jnp.float16, "bfloat16": jnp.bfloat16}[registry.choose("compression.downlink", name, DOWN)]
    floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)

    def packed_down(sent: PyTree) -> tuple[PyTree, PyTree]:
        packed_ = jax.tree.map(lambda x: x.astype(dtype) if floating(x) else x, sent)
        return jax.tree.map(lambda x, old: x.astype(old.dtype), packed_, sent), packed_

    return Link("compression", name, down=packed_down)


def link(name: str, compressor: Compressor) -> Link:
    """A compressor as a link."""

    def split(value: Carried) -> list[Array]:
        """The arrays that are compressed, float32: deltas, and values of class means."""
        deltas = [vector(value.deltas)] if compressor.whole and value.deltas else jax.tree.leaves(value.deltas)
        return [x.astype(jnp.float32) for x in (*deltas, *(values for values, _ in value.classes))]

    def together(arrays: list[Array], like: Carried) -> Carried:
        """The inverse of `split`."""
        number = len(arrays) - len(like.classes)
        if compressor.whole:
            deltas = of_vector(arrays[0], like.deltas) if number else ()
        else:
            leaves, structure = jax.tree.flatten(like.deltas)
            deltas = structure.unflatten([x.astype(old.dtype) for x, old in zip(arrays, leaves, strict=False)])
        values = zip(arrays[number:], like.classes, strict=True)
        return Carried(deltas, tuple((x.astype(old.dtype), counts) for x, (old, counts) in values))

    def state(like: Carried):
        shapes = [s.shape for s in jax.eval_shape(split, like)]
        errors = tuple(jnp.zeros(shape) for shape in shapes) if compressor.feedback else ()
        return errors, tuple(compressor.begin(shape) for shape in shapes)

    def send(value: Carried, sender, kept):
        errors, own = kept
        arrays = split(value)
        arrays = [x + e for x, e in zip(arrays, errors, strict=True)] if errors else arrays
        keys = jax.random.split(sender.key, max(1, len(arrays)))
        both = [compressor.pack(x, key, mine) for x, key, mine in zip(arrays, keys, own, strict=False)]
        unpacked_as = lambda sent, shape: checked(compressor.unpack(sent, shape), shape, f"compressor {name!r}, unpacking,")
        found = [unpacked_as(sent, x.shape) for (sent, _), x in zip(both, arrays, strict=True)]
        left = tuple(x - y for x, y in zip(arrays, found, strict=True)) if errors else ()
        travels = [sent for sent, _ in both], [counts for _, counts in value.classes]
        return Passed(together(found, value), (left, tuple(mine for _, mine in both)), {}, travels)

    def check(method: str, like: Carried) -> None:
        if like.classes and (compressor.whole or compressor.feedback or compressor.reduction):
            why = f"{method} sends class means, of which the rest would count as zero"
            raise ValueError(
                f"compressor {name!r} sends a part of a delta, and the rest later; {why}; quantise and bfloat16 are for both"
            )

    return Link("compression", name, send=send, state=state, reduction=compressor.reduction, check=check)
