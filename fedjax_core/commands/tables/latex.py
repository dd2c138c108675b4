"""A table as LaTeX (package booktabs)."""

from collections.abc import Mapping
from typing import Any

from fedjax_core.commands.tables import measures, texts, tuned
from fedjax_core.commands.tables.definition import all_targets
from fedjax_core.commands.tables.results import Contents
from fedjax_core.commands.tables.trials import Searches

STYLE = texts.Style(plus_minus=r"$\pm$", bold=r"\textbf{{{}}}", mark="$^{{{}}}$", alike=r"$\approx$")
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "≈": r"$\approx$",
}


def latex(contents: Contents, grids: Mapping[str, texts.Grid] | None = None) -> str:
    """A tabular per measure, one of what a search chose, and one of costs; a published value stands below ours, what the cells hold
    below the rule. `grids`: the cells by measure, if they are known already."""
    grids = texts.grids(contents) if grids is None else grids
    blocks = [f"% {contents.table.title}; needs \\usepackage{{booktabs}}"]
    blocks += [_tabular(contents, measure, grids[measure.label]) for measure in contents.table.measures]
    if contents.searches is not None and contents.searches.studies:
        blocks.append(_search(contents.table.search, contents.searches))
    heads = ["", "", *(escaped(f"to {100 * t:g} %") for t in all_targets(contents.table)), "s/round", "down", "up"]
    lines = [
        "% rounds, time, traffic",
        rf"\begin{{tabular}}{{ll{'r' * (len(heads) - 2)}}}",
        r"\toprule",
        _line(*heads),
        r"\midrule",
    ]
    lines += [_line(escaped(row), escaped(column), *costs) for row, column, costs in texts.costs(contents)]
    blocks.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    return "\n\n".join(blocks) + "\n"


def _tabular(contents: Contents, measure: Any, cells: texts.Grid) -> str:
    """The cells of one measure."""
    columns = contents.table.columns
    lines = [f"% {measure.label}{measures.unit(measure)}", rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule"]
    lines += [_line("", *(escaped(c.label) for c in columns)), r"\midrule"]
    for row in contents.table.rows:
        places = [(row.label, column.label) for column in columns]
        lines.append(_line(escaped(row.label), *(texts.shown(cells, p, measure, len(contents.seeds), STYLE) for p in places)))
        if any(cells.summaries[place].paper for place in places):
            papers = [texts.published(cells.summaries[place], measure, STYLE).replace(", -", ", $-$") for place in places]
            lines.append(_line(rf"\quad paper, {'difference' if measures.target(measure) is None else 'ratio'}", *papers))
    lines.append(r"\bottomrule")
    said = (texts.over_seeds(contents.seeds), *texts.caption(measure, cells))
    return "\n".join([*lines, *(_below(text, len(columns) + 1) for text in said), r"\end{tabular}"])


def _search(search: Any, searches: Searches) -> str:
    """What was chosen for each row and column."""
    lines = ["% search", rf"\begin{{tabular}}{{llrl{'r' * 3}l}}", r"\toprule", _line(*map(escaped, tuned.HEADS)), r"\midrule"]
    lines += [_line(*map(escaped, one)) for one in tuned.chosen_for(search, searches)]
    lines.append(r"\bottomrule")
    lines += [_below(text, len(tuned.HEADS)) for text in tuned.said(search).split(". ")]
    return "\n".join([*lines, r"\end{tabular}"])


def _below(said: str, columns: int) -> str:
    """A sentence below the rule."""
    said = said.rstrip(".").replace("`", "")
    return rf"\multicolumn{{{columns}}}{{l}}{{\footnotesize {escaped(said[:1].upper() + said[1:])}.}} \\"


def escaped(text: str) -> str:
    """Text with LaTeX's own characters written out."""
    return "".join(SPECIAL.get(c, rf"\{c}" if c in "&%$#_{}" else c) for c in text)


def _line(*cells: str) -> str:
    opens = "{}" if cells[0].lstrip().startswith(("[", "*")) else ""  # else the end of the line above takes it for its option
    return opens + " & ".join(cells) + r" \\"
