"""Makes the page "Choose a method" and a page for each method when the site is built.

They are made from the README's table, the methods' docstrings, the traced shapes of messages and
the fair table's results.
"""

import ast
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from leaderboard import Record, count_seeds, find_best, format_interval, format_score, map_rows, read_caveat, read_records
from markup import escape, format_docstring, format_prose, format_table
from messages import trace_all

ROOT = Path(__file__).resolve().parents[1]
SUMMARY = re.compile(r"^In plain words: (?P<words>.*?)^Sent to clients: (?P<down>.*?)\.\n\n", re.DOTALL | re.MULTILINE)
PITFALLS = ("It may diverge", "**It may diverge", "Pitfalls", "Unseen clients")  # how paragraphs on limits begin
HEAD = """---
hide: [toc]
---

# Choose a method

Every method below runs with `fedjax-core run NAME --workdir=DIR`. All of them share data, networks, evaluation and the compiled
round, so two methods differ only in what their pages say. K is the number of classes and D the number of features.

| you want | look at |
|---|---|
| one model for all clients | FedAvg, then SCAFFOLD, FedDyn, FedDC, FedProx, FedOpt, FedACG, FedSAM |
| a fair share for the worst clients | q-FedAvg, AFL |
| clients that lack classes | FedLC, FedNTD, FedSKC |
| a model for each client | Local (the baseline to beat), FedAvg with fine-tuning, FedPer, Ditto, FedPFT |
| a model for each group of clients | IFCA, CFL |
| clients with different networks | FedHe, FedProto, FedMD, FedDF, FML, FedHPL; of different widths HeteroFL, FedRolex |
| clients without a server, or with servers between | DFedAvg, HierFAVG |
| adapters of a frozen network | FedIT, FedEx-LoRA, FFA-LoRA, FLoRA; with personal ones FedSA-LoRA, PerAda, FedOA |
| adapters of several ranks | HetLoRA, FlexLoRA |

The [leaderboard](../results/leaderboard.md) compares those that were tuned with equal budgets.

## All methods

"""
WORSE_OFF, UNSEEN = "clients worse off than with Local", "unseen clients"  # measures of the fair table
MANY, LOSS = 25, 5  # % of clients worse off, points behind FedAvg, from which on a page mentions them
TARGETS = {"classes": "classes", "labels": "several labels", "numbers": "numbers", "tokens": "tokens"}


def read_method_table(readme: str) -> dict[str, list[str]]:
    """Returns the README's table of methods: by name, the other four cells."""
    lines = re.findall(r"^\| `(\w+)` \|(.*)\|$", readme, re.MULTILINE)
    table = {name: [cell.strip() for cell in rest.split("|")] for name, rest in lines}
    return {name: cells for name, cells in table.items() if len(cells) == 4}


class Description(NamedTuple):
    """What a method's docstring says.

    Attributes:
      title, claim: its first line, before and after the colon.
      words: in plain words.
      down: what is sent to clients.
      rest: citation, symbols, departures.
    """

    title: str
    claim: str
    words: str
    down: str
    rest: str


def read_docstring(name: str) -> Description:
    """Reads a method's docstring.

    Raises:
      ValueError: its docstring does not say it in plain words.
    """
    source = (ROOT / "methods" / f"{name}.py").read_text(encoding="utf-8")
    first, _, rest = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    summary = SUMMARY.match(rest)
    if summary is None:
        raise ValueError(
            f"methods/{name}.py: below its first line the docstring lacks 'In plain words: ...' and 'Sent to clients: ...'"
        )
    title, _, claim = first.partition(": ")
    return Description(title, claim, " ".join(summary["words"].split()), summary["down"], rest[summary.end() :])


