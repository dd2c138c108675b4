"""Language models: layers stacked for one loop, positions from a mask, decoding, published weights.

Parameters are plain nested dicts. All layers are in `params["layers"]` with a leading axis [L,
...], and one layer's program is scanned over them, so that 32 layers compile as fast as one. A
linear map has its leaf "kernel" [L, in, out] and maybe "bias".

A kernel is only ever used as `x @ kernel`. So whatever wraps a model from outside (LoRA) puts in a
kernel's place, by its path in the dict, a pytree (a registered dataclass: jax refuses tuples there)
whose leaves have the axis [L] in front and that has

    __rmatmul__(x [..., in]) -> [..., out]      one layer's: the scan has taken the axis off

which keeps the base once, unmerged, and takes gradients for the small leaves alone.

`mask` [B, T] says which tokens are real, on whatever side the padding is: positions count the real
tokens, and nobody attends to the others. Outputs at other places are finite, and mean nothing.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedjax_core import registry
from fedjax_core.algorithm import Array, PyTree
from fedjax_core.lazy_array import LazyArray
from fedjax_core.task import Axes

DTYPES = ("float32", "bfloat16")
AXES: Axes = (  # heads and hidden numbers of a layer are divided: devices meet twice in each
    *((f"{part}/kernel", -1) for part in ("query", "key", "value", "gate", "up")),
    *((f"{part}/kernel", -2) for part in ("output", "down")),
    ("head/kernel", -1),
    # Tables by their rows: all devices have all numbers of a text between layers, which nothing
    # then has to gather.
    *((table, -2) for table in ("embedding", "embedding/token")),
)


class Encoder(NamedTuple):
    """A network that reads text, as pure functions over a nested dict.

    Attributes:
      init: key -> params, as they are before any training.
      hidden: (params, tokens [B, T], mask [B, T], types [B, T] = None) -> [B, T, D], the last
        layer's, after the final norm. With read=f it is (that, [L, ...]): f of each layer's output
        [B, T, D].
      width: D.
      context: the most tokens that it takes at once.
      name: what error messages call it.
      model_axes: see `Model`.
      vocabulary: V, number of tokens it embeds; `hidden` refuses others where they are no traced
        arrays.
    """

    init: Callable[[Array], PyTree]
    hidden: Callable[..., Any]
    width: int
    context: int
    name: str
    model_axes: Axes = ()
    vocabulary: int | None = None


class LanguageModel(NamedTuple):
    """A causal network that reads and writes text, as pure functions over a nested dict.

    Attributes:
      init, width, context, name, model_axes, vocabulary: as an `Encoder`'s.
      hidden: the same without types. With segments [B, T], the number of each token's text, texts
        in one row do not see each other, and each has positions from 0.
      logits: (params, hidden [..., D]) -> [..., V] float32: of the next token.
      generate: (params, tokens [B, T], mask [B, T], *, limit, stop=..., beams=1) -> (tokens [B,
        limit], mask [B, limit]), see `greedy_decode` and `beam_search.beam_search`.
      stop: ids of the tokens that end a text, from the configuration; may be empty.
    """

    init: Callable[[Array], PyTree]
    hidden: Callable[..., Any]
    logits: Callable[[PyTree, Array], Array]
    generate: Callable[..., tuple[Array, Array]]
    width: int
    context: int
    stop: tuple[int, ...]
    name: str
    model_axes: Axes = ()
    vocabulary: int | None = None


class Linear(nnx.Module):
    """x @ kernel + bias."""

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool = False, std: float = 0.02, dtype: Any = jnp.float32, rngs: nnx.Rngs
    ):
        self.kernel = nnx.Param(std * jax.random.normal(rngs.params(), (inputs, outputs), dtype))
        self.bias = nnx.Param(jnp.zeros(outputs, dtype)) if bias else None

    def __call__(self, x: Array) -> Array:
        """Maps [B, T, inputs] to [B, T, outputs]."""
        y = x @ self.kernel.get_value()
        return y if self.bias is None else y + self.bias.get_value()[None, None]


class Stack(NamedTuple):
    """L layers of one kind.

    Attributes:
      init: key -> params, leaves [L, ...].
      run: (params, x, *context, cache=(), read=None, kinds=None) -> (x, cache): each layer is
        called (x, *context, its own cache), and returns the like. With read=f it is (x, [L, ...]):
        f of each layer's x. With kinds [L], layer l gets the entry kinds[l] of each context array.
    """

    init: Callable[[Array], PyTree]
    run: Callable[..., tuple[Array, PyTree]]


def stack_layers(make: Callable[[nnx.Rngs], Any], layers: int, remat: bool) -> Stack:
    """Stacks layers as one loop.

    Args:
      make: builds one layer from the stream that initialises it; its variables are `nnx.Param`s.
      layers: L.
      remat: whether the backward pass computes each layer anew, for L times less memory.
    """
    init_layer, layer = as_pure_functions(make)

    def init(key):
        return jax.vmap(init_layer)(jax.random.split(key, layers))

    def run(params, x, *context, cache=(), read=None, kinds=None):
        def step(x, entry):
            own, kept, kind = entry
            chosen = context if kind is None else jax.tree.map(lambda leaf: leaf[kind], context)
            x, kept = layer(own)(x, *chosen, kept)
            return x, kept if read is None else read(x)

        return jax.lax.scan(jax.checkpoint(step) if remat else step, x, (params, cache, kinds))

    return Stack(init, run)


def as_pure_functions(make: Callable[[nnx.Rngs], Any]) -> tuple[Callable[[Array], dict[str, Any]], Callable[[PyTree], Any]]:
    """Returns a module of `nnx.Param`s as functions: key -> params, and params -> the module."""
    graphdef = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))), nnx.Param)[0]
    init = lambda key: nnx.to_pure_dict(nnx.split(make(nnx.Rngs(params=key)), nnx.Param)[1])
    return init, lambda params: nnx.merge(graphdef, params)


def token_positions(mask: Array) -> Array:
    """Returns the position of each token among the real ones of its text, from 0: [B, T] int32."""
    return jnp.maximum(jnp.cumsum(mask, 1, dtype=jnp.int32) - 1, 0)


def last_token_index(mask: Array) -> Array:
    """Returns the index [B] of each text's last real token; the last index if it has none."""
    return mask.shape[1] - 1 - jnp.argmax(mask[:, ::-1], 1)


