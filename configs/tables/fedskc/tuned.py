"""Do FedSKC's parts beat FedAvg where both are tuned? MNIST and CIFAR-10 with a small CNN, strong and mild skew.

Command:  fedjax-core table fedskc/tuned --workdir=runs/fedskc_tuned --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default): 12,000 training images of each set, a CNN of 16 and 32 channels, 2 local epochs, 60 rounds; paper:
          all images, 10 local epochs, 200 rounds; smoke: two rounds of digits, two trials. On CIFAR-10 the CNN has a max-pool after
          each convolution, which makes it two and a half times as fast.

20 clients, 8 a round, batches of 64, plain SGD. The rows are those of the paper's Table V. A tenth of each client's training rows
is for validation: it chooses settings, with one number of trials for every row and column, and the round. Test rows choose
nothing. All rows try rates between 0.01 and 0.5; rows with LCL its temperature too, over two magnitudes. A third of the trials
goes on after a third of the rounds. Each seed divides the data anew. CIFAR-10 as a prepared tfds set:
--set="/cifar-10-*:data.source=tfds:cifar10".
"""

from configs import fedavg, fedskc
from configs.tables.base import Column, LogUniform, Measure, Row, Search, Table
from configs.tables.fedskc import all_methods
from configs.tables.fedskc.table5 import PARTS

RATE = {"optimizer.lr": LogUniform(0.01, 0.5)}
RATE_AND_TAU = RATE | {"method.lcl.tau": LogUniform(0.05, 5.0)}
CNN = "cnn(widths=(16, 32), dense=64)"
OF_CIFAR = {"models": ("cnn(widths=(16, 32), dense=64, padding='SAME', pool='each')",)}
SETTINGS = {
    "paper": {"models": (CNN,), "method.epochs": 10, "optimizer.lr": 0.01, "rounds": 200},
    "small": {"models": (CNN,), "method.epochs": 2, "optimizer.lr": 0.1, "rounds": 60, "data.examples": 12_000},
    "smoke": {"models": ("mlp(widths=(16,))",), "method.epochs": 1, "rounds": 2, "evaluation.every": 1},
}
SHARED = {
    "method.batch": 64,
    "data.validation": 0.1,
    "evaluation.every": 5,
    "evaluation.batch": 1000,
    "evaluation.select": "validation/global/accuracy",
}


def get_table(variant: str = "small") -> Table:
    smoke = variant == "smoke"
    rows = [Row("FedAvg", fedavg.get_config, space=RATE)]
    rows += [Row(label, fedskc.get_config, changes, space=RATE_AND_TAU) for label, changes in PARTS.items()]
    columns = []
    for name, source in (("MNIST", "mnist"), ("CIFAR-10", "cifar10")):
        for alpha in (0.05, 0.2):
            of_data = {"data.partition": f"dirichlet(alpha={alpha})", "data.source": "digits" if smoke else source}
            if source == "cifar10" and not smoke:
                of_data |= OF_CIFAR
            columns.append(Column(f"{name}, alpha {alpha}", of_data))
    return Table(
        title="FedSKC's parts and FedAvg, tuned with equal budgets",
        rows=tuple(rows),
        columns=tuple(columns),
        measures=(
            Measure("selected round", ("test/global/accuracy",), "selected"),
            Measure("last round", ("test/global/accuracy",)),
        ),
        seeds=(0, 1, 2, 3, 4),
        changes=all_methods.SHARED | SHARED | SETTINGS[variant],
        new_partitions=True,
        against="FedAvg",
        search=Search("validation/global/accuracy", trials=2 if smoke else 6, halving=None if smoke else 3),
    )
