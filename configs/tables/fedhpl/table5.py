"""FedHPL, Table 5: parameters of ViT-S/16, B/16, L/16, with and without head, and pFedPT's ViT.

Command:  fedjax-core table --table=configs/tables/fedhpl/table5.py --workdir=runs/fedhpl_counts/table5
Variants: small, smoke and paper are equal: counts of the built networks; nothing is trained, and no
          files are needed. In units of 2^20. ViT-S with a head on CIFAR-10 is printed as 20.57
          instead of 20.67. The generators G1 of pFedPT, a frame of 1,344 numbers, and G2 of pFedPG
          belong to the methods.
"""

from configs.tables.base import Measure
from configs.tables.fedhpl import all_methods as fedhpl

MEASURES = (
    Measure("backbone", ("analysis:body",), unit=2**20, digits=3),
    Measure("entire", ("analysis:whole",), unit=2**20, digits=3),
)
PAPER = {"ViT-S": "20.66 20.57 20.66 20.70", "ViT-B": "81.82 81.83 81.82 81.90", "ViT-L": "289.25 289.26 289.25 289.35"}


def get_table(variant: str = "small"):
    rows = [fedhpl.network(f"ViT-{size[0].upper()}", f"vit_{size}(resize=224)") for size in ("s16", "b16", "l16")]
    rows.append(fedhpl.network("ViT of pFedPT", fedhpl.PFEDPT_VIT))
    paper = fedhpl.published(PAPER, "Table 5", fedhpl.BLANK, MEASURES, [[measure] for measure in MEASURES]) | fedhpl.published(
        {"ViT of pFedPT": "1.026 1.037"}, "Table 5", fedhpl.BLANK, MEASURES, [MEASURES[1:]]
    )
    return fedhpl.counted("FedHPL, Table 5", rows, MEASURES, paper=paper)
