"""Leaves of a state as host arrays with a description of each, and back in the form and at the place that is wanted."""

import collections
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import PyTree

ENTRY = {"path": str, "dtype": str, "shape": [int], "stored": bool}  # what describes a leaf, as JSON has it


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Leaves under the names that errors and leaves.json call them: "server/net/params/0/kernel"."""
    found = jax.tree.leaves_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") or "the state" for path, _ in found]
    if twice := [name for name, count in collections.Counter(names).items() if count > 1]:
        raise ValueError(f"two leaves are called {twice[0]}; keys in the state must be told apart without their types")
    return [(name, leaf) for name, (_, leaf) in zip(names, found, strict=True)]


def _kind(name: str, leaf: Any) -> tuple[str, list[int]]:
    """Dtype and shape of a leaf: "float32", of keys "key<fry>" and the shape of the keys, of Python numbers "int" ..."""
    if _is_number(leaf):
        return type(leaf).__name__, []
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not (_is_key(leaf) or (np.dtype(dtype).kind in "biufcV" and np.dtype(dtype).names is None)):
        what = f"{type(leaf).__name__} of {dtype}" if dtype is not None else type(leaf).__name__
        raise TypeError(f"{name} is a {what}; a checkpoint holds arrays of numbers, anything else goes into its record")
    return str(dtype), list(leaf.shape)


def _is_number(leaf: Any) -> bool:
    """Whether a leaf is Python's own number; np.float64 is a float too, but not this."""
    return isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_impl(like: Any) -> Any:
    """Which generator the keys are for, of an array of keys or its ShapeDtypeStruct."""
    found = []
    jax.eval_shape(lambda keys: found.append(jax.random.key_impl(keys)), jax.ShapeDtypeStruct(like.shape, like.dtype))
    return found[0]


def to_host(name: str, leaf: Any) -> tuple[dict[str, Any], np.ndarray | None]:
    """A leaf's entry in leaves.json, and its bits as Orbax takes them; None if there are none."""
    dtype, shape = _kind(name, leaf)
    if isinstance(leaf, jax.Array):
        if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            raise ValueError(f"{name} is spread over several processes; gather or replicate it before saving")
        leaf = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    host = np.asarray(leaf)
    if host.dtype.isbuiltin != 1:  # bfloat16 and its like: the integers that their bits are
        host = np.ascontiguousarray(host).view(f"uint{8 * host.dtype.itemsize}").reshape(host.shape)
    stored = host.size > 0  # Orbax refuses arrays without elements
    return {"path": name, "dtype": dtype, "shape": shape, "stored": stored}, host if stored else None


def from_host(entry: Mapping[str, Any], host: np.ndarray | None, like: Any) -> Any:
    """`to_host` undone, in the form and at the place of `like`."""
    dtype, shape = entry["dtype"], entry["shape"]
    if _is_number(like):
        return np.asarray(host).item()
    sharding = like.sharding if isinstance(like, jax.ShapeDtypeStruct) or getattr(like, "committed", False) else None
    if _is_key(like):
        form = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(like.shape, like.dtype))
        data = np.empty(form.shape, form.dtype) if host is None else host
        wrap = functools.partial(jax.random.wrap_key_data, impl=_key_impl(like))
        if sharding is not None and not sharding.is_fully_addressable:
            return jax.jit(wrap, out_shardings=sharding)(data)
        keys = wrap(jnp.asarray(data))
        return keys if sharding is None else jax.device_put(keys, sharding)
    array = np.empty(shape, np.dtype(dtype)) if host is None else host.view(np.dtype(dtype))
    if isinstance(like, np.generic):
        return array[()]
    if isinstance(like, np.ndarray):
        return array if array.flags.writeable else array.copy()
    if sharding is None:
        return jnp.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def check_leaves(place: Path, entries: list[dict[str, Any]], like: list[tuple[str, Any]]) -> None:
    """Raises ValueError for the first leaf in which a checkpoint is not what is wanted."""

    def show(kind: tuple[str, list[int]] | None) -> str:
        return "nothing" if kind is None else f"{kind[0]}[{','.join(map(str, kind[1]))}]"

    found = {entry["path"]: (entry["dtype"], entry["shape"]) for entry in entries}
    wanted = {name: _kind(name, leaf) for name, leaf in like}
    names = [*wanted, *(name for name in found if name not in wanted)]
    wrong = [name for name in names if found.get(name) != wanted.get(name)]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{place} does not fit this run: leaf {wrong[0]} is {show(found.get(wrong[0]))} there, "
            f"{show(wanted.get(wrong[0]))} is wanted{more}; resume with the method, model and data that wrote it"
        )
    for name, leaf in like:
        if isinstance(leaf, jax.ShapeDtypeStruct) and not _is_key(leaf) and jnp.result_type(leaf) != leaf.dtype:
            raise ValueError(f"leaf {name} is wanted as a jax array of {leaf.dtype}, which needs jax_enable_x64")
