"""FedOA, Table 8: a vision transformer on Office-Home, one domain left out, three clients.

Command:  fedjax-core table --table=configs/tables/fedoa/table8.py --workdir=runs/fedoa --variant=paper --set=data.dir=DIR
Variants: paper: Office-Home at 224 pixels in the folder office_home of DIR (DOMAIN/CLASS/*),
          ViT-B/16 from weights/vit_b16.npz (docs/pages/pretrained.md), training adapter and head;
          small: PACS at 32 pixels from DIR/pacs64.npz, a small vision transformer without weights,
          trained whole, 10 rounds; smoke: rotated digits. Each client has one domain. The paper
          gives neither the ViT nor the rates; here these are the language models' rates. Its last
          column is the mean: 69.97, 53.96, 64.47, 53.98 and 69.35.

The columns are the domains that are left out. Another backbone: --set=models="('vit_s16',)"
--set=weights=FILE.
"""

from configs.tables.base import Column
from configs.tables.fedoa import all_methods as fedoa

DOMAINS = {
    "paper": {"Art": "Art", "Clipart": "Clipart", "Product": "Product", "Real World": "Real World"},
    "small": {"Art painting": "art_painting", "Cartoon": "cartoon", "Photo": "photo", "Sketch": "sketch"},
    "smoke": {f"{angle} degrees": angle for angle in ("0", "30", "60", "90")},
}
OF = {
    "paper": "folder(path='office_home', domains=True, size=224, test_fraction=0.2)",
    "small": "npz(path='pacs64.npz')",
    "smoke": "rotated(of='digits')",
}
SETTINGS = {
    "paper": {"models": ("vit_b16",), "weights": "weights/vit_b16.npz", "train": "head", "normalise": "half"},
    "small": {
        "models": ("vit(patch=8, width=64, depth=4, heads=4)",),
        "adapter": None,
        "data.size": 32,
        "data.examples": 3000,
        "rounds": 10,
        "evaluation.every": 5,
        "optimizer.lr": 1e-3,
    },
    "smoke": {"data.examples": 240},
}
PAPER = {
    "FedIT": "68.11 56.66 77.18 77.94",
    "pFedMe": "54.72 41.25 59.22 60.67",
    "FedLoRA": "60.49 51.31 72.93 73.15",
    "PerAda": "54.73 41.25 59.24 60.68",
    "FedOA": "67.49 56.51 75.96 77.45",
}


def get_table(variant: str = "small"):
    source = f'unseen_domain(of="{OF[variant]}", domain='
    columns = [Column(label, {"data.source": f"{source}{domain!r})"}) for label, domain in DOMAINS[variant].items()]
    rows, measures = (fedoa.FEDIT, fedoa.PFEDME, fedoa.FEDLORA, fedoa.PERADA, fedoa.FEDOA), (fedoa.ACCURACY,)
    paper = fedoa.published(PAPER, "Table 8", columns, measures) if variant == "paper" else {}
    changes = {"data.clients": 3, **SETTINGS[variant]}
    return fedoa.table("FedOA, Table 8", variant, rows, columns, measures, changes=changes, paper=paper)
