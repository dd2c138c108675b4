"""Arrays of a checkpoint: leaves of a state as named host arrays, and their files by Orbax.

Only this module uses Orbax. It is imported with the first checkpoint: the import takes about as
long as that of jax, and no run should wait for it before its first round.
"""

import collections
import concurrent.futures
import contextlib
import errno
import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import PyTree

T = TypeVar("T")
ENTRY = {"path": str, "dtype": str, "shape": [int], "stored": bool}  # schema of a leaf's entry in leaves.json


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays, none of them empty, into a new directory; raises OSError."""

    def write() -> None:
        import orbax.checkpoint as ocp

        with _make_checkpointer() as checkpointer:
            checkpointer.save(path, args=ocp.args.PyTreeSave(arrays))

    _call_orbax(write)


def read_arrays(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Reads arrays of `write_arrays`; raises OSError."""

    def read() -> dict[str, np.ndarray]:
        import orbax.checkpoint as ocp

        host = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        with _make_checkpointer() as checkpointer:
            return checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=host))

    return _call_orbax(read)


def _make_checkpointer() -> Any:
    """Returns an Orbax checkpointer for host arrays that does not wait for other processes."""
    import orbax.checkpoint as ocp

    this_process = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(),
        active_processes={jax.process_index()},
        barrier_sync_key_prefix=f"process{jax.process_index()}",
    )
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, multiprocessing_options=this_process)
    return ocp.Checkpointer(handler, multiprocessing_options=this_process)


def _call_orbax(call: Callable[[], T]) -> T:
    """Runs a call without Orbax's logs, and turns any of its errors into an OSError.

    It runs in a thread of its own: a notebook's thread already has an event loop.
    """
    with _silence_logger("absl"), concurrent.futures.ThreadPoolExecutor(1) as thread:
        before, sys.unraisablehook = sys.unraisablehook, _ignore_closed_loop(sys.unraisablehook)
        try:
            result = thread.submit(call).result()
            sys.unraisablehook = before  # kept after a failure: pending writes still report to a closed loop
            return result
        except (OSError, MemoryError):
            raise
        except Exception as error:  # tensorstore reports a full disk as a ValueError
            if code := re.search(r"os_error_code='(\d+)'", str(error)):
                raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
            text = str(error).partition("\n")[0].partition(" [tensorstore_spec=")[0]
            raise OSError(errno.EIO, text or type(error).__name__) from error


def _ignore_closed_loop(hook: Callable) -> Callable:
    """Returns an unraisablehook without what TensorStore's threads report to a closed event loop."""

    def filtered(unraisable: Any) -> None:
        if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
            hook(unraisable)

    return filtered


@contextlib.contextmanager
def _silence_logger(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    refuse = lambda record: False
    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Returns the leaves of a state with their names in messages: "server/net/params/0/kernel".

    Raises:
      ValueError: two leaves have one name.
    """
    leaves = jax.tree.leaves_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") or "the state" for path, _ in leaves]
    if repeated := [name for name, count in collections.Counter(names).items() if count > 1]:
        raise ValueError(f"two leaves are called {repeated[0]}; keys in the state must differ as strings")
    return [(name, leaf) for name, (_, leaf) in zip(names, leaves, strict=True)]


def _dtype_and_shape(name: str, leaf: Any) -> tuple[str, list[int]]:
    """Returns a leaf's dtype and shape; of keys "key<fry>", of Python numbers "int" ....

    Raises:
      TypeError: the leaf is neither a number nor an array of numbers or keys.
    """
    if _is_python_number(leaf):
        return type(leaf).__name__, []
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not (_is_key(leaf) or (np.dtype(dtype).kind in "biufcV" and np.dtype(dtype).names is None)):
        what = f"{type(leaf).__name__} of {dtype}" if dtype is not None else type(leaf).__name__
        raise TypeError(f"{name} is a {what}; a checkpoint holds arrays of numbers, anything else goes into its record")
    return str(dtype), list(leaf.shape)


def _is_python_number(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic)  # np.float64 is a float


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_impl(like: Any) -> Any:
    """Returns the generator of an array of keys or its ShapeDtypeStruct."""
    impls = []
    jax.eval_shape(lambda keys: impls.append(jax.random.key_impl(keys)), jax.ShapeDtypeStruct(like.shape, like.dtype))
    return impls[0]


def to_host(name: str, leaf: Any) -> tuple[dict[str, Any], np.ndarray | None]:
    """Returns a leaf's entry for leaves.json, and its bits for Orbax unless it is empty.

    Raises:
      ValueError: the leaf is sharded over several processes.
    """
    dtype, shape = _dtype_and_shape(name, leaf)
    if isinstance(leaf, jax.Array):
        if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            raise ValueError(f"{name} is sharded over several processes; gather or replicate it before saving")
        leaf = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    host = np.asarray(leaf)
    if host.dtype.isbuiltin != 1:  # bfloat16 and the like, stored as ints
        host = np.ascontiguousarray(host).view(f"uint{8 * host.dtype.itemsize}").reshape(host.shape)
    stored = host.size > 0  # Orbax refuses empty arrays
    return {"path": name, "dtype": dtype, "shape": shape, "stored": stored}, host if stored else None


def from_host(entry: Mapping[str, Any], host: np.ndarray | None, like: Any) -> Any:
    """Inverts `to_host`; the leaf has the type and the sharding of `like`."""
    dtype, shape = entry["dtype"], entry["shape"]
    if _is_python_number(like):
        return np.asarray(host).item()
    sharding = like.sharding if isinstance(like, jax.ShapeDtypeStruct) or getattr(like, "committed", False) else None
    if _is_key(like):
        key_data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(like.shape, like.dtype))
        data = np.empty(key_data.shape, key_data.dtype) if host is None else host
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


def check_leaves(checkpoint: Path, entries: list[dict[str, Any]], like: list[tuple[str, Any]]) -> None:
    """Raises ValueError for the first leaf that is missing, unexpected or of another kind."""

    def show(kind: tuple[str, list[int]] | None) -> str:
        return "nothing" if kind is None else f"{kind[0]}[{','.join(map(str, kind[1]))}]"

    saved = {entry["path"]: (entry["dtype"], entry["shape"]) for entry in entries}
    wanted = {name: _dtype_and_shape(name, leaf) for name, leaf in like}
    wrong = [name for name in dict.fromkeys([*wanted, *saved]) if saved.get(name) != wanted.get(name)]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{checkpoint} does not fit this run: leaf {wrong[0]} is {show(saved.get(wrong[0]))} there, "
            f"{show(wanted.get(wrong[0]))} is wanted{more}; resume with the method, model and data that wrote it"
        )
    for name, leaf in like:
        if isinstance(leaf, jax.ShapeDtypeStruct) and not _is_key(leaf) and jnp.result_type(leaf) != leaf.dtype:
            raise ValueError(f"leaf {name} is wanted as a jax array of {leaf.dtype}, which needs jax_enable_x64")
