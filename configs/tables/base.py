"""The definition of a table: a method per row, data per column, some runs per cell, and the paper's numbers beside ours.

A definition is a file with `get_table(variant) -> Table`; `fedjax-core table` runs it. Changes are written as in
`--config.<field>=`: {"data.partition": "iid", "optimizer.lr": 0.01}. An option of a method that its config leaves out may be set
too ("method.server_lr"). Changes are applied in the order table, column, row, cell; the last one counts.
A table with a `Search` chooses settings of its rows on validation examples before it runs their cells.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Changes = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """A method with its settings.

    Attributes:
      label: how the table calls it.
      config: variant -> config: the `get_config` of a file in `configs/`.
      changes: of that config.
      space: what a search tries, by field: {"optimizer.lr": LogUniform(0.01, 1.0), "method.mu": (0.01, 0.1, 1.0)}. Data, clients,
        rounds, evaluation, privacy, attacks, rules and compression are not the row's to choose.
    """

    label: str
    config: Callable[[str], Any]
    changes: Changes = dataclasses.field(default_factory=dict)
    space: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Column:
    """A data setting.

    Attributes:
      label: how the table calls it.
      changes: of every row's config.
      targets: accuracies whose first round the table gives; None: the table's.
    """

    label: str
    changes: Changes
    targets: Sequence[float] | None = None


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number that a cell shows.

    Attributes:
      label: how the table calls it.
      scores: names in metrics.jsonl; the first that a run has is taken, so that methods with a global and with personal models can
        share a table. Or one analysis of the last state, averaged over clients: "analysis:probe", "analysis:match",
        "analysis:origin" (the model as it is), with options as "analysis:probe(model='global', key='features')"; "analysis:rouge",
        of answers in words, with of='sst2' on one test set or task, and beams=4 for a language model's. Or a count of
        numbers, from shapes alone: "analysis:trained", "analysis:whole", "analysis:body" (of a client's network), "analysis:up",
        "analysis:down" (its messages), averaged over clients, added up with total=True, of one architecture with group=0. A table
        that only counts trains nothing.
      statistic: over the rounds: "last", "first", "best" (selected on test data), "mean_of_last" (`evaluation.last_k`),
        "selected" (in the round that `evaluation.select` chose). Or "rounds_to(target=0.97)": the number of rounds until the score,
        made monotone by the best so far, crosses the target, interpolated linearly between evaluations; "never" if it does not.
        Beside it stands the published number, and the ratio of ours to it.
      percent: whether to show it times 100; None: if it is an accuracy.
      unit: what it is shown in: 2**20 for millions as papers count parameters. Not together with `percent`.
      digits: decimals shown; None: two of per cent, else four significant digits.
      better: which of two numbers is: "larger", "smaller", "neither"; the best of a column is bold. None: the larger accuracy,
        ROUGE or analysis, the smaller loss; neither of counts and of other scores.
      clients: more than a mean over clients: "worst_tenth" (the mean of the worst tenth of them), "decile(number=1)" ... 9,
        "worse_than(row='Local')" (the share of clients that are worse off than in that row, with the same column, seed and client).
        Scores are then named without a statistic, "test/personal/own/accuracy", and are of the "last" or the "selected" round.
    """

    label: str
    scores: Sequence[str]
    statistic: str = "last"
    percent: bool | None = None
    unit: float = 1
    digits: int | None = None
    better: str | None = None
    clients: str | None = None


@dataclasses.dataclass(frozen=True)
class Uniform:
    """The numbers between two, uniformly distributed."""

    low: float
    high: float

    def at(self, share: float) -> float:
        """Returns the number at a fraction in [0, 1] of the interval."""
        return self.low + share * (self.high - self.low)

    def share(self, value: float) -> float:
        """Returns the fraction of the interval below a number; below 0 or above 1 outside."""
        return (value - self.low) / (self.high - self.low)


@dataclasses.dataclass(frozen=True)
class LogUniform:
    """The numbers between two positive ones, log-uniformly distributed."""

    low: float
    high: float

    def at(self, share: float) -> float:
        """Returns the number at a fraction in [0, 1] of the interval."""
        return self.low * (self.high / self.low) ** share

    def share(self, value: float) -> float:
        """Returns the fraction of the interval below a number; below 0 or above 1 outside."""
        return math.log(value / self.low) / math.log(self.high / self.low) if value > 0 else -math.inf


