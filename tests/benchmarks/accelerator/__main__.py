"""Measures what is to be known of an accelerator, piece by piece, and goes on where the last call ended.

sh tests/benchmarks/accelerator.sh OUT                              # nine minutes of it; again and again until all is done
sh tests/benchmarks/accelerator.sh OUT --data=DIR --seconds=3600    # the pieces too that train on CIFAR-10, for an hour
sh tests/benchmarks/accelerator.sh OUT --only=rate,fedit
python -m tests.benchmarks.accelerator build/toy --toy              # every piece at toy size on a CPU, in this process
sh tests/benchmarks/accelerator.sh build/day --seconds=480; tar czf day.tar.gz build/day    # where a machine keeps nothing

OUT/results.jsonl has a line for each measurement and each run, OUT/PIECE the directories of runs and tables, OUT/logs what was
said, OUT/done/PIECE that a piece is over; checkpoints of finished pieces are removed. OUT is all that a later call needs. A
measurement begins if the time that it may need is left; runs and tables end at a round when the time is used up, and go on from
there.

Exit status: 0 all is done (what needs data that are not given is skipped), 75 more is left, 1 all that is left has failed, 2 for a
wrong command line or a missing package, 130 after an interruption.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.accelerator.pieces import LONGEST, NEEDED, PIECES, PREPARED, Asked, cifar10

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
    """Does the next pieces; the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    only = [name for name in given.only.split(",") if name]
    if unknown := set(only) - {piece.name for piece in PIECES}:
        parser.error(f"there is no piece {sorted(unknown)[0]!r}; there are {', '.join(piece.name for piece in PIECES)}")
    if given.seconds < 1:
        parser.error(f"--seconds={given.seconds} must be at least 1")
    data = None if given.data is None else cifar10(given.data.resolve())
    if given.data is not None and data is None:
        parser.error(f"--data={given.data} has neither cifar-10-binary.tar.gz nor a prepared cifar10")
    needed = NEEDED | (PREPARED if data is not None and data[0] != "cifar10" else {})
    if lacking := [package for module, package in needed.items() if not _there(module)]:
        tell(f"error: packages are missing: pip install {' '.join(lacking)}")
        return 2
    from tests.benchmarks.accelerator.doing import Doing  # what it stands on may be what is missing

    asked = Asked(given.out.resolve(), data, given.toy, given.cache)
    doing = Doing(asked, time.monotonic() + given.seconds, tell)
    ends = []
    for piece in (piece for piece in PIECES if not only or piece.name in only):
        ends.append(doing.piece(piece))
        if piece is PIECES[0] and ends[0] == "failed":  # nothing can be measured here
            return 1
    return MORE if "more" in ends else 1 if "failed" in ends else 0


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def tell(line: str) -> None:
    """Says something."""
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        tell("stopped: the same command goes on from there")
        sys.exit(130)
