"""Models from your own modules of Flax NNX and Flax Linen, without changes to them.

A builder takes any of `classes`, `input_shape` (of one example) and `rngs` (`nnx.Rngs`) by name,
and options of its own, and returns a module or a `Model`. A module maps x [B, ...] to logits [B,
K], with `body` (-> features [B, D]) and a linear `head` if a method needs them. Either may take
`train`, `mask` [B] and `key`. Its class may declare `model_axes`, {end of an array's path: axis
counted from its end}, for sharding, `flattened` (`task.Model`), and `reads_tokens`.
docs/pages/your-model.md has examples.
"""

import contextlib
import dataclasses
import inspect
import logging
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
from flax import errors, nnx

from fedjax_core import registry
from fedjax_core.algorithm import Array, Net, PyTree
from fedjax_core.nn.kernels.substitution import substitute_kernels
from fedjax_core.nn.layers import spread_mask
from fedjax_core.task import HEAD_HINT, Axes, Model

Prepare = Callable[[Array], Array]
READS_TOKENS = "reads_tokens"  # attribute of a module's class
TRAIN_FLAG = re.compile(  # also of other libraries
    r"use_running_average|deterministic|(is_|in_)?(train|training|inference|eval|evaluate|evaluation|test|testing)(_mode|_phase)?"
)
log = logging.getLogger("fedjax_core")
IN_HEAD = "but a head is given features alone: move that to the end of body"
DRAWS_IN_HEAD = f"draws random numbers or moves batch statistics in its head, {IN_HEAD}"
DRAWS_ALWAYS = "draws random numbers without a key, as in evaluation: draw where train=True"
FROZEN = "moves batch statistics, which are frozen: its normalization must be Flax's BatchNorm without use_running_average"


def build(
    builder: Callable[..., Any],
    name: str,
    classes: int,
    input_shape: tuple[int, ...],
    options: dict[str, Any],
    prepare: Prepare | None = None,
    stats_mode: str = "average",
) -> Model:
    """Builds the Model of a user's builder.

    Args:
      builder: see the module.
      prepare: transforms inputs, such as normalization. A Linen module is initialized with ints if
        it leaves ints unchanged, else with floats. None: inputs are floats and not changed.
      stats_mode: see `from_nnx.from_module`.

    Raises:
      TypeError: the builder returned neither a module nor a Model, or a Model of other functions.
      ValueError: the module has variables of an unknown kind, batch statistics but no `mask`, a flag
        of training that nothing sets, a head of another name, or one with dropout or batch statistics; it reads token ids
        and is given others; (when traced) it updates frozen statistics.
    """
    make, module = _make_module(builder, name, classes, input_shape, options)
    if isinstance(module, Model):
        return _check_model(module, name, input_shape)
    same = lambda x: x
    of_type = lambda dtype: jax.eval_shape(prepare or same, jax.ShapeDtypeStruct((1, *input_shape), dtype))
    if isinstance(module, nnx.Module | linen.Module):
        keeps_ints = prepare is not None and jnp.issubdtype(of_type(jnp.int32).dtype, jnp.integer)
        if prepare is not None and not keeps_ints and getattr(module, READS_TOKENS, None) is True:
            raise ValueError(
                f"model {name!r} reads token ids ({READS_TOKENS}=True), and these examples are floats or pixels (uint8); pass "
                "integers of another type, such as x.astype(np.int32)"
            )
        dtype = jnp.int32 if keeps_ints else jnp.float32
        if isinstance(module, nnx.Module):
            model = _build_nnx(make, name, of_type(dtype), prepare or same, stats_mode)
        else:
            model = _build_linen(module, name, of_type(dtype), prepare or same, stats_mode)
        _warn_of_outputs_and_weights(model, type(module), jax.ShapeDtypeStruct((1, *input_shape), dtype))
        return model
    raise TypeError(
        f"model {name!r} is a {type(module).__name__}; a builder returns a module of flax.nnx or flax.linen, or a Model"
    )


