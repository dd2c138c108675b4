"""Measures whole rounds of the engine against other implementations, in turns, and reports ratios.

python -m tests.benchmarks                                   # all workloads but b; peers that are installed
sh tests/benchmarks/peers/make.sh                                 # creates the peers' environments, under build/peers
python -m tests.benchmarks --workloads=a,c --repeats=9 --json=build/benchmarks/ac.json
python -m tests.benchmarks --scale=rows,reader --repeats=9         # cost of scale, only ours (scale.py); also host, disk
python -m tests.benchmarks --workloads=b --peers=torch --ours='(chunk=4)' --ours='(conv_form=native, dtype=bfloat16)'
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedjax_core import registry
from tests.benchmarks import equality, ours, report, scale
from tests.benchmarks.protocol import Contender, Failed
from tests.benchmarks.workloads import WORKLOADS, Workload

ROOT = Path(__file__).parents[2]
SCRATCH = ROOT / "build" / "benchmarks"
ENVIRONMENTS = ROOT / "build" / "peers"
CORES = len(os.sched_getaffinity(0))
PEERS = {  # name: (environment, module, variants)
    "torch": (
        "torch",
        "torch_loop",
        {
            "bare torch loop": {},
            "bare torch loop, 1 thread": {"threads": 1},
            "bare torch loop, channels_last": {"channels_last": True},
        },
    ),
    "fedjax": ("fedjax", "fedjax_simulation", {"FedJAX, jit backend": {}, "FedJAX, pmap backend": {"pmap": CORES}}),
    "pfl": ("pfl", "pfl_simulation", {"pfl-research": {}, "pfl-research, 1 thread": {"threads": 1}}),
    "flower": ("flower", "flower_simulation", {"Flower simulation engine": {}}),
    "blazefl": ("blazefl", "blazefl_simulation", {"BlazeFL, threads": {}, "BlazeFL, serial": {"serial": True}}),
}
PASSIVE = {"OMP_WAIT_POLICY": "passive"}  # torch's idle threads would spin and take the cores of other contenders
DEFAULT = "a,b4,c,c10,d,d5,dpft,e10,e100,e1000,e10000,f1000,f100000,g"


def contenders(workload: Workload, peers: Sequence[str], variants: Sequence[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Returns (name, command) of each contender, ours first."""
    named = []
    for variant in variants:
        told = ", ".join(f"{k}={v}" for k, v in variant.items())
        options = json.dumps({"workload": workload.name, **variant})
        named.append((f"ours ({told})" if told else "ours", [sys.executable, "-m", "tests.benchmarks.ours", options]))
    for peer in peers:
        environment, module, settings = PEERS[peer]
        if peer not in workload.peers:
            continue
        for name, more in settings.items():
            if "channels_last" in more and not workload.model.startswith("resnet"):
                continue
            python = str(ENVIRONMENTS / environment / "bin" / "python")
            named.append(
                (name, [python, "-m", f"tests.benchmarks.peers.{module}", json.dumps({"workload": workload.name, **more})])
            )
    return named


def compete(workloads: Sequence[Workload], peers: Sequence[str], variants: Sequence[dict[str, Any]], repeats: int) -> list[dict]:
    """Measures workloads with all contenders alive at once and in turns."""
    results, alive = [], []
    before = os.getloadavg()[0]
    for workload in workloads:
        entries: list[dict[str, Any]] = []
        for i, (name, command) in enumerate(contenders(workload, peers, variants)):
            say(f"  {workload.name}: {name}")
            entry: dict[str, Any] = {"name": name}
            entries.append(entry)
            try:
                if not Path(command[0]).exists():
                    raise Failed("no environment; tests/benchmarks/peers/make.sh makes it")
                contender = Contender(name, command, SCRATCH / "logs" / f"{workload.name}_{i}.log", environment=PASSIVE)
            except Failed as error:
                entry["failed"] = str(error)
                say(f"    {error}")
                continue
            entry |= {"ready": contender.ready, "seconds": [], "cpu_seconds": [], "recompiled": 0}
            alive.append((contender, entry, workload))
        results.append(
            {
                "name": workload.name,
                "title": workload.title,
                "flop": workload.flop,
                "clients": workload.cohort,
                "population": workload.population,
                "examples": workload.seen,
                "rounds": workload.rounds,
                "repeats": repeats,
                "contenders": entries,
            }
        )
    try:
        for turn in range(repeats):
            for contender, entry, workload in alive if turn % 2 == 0 else alive[::-1]:
                if "failed" in entry:
                    continue
                try:
                    answer = contender.measure(workload.rounds)
                except (Failed, BrokenPipeError) as error:
                    entry["failed"] = str(error)
                    continue
                entry["seconds"].append(answer["seconds"])
                entry["cpu_seconds"].append(answer["cpu_seconds"])
                entry["recompiled"] = answer.get("recompiled", 0)
            say(f"  turn {turn + 1} of {repeats}")
        for contender, entry, _ in alive:
            entry["peak_memory"] = contender.peak_memory()
    finally:
        for contender, _, _ in alive:
            contender.stop()
    for result in results:
        result["load"] = [before, os.getloadavg()[0]]
    return results


