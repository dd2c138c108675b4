"""The summary of a run, from its records, and the closing table."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_core.option_types import is_number
from fedjax_core.reporting.console import readable_size, readable_time
from fedjax_core.reporting.rounds_to_target import is_reached
from fedjax_core.reporting.score_labels import (
    is_accuracy,
    is_gap,
    is_headline,
    is_loss,
    is_overall,
    is_r2,
    is_requested,
    selection_key,
)
from fedjax_core.reporting.terminal import align_columns, find_columns

CLOCK = "simulated_seconds_total"  # of a record: simulated seconds from the start of the run to the end of the round
_COUNTS = {  # not scores
    *("round", "seconds", "compile_seconds", "cohort", "sampled", "simulated_seconds", CLOCK),
    *("staleness", "max_staleness", "too_stale"),
}


class Series(NamedTuple):
    """A score over its rounds: two arrays of one length."""

    rounds: np.ndarray
    values: np.ndarray


def summarize_records(
    records: Sequence[Mapping[str, Any]], targets: Sequence[float] = (), last_k: int = 10, select: str | None = None
) -> dict[str, Any]:
    """Summarises a run.

    Args:
      records: of the run, ordered by round.
      targets: accuracies to reach.
      last_k: number of last evaluations to average.
      select: a score on validation data; the run is reported at its best round.

    Returns:
      A dict of

      - "rounds": number of rounds done.
      - "metrics": per score "first", "last", "last_round", "evaluations", "mean_last_k", "k" (at
        most `last_k`), with `select` "selected" (the value in that round). Accuracies and R2 also
        have "best", "best_round" and "best_is" (what it is selected on), accuracies "rounds_to"
        (per target the first round with at least that accuracy, or None) and, with simulated
        time, "seconds_to" (the simulated seconds until its end).
      - "selected": with `select`, its name "by", its best "round" and its "value".
      - "speed": "seconds", "rounds_per_second", "clients_per_second", "examples_per_second",
        "compile_seconds", "simulated_seconds", as far as the records have them; rates exclude
        compilation.
    """
    summary: dict[str, Any] = {"rounds": records[-1]["round"] if records else 0, "metrics": {}, "speed": _speed(records)}
    clock = {record["round"]: record[CLOCK] for record in records if CLOCK in record}
    names = dict.fromkeys(name for record in records for name in record if name not in _COUNTS and name != "train/examples")
    for name in names:
        rounds = [record["round"] for record in records if is_number(record.get(name))]
        values = [float(record[name]) for record in records if is_number(record.get(name))]
        if not values:
            continue
        tail = values[-last_k:]
        entry: dict[str, Any] = {
            "first": values[0],
            "last": values[-1],
            "last_round": rounds[-1],
            "evaluations": len(values),
            "mean_last_k": math.fsum(tail) / len(tail) if all(map(math.isfinite, tail)) else math.nan,
            "k": len(tail),
        }
        if is_headline(name):
            best = max(range(len(values)), key=lambda i: selection_key(name, values[i]))
            entry["best"], entry["best_round"] = values[best], rounds[best]
            entry["best_is"] = "best over rounds" + (", selected on test data" if name.startswith("test/") else "")
        if is_accuracy(name):
            reached = {str(t): next((r for r, v in zip(rounds, values, strict=True) if is_reached(t, v)), None) for t in targets}
            entry["rounds_to"] = reached
            if clock:
                entry["seconds_to"] = {target: None if r is None else clock[r] for target, r in reached.items()}
        summary["metrics"][name] = entry
    if select is not None and select in summary["metrics"]:
        _add_selected(records, select, summary)
    return summary


def _add_selected(records: Sequence[Mapping[str, Any]], select: str, summary: dict[str, Any]) -> None:
    """Adds the selected round, and every score in it."""
    evaluated = [record for record in records if is_number(record.get(select))]
    best = max(evaluated, key=lambda record: selection_key(select, record[select]))
    summary["selected"] = {"by": select, "round": best["round"], "value": float(best[select])}
    for name, entry in summary["metrics"].items():
        if is_number(best.get(name)):
            entry["selected"] = float(best[name])


def _speed(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns rates over the records that have their time."""
    counts = {"rounds": 0.0, "clients": 0.0, "examples": 0.0}
    seconds = compiling = 0.0
    before = 0
    for record in records:
        if "seconds" in record:
            seconds += record["seconds"]
            compiling += record.get("compile_seconds", 0.0)
            counts["rounds"] += record["round"] - before
            counts["clients"] += record.get("cohort", 0)
            counts["examples"] += record.get("train/examples", 0)
        before = record["round"]
    speed = {"seconds": seconds} if seconds else {}
    if compiling:
        speed["compile_seconds"] = compiling
    if records and CLOCK in records[-1]:
        speed["simulated_seconds"] = records[-1][CLOCK]
    if seconds > compiling:
        speed |= {f"{name}_per_second": count / (seconds - compiling) for name, count in counts.items() if count}
    return speed


