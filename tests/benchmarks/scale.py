"""Cost of scale, in turns: very large populations, and streamed against resident examples.

python -m tests.benchmarks --scale=host,disk,rows,reader,lanes,dp_sgd,uplinks --repeats=9

Each turn measures every contender once, in alternating order, and compares it with the first one of
that turn.
"""

import functools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_core import experiment, nn
from fedjax_core.algorithm import Examples
from fedjax_core.data import federated_data, sources
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.engine import client_loop, simulator
from fedjax_core.engine.data_feed.streaming import PREFETCH_DEPTH
from fedjax_core.task import make_task
from fedjax_core.training import local_training
from tests.benchmarks import dp_sgd, lanes, ours, uplinks
from tests.benchmarks.turns import Contender, measure, table

POPULATIONS = (1_000, 100_000, 10_000_000)
SHAPE, CLASSES = (784,), 10
CAP = 40_000_000  # maximum bytes of streamed examples on a device; the data are ten times as large


def _simulated(data: federated_data.FederatedData, widths: tuple[int, ...], cohort: int, method: str, epochs: int, **options: Any):
    model = nn.build("mlp", CLASSES, SHAPE, None, None, widths=widths)
    task = make_task(model, classes=CLASSES, population=data.clients)
    make = functools.partial(experiment.method_builder(method), optimizer=local_training.sgd(0.05), batch=20, epochs=epochs)
    groups = simulator.one_group(make, task, data.clients)
    evaluation = simulator.Evaluation(scopes=("global",))
    return simulator.Simulator(
        simulator.build_spec(groups, data, cohort=cohort, plan=client_loop.choose_plan(cohort), evaluation=evaluation, **options)
    )


def _dataset(x: np.ndarray, y: np.ndarray) -> sources.Dataset:
    return sources.Dataset("made", Examples(x, y), Examples(np.zeros((20, *SHAPE), np.float32), y[:20]), tuple("0123456789"))


def populations(hold: str, repeats: int) -> str:
    """Measures SCAFFOLD, which stores states of sampled clients; clients share examples."""
    each, rows = 60, 6_000
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((rows, *SHAPE), np.float32), rng.integers(0, CLASSES, rows).astype(np.int32)
    before, contenders = os.getloadavg()[0], []
    for population in POPULATIONS:
        start = time.perf_counter()
        first = (np.arange(population) * each % rows).astype(np.int32)
        lists = RaggedIndex(np.arange(rows), first, np.full(population, each, np.int32))
        data = federated_data.from_index(_dataset(x, y), lists, RaggedIndex.repeat(np.zeros(0, np.int32), population))
        sim = _simulated(data, (64, 64), 100, "scaffold", 2, hold=hold)
        contenders.append(Contender(f"{population:,} clients", sim, 2, setting_up=time.perf_counter() - start))
    measure(contenders, repeats)
    title = f"**populations, hold={hold}** SCAFFOLD, 784-64-64-10, 100 clients a round x {each} rows x 2 epochs, batch 20; "
    states = 4 * (784 * 64 + 64 + 64 * 64 + 64 + 640 + 10)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return table(title + f"{states / 1e3:.0f} kB of state each; this process's memory {memory:.1f} GiB at most", contenders, before)


def rows(repeats: int, cores: str = "all cores compute") -> str:
    """Measures FedAvg on data on the disk, ten times `CAP`, against resident data."""
    each, cohort, clients = 100, 20, 1_300
    rng, tables = np.random.default_rng(0), []
    with tempfile.TemporaryDirectory(prefix="fedjax-benchmark-") as folder:
        file = Path(folder) / "train_features.npy"
        np.save(file, rng.standard_normal((clients * each, *SHAPE), np.float32))
        x, y = np.load(file, mmap_mode="r"), rng.integers(0, CLASSES, clients * each).astype(np.int32)
        assert x.nbytes >= 10 * CAP
        index = RaggedIndex(np.arange(len(x)), np.arange(clients) * each, np.full(clients, each))
        data = federated_data.from_index(_dataset(x, y), index, RaggedIndex.repeat(np.zeros(0, np.int32), clients))
        seconds = _reading(file, cohort * each * x[0].nbytes)
        for widths, epochs, rounds in (((200, 200), 40, 2), ((200, 200), 10, 2), ((200, 200), 1, 10), ((8,), 1, 40)):
            before, contenders = os.getloadavg()[0], []
            for name, place in (("resident", "device"), ("in memory", "host"), ("on the disk", "disk")):
                start = time.perf_counter()
                sim = _simulated(data, widths, cohort, "fedavg", epochs, data_on=place)
                forget = functools.partial(_forget, file) if place == "disk" else lambda: None
                contenders.append(Contender(name, sim, rounds, forget, time.perf_counter() - start))
            measure(contenders, repeats)
            taken = _taken(contenders[2].simulation.compiled.feed)
            assert taken <= CAP, f"{taken} bytes of rows, {CAP} are allowed"
            widths_said = "-".join(map(str, (SHAPE[0], *widths, CLASSES)))
            work = f"{widths_said}, {cohort} clients a round x {each} rows x {epochs} epochs"
            size = f"{x.nbytes / 1e6:.0f} MB of data, {taken / 1e6:.0f} MB of rows at most on a device"
            title = f"**rows, {cores}** FedAvg, {work}: {size}; a round's rows take {1e3 * seconds:.1f} ms to read alone"
            tables.append(table(title, contenders, before))
            for contender in contenders:
                contender.simulation.release()
    return "\n\n".join(tables)


def reader(repeats: int) -> str:
    """Measures `rows` with one core for programs and the others for reading.

    Needs a separate process, since threads stay on their initial cores.
    """
    lines = "from tests.benchmarks import scale", "scale.leave_a_core()", f"print(scale.rows({repeats}, 'one core computes'))"
    return subprocess.run([sys.executable, "-c", "; ".join(lines)], stdout=subprocess.PIPE, text=True, check=True).stdout.rstrip()


def leave_a_core() -> None:
    """Restricts programs to the first core, and all else to the others."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise ValueError("--scale=reader needs two cores, and there is one")
    os.sched_setaffinity(0, cores[:1])
    ours.set_up()
    jax.devices()  # starts the computing threads
    os.sched_setaffinity(0, cores[1:])


def _taken(feed: Any) -> int:
    """Returns the bytes of all cohort buffers: prepared ones, and those of two running rounds."""
    assert feed.streamed
    most = max(feed._capacities.values())
    return (PREFETCH_DEPTH + 3) * most * feed._spec.readers["train"].row_bytes


def _forget(file: Path) -> None:
    """Evicts a file from the system's cache, so that its examples come from the disk."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _reading(file: Path, number: int) -> float:
    """Returns the seconds to read a number of bytes of an uncached file, median of five."""
    found = []
    for _ in range(5):
        _forget(file)
        handle = os.open(file, os.O_RDONLY)
        start = time.perf_counter()
        os.preadv(handle, [bytearray(number)], 4096)
        found.append(time.perf_counter() - start)
        os.close(handle)
    return statistics.median(found)


WHAT: dict[str, Callable[[int], str]] = {
    "host": functools.partial(populations, "host"),
    "disk": functools.partial(populations, "disk"),
    "rows": rows,
    "reader": reader,
    "lanes": lanes.seeds,
    "dp_sgd": dp_sgd.costs,
    "uplinks": uplinks.costs,
    "uplinks_resnet8": uplinks.costs_resnet8,
}
