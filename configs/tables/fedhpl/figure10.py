"""FedHPL, Figure 10: mixed ResNets and mixed ViTs, at 32 and at 224 pixels.

Command:  fedjax-core table --table=configs/tables/fedhpl/figure10.py --workdir=runs/fedhpl --variant=paper
          fedjax-core analyse RUN RUN RUN RUN --what=classes --scope=all --out=DIR       (accuracy of each class)
Variants: see `all_methods.py`. At 32 pixels the position embeddings in the ViTs' files are
          interpolated. Small and smoke have other sizes, and one row of each. The accuracies are
          only in the figure.
"""

from configs.tables.fedhpl import all_methods as fedhpl


def get_table(variant: str = "small"):
    rows = [row for row in fedhpl.many_networks(variant) if row.label.startswith("FedHPL")]
    if variant == "paper":
        vits = fedhpl.heterogeneous(variant)
        vits = {**vits, "models": tuple(spec.replace("resize=224", "resize=32") for spec in vits["models"])}
        rows.append(fedhpl.fedhpl("FedHPL (CNN, 32 pixels)", {**fedhpl.framed(variant, 32), "rounds": 100}))
        rows.append(fedhpl.fedhpl("FedHPL (ViT, 32 pixels)", vits))
    columns = tuple(fedhpl.column(fedhpl.CIFAR10, skew, variant) for skew in fedhpl.SKEWS)
    return fedhpl.table("FedHPL, Figure 10", variant, rows, columns, differ=("rounds", "network"))
