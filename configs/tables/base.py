"""The definition of a table: a method per row, data per column, and published numbers.

A definition is a file with `get_table(variant) -> Table`, which `fedjax-core table` runs. Changes
are written as in `--config.<field>=`: {"data.partition": "iid", "optimizer.lr": 0.01}. They may set
an option of a method that its config omits ("method.server_lr"). They apply in the order table,
column, row, cell; the last one wins. A table with a `Search` selects settings of its rows on
validation examples before it runs their cells.
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
      label: name in the table.
      config: variant -> config: the `get_config` of a file in `configs/`.
      changes: changes of that config.
      space: search space by field: {"optimizer.lr": LogUniform(0.01, 1.0), "method.mu": (0.01, 0.1,
        1.0)}. Fields of data, cohort, devices, rounds, evaluation, privacy, attacks, rules and
        compression are refused.
    """

    label: str
    config: Callable[[str], Any]
    changes: Changes = dataclasses.field(default_factory=dict)
    space: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Column:
    """A data setting.

    Attributes:
      label: name in the table.
      changes: changes of every row's config.
      targets: accuracies for which the first round is reported; None: those of the table.
    """

    label: str
    changes: Changes
    targets: Sequence[float] | None = None


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number that a cell shows.

    Attributes:
      label: name in the table.
      scores: names in metrics.jsonl, of which the first one in a run is used, so that methods with
        global and with personal models can share a table. Or one analysis of the last state,
        averaged over clients: "analysis:probe", "analysis:match", "analysis:origin" (the unchanged
        model), with options such as "analysis:probe(model='global', key='features')";
        "analysis:rouge" of answers as text, with of='sst2' for one test set or task, and beams=4
        for a language model. Or a count from shapes alone: "analysis:trained", "analysis:whole",
        "analysis:body" (of a client's network), "analysis:up", "analysis:down" (of its messages),
        averaged over clients, summed with total=True, for one architecture with group=0. A table of
        counts only trains nothing.
      statistic: over the rounds: "last", "first", "best" (selected on test data), "mean_of_last"
        (`evaluation.last_k`), "selected" (in the round selected by `evaluation.select`). Or
        "rounds_to(target=0.97)": the number of rounds until the best score so far crosses the
        target, interpolated linearly between evaluations; "never" if it does not. Likewise
        "seconds_to(target=0.97)": simulated seconds, of runs with `devices.profile`. The published
        number and the ratio to it are shown beside it.
      percent: whether to multiply by 100; None: if it is an accuracy.
      unit: divisor, such as 2**20 for millions as papers count parameters. Not together with
        `percent`.
      digits: number of decimals; None: two for percentages, else four significant digits.
      better: "larger", "smaller" or "neither"; the best number of a column is bold. None: larger
        for accuracies, ROUGE and analyses, smaller for losses, neither for counts and other scores.
      clients: a statistic over clients: "worst_tenth" (the mean of the worst tenth),
        "decile(number=1)" to 9, "worse_than(row='Local')" (the share of clients with a lower score
        than in that row, with the same column, seed and client). Scores are then named without a
        statistic, "test/personal/own/accuracy", and belong to the "last" or the "selected" round.
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
    """A uniform distribution over an interval."""

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
    """A log-uniform distribution over a positive interval."""

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
    """A search for the settings of each row, separately for each column.

    All rows have the same number of trials. The best trial by a validation score supplies the
    settings of the row's cells. Trial 0 has the row's own settings; the others change the fields of
    the row's space. A trial is an ordinary run: later calls reuse it, and so do other tables in the
    same directory with the same labels of row and column.

    Attributes:
      measure: the validation score, "validation/global/accuracy", or several, of which the first
        one in a run is used. It belongs to the selected round if `evaluation.select` is set, else
        to the last. The highest wins, for losses the lowest, and on ties the first trial.
      trials: number of trials per row, including its own settings.
      sampler: "random": drawn from (seed, trial, field), so that rows with the same field try the
        same values. "grid": points of the product of the spaces in an order drawn from the seed.
        "tpe": a few random trials, then settings that Optuna proposes from the row's own scores;
        not with `halving`. It needs the package optuna: pip install 'fedjax-core[search]'.
      seed: seed of the draws.
      seeds: seeds of training; the score of a trial is the mean over them.
      rounds: rounds of a trial; None: those of the row.
      halving: a factor f: all trials run a part of the rounds, the best 1/f of them continue for f
        times as many, and so on to the full number. Trial 0 always runs to the end, so that the
        gain of tuning is known. None: all trials run to the end. Not with noise calibrated to a
        number of rounds (`privacy.epsilon`).
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
    """A published number as printed, accuracies in percent.

    `math.inf` is a number of rounds to a target that was never reached.
    """

    value: float
    std: float | None = None
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Latex:
    """The LaTeX environment of each measure in table.tex, with caption and label.

    Attributes:
      environment: "table", or "table*" over both columns of a page; None: only tabulars, for your
        own environment.
      caption: LaTeX; with several measures, each appends its label. None: the title of the table.
      label: LaTeX; with several measures, each appends its name, "tab:first-whole-test-set". None:
        from the title.
      placement: placement of the environment.
    """

    environment: str | None = "table"
    caption: str | None = None
    label: str | None = None
    placement: str = "t"


@dataclasses.dataclass(frozen=True)
class Table:
    """The definition of a table.

    Attributes:
      title: heading.
      rows: methods.
      columns: data.
      measures: numbers in each cell; rounds to accuracies refer to the first one.
      seeds: seeds of training, one run each.
      changes: changes of all configs.
      cells: changes of single cells, by (row, column).
      new_partitions: whether each seed also draws its own partition (data.seed + seed).
      targets: accuracies for which the first round is reported.
      paper: {row: {column: number}}: a number, a `Paper`, or with several measures a dict of these
        by measure; None for a cell or a row that the paper lacks. Either empty or complete, so that
        nothing is omitted by mistake.
      source: table and paper; required if `paper` has numbers without their own source.
      note: a paragraph below the heading.
      against: the row to which differences of all others are reported, with intervals; None: no
        row.
      figure: labels of the measures that the figure of differences to `against` shows side by side;
        empty: the first one.
      search: how settings are selected; None: each row keeps its own.
      differ: settings in which rows may differ beside their methods: "cohort", "rounds", "epochs",
        "batch", "network", "optimizer", "data", "evaluation". Other differences are refused; these are listed
        above the numbers.
      latex: environment, caption and label of table.tex; None: only tabulars.
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
