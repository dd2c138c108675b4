"""Files for people and their tools: they are valid, and say what is true of the project."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
YAML = [
    ROOT / name for name in (".readthedocs.yaml", ".pre-commit-config.yaml", ".github/dependabot.yml", "CITATION.cff")
] + sorted((ROOT / ".github").glob("*/*.yml"))


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_files_of_settings_parse(path):
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["title"] in (ROOT / "README.md").read_text()
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # those that the format requires


@pytest.mark.parametrize("name", ["AGENTS.md", ".github/SECURITY.md", ".github/CODE_OF_CONDUCT.md", "docs/pages/llms.txt"])
def test_links_point_to_files(name):
    path = ROOT / name
    links = re.findall(r"\]\(([^):]+)\)", path.read_text())
    assert links
    made = {
        *(f"reference/{name}.md" for name in ("settings", "choices")),
        *("results.md", "results/leaderboard.md"),
        *(f"results/{page.name}" for page in (ROOT / "configs" / "results").glob("*.md")),
        *(f"{name}/index.md" for name in ("methods", "sources", "networks")),
    }  # when the site is built
    assert [link for link in links if link not in made and not (path.parent / link).exists()] == []


def test_llms_txt_has_every_page_of_the_menu():
    menu = (ROOT / "docs" / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    linked = re.findall(r"\]\(([^):]+\.md)\)", (ROOT / "docs" / "pages" / "llms.txt").read_text())
    assert sorted(linked) == sorted(re.findall(r": (\S+\.md)$", menu, re.MULTILINE))


def test_hooks_call_what_the_test_extra_installs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    test_extra = json.dumps(PROJECT["optional-dependencies"]["test"])
    assert {hook["entry"].split()[0] for hook in hooks} == {"ruff", "pyright", "python"}
    assert "ruff" in test_extra
    assert "pyright" in test_extra
