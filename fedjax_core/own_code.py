"""The user's own files behind functions and classes: those that they are written in, and what these import.

Own is what no installed package has brought: a user may change it any day, and results are then of other code.
"""

import ast
import functools
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

HOME = Path(__file__).parents[1]  # of this package, of `methods` and of `configs`


def file_of(found: Callable) -> Path | None:
    """The file that a function or class is written in; None of one that is in none, such as one built into Python."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(getattr(found, "func", found)))
    except TypeError:
        return None
    return Path(file) if file else None


def files(several: Iterable[Callable]) -> list[Path]:
    """The user's own files behind several, each once.

    Imports are read from the code, wherever they stand in it, and followed. A module whose name is put together while the code runs
    is not found.
    """
    found: set[Path] = set()
    todo = [file.resolve() for file in map(file_of, several) if file is not None and file.is_file()]
    shipped = [HOME / name for name in ("fedjax_core", "methods")]
    while todo:
        file = todo.pop()
        if file in found or not _own(file, shipped):
            continue
        found.add(file)
        todo += [one for one in _imported(file) if _own(one, [*shipped, HOME / "configs"])]
    return sorted(found)


def _own(file: Path, shipped: Iterable[Path]) -> bool:
    packages = {"site-packages", "dist-packages"} & set(file.parts)
    return not packages and not any(file.is_relative_to(folder) for folder in (_library(), *shipped))


@functools.cache
def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"]).resolve()


def _imported(file: Path) -> Iterator[Path]:
    """The files of the modules that a file's code imports, and of the packages that they are in."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (above := _above(node, file)):
            names = [above, *(f"{above}.{alias.name}" for alias in node.names)]
        parts = {".".join(name.split(".")[:n]) for name in names for n in range(1, name.count(".") + 2)}
        yield from (found for found in map(_place, sorted(parts)) if found is not None)


def _above(node: ast.ImportFrom, file: Path) -> str | None:
    """The module from which is imported; None where nobody can tell."""
    if not node.level:
        return node.module
    for module in list(sys.modules.values()):
        name, inside = getattr(module, "__file__", None), getattr(module, "__package__", None)
        if name and inside and Path(name).name == file.name and Path(name).resolve() == file:
            above = inside.split(".")[: inside.count(".") + 2 - node.level]
            return ".".join([*above, *filter(None, [node.module])]) or None
    return None


def _place(name: str) -> Path | None:
    """The file of a module that is imported, or that could be without importing others."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
    elif "." in name:
        return None
    else:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return None
        file = spec.origin if spec is not None and spec.has_location else None
    return Path(file).resolve() if file is not None and file.endswith(".py") and Path(file).is_file() else None
