"""The packages `methods` and `configs`, which come beside `fedjax_core`, whatever else has these names.

A user's folder may have packages `methods` and `configs`, which Python then finds first. A command takes ours in their
place (`take_ours`), with the modules of the current folder's behind them. In a user's own process nothing is taken away:
`import_bundled` reads ours, and leaves theirs where they are.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).parents[1]
PACKAGES = ("methods", "configs")
_ours: dict[str, ModuleType] = {}  # modules that were read while a user's package had the name
_lock = threading.RLock()


def take_ours() -> None:
    """Imports `methods` and `configs` from beside `fedjax_core`, wherever else such packages lie.

    The modules of the current folder's packages of these names are found behind ours. The current folder comes
    last on the path, so that a user's other modules are found.
    """
    for name in PACKAGES:
        if not _is_ours(name):
            for other in [module for module in sys.modules if module.partition(".")[0] == name]:
                del sys.modules[other]
            _import_package(name)
        add_folder(name, Path.cwd() / name)
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())


def add_folder(name: str, folder: Path) -> None:
    """Lets the package of ours find a folder's modules, too, behind its own."""
    package = sys.modules.get(name)
    if package is None or not folder.is_dir() or folder.resolve() == (HOME / name).resolve():
        return
    if str(folder) not in package.__path__:
        package.__path__.append(str(folder))


def import_bundled(name: str) -> ModuleType:
    """Returns a module of ours, such as "methods.fedavg", also where a user's package has its name."""
    with ours():
        return importlib.import_module(name)


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """Has `methods` and `configs` stand for ours while it lasts, and then for what they stood for before."""
    with _lock:
        others = [name for name in PACKAGES if not _is_ours(name) and not _found_as_ours(name)]
        theirs = _taken_out(others)
        sys.modules.update({name: module for name, module in _ours.items() if _package(name) in others})
        try:
            for name in others:
                if not _is_ours(name):
                    _import_package(name)
            yield
        finally:
            _ours.update(_taken_out(others))
            sys.modules.update(theirs)


def _package(name: str) -> str:
    return name.partition(".")[0]


def _taken_out(packages: Collection[str]) -> dict[str, ModuleType]:
    """The modules of packages, which then count as not imported."""
    names = [name for name in sys.modules if _package(name) in packages]
    return {name: sys.modules.pop(name) for name in names}


def _is_ours(name: str) -> bool:
    """Returns whether a package is imported, and is ours."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and Path(file).parent == HOME / name


def _found_as_ours(name: str) -> bool:
    """Imports a package as Python finds it, if that is ours; returns whether it is."""
    if name in sys.modules:
        return False
    spec = importlib.util.find_spec(name)
    if spec is not None and (spec.origin is None or Path(spec.origin).parent != HOME / name):
        return False
    _import_package(name)
    return True


def _import_package(name: str) -> None:
    """Imports one of `PACKAGES` from `HOME`, if it is there."""
    spec = importlib.machinery.PathFinder.find_spec(name, [str(HOME)])
    if spec is None or spec.loader is None:
        return
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
