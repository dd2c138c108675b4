"""Imports of the bundled packages `methods` and `configs`, which a user's packages of these names
may hide.

Commands replace the user's packages by the bundled ones (`import_bundled_packages`), which then also find the
modules of the current folder. In a user's own process `import_bundled` imports the bundled modules
and leaves the user's packages in place.
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
_ours: dict[str, ModuleType] = {}  # bundled modules that a user's package hides
_lock = threading.RLock()


def import_bundled_packages() -> None:
    """Imports the bundled `methods` and `configs` in place of other packages of these names.

    They also find the modules of such packages in the current folder, after their own. The current
    folder is appended to the path, so that a user's other modules are found.
    """
    for name in PACKAGES:
        if not _is_ours(name):
            for other in [module for module in sys.modules if module.partition(".")[0] == name]:
                del sys.modules[other]
            _import_package(name)
        extend_package(name, Path.cwd() / name)
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())


def extend_package(name: str, folder: Path) -> None:
    """Lets a bundled package find the modules of a folder, after its own."""
    package = sys.modules.get(name)
    if package is None or not folder.is_dir() or folder.resolve() == (HOME / name).resolve():
        return
    if str(folder) not in package.__path__:
        package.__path__.append(str(folder))


def import_bundled(name: str) -> ModuleType:
    """Imports a bundled module, such as "methods.fedavg", even if a user's package has its name."""
    with use_bundled_packages():
        return importlib.import_module(name)


@contextlib.contextmanager
def use_bundled_packages() -> Iterator[None]:
    """Makes `methods` and `configs` name the bundled packages for a while, then restores the
    user's."""
    with _lock:
        hidden = [name for name in PACKAGES if not _is_ours(name) and not _import_if_ours(name)]
        theirs = _pop_modules(hidden)
        sys.modules.update({name: module for name, module in _ours.items() if _top_level(name) in hidden})
        try:
            for name in hidden:
                if not _is_ours(name):
                    _import_package(name)
            yield
        finally:
            _ours.update(_pop_modules(hidden))
            sys.modules.update(theirs)


def _top_level(name: str) -> str:
    return name.partition(".")[0]


def _pop_modules(packages: Collection[str]) -> dict[str, ModuleType]:
    if not packages:
        return {}
    names = [name for name in sys.modules if _top_level(name) in packages]
    return {name: sys.modules.pop(name) for name in names}


def _is_ours(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and Path(file).parent == HOME / name


def _import_if_ours(name: str) -> bool:
    """Imports a package if Python finds the bundled one first; returns whether it did."""
    if name in sys.modules:
        return False
    spec = importlib.util.find_spec(name)
    if spec is not None and (spec.origin is None or Path(spec.origin).parent != HOME / name):
        return False
    _import_package(name)
    return True


def _import_package(name: str) -> None:
    """Imports one of `PACKAGES` from `HOME`, if it exists."""
    spec = importlib.machinery.PathFinder.find_spec(name, [str(HOME)])
    if spec is None or spec.loader is None:
        return
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
