"""Who may import whom: arrows point down only. Read from the files' syntax, so nothing is run."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedjax_core", "methods", "configs")
FILES = sorted(str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
ENGINE = {"simulation", "data", "report", "run", "parallel", "workdir", "checkpoint", "plots", "cohort", "normalisation"}
FRONT = {f"methods.{name}" for name in ("experiment", "main", "table", "tables", "analyse", "export", "predict")}


def module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module(file): file for file in FILES}


@functools.cache
def imports(file: str) -> frozenset[str]:
    """Our modules that a file imports, at any depth of its code, as dotted names."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative imports hide who imports whom"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in inside]
        found |= {name for name in names if name.split(".")[0] in PACKAGES}
    return frozenset(found)


def test_the_reader_of_imports_reads():
    assert "fedjax_core.run" in imports("methods/experiment.py")
    assert "fedjax_core.algorithm" in imports("fedjax_core/simulation.py")
    assert "methods.experiment" in imports("methods/main.py")
    assert imports("fedjax_core/workdir.py") == frozenset()


@pytest.mark.parametrize("file", FILES)
def test_nobody_imports_upwards(file):
    above = {"fedjax_core": ("methods", "configs"), "methods": ("configs",), "configs": ("fedjax_core", "methods")}
    for name in imports(file):
        assert name.split(".")[0] not in above[file.split("/")[0]], f"{file} imports {name}"
        assert name == "methods.experiment" or name not in FRONT or module(file) in FRONT, f"{file} imports {name}"


@pytest.mark.parametrize("file", [f for f in FILES if f.startswith("methods/") and module(f) not in FRONT])
def test_a_method_does_not_know_how_it_is_run(file):
    for name in imports(file):
        assert name not in FRONT, f"{file} imports {name}"
        assert not (name.startswith("fedjax_core.") and name.split(".")[1] in ENGINE), f"{file} imports {name}"


LEAVES = {  # what these may import of ours; the algorithm's types nothing at all
    "fedjax_core/algorithm.py": set(),
    "fedjax_core/by_name.py": set(),
    "fedjax_core/losses.py": {"fedjax_core.algorithm"},
    "fedjax_core/metrics.py": {"fedjax_core.algorithm"},
    "fedjax_core/task.py": {"fedjax_core.algorithm"},
    "fedjax_core/parallel.py": {"fedjax_core.algorithm"},
    "fedjax_core/cohort.py": {"fedjax_core.algorithm"},
    "fedjax_core/workdir.py": set(),
    "fedjax_core/report.py": {"fedjax_core.workdir"},
    "fedjax_core/plots.py": {"fedjax_core.workdir", "fedjax_core.report"},
    "fedjax_core/checkpoint.py": {"fedjax_core.algorithm", "fedjax_core.workdir"},
}


@pytest.mark.parametrize("file", LEAVES)
def test_the_bottom_stands_on_little(file):
    assert imports(file) <= LEAVES[file]


@pytest.mark.parametrize("file", [f for f in FILES if f.startswith(("fedjax_core/nn/", "fedjax_core/data/"))])
def test_networks_and_data_know_nothing_of_federation(file):
    own = ".".join(module(file).split(".")[:2])
    allowed = {"fedjax_core.nn": {"algorithm", "task", "by_name"}, "fedjax_core.data": {"algorithm", "by_name"}}[own]
    for name in imports(file):
        assert name == own or name.startswith(f"{own}.") or name in {f"fedjax_core.{a}" for a in allowed}, f"{file} imports {name}"


def test_nothing_imports_in_a_circle():
    @functools.cache
    def below(name: str, path: tuple[str, ...] = ()) -> frozenset[str]:
        assert name not in path, " -> ".join([*path, name])
        return frozenset().union(*(below(other, (*path, name)) for other in imports(MODULES[name]) if other in MODULES), {name})

    for name in MODULES:
        assert name in below(name)


@pytest.mark.parametrize("file", [f for f in FILES if f != "methods/main.py"])
def test_libraries_do_not_print(file):
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        called = node.func if isinstance(node, ast.Call) else None
        assert not (isinstance(called, ast.Name) and called.id in ("print", "breakpoint")), f"{file}:{node.lineno}"


def test_no_file_is_a_drawer_for_everything():
    drawers = {"utils", "util", "helpers", "misc", "common", "tmp", "tmp2"}
    assert not [file for file in FILES if Path(file).stem in drawers]
    assert not [path for path in (ROOT / "tests").rglob("*.py") if path.stem.removeprefix("test_") in drawers]
