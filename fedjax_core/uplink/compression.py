"""Compression of uplinks, and of what clients are sent.

    config.compression.uplink = "quantise(bits=4)"
    config.compression.uplink = "top_k(fraction=0.01)"  # with error feedback
    config.compression.downlink = "bfloat16"

A compressor packs arrays, and unpacks them as the server does, inside the client loop. The bytes
that a run reports are those of the packed arrays, even where an array is so small that packing
enlarges it. Counts of class means are not compressed. With error feedback a client adds to its next
delta what compression removed from this one; a client that is left out keeps its old error.

  Stich, Cordonnier, Jaggi. Sparsified SGD with Memory. NeurIPS 2018.
  Karimireddy, Rebjock, Stich, Jaggi. Error Feedback Fixes SignSGD. ICML 2019.

A user's compressor is a function in a module or file, `path/to/file.py:name(option=...)`, or an
entry point of the group `fedjax_core.compressors`. It takes options and returns a `Compressor`.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_core import option_types, registry
from fedjax_core.algorithm import Array, PyTree
from fedjax_core.option_types import AtLeastOne, Positive, PositiveFraction, Width
from fedjax_core.uplink.layout import check_shape, flatten, unflatten
from fedjax_core.uplink.transform import ClientContext, TransformOutput, UplinkTransform, UplinkValue, VectorReduce

Bits = Annotated[int, option_types.Limit("in [2, 8]", lambda v: 2 <= v <= 8)]
_POWER_SGD_SEED = 0x7067  # of the first factors


class Compressor(NamedTuple):
    """Compresses one array at a time.

    Attributes:
      pack: (array, key, client state) -> (packed arrays, client state).
      unpack: (packed arrays, shape of the array) -> array, float32.
      init_state: shape of the array -> the first client state.
      as_one_vector: whether all deltas are one vector, instead of array by array.
      error_feedback: whether the error is kept and added to the next delta.
      reduce: replaces the weighted mean, for votes.
    """

    pack: Callable[[Array, Array, PyTree], tuple[PyTree, PyTree]]
    unpack: Callable[[PyTree, tuple[int, ...]], Array]
    init_state: Callable[[tuple[int, ...]], PyTree] = lambda shape: ()
    as_one_vector: bool = False
    error_feedback: bool = False
    reduce: VectorReduce | None = None


def float16() -> Compressor:
    """Half precision; numbers beyond 65504 become infinite."""
    return _cast(jnp.float16)


def bfloat16() -> Compressor:
    """Eight bits of exponent and of significand."""
    return _cast(jnp.bfloat16)


def _cast(dtype) -> Compressor:
    return Compressor(lambda x, key, state: (x.astype(dtype), state), lambda x, shape: x.astype(jnp.float32))


def quantise(bits: Bits = 8, bucket: Width = 512) -> Compressor:
    """Unbiased rounding to 2 ** (bits - 1) - 1 levels on either side of zero, per bucket.

    Alistarh, Grubic, Li, Tomioka, Vojnovic. QSGD. NeurIPS 2017. Buckets are scaled by their
    maximum, as in its experiments.
    """
    levels = 2 ** (bits - 1) - 1

    def pack(x, key, state):
        buckets = jnp.pad(x.reshape(-1), (0, -x.size % bucket)).reshape(-1, bucket)
        scale = jnp.max(jnp.abs(buckets), 1)
        steps = buckets / jnp.where(scale > 0, scale, 1)[:, None] * levels
        rounded = jnp.clip(jnp.floor(steps + jax.random.uniform(key, buckets.shape)), -levels, levels)
        return (pack_bits((rounded + levels).reshape(-1)[: x.size], bits), scale), state

    def unpack(packed, shape):
        words, scale = packed
        size = math.prod(shape)
        codes = unpack_bits(words, bits, size).astype(jnp.float32) - levels
        return (codes * jnp.repeat(scale / levels, bucket)[:size]).reshape(shape)

    return Compressor(pack, unpack)


def pack_bits(codes: Array, bits: int) -> Array:
    """Packs codes [n] in [0, 2 ** bits) into uint8 [ceil(n * bits / 8)], lowest bit first.

    Example:
      >>> pack_bits(jnp.array([1, 2, 3, 0, 3]), 2).tolist()
      [57, 3]
    """
    split = (codes.astype(jnp.uint32)[:, None] >> jnp.arange(bits, dtype=jnp.uint32)[None]) & 1
    return jnp.packbits(split.astype(jnp.uint8).reshape(-1), bitorder="little")


def unpack_bits(words: Array, bits: int, size: int) -> Array:
    """Inverts `pack_bits`: returns uint32 [size].

    Example:
      >>> unpack_bits(pack_bits(jnp.array([1, 2, 3, 0, 3]), 2), 2, 5).tolist()
      [1, 2, 3, 0, 3]
    """
    split = jnp.unpackbits(words, count=size * bits, bitorder="little").reshape(size, bits)
    shifts = jnp.arange(bits, dtype=jnp.uint32)[None]
    return jnp.sum(split.astype(jnp.uint32) << shifts, 1, dtype=jnp.uint32)


def top_k(fraction: PositiveFraction = 0.01, feedback: bool = True) -> Compressor:
    """The `fraction` of all entries with the largest magnitudes, with their indices.

    Stich, Cordonnier, Jaggi. Sparsified SGD with Memory. NeurIPS 2018.
    """

    def pack(x, key, state):
        del key
        vector = x.reshape(-1)
        _, index = jax.lax.top_k(jnp.abs(vector), _num_kept(fraction, vector.size))
        dtype = jnp.uint16 if vector.size <= 2**16 else jnp.uint32
        return (vector[index], index.astype(dtype)), state

    return Compressor(pack, _scatter, as_one_vector=True, error_feedback=feedback)


def random_k(fraction: PositiveFraction = 0.01, feedback: bool = True) -> Compressor:
    """A random `fraction` of all entries, with the seed of their indices.

    Without feedback the entries are scaled up, so that the delta is unbiased.

    Konecny, McMahan, Yu, Richtarik, Suresh, Bacon. Federated Learning: Strategies for Improving
    Communication Efficiency. 2016.
    """

    def draw_index(seed: Array, size: int) -> Array:
        # Faster than a permutation, above all on a CPU.
        draws = jax.random.uniform(jax.random.wrap_key_data(seed), (size,))
        return jax.lax.top_k(draws, _num_kept(fraction, size))[1]

    def pack(x, key, state):
        vector, seed = x.reshape(-1), jax.random.key_data(key)
        scale = 1 if feedback else vector.size / _num_kept(fraction, vector.size)
        return (vector[draw_index(seed, vector.size)] * scale, seed), state

    def unpack(packed, shape):
        entries, seed = packed
        return _scatter((entries, draw_index(seed, math.prod(shape))), shape)

    return Compressor(pack, unpack, as_one_vector=True, error_feedback=feedback)


def _num_kept(fraction: float, size: int) -> int:
    return max(1, round(fraction * size))


def _scatter(packed: tuple[Array, Array], shape: tuple[int, ...]) -> Array:
    entries, index = packed
    return jnp.zeros(math.prod(shape)).at[index].set(entries).reshape(shape)


def power_sgd(rank: AtLeastOne = 2) -> Compressor:
    """A low-rank factorization of each matrix, by one step of the power method.

    Vogels, Karimireddy, Jaggi. PowerSGD. NeurIPS 2019, Algorithm 1, for each client alone, with its
    error feedback. The kernel of a convolution is a matrix with the last axis of the kernel.
    Vectors, and matrices that would not become smaller, are not compressed.
    """

    def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int] | None:
        n, m = math.prod(shape[:-1]), shape[-1] if shape else 1
        return (n, m) if len(shape) > 1 and rank * (n + m) < n * m else None

    def init_state(shape):
        if matrix_shape(shape) is None:
            return ()
        return jax.random.normal(jax.random.key(_POWER_SGD_SEED), (shape[-1], rank))

    def pack(x, key, state):
        del key
        if matrix_shape(x.shape) is None:
            return x, state
        matrix = x.reshape(matrix_shape(x.shape))
        p, _ = jnp.linalg.qr(_matmul(matrix, state))
        q = _matmul(matrix.T, p)
        return (p, q), jnp.where(jnp.any(q != 0), q, state)

    def unpack(packed, shape):
        if matrix_shape(shape) is None:
            return packed
        return _matmul(packed[0], packed[1].T).reshape(shape)

    return Compressor(pack, unpack, init_state, error_feedback=True)


def _matmul(a: Array, b: Array) -> Array:
    """Returns a product of matrices in full float32, on every device."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def sign(majority: bool = False, step: Positive = 1e-3) -> Compressor:
    """One bit per entry, and the mean magnitude of each array, with error feedback.

    Karimireddy, Rebjock, Stich, Jaggi. Error Feedback Fixes SignSGD. ICML 2019.
    Bernstein, Wang, Azizzadenesheli, Anandkumar. signSGD. ICML 2018, for `majority`.

    Args:
      majority: the server takes a step of length `step` in each coordinate, in the direction of the
        majority of clients. Each has one vote, without magnitude or feedback. For an entry that is
        exactly 0 a client votes at random, so that untrained entries do not drift.
      step: with a majority.
    """

    def pack(x, key, state):
        vector = x.reshape(-1)
        bits = jnp.where(vector == 0, jax.random.bernoulli(key, shape=vector.shape), vector > 0) if majority else vector >= 0
        words = pack_bits(bits.astype(jnp.uint8), 1)
        return (words if majority else (words, jnp.mean(jnp.abs(x)))), state

    def unpack(packed, shape):
        words, scale = (packed, jnp.float32(1)) if majority else packed
        signs = unpack_bits(words, 1, math.prod(shape)).astype(jnp.float32) * 2 - 1
        return (signs * scale).reshape(shape)

    def map_vote(vector, weight, context):
        del context
        return jnp.where(weight > 0, jnp.sign(vector), 0)

    def count_votes(votes, memory, key):
        del key
        return step * jnp.sign(votes), memory, {}

    reduce = VectorReduce(map_vote, "add", count_votes) if majority else None
    return Compressor(pack, unpack, error_feedback=not majority, reduce=reduce)


