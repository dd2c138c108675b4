"""A table as LaTeX (package booktabs)."""

from typing import Any

from fedjax_core.commands.tables import measures, texts
from fedjax_core.commands.tables.definition import all_targets
from fedjax_core.commands.tables.results import Contents

STYLE = texts.Style(plus_minus=r"$\pm$", bold=r"\textbf{{{}}}", mark="$^{{{}}}$")
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
}


def latex(contents: Contents) -> str:
    """A tabular per measure, then one of costs; a published value stands below ours, what the cells hold below the rule."""
    blocks = [f"% {contents.table.title}; needs \\usepackage{{booktabs}}"]
    blocks += [_tabular(contents, measure) for measure in contents.table.measures]
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


def _tabular(contents: Contents, measure: Any) -> str:
    """The cells of one measure."""
    columns, cells = contents.table.columns, texts.grid(contents, measure)
    lines = [f"% {measure.label}{measures.unit(measure)}", rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule"]
    lines += [_line("", *(escaped(c.label) for c in columns)), r"\midrule"]
    for row in contents.table.rows:
        places = [(row.label, column.label) for column in columns]
        lines.append(_line(escaped(row.label), *(texts.shown(cells, p, measure, len(contents.seeds), STYLE) for p in places)))
        if any(cells.summaries[place].paper for place in places):
            papers = [texts.published(cells.summaries[place], measure, STYLE).replace(", -", ", $-$") for place in places]
            lines.append(_line(r"\quad paper, difference", *papers))
    lines.append(r"\bottomrule")
    for said in (texts.over_seeds(contents.seeds), *texts.caption(measure, cells)):
        said = said.rstrip(".").replace("`", "")
        lines.append(rf"\multicolumn{{{len(columns) + 1}}}{{l}}{{\footnotesize {escaped(said[:1].upper() + said[1:])}.}} \\")
    return "\n".join([*lines, r"\end{tabular}"])


def escaped(text: str) -> str:
    """Text with LaTeX's own characters written out."""
    return "".join(SPECIAL.get(c, rf"\{c}" if c in "&%$#_{}" else c) for c in text)


def _line(*cells: str) -> str:
    return " & ".join(cells) + r" \\"