def _check_model(model: Model, name: str, input_shape: tuple[int, ...]) -> Model:
    """Returns a `Model` of somebody's own functions; TypeError unless they are called, and return, as they must."""
    wants = f"model {name!r} is a task.Model: its"
    takes = inspect.signature(model.apply).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in takes.values()) and (missing := {"key", "train", "mask"} - set(takes)):
        raise TypeError(
            f"{wants} apply must take (net, x, key=None, train=False, mask=None), it lacks {', '.join(sorted(missing))}"
        )
    if not isinstance(net := jax.eval_shape(model.init, jax.random.key(0)), Net):
        raise TypeError(f"{wants} init must return an algorithm.Net(params, stats), it returned a {type(net).__name__}")
    try:
        result = jax.eval_shape(lambda net, x: model.apply(net, x), net, jax.ShapeDtypeStruct((1, *input_shape), jnp.float32))
    except Exception:  # it takes no floats, or training says what is wrong
        return model
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Mapping)):
        raise TypeError(f'{wants} apply must return ({{"logits": [B, K], ...}}, stats), it returned a {type(result).__name__}')
    return model


def builds_model(
    builder: Callable[..., Any], name: str, classes: int, input_shape: tuple[int, ...], options: dict[str, Any]
) -> bool:
    """Returns whether a user's builder returns a `Model`, whose inputs are not changed."""
    return isinstance(_make_module(builder, name, classes, input_shape, options)[1], Model)


def reads_tokens(
    builder: Callable[..., Any], name: str, classes: int, input_shape: tuple[int, ...], options: dict[str, Any]
) -> bool | None:
    """Returns whether a user's network reads token ids, from the arguments of `build`.

    If its class does not declare it: True if it accepts ints but no floats, or is a `Model`, whose
    inputs are not changed; None if it accepts both.

    Raises:
      ValueError: its class declares neither True nor False.
    """
    module = _make_module(builder, name, classes, input_shape, options)[1]
    if isinstance(module, Model):
        return True
    declared = getattr(module, READS_TOKENS, None)
    if declared is not None and not isinstance(declared, bool):
        raise ValueError(f"model {name!r}: {READS_TOKENS}={declared!r} must be True or False")
    if declared is not None:
        return declared

    def takes(dtype: Any, prepare: Prepare | None) -> bool:
        x = jax.ShapeDtypeStruct((1, *input_shape), dtype)
        try:
            model = build(builder, name, classes, input_shape, dict(options), prepare)
            jax.eval_shape(lambda key, x: model.apply(model.init(key), x)[0], jax.random.key(0), x)
        except Exception:  # the user's code; it runs again, and then raises
            return False
        return True

    if takes(jnp.float32, None):
        return None if takes(jnp.int32, lambda x: x) else False
    return takes(jnp.int32, lambda x: x)


def _make_module(
    builder: Callable[..., Any], name: str, classes: int, input_shape: tuple[int, ...], options: dict[str, Any]
) -> tuple[Callable[[nnx.Rngs], Any], Any]:
    """Returns a function rngs -> module, and a module whose arrays may be abstract."""

    def make(rngs: nnx.Rngs) -> Any:
        return registry.call_checked(
            f"model {name!r}", builder, {"classes": classes, "input_shape": input_shape, "rngs": rngs}, options
        )

    is_nnx = isinstance(builder, type) and issubclass(builder, nnx.Module)
    return make, _make_abstract(make) if is_nnx else make(nnx.Rngs(0))


def _make_abstract(make: Callable[[nnx.Rngs], Any]) -> Any:
    """Returns a module of tracers, to read shapes from; `nnx.eval_shape` compares attributes, which arrays do not bear."""
    made = []
    jax.eval_shape(lambda: made.append(make(nnx.Rngs(0))))
    return made[0]


