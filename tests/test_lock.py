"""pylock.toml fits pyproject.toml, names public files only, and installs from wheels on every platform and Python."""

import itertools
import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEXT = (ROOT / "pylock.toml").read_text(encoding="utf-8")
PACKAGES = tomllib.loads(TEXT)["packages"]
SOURCE_ONLY = {"promise", "rouge-score"}  # pure Python without wheels: of tensorflow-datasets, and of the extra "text"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {  # markers, and the tags of wheels
    "linux": (
        {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux", "os_name": "posix"},
        r"manylinux.*_x86_64",
    ),
    "macos": (
        {"sys_platform": "darwin", "platform_machine": "arm64", "platform_system": "Darwin", "os_name": "posix"},
        r"macosx.*_(arm64|universal2)",
    ),
    "windows": (
        {"sys_platform": "win32", "platform_machine": "AMD64", "platform_system": "Windows", "os_name": "nt"},
        r"win_amd64",
    ),
}


def environment(python, platform):
    """Returns what markers read: a CPython on a platform."""
    names = {"python_version": python, "python_full_version": f"{python}.1", "implementation_name": "cpython"}
    return names | {"platform_python_implementation": "CPython"} | PLATFORMS[platform][0]


def locked(python, platform):
    """Returns the packages that are installed there, by name."""
    chosen = [p for p in PACKAGES if "marker" not in p or Marker(p["marker"]).evaluate(environment(python, platform))]
    assert len({p["name"] for p in chosen}) == len(chosen), "two versions of one package"
    return {p["name"]: p for p in chosen}


def requirements(*extras):
    """Returns those of the base installation and of extras, with the extras that these name."""
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    for requirement in map(Requirement, texts):
        if requirement.name == PROJECT["name"]:
            yield from requirements(*requirement.extras)
        else:
            yield requirement


def fits(wheel, python, platform):
    """Returns whether an interpreter takes a wheel."""
    minor = int(python.partition(".")[2])
    return any(
        tag.interpreter[:3] in ("py3", "cp3")
        and int(tag.interpreter[3:] or 0) <= minor
        and tag.abi in ("none", "abi3", f"cp3{minor}")
        and re.fullmatch(rf"any|{PLATFORMS[platform][1]}", tag.platform)
        for tag in parse_wheel_filename(wheel)[3]
    )


@pytest.mark.parametrize(("python", "platform"), [*itertools.product(PYTHONS, PLATFORMS)])
def test_it_installs_what_is_required_from_wheels(python, platform):
    packages = locked(python, platform)
    for requirement in requirements("test"):
        if requirement.marker is None or requirement.marker.evaluate(environment(python, platform)):
            assert requirement.specifier.contains(packages[canonicalize_name(requirement.name)]["version"]), requirement
    files = {name: [wheel["url"].rpartition("/")[2] for wheel in p.get("wheels", [])] for name, p in packages.items()}
    without = {name for name, wheels in files.items() if not any(fits(wheel, python, platform) for wheel in wheels)}
    assert without == SOURCE_ONLY
    assert not packages.keys() & {"torch", "tensorflow", "tensorflow-cpu", "keras"}
    assert not [name for name in packages if name.startswith("nvidia-")]


def test_its_files_are_those_of_the_public_index():
    assert {url.split("/")[2] for url in re.findall(r'https?://[^"]+', TEXT)} == {"files.pythonhosted.org"}
    assert not re.search(r'"(/|file:|[A-Z]:\\)', TEXT), "an address of one machine"
    assert all("hashes" in file for p in PACKAGES for file in [*p.get("wheels", []), *([p["sdist"]] if "sdist" in p else [])])


def test_versions_of_python_are_those_that_ci_runs():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    listed = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if name.startswith("Programming Language :: Python :: 3.")}
    assert listed == {"3.11", "3.12", "3.13"} <= set(re.findall(r"\b3\.\d+\b", ci))
    assert PROJECT["requires-python"] == tomllib.loads(TEXT)["requires-python"] == ">=3.11"
