"""FedOA, Table 6: personalisation, clients tested on their own data sets.

Command:  fedjax-core table --table=configs/tables/fedoa/table6.py --workdir=runs/fedoa --variant=paper --set=data.dir=DIR
Variants: see `all_methods.py`. Reading comprehension is left out. Each number is the mean over the
          two clients with the task's data sets, the average over all six; smoke has only the
          average, on rotated digits.
"""

from configs.tables.base import Column, Measure
from configs.tables.fedoa import all_methods as fedoa

TASKS = {"Entailment": "entailment", "Sentiment": "sentiment", "Paraphrase": "paraphrase", "Average": ""}
PAPER = {
    "FedIT": "64.75 82.75 59.75 69.08",
    "pFedMe": "67.15 83.25 62.25 70.88",
    "FedLoRA": "66.50 82.50 62.75 70.58",
    "PerAda": "69.25 83.00 62.50 71.58",
    "FedSDR": "66.25 82.00 62.75 70.33",
    "FedOA": "69.50 82.25 62.00 71.25",
}


def measure(label: str, variant: str) -> Measure:
    """Returns ROUGE-1 on the tests of one task, or of all."""
    task = TASKS[label]
    if variant == "paper":
        return Measure(label, (f"analysis:rouge(of={task!r}, beams=4)" if task else "analysis:rouge(beams=4)",), percent=True)
    score = "accuracy" if variant == "smoke" else f"rouge1_{task}" if task else "rouge1"
    return Measure(label, tuple(f"test/{model}/own/{score}/mean" for model in ("personal", "global")), percent=True)


def get_table(variant: str = "small"):
    if variant == "smoke":
        changes = {"data.source": "rotated(of='digits', degrees=(0, 45, 90))", "data.examples": 240}
    else:
        changes = fedoa.questions(fedoa.READING, variant, ", tested='own'")
    columns = (Column("own tests", changes),)
    rows = [fedoa.with_options(row, evaluation__scopes=("own",)) for row in (fedoa.FEDIT, *fedoa.PERSONALISED)]
    measures = [measure(label, variant) for label in TASKS if variant != "smoke" or label == "Average"]
    numbers = PAPER if len(measures) > 1 else {row: line.split()[-1] for row, line in PAPER.items()}
    paper = fedoa.published(numbers, "Table 6", columns, measures, measures)
    return fedoa.table("FedOA, Table 6", variant, rows, columns, measures, paper=paper, note=fedoa.NOTE)