def say(text: str) -> None:
    """Prints progress."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def main(arguments: Sequence[str]) -> None:
    """Parses flags, measures, prints the tables and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=DEFAULT, help=f"some of {', '.join(WORKLOADS)}")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"some of {', '.join(PEERS)}; '' for none")
    parser.add_argument("--ours", action="append", help="a setting of the engine, such as '(devices=1, chunk=4)'; may be repeated")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--equality", default=None, help="workloads to compare with torch's weights; default: a, c if torch is a peer"
    )
    parser.add_argument("--json", default=str(SCRATCH / "results.json"), help="where the numbers go")
    parser.add_argument("--scale", default="", help=f"in place of workloads, some of {', '.join(scale.WHAT)}")
    chosen = parser.parse_args(arguments)
    if chosen.scale:
        ours.set_up()
        for name in chosen.scale.split(","):
            print(scale.WHAT[registry.check_choice("scale", name, scale.WHAT)](chosen.repeats), end="\n\n", flush=True)  # noqa: T201
        return
    peers = [peer for peer in chosen.peers.split(",") if peer]
    for peer in peers:
        registry.check_choice("peer", peer, PEERS)
    workloads = [WORKLOADS[registry.check_choice("workload", name, WORKLOADS)] for name in chosen.workloads.split(",")]
    variants = [registry.parse_spec(f"ours{text}")[1] for text in chosen.ours or [""]]
    wanted = ("a,c" if "torch" in peers else "") if chosen.equality is None else chosen.equality
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    ours.set_up()
    equal = []
    for name in filter(None, wanted.split(",")):
        say(f"equality: {name}")
        equal.append(equality.check(name, ENVIRONMENTS / "torch" / "bin" / "python", SCRATCH))
        if equal[-1]["difference"] > equality.TOLERANCE:
            raise AssertionError(f"{equal[-1]} differs from torch by more than {equality.TOLERANCE}")
    measured = []
    apart = [w for w in workloads if w.name[0] not in "ef"]
    groups = [[w] for w in apart] + [found for letter in "ef" if (found := [w for w in workloads if w.name[0] == letter])]
    for group in groups:
        say(", ".join(w.title for w in group))
        measured += compete(group, peers, variants, chosen.repeats)
    results = {
        "command": shlex.join(["python", "-m", "tests.benchmarks", *arguments]),
        "commit": commit,
        "machine": machine(measured),
        "versions": {e["name"]: e["ready"]["versions"] for r in measured for e in r["contenders"] if "ready" in e},
        "equality": equal,
        "workloads": measured,
    }
    Path(chosen.json).parent.mkdir(parents=True, exist_ok=True)
    Path(chosen.json).write_text(json.dumps(results, indent=1))
    print(report.whole(results))  # noqa: T201


def machine(measured: list[dict]) -> dict[str, Any]:
    """Returns a description of the machine."""
    ready = next(({**e["ready"]} for r in measured for e in r["contenders"] if "matmul_rate" in e.get("ready", {})), {})
    return {
        "device": ready.get("device", "?") if ready.get("device") != "cpu" else f"CPU, {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        "python": platform.python_version(),
        "matmul_gflops": max(
            (e["ready"].get("matmul_rate", 0.0) for r in measured for e in r["contenders"] if "ready" in e), default=0.0
        )
        / 1e9,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
