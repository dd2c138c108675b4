"""FedHPL, Table 10: numbers sent in the first and the last round if all correct logits are sent.

Command:  fedjax-core table --table=configs/tables/fedhpl/table10.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`. For CIFAR-10 and SVHN, whose logits have 10 numbers and a label;
          CIFAR-100 is in `table10_cifar100.py`. Means per class are 550 and 50,500 numbers
          (`table9.py`). All 50,000 logits are 0.5245M: the paper's 0.531 (CIFAR-10, Non-IID, different
          networks, first round) is more than there are.
"""

from configs.tables.base import Measure
from configs.tables.fedhpl import all_methods as fedhpl

PAPER = {  # first, last
    "FedHPL, each logit": "0.445 0.521 0.506 0.524 0.510 0.523  0.688 0.749 0.696 0.751 0.702 0.749",
    "FedHPL (ViT), each logit": "0.496 0.524 0.514 0.524 0.531 0.524  0.583 0.737 0.622 0.736 0.514 0.739",
}


def sent(variant: str, data, classes: int, paper):
    """Returns the table for data sets with this number of classes."""
    rows = fedhpl.both(variant, ", each logit", compress=False)
    columns = tuple(fedhpl.column(name, skew, variant) for name in data for skew in fedhpl.SKEWS)
    unit = 2**20 / (5 * (classes + 1))  # the score is the mean number of logits over five clients
    measures = tuple(Measure(f"{when} round", ("train/logits_sent",), when, unit=unit, digits=3) for when in ("first", "last"))
    numbers = fedhpl.published(paper, "Table 10", columns, measures, [[measure] for measure in measures])
    note = "Numbers in units of 2^20: the mean number of correct logits, times five clients, times classes and label."
    return fedhpl.table("FedHPL, Table 10", variant, rows, columns, measures, paper=numbers, note=note, differ=("network",))


def get_table(variant: str = "small"):
    return sent(variant, (fedhpl.CIFAR10, fedhpl.SVHN) if variant == "paper" else (fedhpl.CIFAR10,), 10, PAPER)
