"""FedHPL, Figure 3c: its ablation: plain average, all logits, no distillation.

Command:  fedjax-core table --table=configs/tables/fedhpl/figure3c.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`. The accuracies are only in the figure. The plain average replaces
          the weighted one, and all logits the correct ones. The last row has the denominator as
          printed in Eq. 8.
"""

from configs.tables.fedhpl import all_methods as fedhpl


def get_table(variant: str = "small"):
    networks = fedhpl.heterogeneous(variant)
    rows = (
        fedhpl.fedhpl("FedHPL (ViT)", networks),
        fedhpl.fedhpl("Average aggregation", networks, weighting="uniform"),
        fedhpl.fedhpl("All logits", networks, logits="all"),
        fedhpl.local("Local (ViT)", networks),
        fedhpl.fedhpl("Local examples in the denominator", networks, denominator="local"),
    )
    columns = tuple(fedhpl.column(fedhpl.CIFAR10, skew, variant) for skew in fedhpl.SKEWS)
    return fedhpl.table("FedHPL, Figure 3c", variant, rows, columns, fedhpl.SPREAD)
