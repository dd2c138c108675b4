"""What the functions of a method must return. Shapes alone tell it: nothing here enters a program."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import PER_ROW, Algorithm, Array, ClientOutput, PyTree, Reduce, targets_of
from fedjax_core.training.metrics import finalizer


def name_of(build: Any) -> str:
    """The name of the function behind what builds a method."""
    while isinstance(build, functools.partial) or hasattr(build, "__wrapped__"):
        build = build.func if isinstance(build, functools.partial) else build.__wrapped__
    return getattr(build, "__name__", "the method")


def algorithm(made: Any, build: Any) -> Algorithm:
    """What a method's builder returned.

    Raises:
      TypeError: it is no Algorithm.
    """
    if not isinstance(made, Algorithm):
        raise TypeError(f"{name_of(build)} must return a fedjax_core.algorithm.Algorithm, it returned {_type(made)}")
    return made


def output(out: Any, collect: PyTree) -> ClientOutput:
    """What `client_update` returned.

    Args:
      out: it.
      collect: the method's, a tree prefix of the uplink.

    Raises:
      TypeError: it is no ClientOutput; its metrics are no pairs of numbers by name; `collect` has something else than a Reduce.
      ValueError: `collect` has not the uplink's structure.
    """
    if not isinstance(out, ClientOutput):
        raise TypeError(f"client_update must return a fedjax_core.algorithm.ClientOutput, it returned {_type(out)}")
    pairs(out.metrics, "client_update: the metrics of a ClientOutput must be {name: (sum, weight)}")
    parts, structure = jax.tree.flatten(collect, is_leaf=lambda x: isinstance(x, Reduce))
    if other := [part for part in parts if not isinstance(part, Reduce)]:
        raise TypeError(f"collect must have a fedjax_core.algorithm.Reduce for each part of the uplink, it has {_type(other[0])}")
    try:
        structure.flatten_up_to(out.uplink)
    except (ValueError, TypeError):
        raise ValueError(
            "collect must have the uplink's structure, with a Reduce for an array or for a whole branch of it: "
            f"{structure} against {jax.tree.structure(out.uplink)}"
        ) from None
    return out


def pairs(found: Any, wants: str) -> None:
    """Raises TypeError with what it `wants` unless there are pairs of numbers by name."""
    wants += ", each of the two one number"
    if not isinstance(found, Mapping):
        raise TypeError(f"{wants}; found {_type(found)}")
    for name, pair in found.items():
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise TypeError(f"{wants}; {name!r} is {_type(pair)}")
        if shapes := [shape for part in pair if (shape := _shape(part)) != ()]:
            has = "no number" if shapes[0] is None else f"an array of shape {list(shapes[0])}"
            raise TypeError(f"{wants}; {name!r} has {has}")


def scored(name: str, score: Callable, found: Any) -> Any:
    """Returns what a score of `evaluation.scores` gave: a pair, or of a score with `finalize` sums of at least 32 bits.

    Args:
      name: its name in the records.
      score: it.
      found: what it returned.

    Raises:
      TypeError: a score with `finalize` gave something else than numbers and arrays of numbers; another one no pair of numbers.
    """
    if finalizer(score) is None:
        try:
            pairs({name: found}, "a score of evaluation.scores must return (sum, weight)")
        except TypeError as error:
            raise TypeError(f"{error}; a score that is no mean of rows needs a function `finalize`") from None
        return found
    leaves, wants = jax.tree.leaves(found), f"score {name!r} of evaluation.scores must return numbers and arrays of numbers"
    if not leaves:
        raise TypeError(f"{wants}; found {_type(found)} without any")
    for leaf in leaves:
        is_number = isinstance(leaf, int | float) and not isinstance(leaf, bool)
        if not is_number and not any(jnp.issubdtype(getattr(leaf, "dtype", bool), kind) for kind in (jnp.integer, jnp.floating)):
            raise TypeError(f"{wants}, which are added up; found {_type(leaf)}")
    to_32_bits = lambda leaf: jnp.asarray(leaf, jnp.promote_types(jnp.result_type(leaf), _smallest(leaf)))
    return jax.tree.map(to_32_bits, found)


def _smallest(leaf: Any) -> Any:
    """The smallest type in which sums of such numbers keep their digits."""
    return jnp.float32 if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else jnp.int32


def updated(result: Any) -> tuple[PyTree, dict[str, Any]]:
    """What `server_update` returned, with metrics, if only `{}`.

    Raises:
      TypeError: it is no pair of a state and metrics.
    """
    if not isinstance(result, tuple) or len(result) != 2 or hasattr(result, "_fields"):
        found = f"a tuple of {len(result)}" if type(result) is tuple else _type(result)
        raise TypeError(f"server_update must return (state, metrics), metrics being {{name: (sum, weight)}}; it returned {found}")
    server, said = result
    said = {} if said is None else said
    pairs(said, "server_update: the metrics must be {name: (sum, weight)}")
    return server, said


def predicted(outputs: Any, name: str, group: str, y: Array, classes: int, *, more: bool = False) -> None:
    """Raises unless a predictor gives logits that can be scored.

    Args:
      outputs: what it returned for some rows.
      name: the predictor's.
      group: the name of the clients' group, which says what network they have.
      y: these rows' targets.
      classes: K.
      more: whether there may be more logits than classes, as where the public examples have classes of their own.

    Raises:
      TypeError: they are no mapping that has "logits".
      ValueError: the logits have another shape than [rows, K].
    """
    if not isinstance(outputs, Mapping) or "logits" not in outputs:
        found = f"only {', '.join(map(repr, outputs))}" if isinstance(outputs, Mapping) else _type(outputs)
        raise TypeError(f'group {group!r}: predict[{name!r}] must return {{"logits": [B, K], ...}}, it returned {found}')
    if "targets" in outputs or (kind := targets_of(y)) not in PER_ROW:
        return
    wanted = (*y.shape, classes) if kind == "classes" else y.shape
    found = _shape(outputs["logits"]) or ()
    wider = more and found[:-1] == wanted[:-1] and found[-1:] > wanted[-1:]
    if found != wanted and not wider:
        need = f"the data's {classes} classes need" if kind == "classes" else f"{kind} need"
        gives = f"group {group!r}: predict[{name!r}] gives logits of shape {list(found)} for {len(y)} rows"
        raise ValueError(f"{gives}, {need} {list(wanted)}")


def same(wanted: PyTree, found: PyTree, why: str) -> None:
    """Raises ValueError unless two pytrees agree in structure, shapes and dtypes, naming the first leaf that does not."""

    def described(tree):
        return {
            jax.tree_util.keystr(path) or "the whole": f"{leaf.dtype}{list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }

    wanted, found = jax.eval_shape(lambda: (wanted, found))
    a, b = described(wanted), described(found)
    for path in [*a, *b]:
        if a.get(path) != b.get(path):
            raise ValueError(f"{why}: at {path}, {a.get(path, 'nothing')} against {b.get(path, 'nothing')}")
    if jax.tree.structure(wanted) != jax.tree.structure(found):
        raise ValueError(f"{why}: {jax.tree.structure(wanted)} against {jax.tree.structure(found)}")


def _shape(value: Any) -> tuple[int, ...] | None:
    """Of an array or a number; None of anything else."""
    if isinstance(value, bool | int | float | complex):
        return ()
    return getattr(value, "shape", None)


def _type(value: Any) -> str:
    if hasattr(value, "dtype"):  # of a tracer the type's name tells nothing
        return f"an array {value.dtype}{list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
