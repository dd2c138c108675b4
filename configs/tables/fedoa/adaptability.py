"""FedOA, appendix F.3: other aggregations and adapters in place of FedAvg and LoRA.

Command:  fedjax-core table fedoa/adaptability --workdir=runs/fedoa --variant=paper --set=data.dir=DIR
Variants: see `all_methods.py`. Reading comprehension is left out. The paper says that aggregation,
          network and adapter can be replaced, and prints numbers for another network alone
          (`table8.py`); the replacements here are ours.

FedAdam and FedAvgM take the server's step, also for FedIT. The other adapters are parallel
bottlenecks of the same rank (He et al. 2022), and LoRA on keys too. With each of them FedOA is
beside FedIT and FedLoRA: does it lead with LoRA on queries and values alone?
"""

import dataclasses

from configs import fedopt
from configs.tables.base import Row, Table
from configs.tables.fedoa import all_methods as fedoa

SERVERS = {"FedAvgM": {"method.server": "momentum", "method.server_lr": 1.0}, "FedAdam": {"method.server_lr": 1e-3}}
ADAPTERS = {
    "bottlenecks": "bottleneck(rank=8, scale=2.0, dropout=0.05, targets=('query', 'value'))",
    "LoRA on keys too": "lora(rank=8, alpha=16.0, dropout=0.05, targets=('query', 'key', 'value'))",
}


def get_table(variant: str = "small") -> Table:
    rows = [fedoa.FEDIT, fedoa.FEDLORA, fedoa.FEDOA]
    for name, server in SERVERS.items():
        own = {"method.server": "adam", **server}
        rows.append(Row(f"FedIT, {name}", fedopt.get_config, {**own, **fedoa.GLOBAL}))
        rows.append(Row(f"FedOA, {name}", fedoa.FEDOA.config, {**fedoa.FEDOA.changes, **own}))
    for name, adapter in ADAPTERS.items():
        for row in (fedoa.FEDIT, fedoa.FEDLORA, fedoa.FEDOA):
            rows.append(dataclasses.replace(row, label=f"{row.label}, {name}", changes={**row.changes, "adapter": adapter}))
    columns = fedoa.columns(variant, [fedoa.READING])
    table = fedoa.table("FedOA, appendix F.3", variant, rows, columns, differ=("network",))
    return dataclasses.replace(table, seeds=(0, 1, 2))
