"""Markdown tables of results; `python -m tests.benchmarks.report FILE.json` prints saved ones."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any


def table(result: dict[str, Any]) -> str:
    """Returns the table of one workload, with ratios to the first contender."""
    before, after = result["load"]
    columns = (
        "",
        "s/round, median (min-max)",
        "CPU s/round",
        "clients/s",
        "GFLOP/s",
        "time, ratio",
        "CPU, ratio",
        "compile s",
        "peak MB",
    )
    lines = [
        f"**{result['name']}** {result['title']}. {result['flop'] / 1e9:,.1f} GFLOP and {result['clients']:,} clients a round; "
        f"{result['repeats']} repeats of {result['rounds']} rounds in turns; load {before:.1f} before, {after:.1f} after.",
        "",
        row(*columns),
        "|---" * len(columns) + "|",
    ]
    for entry in result["contenders"]:
        if "failed" in entry:
            lines.append(row(entry["name"], f"did not run: {entry['failed']}", *[""] * (len(columns) - 2)))
            continue
        seconds = entry["seconds"]
        median = statistics.median(seconds)
        compiled = entry["ready"].get("compile_seconds")
        cells = (
            entry["name"],
            spread(seconds),
            number(statistics.median(entry["cpu_seconds"])),
            f"{result['clients'] / median:,.0f}",
            f"{result['flop'] / median / 1e9:,.1f}",
            ratio(result, entry, "seconds"),
            ratio(result, entry, "cpu_seconds"),
            "" if compiled is None else number(compiled),
            f"{entry['peak_memory'] / 1e6:,.0f}",
        )
        lines.append(row(*cells))
    return "\n".join(lines)


def row(*cells: str) -> str:
    """Returns a line of a table."""
    return f"| {' | '.join(cells)} |"


def spread(values: list[float]) -> str:
    """Returns the median (min-max)."""
    return f"{number(statistics.median(values))} ({number(min(values))}-{number(max(values))})"


def ratio(result: dict[str, Any], entry: dict[str, Any], what: str) -> str:
    """Returns the median over repeats of the ratio to the first contender in the same turn."""
    first = result["contenders"][0]
    if "failed" in first or entry is first:
        return ""
    return f"{statistics.median(paired(first[what], entry[what])):.2f}"


def paired(ours: list[float], theirs: list[float]) -> list[float]:
    """Returns the ratios per turn."""
    return [t / max(o, 1e-9) for o, t in zip(ours, theirs, strict=True)]


def growth(results: list[dict[str, Any]]) -> str:
    """Returns cost per client and memory against the size of cohort or population."""
    columns = (
        "workload",
        "cohort",
        "population",
        "ms/client, median (min-max)",
        "CPU ms/client",
        "s/round",
        "peak MB",
        "recompiled",
    )
    lines = [row(*columns), "|---" * len(columns) + "|"]
    for result in results:
        entry = result["contenders"][0]
        if "failed" in entry:
            lines.append(row(result["name"], f"did not run: {entry['failed']}", *[""] * (len(columns) - 2)))
            continue
        cells = (
            result["name"],
            f"{result['clients']:,}",
            f"{result['population']:,}",
            spread([1e3 * s / result["clients"] for s in entry["seconds"]]),
            number(1e3 * statistics.median(entry["cpu_seconds"]) / result["clients"]),
            number(statistics.median(entry["seconds"])),
            f"{entry['peak_memory'] / 1e6:,.0f}",
            str(entry["recompiled"]),
        )
        lines.append(row(*cells))
    return "\n".join(lines)


def number(x: float) -> str:
    """Returns a number with three significant digits."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def whole(results: dict[str, Any]) -> str:
    """Returns the whole report."""
    of = results["machine"]
    versions = {name: version for found in results["versions"].values() for name, version in found.items() if name != "jax"}
    for name, found in results["versions"].items():
        if "jax" in found:
            versions[f"jax ({name})"] = found["jax"]
    parts = [
        f"Command: `{results['command']}`. Commit {results['commit']}. "
        f"{of['device']}, {of['cores']} cores, {of['memory_gb']:.0f} GB, Python {of['python']}; "
        f"matrix product on one device: {of['matmul_gflops']:,.0f} GFLOP/s. "
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}."
    ]
    together = [r for r in results["workloads"] if r["name"][0] in "ef"]
    parts += [table(r) for r in results["workloads"] if r not in together]
    if together:
        parts.append("**e, f** growth; ours alone, each size in a process of its own, in turns.\n\n" + growth(together))
    if results["equality"]:
        lines = [row("workload", "largest difference of an averaged weight", "largest change of one"), "|---|---|---|"]
        lines += [row(e["workload"], f"{e['difference']:.1e}", f"{e['change']:.1e}") for e in results["equality"]]
        start = "**Equality** with the bare torch loop, same initial weights and batches, after one round:\n\n"
        parts.append(start + "\n".join(lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    for file in sys.argv[1:]:
        print(whole(json.loads(Path(file).read_text())), end="\n\n")  # noqa: T201
