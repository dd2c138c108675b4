"""FedOA: lambda and the distance of features, on rotated digits as domains.

Command:  fedjax-core table fedoa/rotations --workdir=runs/fedoa_rotations --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default): MNIST under six rotations, five clients with about 480 images of one each,
          the sixth left out; LoRA on queries and values of a small vision transformer pre-trained on
          letters (`configs/tables/fedhpl/letters.py` has the commands), 10 rounds of 2 epochs;
          paper: about 1200 images each, 20 rounds; smoke: two rounds of digits, a random transformer.

The rows are those of the paper's Tables 3 and 4, with lambda 0 (local training) and the squared
distance, whose gradient Eq. 20 prints. All distances have lambda 0.5. The score is the accuracy on
the rotation left out, one at the end of the range and one within, in the last round: each personal
model, for FedIT the global one. Only lambda and the distance differ between FedOA's rows. As in the
paper, distances have different scales at one lambda: cosine and Pearson are at most 2. Cosine with
a larger lambda is the control.
FFA-LoRA, FedSA-LoRA, FedEx-LoRA and FLoRA average the same adapter in other ways than FedIT.
"""

import dataclasses

from configs.tables.base import Column, Table
from configs.tables.fedoa import all_methods as fedoa

ANGLES = (0, 15, 30, 45, 60, 75)
LAMBDAS = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0)
DISTANCES = {"squared L2": "squared_l2", "cosine": "cosine", "Pearson": "pearson"}
COSINE_LAMBDAS = (5.0, 20.0)
SETTINGS = {
    "small": {"rounds": 10, "data.examples": 2_400},
    "paper": {"rounds": 20, "data.examples": 6_000},
    "smoke": {"rounds": 2, "data.examples": 360, "models": (fedoa.TINY,), "weights": None, "evaluation.every": 1},
}


def get_table(variant: str = "small") -> Table:
    rows = [
        fedoa.FEDIT,
        fedoa.FFA_LORA,
        fedoa.FEDSA_LORA,
        fedoa.FEDEX_LORA,
        fedoa.FLORA,
        fedoa.PERADA,
        *(fedoa.fedoa_row(f"lambda {lam:g}", lam=lam) for lam in LAMBDAS),
        *(fedoa.fedoa_row(label, distance=distance) for label, distance in DISTANCES.items()),
        *(fedoa.fedoa_row(f"cosine, lambda {lam:g}", distance="cosine", lam=lam) for lam in COSINE_LAMBDAS),
    ]
    of = f"rotated(of={'digits' if variant == 'smoke' else 'mnist'!r}, degrees={ANGLES})"
    columns = [Column(f"{angle} degrees", {"data.source": f'unseen_domain(of="{of}", domain={str(angle)!r})'}) for angle in (0, 45)]
    changes = {
        "data.clients": len(ANGLES) - 1,
        "models": ("vit(patch=7, width=96, depth=4, heads=3)",),
        "weights": "backbones/letters96.safetensors",
        "train": "head",
        "optimizer.lr": 1e-3,
        "method.batch": 32,
        "evaluation.every": 5,
        **SETTINGS[variant],
    }
    table = fedoa.table("FedOA: lambda and the distance", variant, rows, columns, (fedoa.ACCURACY,), changes=changes)
    return dataclasses.replace(table, seeds=(0, 1, 2), against="lambda 0")
