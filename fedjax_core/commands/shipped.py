"""What comes with the package and has a bare name: configs ("fedavg") and definitions of tables ("fedskc/table1").

The packages `methods` and `configs` lie beside `fedjax_core`. A user's folder may have packages of these names; a command takes
ours (`own_packages.py`), and reaches the user's files by path.
"""

import logging
import os
import re
from pathlib import Path

from fedjax_core import own_packages, registry
from fedjax_core.own_packages import HOME

FOLDERS = {"config": HOME / "configs", "table": HOME / "configs" / "tables"}
NOT_SHOWN = {"base", "__init__"}
_log = logging.getLogger(__name__)


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
            hint = registry.did_you_mean(name, known)
            raise ValueError(
                f"there is no {what} {text!r}; fedjax-core list {what}s shows all, a file of your own ends in .py.{hint}"
            )
        return str(FOLDERS[what] / f"{name}.py")
    if not os.path.isfile(text):
        raise ValueError(f"there is no {what} file {text!r}")
    _add_package_of(Path(text).resolve())
    return text


def _add_package_of(path: Path) -> None:
    """Lets a user's file import its neighbours, where its folder is a package `configs` of the user's own. Modules of
    ours come first; the log names those of the user's that they hide."""
    folder = next((folder for folder in path.parents if folder.name == "configs"), None)
    if folder is None or folder == FOLDERS["config"].resolve():
        return
    own_packages.add_folder("configs", folder)
    imported = {
        name
        for names in re.findall(r"\bfrom configs import (.+)|\bconfigs\.(\w+)", path.read_text(errors="replace"))
        for name in re.findall(r"\w+", " ".join(names))
    }
    for name in sorted(imported):
        mine, theirs = FOLDERS["config"] / f"{name}.py", folder / f"{name}.py"
        if mine.is_file() and theirs.is_file() and mine.read_bytes() != theirs.read_bytes():
            _log.warning("%s: 'configs.%s' is the library's own, not %s; give yours another name to import it", path, name, theirs)