def name_layers(outputs: Array) -> dict[str, Array]:
    """Returns the layers' outputs [L, B, D] by name, "layer1" to "layerL"."""
    return {f"layer{i + 1}": outputs[i] for i in range(len(outputs))}


def check_context(name: str, tokens: int, context: int) -> None:
    """Raises ValueError for more tokens than a model takes."""
    if tokens > context:
        raise ValueError(f"{tokens} tokens, padding with them, for {name}: it takes at most {context}")


def is_stop(token: Array, stop: Sequence[int]) -> Array:
    """Returns the mask of tokens that end a text."""
    return jnp.isin(token, jnp.asarray(stop, jnp.int32)) if len(stop) else jnp.zeros(token.shape, bool)


def read_prompts(
    step: Callable[..., tuple[Array, PyTree]], cache: PyTree, tokens: Array, mask: Array, limit: int
) -> tuple[Array, PyTree, Array]:
    """Returns the logits after prompts [B, T], the cache, and its visible places [B, T + limit]."""
    t = tokens.shape[1]
    is_visible = jnp.pad(mask, ((0, 0), (0, limit)))
    causal = jnp.arange(t)[:, None] >= jnp.arange(t + limit)[None]
    places = is_visible[:, None] & causal[None]
    return *step(cache, tokens, token_positions(mask), 0, places, last_token_index(mask)), is_visible


def greedy_decode(
    step: Callable[..., tuple[Array, PyTree]], cache: PyTree, tokens: Array, mask: Array, *, limit: int, stop: Sequence[int]
) -> tuple[Array, Array]:
    """Decodes greedily for a batch at once, with a cache of keys and values.

    Args:
      step: (cache, tokens [B, t], positions [B, t], place, mask [B, t, T + limit], at [B]) ->
        (logits [B, V], cache): the tokens go into the cache from `place` on and look at its places
        in the mask; the logits are those after the token `at` of each example.
      cache: of T + limit places.
      tokens: [B, T], the prompts.
      mask: [B, T], which of their tokens are real; padding may be on either side.
      limit: the most tokens to be written; all examples stop earlier if they can.
      stop: ids that end a text.

    Returns:
      (tokens [B, limit], mask [B, limit]): the mask has what was written before the stop.
    """
    if limit < 1:
        raise ValueError(f"limit={limit} must be at least 1")
    b, t = tokens.shape
    ends = functools.partial(is_stop, stop=stop)
    pick = lambda logits: jnp.argmax(logits, -1).astype(jnp.int32)
    logits, cache, is_visible = read_prompts(step, cache, tokens, mask, limit)
    token, length = pick(logits), jnp.sum(mask, 1, dtype=jnp.int32)
    write = lambda out, i, token: jax.lax.dynamic_update_slice_in_dim(out, token[:, None], i, 1)
    out = write(jnp.zeros((b, limit), jnp.int32), 0, token)
    real = write(jnp.zeros((b, limit), bool), 0, ~ends(token))

    def going(carry):
        i, _, done, *_ = carry
        return (i + 1 < limit) & ~jnp.all(done)

    def body(carry):
        i, token, done, out, real, is_visible, cache = carry
        is_visible = write(is_visible, t + i, ~done)
        logits, cache = step(cache, token[:, None], (length + i)[:, None], t + i, is_visible[:, None], jnp.zeros(b, jnp.int32))
        token = pick(logits)
        done = done | ends(token)
        return i + 1, token, done, write(out, i + 1, token), write(real, i + 1, ~done), is_visible, cache

    carry = jax.lax.while_loop(going, body, (jnp.int32(0), token, ends(token), out, real, is_visible, cache))
    return carry[3], carry[4]


