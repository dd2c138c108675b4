"""Makes the page "Leaderboard" from the fair table's table.csv, and prints that of any table.

python docs/leaderboard.py runs/mine/table.csv > leaderboard.md

All rows, columns and measures of the file are shown, with the intervals that it has.

`configs/results/fair.csv` is the table.csv of the published run. After another one, copy its
table.csv there: the site's page and what methods' pages say of it follow.
"""

import csv
import itertools
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "configs" / "results" / "fair.csv"
HEAD = """---
hide: [toc]
---

# Leaderboard

What each method reaches if all are tuned with the same budget. The protocol, the command and what was found are on
[the table's page](fair.md). All numbers are in %; of clients that are worse off, fewer are better. A click on a column's head
sorts by it.
"""
CAVEAT = re.compile(r"^\*\*Rows also differ.*?(?=\n\n)", re.DOTALL | re.MULTILINE)  # of the table's page
LEGEND = """Mean ± sample standard deviation over {seeds} seeds. **Bold**: the best. ≈: not distinguishable from the best: the 95 %
interval of the difference, by a paired bootstrap over seeds and clients, contains 0. Diverged trials: of those of the search, in
which they count as the worst. {intervals}
"""
NO_INTERVALS = "The published file has the marks of this comparison, but not the intervals themselves: ranks are of the means."
INTERVALS = "Square brackets: 95 % intervals of the rank and of the difference to {against}."
RANK_INTERVALS = "Square brackets: 95 % intervals of the rank."
Record = Mapping[str, str]


def read_records(file: Path = PUBLISHED) -> list[Record]:
    """Returns the cells of a table.csv, a record each; "mean" is empty where no seed has a number."""
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def find_best(records: Iterable[Record]) -> list[str]:
    """Returns the rows of the lowest rank, several where they are equal."""
    ranks = {record["row"]: float(record["rank"]) for record in records if record.get("rank")}
    return [row for row, rank in ranks.items() if rank == min(ranks.values())]


def count_seeds(records: Iterable[Record]) -> int:
    """Returns of how many seeds the row with most has numbers."""
    return max((int(record["n"]) for record in records), default=0)


def format_score(record: Record | None, best: Collection[str], seeds: int) -> str:
    """Returns a cell: mean ± deviation, whether it is the best or like the best, and lost seeds.

    Args:
      best: rows of the lowest rank; empty if the measure has no order.
      seeds: of rows that have lost none.
    """
    never = 0 if record is None else sum(name.startswith("seed_") and value == "never" for name, value in record.items())
    if record is None or not record["mean"]:
        return "never" if never else "—"
    text = f"{float(record['mean']):.1f}" + (f" ± {float(record['std']):.1f}" if record.get("std") else "")
    if record["row"] in best:
        text = f"**{text}**"
    if never:  # of rounds to a score, whose mean is of the seeds that reach it
        text += f" ({int(record['n']) - never} of {record['n']})"
    return text + (" ≈" if record.get("like_best") == "1" else "") + (f" ({record['n']} seeds)" if int(record["n"]) < seeds else "")


def format_interval(record: Record, name: str, digits: int, signed: bool = False) -> str:
    """Returns a number of a record with its interval; "—" if there is none."""
    if not record.get(name):
        return "—"
    sign = "+" if signed else ""
    ends = [record.get(f"{name}_{end}") for end in ("low", "high")]
    interval = " [{}]".format(", ".join(f"{float(end):{sign}.{digits}f}" for end in ends if end)) if all(ends) else ""
    return f"{float(record[name]):{sign}.{digits}f}{interval}"


def render_column(records: Sequence[Record], pages: Mapping[str, str]) -> str:
    """Returns the tables of one column of the table, a row for each method, best first.

    Args:
      records: of the column.
      pages: by row, the address of the method's page.
    """
    measures = list(dict.fromkeys(record["measure"] for record in records))
    cells = {(record["row"], record["measure"]): record for record in records}
    of_measure = {measure: [record for record in records if record["measure"] == measure] for measure in measures}
    best = {measure: find_best(part) for measure, part in of_measure.items()}
    seeds = {measure: count_seeds(part) for measure, part in of_measure.items()}
    first = {row: cells[row, measures[0]] for row in dict.fromkeys(record["row"] for record in records)}
    order = sorted(first, key=lambda row: _order_key(first[row]))
    against = _find_against(records)
    has_search = all(record.get("trials") for record in first.values())
    rows = []
    for row in order:
        rank = _format_rank(first[row])
        difference = [format_interval(first[row], "minus_against", 1, signed=True)] if against else []
        scores = [format_score(cells.get((row, measure)), best[measure], seeds[measure]) for measure in measures]
        lost = [f"{first[row]['diverged']} of {first[row]['trials']}"] if has_search else []
        rows.append([rank, _link(row, pages), scores[0], *difference, *scores[1:], *lost])
    heads = ["rank", "method", measures[0], *([f"minus {against}"] if against else []), *measures[1:]]
    heads += ["diverged trials"] if has_search else []
    alike = [row for row in order if first[row].get("like_best") == "1"]
    unranked = [row for row in order if first[row]["mean"] and not first[row].get("rank")]
    text = ""
    if leaders := best[measures[0]]:
        text = f"By {measures[0]}, the best is {'; '.join(leaders)}. Not distinguishable from it: {'; '.join(alike) or 'no other'}."
        text += f" Not compared, because seeds are missing: {'; '.join(unranked)}." if unranked else ""
    if against and any(first[row].get("minus_against_low") for row in order):
        level = [row for row in order if _contains_zero(first[row])]
        text += f" Not distinguishable from {against}: {'; '.join(level) or 'none'}."
    lines = [*_format_table(heads, rows), text, ""]
    others = [measure for measure in measures[1:] if any(cells.get((row, measure), {}).get("minus_against_low") for row in order)]
    if others:
        differences = [
            [_link(row, pages), *(format_interval(cells.get((row, m), {}), "minus_against", 1, signed=True) for m in others)]
            for row in order
        ]
        lines += [f"The other numbers minus {against}:", "", *_format_table(["method", *others], differences)]
    return "\n".join(lines)