def render_method(name: str, cells: Sequence[str], facts: Mapping[str, Any], results: Sequence[Record]) -> str:
    """Returns the page of one method: what it is, its paper, what travels, when it helps, its pitfalls.

    Args:
      cells: of the README's table.
      facts: of `messages.trace_message`.
      results: all records of the fair table.
    """
    citation, client_state, uplink, may_differ = cells
    described = read_docstring(name)
    paragraphs = re.split(r"\n\s*\n", described.rest.strip())
    is_pitfall = [paragraph.startswith(PITFALLS) for paragraph in paragraphs]
    pitfalls = [paragraph for paragraph, flag in zip(paragraphs, is_pitfall, strict=True) if flag]
    paper = [paragraph for paragraph, flag in zip(paragraphs, is_pitfall, strict=True) if not flag]
    return "\n".join(
        [
            f"# {described.title}",
            "",
            f"*{citation}*: {format_prose(described.claim)}",
            "",
            format_prose(described.words),
            "",
            '<div class="messages">',
            f"<div><b>server</b></div><div>{html.escape(described.down)} →<br>← {html.escape(uplink or 'nothing')}</div>",
            f"<div><b>client</b> keeps: {html.escape(client_state)}</div>",
            "</div>",
            "",
            f"`fedjax-core run {name} --workdir=DIR` runs it. Config: `configs/{name}.py`, with the variants `smoke`, `small` and "
            f"`paper`. Code: `methods/{name}.py`. Models of clients may differ: {may_differ}.",
            "",
            "## What travels",
            "",
            *_render_messages(name, facts),
            "## When it helps",
            "",
            *_render_results(name, results),
            "## Pitfalls",
            "",
            *_render_limits(facts, _find_records(name, results), results),
            *format_docstring("\n\n".join(pitfalls)),
            "## Paper and departures",
            "",
            *format_docstring("\n\n".join(paper)),
            f"## Options\n\n`fedjax-core list methods {name}` shows all with their defaults.\n\n::: methods.{name}.{name}\n",
        ]
    )


def _render_messages(name: str, facts: Mapping[str, Any]) -> list[str]:
    down, up = facts["bytes"]
    rows = [
        ["to a client" if way == "down" else "to the server", f"`{part}`", shapes, f"{numbers:,}"]
        for way in ("down", "up")
        for part, shapes, numbers in facts[way]
    ]
    text = f"Traced shapes of `fedjax-core run {name}:smoke` ({escape(facts['setting'])}), for one client and one round."
    table = format_table(["", "part", "arrays", "numbers"], rows) if rows else ["Nothing travels."]
    state = f" A client keeps {facts['state']:,} bytes between rounds." if facts["state"] else ""
    return [text, "", *table, "", f"As transmitted: {down:,.0f} bytes down, {up:,.0f} bytes up.{state}", ""]


def _find_records(name: str, results: Sequence[Record]) -> list[Record]:
    return [record for record in results if map_rows().get(record["row"]) == name]


def _render_results(name: str, results: Sequence[Record]) -> list[str]:
    records = _find_records(name, results)
    if not records:
        label = next((label for label, method in map_rows().items() if method == name), None)
        later = f"`fedjax-core table fair --only='{label}'` measures it." if label else ""
        return [f"It is not in the published [table of tuned methods](../results/leaderboard.md). {later}".strip(), ""]
    columns = list(dict.fromkeys(record["column"] for record in records))
    rows = []
    for measure in dict.fromkeys(record["measure"] for record in records):
        cells = {record["column"]: record for record in records if record["measure"] == measure}
        rows.append([measure, *(_format_result(cells.get(column), results) for column in columns)])
    texts = [_compare(records, results, column) for column in columns]
    legend = "In %, mean ± deviation over seeds. **Bold**: the best of its column; ≈: not distinguishable from the best."
    legend += " Some rows of this run [differ in more than their method](../results/leaderboard.md)." if read_caveat() else ""
    return [*texts, "", f"{legend} [Leaderboard](../results/leaderboard.md).", "", *format_table(["", *columns], rows), ""]


def _format_result(record: Record | None, results: Sequence[Record]) -> str:
    if record is None:
        return "—"
    rivals = [other for other in results if (other["column"], other["measure"]) == (record["column"], record["measure"])]
    ranked = sum(bool(rival.get("rank")) for rival in rivals)
    rank = f", rank {float(record['rank']):g} of {ranked}" if record.get("rank") else ""
    return format_score(record, find_best(rivals), count_seeds(rivals)) + rank