def _select_arguments(function: Callable, **given: Any) -> dict[str, Any]:
    """Returns the arguments that a function takes."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if name in parameters}


def _check_flags(name: str, function: Callable, given: str) -> None:
    """Raises ValueError if a function has a flag of training that it is not given: it would never train in training mode.

    So it does for a second input.
    """
    parameters, allowed = inspect.signature(function).parameters, given.split(", ")
    for position, (flag, parameter) in enumerate(parameters.items()):
        is_needed = parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        )
        is_flag = TRAIN_FLAG.fullmatch(flag) is not None and flag not in allowed
        if position > 1 and is_needed and not is_flag and flag not in allowed:  # after self and x
            raise ValueError(
                f"model {name!r}: {function.__name__} takes {parameter} beside its inputs, which nothing sets; it is given one "
                f"array [B, ...] and those that it names of {given}; of several inputs, pass one array with all of them side by "
                "side on its last axis, and take it apart there"
            )
        if is_flag and parameter.default is not None:
            raise ValueError(
                f"model {name!r}: {function.__name__} takes {parameter}, which nothing sets; it is given those "
                f"that it names of {given}"
            )
        if parameter.kind is parameter.VAR_KEYWORD and not ({"train", "deterministic"} & set(parameters) or _is_of_flax(function)):
            raise ValueError(
                f"model {name!r}: {function.__name__} takes {parameter}, which stays empty; it must name train=False, or "
                f"those that it uses of {given}, or leave {parameter} out; a decorator must use functools.wraps"
            )


def _is_of_flax(function: Callable) -> bool:
    return (function.__module__ or "").startswith("flax.")


def _check_head(name: str, head: Any, stats: Mapping[str, Any]) -> None:
    """Raises ValueError if a head, a method or a layer, has batch statistics or a flag of training."""
    if "head" in stats:
        raise ValueError(f"model {name!r} has batch statistics in its head, {IN_HEAD}")
    function = head if inspect.isroutine(head) else type(head).__call__
    for flag, parameter in inspect.signature(function).parameters.items():
        is_flag = flag == "mask" or TRAIN_FLAG.fullmatch(flag)
        if flag == "key" or (is_flag and parameter.default is not None):
            raise ValueError(f"model {name!r}: its head takes {parameter}, {IN_HEAD}")


def _check_takes_mask(name: str, stats: PyTree, function: Callable) -> None:
    """Raises ValueError if a module has batch statistics, and its function takes no `mask`."""
    if jax.tree.leaves(stats) and "mask" not in inspect.signature(function).parameters:
        raise ValueError(
            f"model {name!r} has batch statistics, which padding would enter: let it take mask= [B] and hand it on to its "
            "normalisation, or use group or layer normalisation"
        )


def _read_model_axes(name: str, module: Any) -> Axes:
    """Returns the module's `model_axes`.

    Raises:
      ValueError: they do not map ends of paths to axes below 0.
    """
    axes = getattr(module, "model_axes", {})
    if isinstance(axes, Mapping) and all(isinstance(e, str) and isinstance(a, int) and a < 0 for e, a in axes.items()):
        return tuple(axes.items())
    wants = 'map ends of paths to axes counted from the end, such as {"dense/kernel": -1}'
    raise ValueError(f"model {name!r}: model_axes={axes!r} must {wants}")


def _read_flattened(name: str, module: Any) -> Axes | None:
    """Returns the module's `flattened` (`task.Model`); ValueError unless it maps ends of paths to channels."""
    flattened = getattr(module, "flattened", None)
    if flattened is None:
        return None
    if isinstance(flattened, Mapping) and all(isinstance(e, str) and isinstance(c, int) and c > 0 for e, c in flattened.items()):
        return tuple(flattened.items())
    wants = 'map ends of paths to channels, such as {"dense/kernel": 64}; {} where no image is flattened'
    raise ValueError(f"model {name!r}: flattened={flattened!r} must {wants}")


