"""FedOA, Figures 1 and 3: accuracy per round, and the loss around FedIT's model.

Command:  fedjax-core table --table=configs/tables/fedoa/figure1.py --workdir=runs/fedoa --variant=paper --set=data.dir=DIR
          fedjax-core analyse RUN RUN ... --what=curves --out=DIR --score=test/personal/all/rouge1/mean,test/global/rouge1
          fedjax-core analyse FEDIT RUN ... --what=plane --out=DIR     (Figure 3: the first run has the model in the middle)
Variants: see `all_methods.py`. Reading comprehension is left out. Each round is evaluated: small
          by ROUGE-1 of the chosen answer, as the figure; paper by the accuracy of the answers'
          tokens, because answers are written for the last state alone.
"""

from configs.tables.fedoa import all_methods as fedoa


def get_table(variant: str = "small"):
    columns = fedoa.columns(variant, [fedoa.READING])
    measures = fedoa.MEASURES["small"] if variant == "small" else (fedoa.ACCURACY,)
    rows = (fedoa.FEDIT, *fedoa.PERSONALISED)
    return fedoa.table("FedOA, Figures 1 and 3", variant, rows, columns, measures, changes={"evaluation.every": 1})