COMPRESSORS: dict[str, Callable[..., Any]] = {
    "float16": float16,
    "bfloat16": bfloat16,
    "quantise": quantise,
    "top_k": top_k,
    "random_k": random_k,
    "power_sgd": power_sgd,
    "sign": sign,
}
DOWNLINK_DTYPES = ("float16", "bfloat16")  # for what is sent to clients, which has neither key nor state


def parse_compressor(text: str) -> UplinkTransform:
    """Returns a compression of uplinks by name.

    Args:
      text: "name(option=literal, ...)", with the names and options of `COMPRESSORS`.
    """
    spec = registry.resolve_spec("compressor", text, COMPRESSORS, field="compression.uplink")
    if not isinstance(compressor := spec(), Compressor):
        expected = "a fedjax_core.uplink.compression.Compressor"
        raise TypeError(f"compressor {spec.name!r} must return {expected}, it returned {option_types.shorten(compressor)}")
    return make_transform(spec.name, compressor)


def compress_broadcast(name: str) -> UplinkTransform:
    """Returns a compression of what clients are sent, one of `DOWNLINK_DTYPES`."""
    dtype = jnp.dtype(registry.check_choice("compression.downlink", name, DOWNLINK_DTYPES))

    def broadcast(sent: PyTree) -> tuple[PyTree, PyTree]:
        wire = jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, sent)
        return jax.tree.map(lambda x, old: x.astype(old.dtype), wire, sent), wire

    return UplinkTransform("compression", name, broadcast=broadcast)


