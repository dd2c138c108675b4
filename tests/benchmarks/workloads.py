"""Definitions of all workloads. NumPy only: peers read this file in their own environments."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

SEED = 0


@dataclasses.dataclass(frozen=True)
class Workload:
    """The work of one federated round; FLOP of convolutions and matrix products, 2 per product.

    Attributes:
      name: name on the command line and in the report.
      title: one line for the report.
      model: "mlp", "cnn", "resnet8", "resnet10" or "prompts" (a frozen transformer with prompts per
        client).
      shape: shape of one example.
      classes: K.
      population: N clients with equal numbers of examples.
      cohort: C clients in each round.
      examples: examples per client.
      batch: B.
      epochs: local epochs.
      lr: rate of plain SGD.
      rounds: rounds per measurement.
      options: options of the model.
      arguments: arguments of the method, instead of `epochs`.
      method: a file of `methods/`.
      hold: where client states are stored.
      rows: size of the data set; clients share examples if it is less than population * examples.
        None: no sharing.
      peers: contenders that support it.
    """

    name: str
    title: str
    model: str
    shape: tuple[int, ...]
    classes: int
    population: int
    cohort: int
    examples: int
    batch: int
    epochs: int = 1
    lr: float = 0.05
    rounds: int = 1
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    method: str = "fedavg"
    hold: str = "device"
    rows: int | None = None
    peers: tuple[str, ...] = ("torch", "fedjax", "pfl", "flower", "blazefl")

    @property
    def steps(self) -> int:
        """Returns the local steps of one client in a round."""
        return self.epochs * math.ceil(self.examples / self.batch)

    @property
    def seen(self) -> int:
        """Returns the training examples of one round."""
        return self.cohort * self.examples * self.epochs

    @property
    def flop(self) -> float:
        """Returns the FLOP of one round's training: forward, and twice that backward.

        Backward counts once behind which nothing is trained. FedPFT's first phase computes the
        features once, and trains the four matrices of its transformation on them.
        """
        if self.method == "fedpft":
            first, second, width = self.arguments["transform_epochs"], self.arguments["model_epochs"], 512
            matrices = 3 * (first + second) * 8 * width**2
            return self.cohort * self.examples * (forward_flop(self) * (1 + 3 * second) + matrices)
        return self.seen * forward_flop(self) * (2 if self.model == "prompts" else 3)

    def index(self) -> np.ndarray:
        """Returns the example indices of each client, [N, examples]."""
        rows = self.rows or self.population * self.examples
        return (np.arange(self.population * self.examples) % rows).reshape(self.population, self.examples)

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns synthetic (x [n, ...] float32, y [n] int32); images are [H, W, channels]."""
        rng = np.random.default_rng(SEED)
        rows = self.rows or self.population * self.examples
        return rng.standard_normal((rows, *self.shape), np.float32), rng.integers(0, self.classes, rows).astype(np.int32)


CNN_OPTIONS: dict[str, Any] = {
    "widths": (32, 64),
    "kernel": 3,
    "pool": "last",
    "dense": (128,),
    "dropout": 0.0,
}  # options by default
LENET: dict[str, Any] = {"widths": (6, 16), "kernel": 5, "pool": "each", "dense": (120, 84)}
PROMPTS = {"patch": 4, "width": 192, "depth": 4, "heads": 3, "prompts": 8}
_MLP = {"model": "mlp", "shape": (784,), "classes": 10, "examples": 60, "batch": 10, "options": {"widths": (200, 200)}, "lr": 0.1}
_FEDPFT: dict[str, Any] = dict(
    model="resnet10", shape=(32, 32, 3), classes=100, population=40, examples=500, batch=100
)  # FedPFT's CIFAR-100
_PHASES = {"transform_epochs": 4, "model_epochs": 1}  # FedPFT's 5 local epochs
_CIFAR = {"shape": (32, 32, 3), "classes": 10}

