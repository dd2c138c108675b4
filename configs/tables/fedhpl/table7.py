"""FedHPL, Table 7: parameters of the ResNets of each method.

Command:  fedjax-core table --table=configs/tables/fedhpl/table7.py --workdir=runs/fedhpl_counts/table7
Variants: small, smoke and paper are equal: counts of the built networks; nothing is trained, and no
          files are needed. In units of 2^20. FedGen and FedTGP have the 7x7 stem, FedHE, FedMD and
          FedGH the 3x3 one. Omitted rows of the paper: FedMD (ten more outputs, for the public
          classes), FedGH (a linear layer before the head) and FedProto (a mapping layer of 2^20
          numbers, which the paper does not describe).
"""

from configs.tables.base import Measure
from configs.tables.fedhpl import all_methods as fedhpl

WHOLE = Measure("entire", ("analysis:whole",), unit=2**20, digits=3)
SPECS = {
    "FedGen, FedTGP": ("stem='imagenet', features=512", "all"),
    "FedHE": ("stem='cifar'", "all"),
    "FedHPL, 32 pixels": ("stem='imagenet', frame=3", "prompts"),
    "FedHPL, 224 pixels": ("stem='imagenet', frame=3, resize=224", "prompts"),
}
PAPER = {
    "FedGen, FedTGP": "10.664 10.708 20.304 20.348 22.424 22.468",
    "FedHE": "10.656 10.700 20.296 20.340 22.431 22.607",
    "FedHPL, 32 pixels": "10.665 10.709 20.305 20.349 22.440 22.616",
    "FedHPL, 224 pixels": "10.671 10.715 20.311 20.355 22.446 22.622",
}


def get_table(variant: str = "small"):
    rows, numbers = [], {}
    for name, (options, train) in SPECS.items():
        for i, depth in enumerate((18, 34, 50)):
            rows.append(fedhpl.network(f"{name}, ResNet-{depth}", f"resnet{depth}({options})", train))
            numbers[rows[-1].label] = " ".join(PAPER[name].split()[2 * i : 2 * i + 2])
    paper = fedhpl.published(numbers, "Table 7", fedhpl.BLANK, (WHOLE,), [(WHOLE,)])
    return fedhpl.counted("FedHPL, Table 7", rows, (WHOLE,), paper=paper)
