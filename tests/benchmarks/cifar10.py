"""Writes the data of `configs/tables/pfl_research/cifar10.py` to a file for pfl-research.

python -m tests.benchmarks.cifar10 build/benchmarks/cifar10.npz tfds:cifar10 DIR
build/peers/pfl/bin/python -m tests.benchmarks.peers.pfl_cifar10 build/benchmarks/cifar10.npz runs/pfl_own --rounds=1500
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from configs.tables.pfl_research import cifar10
from fedjax_core import experiment
from fedjax_core.commands.tables.table_cells import build_cells


def write(file: Path, source: str, directory: str) -> None:
    """Writes raw images, labels, and each client's indices: x, y, index, x_test, y_test."""
    config = build_cells(cifar10.get_table("paper"), "paper")[0].config
    config.data.source, config.data.dir = source, directory
    data = experiment.dataset(config)
    arrays: dict[str, Any] = {"x": data.train.x, "y": data.train.y, "x_test": data.test.x, "y_test": data.test.y}
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, index=np.stack(list(data.train_index)), **arrays)


if __name__ == "__main__":
    write(Path(sys.argv[1]), *sys.argv[2:4])