def _build_model(
    name: str, init: Callable, run: Callable, head: Callable | None, prepare: Prepare, axes: Axes, flattened: Axes | None
) -> Model:
    """Builds a Model of `run`: (net, x, key, train, mask) -> (features or, without a head, logits; stats)."""

    def lacks(*_: Any, **__: Any):
        raise ValueError(f"model {name!r} gives logits alone, and the method wants its features or its head: {HEAD_HINT}")

    def masked(x: Array, mask: Array | None) -> Array:
        x = prepare(x)
        return x if mask is None else jnp.where(spread_mask(mask, x), x, jnp.zeros((), x.dtype))

    def call(net, x, key=None, train=False, mask=None):
        @substitute_kernels
        def run_network(net: Net, x: Array, key: Array | None, mask: Array | None):
            out, stats = run(net, masked(x, mask), key, train, mask)
            if not hasattr(out, "astype"):
                what = "logits [B, K]" if head is None else "features [B, D]"
                raise TypeError(f"model {name!r} must return {what}, an array, it returned a {type(out).__name__}")
            return out.astype(jnp.float32), stats

        return run_network(net, x, key, mask)

    def apply(net, x, key=None, train=False, mask=None, intermediates=False):
        out, stats = call(net, x, key, train, mask)
        outputs: dict[str, Any] = {"logits": out} if head is None else {"logits": head(net, out), "features": out}
        return (outputs | {"intermediates": {}} if intermediates else outputs), stats

    return Model(init, apply, lacks if head is None else call, head or lacks, name, model_axes=axes, flattened=flattened)


def _has_own_call(kind: type) -> bool:
    """Returns whether a class's `__call__` is neither Flax's nor the library's own."""
    owners = [base for base in kind.__mro__ if "__call__" in vars(base)]
    return bool(owners) and not owners[0].__module__.startswith(("flax.", "builtins", "fedjax_core."))


def _compare_with_call(
    name: str, kind: type, init: Callable, parted: Callable, call_alone: Callable, example: jax.ShapeDtypeStruct
) -> None:
    """Warns, once for a class, if its `__call__` gives other logits than its head of its body, which are what is used.

    Nothing is computed where both trace to the same program.
    """
    if kind in _COMPARED:
        return
    example = jax.ShapeDtypeStruct((2, *example.shape[1:]), example.dtype)
    functions = [parted, lambda net, x: call_alone(net, x).astype(jnp.float32)]
    try:
        shapes = jax.eval_shape(init, jax.random.key(0))
        programs = {str(jax.make_jaxpr(function)(shapes, example)) for function in functions}
        if len(programs) > 1:
            drawn = np.random.default_rng(0).normal(size=example.shape)
            x = np.abs(drawn).astype(example.dtype)
            net = jax.jit(init)(jax.random.key(0))
            ours, alone = (np.asarray(jax.jit(function)(net, x)) for function in functions)
            if ours.shape != alone.shape or not np.allclose(ours, alone, rtol=1e-2, atol=1e-3):
                log.warning("model %r: its __call__ gives something else than head(body(x)), which is used in its place", name)
    except Exception:  # somebody else's code, which may be called in another way
        return
    _COMPARED.add(kind)


_COMPARED: weakref.WeakSet[type] = weakref.WeakSet()  # classes whose `__call__` was compared


def _warn_of_outputs_and_weights(model: Model, kind: type, example: jax.ShapeDtypeStruct) -> None:
    """Warns, once for a builder, if its outputs are those of a softmax or a sigmoid, which losses and scores apply to logits.

    And if all its initial weights are the same for every seed: runs of several seeds would differ less than they should.
    Not if they are constants, such as the zeros of a logistic regression.
    """
    names = _ENDS_READ.setdefault(kind, set())
    if model.name in names:
        return
    try:
        init, net = jax.make_jaxpr(model.init, return_shape=True)(jax.random.key(0))
        jaxpr = jax.make_jaxpr(lambda net, x: model.apply(net, x)[0]["logits"])(net, example).jaxpr
    except Exception:  # somebody else's code, which may be called in another way
        return
    names.add(model.name)
    if end := _find_end(jaxpr):
        log.warning("model %r ends in a %s: losses and scores take logits, which are its inputs", model.name, end)
    if not _reads_inputs(init.jaxpr, init.jaxpr.invars) and not _is_constant(model):
        log.warning(
            "model %r begins with the same weights for every seed; if they should differ, draw them from the rngs= that its "
            "constructor may take",
            model.name,
        )


