"""Formats the numbers of a table and describes them in sentences, for Markdown and LaTeX."""

import math
import statistics
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_core.commands.tables import client_statistics, measures
from fedjax_core.commands.tables.bootstrap_comparison import Comparison, compare_cells
from fedjax_core.commands.tables.definition import all_targets
from fedjax_core.commands.tables.results import Contents, Summary
from fedjax_core.reporting import console, score_labels
from fedjax_core.reporting.summary import format_significant

STATISTIC_NAMES = {
    "last": "last round",
    "first": "first evaluation",
    "best": "best over rounds",
    "mean_of_last": "mean of the last evaluations",
    "selected": "in the round selected on validation examples",
}
MANY_SEEDS = 10
INTERVAL_COVERAGE = {2: "50", 3: "75", 4: "80", 5: "84"}  # % of intervals over so many seeds that hold the true mean
OF_LAST_STATE = ", of the model that a run leaves: of the selected round where `evaluation.select` is set, else of the last"


class Style(NamedTuple):
    """The spelling of marks.

    Attributes:
      mark: of a letter that names a score, such as " ({})".
      alike: the sign of a cell that is not distinguishable from the best.
    """

    plus_minus: str
    bold: str
    mark: str
    alike: str


class Grid(NamedTuple):
    """The cells of one measure, with what belongs to all of them.

    Attributes:
      summaries: by (row, column).
      best: those that are the best of their column.
      letters: by name of a score, where the cells hold several; empty where all hold one.
      compared: cells among the rows of their column, as far as they can be compared.
    """

    summaries: Mapping[tuple[str, str], Summary]
    best: frozenset[tuple[str, str]]
    letters: Mapping[str, str]
    compared: Mapping[tuple[str, str], Comparison]


def make_grid(contents: Contents, measure: Any) -> Grid:
    """Returns the cells of one measure."""
    table = contents.table
    summaries = {(r.label, c.label): contents.summary(r.label, c.label, measure) for r in table.rows for c in table.columns}
    best = frozenset(
        pair for c in table.columns for pair in _find_best(measure, {k: s for k, s in summaries.items() if k[1] == c.label})
    )
    shown_scores = {score for summary in summaries.values() for score in summary.scores}
    several = [score for score in measure.scores if score in shown_scores] if len(shown_scores) > 1 else []
    columns_with_best = {column for _, column in best}
    compared = {
        pair: comparison._replace(is_like_best=comparison.is_like_best and pair[1] in columns_with_best and pair not in best)
        for pair, comparison in compare_cells(contents, measure).items()
    }
    return Grid(summaries, best, dict(zip(several, string.ascii_lowercase, strict=False)), compared)


def _find_best(measure: Any, column: Mapping[tuple[str, str], Summary]) -> list[tuple[str, str]]:
    """Returns the best cells of a column, several if they look alike; none if nothing is better than another."""
    better = measures.better_direction(measure)
    finite = {pair: s.mean for pair, s in column.items() if s.is_finite}
    means = {pair: float(f"{mean:{measures.number_format(measure)}}".replace(",", "")) for pair, mean in finite.items()}
    if better == "neither" or len(set(means.values())) < 2:
        return []
    best = max(means.values()) if better == "larger" else min(means.values())
    return [pair for pair, mean in means.items() if mean == best]


def describe_measure(measure: Any, cells: Grid, name_score: Callable[[str], str] = "`{}`".format) -> list[str]:
    """Returns sentences on what the cells of a measure show. `name_score`: score -> its name in the text."""
    shown_scores = list(dict.fromkeys(score for summary in cells.summaries.values() for score in summary.scores))
    names = " or ".join(map(name_score, measure.scores))
    target = measures.rounds_target(measure)
    when = "" if measures.is_count(measure) or target is not None else f", {STATISTIC_NAMES[measure.statistic]}"
    if measure.statistic == "best" and any(score.startswith("test/") for score in measure.scores):
        when += ", selected on test data"
    when = OF_LAST_STATE if measures.is_analysis(measure) and not measures.is_count(measure) else when
    sentences = [f"{names}{when}{measures.describe_unit(measure)}."]
    if target is not None:
        count = "Simulated seconds" if measures.counts_seconds(measure) else "Rounds"
        unit = "" if measure.unit == 1 else measures.describe_unit(measure)
        sentences = [
            f"{count} until {names} crosses {target:g}{unit}: of each evaluation the best value so far, with linear "
            "interpolation between two; never: not in the rounds that were run."
        ]
    if cells.letters:
        sentences.append(
            f"A cell's letter says which: {', '.join(f'({letter}) {name_score(name)}' for name, letter in cells.letters.items())}."
        )
    elif len(measure.scores) > 1 and shown_scores:
        sentences.append(f"All cells hold {name_score(shown_scores[0])}.")
    if measure.clients is not None:
        sentences.append(client_statistics.describe_clients(measure))
    if cells.best:
        sentences.append(
            f"Bold: the {'highest' if measures.better_direction(measure) == 'larger' else 'lowest'} mean of the column."
        )
    like_best = [comparison for comparison in cells.compared.values() if comparison.is_like_best]
    if like_best:
        sentences.append(
            f"≈: not distinguishable from the best; the 95 % interval of the difference contains 0, "
            f"{describe_resampling(like_best)}."
        )
    return sentences + describe_few_seeds(cells) + _describe_left_out(cells)


