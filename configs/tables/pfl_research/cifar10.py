"""The CIFAR-10 benchmark of pfl-research: FedAvg, 1,500 rounds of 50 of 1,000 IID users.

Command:  fedjax-core table pfl_research/cifar10 --variant=paper --workdir=runs/pfl_research --set=data.dir=DIR
Expect:   paper: an hour and a half of two cores (3 s a round); see configs/RESULTS.md.
Variants: paper: `benchmarks/image_classification/configs/baseline.yaml` of pfl-research; small (the
          default): 150 rounds; smoke: two rounds of digits.

Users have 50 images each. One local epoch of batches of 10 at a rate of 0.1, equal weights, no
momentum, pixels normalised by channel, evaluated every tenth round. The network has 3x3
convolutions of 32 and 64 channels, a max-pool, dropout 0.25, a dense layer of 128 and dropout 0.5.

Granqvist et al. pfl-research: simulation framework for accelerating research in Private Federated
Learning. NeurIPS 2024, arXiv 2404.06430. Its script reshapes CIFAR-10's rows, three planes of 1,024
pixels, to [32, 32, 3] without a transposition. So its networks get other neighboring pixels than
ours, and accuracies differ for this reason alone.
"""

from configs import fedavg
from configs.tables.base import Column, Measure, Row, Table

ROUNDS = {"paper": 1500, "small": 150, "smoke": 2}


def get_table(variant: str = "small") -> Table:
    smoke = variant == "smoke"
    data = {"data.source": "digits" if smoke else "cifar10", "data.clients": 100 if smoke else 1000, "data.partition": "iid"}
    model = (
        "cnn(widths=(4,), dense=8, dropout=0.25)" if smoke else "cnn(widths=(32, 64), dense=128, dropout=0.25, head_dropout=0.5)"
    )
    accuracy = ("test/global/accuracy",)
    return Table(
        title="CIFAR-10 as in pfl-research",
        rows=(Row("FedAvg", fedavg.get_config),),
        columns=(Column("CIFAR-10, IID", data),),
        measures=(Measure("last round", accuracy), Measure("best round", accuracy, "best")),
        seeds=(0,),
        changes={
            "models": (model,),
            "method.epochs": 1,
            "method.batch": 10,
            "method.weights": "uniform",
            "optimizer.lr": 0.1,
            "cohort.size": 50,
            "rounds": ROUNDS[variant],
            "evaluation.every": 1 if smoke else 10,
            "evaluation.scopes": ("global",),
            "evaluation.batch": 1000,
        },
        targets=(0.6, 0.65, 0.7),
    )
