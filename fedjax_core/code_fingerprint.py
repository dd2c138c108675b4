"""The user's own source files behind functions and classes, their hashes, and errors raised in
them.

A file is the user's own if no installed package brought it: it may change any day, and results are
then of other code.

Imports are followed through the syntax of files. The standard library's `modulefinder` does less
here: it fails on packages without `__init__.py` and on files with syntax errors, and takes no
relative imports of a script.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_core.own_packages import HOME, PACKAGES

Named = tuple[Callable, str]  # a function or class, and its origin: a file, or "module:..."


class CodeExited(RuntimeError):
    """The user's own code raised a BaseException that is no Exception, such as `sys.exit()`."""


class SourceFile(NamedTuple):
    """A file, and the package that its relative imports start from; "" outside of packages."""

    file: Path
    package: str


def find_sources(named: Iterable[Named]) -> set[SourceFile]:
    """Returns the files that functions and classes come from.

    These are the file that a config names and those that define the object, also below decorators
    and `functools.partial`. Objects built into Python have none.
    """
    sources = set()
    for function, origin in named:
        if origin.endswith(".py"):
            sources.add(SourceFile(Path(origin).expanduser().resolve(), ""))
        modules, wrapped = [origin.partition(":")[0]], function
        while wrapped is not None:
            modules += [getattr(wrapped, "__module__", ""), type(wrapped).__module__]
            wrapped = getattr(wrapped, "func", None) or getattr(wrapped, "__wrapped__", None)
        for module in filter(None, map(sys.modules.get, modules)):
            file = getattr(module, "__file__", None)
            if file and file.endswith(".py"):
                sources.add(SourceFile(Path(file).resolve(), getattr(module, "__package__", None) or ""))
    return {source for source in sources if source.file.is_file()}


def find_own_files(named: Iterable[Named]) -> list[Path]:
    """Returns the user's own files behind functions and classes, and those that they import,
    sorted.

    Imports anywhere in the code are followed. A module whose name is computed at run time is not
    found.
    """
    shipped = _shipped()
    roots = frozenset(source for source in find_sources(named) if _is_own(source.file, shipped))
    stamps = _cache.get(roots)
    if stamps is None or any(_stamp(file) != stamp for file, stamp in stamps.items()):
        sources = _follow_imports(roots, (*shipped, HOME / "configs"))
        stamps = _cache[roots] = {source.file: _stamp(source.file) for source in sources}
    return sorted(stamps)


def is_installed(kind: type) -> bool:
    """Returns whether a class is of Python, of an installed package or of this library."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return not _is_own(Path(file).resolve(), _shipped()) if file else getattr(module, "__spec__", None) is not None


def _shipped() -> tuple[Path, ...]:
    return tuple(HOME / name for name in ("fedjax_core", "methods"))


_cache: dict[frozenset[SourceFile], dict[Path, Any]] = {}  # results of `find_own_files`, valid while no file changes


def _stamp(file: Path) -> Any:
    try:
        return file.stat().st_mtime_ns, file.stat().st_size
    except OSError:
        return None


_imported: dict[Path, tuple[Any, str]] = {}  # what `hash_own_files` saw first: the spec of a file's module and the file's hash


def hash_own_files(named: Iterable[Named]) -> dict[Path, str]:
    """Returns the SHA-256 of each of the user's own files behind functions and classes.

    Raises:
      ValueError: a file has changed since its module was imported, so that other code would run.
        (A file that a config names is imported again when it changes.)
    """
    hashes = hash_files(find_own_files(named))
    for file, spec in _find_imported_specs(hashes).items():
        seen, digest = _imported.setdefault(file, (spec, hashes[file]))
        if seen is not spec:  # its module was reloaded
            _imported[file] = spec, hashes[file]
        elif digest != hashes[file]:
            raise ValueError(f"{file} has changed since this process imported it; restart Python (a notebook: its kernel)")
    return hashes


def _find_imported_specs(files: Collection[Path]) -> dict[Path, Any]:
    """Returns the specs of the modules in this process that came from files, without files that a config names."""
    if not files:
        return {}  # as of every config that names nothing of the user's
    names, specs = {file.name for file in files}, {}
    for name, module in list(sys.modules.items()):
        origin = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
        if origin and os.path.basename(origin) in names and name != "__main__" and not name.startswith("fedjax_core_file_"):
            specs[Path(origin).resolve()] = module.__spec__
    return {file: spec for file, spec in specs.items() if file in files}


def hash_files(paths: Iterable[Path]) -> dict[Path, str]:
    """Returns the SHA-256 of each file."""
    return {file: _digest(file, _stamp(file)) for file in paths}


@functools.lru_cache
def _digest(file: Path, stamp: Any) -> str:
    del stamp  # part of the cache's key, so that files of weights are read once
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def check_unchanged(before: Mapping[Path, str]) -> None:
    """Raises ValueError if a file has changed since its `hash_files` were taken."""
    for file, digest in before.items():
        if not file.is_file() or hash_files([file])[file] != digest:
            raise ValueError(f"{file} has changed since this command began; the same command again takes it as it is now")


def _is_own(file: Path, shipped: Iterable[Path]) -> bool:
    is_installed = {"site-packages", "dist-packages"} & set(file.parts)
    return not is_installed and not any(file.is_relative_to(folder) for folder in (_stdlib(), *shipped))


@functools.cache
def _stdlib() -> Path:
    return Path(sysconfig.get_paths()["stdlib"]).resolve()


def _follow_imports(roots: Iterable[SourceFile], shipped: tuple[Path, ...]) -> set[SourceFile]:
    """Returns files and all of the user's own that they import, directly or not."""
    visited: set[SourceFile] = set()
    pending = list(roots)
    while pending:
        source = pending.pop()
        if source not in visited:
            visited.add(source)
            pending += _find_imported(source, shipped)
    return visited


