"""A table as files: Markdown, a CSV of one record per cell and measure, and LaTeX."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_core.atomic_files import write_csv, write_text
from fedjax_core.commands.tables import comparability, formatting, measures, reached, search_report
from fedjax_core.commands.tables.bootstrap_comparison import Compared, Known
from fedjax_core.commands.tables.definition import all_targets, paper_of
from fedjax_core.commands.tables.latex import latex
from fedjax_core.commands.tables.results import Contents
from fedjax_core.commands.tables.table_cells import configs_of

STYLE = formatting.Style(plus_minus="±", bold="**{}**", mark=" ({})", alike="≈")


def write(contents: Contents, folder: Path, known: Known | None = None) -> list[Path]:
    """Writes table.md, table.csv and table.tex, and with a search trials.csv, each atomically.

    Args:
      contents: of the table.
      folder: where the files go.
      known: intervals of earlier calls for this table, see `compare`.

    Raises:
      OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"table.{kind}" for kind in ("md", "csv", "tex")]
    grids = formatting.grids(contents, known)
    write_text(files[0], markdown(contents, grids))
    write_csv(files[1], records(contents, grids))
    write_text(files[2], latex(contents, grids))
    if contents.searches is not None and contents.searches.studies:
        files.append(folder / "trials.csv")
        write_csv(files[3], search_report.trials(contents.searches))
    return files