def _compare(records: Sequence[Record], results: Sequence[Record], column: str) -> str:
    """Returns a sentence on the first measure: the distances to FedAvg and Local."""
    ours = next(record for record in records if record["column"] == column)
    rivals = {r["row"]: r for r in results if (r["column"], r["measure"]) == (column, ours["measure"])}
    against = "minus_against" if ours.get("minus_against") else None
    parts = [f"{format_interval(ours, against, 1, signed=True)} to {ours['against']}"] if against else []
    for row in ("FedAvg", "Local"):
        if row != ours["row"] and row in rivals and not (against and row == ours["against"]):
            parts.append(f"{float(ours['mean']) - float(rivals[row]['mean']):+.1f} to {row}")
    return f"- {column}, points of {ours['measure']}: {', '.join(parts)}." if parts else ""


def _render_limits(facts: Mapping[str, Any], records: Sequence[Record], results: Sequence[Record]) -> list[str]:
    """Returns what the code refuses, and where the table shows a loss."""
    missing = [text for kind, text in TARGETS.items() if kind not in facts["targets"]]
    lines = (
        [f"- It learns {', '.join(TARGETS[kind] for kind in facts['targets'])}, and refuses {', '.join(missing)}."]
        if missing
        else []
    )
    lines += [f"- {escape(facts['unseen'])}."] if facts["unseen"] else []
    if facts["state"]:
        lines.append("- Clients keep a state: one that is sampled seldom comes back with an old one.")
    seeds = max(int(record["n"]) for record in results)
    for record in records:
        column, mean = record["column"], float(record["mean"] or "nan")
        if record["measure"] == results[0]["measure"] and int(record["n"]) < seeds:
            lines.append(f"- {column}: with the tuned settings {seeds - int(record['n'])} of {seeds} seeds diverged.")
        if record["measure"] == WORSE_OFF and mean > MANY:
            lines.append(f"- {column}: {mean:.0f} % of the clients are worse off than if they trained alone.")
        of_fedavg = next(
            (float(r["mean"]) for r in results if (r["row"], r["column"], r["measure"]) == ("FedAvg", column, UNSEEN)), None
        )
        if record["measure"] == UNSEEN and of_fedavg is not None and mean < of_fedavg - LOSS:
            lines.append(f"- {column}: unseen clients have {mean:.1f} %, with FedAvg {of_fedavg:.1f} %.")
    return [*lines, ""]


def render_page() -> str:
    """Returns the overview: a line for each method."""
    rows = []
    for name, (citation, client_state, uplink, _) in read_method_table(_readme()).items():
        described = read_docstring(name)
        rows.append([f"[{described.title}]({name}.md)", format_prose(described.claim), citation, client_state, uplink])
    return HEAD + "\n".join(format_table(["method", "what it does", "paper", "client state", "uplink"], rows)) + "\n"


def _readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def on_config(config: Any) -> Any:
    """Lists the methods' pages below the overview in the navigation; mkdocs calls this."""
    pages: list[Any] = [{read_docstring(name).title: f"methods/{name}.md"} for name in read_method_table(_readme())]
    expand_navigation(config.nav, "methods/index.md", pages)
    return config


def expand_navigation(nav: list[Any], overview: str, pages: list[Any]) -> None:
    """Replaces the entry of an overview by a section of it and of its pages, in place."""
    for entry in nav:
        for title, value in entry.items():
            if value == overview:
                entry[title] = [overview, *pages]
            elif isinstance(value, list):
                expand_navigation([inner for inner in value if isinstance(inner, dict)], overview, pages)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages; mkdocs calls this."""
    from mkdocs.structure.files import File

    facts, results = trace_all(), [record for record in read_records() if record["mean"]]
    files.append(File.generated(config, "methods/index.md", content=render_page()))
    for name, cells in read_method_table(_readme()).items():
        content = render_method(name, cells, facts[name], results)
        files.append(File.generated(config, f"methods/{name}.md", content=content))
    return files
