"""The numbers of a table as text, for Markdown and LaTeX alike."""

import math
import statistics
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_core.commands.tables import client_statistics, measures, reached
from fedjax_core.commands.tables.bootstrap_comparison import Compared, Known, compare
from fedjax_core.commands.tables.definition import all_targets
from fedjax_core.commands.tables.results import Contents, Summary
from fedjax_core.reporting import reporter, score_labels
from fedjax_core.reporting.summary import significant

SHOWN = {
    "last": "last round",
    "first": "first evaluation",
    "best": "best over rounds",
    "mean_of_last": "mean of the last evaluations",
    "selected": "in the round selected on validation rows",
}
MANY_SEEDS = 10
COVERED = {2: "50", 3: "75", 4: "80", 5: "84"}  # % of intervals over so many seeds that hold the true mean
LEFT = ", of the model that a run leaves: of the selected round where `evaluation.select` is set, else of the last"


class Style(NamedTuple):
    """How marks are written.

    Attributes:
      plus_minus: the sign between a mean and its deviation.
      bold: of a text, such as "**{}**".
      mark: of a letter that names a score, such as " ({})".
      alike: the sign of what cannot be told apart from the best.
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
    compared: Mapping[tuple[str, str], Compared]


def grid(contents: Contents, measure: Any, known: Known | None = None) -> Grid:
    """The cells of one measure. `known`: see `compare`."""
    table = contents.table
    found = {(r.label, c.label): contents.summary(r.label, c.label, measure) for r in table.rows for c in table.columns}
    best = frozenset(place for c in table.columns for place in _best(measure, {k: s for k, s in found.items() if k[1] == c.label}))
    held = {score for summary in found.values() for score in summary.scores}
    several = [score for score in measure.scores if score in held] if len(held) > 1 else []
    led = {column for _, column in best}
    compared = {
        place: one._replace(like_best=one.like_best and place[1] in led and place not in best)
        for place, one in compare(contents, measure, known).items()
    }
    return Grid(found, best, dict(zip(several, string.ascii_lowercase, strict=False)), compared)


def grids(contents: Contents, known: Known | None = None) -> dict[str, Grid]:
    """The cells of all measures, by their labels. `known`: see `compare`."""
    return {measure.label: grid(contents, measure, known) for measure in contents.table.measures}


def _best(measure: Any, column: Mapping[tuple[str, str], Summary]) -> list[tuple[str, str]]:
    """The best of a column, several if they look alike; none where nothing is better than something else."""
    way = measures.better(measure)
    known = {place: s.mean for place, s in column.items() if s.n and all(map(math.isfinite, s.by_seed.values()))}
    means = {place: float(f"{mean:{measures.form(measure)}}".replace(",", "")) for place, mean in known.items()}
    if way == "neither" or len(set(means.values())) < 2:
        return []
    first = max(means.values()) if way == "larger" else min(means.values())
    return [place for place, mean in means.items() if mean == first]


def caption(measure: Any, cells: Grid, name_score: Callable[[str], str] = "`{}`".format) -> list[str]:
    """What the cells of a measure hold: a sentence for each thing that is to be known. `name_score`: how a score is called."""
    held = list(dict.fromkeys(score for summary in cells.summaries.values() for score in summary.scores))
    names = " or ".join(map(name_score, measure.scores))
    target = measures.target(measure)
    when = "" if measures.is_count(measure) or target is not None else f", {SHOWN[measure.statistic]}"
    if measure.statistic == "best" and any(score.startswith("test/") for score in measure.scores):
        when += ", selected on test data"
    when = LEFT if measures.is_analysis(measure) and not measures.is_count(measure) else when
    said = [f"{names}{when}{measures.unit(measure)}."]
    if target is not None:
        said = [reached.caption(measure, names)]
    if cells.letters:
        said.append(
            f"A cell's letter says which: {', '.join(f'({letter}) {name_score(name)}' for name, letter in cells.letters.items())}."
        )
    elif len(measure.scores) > 1 and held:
        said.append(f"All cells hold {name_score(held[0])}.")
    if measure.clients is not None:
        said.append(client_statistics.said(measure))
    if cells.best:
        said.append(f"Bold: the {'highest' if measures.better(measure) == 'larger' else 'lowest'} mean of the column.")
    marked = [one for one in cells.compared.values() if one.like_best]
    if marked:
        said.append(f"≈: not told apart from the best; 0 lies in the 95 % interval of the difference, {drawn(marked)}.")
    return said + describe_few_seeds(cells) + _left_out(cells)


def describe_few_seeds(cells: Grid) -> list[str]:
    """Returns a sentence on what intervals over few seeds are worth; none where there are many, or no intervals."""
    if not cells.compared:
        return []
    seeds = max(summary.n for summary in cells.summaries.values())
    if seeds == 1:
        return ["Intervals are of one seed: they say nothing of other seeds."]
    if seeds >= MANY_SEEDS:
        return []
    covered = COVERED.get(seeds, "84 to 91")
    return [
        f"Intervals over {seeds} seeds are too narrow: drawn from {seeds} seeds alone they hold the "
        f"true mean in about {covered} % of the cases, not in 95 %, and ranks of rows that lie close "
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
    spoken, axis = score_labels.spoken(whole), score_labels.axis(whole)
    if spoken == whole:
        return name.removeprefix("analysis:").replace("/", " ").replace("_", " ")
    return spoken if spoken == axis else f"{axis} ({spoken})"


def _left_out(cells: Grid) -> list[str]:
    """A sentence on cells that are not compared, in columns whose others are; none where there are no such."""
    columns = {column for _, column in cells.compared}
    left = [place for place, s in cells.summaries.items() if s.n and place[1] in columns and place not in cells.compared]
    if not left:
        return []
    listed = ", ".join(f"{row} ({column})" for row, column in left)
    first = " The best of a column is among them, so nothing is marked ≈ there." if cells.best & set(left) else ""
    return [f"Not compared, since a seed is missing or not finite, or the clients are others: {listed}.{first}"]


def drawn(cells: Iterable[Compared]) -> str:
    """What intervals are of."""
    kinds = sorted({one.over for one in cells}, key=len, reverse=True)
    fewer = f" (of rows without values of the same clients over {' or '.join(kinds[1:])} alone)" if kinds[1:] else ""
    return f"a paired bootstrap over {kinds[0]}{fewer}"


def intervals(cells: Grid, place: tuple[str, str], measure: Any, against: str | None) -> str:
    """The rank of a cell and its difference to a named row, with their intervals; empty if it was not compared."""
    one, form = cells.compared.get(place), measures.form(measure)
    if one is None:
        return ""
    said = []
    if one.rank is not None and one.ranks is not None:
        said.append(f"{one.rank:g} [{one.ranks[0]:g}, {one.ranks[1]:g}]")
    if against is not None and one.difference is not None and one.differences is not None:
        low, high = (number(value, f"+{form}") for value in one.differences)
        said.append(f"{number(one.difference, f'+{form}')} [{low}, {high}]")
    return "; ".join(said)


def describe_intervals(cells: Grid, against: str | None) -> str:
    """Returns what the numbers of `intervals` are, as a sentence."""
    compared = cells.compared.values()
    parts = ["the rank in the column [95 % interval of the rank]"] * any(one.rank is not None for one in compared)
    differs = any(one.difference is not None for one in compared)
    parts += [f"the difference to {against} [95 % interval of the difference]"] * differs
    said = "; ".join(parts)
    return f"{said[:1].upper()}{said[1:]}: {drawn(compared)}."


def over_seeds(seeds: Sequence[int]) -> str:
    """What numbers are over, and what stands behind the sign ±."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"mean ± sample standard deviation over seeds {', '.join(map(str, seeds))}"