# By class the builders whose last operation was read: several may return one class, such as nnx.Sequential.
_ENDS_READ: weakref.WeakKeyDictionary[type, set[str]] = weakref.WeakKeyDictionary()


def _is_constant(model: Model) -> bool:
    """Returns whether each array of the initial weights has one value throughout, such as 0: nothing of it is drawn."""
    return all(np.ptp(leaf) == 0 for leaf in map(np.asarray, jax.tree.leaves(model.init(jax.random.key(0)).params)) if leaf.size)


def _reads_inputs(jaxpr: Any, inputs: Sequence[Any]) -> bool:
    """Returns whether any output of a jaxpr depends on these of its inputs, where every part reads all that it is given."""
    reached = set(inputs)
    for equation in jaxpr.eqns:
        if any(variable in reached for variable in equation.invars if not hasattr(variable, "val")):  # literals have one
            reached.update(equation.outvars)
    return any(variable in reached for variable in jaxpr.outvars if not hasattr(variable, "val"))


def _draws(init: Callable, evaluate: Callable, example: jax.ShapeDtypeStruct) -> bool:
    """Returns whether an evaluation, (net, x, key) -> outputs, depends on its key; nothing is computed where no output reads it."""
    x = jnp.ones((2, *example.shape[1:]), example.dtype)
    try:
        jaxpr = jax.make_jaxpr(evaluate)(jax.eval_shape(init, jax.random.key(0)), x, jax.random.key(0)).jaxpr
        if not _reads_inputs(jaxpr, jaxpr.invars[-1:]):
            return False
        net = jax.jit(init)(jax.random.key(0))  # a part such as nnx.remat reads its streams, and may not draw from them
        one, other = (np.asarray(jax.jit(evaluate)(net, x, jax.random.key(seed))) for seed in (0, 1))
    except Exception:  # somebody else's code, which may be called in another way
        return False
    return not np.array_equal(one, other, equal_nan=True)


def _find_end(jaxpr: Any) -> str:
    """Returns "softmax" or "sigmoid" if the first output of a jaxpr is one, else ""."""
    made_by = {out: equation for equation in jaxpr.eqns for out in equation.outvars}
    last = made_by.get(jaxpr.outvars[0])
    while last is not None and last.primitive.name in ("convert_element_type", "reshape", "copy"):
        last = made_by.get(last.invars[0])
    if last is None:
        return ""
    inside = last.params.get("jaxpr", last.params.get("call_jaxpr"))
    if inside is not None and last.primitive.name in ("jit", "pjit", "custom_jvp_call"):
        return _find_end(getattr(inside, "jaxpr", inside))
    divided = made_by.get(last.invars[0]) if last.primitive.name == "div" else None
    is_softmax = divided is not None and divided.primitive.name == "exp"
    return "softmax" if is_softmax else "sigmoid" if last.primitive.name == "logistic" else ""


