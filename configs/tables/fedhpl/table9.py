"""FedHPL, Table 9: numbers sent by one client per round, and by five, with Table 10's constants.

Command:  fedjax-core table --table=configs/tables/fedhpl/table9.py --workdir=runs/fedhpl_counts/table9
Variants: small, smoke and paper are equal: counts of the built networks; nothing is trained, and no
          files are needed. FedGen's printed count has a label per example; here it has the number
          of examples per label. FedMD sends 21 or 111 numbers for each public example, FedHPL
          without compression 11 or 101 for each correct logit (`table10.py`).
"""

from configs import fedgen, fedgh, fedhe, fedproto, fedtgp
from configs import fedhpl as fedhpl_config
from configs.tables.base import Measure, Row
from configs.tables.fedhpl import all_methods as fedhpl

UP, FIVE = (
    Measure("a client", ("analysis:up",), digits=0),
    Measure("five clients", ("analysis:up(total=True)",), unit=2**10, digits=2),
)
PAPER = {
    "FedGen": "5130 51300",
    "FedGH": "5130 51300",
    "FedProto": "5130 51300",
    "FedTGP": "5130 51300",
    "FedHE": "110 10100",
}


def get_table(variant: str = "small"):
    networks = {"models": ("resnet18",)}
    configs = (fedgen, fedgh, fedproto, fedtgp, fedhe)
    rows = [Row(name, config.get_config, networks) for name, config in zip(PAPER, configs, strict=True)]
    rows.append(Row("FedHPL", fedhpl_config.get_config, {"models": ("resnet18(frame=3)",)}))
    paper = fedhpl.published(PAPER, "Table 9", fedhpl.BLANK, (UP, FIVE), [(UP,)]) | fedhpl.published(
        {"FedHPL": "110 0.54 10100 49.32"}, "Tables 9 and 10", fedhpl.BLANK, (UP, FIVE), [(UP,), (FIVE,)]
    )
    return fedhpl.counted("FedHPL, Table 9", rows, (UP, FIVE), paper=paper)