def shown(cells: Grid, place: tuple[str, str], measure: Any, seeds: int, style: Style) -> str:
    """The mean with its deviation; empty if nothing has run."""
    summary, form = cells.summaries[place], measures.form(measure)
    if not summary.n:
        return "failed" if summary.failed else ""
    counts = measures.target(measure) is not None
    text = reached.number(summary.mean, form) if counts else number(summary.mean, form)
    if place in cells.best:
        text = style.bold.format(text)
    if math.isfinite(summary.std):
        text += f" {style.plus_minus} {number(summary.std, form)}"
    there = sum(map(math.isfinite, summary.by_seed.values()))
    if counts and 0 < there < summary.n:
        text += f" ({there} of {summary.n})"
    if summary.n < seeds:
        text += f" (n={summary.n})"
    if place in cells.compared and cells.compared[place].like_best:
        text += f" {style.alike}"
    marks = [cells.letters[score] for score in summary.scores if score in cells.letters]
    return text + (style.mark.format(",".join(marks)) if marks else "")


def published(summary: Summary, measure: Any, style: Style) -> str:
    """The paper's value, and ours minus it, or of rounds to a target ours over it; empty if there is none."""
    if summary.paper is None:
        return ""
    form = measures.form(measure)
    value, std, _ = summary.paper
    if measures.target(measure) is not None:
        return reached.published(summary, form)
    text = number(value, form) + (f" {style.plus_minus} {number(std, form)}" if std is not None else "")
    if not summary.n:
        return text
    return f"{text}, {'+' if summary.difference >= 0 else '-'}{number(abs(summary.difference), form)}"


def number(value: float, form: str) -> str:
    """A number in a format; of what is not finite, its name."""
    return ("nan" if math.isnan(value) else "inf") if not math.isfinite(value) else f"{value:{form}}"


def rounds(of_seeds: Sequence[int | None]) -> str:
    """The mean of the rounds, and how many runs came so far if not all did."""
    there = [r for r in of_seeds if r is not None]
    if not there:
        return "never"
    return significant(statistics.fmean(there)) + (f" ({len(there)} of {len(of_seeds)})" if len(there) < len(of_seeds) else "")


def costs(contents: Contents) -> list[tuple[str, str, list[str]]]:
    """(row, column, [rounds to each target, seconds a round, down, up]) of each cell that has a finished run."""
    found = []
    for row in contents.table.rows:
        for column in contents.table.columns:
            cell = contents.costs(row.label, column.label)
            if cell is not None:
                to = [rounds(cell.reached[t]) if t in cell.reached else "" for t in all_targets(contents.table)]
                sizes = [reporter.readable_size(cell.down), reporter.readable_size(cell.up)]
                seconds = "" if math.isnan(cell.seconds) else significant(cell.seconds)
                found.append((row.label, column.label, [*to, seconds, *sizes]))
    return found
