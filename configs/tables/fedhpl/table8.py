"""FedHPL, Table 8: trained parameters of its ResNets, a frame of three pixels and the head.

Command:  fedjax-core table --table=configs/tables/fedhpl/table8.py --workdir=runs/fedhpl_counts/table8
Variants: small, smoke and paper are equal: counts of the built networks; nothing is trained, and no
          files are needed. In units of 2^10. ResNet-34 has as many as ResNet-18.
"""

from configs.tables.base import Measure
from configs.tables.fedhpl import all_methods as fedhpl

TRAINED = Measure("trained", ("analysis:trained",), unit=2**10, digits=2)
PAPER = {
    "ResNet-18, head alone": "5.01 50.10",
    "ResNet-18, 32 pixels": "6.24 51.33",
    "ResNet-18, 224 pixels": "12.99 58.08",
    "ResNet-50, head alone": "20.01 200.10",
    "ResNet-50, 32 pixels": "21.24 201.33",
    "ResNet-50, 224 pixels": "27.99 208.08",
}


def get_table(variant: str = "small"):
    rows = []
    for depth in (18, 50):
        spec = f"resnet{depth}(stem='imagenet'"
        rows.append(fedhpl.network(f"ResNet-{depth}, head alone", f"{spec})", "head"))
        rows.append(fedhpl.network(f"ResNet-{depth}, 32 pixels", f"{spec}, frame=3)", "prompts"))
        rows.append(fedhpl.network(f"ResNet-{depth}, 224 pixels", f"{spec}, frame=3, resize=224)", "prompts"))
    paper = fedhpl.published(PAPER, "Table 8", fedhpl.BLANK, (TRAINED,), [(TRAINED,)])
    return fedhpl.counted("FedHPL, Table 8", rows, (TRAINED,), paper=paper)