def make_transform(name: str, compressor: Compressor) -> UplinkTransform:
    """Returns the transform of a compressor."""

    def split(value: UplinkValue) -> list[Array]:
        """Returns the arrays that are compressed, float32: deltas, and values of class means."""
        flat = compressor.as_one_vector and value.deltas
        deltas = [flatten(value.deltas)] if flat else jax.tree.leaves(value.deltas)
        return [x.astype(jnp.float32) for x in (*deltas, *value.class_values)]

    def join(arrays: list[Array], shapes: UplinkValue) -> UplinkValue:
        """Inverts `split`."""
        num_deltas = len(arrays) - len(shapes.class_means)
        if compressor.as_one_vector:
            deltas = unflatten(arrays[0], shapes.deltas) if num_deltas else ()
        else:
            leaves, structure = jax.tree.flatten(shapes.deltas)
            pairs = zip(arrays, leaves, strict=False)
            deltas = structure.unflatten([x.astype(old.dtype) for x, old in pairs])
        pairs = zip(arrays[num_deltas:], shapes.class_values, strict=True)
        class_values = [x.astype(old.dtype) for x, old in pairs]
        return shapes._replace(deltas=deltas).with_class_values(class_values)

    def init_client_state(uplink: UplinkValue) -> tuple:
        shapes = [s.shape for s in jax.eval_shape(split, uplink)]
        errors = tuple(jnp.zeros(shape) for shape in shapes) if compressor.error_feedback else ()
        return errors, tuple(compressor.init_state(shape) for shape in shapes)

    def send(value: UplinkValue, context: ClientContext, client_state: tuple) -> TransformOutput:
        errors, states = client_state
        arrays = split(value)
        if errors:
            arrays = [x + error for x, error in zip(arrays, errors, strict=True)]
        keys = jax.random.split(context.key, max(1, len(arrays)))
        packed, new_states = [], []
        for x, key, state in zip(arrays, keys, states, strict=False):
            wire, new_state = compressor.pack(x, key, state)
            packed.append(wire)
            new_states.append(new_state)
        source = f"compressor {name!r}, unpacking,"
        unpacked = [check_shape(compressor.unpack(wire, x.shape), x.shape, source) for wire, x in zip(packed, arrays, strict=True)]
        if errors:
            errors = tuple(x - y for x, y in zip(arrays, unpacked, strict=True))
        wire = packed, [counts for _, counts in value.class_means]
        return TransformOutput(join(unpacked, value), (errors, tuple(new_states)), {}, wire)

    def check(method: str, shapes: UplinkValue) -> None:
        is_partial = compressor.as_one_vector or compressor.error_feedback or compressor.reduce
        if shapes.class_means and is_partial:
            raise ValueError(
                f"compressor {name!r} sends a part of a delta now and the rest later; {method} sends class "
                "means, of which the rest would count as zero; quantise and bfloat16 support both"
            )
        if compressor.reduce and (number := len(shapes.deltas)) > 1:
            raise ValueError(
                f"compressor {name!r} replaces the mean of one delta by steps of its own; {method} sends {number} deltas, whose "
                "lengths the server reads; sign without majority keeps them"
            )

    return UplinkTransform(
        "compression",
        name,
        send=send,
        reduce=compressor.reduce,
        init_client_state=init_client_state,
        check=check,
    )
