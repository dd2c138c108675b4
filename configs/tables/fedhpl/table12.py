"""FedHPL, Table 12: backbones pre-trained without labels (MoCo-v3), 50 rounds.

Command:  fedjax-core table --table=configs/tables/fedhpl/table12.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`. The files are weights/vit_s16_moco.safetensors, and likewise b16 and
          l16. MoCo-v3 has no public ViT-L, and its ViT-S has twelve heads. Small and smoke use no
          files and are ordinary runs.
"""

from collections.abc import Callable

from configs.tables.base import Changes
from configs.tables.fedhpl import all_methods as fedhpl

PAPER = {
    "FedHPL, MoCo-v3 (2)": "96.50 91.56 93.94  80.22 62.37 61.19  91.73 88.22 85.94",
    "FedHPL (ViT), MoCo-v3 (2)": "93.93 87.71 89.70  71.63 57.34 56.64  90.57 87.11 85.26",
}


def self_supervised(variant: str, networks: Callable[[str], Changes], rounds: int | None = 50) -> Changes:
    """Returns the networks with MoCo-v3's weights and a number of rounds; None: the default."""
    changes = dict(networks(variant))
    if variant == "paper":
        twelve = "vit(patch=16, width=384, depth=12, heads=12, "
        changes["models"] = tuple(spec.replace("vit_s16(", twelve) for spec in changes["models"])
        changes["weights"] = tuple(file.replace(".npz", "_moco.safetensors") for file in changes["weights"])
        changes["normalise"] = "imagenet"
        changes |= {} if rounds is None else {"rounds": rounds}
    return changes


def get_table(variant: str = "small"):
    rows = tuple(
        fedhpl.fedhpl(f"FedHPL{kind}, MoCo-v3 (2)", self_supervised(variant, networks)) for kind, networks in fedhpl.KINDS.items()
    )
    columns = fedhpl.columns(variant)
    return fedhpl.table(
        "FedHPL, Table 12", variant, rows, columns, paper=fedhpl.published(PAPER, "Table 12", columns), differ=("network",)
    )