def _find_imported(source: SourceFile, shipped: tuple[Path, ...]) -> Iterator[SourceFile]:
    """Yields the user's own modules, and the packages around them, that a file imports."""
    try:
        tree = ast.parse(source.file.read_bytes())
    except (SyntaxError, ValueError):  # never imported, or the run reports the error
        return
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (module := _resolve_module(node, source.package)):
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    for name in sorted(names):
        yield from _find_module(name, shipped)


def _resolve_module(node: ast.ImportFrom, package: str) -> str:
    """Returns the absolute name of the module that is imported from; "" if there is none."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    if not package or node.level > len(parts):
        return ""
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def _find_module(name: str, shipped: tuple[Path, ...]) -> Iterator[SourceFile]:
    """Yields the user's own files of a module and of the packages around it, without importing
    them."""
    top, *children = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return
    path = top
    for child in (*children, None):
        if spec is None:
            return
        folders = spec.submodule_search_locations
        if spec.has_location and spec.origin is not None:
            file = Path(spec.origin).resolve()
            is_own = _is_own(file, shipped)
            if not is_own and top not in PACKAGES:  # the user may have modules in packages of these names
                return
            if is_own and file.suffix == ".py" and file.is_file():
                yield SourceFile(file, path if folders is not None else path.rpartition(".")[0])
        if child is None or folders is None:
            return
        path = f"{path}.{child}"
        spec = importlib.machinery.PathFinder.find_spec(path, folders)


def describe_origin(error: BaseException) -> str:
    """Returns where the user's own code raised an error or its cause, such as "loss of mine.py,
    line 7"; "" if nowhere."""
    return find_own_error(error)[1]


def find_own_error(error: BaseException) -> tuple[BaseException, str]:
    """Returns the first of an error and its causes that the user's own code raised, and where; else
    (error, "")."""
    shipped = tuple(HOME / name for name in ("fedjax_core", "methods", "configs", "tests"))
    for cause in error_chain(error):
        for frame, line in reversed(list(traceback.walk_tb(cause.__traceback__))):
            file = Path(frame.f_code.co_filename)
            if file.suffix == ".py" and file.is_file() and _is_own(file.resolve(), shipped):
                return cause, _describe_line(file, frame.f_code.co_name, line)
    return error, ""


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, its cause, and so on."""
    visited: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in visited:
        visited.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _describe_line(file: Path, function: str, line: int) -> str:
    name = os.path.relpath(file) if file.is_absolute() and file.is_relative_to(Path.cwd()) else str(file)
    return f"{name}, line {line}" if function == "<module>" else f"{function} of {name}, line {line}"


@contextlib.contextmanager
def contain_exits() -> Iterator[None]:
    """Turns an exit of the user's own code, or another BaseException that is no interruption, into
    an error."""
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        where = describe_origin(error)
        if isinstance(error, SystemExit) and not where:  # such as argparse's, after --help
            raise
        what = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        how = "was called" if isinstance(error, SystemExit) else "was raised"
        raise CodeExited(" ".join(f"{what}{f' {how} in {where}' if where else ''}".split())) from error
