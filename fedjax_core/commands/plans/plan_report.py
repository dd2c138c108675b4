"""Renders a plan as text, and suggests what to change where something does not fit."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_core.engine.aot import ROUND
from fedjax_core.reporting.console import readable_size, readable_time
from fedjax_core.reporting.terminal import align_columns, find_columns

HEAD = ("program", "fits", "arguments", "temporary", "peak", "collectives, bytes", "compiled in")


def render_plan(plan: Mapping[str, Any]) -> str:
    """Returns a plan of `capacity_plan.make_plan` as text."""
    return "\n\n".join(_render_target(target) for target in plan["targets"])


def format_bytes(number: float | None) -> str:
    """Formats bytes in GiB, or in MiB or KiB if they are few."""
    if number is None:
        return "?"
    unit, size = next(((unit, size) for unit, size in (("GiB", 2**30), ("MiB", 2**20)) if number >= size / 2), ("KiB", 2**10))
    return f"{number / size:,.2f} {unit}" if unit == "GiB" else f"{number / size:,.1f} {unit}"


def _render_target(target: Mapping[str, Any]) -> str:
    about, chunk = target["about"], target["chunk"]
    head = f"{target['target']}: {about['devices']} x {about['device']}, {format_bytes(about['limit'])} each; "
    head += f"{about['cohort']} of {about['population']} clients a round, {about['plan']['chunk']} at once on a device; "
    head += f"data on the {about['data on']}"
    head += f"; {about['num_runs']} runs at once" if about["num_runs"] > 1 else ""
    rows = [HEAD, *(_program_row(name, program) for name, program in target["programs"].items())]
    lines = [head, *align_columns(rows, find_columns(sys.stdout), indent="  ")]
    messages = {program["says"] for program in target["programs"].values() if "says" in program}
    lines += [f"  {line}" for line in sorted(messages)]
    if about["alone"]:
        lines.append(f"  Runs train one after another: {about['alone']}.")
    if kept := about["bytes"]["earlier broadcasts"]:
        lines.append(f"  The server keeps earlier broadcasts for its schedule: {format_bytes(kept)}; max_staleness bounds them.")
    if about["processes"] > 1 and about["hold"] != "device":
        lines.append(f"  Not counted: what {about['processes']} processes exchange of client states (plan.hold={about['hold']}).")
    if about["plan"]["model"] > 1 and not about["divided"]:
        lines.append("  No array is divided by plan.model: each device holds and computes networks whole.")
    if chunk:
        end = ""
        if chunk["unknown"] is not None:
            end = f"; the round with {chunk['unknown']} could not be compiled, which ended the search"
        elif not chunk["exact"]:
            end = f"; {chunk['below']} do not, between them nothing was tried"
        whole = " (all that a device has)" if chunk["chunk"] == target["clients of a device"] else ""
        fitting = f"{chunk['chunk']} clients at once fit{whole}{end}"
        lines.append(f"  Chunk: {fitting if chunk['chunk'] else 'not even one client at once was seen to fit'}.")
    if target["round"]:
        lines.append(f"  {_describe_round(target['round'], about)}")
    lines += [f"  To change: {sentence}" for sentence in target["advice"]]
    return "\n".join(lines)


def _describe_round(bound: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    rows = about["rows"]
    of_runs = f" of {about['num_runs']} runs at once" if about["num_runs"] > 1 else ""
    text = f"A {ROUND}{of_runs} is {bound['flops'] / 1e12:,.3g} TFLOP and {bound['traffic'] / 1e9:,.3g} GB to and from "
    text += f"memory on each device (clients of {rows['mean']:,.0f} rows): "
    if bound["seconds"] is None:
        return text + f"no peak is known of {about['device']}, so no bound on its time."
    chip = about["chip"]
    peaks = f"{chip['flops'] / 1e12:,.0f} TFLOP/s, {chip['bandwidth'] / 1e9:,.0f} GB/s; {chip['source']}"
    return text + f"at least {readable_time(bound['seconds'])} at the published peaks ({peaks})."


def _program_row(name: str, program: Mapping[str, Any]) -> Sequence[str]:
    if program["fits"] is None:
        return name, "?", "", "", "", "", ""
    if "peak" not in program:
        return (name, f"needs {format_bytes(program['needs'])}", "", "", "", "", readable_time(program["seconds"]))
    collectives = ", ".join(
        f"{collective['number']:g} {collective['kind']}, {format_bytes(collective['bytes'])}"
        for collective in program["collectives"]
    )
    fits = "yes" if program["fits"] else f"{format_bytes(program['short'])} short"
    sizes = [format_bytes(program[part]) for part in ("arguments", "temporary", "peak")]
    return name, fits, *sizes, collectives or "none", readable_time(program["seconds"])


def suggest_changes(config: Mapping[str, Any], about: Mapping[str, Any], chunk: int | None) -> list[str]:
    """Returns sentences on what to change, the largest saving first.

    Args:
      about: of `compile_worker.describe_simulation`.
      chunk: the largest that fits, 0 if none does; None: not searched.
    """
    sentences, sizes, plan = [], about["bytes"], config["plan"]
    if chunk:
        sentences.append(f"plan.chunk={chunk} fits.")
    is_large = lambda part: sizes[part] > 0.1 * about["limit"]
    if is_large("rows of data") and about["data on"] == "device":
        sentences.append(f"plan.data=host keeps {readable_size(sizes['rows of data'])} of rows off the device.")
    if is_large("client states") and plan["hold"] == "device":
        sentences.append(f"plan.hold=host keeps {readable_size(sizes['client states'])} of client states off the device.")
    if about["num_runs"] > 1:
        sentences.append(
            f"plan.lanes={about['num_runs'] // 2} needs half of it for states and training; a run takes as many as fit by itself."
        )
    larger = _next_model(about["available"] // about["processes"], about["plan"]["model"])
    if larger is not None and (is_large("frozen and public arrays") or is_large("server state")):
        networks = readable_size(sizes["frozen and public arrays"] + sizes["server state"])
        sentences.append(f"plan.model={larger} spreads the networks, {networks} on each device, over so many.")
    if not chunk:
        for index, model in enumerate(config["models"]):
            name = str(model)
            if name.startswith("pretrained") and "remat=True" not in name:
                sentences.append(f"models[{index}]: remat=True recomputes layers in the backward pass.")
            if name.startswith("pretrained") and "bfloat16" not in name and config["adapter"] is not None:
                sentences.append(f"models[{index}]: dtype='bfloat16' halves its parameters.")
        batch = config["method"].get("batch")
        if batch is not None and batch > 1:
            sentences.append(f"method.batch={batch}: a smaller one needs less (and is another experiment).")
    return sentences


def _next_model(devices: int, model: int) -> int | None:
    """Returns the next larger number that divides the devices of a process, which hold a network together."""
    return next((number for number in range(model + 1, devices + 1) if devices % number == 0), None)
