"""The first table: FedAvg by samples and uniform, Local, Centralized, SCAFFOLD and FedHe on digits, three partitions, three seeds.

Command:  fedjax-core table --table=configs/tables/first.py --workdir=runs/first
Expect:   see configs/RESULTS.md.
Variants: small (the default; minutes); smoke (two rounds of few clients, seconds); paper: as small, no paper has it.

Methods end with one model for all (FedAvg, SCAFFOLD, Centralized) or with one per client (Local, FedHe), so there are two measures
that all of them have:

  own     the clients' own test rows, each scored by the model that its client uses, over all these rows together. Every test row
          belongs to one client, so of a global model this is its accuracy on the whole test set.
  whole   the whole test set: of a global model, or the mean over the clients' models. What it knows of data it never had.
"""

from configs import centralized, fedavg, fedhe, local, scaffold
from configs.tables.base import Column, Measure, Row, Table

OWN = ("test/personal/own/accuracy/weighted", "test/global/own/accuracy/weighted")
WHOLE = ("test/personal/all/accuracy/mean", "test/global/accuracy")


def get_table(variant: str = "small") -> Table:
    changes = {"models": ("mlp",), "evaluation.scopes": ("global", "own", "all"), "cohort.fraction": 0.4}
    if variant == "smoke":
        changes |= {"rounds": 2, "evaluation.every": 1, "data.clients": 5, "models": ("mlp(widths=(16,))",)}

    def like_small(get_config):
        return lambda variant: get_config("small" if variant == "paper" else variant)

    everyone = {"cohort.fraction": 1.0}  # nobody waits for Local; FedHe is defined over all clients
    return Table(
        title="First table: digits",
        rows=(
            Row("FedAvg (samples)", like_small(fedavg.get_config)),
            Row("FedAvg (uniform)", like_small(fedavg.get_config), {"method.weights": "uniform"}),
            Row("SCAFFOLD", like_small(scaffold.get_config)),
            Row("FedHe", like_small(fedhe.get_config), everyone),
            Row("Local", like_small(local.get_config), everyone),
            Row("Centralized", like_small(centralized.get_config)),
        ),
        columns=(
            Column("IID", {"data.partition": "iid"}),
            Column("Dirichlet(0.5)", {"data.partition": "dirichlet(alpha=0.5)"}),
            Column("Dirichlet(0.1)", {"data.partition": "dirichlet(alpha=0.1)"}),
        ),
        measures=(Measure("own test rows", OWN), Measure("whole test set", WHOLE)),
        seeds=(0, 1, 2),
        changes=changes,
        targets=(0.8, 0.9),
        note="own test rows: each client's own, scored by the model that it uses, over all these rows together. whole test set: of "
        "a global model, or the mean over the clients' models. 40 % of the clients take part in a round; in Local and FedHe all.",
        differ=("cohort", "epochs"),
    )
