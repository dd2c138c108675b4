"""Digests of functions and classes that no file holds, such as those of a notebook, or that hold values of a process.

A digest is of bytecode, constants, closures, arguments of `functools.partial`, fields and arrays, and of what a function
without a file reads of its module. Of what a file defines it takes the name, and the files.
"""

import contextlib
import dataclasses
import dis
import functools
import hashlib
import logging
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen
from ml_collections import ConfigDict

from fedjax_core import code_fingerprint
from fedjax_core.code_fingerprint import Named

GIVEN = "given in Python"  # the origin of what `registry.register_in_process` was given
CONSTANTS = (type(None), bool, int, float, complex, str, bytes, range, slice, type(...), np.dtype)
OF_A_CLASS = (
    *("__module__", "__qualname__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__hash__"),
    *("__annotate__", "__annotate_func__"),  # from Python 3.14
)
log = logging.getLogger("fedjax_core")


def digest_given(named: Iterable[Named]) -> dict[str, str]:
    """Returns the digests, by their names, of those objects that were given in Python or that no file holds.

    What cannot be digested is left out, and a warning names it.
    """
    given = {id(each): each for each, origin in named if origin == GIVEN or not _has_source(origin.partition(":")[0])}
    digests: dict[str, list[str]] = {}
    for each in given.values():
        name, digest = _name(each), _Digest()
        parts = [digest.of(each), *code_fingerprint.hash_own_files(digest.files).values()]
        digests.setdefault(name, []).append(_hash(parts)[:16])
        if digest.unknown:
            what = f"{name!r}, given in Python, holds objects of {', '.join(sorted(digest.unknown))}, which cannot be compared"
            log.warning("%s: a run goes on in its directory even if they have changed", what)
    return {name: " ".join(sorted(each)) for name, each in digests.items()}


def _name(given: Any) -> str:
    while isinstance(given, functools.partial) and not hasattr(given, "__qualname__"):
        given = given.func
    return getattr(given, "__qualname__", type(given).__name__).rpartition(".")[2]


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _has_source(module: str) -> bool:
    """Returns whether a module, or a file that a config names, is from a file or built into Python."""
    found = sys.modules.get(module)
    return found is None or bool(getattr(found, "__file__", None) or getattr(found, "__spec__", None))


def _is_importable(value: Any) -> bool:
    """Returns whether a module with a source has this object under its name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or module not in sys.modules or not _has_source(module):
        return False
    holder: Any = sys.modules[module]
    for part in name.split("."):
        holder = getattr(holder, part, None)
    return holder is value


class _Digest:
    """The digest of an object and of what it holds.

    Attributes:
      files: what was found that files hold, as `code_fingerprint.find_own_files` takes it.
      unknown: types of objects that could not be digested.
    """

    def __init__(self):
        self.files: list[Named] = []
        self.unknown: set[str] = set()
        self._done: dict[int, tuple[str, Any]] = {}  # with the objects, so that no other one gets their ids
        self._active: set[int] = set()

    def of(self, value: Any) -> str:
        """Returns the digest of an object."""
        if id(value) in self._done:
            return self._done[id(value)][0]
        if id(value) in self._active:
            return "cycle"
        self._active.add(id(value))
        result = _hash([type(value).__qualname__, *self._parts(value)])
        self._active.remove(id(value))
        self._done[id(value)] = result, value
        return result

    def _each(self, values: Iterable[Any]) -> Iterator[str]:
        return map(self.of, values)

    def _parts(self, value: Any) -> Iterable[str]:
        if isinstance(value, CONSTANTS):
            return [repr(value)]
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._parts_of_array(value)
        if isinstance(value, set | frozenset):
            return sorted(self._each(value))
        if isinstance(value, ConfigDict):
            value = value.to_dict()
        if isinstance(value, Mapping):
            return self._each(item for pair in value.items() for item in pair)
        if isinstance(value, list | tuple):
            return self._each(value)
        if isinstance(value, types.CodeType):
            counts = value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags
            names = value.co_names, value.co_varnames, value.co_freevars
            return [value.co_code.hex(), repr((counts, names)), *self._each(value.co_consts)]
        if isinstance(value, types.ModuleType):
            self.files.append((value, value.__name__))  # pyright: ignore[reportArgumentType]
            return [value.__name__]
        if _is_importable(value):
            self.files.append((value, value.__module__))
            return [f"{value.__module__}:{value.__qualname__}"]
        if isinstance(value, functools.partial):
            return self._each((value.func, value.args, value.keywords))
        if isinstance(value, types.MethodType):
            return self._each((value.__func__, value.__self__))
        if isinstance(value, types.FunctionType):
            return self._each((value.__code__, value.__defaults__, value.__kwdefaults__, *self._read_by(value)))
        if isinstance(value, type):
            inside = {name: part for name, part in vars(value).items() if name not in OF_A_CLASS and _is_written(name, part)}
            return self._each((value.__qualname__, value.__bases__, inside))
        return self._parts_of_instance(value)

    def _parts_of_instance(self, value: Any) -> Iterable[str]:
        kind = type(value)
        if isinstance(value, staticmethod | classmethod):
            return [self.of(value.__func__)]
        if isinstance(value, property):
            return self._each((value.fget, value.fset))
        if isinstance(value, functools.cached_property):
            return [self.of(value.func)]
        if hasattr(value, "__wrapped__"):  # such as by jax.jit
            return [self.of(value.__wrapped__)]
        if dataclasses.is_dataclass(value):
            skipped = ("parent",) if isinstance(value, linen.Module) else ()
            names = [field.name for field in dataclasses.fields(value) if field.name not in skipped]
            return self._each((kind, *(getattr(value, name, None) for name in names)))
        if getattr(value, "__dict__", None) == {}:  # such as a sentinel
            return [self.of(kind)]
        if hasattr(value, "__dict__") and not code_fingerprint.is_installed(kind):
            return self._each((kind, {name: x for name, x in vars(value).items() if not _is_cached(kind, name)}))
        self.unknown.add(f"{kind.__module__}.{kind.__qualname__}")
        return []

    def _parts_of_array(self, value: Any) -> Iterable[str]:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.asarray(value)
        if array.dtype == object:
            return self._each(array.tolist())
        return [str(array.dtype), repr(array.shape), hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).data).hexdigest()]

    def _read_by(self, function: types.FunctionType) -> Iterator[Any]:
        """Yields what a function reads of its closure, and, if no file holds it, of its module."""
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is still empty
                yield cell.cell_contents
        module = function.__globals__.get("__name__", "")
        if function.__globals__.get("__file__"):
            self.files.append((function, module))
            return
        for name in sorted(_global_names(function.__code__)):
            if name in function.__globals__:
                yield name
                yield function.__globals__[name]


def _global_names(code: types.CodeType) -> set[str]:
    """Returns the names of its module that code reads, also inside of inner functions."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return names.union(*map(_global_names, inner))


def _is_written(name: str, part: Any) -> bool:
    """Returns whether an attribute of a class is its author's: what libraries note there may change."""
    return not name.startswith("_") or isinstance(part, types.FunctionType | staticmethod | classmethod | property)


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name, None), functools.cached_property)
