"""Parameters in Tables 1 and 2 of the FedHPL paper: trained by a client, and by all five.

Command:  fedjax-core table --table=configs/tables/fedhpl/parameters.py --workdir=runs/fedhpl_counts/parameters
Variants: small, smoke and paper are equal: counts of the built networks; nothing is trained, and no
          files are needed. In units of 2^20, on CIFAR-10. The paper prints a client's mean in Table
          1 and the sum of five in Table 2. It includes a server's generator for pFedPG, FedGen and
          FedTGP, a mapping layer for FedProto and ten outputs for FedMD, which no client trains
          here.
"""

from configs.tables.base import Measure
from configs.tables.fedhpl import all_methods as fedhpl

MEAN = Measure("a client", ("analysis:trained",), unit=2**20, digits=3)
SUM = Measure("five clients", ("analysis:trained(total=True)",), unit=2**20, digits=3)
TABLE1 = {
    "FedAvg": "81.83",
    "FedProx": "81.83",
    "SCAFFOLD": "81.83",
    "FedBABU": "81.82",
    "FedRep": "81.83",
    "pFedPT": "1.028",
    "pFedPG": "1.526",
    "FedHPL": "0.034",
}
TABLE2 = {
    "FedGen": "84.867",
    "FedGH": "86.325",
    "FedProto": "89.360",
    "FedTGP": "84.866",
    "FedMD": "84.375",
    "FedHE": "84.335",
    "FedHPL (CNN)": "0.078",
    "FedHPL (ViT)": "0.181",
}


def get_table(variant: str = "small"):
    rows = tuple(fedhpl.network_of(row) for row in (*fedhpl.one_network("paper"), *fedhpl.many_networks("paper")))
    paper = fedhpl.published(TABLE1, "Table 1", fedhpl.BLANK[:1], (MEAN, SUM), [(MEAN,)]) | fedhpl.published(
        TABLE2, "Table 2", fedhpl.BLANK[:1], (MEAN, SUM), [(SUM,)]
    )
    return fedhpl.counted("FedHPL: parameters", rows, (MEAN, SUM), fedhpl.BLANK[:1], paper=paper)