def render_overview(records: Sequence[Record], pages: Mapping[str, str]) -> str:
    """Returns a table of the first measure with all columns side by side, by the mean of the ranks.

    Rows that lack a rank in a column come last.
    """
    columns = list(dict.fromkeys(record["column"] for record in records))
    measure = records[0]["measure"]
    chosen = [record for record in records if record["measure"] == measure]
    cells = {(record["row"], record["column"]): record for record in chosen}
    of_column = {column: [record for record in chosen if record["column"] == column] for column in columns}
    best = {column: find_best(part) for column, part in of_column.items()}
    seeds = {column: count_seeds(part) for column, part in of_column.items()}
    means = {}
    for row in dict.fromkeys(record["row"] for record in records):
        ranks = [float(cells.get((row, column), {}).get("rank") or "inf") for column in columns]
        means[row] = sum(ranks) / len(ranks)
    rows = []
    for row in sorted(means, key=lambda row: means[row]):
        scores = []
        for column in columns:
            record = cells.get((row, column), {"mean": ""})
            scores += [format_score(record, best[column], seeds[column]), _format_rank(record)]
        rows.append([f"{means[row]:.1f}" if means[row] < float("inf") else "—", _link(row, pages), *scores])
    heads = ["mean rank", "method", *(head for column in columns for head in (column, "rank"))]
    top = [row for row in means if all(row in best[c] or cells.get((row, c), {}).get("like_best") == "1" for c in columns)]
    text = f"By {measure}, the best or not distinguishable from it in all {len(columns)} columns: {'; '.join(top) or 'none'}."
    return "\n".join([*_format_table(heads, rows), text, ""])


def _link(row: str, pages: Mapping[str, str]) -> str:
    return f"[{row}]({pages[row]})" if row in pages else row


def _find_against(records: Iterable[Record]) -> str | None:
    return next((record["against"] for record in records if record.get("against")), None)


def _order_key(record: Record) -> tuple[float, float]:
    return float(record.get("rank") or "inf"), -float(record["mean"] or "-inf")


def _format_rank(record: Record) -> str:
    return re.sub(r"\.0\b", "", format_interval(record, "rank", 1))


def _format_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table that the page's script sorts; names are on the left."""
    rule = "|" + "".join("---|" if head == "method" else "--:|" for head in heads)
    body = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return ['<div class="sortable" markdown>', "", body[0], rule, *body[1:], "", "</div>", ""]


def _contains_zero(record: Record) -> bool:
    ends = [record.get(f"minus_against_{end}") for end in ("low", "high")]
    return all(ends) and float(ends[0] or 0) <= 0 <= float(ends[1] or 0)


def render_tables(records: Sequence[Record], pages: Mapping[str, str]) -> str:
    """Returns the tables of all columns, each below its name, and what their marks mean."""
    against = _find_against(records)
    ranked = any(record.get("rank_low") for record in records)
    intervals = INTERVALS.format(against=against) if against else RANK_INTERVALS if ranked else NO_INTERVALS
    parts = [LEGEND.format(seeds=count_seeds(records), intervals=intervals)]
    columns = itertools.groupby(sorted(records, key=_column_order(records)), lambda record: record["column"])
    tables = [(column, render_column(list(of_column), pages)) for column, of_column in columns]
    if len(tables) > 1:
        parts += ["## All columns", "", render_overview(records, pages)]
    for column, text in tables:
        parts += [f"## {column}", "", text]
    return "\n".join(parts)


def _column_order(records: Sequence[Record]) -> Any:
    columns = list(dict.fromkeys(record["column"] for record in records))
    return lambda record: columns.index(record["column"])


def map_rows() -> dict[str, str]:
    """Returns the name of the method of each row of the fair table, by the row's label."""
    from configs.tables import fair

    return {label: name for label, (name, _) in (fair.GLOBAL | fair.PERSONAL).items()}


def read_caveat() -> str:
    """Returns what the table's page says on how rows differ in more than their methods, or ""."""
    caveat = CAVEAT.search(PUBLISHED.with_suffix(".md").read_text(encoding="utf-8"))
    return caveat[0] if caveat else ""


def render_page() -> str:
    """Returns the page of the published run."""
    records = read_records()
    pages = {label: f"../methods/{name}.md" for label, name in map_rows().items()}
    return "\n".join([HEAD, read_caveat(), "", render_tables(records, pages)])


def on_files(files: Any, config: Any) -> Any:
    """Adds the page; mkdocs calls this."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "results/leaderboard.md", content=render_page()))
    return files


if __name__ == "__main__":
    sys.stdout.write(render_tables(read_records(Path(sys.argv[1])), {}))