def describe_few_seeds(cells: Grid) -> list[str]:
    """Returns a sentence on how far intervals over few seeds hold; none for many seeds, or without intervals."""
    if not cells.compared:
        return []
    seeds = max(summary.n for summary in cells.summaries.values())
    if seeds == 1:
        return ["Intervals are of one seed: they say nothing of other seeds."]
    if seeds >= MANY_SEEDS:
        return []
    covered = INTERVAL_COVERAGE.get(seeds, "84 to 91")
    return [
        f"Intervals over {seeds} seeds are too narrow: drawn from {seeds} seeds alone they hold the "
        f"true mean in about {covered} % of the cases, not in 95 %, and ranks of rows with similar means "
        "together are less certain than their intervals say."
    ]


def describe_score(name: str) -> str:
    """Returns a score's name as a paper has it, without its path.

    >>> describe_score("test/global/accuracy"), describe_score("test/personal/own/accuracy")
    ('test accuracy (global model, all test data)', 'test accuracy (personal models, own test rows)')
    >>> describe_score("train/loss"), describe_score("server/norm"), describe_score("analysis:probe")
    ('training loss', 'server norm', 'probe')
    """
    of_clients = len(name.split("/")) == 4 and not score_labels.is_gap(name)  # a statistic of them is the measure's
    whole = f"{name}/mean" if of_clients else name
    spoken, axis = score_labels.describe_score(whole), score_labels.axis_label(whole)
    if spoken == whole:
        return name.removeprefix("analysis:").replace("/", " ").replace("_", " ")
    return spoken if spoken == axis else f"{axis} ({spoken})"


def _describe_left_out(cells: Grid) -> list[str]:
    """Returns a sentence on cells without a comparison, in columns whose others have one."""
    columns = {column for _, column in cells.compared}
    left_out = [
        pair for pair, summary in cells.summaries.items() if summary.n and pair[1] in columns and pair not in cells.compared
    ]
    if not left_out:
        return []
    listed = ", ".join(f"{row} ({column})" for row, column in left_out)
    best_note = " The best of a column is among them, so nothing is marked ≈ there." if cells.best & set(left_out) else ""
    return [f"Not compared, since a seed is missing or not finite, or the clients are others: {listed}.{best_note}"]


def describe_resampling(cells: Iterable[Comparison]) -> str:
    """Returns what intervals are computed over."""
    units = sorted({comparison.resampled for comparison in cells}, key=len, reverse=True)
    fewer = f" (of rows without values of the same clients over {' or '.join(units[1:])} alone)" if units[1:] else ""
    return f"a paired bootstrap over {units[0]}{fewer}"


def format_intervals(cells: Grid, pair: tuple[str, str], measure: Any, against: str | None) -> str:
    """Formats the rank of a cell and its difference to a named row, with intervals; empty without a comparison."""
    comparison, form = cells.compared.get(pair), measures.number_format(measure)
    if comparison is None:
        return ""
    parts = []
    if comparison.rank is not None and comparison.rank_interval is not None:
        parts.append(f"{comparison.rank:g} [{comparison.rank_interval[0]:g}, {comparison.rank_interval[1]:g}]")
    if against is not None and comparison.difference is not None and comparison.difference_interval is not None:
        low, high = (format_number(value, f"+{form}") for value in comparison.difference_interval)
        parts.append(f"{format_number(comparison.difference, f'+{form}')} [{low}, {high}]")
    return "; ".join(parts)


def format_interval_rows(contents: Contents, measure: Any, cells: Grid) -> list[list[str]]:
    """Formats the intervals of each row, by column; [] where nothing was compared."""
    columns, against = contents.table.columns, contents.table.against
    rows = [[format_intervals(cells, (r.label, c.label), measure, against) for c in columns] for r in contents.table.rows]
    return rows if any(map(any, rows)) else []


