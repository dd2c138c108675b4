"""Writes a table as Markdown, as CSV with a record per cell and measure, and as LaTeX (package booktabs).

In LaTeX each measure, its intervals, what a search chose and the costs have a tabular each. Notes on
the numbers follow below it in lines that wrap. With `Table.latex` each tabular is in an environment of
its own, with caption and label.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedjax_core.atomic_files import reword_os_errors, write_csv, write_text
from fedjax_core.commands.tables import formatting, measures, search_report
from fedjax_core.commands.tables.bootstrap_comparison import Comparison
from fedjax_core.commands.tables.definition import all_targets, paper_value, slugify
from fedjax_core.commands.tables.results import Contents
from fedjax_core.commands.tables.table_cells import RUNS
from fedjax_core.commands.tables.trials import SearchProgress
from fedjax_core.reporting.terminal import markdown_row

KINDS = ("md", "csv", "tex")  # of files in a table's directory
MARKDOWN_STYLE = formatting.Style(plus_minus="±", bold="**{}**", mark=" ({})", alike="≈")
LATEX_STYLE = formatting.Style(plus_minus=r"$\pm$", bold=r"\textbf{{{}}}", mark="$^{{{}}}$", alike=r"$\approx$")
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "≈": r"$\approx$",
}
LATEX_MINUS = re.compile(r"(?<![\w.$])-(?=\d)")


def make_folder(folder: Path) -> None:
    """Creates a table's directory, or finds that of an earlier start.

    Raises:
      ValueError: it has files of something else, which the table's could replace.
    """
    with reword_os_errors("make the table's directory", folder):
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        if names and RUNS not in names and not {f"table.{kind}" for kind in KINDS} <= names:
            listed = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise ValueError(f"{folder} is not empty and holds no table (it has {listed}); give a new or an empty directory")
        (folder / RUNS).mkdir(parents=True, exist_ok=True)


def write_tables(contents: Contents, folder: Path) -> list[Path]:
    """Writes table.md, table.csv and table.tex, and with a search trials.csv, each atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"table.{kind}" for kind in KINDS]
    write_text(files[0], render_markdown(contents))
    write_csv(files[1], make_records(contents))
    write_text(files[2], render_latex(contents))
    if contents.searches is not None:
        files.append(folder / "trials.csv")
        write_csv(files[3], search_report.trial_records(contents.searches))
    else:
        (folder / "trials.csv").unlink(missing_ok=True)  # of a search that the definition no longer has
    return files


def remove_differences(folder: Path) -> None:
    """Deletes the figure of differences, which may be of an earlier state of the table."""
    for ending in ("png", "pdf", "csv"):
        (folder / f"differences.{ending}").unlink(missing_ok=True)


