"""A table as files: Markdown, a CSV of one record per cell and measure, and LaTeX."""

import math
from pathlib import Path
from typing import Any

from fedjax_core.commands.tables import texts
from fedjax_core.commands.tables.definition import all_targets, paper_of
from fedjax_core.commands.tables.latex import latex
from fedjax_core.commands.tables.results import Contents
from fedjax_core.storage.workdir import write_csv, write_text

STYLE = texts.Style(plus_minus="±", bold="**{}**", mark=" ({})")


def write(contents: Contents, folder: Path) -> list[Path]:
    """Writes table.md, table.csv and table.tex, each atomically.

    Raises:
      OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"table.{kind}" for kind in ("md", "csv", "tex")]
    write_text(files[0], markdown(contents))
    write_csv(files[1], records(contents))
    write_text(files[2], latex(contents))
    return files


def markdown(contents: Contents) -> str:
    """The table as Markdown: a grid per measure, then costs, then what failed."""
    table, every, seeds = contents.table, contents.every, contents.seeds
    lines = [f"# {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    done = sum(cell.name in contents.results for cell in every)
    state = "" if done == len(every) else f" {done} of {len(every)} runs are finished."
    lines += [f"Variant `{contents.variant}`; {texts.over_seeds(seeds)}.{state}"]
    papers = [paper_of(table, r.label, c.label, m.label) for m in table.measures for r in table.rows for c in table.columns]
    if sources := list(dict.fromkeys(paper[2] for paper in papers if paper)):
        deviates = ", ± as the paper has it," if any(paper and paper[1] is not None for paper in papers) else ""
        lines += ["", f"In brackets the published value{deviates} and ours minus it: {'; '.join(sources)}."]
    for measure in table.measures:
        lines += ["", f"## {measure.label}", "", *_grid(contents, measure)]
    lines += ["", "## Rounds, time and traffic", ""]
    targets = all_targets(table)
    if targets:
        lines += [
            f"Rounds to accuracies: the first evaluated one, of {table.measures[0].label}. Traffic: per client and round.",
            "",
        ]
    heads = ["", "", *(f"rounds to {100 * t:g} %" for t in targets), "s/round", "down", "up"]
    lines += [_line(*heads), _line("---", "---", *("--:" for _ in heads[2:]))]
    lines += [_line(row, column, *costs) for row, column, costs in texts.costs(contents)]
    if contents.failures:
        lines += ["", "## Failed", ""]
        lines += [f"- {cell}: {contents.failures[cell.name]}" for cell in every if cell.name in contents.failures]
    return "\n".join(lines) + "\n"


def _grid(contents: Contents, measure: Any) -> list[str]:
    """Caption, heads, and a line per row."""
    columns, cells = contents.table.columns, texts.grid(contents, measure)
    lines = [" ".join(texts.caption(measure, cells)), ""]
    lines += [_line("", *(c.label for c in columns)), _line("---", *("--:" for _ in columns))]
    for row in contents.table.rows:
        shown = []
        for column in columns:
            place = row.label, column.label
            paper = texts.published(cells.summaries[place], measure, STYLE)
            text = texts.shown(cells, place, measure, len(contents.seeds), STYLE)
            shown.append((text + (f" [{paper}]" if paper else "")).strip())
        lines.append(_line(row.label, *shown))
    return lines


def _line(*cells: str) -> str:
    return "| " + " | ".join(text.replace("|", r"\|") for text in cells) + " |"


def records(contents: Contents) -> list[dict[str, Any]]:
    """The table as records: one per row, column and measure."""
    found = []
    for measure in contents.table.measures:
        for row in contents.table.rows:
            for column in contents.table.columns:
                s = contents.summary(row.label, column.label, measure)
                costs = contents.costs(row.label, column.label)
                value, std, source = s.paper or (None, None, None)
                record = {"row": row.label, "column": column.label, "measure": measure.label, "statistic": measure.statistic}
                record |= {"score": " ".join(s.scores), "n": s.n, "mean": _finite(s.mean), "std": _finite(s.std)}
                record |= {"paper": value, "paper_std": std, "source": source, "difference": _finite(s.difference)}
                if costs is not None:
                    record |= {f"rounds_to_{target:g}": texts.rounds(reached) for target, reached in costs.reached.items()}
                record["seconds_per_round"] = None if costs is None else _finite(costs.seconds)
                record["bytes_down"] = None if costs is None else costs.down
                record["bytes_up"] = None if costs is None else costs.up
                record |= {f"seed_{seed}": s.by_seed.get(seed) for seed in contents.seeds}
                found.append(record)
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