def describe_intervals(cells: Grid, against: str | None) -> str:
    """Returns what the numbers of `format_intervals` are, as a sentence."""
    compared = cells.compared.values()
    parts = ["the rank in the column [95 % interval of the rank]"] * any(comparison.rank is not None for comparison in compared)
    differs = any(comparison.difference is not None for comparison in compared)
    parts += [f"the difference to {against} [95 % interval of the difference]"] * differs
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}: {describe_resampling(compared)}."


def describe_seeds(seeds: Sequence[int]) -> str:
    """Returns what means are over, and what follows the sign ±."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"mean ± sample standard deviation over seeds {', '.join(map(str, seeds))}"


def format_cell(cells: Grid, pair: tuple[str, str], measure: Any, seeds: int, style: Style) -> str:
    """Formats the mean with its deviation; empty if no run is finished."""
    summary, form = cells.summaries[pair], measures.number_format(measure)
    if not summary.n:
        return "failed" if summary.failed else ""
    counts = measures.rounds_target(measure) is not None
    text = format_round_count(summary.mean, form) if counts else format_number(summary.mean, form)
    if pair in cells.best:
        text = style.bold.format(text)
    if math.isfinite(summary.std):
        text += f" {style.plus_minus} {format_number(summary.std, form)}"
    reached = sum(map(math.isfinite, summary.by_seed.values()))
    if counts and 0 < reached < summary.n:
        text += f" ({reached} of {summary.n})"
    if summary.n < seeds:
        text += f" (n={summary.n})"
    if pair in cells.compared and cells.compared[pair].is_like_best:
        text += f" {style.alike}"
    marks = [cells.letters[score] for score in summary.scores if score in cells.letters]
    return text + (style.mark.format(",".join(marks)) if marks else "")


def format_paper(summary: Summary, measure: Any, style: Style) -> str:
    """Formats the paper's value, with ours minus it, or ours over it for rounds to a target; empty if there is none."""
    if summary.paper is None:
        return ""
    form = measures.number_format(measure)
    value, std, _ = summary.paper
    if measures.rounds_target(measure) is not None:
        ratio = summary.mean / value
        known = math.isfinite(value) and math.isfinite(ratio)
        return format_round_count(value, form) + (f", x{ratio:.2f}" if known else "")
    text = format_number(value, form) + (f" {style.plus_minus} {format_number(std, form)}" if std is not None else "")
    if not math.isfinite(summary.difference):
        return text
    return f"{text}, {'+' if summary.difference >= 0 else '-'}{format_number(abs(summary.difference), form)}"


def format_number(value: float, form: str) -> str:
    """Formats a number; "nan" or "inf" if it is not finite."""
    return ("nan" if math.isnan(value) else "inf") if not math.isfinite(value) else f"{value:{form}}"


def format_rounds(by_seed: Sequence[int | None]) -> str:
    """Formats the mean number of rounds, and how many runs reached the target if not all did."""
    reached = [r for r in by_seed if r is not None]
    if not reached:
        return "never"
    return format_significant(statistics.fmean(reached)) + (
        f" ({len(reached)} of {len(by_seed)})" if len(reached) < len(by_seed) else ""
    )


def format_costs(contents: Contents) -> list[tuple[str, str, list[str]]]:
    """Returns (row, column, [rounds to each target, seconds a round, down, up]) of each cell with a finished run."""
    rows = []
    for row in contents.table.rows:
        for column in contents.table.columns:
            cell = contents.costs(row.label, column.label)
            if cell is not None:
                targets = [format_rounds(cell.reached[t]) if t in cell.reached else "" for t in all_targets(contents.table)]
                sizes = [console.readable_size(cell.down), console.readable_size(cell.up)]
                seconds = "" if math.isnan(cell.seconds) else format_significant(cell.seconds)
                rows.append((row.label, column.label, [*targets, seconds, *sizes]))
    return rows


def format_round_count(rounds: float, form: str) -> str:
    """Formats a number of rounds; "never" if it is infinite."""
    return "never" if rounds == math.inf else f"{rounds:{form}}"


def format_speedup(summary: Summary, other: Summary) -> str:
    """Formats by which factor rounds are fewer than another row's, with the paper's factor in brackets.

    It needs the same seeds in both rows, all of which reach the target; empty if neither is known.
    """
    is_paired = summary.by_seed.keys() == other.by_seed.keys() and summary.is_finite and other.is_finite
    ours = other.mean / summary.mean if is_paired else math.nan
    theirs = other.paper[0] / summary.paper[0] if other.paper and summary.paper else math.nan
    shown = [f"{value:.3g}x" if math.isfinite(value) and value > 0 else "" for value in (ours, theirs)]
    return (shown[0] + (f" [{shown[1]}]" if shown[1] else "")).strip()


def finite_or_none(value: float) -> float | None:
    """Returns a number for CSV; None, an empty cell, if it is not finite."""
    return value if math.isfinite(value) else None
