"""Imports between packages point down only. Read from the syntax of files; nothing is run."""

import ast
import functools
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedjax_core", "methods", "configs")
FILES = sorted(str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
ROOMS = {  # of fedjax_core, top to bottom: allowed imports beside the package itself
    "__main__": {"commands"},
    "testing": {"storage", "engine", "uplink", "training", "nn", "data", "task"},
    "commands": {
        "audit",
        "experiment",
        "run",
        "reporting",
        "language",
        "storage",
        "engine",
        "devices",
        "uplink",
        "training",
        "nn",
        "data",
        "task",
    },
    "audit": {"engine", "training", "nn", "data", "task"},
    "experiment": {"run", "privacy", "language", "storage", "engine", "devices", "uplink", "training", "nn", "data", "task"},
    "run": {"privacy", "reporting", "storage", "engine", "data"},
    "reporting": {"storage", "engine", "training", "task"},
    "language": {"storage", "training", "nn", "data", "task"},
    "storage": {"engine", "training", "nn", "task"},
    "engine": {"devices", "uplink", "training", "data", "task"},
    "uplink": {"privacy", "training", "task"},
    "privacy": set(),
    "devices": set(),
    "training": {"task"},
    "nn": {"task"},
    "data": set(),
    "task": set(),
    "registry": set(),
    "code_fingerprint": {"own_packages"},
    "own_packages": set(),
    "atomic_files": set(),
    "option_types": set(),
    "algorithm": set(),
    "distributed": set(),
    "finite_checks": set(),
    "lazy_array": set(),
}
EVERYBODY = {
    "finite_checks",
    "distributed",
    "registry",
    "own_packages",
    "code_fingerprint",
    "option_types",
    "algorithm",
    "lazy_array",
    "atomic_files",
}  # also importable by all others
ALONE = {"finite_checks", "option_types", "algorithm", "lazy_array", "own_packages"}  # import no other module of the project
OF_METHODS = {"training", "nn", "task"} | EVERYBODY


def module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module(file): file for file in FILES}


@functools.cache
def syntax(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


@functools.cache
def imports(file: str) -> frozenset[str]:
    """Returns the project's modules that a file imports anywhere, as dotted names."""
    found = set()
    for node in ast.walk(syntax(file)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative imports hide who imports whom"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in inside]
        found |= {name for name in names if name.split(".")[0] in PACKAGES and name != "fedjax_core"}  # has only the version
    return frozenset(found)


def room(name: str) -> str:
    """Returns the package of a module of fedjax_core."""
    return name.split(".")[1]


def test_the_reader_of_imports_reads():
    assert "fedjax_core.run" in imports("fedjax_core/experiment/run_experiment.py")
    assert "fedjax_core.algorithm" in imports("fedjax_core/engine/simulator.py")
    assert "fedjax_core.commands.main" in imports("methods/main.py")
    assert imports("fedjax_core/option_types.py") == frozenset()


def test_every_module_has_a_room():
    assert {room(name) for name in MODULES if name.startswith("fedjax_core.")} == set(ROOMS)


def test_rooms_stand_on_rooms_below_only():
    below = list(ROOMS)
    for name, may in ROOMS.items():
        assert may <= set(below[below.index(name) + 1 :]), name


def test_a_module_imports_from_its_room_and_those_below():
    assert not imports("fedjax_core/__init__.py")
    wrong = []
    for file in FILES:
        if not file.startswith("fedjax_core/") or file == "fedjax_core/__init__.py":
            continue
        mine = room(module(file))
        may = ROOMS[mine] | {mine} | (set() if mine in ALONE else {"option_types"} if mine in EVERYBODY else EVERYBODY)
        allowed = lambda name, may=may: name.startswith("fedjax_core.") and room(name) in may
        wrong += [f"{file} imports {name}" for name in imports(file) if not allowed(name)]
    assert not wrong


def test_a_method_does_not_know_how_it_is_run():
    of_methods = [file for file in FILES if file.startswith("methods/") and file != "methods/main.py"]
    may = lambda name: (name.startswith("methods.") and name != "methods.main") or room(name) in OF_METHODS
    assert not [f"{file} imports {name}" for file in of_methods for name in imports(file) if not may(name)]


def test_configs_are_settings_alone():
    of_configs = [file for file in FILES if file.startswith("configs/")]
    assert not [f"{file} imports {name}" for file in of_configs for name in imports(file) if not name.startswith("configs")]


LEAVES = {  # allowed imports of the lowest modules of a package
    "fedjax_core/algorithm.py": set(),
    "fedjax_core/registry.py": {"fedjax_core.option_types"},
    "fedjax_core/option_types.py": set(),
    "fedjax_core/training/losses.py": {"fedjax_core.algorithm", "fedjax_core.option_types"},
    "fedjax_core/training/metrics.py": {"fedjax_core.algorithm", "fedjax_core.task", "fedjax_core.training.losses"},
    "fedjax_core/task.py": {"fedjax_core.algorithm"},
    "fedjax_core/engine/client_loop.py": {"fedjax_core.algorithm", "fedjax_core.engine.sharding.mesh"},
    "fedjax_core/engine/sharding/mesh.py": {"fedjax_core.algorithm", "fedjax_core.lazy_array"},
    "fedjax_core/engine/client_sampler.py": {"fedjax_core.algorithm"},
    "fedjax_core/atomic_files.py": {"fedjax_core.option_types"},
    "fedjax_core/storage/json_files.py": {"fedjax_core.atomic_files"},
    "fedjax_core/storage/checkpoint_arrays.py": {"fedjax_core.algorithm"},
}


@pytest.mark.parametrize("file", LEAVES)
def test_the_bottom_stands_on_little(file):
    assert imports(file) <= LEAVES[file]


def test_nothing_imports_in_a_circle():
    graphlib.TopologicalSorter({name: imports(file) & MODULES.keys() for name, file in MODULES.items()}).prepare()


def test_libraries_do_not_print():
    printing = []
    for file in FILES:
        calls = [node for node in ast.walk(syntax(file)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        printing += [f"{file}:{call.lineno}" for call in calls if call.func.id in ("print", "breakpoint")]
    assert not printing


def test_no_file_is_a_drawer_for_everything():
    drawers = {"utils", "util", "helpers", "misc", "common", "tmp", "tmp2"}
    assert not [file for file in FILES if Path(file).stem in drawers]
    assert not [path for path in (ROOT / "tests").rglob("*.py") if path.stem.removeprefix("test_") in drawers]