def render_markdown(contents: Contents) -> str:
    """Returns Markdown: cells and intervals of each measure, then costs and failures."""
    table, every, seeds = contents.table, contents.every, contents.seeds
    lines = [f"# {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    done = sum(cell.name in contents.results for cell in every)
    state = "" if done == len(every) else f" {done} of {len(every)} runs are finished."
    lines += [f"Variant `{contents.variant}`; {formatting.describe_seeds(seeds)}.{state}"]
    if contents.differences:
        lines += ["", "Rows differ in more than their methods, as the definition says:", ""]
        lines += [f"- {difference}" for difference in contents.differences]
    papers = [paper_value(table, r.label, c.label, m.label) for m in table.measures for r in table.rows for c in table.columns]
    if sources := list(dict.fromkeys(paper[2] for paper in papers if paper)):
        deviates = ", ± as the paper has it," if any(paper and paper[1] is not None for paper in papers) else ""
        over = any(measures.rounds_target(measure) is not None for measure in table.measures)
        ratio = ", or of rounds to a target ours over it" if over else ""
        lines += ["", f"In brackets the published value{deviates} and ours minus it{ratio}: {'; '.join(sources)}."]
        if contents.settings:
            lines += [f"It is of the paper's setting, ours of variant `{contents.variant}`:", ""]
            lines += [f"- {setting}" for setting in contents.settings]
    for measure in table.measures:
        cells = formatting.make_grid(contents, measure)
        lines += ["", f"## {measure.label}", "", *_markdown_grid(contents, measure, cells)]
        lines += _markdown_speedups(contents, measure, cells)
        lines += _markdown_intervals(contents, measure, cells)
    if contents.searches is not None:
        lines += ["", "## Search", "", *search_report.render_report(table.search, contents.searches)]
    lines += ["", "## Rounds, time and traffic", ""]
    targets = all_targets(table)
    if targets:
        lines += [
            f"Rounds to accuracies: the first evaluated one, of {table.measures[0].label}. Traffic: per client and round.",
            "",
        ]
    heads = ["", "", *(f"rounds to {100 * t:g} %" for t in targets), "s/round", "down", "up"]
    lines += [markdown_row(*heads), markdown_row("---", "---", *("--:" for _ in heads[2:]))]
    lines += [markdown_row(row, column, *costs) for row, column, costs in formatting.format_costs(contents)]
    lines += _markdown_failures(contents)
    return "\n".join(lines) + "\n"


def _markdown_failures(contents: Contents) -> list[str]:
    """Returns why cells failed, a line for each reason; nothing where none did."""
    cells_of: dict[str, list[str]] = {}
    for cell in contents.every:
        if cell.name in contents.failures:
            cells_of.setdefault(contents.failures[cell.name], []).append(str(cell))
    more = lambda cells: f" and {len(cells) - 1} more" if len(cells) > 1 else ""
    lines = [f"- {cells[0]}{more(cells)}: {why}" for why, cells in cells_of.items()]
    return ["", "## Failed", "", *lines] if contents.failures else []


def _markdown_head(columns: Sequence[Any]) -> list[str]:
    return [markdown_row("", *(c.label for c in columns)), markdown_row("---", *("--:" for _ in columns))]


def _markdown_grid(contents: Contents, measure: Any, cells: formatting.Grid) -> list[str]:
    columns = contents.table.columns
    lines = [" ".join(formatting.describe_measure(measure, cells)), "", *_markdown_head(columns)]
    for row in contents.table.rows:
        shown = []
        for column in columns:
            pair = row.label, column.label
            paper = formatting.format_paper(cells.summaries[pair], measure, MARKDOWN_STYLE)
            text = formatting.format_cell(cells, pair, measure, len(contents.seeds), MARKDOWN_STYLE)
            shown.append((text + (f" [{paper}]" if paper else "")).strip())
        lines.append(markdown_row(row.label, *shown))
    return lines


def _markdown_speedups(contents: Contents, measure: Any, cells: formatting.Grid) -> list[str]:
    """Returns by which factor a target is reached in fewer rounds than by the row `against`."""
    columns, against = contents.table.columns, contents.table.against
    if measures.rounds_target(measure) is None or against is None:
        return []
    fewer = "less time" if measures.counts_seconds(measure) else "fewer rounds"
    lines = ["", f"How many times {fewer} than {against}.", "", *_markdown_head(columns)]
    for row in contents.table.rows:
        ours, others = ([cells.summaries[label, c.label] for c in columns] for label in (row.label, against))
        lines.append(markdown_row(row.label, *map(formatting.format_speedup, ours, others)))
    return lines


def _markdown_intervals(contents: Contents, measure: Any, cells: formatting.Grid) -> list[str]:
    """Returns ranks and differences with their intervals; nothing where nothing was compared."""
    intervals = formatting.format_interval_rows(contents, measure, cells)
    if not intervals:
        return []
    lines = ["", formatting.describe_intervals(cells, contents.table.against), "", *_markdown_head(contents.table.columns)]
    return lines + [markdown_row(row.label, *texts) for row, texts in zip(contents.table.rows, intervals, strict=True)]


def make_records(contents: Contents) -> list[dict[str, Any]]:
    """Returns a record per row, column and measure, for table.csv."""
    csv_records = []
    for measure in contents.table.measures:
        cells = formatting.make_grid(contents, measure)
        for row in contents.table.rows:
            for column in contents.table.columns:
                s = cells.summaries[row.label, column.label]
                costs = contents.costs(row.label, column.label)
                value, std, source = s.paper or (None, None, None)
                record = {"row": row.label, "column": column.label, "measure": measure.label, "statistic": measure.statistic}
                record |= {"score": " ".join(s.scores), "n": s.n}
                record |= {"mean": formatting.finite_or_none(s.mean), "std": formatting.finite_or_none(s.std)}
                record |= {"paper": value, "paper_std": std, "source": source}
                record["difference"] = formatting.finite_or_none(s.difference)
                record |= _interval_fields(cells.compared.get((row.label, column.label)), contents.table.against)
                if costs is None:
                    record |= dict.fromkeys(("seconds_per_round", "bytes_down", "bytes_up"))
                else:
                    for target, reached in costs.reached.items():
                        record[f"rounds_to_{target:g}"] = formatting.format_rounds(reached).replace(",", "")
                    record |= {"seconds_per_round": formatting.finite_or_none(costs.seconds)}
                    record |= {"bytes_down": costs.down, "bytes_up": costs.up}
                if contents.searches is not None:
                    record |= search_report.chosen_fields(contents.searches, (row.label, column.label))
                record |= {f"seed_{seed}": s.by_seed.get(seed) for seed in contents.seeds}
                if measures.rounds_target(measure) is not None:
                    record |= {name: "never" for name, value in record.items() if value == math.inf}
                csv_records.append(record)
    return csv_records


def _interval_fields(comparison: Comparison | None, against: str | None) -> dict[str, Any]:
    """Returns the fields of table.csv on a cell's intervals; empty ones if it was not compared."""
    values: dict[str, Any] = dict.fromkeys(("rank", "rank_low", "rank_high", "like_best", "intervals_over"))
    if against is not None:
        values |= {"against": against} | dict.fromkeys(("minus_against", "minus_against_low", "minus_against_high"))
    if comparison is not None:
        low, high = comparison.rank_interval or (None, None)
        values |= {"rank": comparison.rank, "rank_low": low, "rank_high": high, "like_best": int(comparison.is_like_best)}
        values |= {"intervals_over": comparison.resampled}
        if against is not None:
            low, high = comparison.difference_interval or (None, None)
            values |= {"minus_against": comparison.difference, "minus_against_low": low, "minus_against_high": high}
    return values


def render_latex(contents: Contents) -> str:
    """Returns the file's text."""
    blocks = [f"% {contents.table.title}; needs \\usepackage{{booktabs}}"]
    for measure in contents.table.measures:
        cells = formatting.make_grid(contents, measure)
        blocks.append(_latex_measure(contents, measure, cells))
        if intervals := _latex_intervals(contents, measure, cells):
            blocks.append(intervals)
    if contents.searches is not None:
        blocks.append(_latex_search(contents.table, contents.searches))
    blocks.append(_latex_costs(contents))
    return "\n\n".join(blocks) + "\n"


def _latex_measure(contents: Contents, measure: Any, cells: formatting.Grid) -> str:
    """Returns the cells of one measure; a published value is below ours."""
    columns, seeds = contents.table.columns, len(contents.seeds)
    lines = [_latex_row("", *(escape_latex(column.label) for column in columns)), r"\midrule"]
    for row in contents.table.rows:
        pairs = [(row.label, column.label) for column in columns]
        shown = [formatting.format_cell(cells, pair, measure, seeds, LATEX_STYLE) for pair in pairs]
        lines.append(_latex_row(escape_latex(row.label), *map(_latex_minus, shown)))
        if any(cells.summaries[pair].paper for pair in pairs):
            papers = [formatting.format_paper(cells.summaries[pair], measure, LATEX_STYLE) for pair in pairs]
            beside = "difference" if measures.rounds_target(measure) is None else "ratio"
            lines.append(_latex_row(rf"\quad paper, {beside}", *map(_latex_minus, papers)))
    notes = [formatting.describe_seeds(contents.seeds), *formatting.describe_measure(measure, cells, formatting.describe_score)]
    sources = dict.fromkeys(s.paper[2] for s in cells.summaries.values() if s.paper)
    if sources:
        ours = [f"Ours, variant {contents.variant}: {setting}" for setting in contents.settings]
        notes += [f"Paper: {'; '.join(sources)}", *ours]
    notes += [f"Rows differ in {difference}" for difference in contents.differences]
    notes += [contents.table.note] if contents.table.note else []
    what = f"{measure.label}{measures.describe_unit(measure)}"
    return _latex_environment(contents.table, what, measure.label, "l" + "r" * len(columns), lines, notes)


def _latex_intervals(contents: Contents, measure: Any, cells: formatting.Grid) -> str:
    rows, columns, against = contents.table.rows, contents.table.columns, contents.table.against
    intervals = formatting.format_interval_rows(contents, measure, cells)
    if not intervals:
        return ""
    lines = [_latex_row("", *(escape_latex(column.label) for column in columns)), r"\midrule"]
    lines += [_latex_row(escape_latex(row.label), *map(_latex_minus, texts)) for row, texts in zip(rows, intervals, strict=True)]
    notes = [formatting.describe_intervals(cells, against), *formatting.describe_few_seeds(cells)]
    name = f"{measure.label}, intervals"
    return _latex_environment(contents.table, name, name, "l" + "r" * len(columns), lines, notes)


def _latex_search(table: Any, searches: SearchProgress) -> str:
    lines = [_latex_row(*map(escape_latex, search_report.HEADS)), r"\midrule"]
    lines += [_latex_row(*map(escape_latex, cells)) for cells in search_report.report_rows(table.search, searches)]
    notes = [search_report.describe_search(table.search, search_report.find_rungs(searches), formatting.describe_score)]
    return _latex_environment(table, "search", "search", f"llrl{'r' * 3}l", lines, notes)


def _latex_costs(contents: Contents) -> str:
    targets = [escape_latex(f"to {100 * target:g} %") for target in all_targets(contents.table)]
    heads = ["", "", *targets, "s/round", "down", "up"]
    lines = [_latex_row(*heads), r"\midrule"]
    for row, column, costs in formatting.format_costs(contents):
        lines.append(_latex_row(escape_latex(row), escape_latex(column), *costs))
    name = "rounds, time, traffic"
    return _latex_environment(contents.table, name, name, f"ll{'r' * (len(heads) - 2)}", lines, [])


def _latex_environment(table: Any, what: str, name: str, form: str, lines: Sequence[str], notes: Sequence[str]) -> str:
    """Returns a tabular with its notes, in the environment that the table asks for.

    Args:
      what: the tabular has, for a comment.
      name: for caption and label.
      form: of the columns.
      lines: of the tabular, between its rules.
      notes: sentences for below it.
    """
    tabular = [rf"\begin{{tabular}}{{{form}}}", r"\toprule", *lines, r"\bottomrule", r"\end{tabular}"]
    below = [r"\par\smallskip", r"\noindent\begin{minipage}{\linewidth}", r"\footnotesize\raggedright"]
    below = [*below, *map(_latex_sentence, notes), r"\end{minipage}"] if notes else []
    options, several = table.latex, len(table.measures) > 1
    if options is None or options.environment is None:
        return "\n".join([f"% {what}", *tabular, *below])
    of_measure = several or name != table.measures[0].label
    caption = escape_latex(table.title) if options.caption is None else options.caption
    if of_measure:
        caption = f"{caption.removesuffix('.')}: {escape_latex(name)}"
    label = options.label or f"tab:{slugify(table.title)}"
    label += f"-{slugify(name)}" if of_measure else ""
    opening = [
        rf"\begin{{{options.environment}}}[{options.placement}]",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{{label}}}",
    ]
    return "\n".join([f"% {what}", *opening, *tabular, *below, rf"\end{{{options.environment}}}"])


def _latex_sentence(note: str) -> str:
    note = note.rstrip(".").replace("`", "")
    return f"{escape_latex(note[:1].upper() + note[1:])}.".replace(r" \%", r"~\%")


def escape_latex(text: str) -> str:
    """Returns a text with LaTeX's special characters escaped."""
    return "".join(LATEX_SPECIAL.get(c, rf"\{c}" if c in "&%$#_{}" else c) for c in text)


def _latex_minus(text: str) -> str:
    """Returns numbers below 0 with a minus sign in place of a hyphen."""
    return LATEX_MINUS.sub("$-$", text)


def _latex_row(*cells: str) -> str:
    opens = "{}" if cells[0].lstrip().startswith(("[", "*")) else ""  # else an option of the line above
    return opens + " & ".join(cells) + r" \\"
