"""What users and other packages bring: functions and classes of modules, of files, and of entry points.

A package announces its own in its pyproject.toml, and configs then name them as they name those built in:

  [project.entry-points."fedjax_core.methods"]
  feddyn = "my_package.feddyn:feddyn"
"""

import contextlib
import contextvars
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from fedjax_core import option_types

GROUPS = {  # where packages announce what they bring, by what it is
    "method": "fedjax_core.methods",
    "model": "fedjax_core.models",
    "data set": "fedjax_core.sources",
    "partition": "fedjax_core.partitions",
    "optimizer": "fedjax_core.optimizers",
    "augmentation": "fedjax_core.augmentations",
    "loss": "fedjax_core.losses",
    "score": "fedjax_core.scores",
    "callback": "fedjax_core.callbacks",
    "rule": "fedjax_core.rules",
    "attack": "fedjax_core.attacks",
    "compressor": "fedjax_core.compressors",
}
PLACE = re.compile(r"(?P<module>.+\.py|[^\W\d]\w*(\.\w+)*):(?P<name>[^\W\d]\w*)")


@functools.cache
def announced(what: str) -> dict[str, importlib.metadata.EntryPoint]:
    """What installed packages announce of a kind, by name.

    Raises:
      ValueError: two packages announce one name.
    """
    found: dict[str, importlib.metadata.EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=GROUPS[what]) if what in GROUPS else ():
        if point.name in found and found[point.name].value != point.value:
            raise ValueError(f"{what} {point.name!r} is announced twice, as {found[point.name].value!r} and as {point.value!r}")
        found[point.name] = point
    return found


GIVEN_AS = {"method": "method", "model": "model", "loss": "loss", "score": "scores"}  # arguments of `experiment.build`
_GIVEN: dict[tuple[str, str], Callable] = {}


def give(what: str, name: str, found: Callable) -> str:
    """Keeps what was given in Python for as long as this process runs, and returns the name by which a config finds it.

    What is given later under the same name takes its place.
    """
    name = re.sub(r"\W", "_", name)
    _GIVEN[what, name] = found
    return f"given:{name}"


def load(what: str, name: str) -> tuple[Callable, str]:
    """(what an entry point stands for, its origin).

    Raises:
      ValueError: it cannot be loaded.
    """
    point = announced(what)[name]
    try:
        return point.load(), f"{point.value} of {point.dist.name if point.dist else 'a package'}"
    except Exception as error:  # somebody else's module: whatever it raises, one line says where
        raise ValueError(f"{what} {name!r}: its entry point {point.value!r} cannot be loaded: {_said(error)}") from error


_refusal: contextvars.ContextVar[str | None] = contextvars.ContextVar("why nothing is imported", default=None)


@contextlib.contextmanager
def refuse_imports(why: str) -> Iterator[None]:
    """Lets no name import a module or a file meanwhile; what installed packages announce is found.

    Args:
      why: ends the error's message.
    """
    before = _refusal.set(why)
    try:
        yield
    finally:
        _refusal.reset(before)


def member(what: str, name: str) -> tuple[Callable, str]:
    """(a function or class of a module or of a file, the module or file), from a name of the form `PLACE`.

    Raises:
      ValueError: there is no such module, file or member, or importing it failed, or nothing may be imported (`refuse_imports`).
    """
    module, _, own = name.rpartition(":")
    if module == "given":
        if what not in GIVEN_AS:
            kinds = ", ".join(f"{kind}s" for kind in GIVEN_AS if kind != "loss")
            also = "; data are given as data=..." if what == "data set" else ""
            raise ValueError(f"{what} {option_types.short(name)}: 'given:' stands for {kinds} and losses that Python gave{also}.")
        if (what, own) not in _GIVEN:
            raise ValueError(f"{what} {name!r} was given in Python; give it again: experiment.load(..., {GIVEN_AS[what]}=...)")
        return _GIVEN[what, own], "given in Python"
    if (why := _refusal.get()) is not None:
        raise ValueError(f"{what} {name!r} is code from outside: {why}")
    holder = _file(what, name, module) if module.endswith(".py") else _module(what, name, module)
    if not hasattr(holder, own):
        there = [key for key, value in vars(holder).items() if callable(value) and not key.startswith("_")]
        of_it = [key for key in there if getattr(vars(holder)[key], "__module__", None) == holder.__name__]
        has, hint = ", ".join(of_it) or "nothing", option_types.did_you_mean(own, there)
        raise ValueError(f"{what} {name!r}: {module} has no {own!r}; it has: {has}.{hint}")
    found = getattr(holder, own)
    if not callable(found):
        raise ValueError(f"{what} {name!r}: {own} of {module} is {option_types.short(found)}, not a function or class")
    return found, module


def _module(what: str, name: str, module: str) -> ModuleType:
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())  # as `python -m` has it; the last, so that it hides nothing
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            where = f"looked on Python's path and in {os.getcwd()}"
            raise ValueError(f"{what} {name!r}: there is no module {error.name!r}; {where}") from None
        raise ValueError(f"{what} {name!r}: importing {module} failed: {_said(error)}") from error
    except Exception as error:  # somebody else's module
        raise ValueError(f"{what} {name!r}: importing {module} failed: {_said(error)}") from error


def _file(what: str, name: str, file: str) -> ModuleType:
    """A file as a module, which is read again only if it changed: its classes stay the same ones."""
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"{what} {name!r}: there is no file {str(path)!r}")
    code = path.read_bytes()
    known = f"fedjax_core_file_{hashlib.sha256(str(path).encode() + code).hexdigest()[:16]}"
    if known in sys.modules:
        return sys.modules[known]
    found = importlib.util.spec_from_file_location(known, path)
    assert found is not None
    assert found.loader is not None
    module = sys.modules[known] = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except BaseException as error:  # somebody else's file
        del sys.modules[known]
        if not isinstance(error, Exception):
            raise
        raise ValueError(f"{what} {name!r}: importing {file} failed: {_said(error)}") from error
    return module


def _said(error: Exception) -> str:
    """An error on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
