"""A plan: for each target what its programs need, the largest chunk, a bound on a round's time, and what to change."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedjax_core.commands.plans import chunks, compile_pool, device_targets
from fedjax_core.commands.plans.advice import advice
from fedjax_core.engine.aot import PARTS, ROUND, SCORED_ROUND
from fedjax_core.experiment.mock_data import Counts


def planned(
    config: Mapping[str, Any],
    wanted: Sequence[device_targets.Target],
    *,
    parts: tuple[str, ...] = PARTS,
    counts: Counts = Counts(),  # noqa: B008
    tries: int = 6,
    seconds: int = 600,
    folder: str | os.PathLike | None = None,
    fresh: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Compiles a config's programs for targets.

    Args:
      config: whole, as plain values; its `plan.chunk` is where the search for a chunk begins.
      wanted: the targets.
      parts: of a run, which are compiled.
      counts: of data whose size is not known.
      tries: rounds that the search may compile beside the first; 0: it is not made.
      seconds: that one program may take.
      folder: where results are kept; None: nowhere.
      fresh: whether to compile anew what is kept.
      say: told what is being compiled.

    Returns:
      {"targets": [one for each], ...}, see `written.py`.

    Raises:
      ValueError, OSError: as `compile_pool.compiled`.
    """
    found = []
    for target in wanted:
        job = compile_pool.Job(dict(config), target, parts, counts, seconds)
        say(f"{target.name}: compiling {', '.join(parts)}")
        first = compile_pool.compiled(job, folder, fresh)
        about = first["about"]
        programs = {name: _judged(first["programs"][name], name, about) for name in first["there"]}
        plan = about["plan"]
        chunk, most = plan["chunk"], -(-about["places"] // (plan["devices"] // plan.get("model", 1)))
        of_round = programs.get(ROUND)
        largest = None
        if of_round is not None and tries:

            def fits(chunk: int, job: compile_pool.Job = job, target: device_targets.Target = target) -> bool | None:
                say(f"{target.name}: compiling the round with plan.chunk={chunk}")
                more = compile_pool.compiled(compile_pool.with_chunk(job, chunk, (ROUND,)), folder, fresh)
                return _judged(more["programs"][ROUND], ROUND, more["about"])["fits"]

            largest = chunks.largest(fits, {chunk: of_round["fits"]}, most, tries)
        bad = [name for name, one in programs.items() if not one["fits"]]
        changes = advice(config, about, None if largest is None else largest.chunk) if bad else []
        found.append(
            {
                "target": target.name,
                "about": about,
                "programs": programs,
                "clients of a device": most,
                "chunk": None if largest is None else {**largest._asdict(), "exact": largest.exact},
                "round": _bound(of_round, about),
                "advice": changes,
            }
        )
    return {"method": config["method"]["name"], "models": list(config["models"]), "targets": found}


def _judged(one: Mapping[str, Any], name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """A program, and whether it fits beside what else is there: the first round begins on a copy of the state, and what is about
    one lane has the states of the others beside it."""
    if "peak" not in one:
        return dict(one)
    states, lanes = about["bytes"]["client states"] + about["bytes"]["server state"], about["lanes"]
    beside = states if name == ROUND else 0 if name == SCORED_ROUND else states * (lanes - 1) / lanes
    short = one["peak"] + beside - about["limit"]
    return {**one, "beside": beside, "fits": short <= 0, "short": max(0.0, short)}


def _bound(of_round: Mapping[str, Any] | None, about: Mapping[str, Any]) -> dict[str, Any] | None:
    if of_round is None or "flops" not in of_round:
        return None
    chip, seconds = about["chip"], None
    if chip is not None:
        seconds = max(of_round["flops"] / chip["flops"], of_round["traffic"] / chip["bandwidth"])
    return {"flops": of_round["flops"], "traffic": of_round["traffic"], "seconds": seconds}


def fits(plan: Mapping[str, Any]) -> bool:
    """Whether everything that was compiled fits everywhere."""
    return all(one["fits"] for target in plan["targets"] for one in target["programs"].values())
