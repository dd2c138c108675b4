"""FedAvg (both weightings), Local, Centralized, SCAFFOLD and FedHe on partitions of digits.

Command:  fedjax-core table --table=configs/tables/first.py --workdir=runs/first
Expect:   see configs/RESULTS.md.
Variants: small (the default; minutes); smoke (two rounds of few clients, seconds); paper: as small,
          since no paper has this table.

Some methods have one model (FedAvg, SCAFFOLD, Centralized), others one per client (Local, FedHe).
Two measures apply to all:

  own     the clients' own test examples, each evaluated with the model of its client, over all
          examples together. Each test example belongs to one client, so for a global model this is
          the accuracy on the whole test set.
  whole   the whole test set, with the global model, or the mean over the clients' models.
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

    all_clients = {"cohort.fraction": 1.0}  # Local has no rounds to wait for; FedHe is defined over all clients
    return Table(
        title="First table: digits",
        rows=(
            Row("FedAvg (samples)", like_small(fedavg.get_config)),
            Row("FedAvg (uniform)", like_small(fedavg.get_config), {"method.weights": "uniform"}),
            Row("SCAFFOLD", like_small(scaffold.get_config)),
            Row("FedHe", like_small(fedhe.get_config), all_clients),
            Row("Local", like_small(local.get_config), all_clients),
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