@dataclasses.dataclass(frozen=True)
class Search:
    """The search for the settings of rows, for each column separately.

    Each row has equally many trials, and the best by a score on validation examples runs its cells. Trial 0 has the row's own
    settings; the others change the fields of the row's space. A trial is an ordinary run: the next call finds it finished, and so
    do other tables of the same directory with the same labels of row and column.

    Attributes:
      measure: the score on validation examples, "validation/global/accuracy", or several of which the first that a run has counts.
        It is that of the selected round if `evaluation.select` is set, else of the last. The highest is the best, of losses the
        lowest, of equal ones the first trial.
      trials: of each row, its own settings among them.
      sampler: "random": drawn from (seed, trial, field), so that rows with the same field try the same values. "grid": points of
        the spaces' product in an order drawn from the seed. "tpe": a few random trials, then settings that Optuna proposes from
        the row's own scores; not with `halving`. It needs the package optuna: pip install 'fedjax-core[search]'.
      seed: of the draws.
      seeds: of training; a trial's score is the mean over them.
      rounds: of a trial; None: as many as the row runs.
      halving: a factor f: all trials run a part of the rounds, the best 1/f of them go on for f times as many, and so on to the
        full number. Trial 0 always runs to the end, so that the gain of tuning is known. None: all run to the end. Not with noise
        that is made for a number of rounds (`privacy.epsilon`).
      fewer: labels of rows that may have fewer trials, without a space or with fewer points in it.
    """

    measure: str | Sequence[str]
    trials: int
    sampler: str = "random"
    seed: int = 0
    seeds: Sequence[int] = (0,)
    rounds: int | None = None
    halving: int | None = None
    fewer: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Paper:
    """A published number, as printed (accuracies in per cent); `math.inf` rounds to a target that was never reached."""

    value: float
    std: float | None = None
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Latex:
    """The LaTeX environment of each measure in table.tex, with caption and label.

    Attributes:
      environment: "table", or "table*" over both columns of a page; None: tabulars alone, for an environment of yours.
      caption: as LaTeX; of several measures each adds its label. None: the table's title.
      label: as LaTeX; of several measures each adds its own name, "tab:first-whole-test-set". None: of the title.
      placement: of the environment.
    """

    environment: str | None = "table"
    caption: str | None = None
    label: str | None = None
    placement: str = "t"


@dataclasses.dataclass(frozen=True)
class Table:
    """The definition.

    Attributes:
      title: its heading.
      rows: methods.
      columns: data.
      measures: what each cell shows; rounds to accuracies are of the first.
      seeds: of training, one run each.
      changes: of all configs.
      cells: changes of single cells, by (row, column).
      new_partitions: whether each seed also draws a partition of its own (data.seed + seed).
      targets: accuracies whose first round is given.
      paper: {row: {column: number}}: a number, a `Paper`, with several measures a dict of these by measure; None where the paper
        has none, for a cell or a row. Either empty or complete, so that nothing is left out by mistake.
      source: which table of which paper; needed if `paper` has numbers without their own.
      note: a paragraph below the heading.
      against: the row whose difference to all others is given, with its interval; None: none is.
      figure: labels of the measures that the figure of differences to `against` shows side by side; none: the first of them.
      search: how settings are chosen; None: each row has its own.
      differ: in which settings rows may differ beside their methods: "cohort", "rounds", "epochs", "batch", "network",
        "optimizer", "data". A table whose rows differ in anything else is refused; what differs stands above its numbers.
      latex: environment, caption and label of table.tex; None: it has tabulars alone.
    """

    title: str
    rows: Sequence[Row]
    columns: Sequence[Column]
    measures: Sequence[Measure]
    seeds: Sequence[int] = (0, 1, 2)
    changes: Changes = dataclasses.field(default_factory=dict)
    cells: Mapping[tuple[str, str], Changes] = dataclasses.field(default_factory=dict)
    new_partitions: bool = False
    targets: Sequence[float] = ()
    paper: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source: str = ""
    note: str = ""
    against: str | None = None
    figure: Sequence[str] = ()
    search: Search | None = None
    differ: Sequence[str] = ()
    latex: Latex | None = None