class Tensor(NamedTuple):
    """A leaf's tensor in a published file.

    Attributes:
      name: of the tensor, with {} for the layer's number.
      transposed: True: it is [out, in] there.
      part: (i, n), where it is part i of n side by side along the tensor's last axis.
    """

    name: str
    transposed: bool = False
    part: tuple[int, int] = (0, 1)


def linear(name: str, bias: bool = False) -> dict[str, Tensor]:
    """Returns the tensors of a `Linear`, as torch names and lays them out."""
    return {"kernel": Tensor(f"{name}.weight", True)} | ({"bias": Tensor(f"{name}.bias")} if bias else {})


def read_params(
    like: PyTree,
    where: PyTree,
    tensors: Mapping[str, np.ndarray],
    ignored: str,
    dtype: str,
    name: str,
    later: bool = False,
) -> PyTree:
    """Reads parameters from a published file's tensors; layers are stacked.

    Args:
      like: shapes of the parameters.
      where: the same nested dict, of `Tensor`s.
      tensors: by name; read one at a time, so they may be mapped from the file.
      ignored: regular expression of the names that a file may have beyond those.
      dtype: of the parameters, "float32" or "bfloat16".
      name: what error messages call the model.
      later: True: nothing is read yet; parameters are `LazyArray`s.

    Raises:
      ValueError: a tensor is missing, has another shape, is not of floats, or is none of the
        model's; or another dtype.
    """
    registry.check_choice("dtype", dtype, DTYPES)
    is_tensor = lambda x: isinstance(x, Tensor)
    wanted: dict[str, tuple[int, ...]] = {}
    for tensor, leaf in zip(jax.tree.leaves(where, is_leaf=is_tensor), jax.tree.leaves(like), strict=True):
        stacked = "{}" in tensor.name
        shape = leaf.shape[1:] if stacked else leaf.shape
        for i in range(leaf.shape[0] if stacked else 1):
            whole = (*shape[:-1], shape[-1] * tensor.part[1]) if shape else shape
            wanted[tensor.name.format(i)] = whole[::-1] if tensor.transposed else whole
    extra = [key for key in tensors if key not in wanted and not re.fullmatch(ignored, key)]
    for key in [*wanted, *extra]:
        shape_in_files = list(tensors[key].shape) if key in tensors else "missing"
        wanted_shape = list(wanted[key]) if key in wanted else "missing"
        if shape_in_files != wanted_shape:
            model = f"{wanted_shape} in the model that config.json describes"
            raise ValueError(f"{name}: the tensor {key} is {shape_in_files} in the files and {model}")
        if not jnp.issubdtype(tensors[key].dtype, jnp.floating):
            raise ValueError(f"{name}: the tensor {key} is of {tensors[key].dtype}; it must be of floats, not quantised")

    def read_leaf(tensor: Tensor, leaf: Any) -> LazyArray | Array:
        def read_tensor(key: str, index: tuple[slice, ...]) -> np.ndarray:
            if tensor.part[1] > 1:
                first = tensor.part[0] * leaf.shape[-1]
                index = (*index[:-1], slice(first + index[-1].start, first + index[-1].stop))
            return tensors[key][index[::-1]].T if tensor.transposed else tensors[key][index]

        def read_part(index: tuple[slice, ...]) -> np.ndarray:
            if "{}" not in tensor.name:
                return np.array(read_tensor(tensor.name, index), jnp.dtype(dtype))
            numbers = range(*index[0].indices(leaf.shape[0]))
            out = np.empty((len(numbers), *(axis.stop - axis.start for axis in index[1:])), jnp.dtype(dtype))
            for i, number in enumerate(numbers):
                out[i] = read_tensor(tensor.name.format(number), index[1:])
            return out

        array = LazyArray(leaf.shape, jnp.dtype(dtype), read_part)
        return array if later else jnp.asarray(np.asarray(array))

    return jax.tree.map(read_leaf, where, like, is_leaf=is_tensor)


def read_positive(config: Mapping[str, Any], name: str, kind: type = int, default: Any = None) -> Any:
    """Returns a positive number of config.json; raises ValueError for anything else."""
    value = config.get(name)
    value = default if value is None else value
    kinds = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
        raise ValueError(f"config.json: {name}={value!r} must be a positive {'number' if kind is float else 'integer'}")
    return kind(value)


def read_choice(config: Mapping[str, Any], name: str, *allowed: Any) -> Any:
    """Returns a field of config.json, the first of the allowed values where it is missing."""
    value = config.get(name, allowed[0])
    if value not in allowed:
        raise ValueError(f"config.json: {name}={value!r} is not supported; allowed: {', '.join(map(repr, allowed))}")
    return value