def _build_nnx(
    make: Callable[[nnx.Rngs], Any], name: str, example: jax.ShapeDtypeStruct, prepare: Prepare, stats_mode: str
) -> Model:
    split = lambda module: nnx.split(module, nnx.Param, nnx.BatchStat, nnx.RngState, nnx.Variable, ...)
    abstract = _make_abstract(make)
    graphdef, *states, constants = split(abstract)
    if any(isinstance(value, jax.Array | np.ndarray) for _, value in nnx.iter_graph(abstract)):
        with jax.ensure_compile_time_eval():  # arrays that are no variables: a real module alone has their numbers
            graphdef, *_, constants = split(make(nnx.Rngs(0)))
    params, stats, streams, others = (jax.tree.map(jax.typeof, nnx.to_pure_dict(state)) for state in states)
    if jax.tree.leaves(others):
        raise ValueError(f"model {name!r} has variables besides Param, BatchStat and random streams: {others}")
    has_parts = hasattr(abstract, "body") and hasattr(abstract, "head")
    named = type(abstract).body if has_parts else type(abstract).__call__
    _check_flags(name, named, "train, mask, key")
    if has_parts:
        _check_head(name, abstract.head, stats)
    _check_takes_mask(name, stats, named)

    def init(key: Array) -> Net:
        _, params, stats, *_ = split(make(nnx.Rngs(key)))
        return Net(nnx.to_pure_dict(params), nnx.to_pure_dict(stats))

    def module_of(net: Net, key: Array | None) -> Any:
        """Returns the module with a net's arrays and streams from `key`; entries that the net lacks must not be used."""
        leaves, structure = jax.tree.flatten(streams)
        start = jax.random.key(0) if key is None else key
        fresh = [
            jax.random.fold_in(start, i) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jnp.zeros(leaf.shape, leaf.dtype)
            for i, leaf in enumerate(leaves)
        ]
        return nnx.merge(graphdef, params | net.params, stats | (net.stats or {}), structure.unflatten(fresh), constants)

    def run(net, x, key, train, mask):
        module = module_of(net, key)
        module.train() if train else module.eval()
        frozen = train and stats_mode == "freeze"
        if frozen:
            module.set_attributes(use_running_average=True, raise_if_not_found=False)
        before = jax.tree.leaves(nnx.state(module, nnx.BatchStat))
        call = module.body if has_parts else module
        out = call(x, **_select_arguments(named, train=train, mask=mask, key=key))
        out = out[0] if isinstance(out, tuple) else out
        after = nnx.state(module, nnx.BatchStat)
        if frozen and any(new is not old for new, old in zip(jax.tree.leaves(after), before, strict=True)):
            raise ValueError(f"model {name!r} {FROZEN}")
        return out, nnx.to_pure_dict(after) if train and not frozen else net.stats

    def head(net: Net, features: Array) -> Array:
        module = module_of(net, None)
        module.train()
        find_moving = lambda: jax.tree.leaves(nnx.state(module, nnx.Any(nnx.BatchStat, nnx.RngState)))
        before, logits = find_moving(), module.head(features)
        if any(new is not old for new, old in zip(find_moving(), before, strict=True)):
            raise ValueError(f"model {name!r} {DRAWS_IN_HEAD}")
        return logits.astype(jnp.float32)

    def call_alone(net: Net, x: Array) -> Array:
        module = module_of(net, None)
        module.eval()
        return module(x, **_select_arguments(type(abstract).__call__, train=False, mask=None, key=None))

    if jax.tree.leaves(streams) and _draws(init, lambda net, x, key: run(net, x, key, False, None)[0], example):
        raise ValueError(f"model {name!r} {DRAWS_ALWAYS}")
    if has_parts and _has_own_call(type(abstract)):
        _compare_with_call(
            name, type(abstract), init, lambda net, x: head(net, run(net, x, None, False, None)[0]), call_alone, example
        )
    return _build_model(
        name, init, run, head if has_parts else None, prepare, _read_model_axes(name, abstract), _read_flattened(name, abstract)
    )


def _find_head(module: linen.Module) -> Any:
    """Returns the `head` of a Linen module, a method, a field, or a layer of its `setup`; None: it has none."""
    answers = []
    note = lambda module: answers.append(getattr(module, "head", None))
    jax.eval_shape(lambda key: module.init({"params": key, "dropout": key}, method=note), jax.random.key(0))
    return answers[-1]


def _use_running_statistics(call: Callable, args: tuple, kwargs: dict[str, Any], context: linen.module.InterceptorContext) -> Any:
    """Makes Linen's batch normalization use its running statistics, whatever its arguments."""
    if isinstance(context.module, linen.BatchNorm) and type(context.module).__call__ is linen.BatchNorm.__call__:
        object.__setattr__(context.module, "use_running_average", True)  # the module lives for this call only
        args, kwargs = args[:1], kwargs | {"use_running_average": None}
    return call(*args, **kwargs)


