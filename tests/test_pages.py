"""Pages of the site: code runs, names exist, and the example method passes the contract."""

import csv
import itertools
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from configs.tables import fair
from docs import cards, gallery, leaderboard, messages, result_pages, settings_pages
from fedjax_core import experiment, nn
from fedjax_core.commands import analyze, config_flags, list_names, main, new, run, table
from fedjax_core.data import sources
from fedjax_core.data.sources import dataset_cards
from tests import quick

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "pages").rglob("*.md"))
RESULTS = [ROOT / "configs" / "RESULTS.md", *sorted((ROOT / "configs" / "results").glob("*.md"))]
EXAMPLES = {file.name: file.read_text() for file in sorted((ROOT / "docs" / "examples").glob("*.py"))}
TEXT = "\n".join(page.read_text() for page in [*PAGES, ROOT / "README.md"])


def blocks(page: Path) -> list[str]:
    found = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    if page.stem == "quickstart":
        return []  # tested separately, as are the examples
    return [code for code in found if code not in EXAMPLES.values()]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    scope: dict = {}
    for code in blocks(page):
        exec(compile(code, page.name, "exec"), scope)


def test_the_quickstart_leads_to_a_table(tmp_path, monkeypatch):
    """All commands of the page in an empty folder, with smoke variants of the runs."""
    page = (ROOT / "docs" / "pages" / "quickstart.md").read_text()
    (study,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    commands = [line.split()[1:] for line in page.splitlines() if line.startswith("fedjax-core ")]
    assert [command for command, *_ in commands] == ["new", "run", "table"]
    monkeypatch.chdir(tmp_path)
    assert new.main(commands[0][1:]) == 0
    monkeypatch.chdir(tmp_path / "patients")
    (tmp_path / "patients" / "study.py").write_text(study)
    warnings.filterwarnings("ignore", "the load_module", DeprecationWarning)  # ml_collections loads files the old way
    no_cache = "--compilation_cache="
    assert run.main([commands[1][1] + ":smoke", *commands[1][2:-1], "--config.rounds=2", no_cache]) == 0
    assert table.main([*commands[2][1:], "--variant=smoke", "--seeds=0", "--set=rounds=2", no_cache]) == 0
    assert re.search(r"^\| Ditto +\| +\d", Path("runs/study/table.md").read_text(), re.MULTILINE)


def test_a_page_shows_the_files_of_the_examples_as_they_are():
    """The page is plain Markdown; a changed example file must be pasted into it again."""
    page = (ROOT / "docs" / "pages" / "your-method.md").read_text()
    for name, code in EXAMPLES.items():
        assert f"```python\n{code}```\n" in page, f"docs/examples/{name} is not what docs/pages/your-method.md shows"
    assert "--8<--" not in TEXT


def test_commands_name_what_is_there():
    for command, name in re.findall(r"fedjax-core (\w+) ?([\w/.]*)", TEXT):
        assert command in {*main.COMMANDS, "COMMAND"}, command
        if command in ("run", "table") and name and name != "NAME" and not name.startswith("runs") and not name.endswith(".py"):
            assert name in config_flags.list_bundled({"run": "config", "table": "table"}[command]), name
    for path in re.findall(r"(?:configs|methods|tests|docs|colab)/[\w/]+\.(?:py|md)\b", TEXT):
        assert (ROOT / path).exists(), path


def test_the_page_on_analyses_has_all_of_them():
    rows = re.findall(r"^\| `(\w+)` \|.*\|(.*)\|$", (ROOT / "docs" / "pages" / "analyse.md").read_text(), re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(analyze.WHAT)
    for option, names in analyze.READ_BY.items():
        if option != "labels":
            assert {name for name, options in rows if f"`--{option}`" in options} == set(names)


def test_what_files_say_of_the_documents_is_there():
    """Sections of the README, pages, and the number of methods."""
    headings = set(re.findall(r"^#+ (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE))
    files = [file for folder in ("fedjax_core", "methods", "configs", "docs") for file in (ROOT / folder).rglob("*.py")]
    for file in [*files, *(ROOT / "colab").glob("*.ipynb"), *(ROOT / "colab").glob("*.py")]:
        text = file.read_text()
        for section in re.findall(r'README, \\?"(.*?)\\?"', text):
            assert section in headings, (file, section)
        for page in re.findall(r"docs/pages/[\w/]+\.md", text):
            assert (ROOT / page).exists(), (file, page)
    for page in ("README.md", "docs/pages/index.md", "docs/pages/from/fedjax.md"):
        (number,) = re.findall(r"\b(\d+) methods", (ROOT / page).read_text().partition("\n## ")[0])
        assert int(number) == len(experiment.method_summaries()), page


def test_the_gallery_has_every_method_once():
    table = gallery.read_method_table((ROOT / "README.md").read_text())
    assert set(table) == set(experiment.method_summaries())
    page = gallery.render_page()
    assert all(page.count(f"]({name}.md)") == 1 for name in table)


def test_a_method_s_page_has_its_paper_messages_results_and_pitfalls():
    facts, results = messages.trace_message("fedproto"), leaderboard.read_records()
    assert [facts["down"][0], facts["up"][0]] == [("means", "10x32", 320), ("part 1", "10x32", 320)]
    page = gallery.render_method("fedproto", gallery.read_method_table(gallery._readme())["fedproto"], facts, results)
    assert "# FedProto\n\n*FedProto (Tan et al. 2022)*" in page
    assert "| to a client | `means` | 10x32 | 320 |" in page
    assert "- digits, points of own test rows: +2.7 [+0.3, +5.0] to FedAvg, +0.2 to Local." in page
    assert "| own test rows | 98.2 ± 0.4 ≈, rank 9 of 53 |" in page
    assert "It learns classes, and refuses several labels, numbers, tokens." in page
    assert "[arxiv.org/abs/2105.00243](https://arxiv.org/abs/2105.00243)" in page


def test_the_leaderboard_has_the_published_numbers():
    records = leaderboard.read_records()
    published = (ROOT / "configs" / "results" / "fair.md").read_text().partition("## The first run")[0]
    names = {"own test rows": 1, "worst tenth of the clients": 3, "clients worse off than with Local": 4, "unseen clients": 5}
    columns = ("digits", "MNIST", "CIFAR-10")
    parts = zip(columns, re.split(r"^## (?:MNIST|CIFAR-10)$", published, flags=re.MULTILINE), strict=True)
    rows = {(line.split(" | ")[0].strip("| "), column): line for column, part in parts for line in part.splitlines()}
    assert len({(record["row"], record["column"]) for record in records}) == len(columns) * 54
    for record in records:
        cell = rows[record["row"], record["column"]].removeprefix("| ").removesuffix(" |").split(" | ")[names[record["measure"]]]
        best = record["row"] in leaderboard.find_best(
            [r for r in records if (r["column"], r["measure"]) == (record["column"], record["measure"])]
        )
        if not record["mean"]:
            assert cell == "—"
            continue
        text = f"{float(record['mean']):.1f} ± {float(record['std']):.1f}"
        lost = "" if record["n"] == "3" else f" ({record['n']} seeds)"
        assert cell == (f"**{text}**" if best else text) + (" ≈" if record["like_best"] == "1" else "") + lost, record
    page = leaderboard.render_page()
    assert page.count('<div class="sortable" markdown>') == 1 + 2 * len(columns)
    assert {*leaderboard.map_rows(), *fair.CONTROLS} >= {record["row"] for record in records}


def test_a_leaderboard_with_intervals():
    fields = ("row", "column", "measure", "n", "mean", "std", "rank", "rank_low", "rank_high", "like_best")
    fields += ("against", "minus_against", "minus_against_low", "minus_against_high")
    cells = [("A", "digits", "own", "3", "91.25", "0.5", "1.0", "1.0", "2.0", "0", "B", "1.25", "-0.5", "3.0")]
    cells += [("B", "digits", "own", "3", "90.0", "0.5", "2.0", "1.0", "2.0", "1", "B", "", "", "")]
    text = leaderboard.render_tables([dict(zip(fields, values, strict=True)) for values in cells], {"A": "a.md"})
    assert "| 1 [1, 2] | [A](a.md) | **91.2 ± 0.5** | +1.2 [-0.5, +3.0] |" in text
    assert "| 2 [1, 2] | B | 90.0 ± 0.5 ≈ | — |" in text
    assert "Not distinguishable from it: B. Not distinguishable from B: A." in text


def test_a_leaderboard_of_rounds_that_some_seeds_never_reach():
    fields = ("row", "column", "measure", "n", "mean", "std", "rank_low", "seed_0", "seed_1", "seed_2")
    cells = [("A", "digits", "rounds", "3", "3.0", "", "1", "2.5", "3.5", "never")]
    cells += [("B", "digits", "rounds", "3", "", "", "1", "never", "never", "never")]
    text = leaderboard.render_tables([dict(zip(fields, values, strict=True)) for values in cells], {})
    assert "| A | 3.0 (2 of 3) |" in text
    assert "| B | never |" in text
    assert "Square brackets: 95 % intervals of the rank." in text
    assert "the best is" not in text, "no row has a rank"


def test_a_leaderboard_of_many_rows_and_columns(tmp_path):
    columns, measures, numbers = ("digits", "MNIST", "CIFAR-10 (lossy)"), ("own", "unseen"), range(1, 41)
    records = []
    for column, measure, i in itertools.product(columns, measures, numbers):
        record = {"row": f"M{i}", "column": column, "measure": measure, "n": 3, "mean": 90 - i, "std": 0.5, "rank": i}
        record |= {"rank_low": max(i - 1, 1), "rank_high": i + 1, "like_best": int(1 < i < 4), "against": "M20"}
        if i != 20:
            record |= {"minus_against": 20 - i, "minus_against_low": 20 - i - 1.5, "minus_against_high": 20 - i + 1.5}
        if i == 40 and column == "MNIST":  # all of its seeds diverged
            record = {"row": "M40", "column": column, "measure": measure, "n": 0, "against": "M20"}
        records.append(record)
    with (tmp_path / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    text = leaderboard.render_tables(leaderboard.read_records(tmp_path / "table.csv"), {"M1": "m1.md"})
    overview, *parts = text.split("\n## ")[1:]
    assert [part.split("\n")[0] for part in parts] == list(columns)
    for part in (overview, *parts):
        heads, *rows = [line for line in part.split('<div class="sortable" markdown>')[1].split("\n") if line.startswith("| ")]
        assert len(rows) == 40
        assert {row.count(" | ") for row in rows} == {heads.count(" | ")}
    assert "| 40.0 | M40 |" not in overview
    assert "| — | M40 | 50.0 ± 0.5 | 40 [39, 41] | — | — | 50.0 ± 0.5 | 40 [39, 41] |" in overview
    assert "in all 3 columns: M1; M2; M3." in overview
    assert "| 1 [1, 2] | [M1](m1.md) | **89.0 ± 0.5** | +19.0 [+17.5, +20.5] | **89.0 ± 0.5** |" in parts[0]
    assert "| — | M40 | — | — | — |" in parts[1]
    assert "Not distinguishable from it: M2; M3. Not distinguishable from M20: M19; M21." in parts[2]
    assert "| M19 | +1.0 [-0.5, +2.5] |" in parts[2]


def test_cards_have_what_users_must_know():
    pages = {name: cards.render_source(name, builder) for name, builder in list_names.SECTIONS["sources"].builders().items()}
    for name, card in dataset_cards.CARDS.items():
        assert f"| licence | {cards.format_prose(card.licence)} |" in pages[name]
        assert card.where.split()[-1] in pages[name]
    assert "| an example | 28 x 28 x 1, uint8 |" in pages["mnist"]
    assert "| [digits](digits.md) |" in cards.render_pages(networks=False)["sources/index.md"]
    files = {"unseen", "multilabel", "blank", "text"}  # published sets have a card, formats and drawn data none
    published = {name for name in sources.READERS if name not in sources.PREFIXED and name not in (*cards.DERIVED, *files)}
    assert published == set(dataset_cards.CARDS)
    page = cards.render_network("mlp", nn.MODULES["mlp"])
    assert "| CIFAR-10 | 32 x 32 x 3 | 10 | 656,810 | 200 | 2.63 |" in page
    assert "[fedavg](../methods/fedavg.md)" in page


def test_the_gallery_says_which_method_lacks_plain_words(tmp_path, monkeypatch):
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "mine.py").write_text('"""Mine: a method."""\n')
    monkeypatch.setattr(gallery, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"methods/mine\.py: .* lacks 'In plain words"):
        gallery.render_method("mine", ["Mine", "nothing", "model", "no"], {}, [])


def test_the_pages_of_settings_have_everything_once():
    page = settings_pages.render_settings()
    assert re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE) == [
        field.name for field in sorted(list_names.read_fields(), key=lambda field: "." in field.name)
    ]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in page.splitlines() if line.startswith("|")} == {4}
    page = settings_pages.render_choices()
    names = [
        name for kind, entry in list_names.SECTIONS.items() if kind not in settings_pages.WITH_PAGES for name in entry.builders()
    ]
    for name in {name for entry in list_names.SECTIONS.values() for name in entry.builders()}:
        assert len(re.findall(rf"\n### {re.escape(name)}\n\n~~~text\n{re.escape(name)}\b", page)) == names.count(name), name
    assert page.count("\n~~~\n") == page.count("\n~~~text\n")


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_results_name_commands_and_files_that_are_there(file):
    text = file.read_text()
    for command, name in re.findall(r"`?fedjax-core (table|plan|analyse|run) ([\w/]+)", text):
        assert command in main.COMMANDS, command
        if command == "table":
            assert name in config_flags.list_bundled("table"), name
    for path in set(re.findall(r"(?<![\w/])(?:configs|methods|tests|docs)/[\w/]+\.(?:py|md|sh)\b", text)) - {"configs/X.py"}:
        assert (ROOT / path).exists(), path


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings in GitHub's form."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


GENERATED = {
    *(f"{folder}/index.md" for folder in ("methods", "sources", "networks")),
    "results/leaderboard.md",
    *(f"reference/{name}.md" for name in ("settings", "choices")),
}  # when the site is built


@pytest.mark.parametrize("page", [*PAGES, *RESULTS, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_links_of_a_page_lead_to_what_is_there(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        place, _, anchor = target.partition("#")
        if place.startswith(("http:", "https:", "mailto:")) or place in GENERATED or place.removeprefix("../") in GENERATED:
            continue
        found = (page.parent / place).resolve() if place else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), target


def test_the_first_page_of_results_links_every_other_one_and_so_does_the_site():
    page, nav = (ROOT / "configs" / "RESULTS.md").read_text(), (ROOT / "docs" / "mkdocs.yml").read_text()
    assert len(page.splitlines()) <= 90
    for name in result_pages.read_pages():
        assert f": {name}\n" in nav, name
        assert name == "results.md" or f"]({name})" in page, name
    for text in [*result_pages.read_pages().values(), *(result_pages.relink(page.read_text()) for page in PAGES)]:
        assert "RESULTS.md)" not in text
        assert "](../../" not in text


def test_the_readme_is_a_front_page():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len([line for line in lines if not line.startswith("| `")]) <= 100  # without the table of methods


def test_the_example_of_a_method_lives_outside(tmp_path):
    """Its tests and a run, in an empty folder and in separate processes."""
    for file in (ROOT / "docs" / "examples").glob("*.py"):
        shutil.copy(file, tmp_path)
    (tmp_path / "conftest.py").write_text("import jax\n\njax.config.update('jax_num_cpu_devices', 2)\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": quick.flags({}), "JAX_PLATFORMS": "cpu"}
    environment |= quick.cache_variables()

    def ended(*arguments: str) -> str:
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert re.search(r"\b10 passed", ended("pytest", "-q", "-p", "no:cacheprovider"))
    flags = ("--workdir=run", "--config.method.name=feddyn.py:feddyn", "--config.method.alpha=0.1", "--config.rounds=2")
    assert "accuracy" in ended("fedjax_core", "run", "fedavg:smoke", *flags)