def markdown(contents: Contents, grids: Mapping[str, formatting.Grid] | None = None) -> str:
    """The table as Markdown: a grid per measure and one of its intervals, then costs, then what failed. `grids`: the cells by
    measure, if they are known already."""
    grids = formatting.grids(contents) if grids is None else grids
    table, every, seeds = contents.table, contents.every, contents.seeds
    lines = [f"# {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    done = sum(cell.name in contents.results for cell in every)
    state = "" if done == len(every) else f" {done} of {len(every)} runs are finished."
    lines += [f"Variant `{contents.variant}`; {formatting.over_seeds(seeds)}.{state}"]
    if differences := comparability.find_differences(table, configs_of(every)):
        lines += ["", "Rows differ in more than their methods, as the definition says:", ""]
        lines += [f"- {difference}" for difference in differences]
    papers = [paper_of(table, r.label, c.label, m.label) for m in table.measures for r in table.rows for c in table.columns]
    if sources := list(dict.fromkeys(paper[2] for paper in papers if paper)):
        deviates = ", ± as the paper has it," if any(paper and paper[1] is not None for paper in papers) else ""
        over = any(measures.target(measure) is not None for measure in table.measures)
        ratio = ", or of rounds to a target ours over it" if over else ""
        lines += ["", f"In brackets the published value{deviates} and ours minus it{ratio}: {'; '.join(sources)}."]
    for measure in table.measures:
        lines += ["", f"## {measure.label}", "", *_grid(contents, measure, grids[measure.label])]
        lines += _speedups(contents, measure, grids[measure.label])
        lines += _intervals(contents, measure, grids[measure.label])
    if contents.searches is not None and contents.searches.studies:
        lines += ["", "## Search", "", *search_report.lines(table.search, contents.searches)]
    lines += ["", "## Rounds, time and traffic", ""]
    targets = all_targets(table)
    if targets:
        lines += [
            f"Rounds to accuracies: the first evaluated one, of {table.measures[0].label}. Traffic: per client and round.",
            "",
        ]
    heads = ["", "", *(f"rounds to {100 * t:g} %" for t in targets), "s/round", "down", "up"]
    lines += [_line(*heads), _line("---", "---", *("--:" for _ in heads[2:]))]
    lines += [_line(row, column, *costs) for row, column, costs in formatting.costs(contents)]
    if contents.failures:
        lines += ["", "## Failed", ""]
        lines += [f"- {cell}: {contents.failures[cell.name]}" for cell in every if cell.name in contents.failures]
    return "\n".join(lines) + "\n"


def _grid(contents: Contents, measure: Any, cells: formatting.Grid) -> list[str]:
    """Caption, heads, and a line per row."""
    columns = contents.table.columns
    lines = [" ".join(formatting.caption(measure, cells)), ""]
    lines += [_line("", *(c.label for c in columns)), _line("---", *("--:" for _ in columns))]
    for row in contents.table.rows:
        shown = []
        for column in columns:
            place = row.label, column.label
            paper = formatting.published(cells.summaries[place], measure, STYLE)
            text = formatting.shown(cells, place, measure, len(contents.seeds), STYLE)
            shown.append((text + (f" [{paper}]" if paper else "")).strip())
        lines.append(_line(row.label, *shown))
    return lines


def _speedups(contents: Contents, measure: Any, cells: formatting.Grid) -> list[str]:
    """Of rounds to a target, how many times fewer they are than a named row's; nothing of other measures."""
    columns, against = contents.table.columns, contents.table.against
    if measures.target(measure) is None or against is None:
        return []
    lines = ["", f"How many times fewer rounds than {against}.", "", _line("", *(c.label for c in columns))]
    lines.append(_line("---", *("--:" for _ in columns)))
    for row in contents.table.rows:
        mine, others = ([cells.summaries[label, c.label] for c in columns] for label in (row.label, against))
        lines.append(_line(row.label, *map(reached.speedup, mine, others)))
    return lines


def _intervals(contents: Contents, measure: Any, cells: formatting.Grid) -> list[str]:
    """Ranks and differences of a measure, with their intervals; nothing where nothing was compared."""
    columns, against = contents.table.columns, contents.table.against
    places = [[(row.label, column.label) for column in columns] for row in contents.table.rows]
    said = [[formatting.intervals(cells, place, measure, against) for place in row] for row in places]
    if not any(map(any, said)):
        return []
    about = formatting.describe_intervals(cells, against)
    lines = ["", about, "", _line("", *(c.label for c in columns)), _line("---", *("--:" for _ in columns))]
    return lines + [_line(row.label, *cells) for row, cells in zip(contents.table.rows, said, strict=True)]


def _line(*cells: str) -> str:
    return "| " + " | ".join(text.replace("|", r"\|") for text in cells) + " |"


def records(contents: Contents, grids: Mapping[str, formatting.Grid] | None = None) -> list[dict[str, Any]]:
    """The table as records: one per row, column and measure. `grids`: the cells by measure, if they are known already."""
    grids = formatting.grids(contents) if grids is None else grids
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
                record |= _of_intervals(grids[measure.label].compared.get((row.label, column.label)), contents.table.against)
                if costs is not None:
                    record |= {
                        f"rounds_to_{target:g}": formatting.rounds(each).replace(",", "") for target, each in costs.reached.items()
                    }
                record["seconds_per_round"] = None if costs is None else _finite(costs.seconds)
                record["bytes_down"] = None if costs is None else costs.down
                record["bytes_up"] = None if costs is None else costs.up
                if contents.searches is not None and contents.searches.studies:
                    record |= search_report.record(contents.searches, (row.label, column.label))
                record |= {f"seed_{seed}": s.by_seed.get(seed) for seed in contents.seeds}
                if measures.target(measure) is not None:
                    record |= {name: "never" for name, value in record.items() if value == math.inf}
                found.append(record)
    return found


def _of_intervals(one: Compared | None, against: str | None) -> dict[str, Any]:
    """Of a cell that was compared; else empty cells."""
    values: dict[str, Any] = dict.fromkeys(("rank", "rank_low", "rank_high", "like_best", "intervals_over"))
    if against is not None:
        values |= {"against": against} | dict.fromkeys(("minus_against", "minus_against_low", "minus_against_high"))
    if one is not None:
        low, high = one.ranks or (None, None)
        values |= {"rank": one.rank, "rank_low": low, "rank_high": high, "like_best": int(one.like_best)}
        values |= {"intervals_over": one.over}
        if against is not None:
            low, high = one.differences or (None, None)
            values |= {"minus_against": one.difference, "minus_against_low": low, "minus_against_high": high}
    return values


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