@contextlib.contextmanager
def _freeze_statistics(name: str):
    """Freezes the statistics of Linen modules inside the block."""
    try:
        with linen.intercept_methods(_use_running_statistics):
            yield
    except errors.ModifyScopeVariableError:
        raise ValueError(f"model {name!r} {FROZEN}") from None


def _build_linen(module: linen.Module, name: str, example: jax.ShapeDtypeStruct, prepare: Prepare, stats_mode: str) -> Model:
    own_head = _find_head(module) if hasattr(type(module), "body") else None
    has_parts = own_head is not None
    named = getattr(type(module), "body" if has_parts else "__call__")
    _check_flags(name, named, "train, mask, key, deterministic")
    for field in dataclasses.fields(module):
        if TRAIN_FLAG.fullmatch(field.name) and isinstance(value := getattr(module, field.name), bool):
            raise ValueError(
                f"model {name!r} has the field {field.name}={value}, the same in training and in evaluation; let "
                f"{named.__name__} take train=False in its place"
            )

    def variables(key: Array) -> dict[str, PyTree]:
        def whole(module, x):
            given = _select_arguments(named, train=False, mask=None, key=None, deterministic=True)
            return module.head(module.body(x, **given)) if has_parts else module(x, **given)

        return dict(module.init({"params": key, "dropout": key}, jnp.zeros(example.shape, example.dtype), method=whole))

    shapes = jax.eval_shape(variables, jax.random.key(0))
    if others := set(shapes) - {"params", "batch_stats"}:
        raise ValueError(f"model {name!r} has variables besides params and batch_stats: {', '.join(sorted(others))}")
    if has_parts:
        _check_head(name, own_head, shapes.get("batch_stats", {}))
    _check_takes_mask(name, shapes.get("batch_stats", {}), named)
    if has_parts and "head" not in shapes["params"]:
        raise ValueError(
            f"model {name!r} has a method head whose layer is none of its params {', '.join(shapes['params'])}: name it head"
        )

    def init(key: Array) -> Net:
        initial = variables(key)
        return Net(initial["params"], initial.get("batch_stats", {}))

    def collections(net: Net) -> dict[str, PyTree]:
        return {"params": net.params} | ({"batch_stats": net.stats} if net.stats else {})

    def run(net, x, key, train, mask):
        try:
            return run_drawing(net, x, key, train, mask)
        except errors.InvalidRngError as error:
            raise ValueError(f"model {name!r} {DRAWS_ALWAYS}") from error

    def run_drawing(net, x, key, train, mask):
        rngs = {} if key is None else {"dropout": key, "params": jax.random.fold_in(key, 1)}  # "params" is for all other names
        given = _select_arguments(named, train=train, mask=mask, key=key, deterministic=not train)
        method = "body" if has_parts else None
        call = lambda **more: module.apply(collections(net), x, rngs=rngs, method=method, **given, **more)
        if not train or not net.stats:
            return call(), net.stats
        if stats_mode == "freeze":
            with _freeze_statistics(name):
                return call(), net.stats
        out, moved = call(mutable=["batch_stats"])
        return out, dict(moved)["batch_stats"]

    def head(net: Net, features: Array) -> Array:
        try:
            return jnp.asarray(module.apply(collections(net), features, method=lambda m, z: m.head(z))).astype(jnp.float32)
        except (errors.InvalidRngError, errors.ModifyScopeVariableError):
            raise ValueError(f"model {name!r} {DRAWS_IN_HEAD}") from None

    def call_alone(net: Net, x: Array) -> Array:
        given = _select_arguments(type(module).__call__, train=False, mask=None, key=None, deterministic=True)
        return jnp.asarray(module.apply(collections(net), x, **given))

    if has_parts and _has_own_call(type(module)):
        _compare_with_call(
            name, type(module), init, lambda net, x: head(net, jnp.asarray(run(net, x, None, False, None)[0])), call_alone, example
        )
    return _build_model(
        name, init, run, head if has_parts else None, prepare, _read_model_axes(name, module), _read_flattened(name, module)
    )
