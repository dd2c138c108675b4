"""What comes with the package and has a bare name: configs ("fedavg") and definitions of tables ("fedskc/table1").

The packages `methods` and `configs` lie beside `fedjax_core`. A user's folder may have packages of these names; a command takes
ours, and reaches the user's files by path.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

import fedjax_core
from fedjax_core import by_name

HOME = Path(fedjax_core.__file__).parents[1]
PACKAGES = ("methods", "configs")
FOLDERS = {"config": HOME / "configs", "table": HOME / "configs" / "tables"}
NOT_SHOWN = {"base", "__init__"}


def take_ours() -> None:
    """Imports `methods` and `configs` from beside `fedjax_core`, wherever else such packages lie. The current folder comes last on
    the path, so that a user's modules are found."""
    for name in PACKAGES:
        loaded = sys.modules.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, [str(HOME)])
        if spec is None or spec.loader is None or (loaded and Path(str(loaded.__file__)).parent == HOME / name):
            continue
        for other in [module for module in sys.modules if module.partition(".")[0] == name]:
            del sys.modules[other]
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())


def names(what: str) -> list[str]:
    """The bare names of configs or tables, in order.

    Args:
      what: "config" or "table".
    """
    folder = FOLDERS[what]
    files = folder.glob("*.py") if what == "config" else folder.rglob("*.py")
    return sorted(file.relative_to(folder).with_suffix("").as_posix() for file in files if file.stem not in NOT_SHOWN)


def file(what: str, text: str) -> str:
    """The file that is meant: a path, if it ends in .py, or the one that has this bare name.

    Args:
      what: "config" or "table".
      text: such as "fedavg", "fedskc/table1", "mine/fedavg.py".

    Raises:
      ValueError: there is none.
    """
    if not text.endswith(".py"):
        name = text.replace(os.sep, "/")
        if name not in (known := names(what)):
            hint = by_name.did_you_mean(name, known)
            raise ValueError(
                f"there is no {what} {text!r}; fedjax-core list {what}s shows all, a file of your own ends in .py.{hint}"
            )
        return str(FOLDERS[what] / f"{name}.py")
    if not os.path.isfile(text):
        raise ValueError(f"there is no {what} file {text!r}")
    return text
