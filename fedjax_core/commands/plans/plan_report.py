"""A plan as a person reads it."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_core.engine.aot import ROUND
from fedjax_core.reporting.console import readable_time

HEAD = ("program", "fits", "arguments", "temporary", "peak", "collectives, bytes", "compiled in")


def text(plan: Mapping[str, Any]) -> str:
    """All targets of what `plan.planned` gives."""
    return "\n\n".join(_target(one) for one in plan["targets"])


def gib(number: float | None) -> str:
    """Bytes in GiB, or in MiB or KiB where they are few."""
    if number is None:
        return "?"
    unit, size = next(((unit, size) for unit, size in (("GiB", 2**30), ("MiB", 2**20)) if number >= size / 2), ("KiB", 2**10))
    return f"{number / size:,.2f} {unit}" if unit == "GiB" else f"{number / size:,.1f} {unit}"


def _target(one: Mapping[str, Any]) -> str:
    about, chunk = one["about"], one["chunk"]
    head = f"{one['target']}: {about['devices']} x {about['device']}, {gib(about['limit'])} each; "
    head += f"{about['cohort']} of {about['population']} clients a round, {about['plan']['chunk']} at once on a device; "
    head += f"data on the {about['data on']}"
    head += f"; {about['lanes']} lanes" if about["lanes"] > 1 else ""
    lines = [head, *table([HEAD, *(_row(name, program) for name, program in one["programs"].items())])]
    says = {program["says"] for program in one["programs"].values() if "says" in program}
    lines += [f"  {line}" for line in sorted(says)]
    if about["alone"]:
        lines.append(f"  Runs go one after the other, not in lanes: {about['alone']}.")
    if about["processes"] > 1 and about["hold"] != "device":
        lines.append(f"  Not counted: what {about['processes']} processes exchange of client states (plan.hold={about['hold']}).")
    if about["plan"].get("model", 1) > 1 and not about["divided"]:
        lines.append("  No array is divided by plan.model: each device holds and computes networks whole.")
    if chunk:
        end = "" if chunk["exact"] else f"; {chunk['below']} do not, between them nothing was tried"
        whole = " (all that a device has)" if chunk["chunk"] == one["clients of a device"] else ""
        found = (
            f"{chunk['chunk']} clients at once fit{whole}{end}" if chunk["chunk"] else "not even one client at once was seen to fit"
        )
        lines.append(f"  Chunk: {found}.")
    if one["round"]:
        lines.append(f"  {_round(one['round'], about)}")
    lines += [f"  To change: {sentence}" for sentence in one["advice"]]
    return "\n".join(lines)


def _round(found: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    rows = about["rows"]
    of = f" of {about['lanes']} lanes" if about["lanes"] > 1 else ""
    said = f"A {ROUND}{of} is {found['flops'] / 1e12:,.3g} TFLOP and {found['traffic'] / 1e9:,.3g} GB to and from memory on each "
    said += f"device (clients of {rows['mean']:,.0f} rows): "
    if found["seconds"] is None:
        return said + f"no peak is known of {about['device']}, so no bound on its time."
    chip = about["chip"]
    peaks = f"{chip['flops'] / 1e12:,.0f} TFLOP/s, {chip['bandwidth'] / 1e9:,.0f} GB/s; {chip['source']}"
    return said + f"at least {readable_time(found['seconds'])} at the published peaks ({peaks})."


def _row(name: str, program: Mapping[str, Any]) -> Sequence[str]:
    if program["fits"] is None:
        return name, "?", "", "", "", "", ""
    if "peak" not in program:
        return name, f"needs {gib(program['needs'])}", "", "", "", "", readable_time(program["seconds"])
    collectives = ", ".join(f"{one['number']:g} {one['kind']}, {gib(one['bytes'])}" for one in program["collectives"])
    fits = "yes" if program["fits"] else f"{gib(program['short'])} short"
    sizes = [gib(program[part]) for part in ("arguments", "temporary", "peak")]
    return name, fits, *sizes, collectives or "none", readable_time(program["seconds"])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side, each as wide as its widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
