"""Measures an accelerator piece by piece, and resumes where the last call ended.

sh tests/benchmarks/accelerator.sh OUT                              # nine minutes; repeat until all is done
sh tests/benchmarks/accelerator.sh OUT --data=DIR --seconds=3600    # also pieces that train on CIFAR-10, for an hour
sh tests/benchmarks/accelerator.sh OUT --only=rate,fedit
python -m tests.benchmarks.accelerator build/toy --toy              # every piece at toy size on a CPU, in this process
sh tests/benchmarks/accelerator.sh build/day --seconds=480; tar czf day.tar.gz build/day    # on a machine without storage

OUT/results.jsonl has a line for each measurement and each run, OUT/PIECE the directories of runs
and tables, OUT/logs the output, OUT/done/PIECE marks a finished piece; checkpoints of finished
pieces are removed. A later call needs only OUT and the same --data, in any location: OUT/data is a
link to the data. A measurement starts if enough time is left; runs and tables stop at a round when
the time is used up, and resume from there. A failed step is retried once after all others, and then
given up; without its lines in OUT/results.jsonl it is tried again.

Exit status: 0 all done (pieces without their data are skipped), 75 more is left, 1 the rest was
given up or no measurement is possible here, 2 for a wrong command line or a missing package, 130
after an interruption.
"""

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.accelerator.pieces import LONGEST, NEEDED, PIECES, PREPARED, Asked, cifar10, least, link

MORE = 75  # EX_TEMPFAIL of sysexits.h


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("accelerator", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.epilog = "pieces:\n" + "\n".join(f"  {piece.name:10} {piece.says}" for piece in PIECES)
    parser.add_argument("out", type=Path, help="folder of all results")
    parser.add_argument("--only", default="", help="pieces, with commas between")
    parser.add_argument("--seconds", type=int, default=LONGEST, help="that a call takes at most")
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10: cifar-10-binary.tar.gz, or a set that tfds prepared there")
    parser.add_argument("--toy", action="store_true", help="every piece at toy size, in this process")
    parser.add_argument("--cache", help="where compiled programs are kept; '' for nowhere; by default where commands keep them")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs the next pieces; returns the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    only = [name for name in given.only.split(",") if name]
    if unknown := set(only) - {piece.name for piece in PIECES}:
        parser.error(f"there is no piece {sorted(unknown)[0]!r}; there are {', '.join(piece.name for piece in PIECES)}")
    out, cache = given.out.resolve(), given.cache and os.path.abspath(os.path.expanduser(given.cache))
    chosen = [piece for piece in PIECES if not only or piece.name in only]
    steps = (step for piece in chosen for step in piece.steps(Asked(out, toy=given.toy)))
    if given.seconds < (lowest := 1 if given.toy else least(steps)):
        parser.error(f"--seconds={given.seconds} must be at least {lowest}, for every step to begin")
    data = None if given.data is None else cifar10(given.data.resolve())
    if given.data is not None and data is None:
        parser.error(f"--data={given.data} has neither cifar-10-binary.tar.gz nor a prepared cifar10")
    needed = NEEDED | (PREPARED if data is not None and data[0] != "cifar10" else {})
    if lacking := [package for module, package in needed.items() if not _there(module)]:
        tell(f"error: packages are missing: pip install {' '.join(lacking)}")
        return 2
    from tests.benchmarks.accelerator.doing import Doing  # its imports may be missing

    if data is not None:
        try:
            data = data[0], link(out, Path(data[1]))
        except (ValueError, OSError) as error:
            tell(f"error: {error}")
            return 2
    doing = Doing(Asked(out, data, given.toy, cache), time.monotonic() + given.seconds, tell)
    ends = {}
    for piece in chosen:
        ends[piece] = doing.piece(piece)
        if piece.gate and ends[piece] == "failed":  # no measurement is possible here
            return 1
    for piece in chosen if "more" not in ends.values() else ():
        if ends[piece] == "again":
            ends[piece] = doing.piece(piece, again=True)
    found = set(ends.values())
    return MORE if found & {"more", "again"} else 1 if "failed" in found else 0


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def tell(line: str) -> None:
    """Prints a line."""
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        tell("stopped: the same command goes on from there")
        sys.exit(130)
