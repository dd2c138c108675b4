"""Whole jobs of PFLlib's program and of ours, from command to last score, on the same files.

python -m tests.benchmarks.peers.pfllib_jobs CHECKOUT --data=DIR [--python=PYTHON]

CHECKOUT is a clone of TsingZ0/PFLlib, PYTHON an interpreter with its packages (`make.sh pfllib`
makes one), DIR has MNIST. 12,000 images of MNIST on 20 clients, Dirichlet(0.1), PFLlib's CNN with
its initialization, ten rounds of one local epoch in full batches of 10, all clients scored in each
round. Each job is a process of its own; ours starts without compiled programs. PFLlib is told one
round fewer, because it trains one more; it scores all training examples as well. Prints a row for
each job: seconds, processor seconds of all threads, peak memory, and the last mean accuracy, which
in PFLlib is that before the last round.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_core.data import sources
from fedjax_core.data.partition import label_skew
from fedjax_core.storage.json_files import read_jsonl
from tests.benchmarks.report import row

ROOT = Path(__file__).parents[3]
CLIENTS, EXAMPLES, RATE, BATCH, NAME = 20, 12_000, 0.005, 10, "MNIST_jobs"  # PFLlib takes the channels from the name
METHODS = {  # PFLlib's name and further arguments, our options
    "fedavg": (("FedAvg",), ()),
    "fedper": (("FedPer",), ()),
    "fedproto": (("FedProto",), ("--config.method.weights=uniform", "--config.method.features=training")),
    "ditto": (("Ditto", "-mu", "1.0", "-pls", "1"), ("--config.method.lam=1.0",)),
}
OURS = {
    "data.source": f"pfllib:{NAME}",
    "data.clients": CLIENTS,
    "data.partition": "natural",
    "normalise": "unit",
    "models": '(\'cnn(widths=(32, 64), kernel=5, dense=512, pool="each", init="torch")\',)',
    "optimizer.lr": RATE,
    "method.epochs": 1,
    "method.batch": BATCH,
    "drop_last": True,
    "cohort.fraction": 1.0,
    "evaluation.scopes": "('own',)",
    "evaluation.every": 1,
}


class Job(NamedTuple):
    """Time and memory of a process.

    Attributes:
      seconds: from its start to its end.
      cpu: processor seconds.
      memory: peak, in MB.
      output: its standard output.
    """

    seconds: float
    cpu: float
    memory: float
    output: str


def write_data(data_dir: Path, folder: Path) -> None:
    """Writes the clients' files in PFLlib's form, a quarter of each client's examples for tests."""
    mnist = sources.load("mnist", data_dir)
    x, y = mnist.train.x[:EXAMPLES], mnist.train.y[:EXAMPLES]
    x = (x.reshape(EXAMPLES, 1, 28, 28).astype(np.float32) / 255 - 0.5) / 0.5
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for client, index in enumerate(label_skew.dirichlet(y, CLIENTS, 0, alpha=0.1, min_size=40)):
        index = rng.permutation(index)
        cut = len(index) * 3 // 4
        for part, rows in (("train", index[:cut]), ("test", index[cut:])):
            np.savez(folder / part / f"{client}.npz", data=np.array({"x": x[rows], "y": y[rows]}, dtype=object))


def run_job(command: Sequence[str], folder: Path) -> Job:
    """Runs a command in a folder, and measures it.

    Raises:
      RuntimeError: it failed; with the end of what it printed.
    """
    start = time.monotonic()
    with (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{text[-2000:]}")
    return Job(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000, text)


def run_ours(method: str, rounds: int, scratch: Path) -> tuple[Job, float]:
    """Returns our job and its last accuracy, cold."""
    flags = [f"--config.{name}={value}" for name, value in (OURS | {"rounds": rounds}).items()]
    flags += [f"--config.data.dir={scratch / 'dataset'}", f"--workdir={scratch / 'run'}", "--compilation_cache="]
    shutil.rmtree(scratch / "run", ignore_errors=True)
    job = run_job([sys.executable, "-m", "fedjax_core", "run", method, *flags, *METHODS[method][1]], scratch)
    last = read_jsonl(scratch / "run" / "metrics.jsonl")[-1]
    models = ("nearest", "personal", "global") if method == "fedproto" else ("personal", "global")
    return job, next(last[name] for model in models if (name := f"test/{model}/own/accuracy/weighted") in last)


def run_pfllib(method: str, rounds: int, python: str, scratch: Path) -> tuple[Job, float]:
    """Returns PFLlib's job and its last accuracy."""
    settings = {"-data": NAME, "-m": "CNN", "-nc": CLIENTS, "-jr": 1, "-lbs": BATCH, "-lr": RATE, "-ls": 1, "-gr": rounds - 1}
    settings |= {"-dev": "cpu", "-eg": 1}
    arguments = [str(part) for pair in settings.items() for part in pair]
    job = run_job([python, "main.py", *arguments, "-algo", *METHODS[method][0]], scratch / "system")
    return job, float(re.findall(r"Averaged Test Accuracy: ([\d.]+)", job.output)[-1])


def main() -> None:
    """Runs the jobs, in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--python", default=str(ROOT / "build" / "peers" / "pfllib" / "bin" / "python"))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=10, help="at least 2, which PFLlib's program needs")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    say = lambda *cells: print(row(*cells), flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        write_data(options.data, scratch / "dataset" / NAME)
        shutil.copytree(options.checkout / "system", scratch / "system")  # its paths begin at this folder's parent
        say("job", "program", "seconds", "processor seconds", "peak MB", "last accuracy, %", "load")
        say(*["---"] * 7)
        for method in options.methods.split(","):
            for _ in range(options.repeats):
                ours = run_ours(method, options.rounds, scratch)
                theirs = run_pfllib(method, options.rounds, options.python, scratch)
                for program, (job, accuracy) in (("ours", ours), ("PFLlib", theirs)):
                    numbers = (f"{job.seconds:.1f}", f"{job.cpu:.1f}", f"{job.memory:,.0f}", f"{100 * accuracy:.1f}")
                    say(method, program, *numbers, f"{os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
