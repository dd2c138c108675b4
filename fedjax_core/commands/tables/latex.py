"""A table as LaTeX (package booktabs).

Each measure has a tabular, and so have ranks and differences, what a search chose, and costs. What
is to be known of the numbers stands below each in lines that wrap. With `Table.latex` each stands in
an environment of its own, with caption and label.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_core.commands.tables import comparability, formatting, measures, places, search_report
from fedjax_core.commands.tables.definition import all_targets
from fedjax_core.commands.tables.results import Contents
from fedjax_core.commands.tables.table_cells import configs_of
from fedjax_core.commands.tables.trials import Searches

STYLE = formatting.Style(plus_minus=r"$\pm$", bold=r"\textbf{{{}}}", mark="$^{{{}}}$", alike=r"$\approx$")
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "≈": r"$\approx$",
}
MINUS = re.compile(r"(?<![\w.$])-(?=\d)")


def latex(contents: Contents, grids: Mapping[str, formatting.Grid] | None = None) -> str:
    """Returns the file's text.

    Args:
      contents: of the table.
      grids: the cells by measure, if they are known already.
    """
    grids = formatting.grids(contents) if grids is None else grids
    blocks = [f"% {contents.table.title}; needs \\usepackage{{booktabs}}"]
    for measure in contents.table.measures:
        blocks.append(_write_measure(contents, measure, grids[measure.label]))
        if intervals := _write_intervals(contents, measure, grids[measure.label]):
            blocks.append(intervals)
    if contents.searches is not None and contents.searches.studies:
        blocks.append(_write_search(contents.table, contents.searches))
    blocks.append(_write_costs(contents))
    return "\n\n".join(blocks) + "\n"


def _write_measure(contents: Contents, measure: Any, cells: formatting.Grid) -> str:
    """Returns the cells of one measure; a published value stands below ours."""
    columns, seeds = contents.table.columns, len(contents.seeds)
    lines = [_join_cells("", *(escaped(column.label) for column in columns)), r"\midrule"]
    for row in contents.table.rows:
        pairs = [(row.label, column.label) for column in columns]
        shown = [formatting.shown(cells, pair, measure, seeds, STYLE) for pair in pairs]
        lines.append(_join_cells(escaped(row.label), *map(_with_minus, shown)))
        if any(cells.summaries[pair].paper for pair in pairs):
            papers = [formatting.published(cells.summaries[pair], measure, STYLE) for pair in pairs]
            beside = "difference" if measures.target(measure) is None else "ratio"
            lines.append(_join_cells(rf"\quad paper, {beside}", *map(_with_minus, papers)))
    notes = [formatting.over_seeds(contents.seeds), *formatting.caption(measure, cells, formatting.describe_score)]
    sources = dict.fromkeys(s.paper[2] for s in cells.summaries.values() if s.paper)
    notes += [f"Paper: {'; '.join(sources)}"] if sources else []
    differences = comparability.find_differences(contents.table, configs_of(contents.every))
    notes += [f"Rows differ in {difference}" for difference in differences]
    notes += [contents.table.note] if contents.table.note else []
    what = f"{measure.label}{measures.unit(measure)}"
    return _wrap(contents.table, what, measure.label, "l" + "r" * len(columns), lines, notes)


def _write_intervals(contents: Contents, measure: Any, cells: formatting.Grid) -> str:
    """Returns ranks and differences with their intervals; empty where nothing was compared."""
    columns, against = contents.table.columns, contents.table.against
    lines = [_join_cells("", *(escaped(column.label) for column in columns)), r"\midrule"]
    is_empty = True
    for row in contents.table.rows:
        pairs = [(row.label, column.label) for column in columns]
        said = [formatting.intervals(cells, pair, measure, against) for pair in pairs]
        is_empty = is_empty and not any(said)
        lines.append(_join_cells(escaped(row.label), *map(_with_minus, said)))
    if is_empty:
        return ""
    notes = [formatting.describe_intervals(cells, against), *formatting.describe_few_seeds(cells)]
    name = f"{measure.label}, intervals"
    return _wrap(contents.table, name, name, "l" + "r" * len(columns), lines, notes)


def _write_search(table: Any, searches: Searches) -> str:
    """Returns what was chosen for each row and column."""
    lines = [_join_cells(*map(escaped, search_report.HEADS)), r"\midrule"]
    lines += [_join_cells(*map(escaped, one)) for one in search_report.chosen_for(table.search, searches)]
    notes = [search_report.said(table.search, formatting.describe_score)]
    return _wrap(table, "search", "search", f"llrl{'r' * 3}l", lines, notes)


def _write_costs(contents: Contents) -> str:
    """Returns rounds to accuracies, time and traffic of each cell that has a finished run."""
    targets = [escaped(f"to {100 * target:g} %") for target in all_targets(contents.table)]
    heads = ["", "", *targets, "s/round", "down", "up"]
    lines = [_join_cells(*heads), r"\midrule"]
    for row, column, costs in formatting.costs(contents):
        lines.append(_join_cells(escaped(row), escaped(column), *costs))
    name = "rounds, time, traffic"
    return _wrap(contents.table, name, name, f"ll{'r' * (len(heads) - 2)}", lines, [])


def _wrap(table: Any, what: str, name: str, form: str, lines: Sequence[str], notes: Sequence[str]) -> str:
    """Returns a tabular with its notes, in the environment that the table asks for.

    Args:
      table: the definition.
      what: the tabular has, for a comment.
      name: for caption and label.
      form: of the columns.
      lines: of the tabular, between its rules.
      notes: sentences for below it.
    """
    tabular = [rf"\begin{{tabular}}{{{form}}}", r"\toprule", *lines, r"\bottomrule", r"\end{tabular}"]
    below = [r"\par\smallskip", r"\noindent\begin{minipage}{\linewidth}", r"\footnotesize\raggedright"]
    below = [*below, *map(_end_sentence, notes), r"\end{minipage}"] if notes else []
    options, several = table.latex, len(table.measures) > 1
    if options is None or options.environment is None:
        return "\n".join([f"% {what}", *tabular, *below])
    of_measure = several or name != table.measures[0].label
    caption = escaped(table.title) if options.caption is None else options.caption
    caption += f": {escaped(name)}" if of_measure else ""
    label = options.label or f"tab:{places.slug(table.title)}"
    label += f"-{places.slug(name)}" if of_measure else ""
    opening = [
        rf"\begin{{{options.environment}}}[{options.placement}]",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{{label}}}",
    ]
    return "\n".join([f"% {what}", *opening, *tabular, *below, rf"\end{{{options.environment}}}"])


def _end_sentence(note: str) -> str:
    """Returns a note as a sentence."""
    note = note.rstrip(".").replace("`", "")
    return f"{escaped(note[:1].upper() + note[1:])}.".replace(r" \%", r"~\%")


def escaped(text: str) -> str:
    """Text with LaTeX's own characters written out."""
    return "".join(SPECIAL.get(c, rf"\{c}" if c in "&%$#_{}" else c) for c in text)


def _with_minus(text: str) -> str:
    """Returns numbers below 0 with a minus sign in place of a hyphen."""
    return MINUS.sub("$-$", text)


def _join_cells(*cells: str) -> str:
    """Returns a line of a tabular."""
    opens = "{}" if cells[0].lstrip().startswith(("[", "*")) else ""  # else an option of the line above
    return opens + " & ".join(cells) + r" \\"
