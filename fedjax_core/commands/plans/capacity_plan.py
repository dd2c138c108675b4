"""Plans whether a config fits targets: memory of its programs, the largest chunk, a bound on a round's time."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_core.commands.plans import compile_pool, device_targets
from fedjax_core.commands.plans.plan_report import suggest_changes
from fedjax_core.engine.aot import PARTS, ROUND, SCORED_ROUND, START
from fedjax_core.experiment.mock_data import Counts

TRIES = 6  # rounds that are compiled to find a chunk
LONGEST = 600  # seconds of one program


def make_plan(
    config: Mapping[str, Any],
    wanted: Sequence[device_targets.Target],
    *,
    parts: tuple[str, ...] = PARTS,
    counts: Counts = Counts(),  # noqa: B008
    tries: int = TRIES,
    seconds: int = LONGEST,
    folder: str | os.PathLike | None = None,
    fresh: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Compiles a config's programs for targets.

    Args:
      config: whole, as plain values; its `plan.chunk` is where the search for a chunk begins.
      tries: rounds that the search for a chunk may compile; 0: no search.
      seconds: that one program may take.
      folder: of cached results; None: no cache.
    """
    reports = []
    for target in wanted:
        job = compile_pool.Job(dict(config), target, parts, counts, seconds)
        say(f"{target.name}: compiling {', '.join(parts)}")
        compiled = compile_pool.compile_programs(job, folder, fresh)
        about = compiled["about"]
        programs = {name: _add_fit(compiled["programs"][name], name, about) for name in compiled["names"]}
        plan = about["plan"]
        chunk, most = plan["chunk"], -(-about["places"] // (plan["devices"] // plan["model"]))
        of_round = programs.get(ROUND)
        largest = None
        if of_round is not None and tries:

            def fits(chunk: int, job: compile_pool.Job = job, target: device_targets.Target = target) -> bool | None:
                say(f"{target.name}: compiling the round with plan.chunk={chunk}")
                more = compile_pool.compile_programs(compile_pool.with_chunk(job, chunk)._replace(parts=(ROUND,)), folder, fresh)
                return _add_fit(more["programs"][ROUND], ROUND, more["about"])["fits"]

            largest = find_largest_chunk(fits, {chunk: of_round["fits"]}, most, tries)
        too_large = [name for name, program in programs.items() if program["fits"] is False]
        changes = suggest_changes(config, about, None if largest is None else largest.chunk) if too_large else []
        reports.append(
            {
                "target": target.name,
                "about": about,
                "programs": programs,
                "clients of a device": most,
                "chunk": None if largest is None else {**largest._asdict(), "exact": largest.is_exact},
                "round": _time_bound(of_round, about),
                "advice": changes,
            }
        )
    return {"method": config["method"]["name"], "models": list(config["models"]), "targets": reports}


def _add_fit(program: Mapping[str, Any], name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a program with whether it fits beside what else is on the device.

    The first round of a kind begins on a copy of the states. Another program of one lane has the
    states of the others beside it. After the start it has its own lane's too, of which it reads
    the server's and blocks of clients.
    """
    if "peak" not in program:
        return dict(program)
    num_runs = about["num_runs"]
    unread = about["bytes"]["client states"] + about["bytes"]["earlier broadcasts"]
    states = unread + about["bytes"]["server state"]
    if name in (ROUND, SCORED_ROUND):
        beside = states
    else:
        beside = states * (num_runs - 1) / num_runs + (0 if name == START else unread / num_runs)
    missing = program["peak"] + beside - about["limit"]
    return {**program, "beside": beside, "fits": missing <= 0, "short": max(0.0, missing)}


def _time_bound(program: Mapping[str, Any] | None, about: Mapping[str, Any]) -> dict[str, Any] | None:
    if program is None or "flops" not in program:
        return None
    chip, seconds = about["chip"], None
    if chip is not None:
        seconds = max(program["flops"] / chip["flops"], program["traffic"] / chip["bandwidth"])
    return {"flops": program["flops"], "traffic": program["traffic"], "seconds": seconds}


def plan_fits(plan: Mapping[str, Any]) -> bool:
    """Returns whether every compiled program fits its target."""
    return all(program["fits"] for target in plan["targets"] for program in target["programs"].values())


class LargestChunk(NamedTuple):
    """The result of the search for a chunk.

    Attributes:
      chunk: the largest that fits, as far as tried; 0 if none does.
      below: the smallest that does not fit, as far as tried; None if all do.
      tried: number of compiled programs.
      unknown: one that could not be compiled, which ended the search; None: there is none.
    """

    chunk: int
    below: int | None
    tried: int
    unknown: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether no chunk between the two is left to try."""
        return self.unknown is None and (self.below is None or self.below == self.chunk + 1)


def find_largest_chunk(fits: Callable[[int], bool | None], known: dict[int, bool | None], most: int, tries: int) -> LargestChunk:
    """Finds the largest chunk that fits by bisection, on a scale of ratios while far apart.

    A chunk that cannot be compiled ends the search.

    >>> find_largest_chunk(lambda chunk: chunk <= 11, {32: False}, 32, 8)
    LargestChunk(chunk=11, below=12, tried=6, unknown=None)

    Args:
      fits: chunk -> whether its round fits; None: it is not known.
      most: what would be all of a device's clients at once.
    """
    tried = 0
    while True:
        low = max((chunk for chunk, fit in known.items() if fit), default=0)
        high = min((chunk for chunk, fit in known.items() if fit is False), default=None)
        if low == most or (high is not None and high <= low + 1) or tried == tries or None in known.values():
            return LargestChunk(low, high, tried, next((chunk for chunk, fit in known.items() if fit is None), None))
        chunk = most
        if high is not None:
            middle = (low + high) // 2 if high <= 4 * low else round((low * high) ** 0.5)
            chunk = 1 if not low else max(low + 1, min(high - 1, middle))
        known = known | {chunk: fits(chunk)}
        tried += 1
