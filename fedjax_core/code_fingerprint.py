"""The user's own files behind functions and classes: those that they come from, and what these import; and errors that come out
of them.

Own is what no installed package has brought: a user may change it any day, and results are then of other code.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_core.own_packages import HOME, PACKAGES

Named = tuple[Callable, str]  # a function or class, and its origin: a file, or a module with what may stand behind ":"


class CodeExited(RuntimeError):
    """The user's own code ended in what is no Exception, such as `sys.exit()`."""


class SourceFile(NamedTuple):
    """A file, and the package that relative imports in it start from; "" outside of packages."""

    file: Path
    package: str


def behind(named: Iterable[Named]) -> set[SourceFile]:
    """Where functions and classes come from: the file that a config names, and those in which they are written, also below
    decorators and `functools.partial`; none of what is built into Python."""
    found = set()
    for function, origin in named:
        if origin.endswith(".py"):
            found.add(SourceFile(Path(origin).expanduser().resolve(), ""))
        modules, below = [origin.partition(":")[0]], function
        while below is not None:
            modules += [getattr(below, "__module__", ""), type(below).__module__]
            below = getattr(below, "func", None) or getattr(below, "__wrapped__", None)
        for module in filter(None, map(sys.modules.get, modules)):
            file = getattr(module, "__file__", None)
            if file and file.endswith(".py"):
                found.add(SourceFile(Path(file).resolve(), getattr(module, "__package__", None) or ""))
    return {place for place in found if place.file.is_file()}


def files(named: Iterable[Named]) -> list[Path]:
    """The user's own files behind several, each once.

    Imports are read from the code, wherever they stand in it, and followed. A module whose name is put together while the code runs
    is not found.
    """
    shipped = tuple(HOME / name for name in ("fedjax_core", "methods"))
    begin = frozenset(place for place in behind(named) if _own(place.file, shipped))
    known = _known.get(begin)
    if known is None or any(_stamp(file) != stamp for file, stamp in known.items()):
        known = _known[begin] = {file: _stamp(file) for file in _followed(begin, (*shipped, HOME / "configs"))}
    return sorted(known)


_known: dict[frozenset[SourceFile], dict[Path, Any]] = {}  # what `files` found, for as long as none of it changes


def _stamp(file: Path) -> Any:
    try:
        return file.stat().st_mtime_ns, file.stat().st_size
    except OSError:
        return None


def digests(several: Iterable[Path]) -> dict[Path, str]:
    """Of each file what tells its content from any other."""
    return {file: _digest(file, _stamp(file)) for file in several}


@functools.lru_cache
def _digest(file: Path, stamp: Any) -> str:
    del stamp  # with which files of weights are read once
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def check_same(before: Mapping[Path, str]) -> None:
    """Raises ValueError if files have changed since their `digests` were taken."""
    for file, digest in before.items():
        if not file.is_file() or digests([file])[file] != digest:
            raise ValueError(f"{file} has changed since this command began; the same command again takes it as it is now")


def _own(file: Path, shipped: Iterable[Path]) -> bool:
    packages = {"site-packages", "dist-packages"} & set(file.parts)
    return not packages and not any(file.is_relative_to(folder) for folder in (_library(), *shipped))


@functools.cache
def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"]).resolve()


def _followed(begin: Iterable[SourceFile], shipped: tuple[Path, ...]) -> set[Path]:
    """Files, and those of the user's own that they import, and so on."""
    found, todo = set(), list(begin)
    while todo:
        place = todo.pop()
        if place not in found:
            found.add(place)
            todo += _imported(place, shipped)
    return {place.file for place in found}


def _imported(place: SourceFile, shipped: tuple[Path, ...]) -> Iterator[SourceFile]:
    """The modules of the user's own that a file's code imports, and the packages that they are in."""
    try:
        tree = ast.parse(place.file.read_bytes())
    except (SyntaxError, ValueError):  # an import that never happens, or whose error the run reports
        return
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (above := _above(node, place.package)):
            names |= {above, *(f"{above}.{alias.name}" for alias in node.names)}
    for name in sorted(names):
        yield from _on_the_way(name, shipped)


def _above(node: ast.ImportFrom, package: str) -> str:
    """The module from which is imported; "" where there is none."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    if not package or node.level > len(parts):
        return ""
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def _on_the_way(name: str, shipped: tuple[Path, ...]) -> Iterator[SourceFile]:
    """The user's own files of a module and of the packages around it, found without importing any."""
    top, *below = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return
    known = top
    for part in (*below, None):
        if spec is None:
            return
        folders = spec.submodule_search_locations
        if spec.has_location and spec.origin is not None:
            file = Path(spec.origin).resolve()
            own = _own(file, shipped)
            if not own and top not in PACKAGES:  # beside ours a user's modules may be found
                return
            if own and file.suffix == ".py" and file.is_file():
                yield SourceFile(file, known if folders is not None else known.rpartition(".")[0])
        if part is None or folders is None:
            return
        known = f"{known}.{part}"
        spec = importlib.machinery.PathFinder.find_spec(known, folders)


def raised_in(error: BaseException) -> str:
    """Returns where in the user's own code an error was raised, or what raised it was called: "loss of mine.py, line 7"; "" where
    no such code is behind it."""
    return first_raised_in(error)[1]


def first_raised_in(error: BaseException) -> tuple[BaseException, str]:
    """Returns, of an error and those that caused it, the first one that the user's own code has raised, and where; the error itself
    and "" if none is."""
    shipped = tuple(HOME / name for name in ("fedjax_core", "methods", "configs", "tests"))
    for one in error_chain(error):
        for frame, line in reversed(list(traceback.walk_tb(one.__traceback__))):
            file = Path(frame.f_code.co_filename)
            if file.suffix == ".py" and file.is_file() and _own(file.resolve(), shipped):
                return one, _at(file, frame.f_code.co_name, line)
    return error, ""


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, what caused it, and so on."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _at(file: Path, function: str, line: int) -> str:
    shown = os.path.relpath(file) if file.is_absolute() and file.is_relative_to(Path.cwd()) else str(file)
    return f"{shown}, line {line}" if function == "<module>" else f"{function} of {shown}, line {line}"


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Turns an exit that the user's own code asks for, or another BaseException that is no interruption, into an error.

    Raises:
      CodeExited: that happened; one line with the file and the function.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        where = raised_in(error)
        if isinstance(error, SystemExit) and not where:  # such as argparse's, after --help
            raise
        what = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        how = "was called" if isinstance(error, SystemExit) else "was raised"
        raise CodeExited(" ".join(f"{what}{f' {how} in {where}' if where else ''}".split())) from error
