"""The package: all subpackages, no needless upper bounds on versions, no other framework."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setuptools import find_packages

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("fedjax_core", "methods", "configs")
CORE = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
EXTRAS = {
    name: [Requirement(text) for text in requirements] for name, requirements in PROJECT["project"]["optional-dependencies"].items()
}


def test_every_package_is_installed():
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files = [path for path in files if path.suffix != ".md" and "results" not in path.relative_to(ROOT).parts]  # documentation
    folders = {str(path.parent.relative_to(ROOT)) for path in files}
    assert folders >= {"fedjax_core", "fedjax_core/nn", "fedjax_core/data", "methods", "configs"}
    found = find_packages(str(ROOT), **PROJECT["tool"]["setuptools"]["packages"]["find"])
    assert {name.replace(".", "/") for name in found} == folders
    assert [name for name in folders if not (ROOT / name / "__init__.py").exists()] == []
    others = {str(path.relative_to(ROOT)) for path in files if path.suffix != ".py"}
    data = PROJECT["tool"]["setuptools"]["package-data"]
    patterns = [f"{package}/{name}" for package, names in data.items() for name in names]
    assert others == {str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)}, (
        "needs a line of package-data"
    )


PINNED = ("reference", "plan")  # references of tests, and a compiler for one version of jax


FREE = [*CORE, *(requirement for name, extra in EXTRAS.items() if name not in PINNED for requirement in extra)]


@pytest.mark.parametrize("requirement", FREE, ids=str)
def test_versions_have_floors_and_no_ceilings(requirement):
    operators = {specifier.operator for specifier in requirement.specifier}
    assert operators <= {">="}, "a ceiling makes an install rot"
    if requirement in CORE:
        assert operators == {">="}, "without a floor an old version may be taken that does not work"


def test_the_core_needs_no_other_framework():
    assert not {r.name.lower() for r in CORE} & {"tensorflow", "tensorflow-cpu", "torch", "keras", "clu", "tf-nightly"}


def test_what_is_imported_is_required():
    """Imports at any depth of the code. A few names differ between import and package index."""
    index = {"sklearn": "scikit-learn", "orbax": "orbax-checkpoint", "ml_collections": "ml-collections", "PIL": "pillow"}
    index |= {"tensorflow_datasets": "tensorflow-datasets", "array_record": "array-record", "tensorboardX": "tensorboardx"}
    index |= {"rouge_score": "rouge-score"}
    # installed with a requirement that needs them
    through = {"absl": "ml-collections", "jaxlib": "jax", "threadpoolctl": "scikit-learn", "scipy": "scikit-learn"}
    through |= {"google": "tensorflow-datasets"}  # protobuf decodes its records
    # extras are imported inside functions, on demand
    required = {r.name.lower() for r in [*CORE, *EXTRAS["text"], *EXTRAS["sets"], *EXTRAS["gguf"]]}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for top in {name.split(".")[0] for name in names} - set(PACKAGES) - set(sys.stdlib_module_names):
                assert index.get(top, through.get(top, top)).lower() in required, f"{path.relative_to(ROOT)} imports {top}"


def test_importing_is_quick_and_pulls_no_other_framework():
    """In a separate interpreter; all modules except main, which has the command line's flags."""
    names = sorted(
        str(path.relative_to(ROOT)).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    )
    loaded = "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    code = "\n".join(["import sys, fedjax_core.commands.run", loaded, *(f"import {name}" for name in names), loaded])
    for _ in range(2):  # the first one may compile the bytecode of everything it imports
        before = os.times()
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        if spent < 10 or done.returncode:
            break
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    of_run, loaded = map(set, map(str.split, done.stdout.splitlines()))
    late = {"matplotlib", "sklearn", "scipy", "orbax", "tensorboardX", "tensorflow_datasets", "pandas", "dp_accounting"}
    assert not of_run & late, "no run waits for these before its first round"
    assert {"jax", "flax", "fedjax_core", "methods"} <= loaded
    assert not loaded & {"tensorflow", "torch", "keras", "transformers", "clu", "pytest", "tokenizers", "rouge_score"}
    assert spent < 10, f"{spent:.1f} s of computing"  # about four on an idle machine


def test_readme_installs_what_is_there():
    text = (ROOT / "README.md").read_text()
    for extras in re.findall(r"\[([\w,-]+)\]", " ".join(re.findall(r"pip install[^\n]*", text))):
        for extra in extras.split(","):
            assert extra in EXTRAS, extra
