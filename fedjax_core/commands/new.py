"""Writes a folder with a working method, network, data set or table, to change into your own.

  fedjax-core new method mymethod
  fedjax-core new model mynetwork --folder=projects/mynetwork

The folder has the code, a config that runs at once, a test, a README, and a pyproject.toml whose
entry point announces the code to every config and table once it is installed.
"""

import importlib.metadata
import keyword
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fedjax_core import nn
from fedjax_core.commands import templates
from fedjax_core.commands.main import run_and_exit
from fedjax_core.data import sources
from fedjax_core.experiment import lookup
from fedjax_core.registry import ENTRY_POINT_GROUPS
from fedjax_core.reporting import console

KINDS = {"method": "method", "model": "model", "data": "data set", "table": None}  # and of which entry points


def write_project(kind: str, name: str, folder: Path) -> list[Path]:
    """Writes the folder of a new project.

    Args:
      kind: one of `KINDS`.
      name: of the module, and of the function, class or table in it.
      folder: a new or an empty one.

    Returns:
      The files.

    Raises:
      ValueError: the name is not one of a module, or is taken; or the folder has files.
    """
    check_name(kind, name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"folder {str(folder)!r} exists already, and is not empty; choose another by --folder")
    group = KINDS[kind]
    entry_point = f'\n[project.entry-points."{ENTRY_POINT_GROUPS[group]}"]\n{name} = "{name}:{name}"\n' if group else ""
    values = {"name": name, "distribution": name.replace("_", "-"), "entry_point": entry_point}
    folder.mkdir(parents=True, exist_ok=True)
    files = {"module": f"{name}.py", "config": "config.py", "test": f"test_{name}.py", "readme": "README.md"}
    root = resources.files(templates)
    sources = {root / "pyproject.txt": "pyproject.toml"} | {root / kind / f"{part}.txt": file for part, file in files.items()}
    written = []
    for source, file in sources.items():
        if source.is_file():  # a table is its own config
            written.append(folder / file)
            text = source.read_text(encoding="utf-8").format(**values)
            written[-1].write_text(text, encoding="utf-8")
    return written


def check_name(kind: str, name: str) -> None:
    """Raises ValueError for a name that a module cannot have, or that would hide another one."""
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ValueError(f"name {name!r} must be one of a Python module: letters, digits and _, such as 'my_{kind}'")
    installed = importlib.metadata.packages_distributions()
    if name in sys.stdlib_module_names or name in installed or name in ("config", "configs", "methods", "fedjax_core"):
        raise ValueError(f"name {name!r} is that of another module; choose another, such as 'my_{name}'")
    taken = lookup.method_summaries() if kind == "method" else {}
    if name in taken:
        raise ValueError(f"there is a method {name!r} already: {taken[name]}")
    built_in = {"data": sources.READERS, "model": nn.MODULES}.get(kind, ())
    if name in built_in:
        raise ValueError(
            f"there is a built-in {'data source' if kind == 'data' else kind} {name!r} already, which a config would get"
        )


def _parser() -> console.Parser:
    parser = console.Parser("new", __doc__)
    parser.add_argument("kind", choices=list(KINDS), help="what the folder is for")
    parser.add_argument("name", help="of the module, and of the function, class or table in it")
    parser.add_argument("--folder", help="a new one; the default has the name")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Parses, writes.

    Args:
      arguments: the command line without the program's name.

    Returns:
      The exit status: 0; 1 if the folder cannot be written; 2 for a wrong command line.
    """
    try:
        given = _parser().parse_args(arguments)
        files = write_project(given.kind, given.name, Path(given.folder or given.name).expanduser())
    except ValueError as error:
        return console.fail(error, 2)
    except OSError as error:
        return console.fail(error, 1)
    folder, table = files[0].parent, f"fedjax-core table {given.name}.py --variant=smoke --seeds=0"
    run = table if given.kind == "table" else "fedjax-core run config.py:smoke"
    sys.stdout.write("".join(f"{file}\n" for file in files))
    sys.stdout.write(f"\nTry it:\n\n  cd {folder}\n  {run} --workdir=runs/first\n  python -m pytest\n")
    return 0


if __name__ == "__main__":
    run_and_exit("fedjax_core.commands.new", sys.argv[1:])
