"""FedHPL, Table 9: numbers sent by one client per round, and by five, with Table 10's constants.

Command:  fedjax-core table --table=configs/tables/fedhpl/table9.py --workdir=runs/fedhpl_counts/table9
Variants: small, smoke and paper are equal: counts of the built networks; nothing is trained, and no
          files are needed. FedGen's printed count has a label per example; here it has the number
          of examples per label. The paper prints FedMD's count per public example, whose number it
          does not give: 21 or 111 (ten public classes more) for each of 5,000 here. It prints that
          of FedHPL without compression, "each logit", per correct example: 11 or 101 for each of
          the 20 examples that a client has here; `table10.py` counts them in trained runs.
"""

from configs import fedgen, fedgh, fedhe, fedmd, fedproto, fedtgp
from configs import fedhpl as fedhpl_config
from configs.tables.base import Measure, Row
from configs.tables.fedhpl import all_methods as fedhpl

UP, FIVE = (
    Measure("a client", ("analysis:up",), digits=0),
    Measure("five clients", ("analysis:up(total=True)",), unit=2**10, digits=2),
)
NETWORK, FRAMED = {"models": ("resnet18",)}, {"models": ("resnet18(frame=3)",)}
PUBLIC, OWN = 5_000, 20  # public examples; those of a client, in `fedhpl.BLANK`
PAPER = {
    "FedGen": "5130 51300",
    "FedGH": "5130 51300",
    "FedProto": "5130 51300",
    "FedTGP": "5130 51300",
    "FedHE": "110 10100",
}
PER_EXAMPLE = {"FedMD": f"{21 * PUBLIC} {111 * PUBLIC}", "FedHPL, each logit": f"{11 * OWN} {101 * OWN}"}


def get_table(variant: str = "small"):
    rows = (
        Row("FedGen", fedgen.get_config, NETWORK),
        Row("FedGH", fedgh.get_config, NETWORK),
        Row("FedProto", fedproto.get_config, NETWORK),
        Row("FedTGP", fedtgp.get_config, NETWORK),
        Row("FedMD", fedmd.get_config, NETWORK | {"public": f"blank(rows={PUBLIC})"}),
        Row("FedHE", fedhe.get_config, NETWORK),
        Row("FedHPL, each logit", fedhpl_config.get_config, FRAMED | {"method.compress": False}),
        Row("FedHPL", fedhpl_config.get_config, FRAMED),
    )
    paper = fedhpl.published(PAPER, "Table 9", fedhpl.BLANK, (UP, FIVE), [(UP,)])
    paper |= fedhpl.published(PER_EXAMPLE, "Table 9, times our number of examples", fedhpl.BLANK, (UP, FIVE), [(UP,)])
    paper |= fedhpl.published({"FedHPL": "110 0.54 10100 49.32"}, "Tables 9 and 10", fedhpl.BLANK, (UP, FIVE), [(UP,), (FIVE,)])
    return fedhpl.counted("FedHPL, Table 9", rows, (UP, FIVE), paper=paper)