def collect_history(records: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    """Returns a run's records by score.

    >>> records = [{"round": 1, "train/loss": 2.0}, {"round": 2, "train/loss": 1.5, "test/global/accuracy": 0.75}]
    >>> collect_history(records)["train/loss"]
    Series(rounds=array([1, 2]), values=array([2. , 1.5]))
    """
    names = dict.fromkeys(name for record in records for name in record if name != "round")
    points = {name: [(record["round"], record[name]) for record in records if is_number(record.get(name))] for name in names}
    return {name: Series(*map(np.array, zip(*pairs, strict=True))) for name, pairs in points.items() if pairs}


def format_summary(summary: Mapping[str, Any]) -> str:
    """Returns the closing table of a summary: scores, speed, traffic and memory."""
    scores = {name: entry for name, entry in summary["metrics"].items() if _is_in_table(name)}
    targets = list(dict.fromkeys(target for entry in scores.values() for target in entry.get("rounds_to", ())))
    span = max((entry["k"] for entry in scores.values()), default=0)
    chosen = summary.get("selected")
    title = [f"round {chosen['round']}+"] if chosen else []
    rows = [["", "last", *title, "best*", "round", f"mean of last {span}", *(f"to {100 * float(t):g} %" for t in targets)]]
    for name, entry in scores.items():
        is_tested = "best" in entry and name.startswith("test/")
        selected = [format_score(name, entry["selected"]) if "selected" in entry else ""] if chosen else []
        best = [format_score(name, entry["best"]), str(entry["best_round"])] if is_tested else ["", ""]
        mean = format_score(name, entry["mean_last_k"]) + (f" ({entry['k']})" if entry["k"] < span else "")
        reached = [_format_reached(entry, t) if is_tested else "" for t in targets]
        rows.append([name, format_score(name, entry["last"]), *selected, *best, mean, *reached])
    lines = align_columns(rows, find_columns(sys.stderr), align=str.rjust) if scores else []
    if any(name.startswith("test/") and "best" in entry for name, entry in scores.items()):
        if chosen:
            lines.append(f"+ where {chosen['by']} is best: what to report")
        lines.append("* best over rounds, selected on test data: not a result to report")
    if scores:
        fewer = ", or as many as stand in brackets" if any(entry["k"] < span for entry in scores.values()) else ""
        lines.append(f"mean of last {span}: over the last {span} rounds that have the score{fewer}")
    if targets:
        first = f"{100 * float(targets[0]):g} %"
        timed = ", and the simulated time until its end" if any("seconds_to" in entry for entry in scores.values()) else ""
        lines.append(f"to {first}: the first round with at least {first}, of those that have the score{timed}")
    return "\n".join(line.rstrip() for line in [*lines, *_describe_spread(summary), *_describe_costs(summary)])


def _format_reached(entry: Mapping[str, Any], target: str) -> str:
    """Returns the cell of a score's first round with a target: "never", the round, and its simulated time if there is one."""
    if target not in entry.get("rounds_to", {}):
        return ""
    if (first := entry["rounds_to"][target]) is None:
        return "never"
    return f"{first}, {readable_time(entry['seconds_to'][target])}" if "seconds_to" in entry else str(first)


def _is_in_table(name: str) -> bool:
    """Returns whether the closing table has a score.

    It has accuracies with all statistics over clients, and gaps; of losses, R2 and requested scores
    those of the whole run.
    """
    if is_gap(name) or (is_accuracy(name) and not is_requested(name)):
        return True
    is_scored = is_loss(name) or is_r2(name) or name.startswith(("test/", "validation/"))
    return is_scored and "mean_squared_error" not in name and is_overall(name)


def _describe_spread(summary: Mapping[str, Any]) -> list[str]:
    """Returns a line on each test accuracy over clients, in the selected round if there is one."""
    moments = summary.get("clients", {})
    moment = moments.get("selected") or moments.get("last") or {"scores": {}}
    lines = []
    for name, entry in moment["scores"].items():
        if name.startswith("test/"):
            deciles = ", ".join(format_score(name, entry["deciles"][i - 1]) for i in (1, 5, 9))
            worst = format_score(name, entry["worst_tenth"])
            lines.append(f"clients  {name}: worst tenth {worst}, deciles 1, 5, 9: {deciles}")
    return lines


def _describe_costs(summary: Mapping[str, Any]) -> list[str]:
    speed, facts = summary.get("speed", {}), summary.get("facts", {})
    parts = [f"{summary['rounds']} rounds"]
    compiling = speed.get("compile_seconds", facts.get("compile_seconds"))
    training = speed.get("seconds", 0.0) - speed.get("compile_seconds", 0.0)
    if training > 0:  # consistent with the rate
        parts[0] += f" in {readable_time(training)}"
    for what in ("rounds", "clients", "examples"):
        if f"{what}_per_second" in speed:
            parts.append(f"{format_significant(speed[f'{what}_per_second'])} {what}/s")
    if compiling is not None:
        parts.append(f"and {readable_time(compiling)} of compiling beside")
    lines = [f"speed    {', '.join(parts)}"]
    if "simulated_seconds" in speed:
        simulated = speed["simulated_seconds"]
        rate = readable_time(simulated / max(summary["rounds"], 1))
        lines.append(f"time     {readable_time(simulated)} simulated, {rate} a round")
    ways = [f"{readable_size(facts[f'bytes_{way}'])} {way}" for way in ("down", "up") if f"bytes_{way}" in facts]
    if ways:
        lines.append(f"traffic  {', '.join(ways)}, per client and round")
    if facts.get("peak_memory_bytes"):
        lines.append(f"memory   {readable_size(facts['peak_memory_bytes'])} at most")
    return lines


def format_score(name: str, value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if is_gap(name):
        return f"{value:+.3g}" if name.endswith("/r2") else f"{100 * value:+.1f} points"
    return f"{100 * value:.1f} %" if is_accuracy(name) else f"{value:.4g}"


def format_significant(value: float) -> str:
    """Returns a number with three digits, or with all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