WORKLOADS = {
    w.name: w
    for w in (
        Workload("a", "784-200-200-10, 100 of 1,000 clients x 60, batch 10", population=1000, cohort=100, rounds=3, **_MLP),
        Workload(
            "b",
            "ResNet-8 (3x3 stem), 32x32x3, 8 of 20 clients x 500, batch 100",
            model="resnet8",
            population=20,
            cohort=8,
            examples=500,
            batch=100,
            **_CIFAR,
        ),
        Workload(
            "b4",
            "ResNet-8 (3x3 stem), 32x32x3, 4 of 20 clients x 200, batch 100 (a fifth of b)",
            model="resnet8",
            population=20,
            cohort=4,
            examples=200,
            batch=100,
            **_CIFAR,
        ),
        Workload(
            "c",
            "CNN (conv 32, conv 64, pool, dense 128), 28x28x1, 62 classes, 20 of 100 clients x 5 steps x batch 20",
            model="cnn",
            shape=(28, 28, 1),
            classes=62,
            population=100,
            cohort=20,
            examples=100,
            batch=20,
        ),
        Workload(
            "c10",
            "that CNN with dropout 0.25, 32x32x3, 50 of 1,000 clients x 50, batch 10 (pfl-research's CIFAR-10 workload)",
            model="cnn",
            population=1000,
            cohort=50,
            examples=50,
            batch=10,
            lr=0.1,
            options={"dropout": 0.25},
            **_CIFAR,
        ),
        Workload(
            "h",
            "LeNet-5, 32x32x3, all of 100 clients x 500, 5 epochs, batch 50 (BlazeFL's benchmark)",
            model="cnn",
            population=100,
            cohort=100,
            examples=500,
            batch=50,
            epochs=5,
            lr=0.1,
            options=LENET,
            **_CIFAR,
        ),
        Workload(
            "d",
            "ResNet-10 (7x7 stem), 100 classes, 4 of 40 clients x 500, batch 100 (FedPFT's round: all 40 clients, 5 epochs)",
            cohort=4,
            options={"stem": "imagenet"},
            **_FEDPFT,
        ),
        *(
            Workload(
                name,
                f"{title} on the ResNet-10 of d, 2 of 40 clients x 500, batch 100",
                cohort=2,
                epochs=5,
                options={"stem": "imagenet"},
                method=method,
                arguments=arguments,
                peers=(),
                **_FEDPFT,
            )
            for name, title, method, arguments in (
                ("d5", "FedAvg, 5 epochs,", "fedavg", {}),
                ("dpft", "FedPFT, 4 + 1 epochs,", "fedpft", _PHASES),
            )
        ),
        *(
            Workload(
                name,
                f"{title} on ResNet-10 ({stem} stem), 100 classes, all of 40 clients x 500, batch 100 (FedPFT's published round)",
                cohort=40,
                epochs=5,
                options=options,
                method=method,
                arguments=arguments,
                peers=(),
                **_FEDPFT,
            )
            for stem, options in (("7x7", {"stem": "imagenet"}), ("3x3", {}))
            for name, title, method, arguments in (
                (f"p{stem[0]}", "FedPFT, 4 + 1 epochs,", "fedpft", _PHASES),
                (f"p{stem[0]}avg", "FedAvg, 5 epochs,", "fedavg", {}),
            )
        ),
        *(
            Workload(
                f"e{cohort}",
                f"784-200-200-10, {cohort:,} of 10,000 clients x 60, batch 10",
                population=10_000,
                cohort=cohort,
                rounds=max(1, 500 // cohort),
                rows=60_000,
                peers=(),
                **_MLP,
            )
            for cohort in (10, 100, 1000, 10_000)
        ),
        *(
            Workload(
                f"f{population}",
                f"SCAFFOLD on 784-200-200-10, control variates on the host, 100 of {population:,} clients x 60, batch 10",
                population=population,
                cohort=100,
                rounds=3,
                rows=60_000,
                method="scaffold",
                hold="host",
                peers=(),
                **_MLP,
            )
            for population in (1000, 100_000)
        ),
        Workload(
            "g",
            "frozen transformer (4 layers, width 192), 8 prompts and a head per client, 8 of 100 clients x 40, batch 20",
            model="prompts",
            shape=(32, 32, 3),
            classes=10,
            population=100,
            cohort=8,
            examples=40,
            batch=20,
            options=PROMPTS,
            method="local",
            peers=("torch",),
        ),
    )
}


def forward_flop(workload: Workload) -> float:
    """Returns the FLOP of one example's forward pass."""
    if workload.model == "mlp":
        sizes = (math.prod(workload.shape), *workload.options["widths"], workload.classes)
        return sum(2.0 * a * b for a, b in itertools.pairwise(sizes))
    if workload.model == "cnn":
        (height, width, channels), o = workload.shape, CNN_OPTIONS | workload.options
        total = 0
        for i, features in enumerate(o["widths"]):
            height, width = height - o["kernel"] + 1, width - o["kernel"] + 1
            total += height * width * o["kernel"] ** 2 * channels * features
            if o["pool"] == "each" or i + 1 == len(o["widths"]):
                height, width = height // 2, width // 2
            channels = features
        sizes = (height * width * channels, *o["dense"], workload.classes)
        return 2.0 * (total + sum(a * b for a, b in itertools.pairwise(sizes)))
    if workload.model == "prompts":
        o, d = workload.options, workload.options["width"]
        patches = (workload.shape[0] // o["patch"]) * (workload.shape[1] // o["patch"])
        tokens = 1 + o["prompts"] + patches
        layer = tokens * 12 * d * d + 2 * tokens * tokens * d
        return 2.0 * (patches * o["patch"] ** 2 * workload.shape[2] * d + o["depth"] * layer + d * workload.classes)
    return _resnet(workload)


def _resnet(workload: Workload) -> float:
    size, channels = workload.shape[0], workload.shape[2]
    pooled = workload.options.get("stem") == "imagenet"
    kernel, size = (7, size // 2) if pooled else (3, size)
    total = size * size * kernel * kernel * channels * 64
    size = size // 2 if pooled else size
    channels = 64
    for stage in range({"resnet8": 3, "resnet10": 4}[workload.model]):
        width = 64 << stage
        size = -(-size // 2) if stage else size
        total += size * size * 9 * (channels * width + width * width)
        total += size * size * channels * width if stage else 0
        channels = width
    return 2.0 * (total + channels * workload.classes)
