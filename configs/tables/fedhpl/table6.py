"""FedHPL, Table 6: trained parameters, prompts and head, with n shallow or deep prompts.

Command:  fedjax-core table --table=configs/tables/fedhpl/table6.py --workdir=runs/fedhpl_counts/table6
Variants: small, smoke and paper are equal: counts of the built networks; nothing is trained, and no
          files are needed. In units of 2^10. The paper prints them as head + n * prompt.
"""

from configs.tables.base import Measure
from configs.tables.fedhpl import all_methods as fedhpl

PAPER = {  # head, with 10 and with 100 classes; a shallow prompt; a deep one
    "ViT-S": (3.76, 37.60, 0.375, 4.5),
    "ViT-B": (7.51, 75.10, 0.75, 9),
    "ViT-L": (10.01, 100.10, 1, 24),
}
TRAINED = Measure("trained", ("analysis:trained",), unit=2**10, digits=2)


def get_table(variant: str = "small"):
    rows, numbers = [], {}
    for name, (ten, hundred, shallow, deep) in PAPER.items():
        size = f"vit_{name[-1].lower()}16"
        rows.append(fedhpl.network(f"{name}, head alone", f"{size}(resize=224)", "head"))
        numbers[rows[-1].label] = f"{ten} {hundred}"
        for where, option, one in (("shallow", ", deep=False", shallow), ("deep", "", deep)):
            for n in (1, 3, 10):
                rows.append(fedhpl.network(f"{name}, {n} {where}", f"{size}(resize=224, prompts={n}{option})", "prompts"))
                numbers[rows[-1].label] = f"{ten + n * one} {hundred + n * one}"
    paper = fedhpl.published(numbers, "Table 6", fedhpl.BLANK, (TRAINED,), [(TRAINED,)])
    return fedhpl.counted("FedHPL, Table 6", rows, (TRAINED,), paper=paper)
