"""FedOA, Figure 2: distance of personal models' features to the global model's.

Command:  fedjax-core table --table=configs/tables/fedoa/figure2.py --workdir=runs/fedoa --variant=paper --set=data.dir=DIR
          fedjax-core analyse RUN RUN RUN --what=curves --score=train/feature_distance --out=DIR
Variants: see `all_methods.py`. Reading comprehension is left out. The distance is the mean
          Euclidean one over the clients' training examples after local training, to the model as
          received.
"""

from configs.tables.base import Measure
from configs.tables.fedoa import all_methods as fedoa

MEASURES = (Measure("last round", ("train/feature_distance",)), Measure("first round", ("train/feature_distance",), "first"))


def get_table(variant: str = "small"):
    rows = [fedoa.with_options(row, method__measure=True) for row in (fedoa.PFEDME, fedoa.PERADA, fedoa.FEDOA)]
    columns = fedoa.columns(variant, [fedoa.READING])
    return fedoa.table("FedOA, Figure 2", variant, rows, columns, MEASURES)
